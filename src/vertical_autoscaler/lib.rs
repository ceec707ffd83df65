//! The vertical pod autoscaler (`autoscaling.k8s.io/v1`) of kubernetes/autoscaler 1.8.1 in the
//! process of the server, with `--enable=vertical-pod-autoscaler`.
//!
//! Three components work on VerticalPodAutoscaler objects, as upstream's three programs do:
//! the recommender observes the usage of containers and writes recommendations into the status,
//! the updater resizes or evicts pods whose requests differ from them, and admission writes them
//! into new pods. The objects are the only interface between the components, so that each can be
//! replaced by upstream's.

pub mod admission;
pub mod policy;
pub mod types;
pub mod updater;
