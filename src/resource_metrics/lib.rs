//! CPU and memory of nodes and pods: what the resource metrics API serves and autoscalers read.
//!
//! [`collector::run`] measures every node each 15 s through a [`collector::Source`] and keeps the
//! results in a [`Store`]. The rules are those of metrics-server, which this replaces: two
//! measurements make a usage, and a pod without both for each of its containers has none.

pub mod collector;
pub mod history;
pub mod sample;
pub mod store;
pub mod text;
pub mod usage;

pub use sample::{PodKey, Point, Sample};
pub use store::Store;
pub use usage::{PodUsage, Usage};
