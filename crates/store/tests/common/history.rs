//! Many concurrent clients of a store, with a record of each call, its result and its times.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use rand::{Rng, SeedableRng, rngs::StdRng};
use reference::history::{self, Answer, Call, Change};
use store::{Error, Freshness, Precondition, Revision, WatchItem};

use super::*;

const KEYS: u32 = 4;

/// State that the clients share. The store may be replaced while they run.
pub(crate) struct Arena {
    store: RwLock<Arc<Dyn>>,
    moment: AtomicU64,
    calls: Mutex<Vec<Call>>,
    done: AtomicBool,
}

/// The changes that one watcher saw, each with the revision of the previous value.
type Seen = Vec<(Change, Option<Revision>)>;

impl Arena {
    pub(crate) fn new(store: Arc<Dyn>) -> Arc<Self> {
        Arc::new(Self {
            store: RwLock::new(store),
            moment: AtomicU64::new(0),
            calls: Mutex::new(Vec::new()),
            done: AtomicBool::new(false),
        })
    }

    pub(crate) fn replace(&self, store: Arc<Dyn>) {
        *self.store.write() = store;
    }

    fn store(&self) -> Arc<Dyn> {
        self.store.read().clone()
    }

    fn now(&self) -> u64 {
        self.moment.fetch_add(1, Ordering::SeqCst)
    }

    async fn client(self: Arc<Self>, id: u64, calls: u64) {
        let mut rng = StdRng::seed_from_u64(id);
        let mut known: BTreeMap<String, Revision> = BTreeMap::new();
        for n in 0..calls {
            let key = format!("/h/{}", rng.random_range(0..KEYS));
            let store = self.store();
            let asked = self.now();
            let answer = match rng.random_range(0..10) {
                0..4 => read(&*store, &key).await,
                4..7 => wrote(commit(&*store, vec![put(&key, &format!("{id}-{n}"))]).await),
                7..9 => {
                    let precondition = match known.get(&key) {
                        Some(revision) => Precondition::Revision(*revision),
                        None => Precondition::Absent,
                    };
                    let op = put_if(&key, &format!("{id}-{n}"), precondition);
                    wrote(commit(&*store, vec![op]).await)
                }
                _ => wrote(commit(&*store, vec![delete_if(&key, Precondition::Exists)]).await),
            };
            let heard = self.now();
            match &answer {
                Answer::Read(_, Some((revision, _))) | Answer::Wrote(revision, Some(_)) => {
                    known.insert(key.clone(), *revision);
                }
                Answer::Refused(Some(revision)) => {
                    known.insert(key.clone(), *revision);
                }
                _ => {
                    known.remove(&key);
                }
            }
            self.calls.lock().push(Call {
                key,
                asked,
                heard,
                answer,
            });
        }
    }

    /// Watches everything from `after` on, disconnecting and reconnecting at random, until it has
    /// seen the end marker.
    async fn watcher(self: Arc<Self>, after: Revision, seed: u64) -> Seen {
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut seen, mut cursor) = (Seen::new(), after);
        let deadline = std::time::Instant::now() + 3 * PATIENCE;
        loop {
            assert!(
                std::time::Instant::now() < deadline,
                "the watch does not come to its end"
            );
            let Ok(mut watch) = self.store().watch("/h/".into(), cursor).await else {
                tokio::task::yield_now().await;
                continue;
            };
            for _ in 0..rng.random_range(1..50) {
                let item = match next_or_end(&mut watch).await {
                    Some(Ok(item)) => item,
                    Some(Err(error @ (Error::Compacted { .. } | Error::Lagged))) => {
                        panic!("history was long enough: {error}")
                    }
                    _ => break,
                };
                let WatchItem::Events { revision, events } = item else {
                    continue;
                };
                assert!(revision > cursor, "{revision} after {cursor}");
                cursor = revision;
                for event in events.iter() {
                    let key = String::from_utf8(event.key.to_vec()).unwrap();
                    if key == "/h/end" {
                        return seen;
                    }
                    let value = event.current.as_ref().map(|entry| text(&entry.object));
                    let previous = event.previous.as_ref().map(|entry| entry.mod_revision);
                    let change = Change {
                        revision,
                        key,
                        value,
                    };
                    seen.push((change, previous));
                }
            }
        }
    }

    /// Runs clients and watchers during `trouble`, and checks the history. The result of `trouble`
    /// is kept to the end.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        clients: u64,
        calls: u64,
        trouble: impl Future<Output = T> + Send + 'static,
    ) {
        let start = self.store().revision().await.unwrap();
        let mut watchers = tokio::task::JoinSet::new();
        for seed in 0..3 {
            watchers.spawn(self.clone().watcher(start, seed));
        }
        let mut tasks = tokio::task::JoinSet::new();
        for id in 0..clients {
            tasks.spawn(self.clone().client(id, calls));
        }
        let trouble = tokio::spawn(trouble);
        tasks.join_all().await;
        self.done.store(true, Ordering::SeqCst);
        let _kept = trouble.await.unwrap();
        while commit(&*self.store(), vec![put("/h/end", "")])
            .await
            .is_err()
        {
            tokio::task::yield_now().await;
        }
        let seen = watchers.join_all().await;
        assert!(
            seen.windows(2).all(|pair| pair[0] == pair[1]),
            "watchers saw different things"
        );
        let calls = std::mem::take(&mut *self.calls.lock());
        let (changes, previous): (Vec<_>, Vec<_>) = seen[0].iter().cloned().unzip();
        history::check(&changes, &calls);
        check_previous(&changes, &previous);
    }

    /// Waits until the clients have made this many more calls, or are finished.
    pub(crate) async fn more_calls(&self, count: usize) {
        let goal = self.calls.lock().len() + count;
        while self.calls.lock().len() < goal && !self.is_done() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    /// Whether the clients are finished.
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }
}

async fn next_or_end(watch: &mut store::Watch<Bytes>) -> Option<Result<WatchItem<Bytes>, Error>> {
    use futures::StreamExt;
    tokio::time::timeout(PATIENCE, watch.next())
        .await
        .expect("in time")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

async fn read(store: &Dyn, key: &str) -> Answer {
    match store
        .get(&Bytes::copy_from_slice(key.as_bytes()), Freshness::Newest)
        .await
    {
        Ok((revision, entry)) => Answer::Read(
            revision,
            entry.map(|entry| (entry.mod_revision, text(&entry.object))),
        ),
        Err(_) => Answer::Lost,
    }
}

fn wrote(committed: Result<store::Committed<Bytes>, Error>) -> Answer {
    match committed {
        Ok(committed) => {
            let entry = committed.entries.into_iter().next().unwrap();
            let entry = entry.filter(|entry| entry.mod_revision == committed.revision);
            Answer::Wrote(committed.revision, entry.map(|entry| text(&entry.object)))
        }
        Err(Error::Conflict { current, .. }) => Answer::Refused(current),
        Err(_) => Answer::Lost,
    }
}

/// Checks that each change names the value that it replaced.
fn check_previous(changes: &[Change], previous: &[Option<Revision>]) {
    let mut newest: BTreeMap<&str, Option<Revision>> = BTreeMap::new();
    for (change, previous) in changes.iter().zip(previous) {
        let now = change.value.as_ref().map(|_| change.revision);
        let before = newest.insert(&change.key, now).flatten();
        let (key, at) = (&change.key, change.revision);
        assert_eq!(before, *previous, "{key} at {at}: the previous value");
    }
}
