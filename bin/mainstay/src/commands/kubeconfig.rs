//! `mainstay kubeconfig`: prints the administrator's kubeconfig, or adds it to the calling user's.

use anyhow::Result;
use cluster::Options;

use crate::{cli::Kubeconfig, user_kubeconfig};

/// Prints it, or adds it.
pub(super) fn run(asked: Kubeconfig) -> Result<()> {
    let options = Options {
        data_dir: asked.cluster.data_dir,
        ..Options::default()
    };
    let data_dir = cluster::settings::data_dir(&options)?;
    if !asked.merge {
        print!("{}", user_kubeconfig::admin(&data_dir)?);
        return Ok(());
    }
    let added = user_kubeconfig::add_for_caller(&data_dir)?;
    println!("{}", added.line());
    Ok(())
}
