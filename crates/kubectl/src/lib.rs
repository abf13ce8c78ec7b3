//! The command line: the commands people know, with the flags and the output they know. It is a
//! client like any other; it works against any Kubernetes API server.
#![forbid(unsafe_code)]
// Printing is this crate's job.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod api;
mod args;
mod commands;
mod discovery;
mod error;
mod manifest;
mod output;
mod resources;
mod session;
mod terminal;
mod three_way;

use std::{ffi::OsString, process::ExitCode};

use clap::Parser;

/// Runs one command; `args` begin with the program's name.
pub fn run(args: Vec<OsString>) -> ExitCode {
    let cli = match args::Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 1 } else { 0 });
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return error::report(&error.into()),
    };
    let code = runtime
        .block_on(commands::run(cli))
        .unwrap_or_else(|error| error::report(&error));
    // A blocked read of standard input must not keep the process alive.
    runtime.shutdown_background();
    code
}
