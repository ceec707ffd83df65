//! The facts that the tests hold every engine to, over a database server: `contract ENDPOINT`, whose last part is the beginning
//! of the names of the databases, one for each fact, all new.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test, as a program")]

#[path = "../sql/tests/contract.rs"]
mod contract;

use base::{Shutdown, Tasks};
use store::{DatastoreTls, Endpoint, open_external};

macro_rules! facts {
    ($prefix:expr, $($fact:ident),*) => {$(
        let at = format!("{}_{}", $prefix, stringify!($fact));
        let endpoint = Endpoint::parse(&at, DatastoreTls::default()).unwrap();
        let tasks = Tasks::new(Shutdown::new());
        let store = open_external(endpoint.clone(), &tasks).await.unwrap();
        contract::$fact(store).await;
        tasks.shutdown().request();
        assert!(tasks.drain(std::time::Duration::from_secs(10)).await.is_empty());
        assert_eq!(tasks.fault(), None);
        // What was acknowledged opens again.
        let tasks = Tasks::new(Shutdown::new());
        let store = open_external(endpoint, &tasks).await.unwrap();
        println!("ok {} at revision {}", stringify!($fact), store.revision().0);
        tasks.shutdown().request();
        assert!(tasks.drain(std::time::Duration::from_secs(10)).await.is_empty());
    )*};
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let prefix = std::env::args().nth(1).unwrap_or_default();
    facts!(prefix, revisions, guards, crowds, history, leases, updates);
}
