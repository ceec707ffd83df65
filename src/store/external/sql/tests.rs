//! One set of facts over every engine, and what is SQLite's and kine's alone.

mod contract;
mod file;
mod lost;

use std::path::Path;
use std::sync::Arc;

use base::{Shutdown, Tasks};

use crate::contract::Backend;
use crate::{DatastoreTls, Endpoint, open_external};

fn tasks() -> Tasks {
    Tasks::new(Shutdown::new())
}

/// Ends the store of `tasks`, with everything on disk.
async fn end(tasks: Tasks) {
    tasks.shutdown().request();
    let left = tasks.drain(std::time::Duration::from_secs(10)).await;
    assert_eq!((left, tasks.fault()), (Vec::new(), None));
}

fn endpoint(path: &Path) -> Endpoint {
    let path = path.to_str().unwrap();
    Endpoint::parse(&format!("sqlite://{path}"), DatastoreTls::default()).unwrap()
}

async fn sqlite(path: &Path, tasks: &Tasks) -> Arc<dyn Backend> {
    open_external(endpoint(path), None, tasks).await.unwrap()
}

macro_rules! every_engine {
    ($($fact:ident),*) => {$(
        mod $fact {
            use super::*;

            #[tokio::test]
            async fn memory() {
                contract::$fact(crate::open_memory()).await;
            }

            #[tokio::test]
            async fn disk() {
                let (dir, tasks) = (tempfile::tempdir().unwrap(), tasks());
                let config = crate::Config::new(dir.path());
                contract::$fact(crate::open(config, &tasks).await.unwrap()).await;
                end(tasks).await;
            }

            #[tokio::test]
            async fn sqlite() {
                let (dir, tasks) = (tempfile::tempdir().unwrap(), tasks());
                contract::$fact(super::sqlite(&dir.path().join("state.db"), &tasks).await).await;
                end(tasks).await;
            }
        }
    )*};
}

every_engine!(revisions, guards, crowds, history, leases, updates);
