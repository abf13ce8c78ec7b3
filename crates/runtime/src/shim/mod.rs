//! The process between the daemon and a pod's containers. It owns their standard streams, writes
//! their logs, reaps their processes and records their exit codes on disk, so that a daemon may
//! stop, crash or be replaced at any time.
//!
//! It has no async runtime and one thread: everything it waits for is in one `poll`. It never
//! parses images or network input, and does its OCI work in short-lived helpers.

mod attached;
mod calls;
mod client;
mod conn;
mod down;
mod held;
mod log;
mod log_file;
mod main;
mod pin;
pub mod protocol;
mod ready;
mod reap;
mod serve;
mod slim;
mod spawn;
mod tasks;
mod zygote;

pub(crate) use attached::set_nonblocking;
pub use client::{Client, ExecStdio, Notice};
pub use log_file::Target;
pub(crate) use spawn::{is_held, start};
pub(crate) use zygote::{Zygote, run};
