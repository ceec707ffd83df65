//! Controllers that run pods: ReplicaSets, Deployments, StatefulSets, DaemonSets, Jobs and their
//! kind.

pub(crate) mod cronjob;
pub(crate) mod daemonset;
pub(crate) mod deployment;
pub(crate) mod horizontal_pod_autoscaler;
pub(crate) mod job;
pub(crate) mod metrics;
pub(crate) mod pod_gc;
pub(crate) mod replicas;
pub(crate) mod replicaset;
pub(crate) mod replicationcontroller;
pub(crate) mod revision_history;
pub(crate) mod statefulset;
pub(crate) mod template_hash;
pub(crate) mod ttl_after_finished;
