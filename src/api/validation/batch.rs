//! The batch group.

pub mod job;
mod job_policies;
