//! etcd's health checks: `/health`, and the named ones of `/livez` and `/readyz`.

use proto::etcdserverpb::AlarmType;

use crate::checks::Check;
use crate::errors::{alarm_name, status};
use crate::service::Etcd;

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

    /// Runs a check; the error is etcd's text.
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

    /// Runs the older check of `/health`; the error is the reason.
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
