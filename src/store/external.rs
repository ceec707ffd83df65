//! External datastores: etcd, and SQL databases in kine's schema.

pub(crate) mod config;
pub(crate) mod endpoint;
pub(crate) mod etcd;
pub(crate) mod open;
pub(crate) mod sql;
