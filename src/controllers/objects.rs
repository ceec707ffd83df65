//! Controllers of objects of every kind: garbage collection, namespaces, custom resources'
//! APIServices.

pub mod autoregister;
pub(crate) mod garbage_collector;
pub(crate) mod namespace;
