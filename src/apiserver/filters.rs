//! What every request passes through on its way to a handler.

pub(crate) mod authorization;
pub(crate) mod chain;
pub(crate) mod priority_and_fairness;
pub(crate) mod timeout;
