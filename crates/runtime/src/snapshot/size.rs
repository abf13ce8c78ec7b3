//! What a tree takes on disk.

use std::{collections::HashSet, fs, ops::Add, os::unix::fs::MetadataExt, path::Path};

use serde::{Deserialize, Serialize};

/// Bytes on disk, and files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Bytes of blocks, not of content.
    pub bytes: u64,
    /// Files, directories, links.
    pub inodes: u64,
}

impl Size {
    /// What has come on top of `base`.
    pub fn beyond(self, base: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(base.bytes),
            inodes: self.inodes.saturating_sub(base.inodes),
        }
    }
}

impl Add for Size {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            inodes: self.inodes + other.inodes,
        }
    }
}

/// Everything below a directory; a file with several names counts once.
pub fn size(dir: &Path) -> Size {
    let mut seen = HashSet::new();
    below(dir, &mut seen)
}

fn below(dir: &Path, seen: &mut HashSet<(u64, u64)>) -> Size {
    let mut sum = Size::default();
    let Ok(entries) = fs::read_dir(dir) else {
        return sum;
    };
    for entry in entries.flatten() {
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        if metadata.is_dir() {
            sum = sum + below(&entry.path(), seen);
        } else if metadata.nlink() > 1 && !seen.insert((metadata.dev(), metadata.ino())) {
            continue;
        }
        sum = sum
            + Size {
                bytes: metadata.blocks() * 512,
                inodes: 1,
            };
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_two_names_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("a"), vec![1; 100_000]).unwrap();
        let one = size(dir.path());
        fs::hard_link(dir.path().join("a"), dir.path().join("sub/b")).unwrap();
        assert_eq!(size(dir.path()).beyond(one).inodes, 0);
        fs::write(dir.path().join("sub/c"), vec![1; 100_000]).unwrap();
        assert_eq!(size(dir.path()).beyond(one).inodes, 1);
    }
}
