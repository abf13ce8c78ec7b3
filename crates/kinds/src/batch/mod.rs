//! The kinds of the batch group.

pub mod cron_job;
mod indexes;
pub mod job;
mod job_spec;
mod job_status;
mod timezone;
