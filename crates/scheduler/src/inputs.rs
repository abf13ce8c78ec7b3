//! The scheduler's watches, and how each change is applied.

use std::sync::Arc;

use client::{Event, Informer, Subscription, informer::Object};
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
use tokio::{sync::Notify, time::Instant};

use crate::{
    bindings::Bindings, devices::slices::Slice, framework::event::Event as Happened, run::Loop,
};

/// Changes of one kind.
trait Feed: Send {
    /// Applies all pending changes.
    fn drain(&mut self, scheduler: &mut Loop);

    /// Whether the watch has ended.
    fn is_over(&self) -> bool;
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

    fn is_over(&self) -> bool {
        self.events.is_over()
    }
}

/// All watches, in the order in which changes are applied: other objects before pods.
pub(crate) struct Inputs {
    feeds: Vec<Box<dyn Feed>>,
    /// Notified of the changes of all feeds.
    changed: Arc<Notify>,
}

/// What every watch needs.
struct Source<'a> {
    context: &'a Context,
    client: &'a kube::Client,
    changed: Arc<Notify>,
}

impl Source<'_> {
    async fn watch<K>(&self, apply: fn(&mut Loop, &Event<K>)) -> Box<dyn Feed>
    where
        K: Object + Resource<DynamicType = ()>,
    {
        let informer = Informer::builder(self.client.clone()).start(self.context);
        self.follow(&informer, apply).await
    }

    async fn follow<K: Object>(
        &self,
        informer: &Informer<K>,
        apply: fn(&mut Loop, &Event<K>),
    ) -> Box<dyn Feed> {
        informer.synced().await;
        let events = informer.subscribe().notifying(&self.changed);
        Box::new(Kind { events, apply })
    }

    /// The same without the versions before a change, for kinds whose changes are frequent.
    async fn follow_newest<K: Object>(
        &self,
        informer: &Informer<K>,
        apply: fn(&mut Loop, &Event<K>),
    ) -> Box<dyn Feed> {
        informer.synced().await;
        let events = informer.subscribe().notifying(&self.changed);
        let events = events.without_old();
        Box::new(Kind { events, apply })
    }
}

impl Inputs {
    /// Starts the watches and waits until they have synced.
    pub(crate) async fn start(context: &Context, client: &kube::Client) -> (Self, Bindings) {
        let bindings = Bindings::start(context, client);
        let changed = Arc::new(Notify::new());
        let source = Source {
            context,
            client,
            changed: changed.clone(),
        };
        let (first, second, third, fourth) = tokio::join!(
            async {
                tokio::join!(
                    source.watch::<Namespace>(on_namespace),
                    source.watch::<Service>(on_service),
                    source.watch::<ReplicationController>(on_replication_controller),
                    source.watch::<ReplicaSet>(on_replica_set),
                    source.watch::<StatefulSet>(on_stateful_set),
                )
            },
            async {
                tokio::join!(
                    source.watch::<PodDisruptionBudget>(on_budget),
                    source.watch::<StorageClass>(on_class),
                    source.follow(&bindings.volumes, on_volume),
                    source.follow(&bindings.claims, on_claim),
                    source.follow(&bindings.device_claims, on_device_claim),
                )
            },
            async {
                tokio::join!(
                    source.follow_newest(&bindings.nodes, Loop::on_node),
                    source.follow_newest(&bindings.pods, Loop::on_pod),
                )
            },
            async {
                tokio::join!(
                    source.watch::<CSIDriver>(on_driver),
                    source.watch::<CSINode>(on_csi_node),
                    source.watch::<CSIStorageCapacity>(on_capacity),
                    source.watch::<VolumeAttachment>(on_attachment),
                    source.watch::<DeviceClass>(on_device_class),
                    source.watch::<ResourceSlice>(on_slice),
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
        (Self { feeds, changed }, bindings)
    }

    /// Applies all pending changes.
    pub(crate) fn drain(&mut self, scheduler: &mut Loop) {
        for feed in &mut self.feeds {
            feed.drain(scheduler);
        }
        scheduler.drain_results();
    }

    /// Waits until something changes or `due`; false if a watch has ended. Changes are applied by [`Inputs::drain`].
    pub(crate) async fn wait(&mut self, scheduler: &mut Loop, due: Instant) -> bool {
        let result = tokio::select! {
            () = self.changed.notified() => None,
            result = scheduler.next_result() => result,
            () = tokio::time::sleep_until(due) => return true,
        };
        if let Some(apply) = result {
            apply(scheduler);
        }
        !self.feeds.iter().any(|feed| feed.is_over())
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
