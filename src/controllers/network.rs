//! Controllers of Services: EndpointSlices, Endpoints, service CIDRs.

pub(crate) mod endpoint_builder;
pub(crate) mod endpoints;
pub(crate) mod endpointslice;
pub(crate) mod endpointslice_mirroring;
pub(crate) mod selectors;
pub(crate) mod service_cidr;
pub(crate) mod service_lb;
mod slice_counts;
