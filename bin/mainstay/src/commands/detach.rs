//! `mainstay up --detach`: starts the same command in the background, and waits until it is ready.

use std::{
    ffi::OsString,
    fs::File,
    io::{Read, Seek, SeekFrom},
    os::unix::{fs::OpenOptionsExt, process::CommandExt},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::notify::{self, Listener};

/// The log of a background process, in its data directory.
pub(super) const LOG: &str = "mainstay.log";

/// Runs this program with the same arguments in the background.
pub(super) fn run(data_dir: &Path) -> Result<()> {
    if let Some(holder) = cluster::lock::holder(data_dir) {
        bail!("already running as process {holder}; `mainstay down` stops it");
    }
    cluster::lock::create(data_dir)
        .with_context(|| format!("cannot make {}", data_dir.display()))?;
    let log = data_dir.join(LOG);
    let mut options = File::options();
    let err = options.create(true).append(true).mode(0o600).open(&log)?;
    let mut logged = File::open(&log)?;
    logged.seek(SeekFrom::End(0))?;
    let directory = tempfile::tempdir()?;
    // The daemon's standard output goes to a temporary file, which is shown here and then removed.
    let (out, mut shown) = {
        let path = directory.path().join("out");
        (File::create(&path)?, File::open(&path)?)
    };
    let socket = directory.path().join("notify");
    let ready = Listener::bind(&socket)?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(without_detach(std::env::args_os().skip(1)))
        .env(notify::VARIABLE, &socket)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .process_group(0)
        .spawn()?;
    loop {
        let is_ready = ready.is_ready();
        show(&mut shown)?;
        if is_ready {
            println!(
                "Running in the background as process {}: `mainstay logs` shows its log, `mainstay down` stops it.",
                child.id()
            );
            return Ok(());
        }
        if let Some(status) = child.try_wait()? {
            show(&mut shown)?;
            show_complaints(&mut logged)?;
            bail!("it has exited ({status}); its log is {}", log.display());
        }
    }
}

/// Prints what has come since.
fn show(from: &mut File) -> Result<()> {
    let mut text = String::new();
    from.read_to_string(&mut text)?;
    print!("{text}");
    Ok(())
}

/// Prints why a process ended: lines in the log that are none of the log's, which have a time in front.
fn show_complaints(log: &mut File) -> Result<()> {
    let mut text = String::new();
    log.read_to_string(&mut text)?;
    let is_logged = |first: char| first.is_ascii_digit() || first == '{';
    for line in text.lines().filter(|line| !line.starts_with(is_logged)) {
        println!("{line}");
    }
    Ok(())
}

fn without_detach(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    args.filter(|arg| arg != "-d" && arg != "--detach")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_child_stays_in_the_foreground() {
        let args = ["up", "-d", "--data-dir", "x", "--detach"].map(OsString::from);
        assert_eq!(without_detach(args.into_iter()), ["up", "--data-dir", "x"]);
    }
}
