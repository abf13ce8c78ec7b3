//! The simplest possible store: everything ever written, in a vector. Backends are compared with
//! it, operation by operation.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::{prelude::*, sample::Index};
use store::{Committed, Error, Freshness, ListRequest, Op, Precondition, Revision};

use super::*;

/// One step of a random run.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Commit(Vec<ModelOp>),
    Get(u8, When),
    List {
        prefix: u8,
        from: Option<u8>,
        limit: Option<u8>,
        when: When,
    },
    Compact(Index),
    /// Only for backends that can be closed.
    Reopen,
    Snapshot,
}

#[derive(Debug, Clone)]
pub(crate) struct ModelOp {
    key: u8,
    precondition: When,
    kind: u8,
}

/// A past revision, or the newest.
#[derive(Debug, Clone)]
pub(crate) enum When {
    Newest,
    Any,
    Absent,
    Exists,
    Past(Index),
    Current,
}

pub(crate) fn steps(length: usize) -> impl Strategy<Value = Vec<Step>> {
    let op = (0..6_u8, precondition(), 0..10_u8).prop_map(|(key, precondition, kind)| ModelOp {
        key,
        precondition,
        kind,
    });
    let when = prop_oneof![Just(When::Newest), any::<Index>().prop_map(When::Past)];
    let limited = (
        0..3_u8,
        proptest::option::of(0..6_u8),
        proptest::option::of(0..4_u8),
        when.clone(),
    );
    let step = prop_oneof![
        8 => proptest::collection::vec(op, 1..4).prop_map(Step::Commit),
        2 => (0..6_u8, when).prop_map(|(key, when)| Step::Get(key, when)),
        3 => limited.prop_map(|(prefix, from, limit, when)| Step::List { prefix, from, limit, when }),
        1 => any::<Index>().prop_map(Step::Compact),
        1 => Just(Step::Reopen),
        1 => Just(Step::Snapshot),
    ];
    proptest::collection::vec(step, 1..length)
}

fn precondition() -> impl Strategy<Value = When> {
    prop_oneof![
        6 => Just(When::Any),
        1 => Just(When::Absent),
        1 => Just(When::Exists),
        3 => Just(When::Current),
        1 => any::<Index>().prop_map(When::Past),
    ]
}

type Live = BTreeMap<String, (Revision, Revision, String)>;

/// The model.
pub(crate) struct Model {
    root: String,
    base: Revision,
    /// The live keys after each revision from `base` on: create revision, mod revision, value.
    moments: Vec<Live>,
    floor: Revision,
    counter: u32,
}

impl Model {
    /// The model of a store without keys under `root` at revision `base`.
    pub(crate) fn new(root: &str, base: Revision) -> Self {
        let moments = vec![Live::new()];
        Self {
            root: root.into(),
            base,
            moments,
            floor: base,
            counter: 0,
        }
    }

    fn newest(&self) -> Revision {
        self.base + self.moments.len() as u64 - 1
    }

    fn at(&self, revision: Revision) -> &Live {
        &self.moments[(revision - self.base) as usize]
    }

    fn past(&self, index: &Index) -> Revision {
        self.base + index.index(self.moments.len()) as u64
    }

    fn key(&self, key: u8) -> String {
        // Some keys are prefixes of others.
        format!(
            "{}{}",
            self.root,
            ["a", "a/b", "a/c", "b", "b/b", "c"][key as usize]
        )
    }

    fn freshness(&self, when: &When) -> Freshness {
        match when {
            When::Past(index) => Freshness::Exactly(self.past(index)),
            _ => Freshness::Newest,
        }
    }

    /// A reopened store may have less history: as much as it reports.
    pub(crate) async fn forget_before(&mut self, store: &Dyn) {
        let asked = store.watch(self.root.clone().into(), self.floor).await;
        if let Err(Error::Compacted { oldest, .. }) = asked {
            assert!(oldest <= self.newest());
            self.floor = self.floor.max(oldest);
        }
    }

    /// Runs the step on both and compares. Steps about files are left to the caller.
    pub(crate) async fn step(&mut self, store: &Dyn, step: &Step) {
        match step {
            Step::Commit(ops) => self.commit(store, ops).await,
            Step::Get(key, when) => {
                let key = self.key(*key);
                let found = store
                    .get(&Bytes::from(key.clone()), self.freshness(when))
                    .await;
                let found = found.map(|(revision, entry)| (revision, entry.map(flat)));
                let expected = self.moment(when).map(|revision| {
                    let live = self.at(revision).get(&key);
                    (revision, live.map(|live| (key.clone(), live.clone())))
                });
                assert_eq!(plain(found), plain(expected));
            }
            Step::List {
                prefix,
                from,
                limit,
                when,
            } => {
                self.list(store, *prefix, *from, *limit, when).await;
            }
            Step::Compact(index) => {
                let revision = self.past(index).max(self.floor);
                store.compact(revision).await.unwrap();
                self.floor = revision;
            }
            Step::Reopen | Step::Snapshot => {}
        }
    }

    /// The revision that a read shows.
    fn moment(&self, when: &When) -> Result<Revision, Error> {
        let newest = self.newest();
        match self.freshness(when) {
            Freshness::Exactly(requested) if requested < self.floor => Err(Error::Compacted {
                requested,
                oldest: self.floor,
            }),
            Freshness::Exactly(requested) => Ok(requested),
            _ => Ok(newest),
        }
    }

    async fn list(
        &self,
        store: &Dyn,
        prefix: u8,
        from: Option<u8>,
        limit: Option<u8>,
        when: &When,
    ) {
        let prefix = format!("{}{}", self.root, ["", "a", "b/"][prefix as usize]);
        let from = from.map(|from| self.key(from));
        let request = ListRequest {
            prefix: prefix.clone().into(),
            from: from.clone().map(Bytes::from),
            limit: limit.map(usize::from),
            freshness: self.freshness(when),
            skip_unreadable: false,
        };
        let listed = store.list(request).await;
        let listed = listed.map(|listed| {
            let entries: Vec<_> = listed.entries.into_iter().map(flat).collect();
            (listed.revision, entries, listed.remaining)
        });
        let expected = self.moment(when).map(|revision| {
            let start = from.filter(|from| *from > prefix).unwrap_or(prefix.clone());
            let mut all: Vec<_> = self
                .at(revision)
                .iter()
                .filter(|(key, _)| **key >= start && key.starts_with(&prefix))
                .map(|(key, live)| (key.clone(), live.clone()))
                .collect();
            let rest = all.split_off(all.len().min(limit.map_or(usize::MAX, usize::from)));
            (revision, all, rest.len())
        });
        assert_eq!(plain(listed), plain(expected));
    }

    async fn commit(&mut self, store: &Dyn, model_ops: &[ModelOp]) {
        let mut ops: Vec<Op<Bytes>> = Vec::new();
        for op in model_ops {
            let key = self.key(op.key);
            if ops.iter().any(|other| other.key == key) {
                continue;
            }
            let current = self.at(self.newest()).get(&key).map(|live| live.1);
            let precondition = match &op.precondition {
                When::Absent => Precondition::Absent,
                When::Exists => Precondition::Exists,
                When::Past(index) => Precondition::Revision(self.past(index)),
                When::Current => current.map_or(Precondition::Absent, Precondition::Revision),
                When::Any | When::Newest => Precondition::Any,
            };
            self.counter += 1;
            ops.push(match op.kind {
                0..6 => put_if(&key, &self.counter.to_string(), precondition),
                6..9 => delete_if(&key, precondition),
                _ => check_if(&key, precondition),
            });
        }
        let expected = self.apply(&ops);
        let committed = commit(store, ops).await;
        assert_eq!(plain(committed.map(flat_commit)), plain(expected));
    }

    fn apply(&mut self, ops: &[Op<Bytes>]) -> Result<FlatCommit, Error> {
        let newest = self.newest();
        let mut live = self.at(newest).clone();
        for op in ops {
            let current = live.get(text(&op.key)).map(|live| live.1);
            let holds = match op.precondition {
                Precondition::Any => true,
                Precondition::Absent => current.is_none(),
                Precondition::Exists => current.is_some(),
                Precondition::Revision(revision) => current == Some(revision),
            };
            if !holds {
                return Err(Error::Conflict {
                    key: op.key.clone(),
                    current,
                });
            }
        }
        let (mut entries, mut changed) = (Vec::new(), false);
        for op in ops {
            let key = text(&op.key).to_owned();
            entries.push(match &op.action {
                store::Action::Put { draft, .. } => {
                    let created = live.get(&key).map_or(newest + 1, |live| live.0);
                    let entry = (created, newest + 1, text(draft).to_owned());
                    live.insert(key.clone(), entry.clone());
                    changed = true;
                    Some((key, entry))
                }
                store::Action::Delete => {
                    let gone = live.remove(&key);
                    changed |= gone.is_some();
                    gone.map(|entry| (key, entry))
                }
                store::Action::Check => None,
            });
        }
        if changed {
            self.moments.push(live);
        }
        Ok((self.newest(), entries))
    }

    /// A watch from every kept revision sees exactly the differences between later states.
    pub(crate) async fn compare_watches(&self, store: &Dyn) {
        for after in self.floor..self.newest() {
            let mut watch = store.watch(self.root.clone().into(), after).await.unwrap();
            for revision in after + 1..=self.newest() {
                let (seen, events) = next_events(&mut watch).await;
                assert_eq!(seen, revision);
                let mut found: Vec<_> = events
                    .into_iter()
                    .map(|event| {
                        (
                            text(&event.key).to_owned(),
                            event.previous.map(flat),
                            event.current.map(flat),
                        )
                    })
                    .collect();
                found.sort();
                assert_eq!(found, self.difference(revision));
            }
        }
    }

    fn difference(&self, revision: Revision) -> Vec<(String, Option<Flat>, Option<Flat>)> {
        let (before, now) = (self.at(revision - 1), self.at(revision));
        let mut keys: Vec<_> = before.keys().chain(now.keys()).cloned().collect();
        keys.sort();
        keys.dedup();
        keys.retain(|key| before.get(key) != now.get(key));
        let at =
            |live: &Live, key: &String| live.get(key).map(|entry| (key.clone(), entry.clone()));
        let pairs = keys
            .into_iter()
            .map(|key| (key.clone(), at(before, &key), at(now, &key)));
        pairs.collect()
    }
}

type Flat = (String, (Revision, Revision, String));
type FlatCommit = (Revision, Vec<Option<Flat>>);

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn flat(entry: store::Entry<Bytes>) -> Flat {
    let value = text(&entry.object).to_owned();
    (
        text(&entry.key).to_owned(),
        (entry.create_revision, entry.mod_revision, value),
    )
}

fn flat_commit(committed: Committed<Bytes>) -> FlatCommit {
    (
        committed.revision,
        committed
            .entries
            .into_iter()
            .map(|entry| entry.map(flat))
            .collect(),
    )
}

/// Errors as text, without the oldest revision, which backends may know only roughly.
fn plain<T>(result: Result<T, Error>) -> Result<T, String> {
    result.map_err(|error| match error {
        Error::Compacted { requested, .. } => format!("{requested} is compacted"),
        other => other.to_string(),
    })
}
