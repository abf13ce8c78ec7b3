//! kubectl alone, without the rest of the binary: quick to build while one works on it.

use std::process::ExitCode;

fn main() -> ExitCode {
    kubectl::run(std::env::args_os().collect())
}
