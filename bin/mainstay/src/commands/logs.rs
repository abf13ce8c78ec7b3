//! `mainstay logs`: logs of a background process or of the installed service.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use cluster::Options;

use super::{detach::LOG, install::UNIT};
use crate::cli::Logs;

/// The components of a cluster. Other crates log as well, under their own names.
const COMPONENTS: &[&str] = &[
    "apiserver",
    "controllers",
    "scheduler",
    "kubelet",
    "runtime",
    "network",
    "network-policy",
    "proxy",
    "dns",
    "store",
    "cluster",
];

/// Prints the log, and continues with `--follow`.
pub(super) fn run(asked: &Logs) -> Result<()> {
    let options = Options {
        data_dir: asked.cluster.data_dir.clone(),
        ..Options::default()
    };
    let data_dir = cluster::settings::data_dir(&options)?;
    let path = data_dir.join(LOG);
    let targets = asked.part.as_deref().map(targets);
    let targets = targets.as_deref();
    if super::install::is_installed() {
        let (holder, service) = (
            cluster::lock::holder(&data_dir),
            super::install::main_process(),
        );
        if logs_to_journal(holder, service, path.exists()) {
            let printed = journal(targets, asked.follow);
            return printed.or_else(|error| {
                ensure_known(asked.part.as_deref())?;
                Err(error)
            });
        }
    }
    let file = File::open(&path).with_context(|| {
        format!("there is no {}: only `mainstay up --detach` writes it; otherwise the log goes to the output of the process", path.display())
    })?;
    let mut reader = BufReader::new(file);
    let mut out = std::io::stdout().lock();
    let mut line = String::new();
    let mut is_found = false;
    loop {
        line.clear();
        while reader.read_line(&mut line)? > 0 {
            if is_about(&line, targets) {
                out.write_all(line.as_bytes())?;
                is_found = true;
            }
            line.clear();
        }
        if !is_found {
            ensure_known(asked.part.as_deref())?;
        }
        if !asked.follow {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// Whether the log of an installed machine is in the journal, and not in the file, which stays after a
/// process in the background.
fn logs_to_journal(holder: Option<i32>, service: Option<i32>, has_file: bool) -> bool {
    match holder {
        Some(_) => holder == service || !has_file,
        None => true,
    }
}

/// The service logs to the journal.
fn journal(targets: Option<&[&str]>, follow: bool) -> Result<()> {
    let mut command = Command::new("journalctl");
    command.args(["--unit", UNIT, "--output", "cat"]);
    if follow {
        command.arg("--follow");
    }
    if let Some(targets) = targets {
        command.args(["--grep", &format!("[ \"]({})(::|:|\")", targets.join("|"))]);
    }
    let status = command.status().with_context(|| {
        format!("cannot run journalctl: the service {UNIT} logs to systemd's journal, `mainstay up --detach` to a file")
    })?;
    anyhow::ensure!(status.success(), "journalctl: {status}");
    Ok(())
}

/// The targets of a component's log lines: the crates that it consists of.
fn targets(part: &str) -> Vec<&str> {
    match part {
        "apiserver" => [
            &[part, "admission", "aggregator", "apiextensions"][..],
            &["audit", "auth", "connect", "flowcontrol"],
            &["http_server", "openapi", "registry", "webhook"],
        ]
        .concat(),
        "network-policy" => vec!["policy"],
        part => vec![part],
    }
}

/// A component may have logged nothing yet; another name is probably misspelt.
fn ensure_known(part: Option<&str>) -> Result<()> {
    let Some(part) = part.filter(|part| !COMPONENTS.contains(part)) else {
        return Ok(());
    };
    bail!(
        "unknown component {part:?}; components are {}",
        COMPONENTS.join(", ")
    )
}

/// Whether a line is from a component: ` kubelet::sweep: …` in text, or `"target":"kubelet::sweep"`
/// in JSON.
fn is_about(line: &str, targets: Option<&[&str]>) -> bool {
    let Some(targets) = targets else {
        return true;
    };
    let after = |before: &str| {
        line.split(before)
            .skip(1)
            .any(|rest| rest.starts_with([':', '"']))
    };
    let is_from = |target: &&str| after(&format!(" {target}")) || after(&format!("\"{target}"));
    targets.iter().any(is_from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_component_is_an_error_that_lists_the_known_ones() {
        for part in COMPONENTS {
            assert!(ensure_known(Some(part)).is_ok(), "{part}");
        }
        assert!(ensure_known(None).is_ok());
        let error = ensure_known(Some("nosuch")).unwrap_err().to_string();
        assert!(
            error.contains("\"nosuch\"; components are apiserver, "),
            "{error}"
        );
    }

    #[test]
    fn an_old_file_does_not_hide_the_log_of_the_service() {
        for (holder, service, has_file, expected) in [
            (Some(7), Some(7), true, true),
            (None, None, true, true),
            // Started beside the service.
            (Some(7), Some(8), true, false),
            (Some(7), None, true, false),
            (Some(7), None, false, true),
        ] {
            assert_eq!(logs_to_journal(holder, service, has_file), expected);
        }
    }

    #[test]
    fn lines_belong_to_the_part_that_wrote_them() {
        let text = "2026-01-01T00:00:00Z  INFO kubelet::sweep: removes the scheduler's things\n";
        let json = r#"{"level":"INFO","target":"scheduler","fields":{}}"#;
        let audit = "2026-01-01T00:00:00Z ERROR audit::log: audit event lost\n";
        let cases = [
            (text, Some("kubelet"), true),
            (text, Some("scheduler"), false),
            (text, Some("kube"), false),
            (json, Some("scheduler"), true),
            (text, None, true),
            (audit, Some("apiserver"), true),
            (audit, Some("audit"), true),
            (audit, Some("kubelet"), false),
        ];
        for (line, part, expected) in cases {
            let targets = part.map(targets);
            assert_eq!(
                is_about(line, targets.as_deref()),
                expected,
                "{part:?} {line}"
            );
        }
    }
}
