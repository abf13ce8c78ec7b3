//! Which old daemon pods are replaced next, within the limits of the update strategy. Pure.

use k8s_openapi::api::apps::v1::{DaemonSet, RollingUpdateDaemonSet};

use super::{
    daemon::Daemon,
    decide::{NodeDaemons, View},
};
use crate::intorpercent::scaled;

/// Whether pods are replaced only after they were deleted (OnDelete).
pub(super) fn is_on_delete(set: &DaemonSet) -> bool {
    let strategy = set
        .spec
        .as_ref()
        .and_then(|spec| spec.update_strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete")
}

fn rolling(set: &DaemonSet) -> Option<&RollingUpdateDaemonSet> {
    let strategy = set.spec.as_ref()?.update_strategy.as_ref()?;
    strategy.rolling_update.as_ref()
}

/// Whether an update may put a second pod on a node.
pub(super) fn surges(set: &DaemonSet) -> bool {
    let surge = rolling(set).and_then(|rolling| rolling.max_surge.as_ref());
    !is_on_delete(set) && scaled(surge, 100, true) > 0
}

/// maxSurge and maxUnavailable as numbers.
fn limits(view: &View) -> (i32, i32) {
    let (rolling, desired) = (rolling(view.set), view.desired());
    let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref());
    let missing = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
    let surge = scaled(surge, desired, true);
    let missing = missing.map_or(1, |missing| scaled(Some(missing), desired, true));
    if desired > 0 && surge == 0 && missing == 0 {
        (0, 1)
    } else {
        (surge, missing)
    }
}

/// The new and the old pod of a node.
type Pair<'a> = (Option<&'a Daemon>, Option<&'a Daemon>);

/// The pods of a node that are not being deleted; `None` if there are several new or several old
/// ones.
fn pair<'a>(view: &View, place: &NodeDaemons<'a>) -> Option<Pair<'a>> {
    let alive = place.pods.iter().copied().filter(|pod| !pod.is_deleting());
    let (new, old): (Vec<_>, Vec<_>) = alive.partition(|pod| view.is_current(pod));
    let single = new.len() <= 1 && old.len() <= 1;
    single.then(|| (new.first().copied(), old.first().copied()))
}

/// Nodes that get a new pod, and old pods to delete.
pub(super) fn decide(view: &View) -> (Vec<String>, Vec<Daemon>) {
    let (surge, missing) = limits(view);
    if surge == 0 {
        (Vec::new(), replace(view, missing))
    } else {
        add(view, surge)
    }
}

/// The nodes that an update concerns.
fn places<'v, 'a>(view: &'v View<'a>) -> impl Iterator<Item = (&'a str, &'v NodeDaemons<'a>)> {
    let places = view.places.iter();
    let concerned = places.filter(|(_, place)| place.fit.comes || !place.pods.is_empty());
    concerned.map(|(name, place)| (*name, place))
}

/// Without surge: deletes old pods, unavailable ones at once, others within maxUnavailable.
fn replace(view: &View, most_missing: i32) -> Vec<Daemon> {
    let mut missing = 0;
    let (mut delete, mut candidates) = (Vec::new(), Vec::new());
    for (_, place) in places(view) {
        match pair(view, place) {
            None | Some((None, None) | (Some(_), Some(_))) => missing += 1,
            Some((Some(new), None)) => missing += i32::from(!view.is_available(new)),
            Some((None, Some(old))) if view.is_available(old) => candidates.push(old.clone()),
            Some((None, Some(old))) => {
                missing += 1;
                delete.push(old.clone());
            }
        }
    }
    let room = usize::try_from(most_missing - missing).unwrap_or(0);
    delete.extend(candidates.into_iter().take(room));
    delete
}

/// With surge: new pods are created first. Old pods on nodes that no longer fit stay until enough
/// others are available.
fn add(view: &View, most_surge: i32) -> (Vec<String>, Vec<Daemon>) {
    let (mut surging, mut available) = (0, 0);
    let (mut create, mut candidates) = (Vec::new(), Vec::new());
    let (mut delete, mut misplaced) = (Vec::new(), Vec::new());
    for (name, place) in places(view) {
        let Some((new, old)) = pair(view, place) else {
            surging += 1;
            continue;
        };
        let first = old.or(new);
        available += i32::from(first.is_some_and(|pod| view.is_available(pod)));
        match (new, old) {
            (_, None) => {}
            (Some(new), Some(old)) => {
                if view.is_available(new) {
                    delete.push(old.clone());
                } else {
                    surging += 1;
                }
            }
            (None, Some(old)) => match (view.is_available(old), place.fit.comes) {
                (true, true) => candidates.push(name.to_owned()),
                (true, false) => misplaced.push(old.clone()),
                (false, true) => create.push(name.to_owned()),
                (false, false) => delete.push(old.clone()),
            },
        }
    }
    let spare = usize::try_from(available - view.desired()).unwrap_or(0);
    delete.extend(misplaced.into_iter().take(spare));
    let room = usize::try_from(most_surge - surging).unwrap_or(0);
    create.extend(candidates.into_iter().take(room));
    (create, delete)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::decide::tests::{changes, set};

    #[test]
    fn an_update_replaces_broken_pods_at_once_and_good_ones_within_the_limit() {
        let nodes = ["a", "b", "c"];
        for (missing, pods, expected) in [
            (
                1,
                ["a a old ready", "b b old ready", "c c old ready"],
                "+ -a",
            ),
            (
                2,
                ["a a old ready", "b b old ready", "c c old ready"],
                "+ -a,b",
            ),
            (1, ["a a old ready", "b b old", "c c old ready"], "+ -b"),
            (2, ["a a old ready", "b b old", "c c old ready"], "+ -b,a"),
            (1, ["a a new", "b b old ready", "c c old ready"], "+ -"),
            (
                1,
                ["a a new ready", "b b old ready", "c c old ready"],
                "+ -b",
            ),
            (
                1,
                ["a a new ready", "b b new ready", "c c new ready"],
                "+ -",
            ),
            // A pod that is being deleted counts as unavailable.
            (
                1,
                ["a a old deleted", "b b old ready", "c c old ready"],
                "+ -",
            ),
        ] {
            assert_eq!(
                changes(&set(0, missing), &nodes, &pods),
                expected,
                "{missing} {pods:?}"
            );
        }
    }

    #[test]
    fn surging_adds_before_it_removes() {
        let nodes = ["a", "b", "c:NoSchedule"];
        for (surge, pods, expected) in [
            (1, &["a a old ready", "b b old ready"][..], "+a -"),
            (2, &["a a old ready", "b b old ready"], "+a,b -"),
            (1, &["a a old ready", "b b old"], "+b,a -"),
            (1, &["a a old ready", "x a new", "b b old ready"], "+ -"),
            (2, &["a a old ready", "x a new", "b b old ready"], "+b -"),
            // Node c no longer fits: its old pod is deleted once enough others are available.
            (
                1,
                &["a a new ready", "b b new ready", "c c old ready"],
                "+ -c",
            ),
            (1, &["a a new ready", "b b new", "c c old ready"], "+ -"),
            (1, &["a a new ready", "b b new ready", "c c old"], "+ -c"),
        ] {
            assert_eq!(
                changes(&set(surge, 0), &nodes, pods),
                expected,
                "{surge} {pods:?}"
            );
        }
    }

    #[test]
    fn limits_may_be_percentages_and_never_forbid_everything() {
        let nodes = ["a", "b", "c"];
        let pods = ["a a old ready", "b b old ready", "c c old ready"];
        for (strategy, expected) in [
            (
                json!({"rollingUpdate": {"maxUnavailable": "50%"}}),
                "+ -a,b",
            ),
            (json!({"rollingUpdate": {"maxUnavailable": "0%"}}), "+ -a"),
            (
                json!({"rollingUpdate": {"maxSurge": "34%", "maxUnavailable": 0}}),
                "+a,b -",
            ),
            (json!({}), "+ -a"),
            (json!({"type": "OnDelete"}), "+ -"),
        ] {
            let mut set = set(0, 1);
            let spec = set.spec.as_mut().unwrap();
            spec.update_strategy = serde_json::from_value(strategy.clone()).unwrap();
            assert_eq!(changes(&set, &nodes, &pods), expected, "{strategy}");
        }
    }
}
