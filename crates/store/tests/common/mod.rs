//! Shared by the test programs of this crate.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(dead_code, reason = "each test program uses its own part")]

pub(crate) mod conformance;
pub(crate) mod disk;
pub(crate) mod etcd;
pub(crate) mod history;
pub(crate) mod model;

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use store::{
    Action, Committed, Durability, Error, Event, Freshness, ListRequest, Op, Plain, Precondition,
    Revision, Store, Watch, WatchItem,
};

pub(crate) type Dyn = dyn Store<Plain>;

/// The timeout of waits in tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// How many rounds random suites run: few in `make test`, many in `make soak`.
pub(crate) fn rounds() -> u64 {
    let count = std::env::var("STORE_ROUNDS").ok();
    let count = count.and_then(|count| count.parse().ok());
    let soak = std::env::var_os("MAINSTAY_SOAK").is_some();
    count.unwrap_or(if soak { 200 } else { 20 })
}

/// The offsets of the frames of a log file, without checking checksums.
pub(crate) fn frames(file: &[u8]) -> Vec<(usize, usize)> {
    let word = |at: usize| {
        let bytes = file.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let block = word(24).unwrap_or(8).max(8);
    let (mut offset, mut found) = (32_usize.next_multiple_of(block), Vec::new());
    while let (Some(0x6d73_6601), Some(length)) = (word(offset), word(offset + 4)) {
        let end = offset + 24 + length;
        found.push((offset, end.min(file.len())));
        offset = end.next_multiple_of(block);
    }
    found
}

/// The end of the last frame.
pub(crate) fn frames_end(file: &[u8]) -> usize {
    frames(file).last().map_or(32, |(_, end)| *end)
}

pub(crate) fn put_if(key: &str, value: &str, precondition: Precondition) -> Op<Bytes> {
    let draft = Bytes::copy_from_slice(value.as_bytes());
    Op {
        key: Bytes::copy_from_slice(key.as_bytes()),
        precondition,
        action: Action::Put {
            draft,
            expires_in: None,
        },
    }
}

pub(crate) fn put(key: &str, value: &str) -> Op<Bytes> {
    put_if(key, value, Precondition::Any)
}

pub(crate) fn delete_if(key: &str, precondition: Precondition) -> Op<Bytes> {
    Op {
        key: Bytes::copy_from_slice(key.as_bytes()),
        precondition,
        action: Action::Delete,
    }
}

pub(crate) fn delete(key: &str) -> Op<Bytes> {
    delete_if(key, Precondition::Any)
}

pub(crate) fn check_if(key: &str, precondition: Precondition) -> Op<Bytes> {
    Op {
        key: Bytes::copy_from_slice(key.as_bytes()),
        precondition,
        action: Action::Check,
    }
}

pub(crate) async fn commit(store: &Dyn, ops: Vec<Op<Bytes>>) -> Result<Committed<Bytes>, Error> {
    store.commit(ops, Durability::Synced).await
}

pub(crate) async fn write(store: &Dyn, key: &str, value: &str) -> Revision {
    commit(store, vec![put(key, value)])
        .await
        .expect("an unconditional put")
        .revision
}

pub(crate) async fn value(store: &Dyn, key: &str) -> Option<String> {
    let key = Bytes::copy_from_slice(key.as_bytes());
    let (_, entry) = store.get(&key, Freshness::Newest).await.expect("get");
    entry.map(|entry| String::from_utf8_lossy(&entry.object).into_owned())
}

pub(crate) fn list_request(prefix: &str) -> ListRequest {
    ListRequest {
        prefix: Bytes::copy_from_slice(prefix.as_bytes()),
        from: None,
        limit: None,
        freshness: Freshness::Newest,
        skip_unreadable: false,
    }
}

/// The next events of a watch, without progress notifications.
pub(crate) async fn next_events(watch: &mut Watch<Bytes>) -> (Revision, Vec<Event<Bytes>>) {
    loop {
        match next(watch).await.expect("events") {
            WatchItem::Events { revision, events } => return (revision, events.to_vec()),
            WatchItem::Progress(_) => {}
        }
    }
}

pub(crate) async fn next(watch: &mut Watch<Bytes>) -> Result<WatchItem<Bytes>, Error> {
    tokio::time::timeout(PATIENCE, watch.next())
        .await
        .expect("in time")
        .expect("not ended")
}

/// `+key=value`, `~key=old>new`, `-key=old`.
pub(crate) fn shown(events: &[Event<Bytes>]) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let show = |event: &Event<Bytes>| {
        let key = text(&event.key);
        match (&event.previous, &event.current) {
            (None, Some(new)) => format!("+{key}={}", text(&new.object)),
            (Some(old), Some(new)) => format!("~{key}={}>{}", text(&old.object), text(&new.object)),
            (Some(old), None) => format!("-{key}={}", text(&old.object)),
            (None, None) => panic!("an event about nothing"),
        }
    };
    events.iter().map(show).collect()
}
