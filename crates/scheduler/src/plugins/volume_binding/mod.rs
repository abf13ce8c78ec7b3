//! Restricts a pod to nodes where its claims have volumes or can get them. Claims with
//! WaitForFirstConsumer are bound with the pod: a volume is chosen or a node selected when the pod
//! gets its node, and the pod is bound only after them.

mod bind;
mod find;
#[cfg(test)]
mod tests;

use std::{any::Any, borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use reconcile::storage::requested;
use serde::Deserialize;
use serde_json::Value;

use super::arguments;
use crate::{
    cluster::{Cluster, Slot},
    framework::{
        BindResult, Plugin, Point, PreFilter, State,
        candidates::Candidates,
        event::{Event, EventKind},
    },
    in_tree,
    pod::PodInfo,
    template::VolumeClaim,
    write::Writes,
};
use bind::Binding;
use find::{ClaimRequirements, NodeVolumes, ReservedVolumes, Unbound, find, limit};

/// The plugin's name.
pub(crate) const NAME: &str = "VolumeBinding";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Arguments {
    /// How long binding a pod's volumes may take.
    bind_timeout_seconds: i64,
}

impl Default for Arguments {
    fn default() -> Self {
        Self {
            bind_timeout_seconds: 600,
        }
    }
}

/// The plugin.
pub(super) struct VolumeBinding {
    timeout: Duration,
    /// Guards the reservations of pods that are being bound; never held across an await.
    reserved: Mutex<Reserved>,
}

#[derive(Default)]
struct Reserved {
    taken: ReservedVolumes,
    /// Each pod's reservations, by uid.
    pods: HashMap<Arc<str>, NodeVolumes>,
}

impl Reserved {
    fn release(&mut self, pod: &PodInfo) {
        if let Some(found) = self.pods.remove(&pod.uid) {
            self.taken.give_back(&found);
        }
    }
}

/// Creates the plugin.
pub(super) fn new(value: &Value) -> Result<Arc<dyn Plugin>, String> {
    let seconds = arguments::<Arguments>(value)?.bind_timeout_seconds;
    let seconds = u64::try_from(seconds).map_err(|_| {
        format!("bindTimeoutSeconds: Invalid value: {seconds}: invalid BindTimeoutSeconds, should not be a negative value")
    })?;
    Ok(Arc::new(VolumeBinding {
        timeout: Duration::from_secs(seconds),
        reserved: Mutex::default(),
    }))
}

impl State for ClaimRequirements {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What the claims need, or why the pod cannot be scheduled.
fn find_claims(pod: &PodInfo, cluster: &Cluster) -> Result<ClaimRequirements, Cow<'static, str>> {
    let (mut wanted, mut is_unbound) = (ClaimRequirements::default(), false);
    for claimed in &pod.template.claims {
        let name = pod.claim_name(claimed);
        let ephemeral = matches!(claimed, VolumeClaim::Ephemeral(_));
        let claim = cluster
            .claims
            .claim(pod.namespace(), &name)
            .ok_or_else(|| {
                if ephemeral {
                    let why = "waiting for ephemeral volume controller to create the";
                    format!("{why} persistentvolumeclaim \"{name}\"")
                } else {
                    format!("persistentvolumeclaim \"{name}\" not found")
                }
            })?;
        let volume = claim.volume.as_deref().unwrap_or_default();
        if claim.lost {
            let why = "bound to non-existent persistentvolume";
            return Err(format!("persistentvolumeclaim \"{name}\" {why} \"{volume}\"").into());
        }
        if claim.terminating {
            return Err(format!("persistentvolumeclaim \"{name}\" is being deleted").into());
        }
        if ephemeral && claim.owner.as_deref() != Some(&*pod.uid) {
            let (namespace, pod) = (pod.namespace(), &pod.name);
            return Err(format!(
                "PVC {namespace}/{name} was not created for pod {namespace}/{pod} \
                 (pod is not owner)"
            )
            .into());
        }
        if claim.bound {
            match cluster.claims.volume(volume) {
                Some(volume) => wanted.bound.push(volume.object.clone()),
                None => wanted.volume_gone = true,
            }
            continue;
        }
        let class = claim.class.as_deref();
        let waits = class.and_then(|class| cluster.claims.waits_for_consumer(class));
        match class.filter(|_| waits == Some(true) && claim.volume.is_none()) {
            Some(class) => wanted.unbound.push(Unbound {
                key: (pod.namespace().to_string(), name),
                claim: claim.object.clone(),
                class: class.to_owned(),
                selected_node: claim.selected_node.clone(),
            }),
            None => is_unbound = true,
        }
    }
    if is_unbound {
        return Err("pod has unbound immediate PersistentVolumeClaims".into());
    }
    // Several volumes may mount one claim; small claims choose first.
    wanted
        .unbound
        .sort_by_cached_key(|claim| (requested(&claim.claim), claim.key.clone()));
    wanted.unbound.dedup_by(|a, b| a.key == b.key);
    Ok(wanted)
}

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[
            Point::PreFilter,
            Point::Filter,
            Point::Reserve,
            Point::PreBind,
            Point::PostBind,
        ]
    }

    fn pre_filter(&self, pod: &PodInfo, cluster: &Cluster) -> PreFilter {
        if pod.template.claims.is_empty() {
            return PreFilter::Skip;
        }
        match find_claims(pod, cluster) {
            Ok(wanted) => PreFilter::Continue(Box::new(wanted)),
            Err(why) => PreFilter::Reject(why, false),
        }
    }

    fn filter(&self, _: &PodInfo, cluster: &Cluster, state: &dyn Any, candidates: &mut Candidates) {
        let Some(wanted) = state.downcast_ref::<ClaimRequirements>() else {
            return;
        };
        let reserved = self.reserved.lock();
        candidates.retain_with(NAME, |slot| {
            let node = cluster.node(slot)?;
            let reasons = find(wanted, cluster, &reserved.taken, node).err()?;
            Some((reasons.into_iter().map(Cow::Borrowed).collect(), false))
        });
    }

    fn reserve(&self, pod: &PodInfo, cluster: &Cluster, slot: Slot) -> Result<(), String> {
        if pod.template.claims.is_empty() {
            return Ok(());
        }
        let wanted = find_claims(pod, cluster).map_err(Cow::into_owned)?;
        let node = cluster.node(slot).ok_or("the node is gone")?;
        let mut reserved = self.reserved.lock();
        let found = find(&wanted, cluster, &reserved.taken, node);
        let found = found.map_err(|reasons| reasons.join(", "))?;
        if !found.is_empty() {
            reserved.taken.take(&found, &node.name);
            reserved.pods.insert(pod.uid.clone(), found);
        }
        Ok(())
    }

    fn unreserve(&self, pod: &PodInfo, _: Slot) {
        self.reserved.lock().release(pod);
    }

    fn pre_bind<'a>(
        &'a self,
        writes: &'a Writes,
        pod: &'a PodInfo,
        node: &'a str,
    ) -> BoxFuture<'a, BindResult> {
        let found = self.reserved.lock().pods.get(&pod.uid).cloned();
        let Some((found, caches)) = found.zip(writes.bindings.as_ref()) else {
            return Box::pin(async { Ok(()) });
        };
        Box::pin(async move {
            let binding = Binding {
                client: &writes.client,
                caches,
                pod,
                node,
                found: &found,
            };
            let bound = binding.run(self.timeout).await;
            bound.map_err(|why| kube::Error::Service(why.into()))
        })
    }

    fn post_bind(&self, pod: &PodInfo, _: &str) {
        self.reserved.lock().release(pod);
    }

    fn events(&self) -> &'static [EventKind] {
        &[
            EventKind::NodeAdded,
            EventKind::NodeUpdated,
            EventKind::Volume,
            EventKind::Claim,
            EventKind::Class,
            EventKind::CsiNode,
            EventKind::CsiDriver,
            EventKind::Capacity,
        ]
    }

    fn is_helped_by(&self, pod: &PodInfo, event: &Event<'_>, _: &Cluster) -> bool {
        match event {
            Event::NodeAdded(_) | Event::Volume | Event::CsiNode { old: None, .. } => true,
            Event::NodeUpdated { old, new } => old.labels != new.labels,
            Event::CsiNode {
                old: Some(old),
                new,
            } => in_tree::migrated_plugins(old) != in_tree::migrated_plugins(new),
            Event::Claim {
                namespace, name, ..
            } => pod.uses_claim(namespace, name),
            Event::Class { old, new } => {
                old.is_none_or(|old| old.allowed_topologies != new.allowed_topologies)
            }
            // Capacity no longer counts.
            Event::CsiDriver { old, new } => {
                old.spec.storage_capacity == Some(true) && new.spec.storage_capacity != Some(true)
            }
            Event::Capacity { old, new } => {
                let before = old.and_then(limit);
                old.is_none() || limit(new).is_some_and(|now| before.is_none_or(|b| now > b))
            }
            _ => false,
        }
    }
}
