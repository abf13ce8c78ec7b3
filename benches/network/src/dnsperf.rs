//! Runs dnsperf and parses its output.

use std::path::Path;

use anyhow::{Context, Result, bail};
use tokio::process::Command;

/// A run.
pub(crate) struct Load<'a> {
    pub questions: &'a Path,
    pub clients: usize,
    pub seconds: u64,
}

impl Load<'_> {
    /// Queries per second answered by the server at a port of the loopback address.
    pub(crate) async fn run(&self, port: u16) -> Result<f64> {
        let output = Command::new("dnsperf")
            .args(["-s", "127.0.0.1", "-p", &port.to_string()])
            .args(["-c", &self.clients.to_string()])
            .args(["-l", &self.seconds.to_string()])
            .arg("-d")
            .arg(self.questions)
            .output()
            .await
            .context("dnsperf does not run")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let lost = number(&text, "Queries lost:")?;
        let done = number(&text, "Queries completed:")?;
        if lost > done / 100.0 || !text.contains("NOERROR") {
            bail!("dnsperf lost questions, or got no answers:\n{text}");
        }
        number(&text, "Queries per second:")
    }
}

fn number(text: &str, label: &str) -> Result<f64> {
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(label));
    let word = line.and_then(|rest| rest.split_whitespace().next());
    let word = word.with_context(|| format!("no {label:?} in:\n{text}"))?;
    Ok(word.parse()?)
}
