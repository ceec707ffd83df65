//! The kube-lite executable.
fn main() {}
