//! The embedded engine as a subject.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture};
use store::{
    Action, Durability, Freshness, ListRequest, Op, Plain, Precondition, Store, WatchItem, embedded,
};
use tokio::task::JoinSet;

use crate::load::{self, Subject};

pub(crate) struct Embedded {
    directory: PathBuf,
    store: Arc<embedded::Embedded<Plain>>,
}

impl Embedded {
    pub(crate) fn open(directory: &Path) -> anyhow::Result<Self> {
        let store = embedded::Embedded::open(directory, Plain)?;
        Ok(Self {
            directory: directory.to_owned(),
            store,
        })
    }

    /// Closes and reopens it; also returns how long opening took.
    pub(crate) fn reopen(self) -> anyhow::Result<(Duration, Self)> {
        self.store.close();
        let begin = Instant::now();
        let opened = Self::open(&self.directory)?;
        Ok((begin.elapsed(), opened))
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.store.live_bytes()
    }

    pub(crate) fn disk_bytes(&self) -> anyhow::Result<u64> {
        let mut total = 0;
        for entry in std::fs::read_dir(&self.directory)? {
            total += entry?.metadata()?.len();
        }
        Ok(total)
    }
}

impl Subject for Embedded {
    fn name(&self) -> &'static str {
        "embedded"
    }

    async fn put(&self, _: usize, key: Bytes, value: Bytes) -> anyhow::Result<()> {
        let action = Action::Put {
            draft: value,
            expires_in: None,
        };
        let op = Op {
            key,
            precondition: Precondition::Any,
            action,
        };
        self.store.commit(vec![op], Durability::Synced).await?;
        Ok(())
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        from: Option<String>,
        limit: Option<usize>,
    ) -> BoxFuture<'a, anyhow::Result<(usize, String)>> {
        let request = ListRequest {
            prefix: Bytes::copy_from_slice(prefix.as_bytes()),
            from: from.map(Bytes::from),
            limit,
            freshness: Freshness::Newest,
            skip_unreadable: false,
        };
        async move {
            let listed = self.store.list(request).await?;
            let last = listed
                .entries
                .last()
                .map(|entry| entry.key.to_vec())
                .unwrap_or_default();
            Ok((listed.entries.len(), String::from_utf8(last)?))
        }
        .boxed()
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        watchers: usize,
        seen: Arc<AtomicU64>,
    ) -> BoxFuture<'a, anyhow::Result<JoinSet<()>>> {
        async move {
            let mut tasks = JoinSet::new();
            let start = self.store.revision().await?;
            for _ in 0..watchers {
                let prefix = Bytes::copy_from_slice(prefix.as_bytes());
                let mut watch = self.store.watch(prefix, start).await?;
                let seen = seen.clone();
                tasks.spawn(async move {
                    while let Some(Ok(item)) = watch.next().await {
                        if let WatchItem::Events { events, .. } = item {
                            seen.fetch_add(events.len() as u64, Ordering::Relaxed);
                        }
                    }
                });
            }
            Ok(tasks)
        }
        .boxed()
    }

    fn memory(&self) -> anyhow::Result<u64> {
        load::resident("self")
    }

    fn processor(&self) -> anyhow::Result<Duration> {
        load::processor("self")
    }
}
