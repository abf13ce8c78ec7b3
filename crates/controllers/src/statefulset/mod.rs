//! StatefulSet: pods with names, storage and an order of their own. One with an ordinal is never
//! replaced before the old one is really gone.

mod decide;

use std::sync::Arc;

use k8s_openapi::api::{
    apps::v1::{ControllerRevision, StatefulSet},
    core::v1::{
        PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume,
    },
};
use kube::Api;
use reconcile::{Action, Controller, Error, Key, Kind, Queue, Recorder, Selector, Writer};

use crate::{
    claim, history, podcontrol,
    pods::is_active,
    shared::{OWNER, Shared, orphans_of},
};
use decide::{Step, View, decide, ordinal};

/// As in the table of controllers.
pub const NAME: &str = "statefulset";
const ACCOUNT: &str = "statefulset-controller";

struct Sets {
    shared: Arc<Shared>,
    sets: Writer<StatefulSet>,
    pods: Writer<Pod>,
    revisions: Writer<ControllerRevision>,
    recorder: Recorder,
}

/// Starts it.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Sets {
        shared: shared.clone(),
        sets: shared.writer(ACCOUNT),
        pods: shared.writer(ACCOUNT),
        revisions: shared.writer(ACCOUNT),
        recorder: shared.recorder(ACCOUNT, ACCOUNT),
    });
    let shared = shared.clone();
    shared.context.clone().spawn(NAME, async move {
        let sets = controller.sets.cache().clone();
        sets.synced().await;
        controller.pods.cache().synced().await;
        controller.revisions.cache().synced().await;
        let queue = Queue::default();
        let context = &shared.context;
        reconcile::follow(context, &sets, &queue, |event| {
            vec![Key::of(&**event.object())]
        });
        reconcile::follow(context, controller.pods.cache(), &queue, move |event| {
            podcontrol::owner_keys(event, "StatefulSet", |pod| {
                let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
                let matching = sets.list_in(namespace).into_iter().filter(|set| {
                    let selector = set.spec.as_ref().map(|spec| &spec.selector);
                    Selector::of(selector).matches(pod.metadata.labels.as_ref())
                });
                matching.map(|set| Key::of(&*set)).collect()
            })
        });
        reconcile::run(context, controller, queue, 5);
        std::future::pending::<()>().await;
    });
}

impl Controller for Sets {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(set) = self.sets.cache().get(&key.namespace, &key.name) else {
            return Ok(Action::Done);
        };
        let spec = set.spec.clone().unwrap_or_default();
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Done);
        }
        let collisions = set
            .status
            .as_ref()
            .and_then(|status| status.collision_count);
        let (template, revisions) = (&spec.template, &self.revisions);
        let newest = history::sync(&*set, &spec.selector, template, revisions, collisions).await?;
        let uid = set.metadata.uid.as_deref().unwrap_or_default();
        let cache = self.pods.cache();
        let mut candidates = cache.by_index(OWNER, uid);
        let orphans = cache.by_index(OWNER, &orphans_of(&key.namespace));
        candidates.extend(
            orphans
                .into_iter()
                .filter(|pod| ordinal(&set, pod).is_some() && is_active(pod)),
        );
        let selector = Selector::of(Some(&spec.selector));
        let api = Api::namespaced(self.shared.client(ACCOUNT), &key.namespace);
        let pods = claim::claim(&*set, &api, &selector, &self.pods, candidates, None).await?;
        let newest_hash = newest.metadata.name.clone().unwrap_or_default();
        let view = View {
            set: &set,
            newest: &newest_hash,
            pods: &pods,
            now: self.shared.now(),
        };
        let plan = decide(&view);
        let mut outcome = Ok(());
        for step in &plan.steps {
            outcome = self.act(&set, step).await;
            if outcome.is_err() {
                break;
            }
        }
        if set.status.as_ref() != Some(&plan.status) {
            let updated = StatefulSet {
                status: Some(plan.status.clone()),
                ..(*set).clone()
            };
            self.sets.update_status(&key.namespace, &updated).await?;
        }
        outcome?;
        let live = pods
            .iter()
            .filter_map(|pod| pod.metadata.labels.as_ref()?.get(history::HASH));
        let mut live: Vec<String> = live.map(|label| short(&key.name, label)).collect();
        live.extend(
            plan.status
                .current_revision
                .iter()
                .map(|name| short(&key.name, name)),
        );
        live.push(history::hash(&newest));
        let live: Vec<&str> = live.iter().map(String::as_str).collect();
        history::trim(
            revisions,
            uid,
            &live,
            spec.revision_history_limit.unwrap_or(10),
        )
        .await?;
        Ok(plan.after.map_or(Action::Done, Action::After))
    }
}

/// Pods of a StatefulSet carry the revision's whole name; the revision its hash.
fn short(set: &str, name: &str) -> String {
    name.strip_prefix(&format!("{set}-"))
        .unwrap_or(name)
        .to_owned()
}

impl Sets {
    async fn act(&self, set: &StatefulSet, step: &Step) -> Result<(), Error> {
        let about = kube::Resource::object_ref(set, &());
        let name = set.metadata.name.as_deref().unwrap_or_default();
        let (verb, pod, outcome) = match step {
            Step::Create { ordinal, revision } => {
                let pod = self.pod(set, *ordinal, revision);
                let pod_name = pod.metadata.name.clone().unwrap_or_default();
                self.claim_storage(set, *ordinal, &pod_name).await?;
                let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
                let created = self.pods.create(namespace, &pod).await.map(|_| ());
                ("create", pod_name, created)
            }
            Step::Delete(pod) => {
                let pod_name = pod.metadata.name.clone().unwrap_or_default();
                ("delete", pod_name, self.pods.delete(pod).await)
            }
        };
        let (good, bad) = if verb == "create" {
            ("SuccessfulCreate", "FailedCreate")
        } else {
            ("SuccessfulDelete", "FailedDelete")
        };
        match &outcome {
            Ok(()) => {
                let text = format!("{verb} Pod {pod} in StatefulSet {name} successful");
                self.recorder.event(&about, Kind::Normal, good, text);
            }
            Err(error) if error.is_namespace_terminating() => return Ok(()),
            Err(error) => {
                let reason = podcontrol::message(error);
                let text = format!("{verb} Pod {pod} in StatefulSet {name} failed error: {reason}");
                self.recorder.event(&about, Kind::Warning, bad, text);
            }
        }
        outcome
    }

    /// The template of a revision, or the set's own.
    fn template(&self, set: &StatefulSet, revision: &str) -> PodTemplateSpec {
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let stored = self
            .revisions
            .cache()
            .get(namespace, revision)
            .and_then(|stored| {
                let template = stored
                    .data
                    .as_ref()?
                    .0
                    .get("spec")?
                    .get("template")?
                    .clone();
                serde_json::from_value(template).ok()
            });
        stored.unwrap_or_else(|| set.spec.clone().unwrap_or_default().template)
    }

    fn pod(&self, set: &StatefulSet, ordinal: i32, revision: &str) -> Pod {
        identified(set, ordinal, revision, &self.template(set, revision))
    }

    /// Makes the claims that a pod will use; those that exist stay as they are.
    async fn claim_storage(&self, set: &StatefulSet, ordinal: i32, pod: &str) -> Result<(), Error> {
        let spec = set.spec.clone().unwrap_or_default();
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(self.shared.client(ACCOUNT), namespace);
        for template in spec.volume_claim_templates.iter().flatten() {
            let mut claim = template.clone();
            let name = claim_name(set, template, ordinal);
            if api.get_opt(&name).await?.is_some() {
                continue;
            }
            claim.metadata.name = Some(name.clone());
            claim.metadata.namespace = Some(namespace.to_owned());
            let labels = spec.selector.match_labels.clone().unwrap_or_default();
            claim.metadata.labels.get_or_insert_default().extend(labels);
            claim.status = None;
            api.create(&kube::api::PostParams::default(), &claim)
                .await?;
            let set_name = set.metadata.name.as_deref().unwrap_or_default();
            let text = format!("create Claim {name} Pod {pod} in StatefulSet {set_name} success");
            let about = kube::Resource::object_ref(set, &());
            self.recorder
                .event(&about, Kind::Normal, "SuccessfulCreate", text);
        }
        Ok(())
    }
}

fn claim_name(set: &StatefulSet, template: &PersistentVolumeClaim, ordinal: i32) -> String {
    let name = template.metadata.name.as_deref().unwrap_or_default();
    format!(
        "{name}-{}-{ordinal}",
        set.metadata.name.as_deref().unwrap_or_default()
    )
}

/// A pod with the name, host name and storage of its ordinal.
fn identified(set: &StatefulSet, ordinal: i32, revision: &str, template: &PodTemplateSpec) -> Pod {
    let spec = set.spec.clone().unwrap_or_default();
    let name = format!(
        "{}-{ordinal}",
        set.metadata.name.as_deref().unwrap_or_default()
    );
    let mut pod = podcontrol::from_template(set, Some(template));
    pod.metadata.generate_name = None;
    pod.metadata.name = Some(name.clone());
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert("statefulset.kubernetes.io/pod-name".into(), name.clone());
    labels.insert("apps.kubernetes.io/pod-index".into(), ordinal.to_string());
    labels.insert(history::HASH.into(), revision.to_owned());
    let pod_spec = pod.spec.get_or_insert_default();
    pod_spec.hostname = Some(name);
    pod_spec.subdomain = spec.service_name.clone().filter(|name| !name.is_empty());
    let volumes = pod_spec.volumes.get_or_insert_default();
    for template in spec.volume_claim_templates.iter().flatten() {
        let volume = template.metadata.name.clone().unwrap_or_default();
        volumes.retain(|known| known.name != volume);
        let source = PersistentVolumeClaimVolumeSource {
            claim_name: claim_name(set, template, ordinal),
            read_only: None,
        };
        volumes.push(Volume {
            name: volume,
            persistent_volume_claim: Some(source),
            ..Default::default()
        });
    }
    if volumes.is_empty() {
        pod_spec.volumes = None;
    }
    pod
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::StatefulSetSpec;

    use super::*;

    #[test]
    fn a_pod_has_the_name_host_name_and_storage_of_its_ordinal() {
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.name = Some("data".into());
        let mut set = StatefulSet::default();
        set.metadata.name = Some("db".into());
        set.spec = Some(StatefulSetSpec {
            service_name: Some("peers".into()),
            volume_claim_templates: Some(vec![claim]),
            ..Default::default()
        });
        let pod = identified(&set, 2, "db-abc", &PodTemplateSpec::default());
        assert_eq!(pod.metadata.name.as_deref(), Some("db-2"));
        let spec = pod.spec.unwrap();
        assert_eq!(spec.hostname.as_deref(), Some("db-2"));
        assert_eq!(spec.subdomain.as_deref(), Some("peers"));
        let volume = spec.volumes.unwrap().remove(0);
        assert_eq!(
            volume.persistent_volume_claim.unwrap().claim_name,
            "data-db-2"
        );
    }
}
