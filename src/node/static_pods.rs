//! Static pods: reads manifests on disk and at a URL, and keeps their mirror pods in the API.

pub(crate) mod document;
pub(crate) mod manifests;
pub(crate) mod mirror;
pub(crate) mod sources;
pub(crate) mod url;
pub(crate) mod url_config;
