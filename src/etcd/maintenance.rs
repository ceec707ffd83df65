//! The service Maintenance: status, alarms and snapshots; what else concerns etcd's own database file is refused.

use futures::StreamExt;
use futures::stream::BoxStream;
use proto::etcdserverpb as pb;
use proto::etcdserverpb::alarm_request::AlarmAction;
use proto::etcdserverpb::maintenance_server::Maintenance;
use tonic::{Request, Response, Status};

use crate::{ETCD_VERSION, Etcd, refuse};

#[tonic::async_trait]
impl Maintenance for Etcd {
    type SnapshotStream = BoxStream<'static, Result<pb::SnapshotResponse, Status>>;

    async fn status(
        &self,
        _: Request<pb::StatusRequest>,
    ) -> Result<Response<pb::StatusResponse>, Status> {
        let (size, index) = (self.backend.size(), self.backend.applied_index());
        Ok(Response::new(pb::StatusResponse {
            header: self.header_now(),
            version: ETCD_VERSION.to_owned(),
            db_size: i64::try_from(size.disk).unwrap_or(i64::MAX),
            db_size_in_use: i64::try_from(size.memory).unwrap_or(i64::MAX),
            leader: self.identity.member,
            raft_index: index,
            raft_applied_index: index,
            raft_term: self.backend.term(),
            downgrade_info: Some(pb::DowngradeInfo::default()),
            ..pb::StatusResponse::default()
        }))
    }

    async fn alarm(
        &self,
        request: Request<pb::AlarmRequest>,
    ) -> Result<Response<pb::AlarmResponse>, Status> {
        match AlarmAction::try_from(request.get_ref().action) {
            // Space is looked at with each write: nothing has to be switched off for writes to go on.
            Ok(AlarmAction::Get | AlarmAction::Deactivate) => {
                let (header, alarms) = (self.header_now(), Vec::new());
                Ok(Response::new(pb::AlarmResponse { header, alarms }))
            }
            _ => refuse("raising an alarm", "a store without space refuses writes by itself"),
        }
    }

    async fn defragment(
        &self,
        _: Request<pb::DefragmentRequest>,
    ) -> Result<Response<pb::DefragmentResponse>, Status> {
        refuse("defragmentation", "the log is written anew with each checkpoint and has no holes")
    }

    async fn hash(
        &self,
        _: Request<pb::HashRequest>,
    ) -> Result<Response<pb::HashResponse>, Status> {
        refuse("the hash of a database file", "every record of the log has a checksum of its own")
    }

    async fn hash_kv(
        &self,
        _: Request<pb::HashKvRequest>,
    ) -> Result<Response<pb::HashKvResponse>, Status> {
        refuse("the hash of the key space", "every record of the log has a checksum of its own")
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
        if request.get_ref().target_id == self.identity.member {
            return Ok(Response::new(pb::MoveLeaderResponse { header: self.header_now() }));
        }
        Err(Status::failed_precondition("etcdserver: bad leader transferee"))
    }

    async fn downgrade(
        &self,
        _: Request<pb::DowngradeRequest>,
    ) -> Result<Response<pb::DowngradeResponse>, Status> {
        refuse("a downgrade", "the version is that of kube-lite")
    }
}
