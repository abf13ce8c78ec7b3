//! What a migration needs next, from its conditions and those of the other migrations of its resource.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::storagemigration::v1beta1::StorageVersionMigration as Migration;

pub(super) const RUNNING: &str = "Running";
pub(super) const SUCCEEDED: &str = "Succeeded";
pub(super) const FAILED: &str = "Failed";

/// The next step of a migration.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It has ended, or waits for another migration of the resource.
    Nothing,
    /// It becomes the one that runs.
    Begin,
    /// It runs.
    Migrate,
    /// It has an outcome: it no longer runs.
    Finish { succeeded: bool },
}

/// The next step of a migration; `all` are those of its resource.
pub(super) fn next_step(migration: &Migration, all: &[Arc<Migration>]) -> Step {
    let outcome = outcome(migration);
    match (has(migration, RUNNING), outcome) {
        (true, Some(succeeded)) => Step::Finish { succeeded },
        (true, None) => Step::Migrate,
        (false, Some(_)) => Step::Nothing,
        (false, None) => {
            let is_before = |other: &Migration| order(other) < order(migration);
            let waits = all.iter().any(|other| match outcome_of(other) {
                Outcome::Running => true,
                Outcome::Waiting => is_before(other),
                Outcome::Ended => false,
            });
            if waits { Step::Nothing } else { Step::Begin }
        }
    }
}

enum Outcome {
    Running,
    Waiting,
    Ended,
}

fn outcome_of(migration: &Migration) -> Outcome {
    match (outcome(migration), has(migration, RUNNING)) {
        (Some(_), _) => Outcome::Ended,
        (None, true) => Outcome::Running,
        (None, false) => Outcome::Waiting,
    }
}

/// Whether it succeeded; `None` if it has not ended.
fn outcome(migration: &Migration) -> Option<bool> {
    let (succeeded, failed) = (has(migration, SUCCEEDED), has(migration, FAILED));
    (succeeded || failed).then_some(succeeded)
}

fn has(migration: &Migration, kind: &str) -> bool {
    let conditions = migration
        .status
        .iter()
        .flat_map(|status| &status.conditions);
    let mut conditions = conditions.flatten();
    conditions.any(|condition| condition.type_ == kind && condition.status == "True")
}

/// Migrations begin in the order of their creation.
fn order(migration: &Migration) -> (Option<Timestamp>, &str) {
    let meta = &migration.metadata;
    let created = meta.creation_timestamp.as_ref().map(|time| time.0);
    (created, meta.name.as_deref().unwrap_or_default())
}

/// Group and plural of the migrated resource.
pub(super) fn resource_of(migration: &Migration) -> (&str, &str) {
    let resource = migration.spec.as_ref().map(|spec| &spec.resource);
    resource.map_or(("", ""), |of| (&of.group, &of.resource))
}

/// The resource version up to which objects are migrated, if it is known.
pub(super) fn resource_version(migration: &Migration) -> Option<&str> {
    let known = migration.status.as_ref()?.resource_version.as_deref();
    known.filter(|version| !version.is_empty())
}

/// Whether it was created less than this long ago.
pub(super) fn is_younger(migration: &Migration, age: Duration, now: Timestamp) -> bool {
    let created = migration.metadata.creation_timestamp.as_ref();
    created.is_some_and(|created| created.0 + age > now)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

    use super::*;
    use crate::pods::samples::at;

    fn migration(name: &str, created: i64, conditions: &[(&str, &str)]) -> Arc<Migration> {
        let mut migration = Migration::default();
        migration.metadata.name = Some(name.to_owned());
        migration.metadata.creation_timestamp = Some(Time(at(created)));
        let conditions = conditions.iter().map(|(kind, status)| Condition {
            type_: (*kind).to_owned(),
            status: (*status).to_owned(),
            reason: "R".to_owned(),
            message: String::new(),
            last_transition_time: Time(at(created)),
            observed_generation: None,
        });
        migration.status.get_or_insert_default().conditions = Some(conditions.collect());
        Arc::new(migration)
    }

    #[test]
    fn a_migration_begins_runs_and_finishes() {
        let finish = |succeeded| Step::Finish { succeeded };
        let cases: [(&[(&str, &str)], Step); 6] = [
            (&[], Step::Begin),
            (&[(RUNNING, "True")], Step::Migrate),
            (&[(RUNNING, "True"), (SUCCEEDED, "True")], finish(true)),
            (&[(RUNNING, "True"), (FAILED, "True")], finish(false)),
            (&[(RUNNING, "False"), (SUCCEEDED, "True")], Step::Nothing),
            (&[(FAILED, "True")], Step::Nothing),
        ];
        for (conditions, expected) in cases {
            let one = migration("one", 0, conditions);
            assert_eq!(
                next_step(&one, std::slice::from_ref(&one)),
                expected,
                "{conditions:?}"
            );
        }
    }

    #[test]
    fn one_migration_of_a_resource_runs_at_a_time_the_oldest_first() {
        let (a, b) = (migration("a", 5, &[]), migration("b", 4, &[]));
        let both = [a.clone(), b.clone()];
        assert_eq!(next_step(&a, &both), Step::Nothing);
        assert_eq!(next_step(&b, &both), Step::Begin);
        let running = migration("c", 9, &[(RUNNING, "True")]);
        assert_eq!(next_step(&b, &[b.clone(), running]), Step::Nothing);
        let ended = migration("d", 1, &[(RUNNING, "True"), (FAILED, "True")]);
        assert_eq!(next_step(&b, &[b.clone(), ended]), Step::Begin);
        // Migrations created in the same second begin in the order of their names.
        let (x, y) = (migration("x", 7, &[]), migration("y", 7, &[]));
        assert_eq!(next_step(&x, &[y.clone(), x.clone()]), Step::Begin);
        assert_eq!(next_step(&y, &[x, y.clone()]), Step::Nothing);
    }

    #[test]
    fn a_resource_may_be_unknown_for_a_while() {
        let one = migration("one", 100, &[]);
        let grace = Duration::from_secs(60);
        assert!(is_younger(&one, grace, at(159)));
        assert!(!is_younger(&one, grace, at(160)));
    }
}
