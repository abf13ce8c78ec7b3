//! EndpointSlices of a Service: the addresses of the pods that its selector matches, in slices that
//! change as little as possible.

mod pack;
pub(crate) mod view;

use std::sync::Arc;

use client::Informer;
use futures::future::join_all;
use k8s_openapi::api::{
    core::v1::{Node, Pod, Service},
    discovery::v1::EndpointSlice,
};
use reconcile::{Action, Controller, Error, Key, Queue, Selector, Writer};

use crate::shared::Shared;
use pack::{Change, pack};
use view::{MANAGED_BY, SERVICE_NAME, desired};

/// As in the table of controllers.
pub const NAME: &str = "endpointslice";
const ACCOUNT: &str = "endpointslice-controller";
pub(super) const MANAGER: &str = "endpointslice-controller.k8s.io";

struct Slices {
    services: Informer<Service>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    slices: Writer<EndpointSlice>,
}

/// Starts it.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Slices {
        services: shared.informer(),
        pods: shared.informer(),
        nodes: shared.informer(),
        slices: shared.writer(ACCOUNT),
    });
    let shared = shared.clone();
    shared.context.clone().spawn(NAME, async move {
        controller.services.synced().await;
        controller.pods.synced().await;
        controller.nodes.synced().await;
        controller.slices.cache().synced().await;
        let queue = Queue::default();
        let context = &shared.context;
        view::follow_services(context, &controller.services, &controller.pods, &queue);
        reconcile::follow(context, controller.slices.cache(), &queue, |event| {
            let meta = &event.object().metadata;
            let labels = meta.labels.clone().unwrap_or_default();
            let ours = labels
                .get(MANAGED_BY)
                .is_some_and(|manager| manager == MANAGER);
            let service = labels.get(SERVICE_NAME).filter(|_| ours);
            let namespace = meta.namespace.clone().unwrap_or_default();
            service
                .map(|name| Key::new(namespace, name.clone()))
                .into_iter()
                .collect()
        });
        reconcile::run(context, controller, queue, 5);
        std::future::pending::<()>().await;
    });
}

impl Controller for Slices {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let existing = self
            .slices
            .cache()
            .list_in(&key.namespace)
            .into_iter()
            .filter(|slice| {
                let labels = slice.metadata.labels.clone().unwrap_or_default();
                labels.get(SERVICE_NAME) == Some(&key.name)
                    && labels
                        .get(MANAGED_BY)
                        .is_some_and(|manager| manager == MANAGER)
                    && slice.metadata.deletion_timestamp.is_none()
            });
        let existing: Vec<_> = existing.collect();
        let service = self.services.get(&key.namespace, &key.name);
        let selector = service
            .as_ref()
            .and_then(|service| service.spec.as_ref()?.selector.clone());
        // Without a selector somebody else fills the slices; without a Service nobody needs them.
        let wanted = match (&service, selector.filter(|selector| !selector.is_empty())) {
            (Some(service), Some(selector)) => {
                let selector = Selector::labels(&selector);
                let pods = self.pods.list_in(&key.namespace).into_iter();
                let pods: Vec<_> = pods
                    .filter(|pod| selector.matches(pod.metadata.labels.as_ref()))
                    .collect();
                let zone = |node: &str| {
                    let node = self.nodes.get("", node)?;
                    node.metadata
                        .labels
                        .as_ref()?
                        .get("topology.kubernetes.io/zone")
                        .cloned()
                };
                Some((service, desired(service, &pods, zone)))
            }
            (Some(_), None) => return Ok(Action::Done),
            (None, _) => None,
        };
        let changes = match wanted {
            Some((service, groups)) => pack(service, groups, existing),
            None => existing.into_iter().map(Change::Delete).collect(),
        };
        let writes = changes
            .iter()
            .map(|change| self.write(&key.namespace, change));
        reconcile::all(join_all(writes).await)?;
        Ok(Action::Done)
    }
}

impl Slices {
    async fn write(&self, namespace: &str, change: &Change) -> Result<(), Error> {
        match change {
            Change::Create(slice) => match self.slices.create(namespace, slice).await {
                Err(error) if error.is_namespace_terminating() => Ok(()),
                other => other.map(|_| ()),
            },
            Change::Update(slice) => self.slices.update(namespace, slice).await.map(|_| ()),
            Change::Delete(slice) => self.slices.delete(slice).await,
        }
    }
}
