//! HTTP/2 as clients of etcd send it, where hyper is stricter than gRPC for Go.

pub(crate) mod authority_filter;
pub(crate) mod hpack;
