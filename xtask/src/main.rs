//! Tasks for developers of Mainstay: `cargo xtask tidy`, `cargo xtask protocols`, `cargo xtask package`.

#![forbid(unsafe_code)]

mod package;
mod protocols;
mod tidy;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

const USAGE: &str = "\
usage: cargo xtask tidy                      check layers, field names, module docs, file sizes, stray macros
       cargo xtask protocols                 generate the code of CRI, CSI and etcd from their .proto files
       cargo xtask package BINARY DIRECTORY  make tarball, Debian package, OCI image and checksums of a built binary";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("tidy") => tidy::run(),
        Some("protocols") => report(protocols::run(&root())),
        Some("package") => report(package::run(&args[1..])),
        _ => {
            complain(USAGE);
            ExitCode::from(2)
        }
    }
}

fn report(outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a line to the terminal.
#[allow(clippy::print_stderr)]
fn complain(line: &str) {
    eprintln!("{line}");
}

/// The workspace's directory.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_owned)
        .unwrap_or_default()
}
