//! Entry points of the fuzzers: calls of clients to an empty store in memory.

use base::{Shutdown, Tasks};
use bytes::Bytes;
use prost::Message;
use proto::etcdserverpb as pb;
use proto::etcdserverpb::kv_server::Kv;
use proto::etcdserverpb::lease_server::Lease;
use store::Profile;
use tonic::{Request, Status};

use crate::kv_fast_path;
use crate::kv_fast_path::FastMethod;
use crate::service::Etcd;

/// Maximum number of calls per input.
const CALLS: usize = 64;

/// Runs calls: a byte for the method, two bytes of length, the message.
///
/// # Panics
/// If the hand-written encoder differs from the generated one.
pub fn calls(mut bytes: &[u8]) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return;
    };
    runtime.block_on(async {
        let tasks = Tasks::new(Shutdown::new());
        let store = store::open_memory_with(&tasks);
        let profile = Profile { name: "fuzz".to_owned(), client_urls: Vec::new() };
        let etcd = Etcd::new(store, profile, std::env::temp_dir(), tasks.clone());
        for _ in 0..CALLS {
            let Some((&[which, high, low], rest)) = bytes.split_first_chunk::<3>() else { break };
            let length = usize::from(u16::from_be_bytes([high, low])).min(rest.len());
            let (message, rest) = rest.split_at(length);
            bytes = rest;
            let before = etcd.backend.revision();
            let refused = call(&etcd, which, Bytes::copy_from_slice(message)).await.is_err();
            let after = etcd.backend.revision();
            assert!(after >= before, "the revision went back");
            assert!(!refused || after == before, "what was refused changed something");
        }
        tasks.shutdown().request();
    });
}

async fn call(etcd: &Etcd, which: u8, message: Bytes) -> Result<(), Status> {
    fn read<M: Message + Default>(message: Bytes) -> Result<Request<M>, Status> {
        M::decode(message).map(Request::new).map_err(|error| Status::internal(error.to_string()))
    }
    let hot = match which % 9 {
        0 => return range(etcd, message).await,
        1 => FastMethod::Put,
        2 => FastMethod::DeleteRange,
        3 => FastMethod::Txn,
        4 => return etcd.compact(read(message)?).await.map(drop),
        5 => return etcd.lease_grant(read(message)?).await.map(drop),
        6 => return etcd.lease_revoke(read(message)?).await.map(drop),
        7 => return etcd.lease_time_to_live(read(message)?).await.map(drop),
        _ => return etcd.range_stream(read(message)?).await.map(drop),
    };
    kv_fast_path::run(etcd, hot, message).await.map(drop)
}

/// A read, whose response is encoded in two ways.
async fn range(etcd: &Etcd, message: Bytes) -> Result<(), Status> {
    let answer = kv_fast_path::run(etcd, FastMethod::Range, message.clone()).await?.joined();
    let request =
        pb::RangeRequest::decode(message).map_err(|error| Status::internal(error.to_string()))?;
    let (plan, found) = etcd.find(&request).await?;
    let header = etcd.header(found.revision);
    let same = kv_fast_path::encoded(&plan.answer(found, header))?;
    assert_eq!(answer, same, "{request:?}");
    Ok(())
}
