//! The batch group.

pub mod cron_job;
mod indexes;
pub mod job;
mod job_policies;
mod job_status;
mod schedule;
