//! Recovery: reads the newest snapshot, then every segment after it, in order.

use super::{
    Config,
    checkpoint::{SegmentReuse, remove_before},
    disk::Disk,
    log::{self, segment_name},
    manifest::{self, Manifest, Synced},
    record::{self, Marks},
    snapshot::{self, snapshot_name},
};
use crate::{
    Codec, Error,
    memory::{Fresh, OneOrMany, State, Write},
};

/// More revisions than can have been lost if nothing records how many there were.
const UNKNOWN_LOSS: u64 = 1_000_000_000;

/// The recovered store.
pub(super) struct Recovered<T> {
    /// The state.
    pub state: State<T>,
    /// The newest marks.
    pub marks: Marks,
    /// The number of the next segment.
    pub next: u64,
    /// Bytes in the segments.
    pub log_bytes: u64,
    /// Records how far the log had been synced.
    pub manifest: Manifest,
}

/// Reads everything. Changes only a torn tail and removes obsolete files.
pub(super) fn recover<C: Codec>(
    disk: &dyn Disk,
    codec: &C,
    config: &Config,
) -> Result<Recovered<C::Object>, Error> {
    let names = list(disk)?;
    // Reusable segments are removed, too: if renaming is not atomic, one may be another name of a
    // current segment.
    let is_left = |name: &&String| name.ends_with(".tmp") || name.starts_with("spare-");
    for name in names.iter().filter(is_left) {
        disk.remove(name)
            .map_err(|error| failed(disk, name, error))?;
    }
    let numbers = |prefix: &str| {
        let parse = |name: &String| u64::from_str_radix(name.strip_prefix(prefix)?, 16).ok();
        let mut numbers: Vec<u64> = names.iter().filter_map(parse).collect();
        numbers.sort_unstable();
        numbers
    };
    let mut state = State::default();
    let mut marks = Marks::default();
    let mut next = 1;
    if let Some(number) = numbers("snapshot-").last() {
        let name = snapshot_name(*number);
        let (header, revision, found) =
            snapshot::read(disk, &name, |saved| state.restore(codec, saved))?;
        if header.number != *number {
            let path = disk.path(&name);
            return Err(Error::Corrupt(format!(
                "{} at offset 0: wrong name",
                path.display()
            )));
        }
        (state.revision, marks, next) = (revision, found, *number);
        state.history.forget(revision);
        let keep = SegmentReuse {
            spares: 0,
            at_least: 0,
        };
        remove_before(disk, *number, &keep).map_err(|error| failed(disk, &name, error))?;
    }
    let segments: Vec<u64> = numbers("log-").into_iter().filter(|n| *n >= next).collect();
    let mut log_bytes = 0;
    for (position, number) in segments.iter().enumerate() {
        if *number != next {
            let path = disk.path(&segment_name(next));
            return Err(Error::Corrupt(format!("{} is missing", path.display())));
        }
        let is_last = position + 1 == segments.len();
        log_bytes += log::replay(disk, *number, is_last, |payload| {
            marks = replay(&mut state, codec, payload)?;
            state.history.prune(&config.history, marks.time);
            Ok(state.revision)
        })?;
        next += 1;
    }
    let needs_manifest = match (&*numbers("snapshot-"), &*numbers("log-")) {
        ([], []) => false,
        // Restored by a version without manifest, and never opened since: `create` never uses this
        // number.
        ([1], []) => false,
        _ => true,
    };
    let found = Synced {
        revision: state.revision,
        segment: next - 1,
    };
    let manifest = checked_manifest(disk, config, needs_manifest, found, &mut marks)?;
    state
        .history
        .prune(&config.history, config.clock.now().as_millisecond());
    Ok(Recovered {
        state,
        marks,
        next,
        log_bytes,
        manifest,
    })
}

/// The manifest, created if missing. Fails if it shows lost revisions, or if files exist that need
/// one, unless the loss is accepted.
fn checked_manifest(
    disk: &dyn Disk,
    config: &Config,
    is_needed: bool,
    found: Synced,
    marks: &mut Marks,
) -> Result<Manifest, Error> {
    let manifest = Manifest::open(disk)?;
    let checked = match is_needed && !manifest.exists() {
        true => Err(Error::ManifestMissing {
            path: disk.path(manifest::NAME),
            found: found.revision,
        }),
        false => manifest::check(disk, manifest.written, found.revision),
    };
    match checked {
        Err(loss) if config.accept_loss => {
            tracing::error!(%loss, "continuing without the lost data, as configured");
            // Clients may have seen these revisions, and relaxed writes after them: none is used
            // twice.
            let seen = match manifest.exists() {
                true => manifest.written.revision + config.high_water_step,
                false => found.revision + UNKNOWN_LOSS,
            };
            marks.high_water = marks.high_water.max(seen);
        }
        checked => checked?,
    }
    if manifest.exists() {
        return Ok(manifest);
    }
    let made = Manifest::create(disk).and_then(|mut manifest| {
        // Recovery has synced what it found.
        manifest.write(disk, found)?;
        Ok(manifest)
    });
    made.map_err(|error| failed(disk, manifest::NAME, error))
}

fn replay<C: Codec>(
    state: &mut State<C::Object>,
    codec: &C,
    payload: &[u8],
) -> Result<Marks, String> {
    let (marks, commits) = record::read_batch(payload).ok_or("malformed batch")?;
    let mut news = Vec::with_capacity(commits.len());
    for commit in commits {
        // The next one, or the first after a jump.
        let follows = commit.revision == state.revision + 1
            || commit.revision > state.revision && commit.revision == marks.floor + 1;
        if !follows {
            return Err(format!(
                "revision {} after {}",
                commit.revision, state.revision
            ));
        }
        let mut changes = Vec::with_capacity(commit.changes.len());
        for change in commit.changes {
            changes.push(match change {
                record::Change::Put {
                    key,
                    expires,
                    value,
                } => {
                    let draft = codec.load(&key, value)?;
                    let fresh = Fresh::new(codec, &key, draft, commit.revision, expires);
                    Some(Write::Put(key, fresh))
                }
                record::Change::Delete { key } => Some(Write::Delete(key)),
            });
        }
        state.apply(
            commit.revision,
            marks.time,
            OneOrMany::from(changes),
            &mut news,
        );
        state.revision = commit.revision;
    }
    state.history.push(news);
    state.history.forget(marks.floor.max(state.history.floor()));
    state.revision = state.revision.max(marks.floor);
    Ok(marks)
}

/// If revisions may have been visible that are not on disk, jumps past all of them and rejects
/// watches from before: no revision is used twice. Every later batch records it, and until there is
/// one the same files lead to the same jump.
pub(super) fn jump<T: Send + Sync + 'static>(state: &mut State<T>, marks: &mut Marks) {
    if marks.high_water <= state.revision {
        return;
    }
    tracing::info!(
        from = state.revision,
        to = marks.high_water,
        "unclean stop: skipping revisions, older watches must relist"
    );
    state.revision = marks.high_water;
    state.history.forget(marks.high_water);
    marks.floor = marks.high_water;
}

fn list(disk: &dyn Disk) -> Result<Vec<String>, Error> {
    disk.list().map_err(|error| failed(disk, "", error))
}

fn failed(disk: &dyn Disk, name: &str, error: std::io::Error) -> Error {
    Error::Unavailable(format!("{}: {error}", disk.path(name).display()))
}
