//! One integration test binary.
fn main() {}
