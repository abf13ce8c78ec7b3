//! The built binary as another release: a copy with another version stamp.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use stdx::version::STAMP_PREFIX;

use crate::cluster::binary;

/// A copy of the built binary in a directory with this version, such as `v1.35.0`.
pub fn stamped(directory: &Path, version: &str) -> String {
    let mut program = fs::read(binary()).expect("the built binary");
    let prefix = STAMP_PREFIX.as_bytes();
    // The bare prefix may occur, too: a stamp has a version after it.
    let stamps: Vec<usize> = program
        .windows(prefix.len() + 2)
        .enumerate()
        .filter(|(_, bytes)| bytes.starts_with(prefix) && bytes.ends_with(b"v1"))
        .map(|(at, _)| at + prefix.len())
        .collect();
    let [at] = stamps[..] else {
        panic!("{} stamps", stamps.len());
    };
    program[at..at + 16].fill(0);
    program[at..at + version.len()].copy_from_slice(version.as_bytes());
    let path = directory.join(format!("mainstay-{version}"));
    fs::write(&path, program).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("permissions");
    path.display().to_string()
}
