//! The commands, one file each.

mod backup;
mod image;
mod reset;
mod up;

use std::process::ExitCode;

use crate::cli::{Cli, Command};

/// Runs a command; an error is printed with its causes.
pub fn run(cli: Cli) -> ExitCode {
    let outcome = match cli.command {
        Command::Up(options) => up::run(*options),
        Command::Reset(reset) => reset::run(reset),
        Command::Backup(backup) => backup::backup(backup),
        Command::Restore(restore) => backup::restore(restore),
        Command::Image(image) => image::run(image),
        Command::Kubectl { .. } | Command::Hello { .. } => Ok(()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mainstay: {error:#}");
            ExitCode::FAILURE
        }
    }
}
