//! Histories of concurrent clients: their calls, results and times; and the check that one total
//! order of writes explains every result. Pure: the store's tests and the end-to-end tests record
//! histories in their own ways.

use std::collections::BTreeMap;

/// A position in the total order of writes.
pub type Revision = u64;

/// A call with its result; start and end are positions in one order of all times.
#[derive(Debug)]
pub struct Call {
    pub key: String,
    pub asked: u64,
    pub heard: u64,
    pub answer: Answer,
}

/// The result of a call.
#[derive(Debug)]
pub enum Answer {
    /// A read: its revision, and the value with the revision that wrote it.
    Read(Revision, Option<(Revision, String)>),
    /// An accepted write; no value for a delete.
    Wrote(Revision, Option<String>),
    /// A rejected write: the conflicting revision, if known.
    Refused(Option<Revision>),
    /// It is unknown whether it was applied.
    Lost,
}

/// A change that a watcher saw; no value for a delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub revision: Revision,
    pub key: String,
    pub value: Option<String>,
}

/// The values of one key by the revisions that wrote them.
pub type Timeline<'a> = BTreeMap<Revision, Option<&'a String>>;

/// A watcher's changes by key. Panics if changes were repeated or out of order.
pub fn timelines(seen: &[Change]) -> BTreeMap<&str, Timeline<'_>> {
    let mut timelines: BTreeMap<&str, Timeline<'_>> = BTreeMap::new();
    for change in seen {
        let timeline = timelines.entry(&change.key).or_default();
        let newest = timeline.keys().next_back().copied().unwrap_or(0);
        let at = change.revision;
        assert!(at > newest, "{}: {at} after {newest}", change.key);
        timeline.insert(at, change.value.as_ref());
    }
    timelines
}

/// Checks calls against a watcher's changes, which are the total order of writes: panics if they do
/// not explain every result.
pub fn check(seen: &[Change], calls: &[Call]) {
    let (timelines, empty) = (timelines(seen), Timeline::new());
    for call in calls {
        let timeline = timelines.get(call.key.as_str()).unwrap_or(&empty);
        match &call.answer {
            Answer::Wrote(revision, value) => {
                let found = timeline.get(revision);
                assert_eq!(found, Some(&value.as_ref()), "{} at {revision}", call.key);
            }
            Answer::Read(revision, found) => {
                let expected = timeline.range(..=*revision).next_back();
                let expected =
                    expected.and_then(|(at, value)| value.map(|value| (*at, value.clone())));
                assert_eq!(*found, expected, "{} read at {revision}", call.key);
            }
            Answer::Refused(Some(revision)) => {
                let found = timeline.get(revision);
                assert!(matches!(found, Some(Some(_))), "{} at {revision}", call.key);
            }
            Answer::Refused(None) | Answer::Lost => {}
        }
    }
    check_real_time(calls);
}

/// A call's result must not be older than what was known before it started.
fn check_real_time(calls: &[Call]) {
    let place = |call: &Call| match call.answer {
        Answer::Read(revision, _) => Some((revision, false)),
        Answer::Wrote(revision, _) => Some((revision, true)),
        _ => None,
    };
    let mut moments: Vec<(u64, bool, Revision, bool)> = Vec::new();
    for call in calls {
        let Some((revision, is_write)) = place(call) else {
            continue;
        };
        moments.push((call.asked, false, revision, is_write));
        moments.push((call.heard, true, revision, is_write));
    }
    moments.sort_unstable();
    let mut newest_heard = 0;
    for (moment, is_heard, revision, is_write) in moments {
        if is_heard {
            newest_heard = newest_heard.max(revision);
            continue;
        }
        // The result must not be older than what another client has already received.
        let fresh = match is_write {
            true => revision > newest_heard,
            false => revision >= newest_heard,
        };
        assert!(
            fresh,
            "at moment {moment}: {revision} although {newest_heard} was heard"
        );
    }
}
