//! The pod's mounted volumes, and when their content is refreshed.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tracing::warn;

use super::{Worker, actions::Done};
use crate::{
    Error, Result,
    pod::memory::Volumes,
    volumes::{self, Mounted},
};

/// The delay after a failed refresh.
const RETRY: Duration = Duration::from_secs(10);

/// The volumes that were set up.
#[derive(Default)]
pub(super) struct Mounts {
    pub(super) mounted: Arc<Mounted>,
    refresh: Refresh,
    /// The last logged error of a refresh; the same one is not logged again, since the servers may be away for
    /// hours.
    logged: Option<String>,
}

enum Refresh {
    /// At this time, for example before a token expires.
    At(Option<Timestamp>),
    /// A source changed.
    Due,
    /// Running; `again` if a source changed meanwhile.
    Running { again: bool },
}

impl Default for Refresh {
    fn default() -> Self {
        Self::At(None)
    }
}

impl Mounts {
    pub(super) fn refresh_soon(&mut self) {
        self.refresh = match self.refresh {
            Refresh::Running { .. } => Refresh::Running { again: true },
            _ => Refresh::Due,
        };
    }

    pub(super) fn refresh_at(&self) -> Option<Timestamp> {
        match self.refresh {
            Refresh::At(at) => at,
            _ => None,
        }
    }

    /// The volumes are set up.
    pub(super) fn set(&mut self, mounted: Mounted) {
        self.refresh = match self.refresh {
            Refresh::At(_) => Refresh::At(mounted.refresh_at),
            Refresh::Due => Refresh::Due,
            Refresh::Running { .. } => Refresh::Running { again: true },
        };
        self.mounted = Arc::new(mounted);
    }
}

impl Worker {
    /// Refreshes volumes when a source changed or a token expires soon.
    pub(super) fn refresh_volumes(&mut self, now: Timestamp) {
        let due = match self.mounts.refresh {
            Refresh::At(at) => at.is_some_and(|at| at <= now),
            Refresh::Due => true,
            Refresh::Running { .. } => false,
        };
        if !due || self.memory.volumes != Volumes::Ready {
            return;
        }
        self.mounts.refresh = Refresh::Running { again: false };
        let (core, pod) = (self.core.clone(), self.subject.pod.clone());
        let stop = self.starts.clone();
        let refresh =
            async move { Done::Refreshed(volumes::set_up(&core, &pod, true, &stop).await) };
        self.work.spawn(refresh);
    }

    pub(super) fn finish_refresh(&mut self, outcome: Result<Mounted>) {
        let again = matches!(self.mounts.refresh, Refresh::Running { again: true });
        let at = match outcome {
            Ok(mounted) => {
                self.mounts.logged = None;
                mounted.refresh_at
            }
            Err(error) => {
                let text = error.to_string();
                if self.mounts.logged.as_ref() != Some(&text) {
                    warn!(pod = self.subject.uid, %error, "cannot refresh volumes");
                    self.mounts.logged = Some(text);
                }
                if let Error::Mount { reason, .. } = &error {
                    let events = &self.core.events;
                    events.warning(&self.subject.pod, reason, error.to_string());
                }
                Some(self.core.now() + RETRY)
            }
        };
        self.mounts.refresh = if again { Refresh::Due } else { Refresh::At(at) };
    }
}
