//! kube-lite
