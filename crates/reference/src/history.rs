//! What many clients asked at once, what each heard and when; and the check that there is one order of all
//! writes that explains every answer. Pure: the store's tests and the end-to-end stories record histories, each in
//! their own way.

use std::collections::BTreeMap;

/// A place in the one order of writes.
pub type Revision = u64;

/// One question with its answer; the moments are places in one order of all moments.
#[derive(Debug)]
pub struct Call {
    pub key: String,
    pub asked: u64,
    pub heard: u64,
    pub answer: Answer,
}

/// What came back.
#[derive(Debug)]
pub enum Answer {
    /// A read: the moment, and what stood there.
    Read(Revision, Option<(Revision, String)>),
    /// An accepted write; no value for a delete.
    Wrote(Revision, Option<String>),
    /// A refused write: what stood in the way, where that is known.
    Refused(Option<Revision>),
    /// It is unknown whether it was done.
    Lost,
}

/// A change as a watcher saw it; no value for a delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub revision: Revision,
    pub key: String,
    pub value: Option<String>,
}

/// The values of one key by the revisions that wrote them.
pub type Timeline<'a> = BTreeMap<Revision, Option<&'a String>>;

/// What a watcher saw, by key. Panics when it saw changes twice or out of order.
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

/// A watcher's record is one order of all writes: panics when it does not explain every answer.
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

/// What was heard before a question was asked is not newer than its answer.
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
        // Asked now: the answer must not be older than what another client has already heard.
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
