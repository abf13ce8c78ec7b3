//! File systems on block devices: created if there is none, expanded after the device. As upstream,
//! the node's own tools do the work.

use std::{path::Path, process::Output, time::Duration};

use tokio::process::Command;

/// The timeout of a tool.
const PATIENCE: Duration = Duration::from_secs(600);

/// The type of the file system on a device; one is created if the device is blank and writable.
pub(crate) async fn ensure(device: &Path, wanted: &str, read_only: bool) -> Result<String, String> {
    if !wanted.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(format!("{wanted:?} is not the type of a file system"));
    }
    if let Some(found) = probe(device).await? {
        return Ok(found);
    }
    let shown = device.display();
    if read_only {
        return Err(format!(
            "{shown} has no file system and the volume is read-only"
        ));
    }
    let options: &[&str] = match wanted {
        "ext3" | "ext4" => &["-F", "-m0"],
        "xfs" | "btrfs" => &["-f"],
        _ => &[],
    };
    let program = format!("mkfs.{wanted}");
    let mut command = Command::new(&program);
    command.args(options).arg(device);
    succeeded(&program, &run(command).await?)?;
    Ok(wanted.to_owned())
}

/// The file system on a device; `None` if it is blank. Partitions are an error, since they may have
/// data.
async fn probe(device: &Path) -> Result<Option<String>, String> {
    let mut command = Command::new("blkid");
    command.args(["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export"]);
    command.arg(device);
    let output = run(command).await?;
    // 2: nothing recognised.
    if output.status.code() == Some(2) {
        return Ok(None);
    }
    succeeded("blkid", &output)?;
    parse(&String::from_utf8_lossy(&output.stdout), device)
}

fn parse(text: &str, device: &Path) -> Result<Option<String>, String> {
    let value = |key: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
    };
    match (value("TYPE"), value("PTTYPE")) {
        (_, Some(table)) => {
            let device = device.display();
            Err(format!("{device} has a {table} partition table"))
        }
        (found, None) => Ok(found.map(str::to_owned)),
    }
}

/// Expands a mounted file system to its device's size.
pub(crate) async fn grow(device: &Path, mount: &Path) -> Result<(), String> {
    let kind = probe(device).await?.unwrap_or_default();
    let mut command;
    let program = match kind.as_str() {
        "ext2" | "ext3" | "ext4" => {
            command = Command::new("resize2fs");
            command.arg(device);
            "resize2fs"
        }
        "xfs" => {
            command = Command::new("xfs_growfs");
            command.arg("-d").arg(mount);
            "xfs_growfs"
        }
        "btrfs" => {
            command = Command::new("btrfs");
            command.args(["filesystem", "resize", "max"]).arg(mount);
            "btrfs"
        }
        other => return Err(format!("resize of format {other} is not supported")),
    };
    succeeded(program, &run(command).await?)
}

/// Expands an unmounted ext4 file system to its file's size.
pub(crate) async fn grow_unmounted(file: &Path) -> Result<(), String> {
    let mut check = Command::new("e2fsck");
    check.args(["-f", "-p"]).arg(file);
    let checked = run(check).await?;
    // 1: errors were corrected.
    if checked.status.code() != Some(1) {
        succeeded("e2fsck", &checked)?;
    }
    let mut command = Command::new("resize2fs");
    command.arg(file);
    succeeded("resize2fs", &run(command).await?)
}

async fn run(mut command: Command) -> Result<Output, String> {
    command.kill_on_drop(true);
    let program = command
        .as_std()
        .get_program()
        .to_string_lossy()
        .into_owned();
    match tokio::time::timeout(PATIENCE, command.output()).await {
        Ok(Ok(output)) => Ok(output),
        Ok(Err(error)) => Err(format!("{program}: {error}")),
        Err(_) => Err(format!("{program} did not end within {PATIENCE:?}")),
    }
}

fn succeeded(program: &str, output: &Output) -> Result<(), String> {
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program}: {}: {}", output.status, said.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_not_overwritten() {
        let device = Path::new("/dev/x");
        assert_eq!(parse("TYPE=xfs\n", device), Ok(Some("xfs".into())));
        assert_eq!(parse("", device), Ok(None));
        assert!(parse("PTTYPE=gpt\n", device).unwrap_err().contains("gpt"));
    }
}
