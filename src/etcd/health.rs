//! etcd's health checks: `/health`, and the named ones of `/livez` and `/readyz`.

use proto::etcdserverpb::AlarmType;

use crate::checks::Check;
use crate::errors::{alarm_name, status};
use crate::service::Etcd;

/// Why a health check fails; the texts are etcd's.
#[derive(Debug)]
pub(crate) enum HealthError {
    /// A read fails; the text is that of etcd's status.
    Read(String),
    /// The alarm CORRUPT is raised.
    Corrupt,
    /// The member is a learner.
    Learner,
    /// An alarm is raised (`/health`).
    Alarm(String),
    /// There is no leader (`/health`).
    NoLeader,
    /// A read fails (`/health`).
    Range(Box<HealthError>),
}

impl std::fmt::Display for HealthError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Read(text) => f.write_str(text),
            Self::Corrupt => f.write_str("alarm activated: CORRUPT"),
            Self::Learner => f.write_str("not supported for learner"),
            Self::Alarm(name) => write!(f, "ALARM {name}"),
            Self::NoLeader => f.write_str("RAFT NO LEADER"),
            Self::Range(error) => write!(f, "RANGE ERROR:{error}"),
        }
    }
}

impl Etcd {
    async fn probe(&self, linearizable: bool) -> Result<(), HealthError> {
        let read = async {
            if linearizable {
                self.backend.read_index().await?;
            }
            let one = store::RangeRequest {
                limit: 1,
                keys_only: true,
                ..store::RangeRequest::new(store::KeyRange::key("\0"))
            };
            self.backend.range(one).await.map(drop)
        };
        read.await.map_err(|error| HealthError::Read(status(error).message().to_owned()))
    }

    /// Runs a named check of `/livez` or `/readyz`.
    pub(crate) async fn check(&self, check: Check) -> Result<(), HealthError> {
        match check {
            Check::DataCorruption => {
                let corrupt = AlarmType::Corrupt as i32;
                if self.backend.alarms().iter().any(|(_, alarm)| alarm.0 == corrupt) {
                    return Err(HealthError::Corrupt);
                }
                Ok(())
            }
            Check::SerializableRead => self.probe(false).await,
            Check::LinearizableRead => self.probe(true).await,
            Check::NonLearner if self.is_learner() => Err(HealthError::Learner),
            Check::NonLearner => Ok(()),
        }
    }

    /// Runs the older check of `/health`.
    pub(crate) async fn health(&self, excluded: &[String], local: bool) -> Result<(), HealthError> {
        for (_, alarm) in self.backend.alarms() {
            let name = alarm_name(alarm);
            if !excluded.contains(&name) {
                let known = AlarmType::try_from(alarm.0).is_ok();
                return Err(HealthError::Alarm(if known { name } else { "UNKNOWN".to_owned() }));
            }
        }
        if !local && self.leader() == 0 {
            return Err(HealthError::NoLeader);
        }
        self.probe(!local).await.map_err(|error| HealthError::Range(Box::new(error)))
    }
}
