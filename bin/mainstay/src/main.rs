//! The one binary. Helpers that are this binary re-executed are dispatched first, before any thread
//! starts; then the command line is parsed and one command runs.
// Printing is the job of a command line.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod accounts;
mod checklist;
mod cli;
mod commands;
mod logging;
mod notify;
mod reference;
mod user_kubeconfig;

use std::{ffi::OsString, path::Path, process::ExitCode};

use clap::Parser;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

/// Commands whose job is to print. Those that run a cluster must outlive a reader of their output.
const PRINTING: &[&str] = &[
    "why",
    "status",
    "logs",
    "version",
    "kubeconfig",
    "token",
    "image",
    "reference",
];

fn main() -> ExitCode {
    // Container helpers clone and join namespaces: there must be no second thread yet.
    if let Some(code) = runtime::reexec::dispatch() {
        return code;
    }
    if let Some(code) = cluster::dispatch() {
        return code;
    }
    let args: Vec<OsString> = std::env::args_os().collect();
    if cluster::cni::is_called(&args) {
        return cluster::cni::answer();
    }
    if called_as(&args, "kubectl") {
        end_with_the_pipe();
        return kubectl::run(args);
    }
    match args.get(1).and_then(|word| word.to_str()) {
        Some("kubectl") => {
            end_with_the_pipe();
            kubectl::run(args[1..].to_vec())
        }
        Some("hello") => {
            let words = args[2..]
                .iter()
                .map(|word| word.to_string_lossy().into_owned());
            hello::main(&words.collect::<Vec<_>>())
        }
        word => {
            if word.is_some_and(|word| PRINTING.contains(&word)) {
                end_with_the_pipe();
            }
            commands::run(cli::Cli::parse_from(args))
        }
    }
}

/// `kubectl … | head` and `mainstay why … | head` end quietly when head exits, as other commands do.
fn end_with_the_pipe() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: the default action is not a handler of ours, and no other thread runs yet.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
}

/// Whether the binary was called by this name, possibly through a link.
fn called_as(args: &[OsString], name: &str) -> bool {
    args.first()
        .map(Path::new)
        .and_then(Path::file_name)
        .is_some_and(|file| file == name)
}
