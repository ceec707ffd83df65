//! The service Cluster: who the members are; changing them is not there yet.

use proto::etcdserverpb as pb;
use proto::etcdserverpb::cluster_server::Cluster;
use tonic::{Request, Response, Status};

use crate::answer::status;
use crate::{Etcd, refuse};

const SINGLE: &str = "the store has one member";

#[tonic::async_trait]
impl Cluster for Etcd {
    async fn member_list(
        &self,
        request: Request<pb::MemberListRequest>,
    ) -> Result<Response<pb::MemberListResponse>, Status> {
        if request.get_ref().linearizable {
            self.backend.quiet_barrier().await.map_err(status)?;
        }
        let member = pb::Member {
            id: self.identity.member,
            name: self.identity.name.clone(),
            client_ur_ls: self.identity.client_urls.clone(),
            ..pb::Member::default()
        };
        let header = self.header_now();
        Ok(Response::new(pb::MemberListResponse { header, members: vec![member] }))
    }

    async fn member_add(
        &self,
        _: Request<pb::MemberAddRequest>,
    ) -> Result<Response<pb::MemberAddResponse>, Status> {
        refuse("adding a member", SINGLE)
    }

    async fn member_remove(
        &self,
        _: Request<pb::MemberRemoveRequest>,
    ) -> Result<Response<pb::MemberRemoveResponse>, Status> {
        refuse("removing a member", SINGLE)
    }

    async fn member_update(
        &self,
        _: Request<pb::MemberUpdateRequest>,
    ) -> Result<Response<pb::MemberUpdateResponse>, Status> {
        refuse("changing a member", SINGLE)
    }

    async fn member_promote(
        &self,
        _: Request<pb::MemberPromoteRequest>,
    ) -> Result<Response<pb::MemberPromoteResponse>, Status> {
        refuse("promoting a member", SINGLE)
    }
}
