//! etcd's checks of health: `/health`, and the named ones of `/livez` and `/readyz`.

use proto::etcdserverpb::AlarmType;

use crate::Etcd;
use crate::answer::status;
use crate::maintenance::alarm_name;

/// What is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Check {
    /// No alarm says that members differ.
    DataCorruption,
    /// What is applied here can be read.
    SerializableRead,
    /// A quorum agrees that what is read is the newest.
    LinearizableRead,
    /// This member votes.
    NonLearner,
}

impl Check {
    /// etcd's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::DataCorruption => "data_corruption",
            Self::SerializableRead => "serializable_read",
            Self::LinearizableRead => "linearizable_read",
            Self::NonLearner => "non_learner",
        }
    }
}

/// A set of checks with a path of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The process does its work.
    Livez,
    /// It takes requests.
    Readyz,
}

impl Kind {
    /// The path without its slash.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Livez => "livez",
            Self::Readyz => "readyz",
        }
    }

    /// Its checks.
    pub(crate) fn checks(self) -> &'static [Check] {
        match self {
            Self::Livez => &[Check::SerializableRead],
            Self::Readyz => &[
                Check::DataCorruption,
                Check::SerializableRead,
                Check::LinearizableRead,
                Check::NonLearner,
            ],
        }
    }
}

impl Etcd {
    async fn probe(&self, linearizable: bool) -> Result<(), String> {
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
        read.await.map_err(|error| status(error).message().to_owned())
    }

    /// Runs one check; what is wrong in etcd's words.
    pub(crate) async fn check(&self, check: Check) -> Result<(), String> {
        match check {
            Check::DataCorruption => {
                let corrupt = AlarmType::Corrupt as i32;
                if self.backend.alarms().iter().any(|(_, alarm)| alarm.0 == corrupt) {
                    return Err("alarm activated: CORRUPT".to_owned());
                }
                Ok(())
            }
            Check::SerializableRead => self.probe(false).await,
            Check::LinearizableRead => self.probe(true).await,
            Check::NonLearner if self.is_learner() => Err("not supported for learner".to_owned()),
            Check::NonLearner => Ok(()),
        }
    }

    /// The older check behind `/health`; the reason why not.
    pub(crate) async fn health(&self, excluded: &[String], local: bool) -> Result<(), String> {
        for (_, alarm) in self.backend.alarms() {
            let name = alarm_name(alarm);
            if !excluded.contains(&name) {
                let known = AlarmType::try_from(alarm.0).is_ok();
                return Err(format!("ALARM {}", if known { &name } else { "UNKNOWN" }));
            }
        }
        if !local && self.leader() == 0 {
            return Err("RAFT NO LEADER".to_owned());
        }
        self.probe(!local).await.map_err(|error| format!("RANGE ERROR:{error}"))
    }
}
