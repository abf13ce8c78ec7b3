//! Migrates a store into etcd and out of it. A record beside the objects has the state of the
//! migration: neither while objects are being copied nor after they were moved away can this etcd
//! be served from. Every step has the precondition that the record is unchanged, so that two
//! migrations cannot interleave; an interrupted one is started over.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use futures::{StreamExt, TryStreamExt, stream};
use stdx::Clock;

use super::{
    Config,
    client::{Client, Effect},
    connect,
    members::Members,
    mirror::{non_empty, saved},
    proto::etcdserverpb::{
        Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
        compare::{CompareResult, CompareTarget, TargetUnion},
        request_op::Request,
    },
    records,
    revisions::{self, Revisions},
};
use crate::{
    Error, Key, Plain, Revision,
    embedded::{self, Embedded},
    memory::{Millis, Saved, prefix_end},
};

/// The key of the record, and the prefix of the parts of the revision table.
const RECORD: &str = "migration";
const TABLE: &str = "revisions/";
const VERSION: &str = "mainstay-migration-1";
/// Pairs per part of the table: half a megabyte.
const PART: usize = 32 << 10;
/// Concurrent transactions.
const PARALLEL: usize = 32;
/// Keys per page.
const PAGE: i64 = 500;
/// Leases expire at full minutes: a lease costs etcd much more than a key.
const LEASE_STEP: i64 = 60;

/// The result of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// The number of objects.
    pub objects: u64,
    /// The newest revision; the next one is larger.
    pub revision: Revision,
}

/// The state of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Copying,
    Complete,
    Left,
}

/// The contents of the record.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    stage: Stage,
    /// The cluster that owns the objects; without spaces.
    cluster: String,
    moved: Moved,
    /// etcd's revision when everything was copied.
    last: i64,
    /// The number of parts of the table.
    parts: usize,
}

impl Record {
    fn has_left(&self, cluster: &str) -> bool {
        self.stage == Stage::Left && self.cluster == cluster
    }

    fn encode(&self) -> String {
        let stage = match self.stage {
            Stage::Copying => "copying",
            Stage::Complete => "complete",
            Stage::Left => "left",
        };
        let Moved { objects, revision } = self.moved;
        let (cluster, last, parts) = (&self.cluster, self.last, self.parts);
        format!("{VERSION} {stage} {cluster} {objects} {revision} {last} {parts}")
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let words: Vec<&str> = text.split(' ').collect();
        let [VERSION, stage, cluster, objects, revision, last, parts] = words[..] else {
            return None;
        };
        let stage = match stage {
            "copying" => Stage::Copying,
            "complete" => Stage::Complete,
            "left" => Stage::Left,
            _ => return None,
        };
        Some(Self {
            stage,
            cluster: cluster.to_owned(),
            moved: Moved {
                objects: objects.parse().ok()?,
                revision: revision.parse().ok()?,
            },
            last: last.parse().ok()?,
            parts: parts.parse().ok()?,
        })
    }
}

/// The record and its revision in etcd, 0 if there is none.
async fn read_record(client: &Client) -> Result<(Option<Record>, i64), Error> {
    let request = RangeRequest {
        key: records::key(RECORD),
        ..RangeRequest::default()
    };
    let Some(kv) = client.range(request).await?.kvs.into_iter().next() else {
        return Ok((None, 0));
    };
    let record = Record::decode(&kv.value).ok_or_else(|| {
        Error::Invalid("etcd's record of a migration is of another version of mainstay".into())
    })?;
    Ok((Some(record), kv.mod_revision))
}

/// What a server must know of a migration.
pub(super) struct Origin {
    /// The cluster of the objects, if they were migrated from an embedded store.
    pub cluster: Option<String>,
    pub revisions: Revisions,
    /// Holds while the objects are not moved away. A precondition of every commit: a server that was unreachable during a
    /// migration must not accept writes that no server reads.
    pub guard: Compare,
}

/// Fails if objects are being copied, or were moved away.
pub(super) async fn origin(client: &Client) -> Result<Origin, Error> {
    let (record, _) = read_record(client).await?;
    let Some(record) = record else {
        return Ok(Origin {
            cluster: None,
            revisions: Revisions::default(),
            guard: guard(CompareTarget::Create, TargetUnion::CreateRevision(0)),
        });
    };
    let content = TargetUnion::Value(record.encode().into());
    match record.stage {
        Stage::Copying => Err(Error::Invalid(
            "objects are being moved to this etcd, or that was interrupted: run `mainstay migrate --to-etcd` \
             to its end first"
                .into(),
        )),
        Stage::Left => Err(Error::Invalid(
            "the objects of this etcd were moved to an embedded store: start with --store embedded".into(),
        )),
        Stage::Complete => {
            let revisions = read_table(client, &record).await?;
            Ok(Origin {
                cluster: Some(record.cluster),
                revisions,
                guard: guard(CompareTarget::Value, content),
            })
        }
    }
}

/// By content, not by revision: revisions are translated.
fn guard(target: CompareTarget, union: TargetUnion) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key: records::key(RECORD),
        target_union: Some(union),
        ..Compare::default()
    }
}

async fn read_table(client: &Client, record: &Record) -> Result<Revisions, Error> {
    let mut pairs = Vec::new();
    for part in 0..record.parts {
        let request = RangeRequest {
            key: part_key(part),
            ..RangeRequest::default()
        };
        let found = client.range(request).await?.kvs.into_iter().next();
        let decoded = found.and_then(|kv| revisions::decode(&kv.value));
        let missing = || Error::Corrupt(format!("part {part} of etcd's table of revisions"));
        pairs.extend(decoded.ok_or_else(missing)?);
    }
    let newest = record.moved.revision as i64;
    Ok(Revisions::new(pairs, record.last, newest))
}

fn part_key(part: usize) -> Key {
    records::key(&format!("{TABLE}{part:06}"))
}

fn put(key: Key, value: impl Into<Key>, lease: i64) -> RequestOp {
    RequestOp {
        request: Some(Request::RequestPut(PutRequest {
            key,
            value: value.into(),
            lease,
            ..PutRequest::default()
        })),
    }
}

/// Holds while the record has etcd's revision `at`; 0 if there is none.
fn unchanged(at: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: records::key(RECORD),
        target_union: Some(TargetUnion::ModRevision(at)),
        ..Compare::default()
    }
}

/// Runs a transaction; returns etcd's revision, or `None` if a precondition failed.
async fn transact(
    client: &Client,
    compare: Vec<Compare>,
    success: Vec<RequestOp>,
) -> Result<Option<i64>, Error> {
    let request = TxnRequest {
        compare,
        success,
        failure: Vec::new(),
    };
    let answer = client.transact(request, Effect::Repeatable).await?;
    let revision = answer.header.map_or(0, |header| header.revision);
    Ok(answer.succeeded.then_some(revision))
}

fn interrupted() -> Error {
    Error::Invalid("another migration of this etcd is under way".into())
}

async fn connect(config: &Config) -> Result<Client, Error> {
    let members = connect::members(&config.endpoints, config.tls.as_ref())?;
    let client = Client::new(Members::new(members), Arc::default());
    config.first_answer(&client).await?;
    Ok(client)
}

/// Copies the embedded store in a directory, which no other process uses, into an etcd without our
/// objects. `cluster` owns the objects. Nothing is served from that etcd before everything is
/// copied. An interrupted migration is started over. A complete one is not repeated, unless the
/// store was written to since; then it is refused if that etcd was served from, too.
pub async fn embedded_to_etcd(
    directory: &Path,
    config: &Config,
    cluster: &str,
) -> Result<Moved, Error> {
    let client = connect(config).await?;
    let (record, at) = read_record(&client).await?;
    let store = Embedded::open(directory, Plain)?;
    let (revision, objects) = store.content();
    store.close();
    match record.filter(|record| record.cluster == cluster) {
        Some(record) if record.stage == Stage::Complete => {
            if record.moved.revision == revision {
                return Ok(record.moved);
            }
            refuse_served(&client, record.moved.revision, revision).await?;
        }
        Some(record) if record.stage == Stage::Copying => {}
        _ => refuse_content(&client, config).await?,
    }
    let mut copied = Record {
        stage: Stage::Copying,
        cluster: cluster.to_owned(),
        moved: Moved {
            objects: objects.len() as u64,
            revision,
        },
        last: 0,
        parts: 0,
    };
    let at = begin(&client, config, &copied, at).await?;
    let pairs = copy(&client, config, objects, at).await?;
    copied.last = at;
    for (part, pairs) in pairs.chunks(PART).enumerate() {
        let success = vec![put(part_key(part), revisions::encode(pairs), 0)];
        let written = transact(&client, vec![unchanged(at)], success).await?;
        copied.last = written.ok_or_else(interrupted)?;
        copied.parts += 1;
    }
    copied.stage = Stage::Complete;
    let success = vec![put(records::key(RECORD), copied.encode(), 0)];
    let written = transact(&client, vec![unchanged(at)], success).await?;
    written.ok_or_else(interrupted)?;
    Ok(copied.moved)
}

/// Rejects an etcd with objects, or records of a server.
async fn refuse_content(client: &Client, config: &Config) -> Result<(), Error> {
    for prefix in [&config.root, &records::key("")] {
        let request = RangeRequest {
            key: non_empty(prefix),
            range_end: prefix_end(prefix).unwrap_or_else(|| Key::from_static(&[0])),
            count_only: true,
            ..RangeRequest::default()
        };
        let count = client.range(request).await?.count;
        if count > 0 {
            let prefix = String::from_utf8_lossy(prefix);
            return Err(Error::Invalid(format!(
                "etcd is not empty: it holds {count} keys under {prefix}"
            )));
        }
    }
    Ok(())
}

/// Rejects an etcd that a server has started on since the migration: only servers write other
/// records.
async fn refuse_served(client: &Client, moved: Revision, revision: Revision) -> Result<(), Error> {
    let prefix = records::key("");
    let request = RangeRequest {
        range_end: prefix_end(&prefix).unwrap_or_else(|| Key::from_static(&[0])),
        key: prefix,
        keys_only: true,
        ..RangeRequest::default()
    };
    let is_ours = |key: &Key| *key == records::key(RECORD) || key.starts_with(&records::key(TABLE));
    let kvs = client.range(request).await?.kvs;
    match kvs.iter().all(|kv| is_ours(&kv.key)) {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "the cluster was moved to this etcd at revision {moved} and served from it, but the embedded store \
             was written to since, up to revision {revision}"
        ))),
    }
}

/// Writes the record, and removes what an interrupted migration left. Returns etcd's revision of
/// the record.
async fn begin(client: &Client, config: &Config, record: &Record, at: i64) -> Result<i64, Error> {
    let remove = |prefix: &Key| RequestOp {
        request: Some(Request::RequestDeleteRange(DeleteRangeRequest {
            key: non_empty(prefix),
            range_end: prefix_end(prefix).unwrap_or_else(|| Key::from_static(&[0])),
            prev_kv: false,
        })),
    };
    let success = vec![
        remove(&config.root),
        remove(&records::key(TABLE)),
        put(records::key(RECORD), record.encode(), 0),
    ];
    let written = transact(client, vec![unchanged(at)], success).await?;
    written.ok_or_else(interrupted)
}

/// Writes the objects; objects of one revision stay in one transaction. Returns pairs of etcd's
/// revision and the store's.
async fn copy(
    client: &Client,
    config: &Config,
    objects: Vec<Saved>,
    at: i64,
) -> Result<Vec<(i64, i64)>, Error> {
    let now = config.clock.now().as_millisecond();
    let mut leases = BTreeMap::new();
    let mut commits: BTreeMap<Revision, Vec<RequestOp>> = BTreeMap::new();
    for saved in objects {
        let lease = match seconds_left(saved.expires, now) {
            Left::Forever => 0,
            Left::Over => continue,
            Left::Seconds(seconds) => match leases.get(&seconds) {
                Some(lease) => *lease,
                None => {
                    let lease = client.grant(seconds).await?;
                    leases.insert(seconds, lease);
                    lease
                }
            },
        };
        let commit = commits.entry(saved.mod_revision).or_default();
        commit.push(put(saved.key, saved.value, lease));
    }
    let commits = stream::iter(commits).map(|(revision, commit)| async move {
        let written = transact(client, vec![unchanged(at)], commit).await?;
        Ok::<_, Error>((written.ok_or_else(interrupted)?, revision as i64))
    });
    commits.buffer_unordered(PARALLEL).try_collect().await
}

#[derive(Debug, PartialEq, Eq)]
enum Left {
    Forever,
    Over,
    /// At least this many.
    Seconds(i64),
}

fn seconds_left(expires: Millis, now: Millis) -> Left {
    match expires {
        0 => Left::Forever,
        past if past <= now => Left::Over,
        later => {
            let steps = (later - now + LEASE_STEP * 1000 - 1) / (LEASE_STEP * 1000);
            Left::Seconds(steps * LEASE_STEP)
        }
    }
}

/// Sees each migrated object, and may reject the migration.
pub(super) type ObjectCheck<'a> = dyn Fn(&Key, &[u8]) -> Result<(), String> + 'a;

/// Copies the objects in etcd into a new embedded store in `directory`, and records that they were
/// moved away. `look` sees every object and may reject the migration. An interruption after that
/// record counts as complete; a copy from before it is replaced. A copy of objects that are still
/// in etcd is removed, unless etcd did not answer: it may have the record.
pub async fn etcd_to_embedded(
    config: &Config,
    directory: &Path,
    cluster: &str,
    look: &ObjectCheck<'_>,
) -> Result<Moved, Error> {
    let mut client = connect(config).await?;
    let (record, _) = read_record(&client).await?;
    let has_earlier_copy = embedded::holds_store(directory)?;
    if let Some(record) = record.filter(|record| record.has_left(cluster))
        && has_earlier_copy
    {
        return result(directory, &record);
    }
    let Origin { revisions, .. } = origin(&client).await?;
    client.set_revisions(Arc::new(revisions));
    let (_, at) = read_record(&client).await?;
    let (revision, objects) = read_all(&client, config).await?;
    for object in &objects {
        look(&object.key, &object.value).map_err(Error::Invalid)?;
    }
    let moved = Moved {
        objects: objects.len() as u64,
        revision,
    };
    if has_earlier_copy {
        remove(directory)?;
    }
    embedded::create(directory, revision, objects)?;
    let left = Record {
        stage: Stage::Left,
        cluster: cluster.to_owned(),
        moved,
        last: 0,
        parts: 0,
    };
    // Objects written meanwhile are not in the copy.
    let unwritten = Compare {
        result: CompareResult::Less.into(),
        target: CompareTarget::Mod.into(),
        key: non_empty(&config.root),
        range_end: prefix_end(&config.root).unwrap_or_else(|| Key::from_static(&[0])),
        target_union: Some(TargetUnion::ModRevision(revision as i64 + 1)),
    };
    let success = vec![put(records::key(RECORD), left.encode(), 0)];
    let written = transact(&client, vec![unchanged(at), unwritten], success).await?;
    if written.is_some() || (has_earlier_copy && replace_left(&client, &left).await?) {
        return Ok(moved);
    }
    remove(directory)?;
    Err(Error::Invalid(
        "objects were changed while they were copied: stop all servers of the cluster first".into(),
    ))
}

/// Replaces the record of an earlier run, whose write etcd had not answered and applied since; that
/// write had the precondition that no object had changed. Returns whether there was one.
async fn replace_left(client: &Client, left: &Record) -> Result<bool, Error> {
    let (record, at) = read_record(client).await?;
    if !record.is_some_and(|record| record.has_left(&left.cluster)) {
        return Ok(false);
    }
    // With the revision of this copy, so that an interruption from here on finds it complete.
    let success = vec![put(records::key(RECORD), left.encode(), 0)];
    let written = transact(client, vec![unchanged(at)], success).await?;
    written.map(|_| true).ok_or_else(interrupted)
}

/// The result of a migration of which `directory` holds the copy.
fn result(directory: &Path, record: &Record) -> Result<Moved, Error> {
    let (expected, found) = (record.moved.revision, newest_revision(directory)?);
    if found == expected {
        return Ok(record.moved);
    }
    Err(Error::Invalid(format!(
        "the objects of this etcd were moved to an embedded store at revision {expected}, but {} holds revision \
         {found}: it is the copy of another migration",
        directory.display()
    )))
}

/// The newest revision of an embedded store that no other process uses.
fn newest_revision(directory: &Path) -> Result<Revision, Error> {
    let store = Embedded::open(directory, Plain)?;
    let (revision, _) = store.content();
    store.close();
    Ok(revision)
}

fn remove(directory: &Path) -> Result<(), Error> {
    std::fs::remove_dir_all(directory)
        .map_err(|error| Error::Unavailable(format!("{}: {error}", directory.display())))
}

/// The migration of which an embedded store is the unchanged result, if the objects of this etcd
/// were moved to it.
pub async fn moved_to(
    config: &Config,
    directory: &Path,
    cluster: &str,
) -> Result<Option<Moved>, Error> {
    let (record, _) = read_record(&connect(config).await?).await?;
    let Some(record) = record.filter(|record| record.has_left(cluster)) else {
        return Ok(None);
    };
    let is_unchanged = newest_revision(directory)? == record.moved.revision;
    Ok(is_unchanged.then_some(record.moved))
}

/// Everything under the root at one revision, in key order.
async fn read_all(client: &Client, config: &Config) -> Result<(Revision, Vec<Saved>), Error> {
    let (mut objects, mut leases) = (Vec::new(), BTreeMap::new());
    let mut request = RangeRequest {
        key: non_empty(&config.root),
        range_end: prefix_end(&config.root).unwrap_or_else(|| Key::from_static(&[0])),
        limit: PAGE,
        ..RangeRequest::default()
    };
    loop {
        let page = client.range(request.clone()).await?;
        if request.revision == 0 {
            request.revision = page.header.map_or(0, |header| header.revision);
        }
        let last = page.kvs.last().map(|kv| kv.key.clone());
        for kv in page.kvs {
            let lease = kv.lease;
            let mut object = saved(kv);
            if lease != 0 {
                let expires = match leases.get(&lease) {
                    Some(expires) => *expires,
                    None => expiry(client, &*config.clock, lease).await?,
                };
                leases.insert(lease, expires);
                object.expires = match expires {
                    None => continue,
                    Some(expires) => expires,
                };
            }
            objects.push(object);
        }
        match last {
            Some(key) if page.more => request.key = [&key[..], &[0]].concat().into(),
            _ => return Ok((request.revision as Revision, objects)),
        }
    }
}

/// When keys with a lease expire; `None` if they already have.
async fn expiry(client: &Client, clock: &dyn Clock, lease: i64) -> Result<Option<Millis>, Error> {
    let seconds = client.seconds_left(lease).await?;
    let now = clock.now().as_millisecond();
    Ok((seconds >= 0).then_some(now + seconds.max(1) * 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_migration_record_round_trips() {
        for stage in [Stage::Copying, Stage::Complete, Stage::Left] {
            let record = Record {
                stage,
                cluster: "sha256:ab".into(),
                moved: Moved {
                    objects: 3,
                    revision: 1_000_000_007,
                },
                last: 12,
                parts: 1,
            };
            let encoded = record.encode();
            assert_eq!(Record::decode(encoded.as_bytes()), Some(record));
            assert_eq!(
                Record::decode(encoded.replace("-1 ", "-2 ").as_bytes()),
                None
            );
        }
    }

    #[test]
    fn keys_that_expire_live_at_least_as_long_as_before() {
        assert_eq!(seconds_left(0, 5_000), Left::Forever);
        assert_eq!(seconds_left(5_000, 5_000), Left::Over);
        assert_eq!(seconds_left(5_001, 5_000), Left::Seconds(60));
        assert_eq!(seconds_left(65_000, 5_000), Left::Seconds(60));
        assert_eq!(seconds_left(65_001, 5_000), Left::Seconds(120));
    }
}
