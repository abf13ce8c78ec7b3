//! The scheduler's watches, and how each change is applied.

use std::sync::Arc;

use client::{Event, Informer, Subscription, informer::Object};
use futures::future::{BoxFuture, select_all};
use k8s_openapi::api::{
    apps::v1::{ReplicaSet, StatefulSet},
    core::v1::{
        Namespace, PersistentVolume, PersistentVolumeClaim, ReplicationController, Service,
    },
    policy::v1::PodDisruptionBudget,
    resource::v1::{DeviceClass, ResourceClaim, ResourceSlice},
    storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment},
};
use kube::Resource;
use lifecycle::Context;
use reconcile::{Selector, devices::allocation};
use tokio::time::Instant;

use crate::{
    bindings::Bindings, devices::slices::Slice, framework::event::Event as Happened, run::Loop,
};

/// A change to apply.
type Change = Box<dyn FnOnce(&mut Loop) + Send>;

/// Changes of one kind.
trait Feed: Send {
    /// Applies all pending changes.
    fn drain(&mut self, scheduler: &mut Loop);

    /// The next change; `None` if the watch has ended. Cancel-safe.
    fn next(&mut self) -> BoxFuture<'_, Option<Change>>;
}

struct Kind<K: 'static> {
    events: Subscription<K>,
    apply: fn(&mut Loop, &Event<K>),
}

impl<K: Object> Feed for Kind<K> {
    fn drain(&mut self, scheduler: &mut Loop) {
        while let Some(event) = self.events.try_next() {
            (self.apply)(scheduler, &event);
        }
    }

    fn next(&mut self) -> BoxFuture<'_, Option<Change>> {
        Box::pin(async {
            let (event, apply) = (self.events.next().await?, self.apply);
            Some(Box::new(move |scheduler: &mut Loop| apply(scheduler, &event)) as Change)
        })
    }
}

/// All watches, in the order in which changes are applied: other objects before pods.
pub(crate) struct Inputs {
    feeds: Vec<Box<dyn Feed>>,
}

async fn watch<K>(
    context: &Context,
    client: &kube::Client,
    apply: fn(&mut Loop, &Event<K>),
) -> Box<dyn Feed>
where
    K: Object + Resource<DynamicType = ()>,
{
    follow(&Informer::builder(client.clone()).start(context), apply).await
}

async fn follow<K: Object>(
    informer: &Informer<K>,
    apply: fn(&mut Loop, &Event<K>),
) -> Box<dyn Feed> {
    informer.synced().await;
    Box::new(Kind {
        events: informer.subscribe(),
        apply,
    })
}

impl Inputs {
    /// Starts the watches and waits until they have synced.
    pub(crate) async fn start(context: &Context, client: &kube::Client) -> (Self, Bindings) {
        let bindings = Bindings::start(context, client);
        let (first, second, third, fourth) = tokio::join!(
            async {
                tokio::join!(
                    watch::<Namespace>(context, client, on_namespace),
                    watch::<Service>(context, client, on_service),
                    watch::<ReplicationController>(context, client, on_replication_controller),
                    watch::<ReplicaSet>(context, client, on_replica_set),
                    watch::<StatefulSet>(context, client, on_stateful_set),
                )
            },
            async {
                tokio::join!(
                    watch::<PodDisruptionBudget>(context, client, on_budget),
                    watch::<StorageClass>(context, client, on_class),
                    follow(&bindings.volumes, on_volume),
                    follow(&bindings.claims, on_claim),
                    follow(&bindings.device_claims, on_device_claim),
                )
            },
            async {
                tokio::join!(
                    follow(&bindings.nodes, Loop::on_node),
                    follow(&bindings.pods, Loop::on_pod),
                )
            },
            async {
                tokio::join!(
                    watch::<CSIDriver>(context, client, on_driver),
                    watch::<CSINode>(context, client, on_csi_node),
                    watch::<CSIStorageCapacity>(context, client, on_capacity),
                    watch::<VolumeAttachment>(context, client, on_attachment),
                    watch::<DeviceClass>(context, client, on_device_class),
                    watch::<ResourceSlice>(context, client, on_slice),
                )
            },
        );
        let (namespaces, services, rcs, sets, stateful) = first;
        let (budgets, classes, volumes, claims, devices) = second;
        let (nodes, pods) = third;
        let (drivers, csi_nodes, capacities, attachments, device_classes, slices) = fourth;
        let feeds = vec![
            namespaces,
            services,
            rcs,
            sets,
            stateful,
            budgets,
            classes,
            drivers,
            csi_nodes,
            capacities,
            attachments,
            volumes,
            claims,
            device_classes,
            slices,
            devices,
            nodes,
            pods,
        ];
        (Self { feeds }, bindings)
    }

    /// Applies all pending changes.
    pub(crate) fn drain(&mut self, scheduler: &mut Loop) {
        for feed in &mut self.feeds {
            feed.drain(scheduler);
        }
        scheduler.drain_results();
    }

    /// Waits for the next change or until `due`; false if a watch has ended.
    pub(crate) async fn wait(&mut self, scheduler: &mut Loop, due: Instant) -> bool {
        let changes = select_all(self.feeds.iter_mut().map(|feed| feed.next()));
        let change = tokio::select! {
            (change, _, _) = changes => change,
            result = scheduler.next_result() => result,
            () = tokio::time::sleep_until(due) => return true,
        };
        change.map(|change| change(scheduler)).is_some()
    }
}

fn named<K: Resource<DynamicType = ()>>(event: &Event<K>) -> (&str, &str) {
    let meta = event.object().meta();
    (
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default(),
    )
}

/// The object, unless it was deleted.
fn newest<K>(event: &Event<K>) -> Option<&Arc<K>> {
    match event {
        Event::Deleted(_) => None,
        other => Some(other.object()),
    }
}

fn on_namespace(scheduler: &mut Loop, event: &Event<Namespace>) {
    let labels = newest(event).map(|object| object.metadata.labels.clone().unwrap_or_default());
    scheduler.cluster().put_namespace(named(event).1, labels);
    scheduler.happened(&Happened::Namespace);
}

fn on_service(scheduler: &mut Loop, event: &Event<Service>) {
    let (namespace, name) = named(event);
    let spec = newest(event).and_then(|service| service.spec.as_ref());
    let selector = spec.and_then(|spec| spec.selector.clone());
    let workloads = &mut scheduler.cluster().workloads;
    workloads.put_service(
        namespace,
        name,
        selector.filter(|labels| !labels.is_empty()),
    );
}

fn on_replication_controller(scheduler: &mut Loop, event: &Event<ReplicationController>) {
    let (namespace, name) = named(event);
    let spec = newest(event).and_then(|object| object.spec.as_ref());
    let labels = spec.and_then(|spec| spec.selector.as_ref());
    let selector = labels.map(Selector::labels);
    let workloads = &mut scheduler.cluster().workloads;
    workloads.put_controller("ReplicationController", namespace, name, selector);
}

fn on_replica_set(scheduler: &mut Loop, event: &Event<ReplicaSet>) {
    let (namespace, name) = named(event);
    let spec = newest(event).and_then(|object| object.spec.as_ref());
    let selector = spec.map(|spec| Selector::from_label_selector(Some(&spec.selector)));
    let workloads = &mut scheduler.cluster().workloads;
    workloads.put_controller("ReplicaSet", namespace, name, selector);
}

fn on_stateful_set(scheduler: &mut Loop, event: &Event<StatefulSet>) {
    let (namespace, name) = named(event);
    let spec = newest(event).and_then(|object| object.spec.as_ref());
    let selector = spec.map(|spec| Selector::from_label_selector(Some(&spec.selector)));
    let workloads = &mut scheduler.cluster().workloads;
    workloads.put_controller("StatefulSet", namespace, name, selector);
}

fn on_budget(scheduler: &mut Loop, event: &Event<PodDisruptionBudget>) {
    let (namespace, name) = named(event);
    scheduler
        .cluster()
        .budgets
        .put(namespace, name, newest(event).map(AsRef::as_ref));
}

fn on_class(scheduler: &mut Loop, event: &Event<StorageClass>) {
    let new = newest(event);
    scheduler.cluster().claims.put_class(named(event).1, new);
    if let Some(new) = new {
        let old = event.old().map(AsRef::as_ref);
        scheduler.happened(&Happened::Class { old, new });
    }
}

fn on_driver(scheduler: &mut Loop, event: &Event<CSIDriver>) {
    let claims = &mut scheduler.cluster().claims;
    claims.put_driver(named(event).1, newest(event));
    if let Event::Modified { old, new } = event {
        scheduler.happened(&Happened::CsiDriver { old, new });
    }
}

fn on_csi_node(scheduler: &mut Loop, event: &Event<CSINode>) {
    let new = newest(event);
    scheduler.cluster().claims.put_csi_node(named(event).1, new);
    if let Some(new) = new {
        let old = event.old().map(AsRef::as_ref);
        scheduler.happened(&Happened::CsiNode { old, new });
    }
}

fn on_capacity(scheduler: &mut Loop, event: &Event<CSIStorageCapacity>) {
    let ((namespace, name), new) = (named(event), newest(event));
    let claims = &mut scheduler.cluster().claims;
    claims.put_capacity(namespace, name, new);
    if let Some(new) = new {
        let old = event.old().map(AsRef::as_ref);
        scheduler.happened(&Happened::Capacity { old, new });
    }
}

fn on_attachment(scheduler: &mut Loop, event: &Event<VolumeAttachment>) {
    let (name, new) = (named(event).1, newest(event).map(AsRef::as_ref));
    scheduler.cluster().claims.put_attachment(name, new);
    if new.is_none() {
        scheduler.happened(&Happened::AttachmentDeleted);
    }
}

fn on_volume(scheduler: &mut Loop, event: &Event<PersistentVolume>) {
    let new = newest(event);
    scheduler.cluster().claims.put_volume(named(event).1, new);
    if new.is_some() {
        scheduler.happened(&Happened::Volume);
    }
}

fn on_claim(scheduler: &mut Loop, event: &Event<PersistentVolumeClaim>) {
    let ((namespace, name), new) = (named(event), newest(event));
    scheduler.cluster().claims.put_claim(namespace, name, new);
    scheduler.claim_changed(namespace, name);
    if new.is_some() {
        let is_new = event.old().is_none();
        scheduler.happened(&Happened::Claim {
            namespace,
            name,
            is_new,
        });
    }
}

fn on_device_claim(scheduler: &mut Loop, event: &Event<ResourceClaim>) {
    let ((namespace, name), new) = (named(event), newest(event));
    let claims = &mut scheduler.cluster().device_claims;
    claims.put(namespace, name, new);
    scheduler.device_claim_changed(namespace, name);
    if let Some(new) = new {
        let old = event.old().map(AsRef::as_ref);
        return scheduler.happened(&Happened::DeviceClaim { old, new });
    }
    let gone = event.object();
    if allocation(gone).is_some() {
        // The devices of a deleted claim are free, as after a deallocation.
        let new = &ResourceClaim {
            status: None,
            ..(**gone).clone()
        };
        let old = Some(&**gone);
        scheduler.happened(&Happened::DeviceClaim { old, new });
    }
}

fn on_device_class(scheduler: &mut Loop, event: &Event<DeviceClass>) {
    let new = newest(event);
    scheduler.cluster().put_device_class(named(event).1, new);
    if new.is_some() {
        let is_new = event.old().is_none();
        scheduler.happened(&Happened::DeviceClass { is_new });
    }
}

fn on_slice(scheduler: &mut Loop, event: &Event<ResourceSlice>) {
    let (name, new) = (named(event).1, newest(event));
    let slice = new.map(|slice| Slice::new(slice));
    scheduler.cluster().slices.put(name, slice);
    if new.is_some() {
        let is_new = event.old().is_none();
        scheduler.happened(&Happened::Slice { is_new });
    }
}
