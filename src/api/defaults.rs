//! Defaults of built-in kinds that the schema table cannot express.
//!
//! These defaults depend on other fields, on computation, or on the kind that contains the struct.
//! The schema table contains the defaults of single fields (`+default`), which are applied first.

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

/// Sets the defaults of one object in place.
pub type Defaulter = fn(&mut Value);

fn none(_: &mut Value) {}

/// The defaulter of a built-in kind; for a kind without such defaults, it does nothing.
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
