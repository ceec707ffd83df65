//! The Cluster service: list, removal and promotion of members. Servers join by themselves, not
//! through this service.

use std::sync::Arc;

use proto::etcdserverpb as pb;
use proto::etcdserverpb::cluster_server::Cluster;
use store::{ClusterMembers, Role, StoreError};
use tonic::{Request, Response, Status};

use crate::errors::status;
use crate::service::{Etcd, refuse};
use crate::urls::{address, check};

fn not_found() -> Status {
    Status::not_found("etcdserver: member not found")
}

/// etcd's own error type has no code, so clients see `Unknown`.
fn not_enough() -> Status {
    Status::unknown("etcdserver: re-configuration failed due to not enough started members")
}

fn url_exists() -> Status {
    Status::failed_precondition("etcdserver: Peer URLs already exists")
}

/// Converts an error of the store.
fn refused(error: StoreError) -> Status {
    match error {
        StoreError::Invalid(text) => Status::failed_precondition(format!("kube-lite: {text}")),
        error => status(error),
    }
}

impl Etcd {
    /// All members in etcd's form.
    pub(crate) fn member_infos(&self) -> Vec<pb::Member> {
        let own = &self.identity;
        let shown = |id, address: &str, is_learner, profile: &store::Profile| pb::Member {
            id,
            name: profile.name.clone(),
            peer_ur_ls: if address.is_empty() {
                Vec::new()
            } else {
                vec![format!("https://{address}")]
            },
            client_ur_ls: profile.client_urls.clone(),
            is_learner,
        };
        let Some(members) = self.backend.members() else {
            return vec![shown(own.member, "", false, &own.profile)];
        };
        let (profiles, unknown) = (members.profiles(), store::Profile::default());
        let profile = |id: u64| match profiles.get(&id) {
            // This member's profile may not be committed yet.
            _ if id == own.member => &own.profile,
            Some(profile) => profile,
            None => &unknown,
        };
        let all = members.list().into_iter();
        all.map(|m| shown(m.id, &m.address, m.role == Role::Learner, profile(m.id))).collect()
    }

    fn members(&self) -> Result<Arc<dyn ClusterMembers>, Status> {
        let alone = || Status::unimplemented("kube-lite: a store in memory has one member");
        self.backend.members().ok_or_else(alone)
    }

    /// etcd's headers of this service have no revision.
    fn cluster_header(&self) -> Option<pb::ResponseHeader> {
        self.header(store::Revision(0))
    }
}

#[tonic::async_trait]
impl Cluster for Etcd {
    async fn member_list(
        &self,
        request: Request<pb::MemberListRequest>,
    ) -> Result<Response<pb::MemberListResponse>, Status> {
        if request.get_ref().linearizable {
            self.backend.read_index().await.map_err(status)?;
        }
        let (header, members) = (self.cluster_header(), self.member_infos());
        Ok(Response::new(pb::MemberListResponse { header, members }))
    }

    async fn member_add(
        &self,
        request: Request<pb::MemberAddRequest>,
    ) -> Result<Response<pb::MemberAddResponse>, Status> {
        let urls = &request.get_ref().peer_ur_ls;
        check(urls)?;
        let known = self.member_infos();
        if known.iter().any(|member| member.peer_ur_ls.iter().any(|url| urls.contains(url))) {
            return Err(url_exists());
        }
        refuse(
            "adding a member by its address",
            "start `kube-lite server --server https://HOST:6443 --token TOKEN` on the new machine, \
             it joins by itself",
        )
    }

    async fn member_remove(
        &self,
        request: Request<pb::MemberRemoveRequest>,
    ) -> Result<Response<pb::MemberRemoveResponse>, Status> {
        let id = request.get_ref().id;
        let members = self.members()?;
        let all = members.list();
        let voters = all.iter().filter(|member| member.role == Role::Voter).count();
        match all.iter().find(|member| member.id == id) {
            None => return Err(not_found()),
            Some(member) if member.role == Role::Voter && voters == 1 => return Err(not_enough()),
            Some(_) => members.remove(id).await.map_err(refused)?,
        }
        let (header, members) = (self.cluster_header(), self.member_infos());
        Ok(Response::new(pb::MemberRemoveResponse { header, members }))
    }

    async fn member_update(
        &self,
        request: Request<pb::MemberUpdateRequest>,
    ) -> Result<Response<pb::MemberUpdateResponse>, Status> {
        let pb::MemberUpdateRequest { id, peer_ur_ls: urls } = request.get_ref();
        let known = self.member_infos();
        if !known.iter().any(|member| member.id == *id) {
            return Err(not_found());
        }
        let mut others = known.iter().filter(|member| member.id != *id);
        if others.any(|member| member.peer_ur_ls.iter().any(|url| urls.contains(url))) {
            return Err(url_exists());
        }
        check(urls)?;
        let [url] = urls.as_slice() else {
            return refuse("a member with several peer URLs", "a member has one address");
        };
        self.members()?.add(*id, address(url)).await.map_err(refused)?;
        let (header, members) = (self.cluster_header(), self.member_infos());
        Ok(Response::new(pb::MemberUpdateResponse { header, members }))
    }

    async fn member_promote(
        &self,
        request: Request<pb::MemberPromoteRequest>,
    ) -> Result<Response<pb::MemberPromoteResponse>, Status> {
        let id = request.get_ref().id;
        let members = self.members()?;
        match members.list().iter().find(|member| member.id == id) {
            None => return Err(not_found()),
            Some(member) if member.role == Role::Voter => {
                return Err(Status::failed_precondition(
                    "etcdserver: can only promote a learner member",
                ));
            }
            Some(_) => members.promote(vec![id]).await.map_err(refused)?,
        }
        let (header, members) = (self.cluster_header(), self.member_infos());
        Ok(Response::new(pb::MemberPromoteResponse { header, members }))
    }
}
