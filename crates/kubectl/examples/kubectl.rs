//! kubectl alone, without the rest of the binary: quick to build during development.

use std::process::ExitCode;

fn main() -> ExitCode {
    kubectl::run(std::env::args_os().collect())
}
