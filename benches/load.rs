//! load: a placeholder
fn main() {}
