//! API Priority and Fairness (KEP 1040, upstream's `util/flowcontrol`): classifies requests into
//! flows, assigns seats to priority levels, and queues or rejects requests.
//!
//! Modules without I/O: `matching`, `spec`, `width`, `shuffle_sharding`, `queues`, `borrowing`.
//! `control` assigns seats to requests; `reconcile` follows the objects and maintains the mandatory
//! ones. No timer runs while no request waits: where upstream uses timers (borrowing every ten
//! seconds, seats with additional latency), the next request catches up, or the task of a level
//! with waiting requests.

mod alloc;
mod borrowing;
mod control;
mod digest;
mod dropped;
mod dump;
mod ensure;
pub mod flags;
mod integrator;
mod level_counters;
mod matching;
pub(crate) mod max_in_flight;
mod metrics;
mod queues;
mod reconcile;
mod seat;
mod seats;
mod shuffle_sharding;
mod spec;
pub(crate) mod status;
mod timing;
mod width;

pub(crate) use control::Control;
pub(crate) use ensure::revised;
pub(crate) use matching::FlowAttributes;
pub(crate) use reconcile::follow;
pub(crate) use seat::{Class, Entering, Seat, Watching};

/// API group of the objects.
pub(crate) const GROUP: &str = "flowcontrol.apiserver.k8s.io";
/// Resource of flow schemas.
pub(crate) const SCHEMAS: &str = "flowschemas";
/// Resource of priority levels.
pub(crate) const LEVELS: &str = "prioritylevelconfigurations";
