//! The embedded engine: all live values in memory, every commit in an append-only log.
//!
//! Callers add their commits to the open batch; one thread writes and syncs batches and publishes
//! them to readers; one sends events to watchers. The engine does not interpret values.

mod backup;
mod batch;
mod checkpoint;
mod direct;
pub mod disk;
mod frame;
mod intake;
mod lead;
mod log;
mod manifest;
mod record;
mod recovery;
mod snapshot;
mod stage;
mod writer;

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use stdx::{Clock, SystemClock};
use tokio::sync::oneshot;

pub use crate::memory::Limits;
pub use backup::{RestoreReport, restore};
pub(crate) use backup::{create, holds_store};

use crate::{
    Codec, Committed, Durability, Entry, Error, Freshness, Key, ListRequest, Listed, Op, Revision,
    Store, Watch, check,
    memory::{Hub, Millis, Published, Saved, State},
};

use batch::Batch;
use disk::{Directory, Disk};
use intake::{Answer, Intake, WriterCommand};
use log::Log;
use manifest::Synced;
use stage::Stage;
use writer::Writer;

/// Lists up to this length are read under the lock.
const MAX_LIST_UNDER_LOCK: usize = 64;

/// The engine's configuration. The defaults suit a cluster.
#[derive(Clone)]
pub struct Config {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The maximum size of a value.
    pub max_value: usize,
    /// How much history is kept for watches and reads.
    pub history: Limits,
    /// How many past states that list pages refer to are kept.
    pub pages: usize,
    /// How many revisions a watcher may lag behind before it has to catch up from history.
    pub watch_queue: usize,
    /// The interval of progress notifications to watchers.
    pub progress: Duration,
    /// The maximum delay of the sync of relaxed writes.
    pub relaxed_sync: Duration,
    /// How far the persisted high-water mark is ahead of relaxed writes.
    pub high_water_step: u64,
    /// The length of a log segment.
    pub segment_bytes: u64,
    /// Space is reserved in steps of this length.
    pub reserve_bytes: u64,
    /// A snapshot is written when the log is longer than this and than twice the live data.
    pub min_log_bytes: u64,
    /// The minimum interval between two snapshots while the log is shorter than `max_log_bytes`, so
    /// that a burst of writes shares the disk with few of them.
    pub snapshot_rest: Duration,
    /// A log longer than this and than twice the live data is snapshotted at once.
    pub max_log_bytes: u64,
    /// Start even if synced files are missing or truncated, with what is left.
    pub accept_loss: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            max_value: check::MAX_VALUE,
            history: Limits::default(),
            pages: 64,
            watch_queue: 1024,
            progress: Duration::from_secs(5),
            relaxed_sync: Duration::from_secs(1),
            high_water_step: 10_000,
            segment_bytes: 32 << 20,
            reserve_bytes: 2 << 20,
            min_log_bytes: 64 << 20,
            snapshot_rest: Duration::from_secs(4),
            max_log_bytes: 256 << 20,
            accept_loss: false,
        }
    }
}

impl Config {
    /// The log length that triggers a snapshot, for this many bytes of live data.
    fn log_limit(&self, live: u64) -> u64 {
        self.min_log_bytes.max(2 * live)
    }

    /// Opens the store in a directory.
    pub fn open<C: Codec>(
        self,
        directory: impl Into<PathBuf>,
        codec: C,
    ) -> Result<Arc<Embedded<C>>, Error> {
        let path = directory.into();
        let directory = Directory::open(&path)
            .map_err(|error| Error::Unavailable(format!("{}: {error}", path.display())))?;
        self.open_on(Arc::new(directory), codec)
    }

    /// Opens the store on another file layer.
    pub fn open_on<C: Codec>(
        self,
        disk: Arc<dyn Disk>,
        codec: C,
    ) -> Result<Arc<Embedded<C>>, Error> {
        let lock = disk.lock().map_err(|error| {
            let path = disk.path("lock");
            let path = path.display();
            Error::Unavailable(format!("{path} is in use by another process: {error}"))
        })?;
        let recovery::Recovered {
            mut state,
            mut marks,
            next,
            log_bytes,
            manifest,
        } = recovery::recover(&*disk, &codec, &self)?;
        let found = state.revision;
        recovery::jump(&mut state, &mut marks);
        let log = Log::new(
            disk.clone(),
            next,
            log_bytes,
            self.segment_bytes,
            self.reserve_bytes,
        );
        let place = disk.path("lock");
        let place = place.parent().unwrap_or(Path::new("")).to_owned();
        let (expiring, live_bytes) = (expiring(&state), state.bytes);
        let published = Arc::new(Published::new(state, self.pages));
        let hub = Arc::new(Hub::new(published.clone(), self.watch_queue));
        let codec = Arc::new(codec);
        let intake = Intake::new(codec.clone(), self.clock.clone(), published.clone());
        let intake = Arc::new(intake);
        let stage = Stage::new(&intake, &published, &hub, self.history.clone());
        stage.begin(expiring, live_bytes);
        let writer = Writer {
            codec: codec.clone(),
            disk,
            log,
            marks,
            intake: intake.clone(),
            published: published.clone(),
            stage: Arc::new(stage),
            broken: None,
            dirty_since: None,
            wakes_at: 0,
            batch: Batch::default(),
            appended: found,
            // Recovery has synced what it found.
            synced: Synced {
                revision: found,
                segment: next - 1,
            },
            manifest,
            manifest_at: 0,
            snapshot: None,
            snapshot_waiters: Vec::new(),
            snapshot_not_before: 0,
            snapshot_rests_until: 0,
            config: self.clone(),
        };
        let writer = Arc::new(Mutex::new(writer));
        let threads = start(writer.clone(), &self, intake.clone(), hub.clone(), lock)?;
        Ok(Arc::new(Embedded {
            codec,
            published,
            hub,
            intake,
            writer,
            threads: Mutex::new(threads),
            max_value: self.max_value,
            place,
        }))
    }
}

/// The keys with an expiry.
fn expiring<T>(state: &State<T>) -> BTreeSet<(Millis, Key)> {
    let slots = state.entries.values().filter(|slot| slot.expires != 0);
    slots
        .map(|slot| (slot.expires, slot.entry.key.clone()))
        .collect()
}

/// Starts the two threads. The lock on the directory is released when the writer has ended.
fn start<C: Codec>(
    writer: Arc<Mutex<Writer<C>>>,
    config: &Config,
    intake: Arc<Intake<C>>,
    hub: Arc<Hub<C::Object>>,
    lock: Box<dyn Send + Sync>,
) -> Result<Vec<JoinHandle<()>>, Error> {
    let (clock, progress, served) = (config.clock.clone(), config.progress, hub.clone());
    let writing = move || {
        let run = catch_unwind(AssertUnwindSafe(|| block_on(writer::run(&writer))));
        if run.is_err() {
            intake.close(writer::PANICKED);
            intake.end();
            hub.close();
        }
        drop(lock);
    };
    let watching = move || block_on(served.serve(&*clock, progress));
    let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new()
            .name(name.into())
            .spawn(work)
            .map_err(no_thread)
    };
    Ok(vec![
        spawn("store-watch", Box::new(watching))?,
        spawn("store-writer", Box::new(writing))?,
    ])
}

fn no_thread(error: std::io::Error) -> Error {
    Error::Unavailable(format!("cannot start a thread: {error}"))
}

/// Runs a future on this thread with its own timers: the engine outlives any tokio runtime.
fn block_on(future: impl Future<Output = ()>) {
    match tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
    {
        Ok(runtime) => runtime.block_on(future),
        Err(error) => tracing::error!(%error, "cannot start a thread of the store"),
    }
}

/// An open store.
pub struct Embedded<C: Codec> {
    codec: Arc<C>,
    published: Arc<Published<C::Object>>,
    hub: Arc<Hub<C::Object>>,
    intake: Arc<Intake<C>>,
    /// Guards the log. Locked by the writer's thread while it works, or by a caller that writes its
    /// batch.
    writer: Arc<Mutex<Writer<C>>>,
    /// Guards the threads until they are joined.
    threads: Mutex<Vec<JoinHandle<()>>>,
    max_value: usize,
    /// The directory of its files.
    place: PathBuf,
}

impl<C: Codec> Embedded<C> {
    /// Opens the store in a directory with the default configuration.
    pub fn open(directory: impl Into<PathBuf>, codec: C) -> Result<Arc<Self>, Error> {
        Config::default().open(directory, codec)
    }

    /// Closes the store: accepted commits are written, watches end, the directory is unlocked.
    /// Blocks for the last sync. Also done when the last handle is dropped.
    pub fn close(&self) {
        self.intake.ask(WriterCommand::Close);
        for thread in self.threads.lock().drain(..).rev() {
            let _ = thread.join();
        }
    }

    /// Why the store accepts no more writes, if so.
    pub fn failure(&self) -> Option<String> {
        self.intake.failure()
    }

    /// Bytes of live keys and values.
    pub fn live_bytes(&self) -> u64 {
        self.published.read(|state| state.bytes)
    }

    /// The disk usage of its files.
    fn disk_bytes(&self) -> Option<u64> {
        use std::os::unix::fs::MetadataExt;
        let files = std::fs::read_dir(&self.place).ok()?;
        let sizes = files.filter_map(|file| Some(file.ok()?.metadata().ok()?.blocks() * 512));
        Some(sizes.sum())
    }

    /// Writes a snapshot now and removes the log before it.
    pub async fn snapshot(&self) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        self.intake.ask(WriterCommand::Snapshot(reply));
        self.hear(answer).await
    }

    /// Writes the current state to one file, while others read and write.
    pub async fn backup(&self, file: &Path) -> Result<Revision, Error> {
        let (state, codec) = (self.published.moment(), self.codec.clone());
        let file = file.to_owned();
        let work = move || backup::write(&file, &*codec, &state);
        tokio::task::spawn_blocking(work)
            .await
            .unwrap_or_else(|error| Err(Error::Unavailable(format!("backup: {error}"))))
    }

    /// The same for callers that may block.
    pub fn backup_now(&self, file: &Path) -> Result<Revision, Error> {
        backup::write(file, &*self.codec, &self.published.moment())
    }

    /// The current state in key order, and its revision.
    pub(crate) fn content(&self) -> (Revision, Vec<Saved>) {
        let state = self.published.moment();
        (state.revision, state.saved(&*self.codec).collect())
    }

    /// Waits for the writer's reply.
    async fn hear<T>(&self, answer: Answer<T>) -> Result<T, Error> {
        answer.await.unwrap_or_else(|_| {
            let why = self.failure();
            Err(Error::Unavailable(
                why.unwrap_or_else(|| "the store is closed".into()),
            ))
        })
    }

    /// Reads the newest state, if it is fresh enough.
    fn look<R>(
        &self,
        at_least: Revision,
        look: impl FnOnce(&State<C::Object>) -> R,
    ) -> Result<R, Error> {
        self.published.read(|state| {
            if at_least > state.revision {
                return Err(Error::Future {
                    requested: at_least,
                    newest: state.revision,
                });
            }
            Ok(look(state))
        })
    }

    /// A list of the newest state that is short enough to be read under the lock, without cloning
    /// the state.
    fn few(&self, request: &ListRequest) -> Result<Option<Listed<C::Object>>, Error> {
        let at_least = match request.freshness {
            Freshness::AtLeast(revision) => revision,
            _ => 0,
        };
        let most = request
            .limit
            .map_or(MAX_LIST_UNDER_LOCK, |limit| limit.min(MAX_LIST_UNDER_LOCK));
        self.look(at_least, |state| state.list_few(request, most))
    }

    async fn at(&self, freshness: Freshness) -> Result<State<C::Object>, Error> {
        let requested = match freshness {
            Freshness::Newest => 0,
            Freshness::AtLeast(revision) | Freshness::Exactly(revision) => revision,
        };
        let newest = self.look(requested, State::clone)?;
        if !matches!(freshness, Freshness::Exactly(_)) {
            return Ok(newest);
        }
        let oldest = newest.history.floor();
        if requested < oldest {
            return Err(Error::Compacted { requested, oldest });
        }
        Ok(self.published.pages.at(requested, &newest).await)
    }
}

impl<C: Codec> Drop for Embedded<C> {
    fn drop(&mut self) {
        self.close();
    }
}

#[async_trait]
impl<C: Codec> Store<C> for Embedded<C> {
    async fn get(
        &self,
        key: &Key,
        freshness: Freshness,
    ) -> Result<(Revision, Option<Entry<C::Object>>), Error> {
        check::key(key)?;
        let get = |state: &State<C::Object>| (state.revision, state.get(key));
        match freshness {
            Freshness::Newest => Ok(self.published.read(get)),
            Freshness::AtLeast(revision) => self.look(revision, get),
            Freshness::Exactly(_) => Ok(get(&self.at(freshness).await?)),
        }
    }

    async fn list(&self, request: ListRequest) -> Result<Listed<C::Object>, Error> {
        check::prefix(&request.prefix)?;
        if let Freshness::Newest | Freshness::AtLeast(_) = request.freshness
            && let Some(few) = self.few(&request)?
        {
            return Ok(few);
        }
        let state = self.at(request.freshness).await?;
        let listed = state.list(&request);
        if listed.remaining > 0 {
            self.published.pages.keep(&state);
        }
        Ok(listed)
    }

    async fn commit(
        &self,
        ops: Vec<Op<C::Draft>>,
        durability: Durability,
    ) -> Result<Committed<C::Object>, Error> {
        check::ops(&*self.codec, &ops, self.max_value)?;
        let added = self.intake.commit(ops, durability)?;
        if added.leads {
            lead::lead(&self.intake, &self.writer).await;
        }
        self.hear(added.answer).await.map(Committed::from)
    }

    async fn watch(&self, prefix: Key, after: Revision) -> Result<Watch<C::Object>, Error> {
        check::prefix(&prefix)?;
        self.hub.watch(prefix, after)
    }

    async fn revision(&self) -> Result<Revision, Error> {
        Ok(self.published.revision())
    }

    async fn compact(&self, revision: Revision) -> Result<(), Error> {
        self.hear(self.intake.compact(revision)?).await
    }

    async fn size(&self) -> Option<u64> {
        self.disk_bytes()
    }
}

impl<C: Codec> lifecycle::Service for Embedded<C> {
    fn name(&self) -> &'static str {
        "store"
    }

    fn run(self: Arc<Self>, context: lifecycle::Context) -> lifecycle::Run {
        Box::pin(async move {
            if let Some(why) = self.failure() {
                return Err(Error::Unavailable(why).into());
            }
            context.ready();
            context.shutdown().await;
            let closing = self.clone();
            tokio::task::spawn_blocking(move || closing.close()).await?;
            Ok(())
        })
    }
}
