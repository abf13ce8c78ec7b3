//! The configurations of one kind: compiled when they change, and only those that did.

use std::{collections::HashMap, sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use lifecycle::Context;
use machinery::Status;
use stdx::Backoff;
use store::Revision;
use tokio::sync::{Notify, watch};

use super::hooks::{Hook, Index};
use crate::Reader;

const GROUP: &str = "admissionregistration.k8s.io";
const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(5);
/// How long a request waits for the first list of configurations.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(super) struct Source {
    reader: Reader,
    plural: &'static str,
    index: Arc<ArcSwapOption<Index>>,
    ready: Arc<watch::Sender<bool>>,
}

/// Compiled configurations by name, with the revision they were compiled at.
type Compiled = HashMap<String, (Revision, Vec<Arc<Hook>>)>;

impl Source {
    pub(super) fn new(reader: Reader, plural: &'static str) -> Self {
        Self {
            reader,
            plural,
            index: Arc::default(),
            ready: Arc::new(watch::channel(false).0),
        }
    }

    /// Whether a webhook may match a resource. True before the first list.
    pub(super) fn may_match(&self, resource: &str) -> bool {
        let index = self.index.load();
        index
            .as_ref()
            .is_none_or(|index| !index.find(resource).is_empty())
    }

    /// The webhooks, or `None` if they could not be listed in time.
    pub(super) async fn hooks(&self) -> Option<Arc<Index>> {
        if let Some(index) = self.index.load_full() {
            return Some(index);
        }
        let mut ready = self.ready.subscribe();
        // The channel cannot be closed: `self` holds a sender.
        let _ = tokio::time::timeout(PATIENCE, ready.wait_for(|ready| *ready)).await;
        self.index.load_full()
    }

    pub(super) fn start(&self, context: &Context) {
        let changed = Arc::new(Notify::new());
        let (source, changes) = (self.clone(), changed.clone());
        context.spawn("webhooks-watch", async move {
            let plural = source.plural;
            source.reader.tell_of_changes(GROUP, plural, &changes).await;
        });
        context.spawn("webhooks", self.clone().follow(changed));
    }

    async fn follow(self, changed: Arc<Notify>) {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        let mut compiled = Compiled::new();
        loop {
            changed.notified().await;
            match self.refresh(&mut compiled).await {
                Ok(()) => backoff.reset(),
                Err(status) => {
                    let plural = self.plural;
                    tracing::warn!(plural, %status, "cannot read webhook configurations");
                    tokio::time::sleep(backoff.step()).await;
                    changed.notify_one();
                }
            }
        }
    }

    async fn refresh(&self, compiled: &mut Compiled) -> Result<(), Status> {
        let (_, stored) = self.reader.list(GROUP, self.plural, "").await?;
        let mut next = Compiled::new();
        for configuration in &stored {
            let name = configuration.header.name().to_string();
            let hooks = match compiled.remove(&name) {
                Some((revision, hooks)) if revision == configuration.revision => hooks,
                _ => Hook::read_all(&configuration.parse()),
            };
            next.insert(name, (configuration.revision, hooks));
        }
        *compiled = next;
        let mut names: Vec<&String> = compiled.keys().collect();
        names.sort();
        let hooks = names.into_iter().flat_map(|name| &compiled[name].1);
        let index = Index::new(hooks.cloned().collect());
        self.index.store(Some(Arc::new(index)));
        self.ready.send_replace(true);
        Ok(())
    }
}
