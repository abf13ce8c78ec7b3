//! Images and power failures. Nobody waits for a disk: an image can be used as soon as it is whole,
//! and a moment later everything is synced and the image marked so. An image that bears no mark when
//! the machine has been started again may be full of holes and is forgotten.

use std::{fs::File, os::fd::AsRawFd, path::PathBuf};

use super::Images;
use crate::error::{Error, Result};

/// Which start of the machine this is.
fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim_end().to_owned()
}

impl Images {
    /// Forgets what was not on disk when the power failed.
    pub(super) fn forget_unsettled(&self) -> Result<()> {
        let now = boot();
        let index = self.index()?;
        if index.boot == now {
            return Ok(());
        }
        self.change(|index| {
            index.images.retain(|id, image| {
                let keep = image.settled;
                if !keep {
                    tracing::warn!(image = id, "not whole when the machine stopped: forgotten");
                }
                keep
            });
            index.boot = now;
        })
    }

    /// Syncs an image and marks it, in a thread of its own.
    pub(super) fn settle(&self, id: &str) {
        let (root, id) = (self.root.clone(), id.to_owned());
        let settling = move || {
            if let Err(error) = settle(root, &id) {
                tracing::debug!(image = id, %error, "not settled");
            }
        };
        let _ = std::thread::Builder::new()
            .name("settle-image".into())
            .spawn(settling);
    }
}

fn settle(root: PathBuf, id: &str) -> Result<()> {
    let dir = File::open(&root).map_err(Error::file(&root))?;
    // SAFETY: the descriptor is open for as long as `dir` lives.
    if unsafe { libc::syncfs(dir.as_raw_fd()) } != 0 {
        return Err(Error::file(root)(std::io::Error::last_os_error()));
    }
    // Locks between processes make a second store in the same place as good as the first.
    Images::unopened(root).change(|index| {
        if let Some(image) = index.images.get_mut(id) {
            image.settled = true;
        }
    })
}
