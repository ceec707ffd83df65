//! The filters that every request passes on its way to a handler; [`chain`] has their order.

mod aggregation;
mod audit;
mod authentication;
mod authorization;
mod cache_control;
mod chain;
mod exchange;
mod impersonation;
mod metrics;
mod panic;
mod priority_and_fairness;
mod request_info;
mod routing;
pub(crate) mod timeout;
mod tracing;
