//! HTTP/2 as etcd's clients send it, where hyper is stricter than gRPC for Go.

pub(crate) mod authority_filter;
pub(crate) mod hpack;
