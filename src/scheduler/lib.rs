//! The scheduler: finds a node for every pod that has none.
//!
//! Pure parts: [`pod_info`], [`node_info`], the plugins, the cycle, preemption, the queue. Thin shell: `run.rs`
//! (listeners, loop) and `bind.rs` (writes). Decisions follow kube-scheduler's default profile.

mod bind;
mod cycle;
mod node_info;
mod node_selector;
mod plugins;
mod pod_info;
mod preemption;
mod queue;
mod resources;
mod run;
mod state;
mod volumes;

pub use run::start;
