//! `mainstay down`: stops the process of a data directory; containers keep running.

use std::{
    fs::File,
    io::ErrorKind,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
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
    ensure_readable(&data_dir.join("lock"))?;
    let Some(holder) = cluster::lock::holder(&data_dir) else {
        println!(
            "nothing is running with the data directory {}",
            data_dir.display()
        );
        return Ok(());
    };
    kill(Pid::from_raw(holder), Signal::SIGTERM)
        .with_context(|| format!("cannot stop process {holder}"))?;
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

/// A lock that this user may not read does not mean that nothing is running.
fn ensure_readable(lock: &Path) -> Result<()> {
    match File::open(lock) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot read {}", lock.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_cannot_be_read_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("lock");
        assert!(ensure_readable(&file).is_ok());
        File::create(&file).unwrap();
        assert!(ensure_readable(&file).is_ok());
        // Root may read everything: a file that is no directory stands for a lack of permission.
        let error = ensure_readable(&file.join("lock")).unwrap_err();
        assert!(error.to_string().starts_with("cannot read "), "{error}");
    }
}
