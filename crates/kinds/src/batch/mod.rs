//! The kinds of the batch group: work that ends.

pub mod cron_job;
pub mod job;
