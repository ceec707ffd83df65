//! Stores whose state is held in this process: the contract over the key space and an engine.

pub(crate) mod engine;
mod lease_deadlines;
mod lease_expiry;
pub(crate) mod memory;
mod pinned;
pub(crate) mod shared;
pub(crate) mod store;
#[cfg(test)]
mod tests;
