//! Cases of upstream's `topology_hints_test.go`.
