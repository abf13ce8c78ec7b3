//! Tasks for people who work on Mainstay: `cargo xtask tidy`.

mod tidy;

use std::process::ExitCode;

fn main() -> ExitCode {
    let task = std::env::args().nth(1);
    match task.as_deref() {
        Some("tidy") => tidy::run(),
        _ => {
            complain(
                "usage: cargo xtask tidy    check layers, field names, module docs, file sizes, stray macros",
            );
            ExitCode::from(2)
        }
    }
}

/// Prints a line for the person at the terminal.
#[allow(clippy::print_stderr)]
fn complain(line: &str) {
    eprintln!("{line}");
}
