//! What to do for a Deployment: which ReplicaSets to create, scale and delete, and its status.
//! Pure.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{Deployment, DeploymentStatus, ReplicaSet, ReplicaSetSpec},
    core::v1::PodTemplateSpec,
};
use kube::api::ObjectMeta;

use super::{
    progress,
    revision::{self, REVISION},
    scale::{self, replicas, size},
};
use crate::{
    shared::{controller_of, controller_reference},
    templatehash::{TEMPLATE_HASH, template_hash},
};

/// The maximum length of object names.
const NAME_LENGTH: usize = 253;

/// The inputs of a decision.
pub(super) struct View {
    pub(super) deployment: Deployment,
    /// The ReplicaSets that it owns.
    pub(super) sets: Vec<Arc<ReplicaSet>>,
    /// The number of running pods of each ReplicaSet; only set with the strategy Recreate.
    pub(super) pods: Vec<usize>,
    pub(super) now: Timestamp,
}

/// A ReplicaSet to update, and its previous size.
#[derive(Debug)]
pub(super) struct Resize {
    pub(super) set: ReplicaSet,
    pub(super) from: i32,
}

/// The writes, in this order.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) create: Option<ReplicaSet>,
    pub(super) update: Vec<Resize>,
    pub(super) delete: Vec<Arc<ReplicaSet>>,
    pub(super) revision: Option<String>,
    pub(super) status: DeploymentStatus,
    pub(super) after: Option<Duration>,
}

pub(super) fn decide(view: &View) -> Plan {
    let deployment = &view.deployment;
    let newest = newest(deployment, &view.sets).cloned();
    let is_new = |set: &&Arc<ReplicaSet>| {
        newest
            .as_ref()
            .is_some_and(|new| new.metadata.uid == set.metadata.uid)
    };
    let old: Vec<_> = view
        .sets
        .iter()
        .filter(|set| !is_new(set))
        .cloned()
        .collect();
    if deployment.metadata.deletion_timestamp.is_some() {
        let status = progress::counted(deployment, newest.as_ref(), &view.sets, view.now);
        return Plan {
            status,
            ..Plan::default()
        };
    }
    let round = Round {
        view,
        deployment,
        newest,
        old,
    };
    let paused = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.paused)
        .unwrap_or(false);
    if paused || round.was_scaled() {
        round.scaled(paused)
    } else {
        round.rolled()
    }
}

/// The ReplicaSet with the Deployment's template; the oldest if there are several.
fn newest<'a>(deployment: &Deployment, sets: &'a [Arc<ReplicaSet>]) -> Option<&'a Arc<ReplicaSet>> {
    let same = sets.iter().filter(|set| has_template_of(deployment, set));
    same.min_by_key(|set| scale::created(set))
}

fn has_template_of(deployment: &Deployment, set: &ReplicaSet) -> bool {
    let mut template = set
        .spec
        .as_ref()
        .and_then(|spec| spec.template.clone())
        .unwrap_or_default();
    if let Some(meta) = &mut template.metadata {
        if let Some(labels) = &mut meta.labels {
            labels.remove(TEMPLATE_HASH);
        }
        meta.labels = meta.labels.take().filter(|labels| !labels.is_empty());
    }
    let mut wanted = scale::spec(deployment).template;
    if let Some(meta) = &mut wanted.metadata {
        meta.labels = meta.labels.take().filter(|labels| !labels.is_empty());
    }
    let bare = |template: &PodTemplateSpec| {
        let meta = template.metadata.clone().unwrap_or_default();
        (
            ObjectMeta {
                creation_timestamp: None,
                ..meta
            },
            template.spec.clone(),
        )
    };
    bare(&template) == bare(&wanted)
}

/// Whether an existing ReplicaSet of the newest one's name is that ReplicaSet.
pub(super) fn is_newest(deployment: &Deployment, set: &ReplicaSet) -> bool {
    let owner = controller_of(set).map(|owner| &owner.uid);
    owner == deployment.metadata.uid.as_ref() && has_template_of(deployment, set)
}

struct Round<'a> {
    view: &'a View,
    deployment: &'a Deployment,
    newest: Option<Arc<ReplicaSet>>,
    old: Vec<Arc<ReplicaSet>>,
}

impl Round<'_> {
    /// Whether the Deployment's replicas changed since its ReplicaSets were scaled.
    fn was_scaled(&self) -> bool {
        let active = self.view.sets.iter().filter(|set| size(set) > 0);
        let mut noted = active.filter_map(|set| revision::number(set, revision::DESIRED));
        noted.any(|noted| noted != replicas(self.deployment))
    }

    /// Only scaling, no rollout: the Deployment is paused or was scaled.
    fn scaled(self, paused: bool) -> Plan {
        let mut plan = Plan::default();
        self.sync_newest(&mut plan);
        let sizes = scale::proportional(self.deployment, self.newest.as_ref(), &self.old);
        for (set, size) in sizes {
            self.resize(&mut plan, &set, size);
        }
        if paused {
            plan.delete = self.superfluous();
        }
        let (deployment, now) = (self.deployment, self.view.now);
        plan.status = progress::counted(deployment, self.newest.as_ref(), &self.view.sets, now);
        progress::note_pause(deployment, &mut plan.status, now);
        plan
    }

    fn rolled(mut self) -> Plan {
        let mut plan = Plan::default();
        let (deployment, now) = (self.deployment, self.view.now);
        let mut made = false;
        if self.newest.is_none() && (scale::is_rolling(deployment) || self.old_is_gone()) {
            let set = self.make();
            plan.revision = set
                .metadata
                .annotations
                .as_ref()
                .and_then(|map| map.get(REVISION).cloned());
            plan.create = Some(set.clone());
            self.newest = Some(Arc::new(set));
            made = true;
        } else {
            self.sync_newest(&mut plan);
        }
        if !made {
            self.move_pods(&mut plan);
        }
        let all: Vec<_> = self.old.iter().chain(&self.newest).cloned().collect();
        let mut status = progress::counted(deployment, self.newest.as_ref(), &all, now);
        if let Some(new) = &self.newest {
            let name = new.metadata.name.as_deref().unwrap_or_default();
            progress::note_newest(deployment, &mut status, name, made, now);
        }
        progress::note_pause(deployment, &mut status, now);
        if !made {
            progress::progress_condition(deployment, &mut status, self.newest.as_ref(), &all, now);
        }
        if plan.update.is_empty() && progress::is_complete(deployment, &status) {
            plan.delete = self.superfluous();
        }
        plan.after = progress::next_look(deployment, &status, now);
        plan.status = status;
        plan
    }

    /// One step of the rollout.
    fn move_pods(&self, plan: &mut Plan) {
        let rolling = scale::is_rolling(self.deployment);
        if !rolling {
            for set in self.old.iter().filter(|set| size(set) > 0) {
                self.resize(plan, set, 0);
            }
        }
        let Some(new) = &self.newest else { return };
        if !rolling {
            if self.old_is_gone() && plan.update.is_empty() {
                self.resize(plan, new, replicas(self.deployment));
            }
            return;
        }
        let all = scale::total(&self.old).saturating_add(size(new));
        let target = scale::grown(self.deployment, size(new), all);
        if target != size(new) {
            return self.resize(plan, new, target);
        }
        for (set, size) in scale::shrunk(self.deployment, new, &self.old) {
            self.resize(plan, &set, size);
        }
    }

    /// Recreate scales up when the last old pod is gone.
    fn old_is_gone(&self) -> bool {
        let counted = self
            .old
            .iter()
            .map(|set| set.status.as_ref().map_or(0, |s| s.replicas));
        let running = self
            .view
            .sets
            .iter()
            .zip(&self.view.pods)
            .filter(|(set, pods)| {
                let new = self.newest.as_ref().map(|new| &new.metadata.uid);
                **pods > 0 && new != Some(&set.metadata.uid)
            });
        counted.sum::<i32>() == 0 && running.count() == 0
    }

    /// Syncs the Deployment's annotations, the revision and minReadySeconds to the newest
    /// ReplicaSet.
    fn sync_newest(&self, plan: &mut Plan) {
        let Some(new) = &self.newest else { return };
        let mut set = (**new).clone();
        revision::annotate(self.deployment, &mut set, self.next_revision());
        if let Some(spec) = &mut set.spec {
            spec.min_ready_seconds = scale::spec(self.deployment).min_ready_seconds;
        }
        let number = set
            .metadata
            .annotations
            .as_ref()
            .and_then(|map| map.get(REVISION).cloned());
        let known = self
            .deployment
            .metadata
            .annotations
            .as_ref()
            .and_then(|map| map.get(REVISION));
        plan.revision = number.filter(|number| Some(number) != known);
        if set != **new {
            plan.update.push(Resize {
                set,
                from: size(new),
            });
        }
    }

    fn next_revision(&self) -> i64 {
        self.old
            .iter()
            .map(|set| revision::revision(set))
            .max()
            .unwrap_or(0)
            + 1
    }

    /// Adds a new size to the plan, on top of other changes of the ReplicaSet.
    fn resize(&self, plan: &mut Plan, set: &Arc<ReplicaSet>, to: i32) {
        let planned = plan
            .update
            .iter()
            .position(|planned| planned.set.metadata.uid == set.metadata.uid);
        let mut next = planned.map_or_else(|| (**set).clone(), |at| plan.update[at].set.clone());
        revision::note_size(self.deployment, &mut next);
        if let Some(spec) = &mut next.spec {
            spec.replicas = Some(to);
        }
        if next == **set {
            return;
        }
        let resize = Resize {
            set: next,
            from: size(set),
        };
        match planned {
            Some(at) => plan.update[at] = resize,
            None => plan.update.push(resize),
        }
    }

    /// Old ReplicaSets without pods beyond revisionHistoryLimit, oldest revisions first.
    fn superfluous(&self) -> Vec<Arc<ReplicaSet>> {
        let limit = scale::spec(self.deployment)
            .revision_history_limit
            .unwrap_or(i32::MAX);
        let alive = self
            .old
            .iter()
            .filter(|set| set.metadata.deletion_timestamp.is_none());
        let mut alive: Vec<_> = alive.cloned().collect();
        let surplus = alive
            .len()
            .saturating_sub(usize::try_from(limit).unwrap_or(0));
        alive.sort_by_key(|set| (revision::revision(set), scale::created(set)));
        alive.truncate(surplus);
        alive.retain(|set| {
            let status = set.status.clone().unwrap_or_default();
            size(set) == 0
                && status.replicas == 0
                && status.observed_generation >= set.metadata.generation
        });
        alive
    }

    /// A new ReplicaSet for the Deployment's template.
    fn make(&self) -> ReplicaSet {
        let deployment = self.deployment;
        let spec = scale::spec(deployment);
        let collisions = deployment
            .status
            .as_ref()
            .and_then(|status| status.collision_count);
        let hash = template_hash(&spec.template, collisions);
        let mut template = spec.template.clone();
        let labels = template
            .metadata
            .get_or_insert_default()
            .labels
            .get_or_insert_default();
        labels.insert(TEMPLATE_HASH.to_owned(), hash.clone());
        let labels = labels.clone();
        let mut selector = spec.selector.clone();
        selector
            .match_labels
            .get_or_insert_default()
            .insert(TEMPLATE_HASH.to_owned(), hash.clone());
        let name = deployment.metadata.name.as_deref().unwrap_or_default();
        let name = &name[..name.len().min(NAME_LENGTH - hash.len() - 1)];
        let size = scale::grown(deployment, 0, scale::total(&self.old));
        let mut set = ReplicaSet {
            metadata: ObjectMeta {
                name: Some(format!("{name}-{hash}")),
                namespace: deployment.metadata.namespace.clone(),
                labels: Some(labels),
                owner_references: Some(vec![controller_reference(deployment)]),
                ..Default::default()
            },
            spec: Some(ReplicaSetSpec {
                replicas: Some(size),
                min_ready_seconds: spec.min_ready_seconds,
                selector,
                template: Some(template),
            }),
            status: None,
        };
        revision::annotate(deployment, &mut set, self.next_revision());
        revision::note_size(deployment, &mut set);
        set
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::{
            apps::v1::DeploymentStrategy,
            core::v1::{Container, PodSpec},
        },
        apimachinery::pkg::apis::meta::v1::Time,
    };

    use super::*;
    use crate::{deployment::scale::samples, pods::samples::at};

    fn template(image: &str) -> PodTemplateSpec {
        let container = Container {
            image: Some(image.into()),
            ..Default::default()
        };
        let spec = PodSpec {
            containers: vec![container],
            ..Default::default()
        };
        PodTemplateSpec {
            metadata: None,
            spec: Some(spec),
        }
    }

    fn deployment(image: &str, replicas: i32) -> Deployment {
        let mut deployment = samples::deployment(replicas, 1, 0);
        let spec = deployment.spec.as_mut().unwrap();
        spec.template = template(image);
        spec.progress_deadline_seconds = Some(600);
        spec.revision_history_limit = Some(1);
        deployment
    }

    fn set(image: &str, age: i64, size: i32, available: i32, desired: i32) -> Arc<ReplicaSet> {
        let mut set = (*samples::set(image, age, size, available)).clone();
        set.spec.as_mut().unwrap().template = Some(template(image));
        set.metadata.annotations = Some(
            [
                (REVISION.to_owned(), age.to_string()),
                (revision::DESIRED.to_owned(), desired.to_string()),
            ]
            .into(),
        );
        Arc::new(set)
    }

    fn view(deployment: Deployment, sets: Vec<Arc<ReplicaSet>>) -> View {
        let pods = sets.iter().map(|set| size(set) as usize).collect();
        View {
            deployment,
            sets,
            pods,
            now: at(1000),
        }
    }

    fn sizes(plan: &Plan) -> Vec<String> {
        let name = |set: &ReplicaSet| set.metadata.name.clone().unwrap();
        let changed = plan
            .update
            .iter()
            .filter(|resize| size(&resize.set) != resize.from);
        changed
            .map(|r| format!("{} {}→{}", name(&r.set), r.from, size(&r.set)))
            .collect()
    }

    fn progressing(status: &DeploymentStatus) -> String {
        let found = progress::find(Some(status), progress::PROGRESSING).unwrap();
        format!("{} {}", found.status, found.reason.as_deref().unwrap())
    }

    #[test]
    fn a_new_deployment_gets_a_set_with_its_hash_and_the_first_revision() {
        let plan = decide(&view(deployment("a", 3), vec![]));
        let set = plan.create.unwrap();
        let hash = set.metadata.labels.as_ref().unwrap()[TEMPLATE_HASH].clone();
        assert_eq!(set.metadata.name.as_deref(), Some(&*format!("web-{hash}")));
        assert_eq!(size(&set), 3);
        assert_eq!(plan.revision.as_deref(), Some("1"));
        assert_eq!(progressing(&plan.status), "True NewReplicaSetCreated");
        let selector = set.spec.unwrap().selector.match_labels.unwrap();
        assert_eq!(selector[TEMPLATE_HASH], hash);
    }

    #[test]
    fn a_new_template_begins_with_the_surge_and_the_next_revision() {
        let plan = decide(&view(deployment("b", 3), vec![set("a", 1, 3, 3, 3)]));
        let new = plan.create.unwrap();
        assert_eq!(size(&new), 1);
        assert_eq!(plan.revision.as_deref(), Some("2"));
        assert!(plan.update.is_empty());
    }

    #[test]
    fn pods_move_one_step_at_a_time() {
        let old = |size| set("a", 1, size, size, 3);
        let step = |old, new| sizes(&decide(&view(deployment("b", 3), vec![old, new])));
        assert!(
            step(old(3), set("b", 2, 1, 0, 3)).is_empty(),
            "the new pod is not there yet"
        );
        assert_eq!(step(old(3), set("b", 2, 1, 1, 3)), ["a 3→2"]);
        assert_eq!(step(old(2), set("b", 2, 1, 1, 3)), ["b 1→2"]);
        assert_eq!(step(old(1), set("b", 2, 3, 3, 3)), ["a 1→0"]);
    }

    #[test]
    fn recreate_waits_for_the_last_old_pod_before_it_makes_the_new_set() {
        let mut recreate = deployment("b", 3);
        recreate.spec.as_mut().unwrap().strategy = Some(DeploymentStrategy {
            type_: Some("Recreate".into()),
            rolling_update: None,
        });
        let plan = decide(&view(recreate.clone(), vec![set("a", 1, 3, 3, 3)]));
        assert_eq!(sizes(&plan), ["a 3→0"]);
        assert!(plan.create.is_none());
        let mut waiting = view(recreate.clone(), vec![set("a", 1, 0, 0, 3)]);
        waiting.pods = vec![1];
        assert!(decide(&waiting).create.is_none());
        waiting.pods = vec![0];
        assert_eq!(size(&decide(&waiting).create.unwrap()), 3);
    }

    #[test]
    fn going_back_to_an_old_template_uses_its_set_with_a_new_revision() {
        let plan = decide(&view(
            deployment("a", 2),
            vec![set("a", 1, 0, 0, 2), set("b", 2, 2, 2, 2)],
        ));
        assert!(plan.create.is_none());
        assert_eq!(plan.revision.as_deref(), Some("3"));
        assert_eq!(sizes(&plan), ["a 0→1"]);
    }

    #[test]
    fn a_paused_deployment_scales_but_does_not_roll() {
        let mut paused = deployment("b", 5);
        paused.spec.as_mut().unwrap().paused = Some(true);
        let plan = decide(&view(paused, vec![set("a", 1, 3, 3, 3)]));
        assert!(plan.create.is_none());
        assert_eq!(sizes(&plan), ["a 3→5"]);
        assert_eq!(progressing(&plan.status), "Unknown DeploymentPaused");
    }

    #[test]
    fn a_finished_rollout_sets_progressing_and_deletes_revisions_beyond_the_limit() {
        let sets = vec![
            set("a", 1, 0, 0, 2),
            set("b", 2, 0, 0, 2),
            set("c", 3, 2, 2, 2),
        ];
        let plan = decide(&view(deployment("c", 2), sets));
        assert_eq!(progressing(&plan.status), "True NewReplicaSetAvailable");
        let gone: Vec<_> = plan
            .delete
            .iter()
            .map(|set| set.metadata.name.clone().unwrap())
            .collect();
        assert_eq!(gone, ["a"]);
        assert_eq!(plan.status.available_replicas, Some(2));
        assert_eq!(plan.after, None);
    }

    #[test]
    fn a_rollout_without_progress_exceeds_its_deadline() {
        let mut stuck = deployment("b", 2);
        let sets = vec![set("a", 1, 2, 2, 2), set("b", 2, 1, 0, 2)];
        let mut status = decide(&view(stuck.clone(), sets.clone())).status;
        let conditions = status.conditions.as_mut().unwrap();
        conditions.retain(|condition| condition.type_ != progress::PROGRESSING);
        let mut old = progress::condition(
            progress::PROGRESSING,
            "True",
            "ReplicaSetUpdated",
            "",
            at(399),
        );
        old.last_update_time = Some(Time(at(399)));
        conditions.push(old);
        stuck.status = Some(status.clone());
        let plan = decide(&view(stuck.clone(), sets.clone()));
        assert_eq!(progressing(&plan.status), "False ProgressDeadlineExceeded");
        let in_time = View {
            now: at(500),
            ..view(stuck, sets)
        };
        let plan = decide(&in_time);
        assert_eq!(progressing(&plan.status), "True ReplicaSetUpdated");
        assert_eq!(plan.after, Some(Duration::from_secs(500)));
    }
}
