//! Creates VolumeAttachments for the volumes that pods need on their nodes, and deletes them when
//! no pod needs them and the node no longer uses them. The state is read from the API each time, so
//! that a restart loses only since when a detach waits.
//!
//! The queue's keys are nodes.

mod decide;
mod metrics;
#[cfg(test)]
mod model;
mod operations;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use client::{Event, Informer};
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ContainerStatus, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{CSIDriver, VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec},
};
use kube::{Api, Resource, api::ObjectMeta};
use parking_lot::Mutex;
use reconcile::{
    Action, Controller, Error, Key, Kind, Recorder, Writer, placement,
    storage::{access_modes, claim_ref, volume_name},
};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{
    members::{Facts, Member},
    pods::is_terminal,
    shared::{ATTACHED, CLAIM, HANDLE, NODE, Shared, claimed_key, claims_of, handle_key},
};
use decide::{Attachment, CSI_PREFIX, Desired, Host, View, blocked_message, decide, unique_name};
use operations::Operations;

/// The name in [`crate::ALL`].
pub const NAME: &str = "attachdetach";
const ACCOUNT: &str = "attachdetach-controller";

const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
const KEEP_TERMINATED: &str = "volumes.kubernetes.io/keep-terminated-pod-volumes";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// How often volumes that wait for a driver or another node are checked.
const WAIT: Duration = Duration::from_secs(30);

struct AttachDetach {
    shared: Arc<Shared>,
    client: kube::Client,
    nodes: Writer<Node>,
    attachments: Writer<VolumeAttachment>,
    pods: Informer<Pod>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    drivers: Informer<CSIDriver>,
    events: Recorder,
    /// Guards the state per node that exists only in memory.
    memory: Arc<Mutex<HashMap<String, Memory>>>,
}

/// A node's state in memory.
#[derive(Default)]
struct Memory {
    /// Since when attachments wait to be detached.
    waiting_since: BTreeMap<String, Timestamp>,
    /// `volumesInUse` of a deleted node.
    last_in_use: Option<BTreeSet<String>>,
    /// The last event message per volume, so that each is recorded once.
    said: BTreeMap<String, String>,
    operations: Operations,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(AttachDetach {
        shared: shared.clone(),
        client: shared.client(ACCOUNT),
        nodes: shared.writer(ACCOUNT),
        attachments: shared.writer(ACCOUNT),
        pods: shared.informer(),
        claims: shared.informer(),
        volumes: shared.informer(),
        drivers: shared.informer(),
        events: shared.recorder(ACCOUNT, ACCOUNT),
        memory: Arc::default(),
    });
    let memory = controller.memory.clone();
    let counted = controller.clone();
    shared
        .collectors
        .add(move |metrics| counted.collect(metrics));
    let (of_claims, of_volumes, of_attachments, of_drivers) = (
        controller.clone(),
        controller.clone(),
        controller.clone(),
        controller.clone(),
    );
    shared
        .controller(&controller)
        .watches_with(controller.nodes.cache(), move |event| {
            node_event(event, &memory)
        })
        .watches_with(&controller.pods.only(Facts::has_claims), pod_event)
        .watches_with(&controller.claims, move |event| {
            let key = Key::from_object(&**event.object());
            of_claims.nodes_of_claim(&key.namespace, &key.name)
        })
        .watches_with(&controller.volumes, move |event| {
            of_volumes.nodes_of_volume(event.object())
        })
        .watches_with(controller.attachments.cache(), move |event| {
            of_attachments.attachment_event(event)
        })
        .watches_with(&controller.drivers, move |_| {
            let nodes = of_drivers.nodes.cache().list();
            nodes.iter().map(|node| Key::from_object(&**node)).collect()
        })
        // One worker, so that two nodes never attach the same volume at once.
        .workers(1)
        .start();
}

/// The parts of a node that matter here.
fn fingerprint(node: &Node) -> (Host, bool) {
    (host(node), node.metadata.deletion_timestamp.is_some())
}

fn node_event(event: &Event<Node>, memory: &Mutex<HashMap<String, Memory>>) -> Vec<Key> {
    let key = Key::from_object(&**event.object());
    match event {
        Event::Modified { old, new } if fingerprint(old) == fingerprint(new) => Vec::new(),
        Event::Deleted(node) => {
            let mut memory = memory.lock();
            memory.entry(key.name.clone()).or_default().last_in_use = Some(in_use(node));
            vec![key]
        }
        _ => vec![key],
    }
}

fn node_of(pod: &Pod) -> Option<Key> {
    let node = pod.spec.as_ref()?.node_name.as_deref();
    node.filter(|node| !node.is_empty())
        .map(|node| Key::new("", node))
}

fn pod_event(event: &Event<Pod>) -> Vec<Key> {
    let pod = event.object();
    if claims_of(pod).is_empty() {
        return Vec::new();
    }
    // Other changes of a pod do not matter.
    let marks = |pod: &Pod| (node_of(pod), is_over(pod));
    match event {
        Event::Modified { old, new } if marks(old) == marks(new) => Vec::new(),
        _ => node_of(pod).into_iter().collect(),
    }
}

/// The pod's containers have ended and will not run again.
fn is_over(pod: &Pod) -> bool {
    let not_running = |statuses: &Option<Vec<ContainerStatus>>| {
        let mut statuses = statuses.iter().flatten();
        statuses.all(|status| {
            let state = status.state.as_ref();
            state.is_some_and(|state| state.terminated.is_some() || state.waiting.is_some())
        })
    };
    let is_quiet = || {
        pod.status.as_ref().is_none_or(|status| {
            not_running(&status.container_statuses)
                && not_running(&status.init_container_statuses)
                && not_running(&status.ephemeral_container_statuses)
        })
    };
    is_terminal(pod) || (pod.metadata.deletion_timestamp.is_some() && is_quiet())
}

fn in_use(node: &Node) -> BTreeSet<String> {
    let status = node.status.as_ref();
    let used = status.and_then(|status| status.volumes_in_use.clone());
    used.unwrap_or_default().into_iter().collect()
}

fn host(node: &Node) -> Host {
    let annotations = node.metadata.annotations.as_ref();
    let managed = annotations.and_then(|all| all.get(MANAGED));
    if managed.map(String::as_str) != Some("true") {
        return Host::NotManaged;
    }
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let mut taints = taints.into_iter().flatten();
    Host::Present {
        is_ready: placement::is_ready(node),
        is_out_of_service: taints.any(|taint| taint.key == OUT_OF_SERVICE),
        in_use: in_use(node),
        reported: node
            .status
            .as_ref()
            .and_then(|status| status.volumes_attached.clone())
            .unwrap_or_default(),
    }
}

fn csi(volume: &PersistentVolume) -> Option<(String, String)> {
    let source = volume.spec.as_ref()?.csi.as_ref()?;
    Some((source.driver.clone(), source.volume_handle.clone()))
}

/// Whether several nodes may attach the volume at once.
fn is_shared(volume: &PersistentVolume) -> bool {
    let modes = access_modes(volume);
    let several = |mode: &String| matches!(mode.as_str(), "ReadWriteMany" | "ReadOnlyMany");
    modes.is_empty() || modes.iter().any(several)
}

/// The name that every CSI component computes for an attachment.
fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    let digest = Sha256::digest(format!("{handle}{driver}{node}"));
    let hex = digest.iter().map(|byte| format!("{byte:02x}"));
    format!("csi-{}", hex.collect::<String>())
}

/// Driver and handle of a volume by its name in the status of nodes.
fn csi_of(unique: &str) -> Option<(String, String)> {
    let (driver, handle) = unique.strip_prefix(CSI_PREFIX)?.split_once('^')?;
    Some((driver.to_owned(), handle.to_owned()))
}

/// Whether an attachment has the name that this controller gives; others belong to other
/// components. Without the PersistentVolume only the name's format can be checked.
fn is_own(name: &str, volume: Option<&(String, String)>, node: &str) -> bool {
    match volume {
        Some((driver, handle)) => name == attachment_name(handle, driver, node),
        None => name
            .strip_prefix("csi-")
            .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit())),
    }
}

fn source(attachment: &VolumeAttachment) -> Option<&str> {
    attachment.spec.source.persistent_volume_name.as_deref()
}

impl AttachDetach {
    fn nodes_of_claim(&self, namespace: &str, claim: &str) -> Vec<Key> {
        let pods = self.pods.by_index(CLAIM, &claimed_key(namespace, claim));
        pods.iter().filter_map(|pod| node_of(pod)).collect()
    }

    fn nodes_of_volume(&self, volume: &PersistentVolume) -> Vec<Key> {
        let Some(claim) = claim_ref(volume) else {
            return Vec::new();
        };
        let namespace = claim.namespace.as_deref().unwrap_or_default();
        self.nodes_of_claim(namespace, claim.name.as_deref().unwrap_or_default())
    }

    /// Wakes the attachment's node and, when it is deleted, the nodes that wait for its volume.
    fn attachment_event(&self, event: &Event<VolumeAttachment>) -> Vec<Key> {
        let attachment = event.object();
        let mut keys = vec![Key::new("", attachment.spec.node_name.clone())];
        if matches!(event, Event::Deleted(_)) {
            let volume = source(attachment).and_then(|name| self.volumes.get("", name));
            keys.extend(
                volume
                    .iter()
                    .flat_map(|volume| self.nodes_of_volume(volume)),
            );
        }
        keys
    }

    /// The PersistentVolume of a claim, if it must be attached.
    fn attachable(&self, namespace: &str, claim: &str) -> Option<Arc<PersistentVolume>> {
        let claim = self.claims.get(namespace, claim)?;
        let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
        let volume = self.volumes.get("", volume_name(&claim)?)?;
        let owner = claim_ref(&volume)?.uid.as_ref();
        if phase != Some("Bound") || owner != claim.metadata.uid.as_ref() {
            return None;
        }
        let driver = self.drivers.get("", &csi(&volume)?.0);
        let required = driver.and_then(|driver| driver.spec.attach_required);
        required.unwrap_or(true).then_some(volume)
    }

    fn desired(&self, node: &str) -> BTreeMap<String, Desired> {
        let keeps = self.nodes.cache().get("", node).is_some_and(|node| {
            let annotations = node.metadata.annotations.as_ref();
            let keep = annotations.and_then(|all| all.get(KEEP_TERMINATED));
            keep.map(String::as_str) == Some("true")
        });
        let mut desired: BTreeMap<String, Desired> = BTreeMap::new();
        let members = Member::by_index(&self.pods, NODE, node).into_iter();
        let with_claims = members.filter(|member| member.facts().has_claims());
        let mut pods: Vec<_> = with_claims
            .map(|member| self.pods.read_entry(member.entry()))
            .collect();
        pods.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        for pod in pods.iter().filter(|pod| keeps || !is_over(pod)) {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            for claim in claims_of(pod) {
                let Some(volume) = self.attachable(namespace, &claim) else {
                    continue;
                };
                let Some((driver, handle)) = csi(&volume) else {
                    continue;
                };
                let entry = desired.entry(unique_name(&driver, &handle));
                let entry = entry.or_insert_with(|| self.describe(&volume, driver, handle, node));
                entry.pods.push(pod.object_ref(&()));
            }
        }
        desired
    }

    fn describe(
        &self,
        volume: &PersistentVolume,
        driver: String,
        handle: String,
        node: &str,
    ) -> Desired {
        let attachments = self.attachments.cache();
        // Several PersistentVolumes may have one handle: they are one volume.
        let same = self.volumes.by_index(HANDLE, &handle_key(&driver, &handle));
        let names = same.iter().filter_map(|one| one.metadata.name.as_deref());
        let elsewhere: BTreeSet<String> = names
            .flat_map(|name| attachments.by_index(CLAIM, name))
            .map(|one| one.spec.node_name.clone())
            .filter(|other| other != node)
            .collect();
        let mut rivals = Vec::new();
        let claims = same.iter().filter_map(|one| claim_ref(one));
        for claim in claims.filter(|_| !elsewhere.is_empty()) {
            let namespace = claim.namespace.as_deref().unwrap_or_default();
            let claim = claim.name.as_deref().unwrap_or_default();
            let pods = self.pods.by_index(CLAIM, &claimed_key(namespace, claim));
            let there = pods.iter().filter(|pod| {
                !is_over(pod) && node_of(pod).is_some_and(|key| elsewhere.contains(&key.name))
            });
            rivals.extend(there.map(|pod| pod.object_ref(&())));
        }
        Desired {
            volume: volume.metadata.name.clone().unwrap_or_default(),
            driver,
            handle,
            is_shared: is_shared(volume),
            pods: Vec::new(),
            elsewhere,
            rivals,
        }
    }

    fn attachments(&self, node: &str, host: &Host) -> Vec<Attachment> {
        let known = self.attachments.cache().by_index(ATTACHED, node);
        let attachment = |known: &Arc<VolumeAttachment>| {
            let volume = source(known)?.to_owned();
            let object = self.volumes.get("", &volume);
            let name = known.metadata.name.clone()?;
            let unique = object.and_then(|volume| csi(&volume)).or_else(|| {
                let mut all = host.volumes();
                all.find_map(|unique| csi_of(unique).filter(|csi| is_own(&name, Some(csi), node)))
            });
            if !is_own(&name, unique.as_ref(), node) {
                return None;
            }
            let status = known.status.as_ref();
            let error = status.and_then(|status| status.attach_error.as_ref()?.message.clone());
            Some(Attachment {
                name,
                unique_name: unique.map(|(driver, handle)| unique_name(&driver, &handle)),
                volume,
                is_attached: status.is_some_and(|status| status.attached),
                is_leaving: known.metadata.deletion_timestamp.is_some(),
                error,
            })
        };
        known.iter().filter_map(attachment).collect()
    }

    fn view(&self, node: &str) -> View {
        let memory = self.memory.lock();
        let memory = memory.get(node);
        let host = match self.nodes.cache().get("", node) {
            Some(found) => host(&found),
            None => Host::Gone {
                in_use: memory.and_then(|memory| memory.last_in_use.clone()),
            },
        };
        View {
            desired: self.desired(node),
            attachments: self.attachments(node, &host),
            host,
            waiting_since: memory
                .map(|memory| memory.waiting_since.clone())
                .unwrap_or_default(),
            now: self.shared.now(),
        }
    }

    async fn attach(&self, node: &str, desired: &Desired) -> Result<(), Error> {
        let attachment = VolumeAttachment {
            metadata: ObjectMeta {
                name: Some(attachment_name(&desired.handle, &desired.driver, node)),
                ..ObjectMeta::default()
            },
            spec: VolumeAttachmentSpec {
                attacher: desired.driver.clone(),
                node_name: node.to_owned(),
                source: VolumeAttachmentSource {
                    persistent_volume_name: Some(desired.volume.clone()),
                    ..VolumeAttachmentSource::default()
                },
            },
            ..VolumeAttachment::default()
        };
        let begun = Instant::now();
        match self.attachments.cluster_create(&attachment).await {
            Err(error) if error.reason() == "AlreadyExists" => return Ok(()),
            other => other?,
        };
        let name = attachment.metadata.name.unwrap_or_default();
        self.begun(node, |operations| {
            operations.attach(name, &desired.driver, begun)
        });
        Ok(())
    }

    /// Notes an operation of a node.
    fn begun(&self, node: &str, note: impl FnOnce(&mut Operations)) {
        let mut memory = self.memory.lock();
        note(&mut memory.entry(node.to_owned()).or_default().operations);
    }

    /// Deletes the attachment; with `must_confirm` only if the Node in the API server does not use
    /// the volume.
    async fn detach(&self, node: &str, name: &str, must_confirm: bool) -> Result<(), Error> {
        let Some(attachment) = self.attachments.cache().get("", name) else {
            return Ok(());
        };
        if must_confirm {
            let api: Api<Node> = Api::all(self.client.clone());
            let found = api.get_opt(node).await?;
            let used = found.map(|found| in_use(&found)).unwrap_or_default();
            let mut used = used.iter().filter_map(|unique| csi_of(unique));
            if used.any(|(driver, handle)| name == attachment_name(&handle, &driver, node)) {
                return Err(Error::Invalid(format!("{name} is still in use by {node}")));
            }
        }
        let begun = Instant::now();
        self.attachments.cluster_delete(&attachment).await?;
        let driver = &attachment.spec.attacher;
        self.begun(node, |operations| {
            operations.detach(name.to_owned(), driver, begun)
        });
        Ok(())
    }

    /// Records an event for the pods that need a volume, once per message.
    fn record_event(
        &self,
        node: &str,
        desired: &Desired,
        messages: &[(String, usize)],
        kind: Kind,
    ) {
        let reason = match kind {
            Kind::Normal => "SuccessfulAttachVolume",
            Kind::Warning => "FailedAttachVolume",
        };
        let text: String = messages
            .iter()
            .map(|(message, _)| message.as_str())
            .collect();
        let mut memory = self.memory.lock();
        let said = &mut memory.entry(node.to_owned()).or_default().said;
        if said.insert(desired.volume.clone(), text.clone()) == Some(text) {
            return;
        }
        for (message, at) in messages {
            self.events
                .event(&desired.pods[*at], kind, reason, message.clone());
        }
    }

    fn tell_pods(&self, node: &str, view: &View, plan: &decide::Plan) {
        for desired in &plan.blocked {
            let pods = desired.pods.iter().enumerate();
            let messages = pods.map(|(at, pod)| (blocked_message(desired, pod), at));
            self.record_event(node, desired, &messages.collect::<Vec<_>>(), Kind::Warning);
        }
        let same = |desired: &Desired, message: String| {
            let pods = 0..desired.pods.len();
            pods.map(|at| (message.clone(), at)).collect::<Vec<_>>()
        };
        for (desired, why) in &plan.failed {
            let volume = &desired.volume;
            let message = format!("AttachVolume.Attach failed for volume {volume:?} : {why}");
            self.record_event(node, desired, &same(desired, message), Kind::Warning);
        }
        let to_report = plan.report.iter().flatten();
        let Host::Present { reported, .. } = &view.host else {
            return;
        };
        for new in to_report.filter(|volume| !reported.contains(volume)) {
            if let Some(desired) = view.desired.get(&new.name) {
                let volume = &desired.volume;
                let message = format!("AttachVolume.Attach succeeded for volume {volume:?} ");
                self.record_event(node, desired, &same(desired, message), Kind::Normal);
            }
        }
    }

    fn remember(&self, node: &str, view: &View, plan: &decide::Plan) {
        let mut memory = self.memory.lock();
        if let Some(known) = memory.get_mut(node) {
            let ended = known.operations.observe(&view.attachments, Instant::now());
            metrics::count_operations(&self.shared.metrics, &ended);
        }
        let is_gone = matches!(view.host, Host::Gone { .. });
        if is_gone && view.attachments.is_empty() {
            memory.remove(node);
            return;
        }
        let memory = memory.entry(node.to_owned()).or_default();
        memory.waiting_since.clone_from(&plan.waiting);
        if !is_gone {
            memory.last_in_use = None;
        }
        let volumes: BTreeSet<&String> = view.desired.values().map(|one| &one.volume).collect();
        memory.said.retain(|volume, _| volumes.contains(volume));
    }
}

impl Controller for AttachDetach {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let node = key.name.as_str();
        let view = self.view(node);
        let plan = decide(&view);
        self.remember(node, &view, &plan);
        // `volumesAttached` is updated before a volume is detached.
        if let Some(report) = &plan.report {
            let patch = json!({"status": {"volumesAttached": report}});
            self.nodes.cluster_patch_status(node, &patch).await?;
        }
        self.tell_pods(node, &view, &plan);
        let mut results = Vec::new();
        for (name, must_confirm) in &plan.detach {
            let detached = self.detach(node, name, *must_confirm).await;
            if let (Ok(()), false) = (&detached, must_confirm) {
                let reason = view.host.force_detach_reason();
                let metrics = &self.shared.metrics;
                metrics.forced_detaches.increase([("reason", reason)]);
            }
            results.push(detached);
        }
        for desired in &plan.attach {
            results.push(self.attach(node, desired).await);
        }
        reconcile::all(results)?;
        let waits = !plan.blocked.is_empty() || !plan.failed.is_empty();
        let again = plan
            .look_again
            .into_iter()
            .chain(waits.then_some(WAIT))
            .min();
        Ok(again.map_or(Action::Done, Action::After))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attachment_has_the_name_that_external_components_compute() {
        let digest = "0f5bf84472510912fef2d8a701ae55112cb444df4f26d1323a5ccfd23e18b9b7";
        let name = attachment_name("vol", "x.io", "n1");
        assert_eq!(name, format!("csi-{digest}"));
    }

    #[test]
    fn attachments_that_others_made_are_not_its_own() {
        let volume = ("x.io".to_owned(), "vol".to_owned());
        let own = attachment_name("vol", "x.io", "n1");
        for (name, volume, is_ours) in [
            (&*own, Some(&volume), true),
            (&*own, None, true),
            (&*attachment_name("vol", "x.io", "n2"), Some(&volume), false),
            ("va-e2e-1", Some(&volume), false),
            ("va-e2e-1", None, false),
            ("csi-1", None, false),
        ] {
            assert_eq!(is_own(name, volume, "n1"), is_ours, "{name}");
        }
    }

    #[test]
    fn a_pod_that_is_being_deleted_needs_its_volumes_while_a_container_runs() {
        let pod = |state: serde_json::Value, leaving: bool| -> Pod {
            let deleted = leaving.then_some("2026-01-01T00:00:00Z");
            let status = json!({"name": "c", "image": "", "imageID": "", "ready": false,
                "restartCount": 0, "state": state});
            let pod = json!({"metadata": {"deletionTimestamp": deleted},
                "status": {"phase": "Running", "containerStatuses": [status]}});
            serde_json::from_value(pod).unwrap()
        };
        assert!(!is_over(&pod(json!({"running": {}}), false)));
        assert!(!is_over(&pod(json!({"running": {}}), true)));
        assert!(is_over(&pod(json!({"terminated": {"exitCode": 0}}), true)));
        assert!(!is_over(&pod(
            json!({"terminated": {"exitCode": 0}}),
            false
        )));
    }
}
