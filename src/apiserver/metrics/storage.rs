//! Metrics of the store and the watch caches (`pkg/storage/etcd3/metrics`,
//! `pkg/storage/cacher/metrics`,
//! `pkg/storage/metrics`), addresses and ports of Services
//! (`pkg/registry/core/service/*allocator`).

use std::time::Duration;

use api::Gvr;
use base::metrics::{DEFAULT_BOUNDS, Family};
use tokio::time::Instant;

use super::word;

const REQUESTS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];
const STARTS: [f64; 12] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0];
const READ_WAITS: [f64; 13] =
    [0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0];

static OPERATIONS: Family = Family::counter(
    "etcd_requests_total",
    "[ALPHA] Etcd request counts for each operation and object type.",
    &["group", "operation", "resource"],
);
static OPERATION_ERRORS: Family = Family::counter(
    "etcd_request_errors_total",
    "[ALPHA] Etcd failed request counts for each operation and object type.",
    &["group", "operation", "resource"],
);
static OPERATION_TIME: Family = Family::histogram(
    "etcd_request_duration_seconds",
    "[ALPHA] Etcd request latency in seconds for each operation and object type.",
    &["group", "operation", "resource"],
    &REQUESTS,
);
static EVENTS: Family = Family::counter(
    "apiserver_storage_events_received_total",
    "[BETA] Number of etcd events received split by kind.",
    &["group", "resource"],
);
static LISTS: Family = Family::counter(
    "apiserver_storage_list_total",
    "[ALPHA] Number of LIST requests served from storage",
    &["group", "index", "resource", "storage"],
);
static FETCHED: Family = Family::counter(
    "apiserver_storage_list_fetched_objects_total",
    "[ALPHA] Number of objects read from storage in the course of serving a LIST request",
    &["group", "index", "resource", "storage"],
);
static EVALUATED: Family = Family::counter(
    "apiserver_storage_list_evaluated_objects_total",
    "[ALPHA] Number of objects tested in the course of serving a LIST request from storage",
    &["group", "resource", "storage"],
);
static RETURNED: Family = Family::counter(
    "apiserver_storage_list_returned_objects_total",
    "[ALPHA] Number of objects returned for a LIST request from storage",
    &["group", "resource", "storage"],
);
static LIST_TIME: Family = Family::histogram(
    "apiserver_storage_list_duration_seconds",
    "[ALPHA] Latency of the storage layer GetList call in seconds, including object decode, \
     split by whether etcd RangeStream was used.",
    &["group", "resource", "streamed"],
    &REQUESTS,
);
static UNREADABLE: Family = Family::counter(
    "apiserver_storage_decode_errors_total",
    "[ALPHA] Number of stored object decode errors split by object type",
    &["group", "resource"],
);
static CACHE_EVENTS: Family = Family::counter(
    "apiserver_watch_cache_events_received_total",
    "[ALPHA] Counter of events received in watch cache broken by resource type.",
    &["group", "resource"],
);
static CACHE_SENT: Family = Family::counter(
    "apiserver_watch_cache_events_dispatched_total",
    "[ALPHA] Counter of events dispatched in watch cache broken by resource type.",
    &["group", "resource"],
);
static CACHE_STARTS: Family = Family::counter(
    "apiserver_watch_cache_initializations_total",
    "[ALPHA] Counter of watch cache initializations broken by resource type.",
    &["group", "resource"],
);
static CACHE_START_TIME: Family = Family::histogram(
    "apiserver_watch_cache_initialization_duration_seconds",
    "[ALPHA] Histogram of watch cache initialization duration in seconds, broken by resource \
     type.",
    &["group", "resource"],
    &STARTS,
);
static CACHE_START_ERRORS: Family = Family::counter(
    "apiserver_watch_cache_initialization_errors_total",
    "[ALPHA] Counter of watch cache initialization errors broken by resource type.",
    &["group", "resource"],
);
static CACHE_WAITS: Family = Family::histogram(
    "apiserver_watch_cache_read_wait_seconds",
    "[ALPHA] Histogram of time spent waiting for a watch cache to become fresh.",
    &["group", "resource"],
    &READ_WAITS,
);
static CACHE_READS: Family = Family::counter(
    "apiserver_watch_cache_consistent_read_total",
    "[ALPHA] Counter for consistent reads from cache.",
    &["fallback", "group", "resource", "success"],
);
static BEGINNINGS: Family = Family::counter(
    "apiserver_init_events_total",
    "[ALPHA] Counter of init events processed in watch cache broken by resource type.",
    &["group", "resource"],
);
static ADDRESSES: Family = Family::counter(
    "kube_apiserver_clusterip_allocator_allocation_total",
    "[ALPHA] Number of Cluster IPs allocations",
    &["cidr", "scope"],
);
static ADDRESS_ERRORS: Family = Family::counter(
    "kube_apiserver_clusterip_allocator_allocation_errors_total",
    "[ALPHA] Number of errors trying to allocate Cluster IPs",
    &["cidr", "scope"],
);
static ADDRESS_TIME: Family = Family::histogram(
    "kube_apiserver_clusterip_allocator_allocation_duration_seconds",
    "[ALPHA] Duration in seconds to allocate a Cluster IP by ServiceCIDR",
    &["cidr"],
    &DEFAULT_BOUNDS,
);
static PORTS: Family = Family::counter(
    "kube_apiserver_nodeport_allocator_allocation_total",
    "[ALPHA] Number of NodePort allocations",
    &["scope"],
);
static PORT_ERRORS: Family = Family::counter(
    "kube_apiserver_nodeport_allocator_allocation_errors_total",
    "[ALPHA] Number of errors trying to allocate NodePort",
    &["scope"],
);

pub(super) static ALL: [&Family; 23] = [
    &OPERATIONS,
    &OPERATION_ERRORS,
    &OPERATION_TIME,
    &EVENTS,
    &LISTS,
    &FETCHED,
    &EVALUATED,
    &RETURNED,
    &LIST_TIME,
    &UNREADABLE,
    &CACHE_EVENTS,
    &CACHE_SENT,
    &CACHE_STARTS,
    &CACHE_START_TIME,
    &CACHE_START_ERRORS,
    &CACHE_WAITS,
    &CACHE_READS,
    &BEGINNINGS,
    &ADDRESSES,
    &ADDRESS_ERRORS,
    &ADDRESS_TIME,
    &PORTS,
    &PORT_ERRORS,
];

/// Counts a request to the store: `get`, `create`, `update`, `delete` or `list`.
pub(crate) fn asked(gvr: &Gvr, operation: &str, since: Instant, good: bool) {
    let labels = [&*gvr.group, operation, &*gvr.resource];
    OPERATIONS.inc(&labels);
    OPERATION_TIME.took(&labels, since.elapsed());
    if !good {
        OPERATION_ERRORS.inc(&labels);
    }
}

/// The label value for lists from the store; those from the cache have [`CACHE`].
pub(crate) const STORE: &str = "etcd";
/// See [`STORE`].
pub(crate) const CACHE: &str = "watchcache";

/// Counts a list: the numbers of read and returned objects, and whether selectors were evaluated.
pub(crate) fn listed(gvr: &Gvr, storage: &str, read: usize, returned: usize, selects: bool) {
    let (group, resource) = (&*gvr.group, &*gvr.resource);
    LISTS.inc(&[group, "", resource, storage]);
    FETCHED.add(&[group, "", resource, storage], read as f64);
    EVALUATED.add(&[group, resource, storage], if selects { read as f64 } else { 0.0 });
    RETURNED.add(&[group, resource, storage], returned as f64);
}

/// Counts the duration of a list from the store.
pub(crate) fn list_took(gvr: &Gvr, since: Instant) {
    LIST_TIME.took(&[&gvr.group, &gvr.resource, word(false)], since.elapsed());
}

/// Counts a stored object that cannot be decoded.
pub(crate) fn unreadable(gvr: &Gvr) {
    UNREADABLE.inc(&[&gvr.group, &gvr.resource]);
}

/// Counts events received from the store.
pub(crate) fn told(gvr: &Gvr, events: usize) {
    EVENTS.add(&[&gvr.group, &gvr.resource], events as f64);
}

/// Counts events dispatched by a watch cache.
pub(crate) fn passed(gvr: &Gvr, events: usize) {
    CACHE_EVENTS.add(&[&gvr.group, &gvr.resource], events as f64);
    CACHE_SENT.add(&[&gvr.group, &gvr.resource], events as f64);
}

/// Counts an attempt to load a watch cache.
pub(crate) fn loaded(gvr: &Gvr, since: Instant, good: bool) {
    let labels = [&*gvr.group, &*gvr.resource];
    if good {
        CACHE_STARTS.inc(&labels);
        CACHE_START_TIME.took(&labels, since.elapsed());
    } else {
        CACHE_START_ERRORS.inc(&labels);
    }
}

/// Counts a read that waited for a watch cache.
pub(crate) fn waited(gvr: &Gvr, since: Instant) {
    CACHE_WAITS.took(&[&gvr.group, &gvr.resource], since.elapsed());
}

/// Counts a consistent read from a watch cache; `good` is false if the cache was not fresh in time.
pub(crate) fn read(gvr: &Gvr, good: bool) {
    CACHE_READS.inc(&[word(false), &gvr.group, &gvr.resource, word(good)]);
}

/// Counts the initial objects of a watch.
pub(crate) fn began(gvr: &Gvr, objects: usize) {
    BEGINNINGS.add(&[&gvr.group, &gvr.resource], objects as f64);
}

/// Counts an allocation of a cluster IP; `named` is whether the Service requests a certain address.
pub(crate) fn address(cidr: &str, named: bool, good: bool, took: Duration) {
    let scope = scope(named);
    if good {
        ADDRESSES.inc(&[cidr, scope]);
        ADDRESS_TIME.took(&[cidr], took);
    } else {
        ADDRESS_ERRORS.inc(&[cidr, scope]);
    }
}

/// Counts an allocation of a node port.
pub(crate) fn port(named: bool, good: bool) {
    let family = if good { &PORTS } else { &PORT_ERRORS };
    family.inc(&[scope(named)]);
}

fn scope(named: bool) -> &'static str {
    if named { "static" } else { "dynamic" }
}
