//! The batch group.

pub mod cron_job;
pub mod job;
mod job_policies;
mod schedule;
