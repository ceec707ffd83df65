//! The Lease service of etcd's gRPC API.

use base::tasks::Kind;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use proto::etcdserverpb as pb;
use proto::etcdserverpb::lease_server::Lease;
use store::StoreError;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};

use crate::errors::status;
use crate::service::Etcd;

/// Capacity of the queue of responses on a renewal stream. When it is full, the server reads no
/// more requests until the client reads responses.
const RENEWAL_RESPONSES_MAX: usize = 16;

#[tonic::async_trait]
impl Lease for Etcd {
    type LeaseKeepAliveStream = BoxStream<'static, Result<pb::LeaseKeepAliveResponse, Status>>;

    async fn lease_grant(
        &self,
        request: Request<pb::LeaseGrantRequest>,
    ) -> Result<Response<pb::LeaseGrantResponse>, Status> {
        let pb::LeaseGrantRequest { id, ttl } = *request.get_ref();
        let lease = self.backend.lease_grant(id, ttl).await.map_err(status)?;
        Ok(Response::new(pb::LeaseGrantResponse {
            header: self.header_now(),
            id: lease.id,
            ttl: lease.granted_ttl,
            error: String::new(),
        }))
    }

    async fn lease_revoke(
        &self,
        request: Request<pb::LeaseRevokeRequest>,
    ) -> Result<Response<pb::LeaseRevokeResponse>, Status> {
        let revision = self.backend.lease_revoke(request.get_ref().id).await.map_err(status)?;
        Ok(Response::new(pb::LeaseRevokeResponse { header: self.header(revision) }))
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<pb::LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let (responses, mut receiver) = mpsc::channel(RENEWAL_RESPONSES_MAX);
        let (etcd, requests) = (self.clone(), request.into_inner());
        self.tasks.spawn(Kind::Request, "etcd lease renewals", renew(etcd, requests, responses));
        Ok(Response::new(stream::poll_fn(move |context| receiver.poll_recv(context)).boxed()))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<pb::LeaseTimeToLiveRequest>,
    ) -> Result<Response<pb::LeaseTimeToLiveResponse>, Status> {
        let pb::LeaseTimeToLiveRequest { id, keys: wants_keys } = *request.get_ref();
        self.backend.read_index().await.map_err(status)?;
        let (ttl, granted_ttl, keys) = match self.backend.lease(id).await {
            Ok((lease, keys)) => (lease.remaining_ttl, lease.granted_ttl, keys),
            // etcd responds with these values for a lease that does not exist.
            Err(StoreError::LeaseNotFound) => (-1, 0, Vec::new()),
            Err(error) => return Err(status(error)),
        };
        let keys = if wants_keys { keys } else { Vec::new() };
        let header = self.header_now();
        Ok(Response::new(pb::LeaseTimeToLiveResponse { header, id, ttl, granted_ttl, keys }))
    }

    async fn lease_leases(
        &self,
        _: Request<pb::LeaseLeasesRequest>,
    ) -> Result<Response<pb::LeaseLeasesResponse>, Status> {
        self.backend.read_index().await.map_err(status)?;
        let leases = self.backend.leases().await.map_err(status)?;
        let leases = leases.into_iter().map(|id| pb::LeaseStatus { id }).collect();
        Ok(Response::new(pb::LeaseLeasesResponse { header: self.header_now(), leases }))
    }
}

/// Renews leases until the client ends the stream, a renewal fails, or the server shuts down.
async fn renew(
    etcd: Etcd,
    mut requests: Streaming<pb::LeaseKeepAliveRequest>,
    responses: mpsc::Sender<Result<pb::LeaseKeepAliveResponse, Status>>,
) -> Result<(), Status> {
    let shutdown = etcd.tasks.shutdown().clone();
    loop {
        let request = tokio::select! {
            request = requests.message() => request,
            () = responses.closed() => return Ok(()),
            () = shutdown.requested() => return Ok(()),
        };
        // The client closed the stream, or its connection failed: it receives no response.
        let Ok(Some(request)) = request else { return Ok(()) };
        // The header is created before the renewal, so that its revision is not later than the end
        // of the lease.
        let header = etcd.header_now();
        let response = match etcd.backend.lease_keep_alive(request.id).await {
            Ok(lease) => Ok(lease.granted_ttl),
            // As in etcd, a TTL of 0 means that the lease does not exist.
            Err(StoreError::LeaseNotFound) => Ok(0),
            Err(error) => Err(status(error)),
        };
        let response =
            response.map(|ttl| pb::LeaseKeepAliveResponse { header, id: request.id, ttl });
        let failed = response.is_err();
        if responses.send(response).await.is_err() || failed {
            return Ok(());
        }
    }
}
