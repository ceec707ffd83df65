//! Arguments of kube-scheduler.

use super::Component;
use super::Effect::{Fixed, List, NoEffect, Value};

const PROCESS: &str =
    "the scheduler is part of the server, without a listener or client of its own";

/// What kube-lite does with each argument.
pub const SCHEDULER: Component = Component {
    flag: "kube-scheduler-arg",
    arguments: &[
        (super::feature_gates::ARGUMENT, List),
        ("authentication-kubeconfig", NoEffect(PROCESS)),
        ("authorization-always-allow-paths", NoEffect(PROCESS)),
        ("authorization-kubeconfig", NoEffect(PROCESS)),
        ("bind-address", NoEffect(PROCESS)),
        ("config", Value),
        ("contention-profiling", NoEffect("there is no profiling endpoint")),
        ("kube-api-burst", NoEffect(PROCESS)),
        ("kube-api-qps", NoEffect(PROCESS)),
        ("kubeconfig", NoEffect(PROCESS)),
        ("leader-elect", Fixed("true", "one server of a cluster schedules at a time")),
        ("leader-elect-lease-duration", NoEffect("the leader is that of the store")),
        ("leader-elect-renew-deadline", NoEffect("the leader is that of the store")),
        ("leader-elect-retry-period", NoEffect("the leader is that of the store")),
        ("logging-format", Fixed("text", "kube-lite writes text lines")),
        ("pod-max-in-unschedulable-pods-duration", NoEffect("events requeue pods")),
        ("profiling", NoEffect("there is no profiling endpoint")),
        ("secure-port", NoEffect(PROCESS)),
        ("tls-cert-file", NoEffect(PROCESS)),
        ("tls-cipher-suites", NoEffect(PROCESS)),
        ("tls-min-version", NoEffect(PROCESS)),
        ("tls-private-key-file", NoEffect(PROCESS)),
        ("v", NoEffect("use -v or --debug of kube-lite")),
    ],
};
