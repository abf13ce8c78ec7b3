//! kubectl: its usual commands, flags and output. A client like any other, for any Kubernetes API
//! server.
#![forbid(unsafe_code)]
// Printing is this crate's job.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod api;
mod args;
mod argv;
mod body;
mod called;
mod commands;
mod detach;
mod discovery;
mod download;
mod duration;
mod error;
mod glob;
mod hint;
mod json;
mod kubeconfig;
mod kuberc;
mod kustomize;
mod manifest;
mod merge;
mod output;
mod pod_order;
mod record;
pub mod reference;
mod request_log;
mod resources;
mod session;
mod streams;
mod terminal;
mod three_way;
mod unreachable;
mod unstructured;

use std::{ffi::OsString, process::ExitCode};

use clap::FromArgMatches;

pub use commands::completion::COMPLETIONS;
pub use kubeconfig::context::{add_context, refresh_context, remove_context};
pub use reference::page as reference;

/// Runs one command; `args` starts with the program's name.
pub fn run(args: Vec<OsString>) -> ExitCode {
    let given: Vec<String> = args
        .into_iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let mut root = argv::command();
    let normal = argv::normal(&root, given.clone());
    let words = match kuberc::apply(&root, normal.clone()) {
        Ok(words) => words,
        Err(error) => return error::report(&error),
    };
    // A plugin gets its flags as they were given. Aliases are not names of plugins.
    if words == normal
        && let Some(code) = commands::plugin::dispatch(&given)
    {
        return code;
    }
    let parsed = root.try_get_matches_from_mut(&words);
    let cli = parsed.and_then(|matches| {
        let invocation = commands::Invocation {
            path: argv::path(&matches),
            change_cause: record::change_cause(&root, &matches, &words),
        };
        args::Cli::from_arg_matches(&matches).map(|cli| (cli, invocation))
    });
    let (cli, invocation) = match cli {
        Ok(cli) => cli,
        Err(error) => return argv::report(&error, &words),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return error::report(&error.into()),
    };
    let code = match runtime.block_on(commands::run(cli, invocation)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error::report(&error),
    };
    // A blocked read of standard input must not keep the process alive.
    runtime.shutdown_background();
    code
}
