//! Validation of the kinds of the batch group (upstream's `pkg/apis/batch/validation`).

pub mod cron_job;
mod indexes;
pub mod job;
mod job_policies;
mod job_status;
