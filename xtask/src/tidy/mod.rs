//! `cargo xtask tidy`: the project's rules that the compiler does not check.

mod fields;
mod layers;
mod sources;

use std::process::ExitCode;

use crate::{complain, protocols, root};

/// Runs every check and prints all findings.
pub(crate) fn run() -> ExitCode {
    let root = root();
    let mut findings = Vec::new();
    for (name, found) in [
        ("fields", fields::check(&root)),
        ("layers", layers::check(&root)),
        ("protocols", protocols::check(&root)),
        ("sources", sources::check(&root)),
    ] {
        match found {
            Ok(found) => findings.extend(found),
            Err(error) => findings.push(format!("{name}: cannot check: {error:#}")),
        }
    }
    for finding in &findings {
        complain(finding);
    }
    if findings.is_empty() {
        complain("tidy: nothing to mend");
        return ExitCode::SUCCESS;
    }
    complain(&format!("tidy: {} findings", findings.len()));
    ExitCode::FAILURE
}
