//! API Priority and Fairness (KEP 1040, upstream's `util/flowcontrol`): which flow a request
//! belongs to, how many seats its priority level has, who waits and who is refused.
//!
//! Pure: matching.rs, spec.rs, width.rs, dealer.rs, queues.rs, borrowing.rs. Shell: control.rs
//! gives and takes seats, follow.rs follows the objects and keeps those that every cluster has.
//! Nothing runs while nobody waits: what upstream does by timers (seats that are lent every ten
//! seconds, seats that are held behind an answer) is caught up with by the next request, and by a
//! task of a level in which somebody waits.

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
pub(crate) use matching::Asked;
pub(crate) use reconcile::follow;
pub(crate) use seat::{Class, Entering, Seat, Watching};

/// API group of the objects.
pub(crate) const GROUP: &str = "flowcontrol.apiserver.k8s.io";
/// Resource of flow schemas.
pub(crate) const SCHEMAS: &str = "flowschemas";
/// Resource of priority levels.
pub(crate) const LEVELS: &str = "prioritylevelconfigurations";
