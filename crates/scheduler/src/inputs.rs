//! What the scheduler watches, and how each change is taken in.

use client::{Event, Informer, Subscription, informer::Object};
use futures::future::{BoxFuture, select_all};
use k8s_openapi::api::{
    apps::v1::{ReplicaSet, StatefulSet},
    core::v1::{
        Namespace, Node, PersistentVolume, PersistentVolumeClaim, ReplicationController, Service,
    },
    policy::v1::PodDisruptionBudget,
    resource::v1::ResourceClaim,
    storage::v1::StorageClass,
};
use kube::Resource;
use lifecycle::Context;
use reconcile::Selector;
use tokio::time::Instant;

use crate::{run::Loop, watched::WatchedPod};

/// A change that waits to be taken in.
type Change = Box<dyn FnOnce(&mut Loop) + Send>;

/// Changes of one kind.
trait Feed: Send {
    /// Takes in everything that waits already.
    fn drain(&mut self, scheduler: &mut Loop);

    /// The next change; `None` when the watch has ended. Nothing is lost when it is dropped.
    fn next(&mut self) -> BoxFuture<'_, Option<Change>>;
}

struct Kind<K: 'static> {
    events: Subscription<K>,
    apply: fn(&mut Loop, &Event<K>),
}

impl<K: Send + Sync + 'static> Feed for Kind<K> {
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

/// All that is watched, in the order in which changes are taken in: what pods are judged by before
/// the pods.
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
    let informer = Informer::<K>::builder(client.clone()).start(context);
    informer.synced().await;
    Box::new(Kind {
        events: informer.subscribe(),
        apply,
    })
}

impl Inputs {
    /// Waits until everything is known.
    pub(crate) async fn start(context: &Context, client: &kube::Client) -> Self {
        let (first, second, third) = tokio::join!(
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
                    watch::<PersistentVolume>(context, client, on_volume),
                    watch::<PersistentVolumeClaim>(context, client, on_claim),
                    watch::<ResourceClaim>(context, client, on_device_claim),
                )
            },
            async {
                tokio::join!(
                    watch::<Node>(context, client, Loop::on_node),
                    watch::<WatchedPod>(context, client, Loop::on_pod),
                )
            },
        );
        let (namespaces, services, rcs, sets, stateful) = first;
        let (budgets, classes, volumes, claims, devices) = second;
        let (nodes, pods) = third;
        Self {
            feeds: vec![
                namespaces, services, rcs, sets, stateful, budgets, classes, volumes, claims,
                devices, nodes, pods,
            ],
        }
    }

    /// Everything that waits already.
    pub(crate) fn drain(&mut self, scheduler: &mut Loop) {
        for feed in &mut self.feeds {
            feed.drain(scheduler);
        }
        scheduler.drain_results();
    }

    /// Waits for the next change or until `due`; false when a watch has ended.
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

/// The object, unless it is gone.
fn newest<K>(event: &Event<K>) -> Option<&K> {
    match event {
        Event::Deleted(_) => None,
        other => Some(other.object()),
    }
}

fn on_namespace(scheduler: &mut Loop, event: &Event<Namespace>) {
    let labels = newest(event).map(|object| object.metadata.labels.clone().unwrap_or_default());
    scheduler.cluster().put_namespace(named(event).1, labels);
    scheduler.happened(&crate::framework::event::Event::Namespace);
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
    let selector = spec.map(|spec| Selector::of(Some(&spec.selector)));
    let workloads = &mut scheduler.cluster().workloads;
    workloads.put_controller("ReplicaSet", namespace, name, selector);
}

fn on_stateful_set(scheduler: &mut Loop, event: &Event<StatefulSet>) {
    let (namespace, name) = named(event);
    let spec = newest(event).and_then(|object| object.spec.as_ref());
    let selector = spec.map(|spec| Selector::of(Some(&spec.selector)));
    let workloads = &mut scheduler.cluster().workloads;
    workloads.put_controller("StatefulSet", namespace, name, selector);
}

fn on_budget(scheduler: &mut Loop, event: &Event<PodDisruptionBudget>) {
    let (namespace, name) = named(event);
    scheduler
        .cluster()
        .budgets
        .put(namespace, name, newest(event));
}

fn on_class(scheduler: &mut Loop, event: &Event<StorageClass>) {
    scheduler
        .cluster()
        .claims
        .put_class(named(event).1, newest(event));
    scheduler.happened(&crate::framework::event::Event::Volume);
}

fn on_volume(scheduler: &mut Loop, event: &Event<PersistentVolume>) {
    scheduler
        .cluster()
        .claims
        .put_volume(named(event).1, newest(event));
    scheduler.happened(&crate::framework::event::Event::Volume);
}

fn on_claim(scheduler: &mut Loop, event: &Event<PersistentVolumeClaim>) {
    let (namespace, name) = named(event);
    scheduler
        .cluster()
        .claims
        .put_claim(namespace, name, newest(event));
    scheduler.happened(&crate::framework::event::Event::Claim { namespace, name });
}

fn on_device_claim(scheduler: &mut Loop, event: &Event<ResourceClaim>) {
    let (namespace, name) = named(event);
    scheduler
        .cluster()
        .claims
        .put_device(namespace, name, newest(event));
    scheduler.happened(&crate::framework::event::Event::DeviceClaim { namespace, name });
}
