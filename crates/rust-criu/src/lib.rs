//! Stands in for the crate of this name that libcontainer depends on for checkpoints. The runtime rejects
//! `CheckpointContainer` before it reaches libcontainer, so there is no CRIU here: [`Criu::new`] always fails, and a
//! `Criu` has no values. It saves every build the protobuf compiler that the original needs (decision 25).
#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::fmt;
use std::os::fd::RawFd;

/// How CRIU treats cgroups in a checkpoint.
#[derive(Debug, Clone)]
pub enum CgMode {}

/// Checkpoints are not supported.
#[derive(Debug)]
pub struct Unsupported;

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("checkpoints are not supported")
    }
}

impl std::error::Error for Unsupported {}

/// A connection to CRIU, which nothing can create.
pub struct Criu(Infallible);

impl Criu {
    pub fn new() -> Result<Self, Unsupported> {
        Err(Unsupported)
    }

    pub fn get_criu_version(&mut self) -> Result<u32, Unsupported> {
        match self.0 {}
    }

    pub fn dump(&mut self) -> Result<(), Unsupported> {
        match self.0 {}
    }
}

/// The setters that libcontainer calls before [`Criu::dump`].
macro_rules! setters {
    ($($name:ident($($argument:ty),+);)+) => {
        impl Criu { $(pub fn $name(&mut self, $(_: $argument),+) { match self.0 {} })+ }
    };
}

setters! {
    add_external(String);
    cgroups_mode(CgMode);
    set_ext_unix_sk(bool);
    set_external_mount(String, String);
    set_file_locks(bool);
    set_images_dir_fd(RawFd);
    set_leave_running(bool);
    set_link_remap(bool);
    set_log_file(String);
    set_log_level(i32);
    set_manage_cgroups(bool);
    set_orphan_pts_master(bool);
    set_pid(i32);
    set_root(String);
    set_shell_job(bool);
    set_tcp_established(bool);
    set_work_dir_fd(RawFd);
}

/// The key under which an external namespace is known to CRIU.
pub fn criu_ns_to_key(name: &str) -> String {
    format!("extRoot{name}NS")
}
