//! Controllers of objects of every kind: garbage collection, namespaces, custom resources'
//! APIServices, migrations of stored objects.

pub mod autoregister;
pub(crate) mod garbage_collector;
pub(crate) mod namespace;
pub(crate) mod storage_version_migration;
