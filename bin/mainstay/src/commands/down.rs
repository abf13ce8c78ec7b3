//! `mainstay down`: stops the process of a data directory; containers keep running.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use cluster::Options;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::cli::Cluster;

/// Components have thirty seconds to stop.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends the process a signal and waits until it has stopped.
pub(super) fn run(cluster: Cluster) -> Result<()> {
    let options = Options {
        data_dir: cluster.data_dir,
        ..Options::default()
    };
    let data_dir = cluster::settings::data_dir(&options)?;
    let Some(holder) = cluster::lock::holder(&data_dir) else {
        println!(
            "nothing is running with the data directory {}",
            data_dir.display()
        );
        return Ok(());
    };
    kill(Pid::from_raw(holder), Signal::SIGTERM)?;
    let deadline = Instant::now() + PATIENCE;
    while cluster::lock::holder(&data_dir) == Some(holder) {
        if Instant::now() > deadline {
            bail!("process {holder} does not stop; see `mainstay logs`");
        }
        thread::sleep(Duration::from_millis(50));
    }
    println!("Stopped; containers keep running. `mainstay reset` removes them and all data.");
    Ok(())
}
