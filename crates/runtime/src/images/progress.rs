//! How far a pull has come, for whoever watches it.

use tokio::sync::watch;

use super::registry::manifest::Descriptor;

/// Where a piece of an image stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stage {
    /// Its turn has not come.
    #[default]
    Waiting,
    /// Bytes come.
    Downloading,
    /// It is here, as a file.
    Downloaded,
    /// It is being unpacked.
    Unpacking,
    /// Nothing is left to do.
    Done,
}

/// A piece of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    /// Its digest.
    pub digest: String,
    /// All its bytes.
    pub size: u64,
    /// The bytes that are here.
    pub have: u64,
    /// Where it stands.
    pub stage: Stage,
}

/// Tells watchers about one pull. Telling nobody costs nothing much.
#[derive(Debug, Default)]
pub struct Progress {
    parts: watch::Sender<Vec<Part>>,
}

impl Progress {
    /// Sees every change, or at least the last one.
    pub fn watch(&self) -> watch::Receiver<Vec<Part>> {
        self.parts.subscribe()
    }

    /// What there is to pull; a further registry that is tried begins anew.
    pub(super) fn begin(&self, parts: &[Descriptor]) {
        let parts = parts.iter().map(|part| Part {
            digest: part.digest.clone(),
            size: part.size,
            ..Part::default()
        });
        self.parts.send_replace(parts.collect());
    }

    /// Bytes of a piece have come.
    pub(super) fn have(&self, digest: &str, have: u64) {
        self.change(digest, |part| {
            part.have = have;
            part.stage = Stage::Downloading;
        });
    }

    /// A piece has come further.
    pub(super) fn reached(&self, digest: &str, stage: Stage) {
        self.change(digest, |part| {
            part.have = part.size;
            part.stage = stage;
        });
    }

    fn change(&self, digest: &str, change: impl Fn(&mut Part)) {
        // An image may have the same layer twice.
        self.parts.send_modify(|parts| {
            parts
                .iter_mut()
                .filter(|part| part.digest == digest)
                .for_each(change);
        });
    }
}
