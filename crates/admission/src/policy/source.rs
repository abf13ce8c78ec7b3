//! Watches policies and bindings, and compiles changed ones. Requests use the newest index without
//! waiting; until the first one exists, requests wait for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use lifecycle::Context;
use machinery::{Object, Status, Value};
use stdx::Backoff;
use tokio::sync::{Mutex, Notify};

use super::index::Index;
use crate::{Reader, Stored};

const GROUP: &str = "admissionregistration.k8s.io";
/// The retry intervals after a failed read.
const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(5);

/// The policies of one kind.
pub(super) struct Source<P> {
    reader: Reader,
    policies: &'static str,
    bindings: &'static str,
    compile: fn(&Value) -> P,
    index: ArcSwap<Index<P>>,
    /// Whether the index reflects the store.
    synced: AtomicBool,
    /// Serializes reads, so that an older state never replaces a newer one.
    reading: Mutex<()>,
}

impl<P: Send + Sync + 'static> Source<P> {
    pub(super) fn new(
        reader: Reader,
        policies: &'static str,
        bindings: &'static str,
        compile: fn(&Value) -> P,
    ) -> Arc<Self> {
        Arc::new(Self {
            reader,
            policies,
            bindings,
            compile,
            index: ArcSwap::default(),
            synced: AtomicBool::new(false),
            reading: Mutex::new(()),
        })
    }

    /// Whether a policy may match a resource. True until the index exists.
    #[inline]
    pub(super) fn concerns(&self, resource: &str) -> bool {
        self.index.load().concerns(resource) || !self.synced.load(Ordering::Acquire)
    }

    /// The newest index; reads the store if there is none yet.
    pub(super) async fn index(&self) -> Result<Arc<Index<P>>, Status> {
        if !self.synced.load(Ordering::Acquire) {
            self.refresh().await?;
        }
        Ok(self.index.load_full())
    }

    async fn refresh(&self) -> Result<(), Status> {
        let _reading = self.reading.lock().await;
        let list = async |kind| {
            let (_, objects) = self.reader.list(GROUP, kind, "").await?;
            Ok::<Vec<Object>, Status>(objects.iter().map(|stored| Stored::parse(stored)).collect())
        };
        // Bindings first: then policies are at least as new as their bindings.
        let bindings = list(self.bindings).await?;
        let policies = list(self.policies).await?;
        let (earlier, compile) = (self.index.load_full(), self.compile);
        // A policy may have a megabyte of expressions.
        let read = move || Index::read(&policies, &bindings, &earlier, compile);
        let index = tokio::task::spawn_blocking(read).await;
        let index = index.map_err(|error| Status::internal(error.to_string()))?;
        self.index.store(Arc::new(index));
        self.synced.store(true, Ordering::Release);
        Ok(())
    }

    /// Reads again after changes; several changes are coalesced.
    async fn follow(self: Arc<Self>, changed: Arc<Notify>) {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        loop {
            changed.notified().await;
            while let Err(error) = self.refresh().await {
                tracing::warn!(%error, policies = self.policies, "cannot read admission policies");
                tokio::time::sleep(backoff.step()).await;
            }
            backoff.reset();
        }
    }

    pub(super) fn start(self: &Arc<Self>, context: &Context) {
        let changed = Arc::new(Notify::new());
        for kind in [self.policies, self.bindings] {
            let (source, changed) = (self.clone(), changed.clone());
            context.spawn("admission-policy-watch", async move {
                source.reader.tell_of_changes(GROUP, kind, &changed).await;
            });
        }
        context.spawn("admission-policies", self.clone().follow(changed));
    }
}
