//! Defaults that the schema table cannot say, for every built-in kind.
//!
//! Decided by other fields, by code, or by the kind that holds the struct. Defaults that a field
//! states by itself (`+default`) are applied from the schema table before these.

mod admission;
mod apps;
mod autoscaling;
mod batch;
mod core;
mod other;
mod pod;
mod pod_resources;
mod service;

use serde_json::Value;

pub use pod::{pod_spec, pod_template};
pub use pod_resources::{aggregate_requests, default_pod_level};

/// Fills one object in.
pub type Defaulter = fn(&mut Value);

fn none(_: &mut Value) {}

/// The defaults of a built-in kind; a function that does nothing for kinds without.
pub fn defaulter(group: &str, version: &str, kind: &str) -> Defaulter {
    match (group, kind) {
        ("", _) => core::defaulter(kind),
        ("apps", "Deployment") => apps::deployment,
        ("apps", "DaemonSet") => apps::daemon_set,
        ("apps", "StatefulSet") => apps::stateful_set,
        ("apps", "ReplicaSet") => apps::replica_set,
        ("batch", "Job") => batch::job,
        ("batch", "CronJob") => batch::cron_job,
        ("autoscaling", "HorizontalPodAutoscaler") if version == "v1" => autoscaling::v1,
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaling::v2,
        ("admissionregistration.k8s.io", _) => admission::defaulter(kind),
        _ => other::defaulter(group, kind),
    }
}
