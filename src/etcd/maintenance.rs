//! The Maintenance service: status, alarms, checksums, snapshots, defragmentation, leadership
//! transfer.

use futures::StreamExt;
use futures::stream::BoxStream;
use proto::etcdserverpb as pb;
use proto::etcdserverpb::alarm_request::AlarmAction;
use proto::etcdserverpb::maintenance_server::Maintenance;
use store::{Alarm, Revision, Role};
use tonic::{Request, Response, Status};

use crate::errors::{alarm_name, status};
use crate::service::{ETCD_VERSION, Etcd, STORAGE_VERSION, refuse};

fn bytes(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

impl Etcd {
    /// Whether this member is a learner.
    pub(crate) fn is_learner(&self) -> bool {
        let member = self.identity.member;
        let learns = |m: &store::Member| m.id == member && m.role == Role::Learner;
        self.backend.members().is_some_and(|members| members.list().iter().any(learns))
    }

    /// The errors in etcd's status.
    fn errors(&self, leader: u64) -> Vec<String> {
        let none = (leader == 0).then(|| "etcdserver: no leader".to_owned());
        let alarm = |(member, alarm)| format!("memberID:{member} alarm:{}", alarm_name(alarm));
        none.into_iter().chain(self.backend.alarms().into_iter().map(alarm)).collect()
    }
}

#[tonic::async_trait]
impl Maintenance for Etcd {
    type SnapshotStream = BoxStream<'static, Result<pb::SnapshotResponse, Status>>;

    async fn status(
        &self,
        _: Request<pb::StatusRequest>,
    ) -> Result<Response<pb::StatusResponse>, Status> {
        let (size, applied) = (self.backend.size(), self.backend.applied_index());
        let leader = self.leader();
        let committed = self.backend.stats().committed;
        Ok(Response::new(pb::StatusResponse {
            header: self.header_now(),
            version: ETCD_VERSION.to_owned(),
            db_size: bytes(size.disk),
            db_size_in_use: bytes(size.memory),
            // A negative quota means none, as in etcd.
            db_size_quota: self.backend.quota().map_or(-1, bytes),
            leader,
            raft_index: committed.max(applied),
            raft_applied_index: applied,
            raft_term: self.backend.term(),
            errors: self.errors(leader),
            is_learner: self.is_learner(),
            storage_version: STORAGE_VERSION.to_owned(),
            downgrade_info: Some(pb::DowngradeInfo::default()),
        }))
    }

    async fn alarm(
        &self,
        request: Request<pb::AlarmRequest>,
    ) -> Result<Response<pb::AlarmResponse>, Status> {
        let pb::AlarmRequest { action, member_id: member, alarm } = *request.get_ref();
        let set = async |raised| {
            // NONE is not an alarm; etcd neither raises nor clears it.
            let told = alarm != 0
                && self.backend.set_alarm(member, Alarm(alarm), raised).await.map_err(status)?;
            Ok::<_, Status>(told.then_some((member, Alarm(alarm))).into_iter().collect::<Vec<_>>())
        };
        let alarms = match AlarmAction::try_from(action) {
            Ok(AlarmAction::Get) => {
                self.backend.read_index().await.map_err(status)?;
                let mut alarms = self.backend.alarms();
                alarms.retain(|(_, raised)| alarm == 0 || raised.0 == alarm);
                alarms
            }
            Ok(AlarmAction::Activate) => set(true).await?,
            Ok(AlarmAction::Deactivate) => set(false).await?,
            Err(_) => return Err(Status::invalid_argument("kube-lite: the action is not known")),
        };
        let shown =
            |(member_id, alarm): (u64, Alarm)| pb::AlarmMember { member_id, alarm: alarm.0 };
        let alarms = alarms.into_iter().map(shown).collect();
        Ok(Response::new(pb::AlarmResponse { header: self.header_now(), alarms }))
    }

    async fn defragment(
        &self,
        _: Request<pb::DefragmentRequest>,
    ) -> Result<Response<pb::DefragmentResponse>, Status> {
        self.backend.defragment().await.map_err(status)?;
        Ok(Response::new(pb::DefragmentResponse::default()))
    }

    async fn hash(
        &self,
        _: Request<pb::HashRequest>,
    ) -> Result<Response<pb::HashResponse>, Status> {
        let hash = self.backend.hash(Revision(0)).await.map_err(status)?;
        let header = self.header(hash.newest);
        Ok(Response::new(pb::HashResponse { header, hash: hash.all }))
    }

    async fn hash_kv(
        &self,
        request: Request<pb::HashKvRequest>,
    ) -> Result<Response<pb::HashKvResponse>, Status> {
        // An invalid revision means the newest, as in etcd.
        let revision = Revision(request.get_ref().revision.max(0));
        let (hash, newest) = match self.compact_hashes.get(revision) {
            Some(hash) => (hash, self.backend.revision()),
            None => {
                let hash = self.backend.hash(revision).await.map_err(status)?;
                (hash, hash.newest)
            }
        };
        Ok(Response::new(pb::HashKvResponse {
            header: self.header(newest),
            hash: hash.keys,
            // etcd's value before the first compaction.
            compact_revision: if hash.compacted.0 == 0 { -1 } else { hash.compacted.0 },
            hash_revision: hash.revision.0,
        }))
    }

    async fn snapshot(
        &self,
        _: Request<pb::SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        self.send_snapshot().await.map(|stream| Response::new(stream.boxed()))
    }

    async fn move_leader(
        &self,
        request: Request<pb::MoveLeaderRequest>,
    ) -> Result<Response<pb::MoveLeaderResponse>, Status> {
        if self.leader() != self.identity.member {
            return Err(Status::failed_precondition("etcdserver: not leader"));
        }
        let target = request.get_ref().target_id;
        let members = self.member_infos();
        if !members.iter().any(|member| member.id == target && !member.is_learner) {
            return Err(Status::failed_precondition("etcdserver: bad leader transferee"));
        }
        if let Some(members) = self.backend.members() {
            members.transfer(target).await.map_err(|error| {
                tracing::warn!(%error, "the lead was not moved");
                Status::unknown("etcdserver: request timed out, leader transfer took too long")
            })?;
        }
        Ok(Response::new(pb::MoveLeaderResponse::default()))
    }

    async fn downgrade(
        &self,
        _: Request<pb::DowngradeRequest>,
    ) -> Result<Response<pb::DowngradeResponse>, Status> {
        refuse("a downgrade", "the version is that of kube-lite")
    }
}
