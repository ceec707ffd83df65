//! Dynamic resource allocation: which devices exist, which are in use, and which ones a claim gets.
//!
//! Floors, from the bottom: the names of devices (`id`), the objects in the form that allocation
//! needs (`slice`, `request`), the rules (`capacity`, `constraints`, `selectors`), what is in use
//! (`allocated`), the indexes that follow the API (`slices`, `classes`, `claims`), the search
//! (`pools`, `counters`, `allocator`), what is written for a pod (`binding`), and `store`, which
//! joins the indexes under one lock. Everything is pure except the lock of `store`.
//!
//! The search is upstream's "incubating" allocator of `k8s.io/dynamic-resource-allocation` with the
//! features that Kubernetes 1.37 enables by default.

pub(crate) mod allocated;
pub(crate) mod allocator;
pub(crate) mod binding;
pub(crate) mod capacity;
pub(crate) mod claims;
pub(crate) mod classes;
pub(crate) mod constraints;
pub(crate) mod counters;
mod evaluation_error;
pub(crate) mod id;
pub(crate) mod pools;
pub(crate) mod request;
pub(crate) mod selectors;
pub(crate) mod slice;
pub(crate) mod slices;
pub(crate) mod store;
