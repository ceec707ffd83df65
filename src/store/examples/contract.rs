//! The contract tests of all engines, over a datastore: `contract ENDPOINT`, whose last part is the
//! prefix of the database names, one new database per test; or `contract http://HOST:PORT TEST`,
//! over an etcd that is new for the test. --cafile, --certfile and --keyfile, each followed by its
//! file, are for a datastore with TLS.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test, as a program")]

#[path = "../external/sql/tests/contract.rs"]
mod contract;
#[path = "../external/etcd/tests/facts.rs"]
mod etcd;

use std::sync::Arc;

use base::{Shutdown, Tasks};
use store::{Backend, DatastoreTls, Endpoint, open_external};

fn endpoint(at: &str, tls: &DatastoreTls) -> Endpoint {
    Endpoint::parse(at, tls.clone()).unwrap()
}

async fn open(endpoint: &Endpoint) -> (Arc<dyn Backend>, Tasks) {
    let tasks = Tasks::new(Shutdown::new());
    let store = open_external(endpoint.clone(), None, &tasks).await.unwrap();
    (store, tasks)
}

async fn end(tasks: Tasks) {
    tasks.shutdown().request();
    assert!(tasks.drain(std::time::Duration::from_secs(10)).await.is_empty());
    assert_eq!(tasks.fault(), None);
}

macro_rules! facts {
    ($place:expr, $tls:expr, $only:expr, $($fact:ident),*) => {$(
        if $only.as_deref().is_none_or(|only| only == stringify!($fact)) {
            let at = match $only {
                Some(_) => $place.clone(),
                None => format!("{}_{}", $place, stringify!($fact)),
            };
            let endpoint = endpoint(&at, $tls);
            let (store, tasks) = open(&endpoint).await;
            contract::$fact(store).await;
            end(tasks).await;
            // Acknowledged data opens again.
            let (store, tasks) = open(&endpoint).await;
            println!("ok {} at revision {}", stringify!($fact), store.revision().0);
            end(tasks).await;
        }
    )*};
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (mut args, mut plain, mut tls) =
        (std::env::args().skip(1), vec![], DatastoreTls::default());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--cafile" => tls.ca = args.next().map(Into::into),
            "--certfile" => tls.certificate = args.next().map(Into::into),
            "--keyfile" => tls.key = args.next().map(Into::into),
            _ => plain.push(arg),
        }
    }
    let mut plain = plain.into_iter();
    let (place, only) = (plain.next().unwrap_or_default(), plain.next());
    facts!(place, &tls, only, revisions, guards, crowds, history, leases, updates);
    match only.as_deref() {
        Some("held") => etcd::held(&endpoint(&place, &tls)).await,
        Some("pages") => etcd::pages(&endpoint(&place, &tls)).await,
        Some("whole") => etcd::whole(&endpoint(&place, &tls)).await,
        _ => return,
    }
    println!("ok {}", only.unwrap_or_default());
}
