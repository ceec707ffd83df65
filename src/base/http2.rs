//! HTTP/2 as gRPC clients written in Go send it, where hyper is stricter than gRPC for Go.

mod authority_filter;
mod hpack;

pub use authority_filter::AuthorityFilter;
