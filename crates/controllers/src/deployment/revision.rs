//! Revision numbers of ReplicaSets for history and rollback, and the annotations that a ReplicaSet
//! has for its Deployment. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};

use super::scale;

pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub(super) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub(super) const MAXIMUM: &str = "deployment.kubernetes.io/max-replicas";
/// Annotations of the Deployment that are not copied to its ReplicaSets.
const OWN: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    HISTORY,
    DESIRED,
    MAXIMUM,
    "deprecated.deployment.rollback.to",
];
/// Enough for about a hundred revisions.
const HISTORY_LENGTH: usize = 2000;

/// A ReplicaSet's revision; 0 without one.
pub(super) fn revision(set: &ReplicaSet) -> i64 {
    let annotations = set.metadata.annotations.as_ref();
    annotations
        .and_then(|map| map.get(REVISION)?.parse().ok())
        .unwrap_or(0)
}

/// A non-negative number in an annotation.
pub(super) fn number(set: &ReplicaSet, annotation: &str) -> Option<i32> {
    let value = set.metadata.annotations.as_ref()?.get(annotation)?;
    value.parse().ok().filter(|number| *number >= 0)
}

/// Copies the Deployment's annotations, and sets `revision` unless the ReplicaSet has a higher one.
/// The previous number is added to its revision history.
pub(super) fn annotate(deployment: &Deployment, set: &mut ReplicaSet, revision: i64) {
    let annotations = set.metadata.annotations.get_or_insert_default();
    for (key, value) in deployment.metadata.annotations.iter().flatten() {
        if !OWN.contains(&key.as_str()) {
            annotations.insert(key.clone(), value.clone());
        }
    }
    let before = annotations.get(REVISION).cloned();
    let number = match before.as_deref().map(str::parse::<i64>) {
        None => 0,
        Some(Ok(number)) => number,
        // Not a number: leave it alone.
        Some(Err(_)) => return,
    };
    if number < revision {
        annotations.insert(REVISION.to_owned(), revision.to_string());
        if let Some(before) = before {
            remember(annotations, &before);
        }
    }
}

fn remember(annotations: &mut BTreeMap<String, String>, revision: &str) {
    let history = annotations.get(HISTORY).cloned().unwrap_or_default();
    let mut revisions: Vec<&str> = history.split(',').filter(|part| !part.is_empty()).collect();
    revisions.push(revision);
    while revisions.iter().map(|part| part.len() + 1).sum::<usize>() > HISTORY_LENGTH {
        revisions.remove(0);
    }
    annotations.insert(HISTORY.to_owned(), revisions.join(","));
}

/// Records the Deployment's size in annotations, which proportional scaling uses.
pub(super) fn note_size(deployment: &Deployment, set: &mut ReplicaSet) {
    let desired = scale::replicas(deployment);
    let annotations = set.metadata.annotations.get_or_insert_default();
    annotations.insert(DESIRED.to_owned(), desired.to_string());
    let maximum = desired.saturating_add(scale::max_surge(deployment));
    annotations.insert(MAXIMUM.to_owned(), maximum.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(annotations: &[(&str, &str)]) -> ReplicaSet {
        let map = annotations
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let mut set = ReplicaSet::default();
        set.metadata.annotations = Some(map.collect());
        set
    }

    #[test]
    fn a_rollback_gets_a_new_revision_and_keeps_the_old_in_history() {
        let mut set = set(&[(REVISION, "2"), (HISTORY, "1")]);
        annotate(&Deployment::default(), &mut set, 5);
        let annotations = set.metadata.annotations.unwrap();
        assert_eq!(annotations[REVISION], "5");
        assert_eq!(annotations[HISTORY], "1,2");
    }

    #[test]
    fn a_set_keeps_a_newer_number_than_it_would_get() {
        let mut set = set(&[(REVISION, "7")]);
        annotate(&Deployment::default(), &mut set, 5);
        assert_eq!(revision(&set), 7);
    }

    #[test]
    fn annotations_of_the_deployment_alone_are_not_copied() {
        let mut deployment = Deployment::default();
        let pairs = [
            ("kubectl.kubernetes.io/last-applied-configuration", "{}"),
            ("team", "web"),
        ];
        deployment.metadata.annotations = Some(
            pairs
                .iter()
                .map(|(key, value)| ((*key).into(), (*value).into()))
                .collect(),
        );
        let mut set = set(&[]);
        annotate(&deployment, &mut set, 1);
        let keys: Vec<_> = set.metadata.annotations.unwrap().into_keys().collect();
        assert_eq!(keys, [REVISION, "team"]);
    }
}
