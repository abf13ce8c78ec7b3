//! The next size of each ReplicaSet of a Deployment. Pure.

use std::{cmp::Reverse, sync::Arc};

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, ReplicaSet};

use super::revision;
use crate::intorpercent::scaled;

pub(super) fn spec(deployment: &Deployment) -> DeploymentSpec {
    deployment.spec.clone().unwrap_or_default()
}

pub(super) fn replicas(deployment: &Deployment) -> i32 {
    deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1)
}

pub(super) fn is_rolling(deployment: &Deployment) -> bool {
    let strategy = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()) != Some("Recreate")
}

/// maxSurge and maxUnavailable as numbers. If both round to zero, maxUnavailable is one, so that
/// the rollout can proceed.
fn fences(deployment: &Deployment) -> (i32, i32) {
    if !is_rolling(deployment) {
        return (0, 0);
    }
    let wanted = replicas(deployment);
    let strategy = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.strategy.as_ref());
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let surge = scaled(
        rolling.and_then(|rolling| rolling.max_surge.as_ref()),
        wanted,
        true,
    );
    let missing = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
    let missing = scaled(missing, wanted, false);
    if surge == 0 && missing == 0 {
        (0, 1)
    } else {
        (surge, missing)
    }
}

pub(super) fn max_surge(deployment: &Deployment) -> i32 {
    fences(deployment).0
}

pub(super) fn max_unavailable(deployment: &Deployment) -> i32 {
    fences(deployment).1.min(replicas(deployment))
}

pub(super) fn size(set: &ReplicaSet) -> i32 {
    set.spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1)
}

pub(super) fn available(set: &ReplicaSet) -> i32 {
    set.status
        .as_ref()
        .and_then(|status| status.available_replicas)
        .unwrap_or(0)
}

pub(super) fn total<'a>(sets: impl IntoIterator<Item = &'a Arc<ReplicaSet>>) -> i32 {
    let sizes = sets.into_iter().map(|set| size(set));
    sizes.fold(0, i32::saturating_add)
}

pub(super) fn created(set: &ReplicaSet) -> (Option<jiff::Timestamp>, String) {
    let time = set.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (time, set.metadata.name.clone().unwrap_or_default())
}

/// The new ReplicaSet's next size in a rollout: as large as maxSurge allows.
pub(super) fn grown(deployment: &Deployment, new: i32, all: i32) -> i32 {
    let wanted = replicas(deployment);
    if !is_rolling(deployment) || new > wanted {
        return wanted;
    }
    let room = wanted
        .saturating_add(max_surge(deployment))
        .saturating_sub(all)
        .max(0);
    new + room.min(wanted - new)
}

/// The old ReplicaSets' next sizes in a rollout: first removes unavailable pods, then as many as
/// maxUnavailable allows, oldest first.
pub(super) fn shrunk(
    deployment: &Deployment,
    new: &ReplicaSet,
    old: &[Arc<ReplicaSet>],
) -> Vec<(Arc<ReplicaSet>, i32)> {
    // Sizes may be near the maximum of 32 bits, so that their sums are larger.
    let needed = i64::from(replicas(deployment)) - i64::from(max_unavailable(deployment));
    let sizes = old.iter().map(|set| i64::from(size(set)));
    let mut budget = sizes.sum::<i64>() + i64::from(available(new)) - needed;
    let mut sizes: Vec<_> = old.iter().map(|set| (set.clone(), size(set))).collect();
    sizes.sort_by_key(|(set, _)| created(set));
    if budget <= 0 {
        return Vec::new();
    }
    for (set, next) in &mut sizes {
        take(
            next,
            i64::from(*next) - i64::from(available(set)),
            &mut budget,
        );
    }
    let alive = old.iter().map(|set| i64::from(available(set)));
    let mut spare = alive.sum::<i64>() + i64::from(available(new)) - needed;
    for (_, next) in &mut sizes {
        take(next, i64::from(*next), &mut spare);
    }
    sizes.retain(|(set, next)| size(set) != *next);
    sizes
}

/// Reduces a size by up to `most`, and the budget by the same.
fn take(size: &mut i32, most: i64, budget: &mut i64) {
    let cut = most.min(*budget).clamp(0, i64::from(*size));
    // At most the size itself.
    *size -= i32::try_from(cut).unwrap_or(*size);
    *budget -= cut;
}

/// Sizes after the Deployment was scaled during a rollout: the change is distributed in proportion,
/// so that the ratio of old and new pods stays.
pub(super) fn proportional(
    deployment: &Deployment,
    new: Option<&Arc<ReplicaSet>>,
    old: &[Arc<ReplicaSet>],
) -> Vec<(Arc<ReplicaSet>, i32)> {
    let mut active: Vec<_> = old
        .iter()
        .chain(new)
        .filter(|set| size(set) > 0)
        .cloned()
        .collect();
    let wanted = replicas(deployment);
    if active.len() <= 1 {
        let newest_old = || old.iter().max_by_key(|set| created(set));
        let only = active
            .pop()
            .or_else(|| new.cloned())
            .or_else(|| newest_old().cloned());
        return only.map(|set| vec![(set, wanted)]).unwrap_or_default();
    }
    if new.is_some_and(|new| is_saturated(deployment, new)) {
        let old = old.iter().filter(|set| size(set) > 0);
        return old.map(|set| (set.clone(), 0)).collect();
    }
    if !is_rolling(deployment) {
        return Vec::new();
    }
    let allowed = if wanted > 0 {
        wanted.saturating_add(max_surge(deployment))
    } else {
        0
    };
    let sizes = active.iter().map(|set| i64::from(size(set)));
    let change = i64::from(allowed) - sizes.sum::<i64>();
    if change < 0 {
        active.sort_by_key(|set| (Reverse(size(set)), created(set)));
    } else {
        active.sort_by_key(|set| (Reverse(size(set)), Reverse(created(set))));
    }
    let mut given = 0_i64;
    let mut sizes = Vec::new();
    for set in active {
        let share = i64::from(share(deployment, &set));
        let left = change - given;
        let part = if change > 0 {
            share.min(left)
        } else {
            share.max(left)
        };
        let part = if change == 0 || left == 0 { 0 } else { part };
        given += part;
        let next = i64::from(size(&set)) + part;
        sizes.push((set, next));
    }
    // The remainder of rounding goes to the largest.
    if let Some((_, largest)) = sizes.first_mut() {
        *largest = (*largest + change - given).max(0);
    }
    let within = |next: i64| i32::try_from(next).unwrap_or(i32::MAX);
    let sizes = sizes.into_iter();
    sizes.map(|(set, next)| (set, within(next))).collect()
}

/// How much a ReplicaSet grows or shrinks to keep its proportion.
fn share(deployment: &Deployment, set: &ReplicaSet) -> i32 {
    let wanted = replicas(deployment);
    if wanted == 0 {
        return -size(set);
    }
    let desired_replicas = deployment
        .status
        .as_ref()
        .and_then(|status| status.replicas)
        .unwrap_or(0);
    let before = revision::number(set, revision::MAXIMUM).filter(|before| *before > 0);
    let before = before.unwrap_or(desired_replicas);
    if before == 0 {
        return 0;
    }
    let now = f64::from(wanted.saturating_add(max_surge(deployment)));
    let target = f64::from(size(set)) * now / f64::from(before);
    // Sizes are far below 2^31.
    target.round() as i32 - size(set)
}

fn is_saturated(deployment: &Deployment, new: &ReplicaSet) -> bool {
    let wanted = replicas(deployment);
    size(new) == wanted
        && revision::number(new, revision::DESIRED) == Some(wanted)
        && available(new) == wanted
}

#[cfg(test)]
pub(super) mod samples {
    use k8s_openapi::{
        api::apps::v1::{
            DeploymentStrategy, ReplicaSetSpec, ReplicaSetStatus, RollingUpdateDeployment,
        },
        apimachinery::pkg::{apis::meta::v1::Time, util::intstr::IntOrString},
    };

    use super::*;
    use crate::pods::samples::at;

    pub(crate) fn deployment(replicas: i32, surge: i32, unavailable: i32) -> Deployment {
        let rolling = RollingUpdateDeployment {
            max_surge: Some(IntOrString::Int(surge)),
            max_unavailable: Some(IntOrString::Int(unavailable)),
        };
        let strategy = DeploymentStrategy {
            type_: Some("RollingUpdate".into()),
            rolling_update: Some(rolling),
        };
        let mut deployment = Deployment {
            spec: Some(DeploymentSpec {
                replicas: Some(replicas),
                strategy: Some(strategy),
                ..Default::default()
            }),
            ..Default::default()
        };
        deployment.metadata.name = Some("web".into());
        deployment.metadata.uid = Some("d".into());
        deployment
    }

    /// A ReplicaSet of `size` with `available` pods, created at `age`.
    pub(crate) fn set(name: &str, age: i64, size: i32, available: i32) -> Arc<ReplicaSet> {
        let mut set = ReplicaSet {
            spec: Some(ReplicaSetSpec {
                replicas: Some(size),
                ..Default::default()
            }),
            status: Some(ReplicaSetStatus {
                replicas: size,
                ready_replicas: Some(available),
                available_replicas: Some(available),
                ..Default::default()
            }),
            ..Default::default()
        };
        set.metadata.name = Some(name.into());
        set.metadata.uid = Some(name.into());
        set.metadata.creation_timestamp = Some(Time(at(age)));
        Arc::new(set)
    }
}

#[cfg(test)]
mod tests {
    use super::{samples::*, *};

    fn render(sizes: Vec<(Arc<ReplicaSet>, i32)>) -> Vec<String> {
        let name = |set: &ReplicaSet| set.metadata.name.clone().unwrap();
        sizes
            .iter()
            .map(|(set, size)| format!("{}={size}", name(set)))
            .collect()
    }

    #[test]
    fn a_rollout_grows_the_new_set_as_far_as_surge_allows() {
        for (wanted, surge, new, all, expected) in [
            (10, 3, 0, 10, 3),
            (10, 3, 3, 13, 3),
            (10, 3, 8, 10, 10),
            (10, 0, 0, 10, 0),
            (1, 1, 0, 1, 1),
            (5, 1, 7, 7, 5),
        ] {
            let deployment = deployment(wanted, surge, 1);
            assert_eq!(
                grown(&deployment, new, all),
                expected,
                "{wanted} {surge} {new} {all}"
            );
        }
    }

    #[test]
    fn a_rollout_shrinks_the_old_only_as_far_as_availability_allows() {
        let rolling = deployment(10, 3, 2);
        let (old, new) = (set("old", 1, 10, 10), set("new", 2, 3, 0));
        assert_eq!(render(shrunk(&rolling, &new, &[old])), ["old=8"]);
        let (old, new) = (set("old", 1, 8, 8), set("new", 2, 5, 0));
        assert!(
            shrunk(&rolling, &new, &[old]).is_empty(),
            "the new pods never came up"
        );
        let (old, new) = (set("old", 1, 8, 8), set("new", 2, 5, 5));
        assert_eq!(render(shrunk(&rolling, &new, &[old])), ["old=3"]);
    }

    #[test]
    fn sizes_whose_sum_exceeds_32_bits_are_computed() {
        const MAX: i32 = i32::MAX;
        let rolling = deployment(MAX, 0, 1);
        let (old, new) = (set("old", 1, MAX, 0), set("new", 2, MAX, 5));
        assert_eq!(render(shrunk(&rolling, &new, &[old])), ["old=2147483641"]);
        let ready = (set("old", 1, MAX, MAX), set("new", 2, MAX, MAX));
        assert_eq!(render(shrunk(&rolling, &ready.1, &[ready.0])), ["old=0"]);
        let (old, new) = (set("old", 1, MAX, 0), set("new", 2, MAX, 0));
        let sizes = proportional(&deployment(MAX, 1, 0), Some(&new), &[old]);
        assert_eq!(render(sizes), ["old=0", "new=2147483647"]);
    }

    #[test]
    fn unavailable_old_pods_are_scaled_down_first() {
        let rolling = deployment(10, 3, 0);
        let (broken, good) = (set("broken", 2, 3, 0), set("good", 1, 10, 10));
        let new = set("new", 3, 0, 0);
        assert_eq!(
            render(shrunk(&rolling, &new, &[good, broken])),
            ["broken=0"]
        );
    }

    #[test]
    fn scaling_in_the_middle_of_a_rollout_keeps_the_mix() {
        let note = |set: Arc<ReplicaSet>| {
            let mut set = (*set).clone();
            revision::note_size(&deployment(10, 2, 0), &mut set);
            Arc::new(set)
        };
        let (new, old) = (note(set("new", 2, 4, 4)), note(set("old", 1, 8, 8)));
        let bigger = proportional(
            &deployment(20, 2, 0),
            Some(&new),
            std::slice::from_ref(&old),
        );
        assert_eq!(render(bigger), ["old=15", "new=7"]);
        let smaller = proportional(&deployment(5, 2, 0), Some(&new), std::slice::from_ref(&old));
        assert_eq!(render(smaller), ["old=5", "new=2"]);
        let none = proportional(&deployment(0, 2, 0), Some(&new), &[old]);
        assert_eq!(render(none), ["old=0", "new=0"]);
    }

    #[test]
    fn the_only_set_with_pods_gets_the_whole_size() {
        let (new, old) = (set("new", 2, 4, 4), set("old", 1, 0, 0));
        let sizes = proportional(&deployment(7, 1, 0), Some(&new), &[old]);
        assert_eq!(render(sizes), ["new=7"]);
    }
}
