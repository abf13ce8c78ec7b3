//! The etcd backend: transactions on mod revisions, one watch that feeds a cache, and reads from
//! etcd itself where only etcd knows the newest state.

mod client;
mod config;
mod connect;
mod leases;
mod members;
mod migration;
mod mirror;
pub mod proto;
mod records;
mod revisions;
mod term;
mod transaction;
mod version;

use std::{sync::Arc, thread::JoinHandle, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

pub use config::Config;
pub use connect::Tls;
pub use migration::{Moved, embedded_to_etcd, etcd_to_embedded, moved_to};
pub use records::Records;
pub use version::Version;

use crate::{
    Action, Codec, Committed, Durability, Entry, Error, Freshness, Key, ListRequest, Listed, Op,
    Revision, Store, Unreadable, Watch, check,
    memory::{Hub, Published, State, prefix_end},
};
use client::{Client, SLOW};
use leases::Leases;
use mirror::{Message, Position};
use proto::{
    etcdserverpb::{Compare, RangeRequest},
    mvccpb::KeyValue,
};

/// How long a commit or a read waits for the mirror before it does without.
const MIRROR_TIMEOUT: Duration = Duration::from_secs(3);

/// History older than this is compacted. Every server does so; concurrent compactions are harmless.
const KEPT_HISTORY: Duration = Duration::from_secs(300);

/// A connected etcd.
pub struct Etcd<C: Codec> {
    config: Config,
    codec: Arc<C>,
    client: Client,
    /// The cluster whose objects were migrated from an embedded store.
    origin: Option<String>,
    /// A precondition of every commit.
    guard: Compare,
    published: Arc<Published<C::Object>>,
    hub: Arc<Hub<C::Object>>,
    position: watch::Receiver<Position>,
    leases: Leases,
    /// Guards the way to the mirror; none when closed.
    messages: Mutex<Option<mpsc::Sender<Message>>>,
    /// Guards the mirror's thread until it is joined.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl<C: Codec> Etcd<C> {
    /// Ends the mirror and all watches. Also done when the last handle is dropped.
    pub fn close(&self) {
        drop(self.messages.lock().take());
        self.hub.close();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    /// The cluster whose objects were migrated from an embedded store, if they were.
    pub fn origin(&self) -> Option<&str> {
        self.origin.as_deref()
    }

    /// Compacts periodically. Never returns.
    async fn compact_regularly(&self) {
        let mut before = None;
        loop {
            if let Some(revision) = before
                && let Err(error) = self.compact(revision).await
            {
                tracing::warn!(%error, revision, "cannot compact etcd's history");
            }
            before = self.revision().await.ok();
            self.config.clock.sleep(KEPT_HISTORY).await;
        }
    }

    /// The mirror at a revision; `None` if that takes too long.
    async fn mirror_at(&self, revision: Revision) -> Option<State<C::Object>> {
        let mut position = self.position.clone();
        let reached = async {
            let reached = position.wait_for(|position| position.revision >= revision);
            reached.await.is_ok()
        };
        let slow = async {
            tokio::time::sleep(SLOW).await;
            // The mirror's member may hang while another one accepted the write.
            self.client.members().doubt();
            tokio::time::sleep(MIRROR_TIMEOUT).await;
        };
        tokio::select! {
            reached = reached => reached.then(|| self.published.moment()),
            () = slow => None,
        }
    }

    fn check_key(&self, key: &Key) -> Result<(), Error> {
        check::key(key)?;
        self.check_root(key)
    }

    fn check_root(&self, key: &Key) -> Result<(), Error> {
        if key.starts_with(&self.config.root) {
            return Ok(());
        }
        let (key, root) = (
            String::from_utf8_lossy(key),
            String::from_utf8_lossy(&self.config.root),
        );
        Err(Error::Invalid(format!(
            "{key:?} does not start with {root:?}"
        )))
    }

    /// A cached state for a read, if one is fresh enough.
    async fn at_hand(&self, freshness: Freshness) -> Option<State<C::Object>> {
        let state = self.published.moment();
        match freshness {
            Freshness::Newest => None,
            Freshness::AtLeast(revision) => (revision <= state.revision).then_some(state),
            Freshness::Exactly(revision) => {
                let kept = state.history.floor() <= revision && revision <= state.revision;
                if !kept {
                    return None;
                }
                Some(self.published.pages.at(revision, &state).await)
            }
        }
    }

    /// For lists that must be the newest: the mirror, if etcd's progress notifications are
    /// reliable.
    async fn newest(&self) -> Option<State<C::Object>> {
        if !self.position.borrow().reliable {
            return None;
        }
        let revision = self.revision().await.ok()?;
        if self.published.revision() < revision {
            let messages = self.messages.lock().clone()?;
            messages.try_send(Message::Progress).ok()?;
        }
        self.mirror_at(revision).await
    }

    /// An entry of etcd's response: the mirror's object if it has it, so that each is published
    /// once.
    fn entry(&self, kv: KeyValue) -> Result<Entry<C::Object>, Unreadable> {
        let known = self.published.read(|state| state.get(&kv.key));
        if let Some(known) = known.filter(|known| known.mod_revision as i64 == kv.mod_revision) {
            return Ok(known);
        }
        let saved = mirror::saved(kv);
        let draft = self.codec.load(&saved.key, saved.value).map_err(|why| {
            let (key, revision) = (saved.key.clone(), saved.mod_revision);
            Unreadable { key, revision, why }
        })?;
        let object = self.codec.publish(&saved.key, draft, saved.mod_revision);
        Ok(Entry {
            key: saved.key,
            create_revision: saved.create_revision,
            mod_revision: saved.mod_revision,
            object: Arc::new(object),
        })
    }

    /// Reads from etcd. Returns the revision, the entries, and how many more there are.
    async fn range(
        &self,
        request: RangeRequest,
        freshness: Freshness,
    ) -> Result<Listed<C::Object>, Error> {
        let exactly = match freshness {
            Freshness::Exactly(0) => {
                let oldest = self.published.read(|state| state.history.floor());
                return Err(Error::Compacted {
                    requested: 0,
                    oldest,
                });
            }
            Freshness::Exactly(revision) => revision,
            _ => 0,
        };
        let request = RangeRequest {
            revision: exactly as i64,
            ..request
        };
        let answer = self
            .client
            .range(request)
            .await
            .map_err(|error| self.with_revisions(error))?;
        let newest = answer
            .header
            .map_or(0, |header| header.revision as Revision);
        if let Freshness::AtLeast(requested) = freshness
            && requested > newest
        {
            return Err(Error::Future { requested, newest });
        }
        let revision = if exactly == 0 { newest } else { exactly };
        let remaining = answer.count as usize - answer.kvs.len();
        let mut entries = Vec::with_capacity(answer.kvs.len());
        let mut unreadable = Vec::new();
        for kv in answer.kvs {
            match self.entry(kv) {
                Ok(entry) => entries.push(entry),
                Err(one) => unreadable.push(one),
            }
        }
        Ok(Listed {
            revision,
            entries,
            remaining,
            unreadable,
        })
    }

    /// Adds the oldest and newest revisions to etcd's errors.
    fn with_revisions(&self, error: Error) -> Error {
        match error {
            Error::Compacted { requested, .. } => Error::Compacted {
                requested,
                oldest: self.published.read(|state| state.history.floor()),
            },
            Error::Future { requested, .. } => Error::Future {
                requested,
                newest: self.published.revision(),
            },
            other => other,
        }
    }

    async fn leases(&self, ops: &[Op<C::Draft>]) -> Result<Vec<i64>, Error> {
        let mut leases = Vec::with_capacity(ops.len());
        for op in ops {
            leases.push(match &op.action {
                Action::Put {
                    expires_in: Some(expires_in),
                    ..
                } => {
                    self.leases
                        .lease(&self.client, &*self.config.clock, *expires_in)
                        .await?
                }
                _ => 0,
            });
        }
        Ok(leases)
    }

    /// The new entry of a put key: the mirror's, or our own if the mirror lags behind.
    fn written(
        &self,
        mirror: Option<&State<C::Object>>,
        op: Op<C::Draft>,
        revision: Revision,
        previous: Option<KeyValue>,
    ) -> Result<Option<Entry<C::Object>>, Error> {
        match op.action {
            Action::Check => Ok(None),
            // The key is deleted, also if its value could not be read.
            Action::Delete => Ok(previous.and_then(|kv| self.entry(kv).ok())),
            Action::Put { draft, .. } => {
                let batch = mirror.and_then(|state| state.history.at(revision));
                let found = batch.and_then(|batch| {
                    let mut changes = batch.changes().iter();
                    let change = changes.find(|change| change.key() == op.key)?;
                    change.current.as_ref().map(|slot| slot.entry.clone())
                });
                Ok(Some(found.unwrap_or_else(|| Entry {
                    create_revision: previous.map_or(revision, |kv| kv.create_revision as Revision),
                    mod_revision: revision,
                    object: Arc::new(self.codec.publish(&op.key, draft, revision)),
                    key: op.key,
                })))
            }
        }
    }
}

impl<C: Codec> Drop for Etcd<C> {
    fn drop(&mut self) {
        self.close();
    }
}

#[async_trait]
impl<C: Codec> Store<C> for Etcd<C> {
    async fn get(
        &self,
        key: &Key,
        freshness: Freshness,
    ) -> Result<(Revision, Option<Entry<C::Object>>), Error> {
        self.check_key(key)?;
        if let Some(state) = self.at_hand(freshness).await {
            state.check_readable(key)?;
            return Ok((state.revision, state.get(key)));
        }
        let request = RangeRequest {
            key: key.clone(),
            ..RangeRequest::default()
        };
        let listed = self.range(request, freshness).await?;
        match listed.unreadable.is_empty() {
            true => Ok((listed.revision, listed.entries.into_iter().next())),
            false => Err(Error::Unreadable(listed.unreadable)),
        }
    }

    async fn list(&self, request: ListRequest) -> Result<Listed<C::Object>, Error> {
        check::prefix(&request.prefix)?;
        self.check_root(&request.prefix)?;
        let state = match request.freshness {
            Freshness::Newest => self.newest().await,
            other => self.at_hand(other).await,
        };
        if let Some(state) = state {
            let unreadable = state.check_list_readable(&request)?;
            let listed = Listed {
                unreadable,
                ..state.list(&request)
            };
            if listed.remaining > 0 {
                self.published.pages.keep(&state);
            }
            return Ok(listed);
        }
        let start = match &request.from {
            Some(from) if *from > request.prefix => from.clone(),
            _ => mirror::non_empty(&request.prefix),
        };
        let end = prefix_end(&request.prefix).unwrap_or_else(|| Key::from_static(&[0]));
        if end[..] != [0] && start >= end {
            let nothing = RangeRequest {
                key: mirror::non_empty(&self.config.root),
                count_only: true,
                ..RangeRequest::default()
            };
            let moment = self.range(nothing, request.freshness).await?.revision;
            return Ok(Listed {
                revision: moment,
                entries: Vec::new(),
                remaining: 0,
                unreadable: Vec::new(),
            });
        }
        let range = RangeRequest {
            key: start,
            range_end: end,
            limit: request.limit.unwrap_or(0) as i64,
            count_only: request.limit == Some(0),
            ..RangeRequest::default()
        };
        let listed = self.range(range, request.freshness).await?;
        match listed.unreadable.is_empty() || request.skip_unreadable {
            true => Ok(listed),
            false => Err(Error::Unreadable(listed.unreadable)),
        }
    }

    async fn commit(
        &self,
        ops: Vec<Op<C::Draft>>,
        _: Durability,
    ) -> Result<Committed<C::Object>, Error> {
        check::ops(&*self.codec, &ops, self.config.max_value)?;
        ops.iter().try_for_each(|op| self.check_root(&op.key))?;
        let leases = self.leases(&ops).await?;
        let mut request = transaction::request(&*self.codec, &ops, &leases);
        // With a root that contains the record, it is one of the objects.
        if !self.guard.key.starts_with(&self.config.root) {
            request.compare.push(self.guard.clone());
        }
        let effect = transaction::effect(&ops);
        let answer = self.client.transact(request, effect).await?;
        if !answer.succeeded {
            return Err(transaction::conflict(&ops, answer.responses));
        }
        let revision = answer
            .header
            .map_or(0, |header| header.revision as Revision);
        let previous = transaction::previous(&ops, answer.responses)?;
        let changes = ops
            .iter()
            .zip(&previous)
            .any(|(op, previous)| match op.action {
                Action::Put { .. } => true,
                Action::Delete => previous.is_some(),
                Action::Check => false,
            });
        let mirror = if changes {
            self.mirror_at(revision).await
        } else {
            None
        };
        let entries = ops.into_iter().zip(previous);
        let entries = entries
            .map(|(op, previous)| self.written(mirror.as_ref(), op, revision, previous))
            .collect::<Result<_, _>>()?;
        Ok(Committed { revision, entries })
    }

    async fn watch(&self, prefix: Key, after: Revision) -> Result<Watch<C::Object>, Error> {
        check::prefix(&prefix)?;
        self.check_root(&prefix)?;
        // A client may have seen a newer revision than the mirror.
        if after > self.published.revision() {
            let newest = self.revision().await?;
            if after > newest {
                return Err(Error::Future {
                    requested: after,
                    newest,
                });
            }
            return self.hub.watch_ahead(prefix, after);
        }
        self.hub.watch(prefix, after)
    }

    async fn revision(&self) -> Result<Revision, Error> {
        let request = RangeRequest {
            key: mirror::non_empty(&self.config.root),
            count_only: true,
            ..RangeRequest::default()
        };
        let answer = self.client.range(request).await?;
        Ok(answer
            .header
            .map_or(0, |header| header.revision as Revision))
    }

    async fn compact(&self, revision: Revision) -> Result<(), Error> {
        match self.client.compact(revision).await {
            // Another server was faster.
            Ok(()) | Err(Error::Compacted { .. }) => {}
            Err(error) => return Err(self.with_revisions(error)),
        }
        let messages = self.messages.lock().clone();
        if let Some(messages) = messages {
            let (reply, done) = oneshot::channel();
            let _ = messages.send(Message::Forget(revision, reply)).await;
            let _ = done.await;
        }
        Ok(())
    }
}

impl<C: Codec> lifecycle::Service for Etcd<C> {
    fn name(&self) -> &'static str {
        "store"
    }

    fn run(self: Arc<Self>, context: lifecycle::Context) -> lifecycle::Run {
        Box::pin(async move {
            context.ready();
            tokio::select! {
                () = context.shutdown() => {}
                () = self.compact_regularly() => {}
            }
            let closing = self.clone();
            tokio::task::spawn_blocking(move || closing.close()).await?;
            Ok(())
        })
    }
}
