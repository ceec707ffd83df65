//! The KV service.

use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use proto::etcdserverpb as pb;
use proto::etcdserverpb::kv_server::Kv;
use store::{OpResponse, Revision};
use tonic::{Request, Response, Status};

use crate::errors::status;
use crate::grpc_frame::encoded;
use crate::range_plan::{RangePlan, key_value};
use crate::range_response::{Pieces, RangeResponseWriter};
use crate::service::Etcd;
use crate::txn;

/// Bytes of keys and values per message of a streamed read; a larger pair has a message of its own.
const CHUNK_BYTES: usize = 1024 * 1024;

impl Etcd {
    /// Runs a read; returns its plan, which shapes the response, and the result.
    pub(crate) async fn find(
        &self,
        request: &pb::RangeRequest,
    ) -> Result<(RangePlan, store::RangeResponse), Status> {
        let plan = self.plan(request).await?;
        let found = self.backend.range(plan.request.clone()).await.map_err(status)?;
        Ok((plan, found))
    }

    /// Plans a read, after the barrier of a linearizable one.
    async fn plan(&self, request: &pb::RangeRequest) -> Result<RangePlan, Status> {
        let plan = RangePlan::of(request)?;
        if !request.serializable {
            self.backend.read_index().await.map_err(status)?;
        }
        Ok(plan)
    }

    /// Responds to a read; a plain one is encoded during the read.
    pub(crate) async fn list(&self, request: &pb::RangeRequest) -> Result<Pieces, Status> {
        let plan = self.plan(request).await?;
        if plan.is_plain() {
            let mut listing = RangeResponseWriter::new(self);
            let found = self.backend.range_each(plan.request, &mut listing).await;
            return listing.end(&found.map_err(status)?);
        }
        let found = self.backend.range(plan.request.clone()).await.map_err(status)?;
        let header = self.header(found.revision);
        encoded(&plan.answer(found, header)).map(Pieces::from)
    }

    async fn read(&self, request: &pb::RangeRequest) -> Result<pb::RangeResponse, Status> {
        let (plan, found) = self.find(request).await?;
        let header = self.header(found.revision);
        Ok(plan.answer(found, header))
    }

    /// Runs an operation as a transaction of its own.
    async fn step(&self, op: pb::request_op::Request) -> Result<(OpResponse, Revision), Status> {
        let request = pb::TxnRequest {
            success: vec![pb::RequestOp { request: Some(op) }],
            ..pb::TxnRequest::default()
        };
        let mut done = self.transact(request).await?.1;
        match done.responses.pop() {
            Some(response) => Ok((response, done.revision)),
            None => Err(Status::internal("kube-lite: a step was not answered")),
        }
    }

    /// Runs a transaction; the request is needed to shape the response.
    async fn transact(
        &self,
        request: pb::TxnRequest,
    ) -> Result<(pb::TxnRequest, store::TxnResponse), Status> {
        txn::check(&request)?;
        let done = self.backend.txn(txn::translate(&request)?).await.map_err(status)?;
        Ok((request, done))
    }
}

#[tonic::async_trait]
impl Kv for Etcd {
    type RangeStreamStream = BoxStream<'static, Result<pb::RangeStreamResponse, Status>>;

    async fn range(
        &self,
        request: Request<pb::RangeRequest>,
    ) -> Result<Response<pb::RangeResponse>, Status> {
        self.read(request.get_ref()).await.map(Response::new)
    }

    async fn range_stream(
        &self,
        request: Request<pb::RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        let plan = RangePlan::of(request.get_ref())?;
        if !plan.is_default_order() {
            return Err(Status::unimplemented("RangeStream does not support custom sort orders"));
        }
        if plan.is_filtered() {
            return Err(Status::unimplemented("RangeStream does not support revision filters"));
        }
        let whole = self.read(request.get_ref()).await?;
        Ok(Response::new(stream::iter(chunks(whole)).map(Ok).boxed()))
    }

    async fn put(
        &self,
        request: Request<pb::PutRequest>,
    ) -> Result<Response<pb::PutResponse>, Status> {
        let op = pb::request_op::Request::RequestPut(request.into_inner());
        let (response, revision) = self.step(op).await?;
        let prev_kv = if let OpResponse::Put(prev) = response { prev } else { None };
        let prev_kv = prev_kv.map(key_value);
        Ok(Response::new(pb::PutResponse { header: self.header(revision), prev_kv }))
    }

    async fn delete_range(
        &self,
        request: Request<pb::DeleteRangeRequest>,
    ) -> Result<Response<pb::DeleteRangeResponse>, Status> {
        let op = pb::request_op::Request::RequestDeleteRange(request.into_inner());
        let (response, revision) = self.step(op).await?;
        let header = self.header(revision);
        Ok(Response::new(txn::deleted(response, header)))
    }

    async fn txn(
        &self,
        request: Request<pb::TxnRequest>,
    ) -> Result<Response<pb::TxnResponse>, Status> {
        let request = request.into_inner();
        // A read-only transaction is linearizable, as a read is.
        if txn::only_reads(&request) && !txn::is_serializable(&request) {
            self.backend.read_index().await.map_err(status)?;
        }
        let (request, done) = self.transact(request).await?;
        let header = self.header(done.revision);
        Ok(Response::new(txn::answer(&request, done, header)?))
    }

    async fn compact(
        &self,
        request: Request<pb::CompactionRequest>,
    ) -> Result<Response<pb::CompactionResponse>, Status> {
        let revision = Revision(request.get_ref().revision);
        // If the checksum is refused, so is the compaction, with the reason.
        let sum = if revision.0 > 0 { self.backend.hash(revision).await.ok() } else { None };
        self.backend.compact(revision).await.map_err(status)?;
        if let Some(sum) = sum {
            self.compact_hashes.insert(sum);
        }
        Ok(Response::new(pb::CompactionResponse { header: self.header_now() }))
    }
}

/// Splits a response into messages whose merged fields are the response; the last one has all
/// fields except the pairs.
fn chunks(whole: pb::RangeResponse) -> Vec<pb::RangeStreamResponse> {
    let mut chunks = Vec::new();
    let (mut kvs, mut bytes) = (Vec::new(), 0);
    for kv in whole.kvs {
        let size = kv.key.len() + kv.value.len();
        if bytes > 0 && bytes + size > CHUNK_BYTES {
            let part = pb::RangeResponse { kvs: std::mem::take(&mut kvs), ..Default::default() };
            chunks.push(pb::RangeStreamResponse { range_response: Some(part) });
            bytes = 0;
        }
        bytes += size;
        kvs.push(kv);
    }
    let last =
        pb::RangeResponse { kvs, header: whole.header, more: whole.more, count: whole.count };
    chunks.push(pb::RangeStreamResponse { range_response: Some(last) });
    chunks
}
