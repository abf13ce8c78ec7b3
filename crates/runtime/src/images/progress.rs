//! The progress of a pull, for watchers.

use tokio::sync::watch;

use super::registry::manifest::Descriptor;

/// The state of a blob.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stage {
    /// Queued.
    #[default]
    Waiting,
    /// Downloading.
    Downloading,
    /// Downloaded, not unpacked.
    Downloaded,
    /// Unpacking.
    Unpacking,
    /// Finished.
    Done,
}

/// A blob of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    /// Its digest.
    pub digest: String,
    /// All its bytes.
    pub size: u64,
    /// The bytes downloaded so far.
    pub have: u64,
    /// The state.
    pub stage: Stage,
}

/// Publishes the progress of one pull; cheap without watchers.
#[derive(Debug, Default)]
pub struct Progress {
    parts: watch::Sender<Vec<Part>>,
}

impl Progress {
    /// Watches the progress; intermediate changes may be skipped.
    pub fn watch(&self) -> watch::Receiver<Vec<Part>> {
        self.parts.subscribe()
    }

    /// Sets the blobs to pull; starts over for another registry.
    pub(super) fn begin(&self, parts: &[Descriptor]) {
        let parts = parts.iter().map(|part| Part {
            digest: part.digest.clone(),
            size: part.size,
            ..Part::default()
        });
        self.parts.send_replace(parts.collect());
    }

    /// Sets the downloaded bytes of a blob.
    pub(super) fn have(&self, digest: &str, have: u64) {
        self.change(digest, |part| {
            part.have = have;
            part.stage = Stage::Downloading;
        });
    }

    /// Sets the state of a blob.
    pub(super) fn reached(&self, digest: &str, stage: Stage) {
        self.change(digest, |part| {
            part.have = part.size;
            part.stage = stage;
        });
    }

    fn change(&self, digest: &str, change: impl Fn(&mut Part)) {
        // An image may contain the same layer twice.
        self.parts.send_modify(|parts| {
            parts
                .iter_mut()
                .filter(|part| part.digest == digest)
                .for_each(change);
        });
    }
}
