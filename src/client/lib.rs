//! The client of the API server for all components: in process or over HTTPS.
//!
//! [`Client`] reads and writes typed objects under one identity. [`Informers`] share one cache per
//! resource, fed by a streaming list. [`Queue`] and [`run_workers`] turn changes into reconciled
//! keys. [`EventRecorder`] records events. The crate does not depend on the API server or the
//! store.

pub mod cache;
pub mod client;
pub mod discovery;
pub mod error;
pub mod events;
pub mod expectations;
pub mod https;
pub mod informer;
pub mod kubeconfig;
pub mod labels;
pub mod offline;
pub mod owner;
pub mod proxy;
mod reflector;
pub mod runner;
pub mod transform;
pub mod transport;
mod unexpected;
pub mod workqueue;

pub use client::{Client, DeleteOptions, Kind, ListOptions, Patch, Propagation, gvr_of};
pub use discovery::{Discovery, ServedKind};
pub use error::Error;
pub use events::EventRecorder;
pub use expectations::Expectations;
pub use https::HttpsTransport;
pub use informer::{Change, Informer, Informers};
pub use kubeconfig::Kubeconfig;
pub use offline::OfflineTransport;
pub use owner::{controller_of, is_controlled_by, meta, owner_reference};
pub use runner::{Action, run_workers};
pub use transform::Transform;
pub use transport::{Scope, Transport, WatchStream};
pub use workqueue::Queue;
