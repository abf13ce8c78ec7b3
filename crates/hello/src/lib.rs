//! The programs of the image `mainstay.local/hello`: small commands for demos and tests. Only
//! threads of the standard library, no configuration, and no dependencies on files of the image.

mod burn;
mod dns;
mod echo;
mod elect;
mod files;
mod get;
mod guestbook;
mod http;
mod process;
mod signals;
mod volume;

use std::{
    io::{self, Write},
    process::ExitCode,
};

/// One command.
struct Command {
    name: &'static str,
    arguments: &'static str,
    help: &'static str,
    run: fn(&[String]) -> Outcome,
}

/// The result of a command: an exit code, or an error with exit code 1.
type Outcome = Result<u8, Complaint>;

/// An error, printed for the user.
type Complaint = Box<dyn std::error::Error + Send + Sync>;

const ALL: &[&[Command]] = &[
    http::COMMANDS,
    get::COMMANDS,
    guestbook::COMMANDS,
    echo::COMMANDS,
    elect::COMMANDS,
    dns::COMMANDS,
    files::COMMANDS,
    burn::COMMANDS,
    process::COMMANDS,
    volume::COMMANDS,
];

/// The entry point; `args` follow `hello`. Without any, it serves HTTP.
pub fn main(args: &[String]) -> ExitCode {
    let (name, rest) = args
        .split_first()
        .map_or(("http", &[][..]), |(name, rest)| (name.as_str(), rest));
    if matches!(name, "help" | "--help" | "-h") {
        return finish(help());
    }
    match ALL
        .iter()
        .flat_map(|family| family.iter())
        .find(|command| command.name == name)
    {
        Some(command) => finish((command.run)(rest)),
        None => {
            let _ = writeln!(
                io::stderr(),
                "hello: unknown command {name:?}; try `hello help`"
            );
            ExitCode::from(2)
        }
    }
}

fn finish(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(complaint) => {
            let _ = writeln!(io::stderr(), "hello: {complaint}");
            ExitCode::FAILURE
        }
    }
}

fn help() -> Outcome {
    let mut out = io::stdout().lock();
    for command in ALL.iter().flat_map(|family| family.iter()) {
        let usage = format!("{} {}", command.name, command.arguments);
        writeln!(out, "  {usage:32} {}", command.help)?;
    }
    Ok(0)
}

/// Prints a line and flushes it, since readers of the log wait for it.
fn print_line(line: impl std::fmt::Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// The host name of the machine or pod.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_end().to_owned()
}

/// The numeric argument at an index.
fn number<T: std::str::FromStr>(
    args: &[String],
    at: usize,
    what: &str,
) -> Result<Option<T>, Complaint> {
    let Some(text) = args.get(at) else {
        return Ok(None);
    };
    text.parse()
        .map(Some)
        .map_err(|_| format!("{text:?} is not {what}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_name_of_its_own_and_a_help_line() {
        let mut seen = std::collections::BTreeSet::new();
        for command in ALL.iter().flat_map(|family| family.iter()) {
            assert!(seen.insert(command.name), "{} is there twice", command.name);
            assert!(!command.help.is_empty());
        }
    }
}
