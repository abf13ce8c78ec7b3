//! `mainstay reset`: removes everything a cluster created on this machine, and nothing else.

use std::io::{IsTerminal, Write};

use anyhow::{Result, bail};
use cluster::Options;

use crate::{cli::Reset, user_kubeconfig};

/// Asks for confirmation on a terminal.
pub(super) fn run(reset: Reset) -> Result<()> {
    let options = Options {
        data_dir: reset.data_dir,
        ..Options::default()
    };
    let data_dir = cluster::settings::data_dir(&options)?;
    if !reset.yes && !confirmed(&data_dir)? {
        bail!("nothing was removed");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let contexts = user_kubeconfig::Contexts::read(&data_dir);
    let report = runtime.block_on(cluster::reset::run(&data_dir))?;
    for file in contexts.remove() {
        println!("removed its context from {}", file.display());
    }
    for line in &report.removed {
        println!("removed {line}");
    }
    for line in &report.kept {
        println!("kept {line}");
    }
    if report.removed.is_empty() && report.kept.is_empty() {
        println!("nothing to remove for {}", data_dir.display());
    }
    Ok(())
}

fn confirmed(data_dir: &std::path::Path) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!(
            "this deletes {} and everything that runs from it; confirm with --yes",
            data_dir.display()
        );
    }
    print!(
        "Delete {} and everything that runs from it? [y/N] ",
        data_dir.display()
    );
    std::io::stdout().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
