//! Shared by the controllers: one informer per kind, read as system:kube-controller-manager, and
//! clients that write as each controller's own service account.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use client::{
    Connector, Informer, ToJson,
    informer::{self, Labelled},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet},
        autoscaling::v2::HorizontalPodAutoscaler,
        batch::v1::{CronJob, Job},
        certificates::v1::CertificateSigningRequest,
        coordination::v1::Lease,
        core::v1::{
            ConfigMap, Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
            ReplicationController, ResourceQuota, Service, ServiceAccount,
        },
        discovery::v1::EndpointSlice,
        networking::v1::{IPAddress, ServiceCIDR},
        policy::v1::PodDisruptionBudget,
        rbac::v1::ClusterRole,
        resource::v1::{ResourceClaim, ResourceClaimTemplate, ResourceSlice},
        storage::v1::{CSIDriver, StorageClass, VolumeAttachment, VolumeAttributesClass},
        storagemigration::v1beta1::StorageVersionMigration,
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::Resource;
use lifecycle::Context;
use parking_lot::Mutex;
pub(crate) use reconcile::controller_of;
use reconcile::{
    Action, Builder, Controller, Queue, QueueMetrics, Recorder, Selector, Starting, Startup,
    Writer, devices, queue::Item, storage,
};
use stdx::Clock;

use crate::{
    Config, csr, loadbalancer,
    members::Facts,
    metrics::{Collectors, Metrics},
    nodeipam, nodelifecycle, pods, resourceclaim, selecting,
};

/// How long keys of workloads are delayed after a reconciliation, so that a burst of pod changes causes one
/// reconciliation and one status update.
pub(crate) const REST: Duration = Duration::from_millis(20);
/// The same for each pod that was read: a reconciliation reads all pods of the workload.
const REST_PER_POD: Duration = Duration::from_micros(20);

/// The index of objects by the uid of their controller; objects without one are under
/// [`orphans_of`] their namespace.
pub(crate) const OWNER: &str = "owner";
/// The index of pods by node.
pub(crate) const NODE: &str = "node";
/// The index of pods that are [`ENDED`] or [`DELETING`].
pub(crate) const STATE: &str = "state";
/// All containers have ended for good.
pub(crate) const ENDED: &str = "ended";
/// The pod has a deletion timestamp.
pub(crate) const DELETING: &str = "deleting";
/// The index of nodes by their addresses ([`address_key`]).
pub(crate) const ADDRESS: &str = "address";
/// The index of ClusterRoles, with one key of this name for those that aggregate others.
pub(crate) const AGGREGATE: &str = "aggregate";
/// The index of requests of kubelets for certificates, of those that are [`WAITING`].
pub(crate) const APPROVAL: &str = "approval";
/// Neither approved nor denied.
pub(crate) const WAITING: &str = "waiting";
/// The index of Services and workloads by a label of their selector ([`selected_key`]).
pub(crate) const SELECTS: &str = "selects";
/// The index of pods by a label ([`selected_key`]). Of pods with a controller it has no labels that controllers make: of
/// those there are too many, and only controllers select by them.
pub(crate) const LABEL: &str = "label";
/// Labels that controllers make.
const GENERATED: [&str; 10] = [
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/job-name",
    "controller-revision-hash",
    "controller-uid",
    "job-name",
    "pod-template-generation",
    "pod-template-hash",
    "statefulset.kubernetes.io/pod-name",
];
/// The index of Services by type, for those of type [`LOAD_BALANCER`].
pub(crate) const TYPE: &str = "type";
/// The type of Services with an external load balancer.
pub(crate) const LOAD_BALANCER: &str = "LoadBalancer";
/// The index of nodes that accept traffic of load balancers ([`loadbalancer::traffic`]).
pub(crate) const TRAFFIC: &str = "traffic";
/// The index of EndpointSlices by their Service, `NAMESPACE/NAME`.
pub(crate) const SERVICE: &str = "service";
/// The index of pods and volumes by the claim that they use or are bound to ([`claimed_key`]);
/// available volumes by their class ([`candidate_key`]).
pub(crate) const CLAIM: &str = "claim";
/// The index of VolumeAttachments by node; [`CLAIM`] has them by volume.
pub(crate) const ATTACHED: &str = "attached";
/// The index of PersistentVolumes by CSI driver and handle ([`handle_key`]).
pub(crate) const HANDLE: &str = "handle";
/// The index of nodes by their pod CIDRs.
pub(crate) const CIDR: &str = "cidr";
/// The index of nodes by the sizes of their pod CIDRs, so that subnets of unusual sizes are found.
pub(crate) const SUBNET_SIZE: &str = "subnet size";
/// The index of pods by their ResourceClaims ([`device_claim_key`]) and the templates of them
/// ([`device_template_key`]).
pub(crate) const DEVICE_CLAIM: &str = "device claim";
/// The index of ResourceSlices by their pool, and of ResourceClaims by the pools of their devices
/// ([`pool_key`]).
pub(crate) const POOL: &str = "pool";
/// The index of claims that are not bound, by their class.
pub(crate) const UNBOUND: &str = "unbound";

/// A kind that controllers watch, with its indexes.
pub trait Watched: informer::Object + Resource<DynamicType = ()> + Clone + ToJson {
    /// Adds the kind's indexes.
    fn indexed(builder: informer::Builder<Self>) -> informer::Builder<Self> {
        builder
    }
}

macro_rules! watched {
    (
        by owner and selector: $($both:ty),*; by owner: $($owned:ty),*; by selector: $($selecting:ty),*;
        plain: $($plain:ty),* $(,)?
    ) => {
        $(impl Watched for $both {
            fn indexed(builder: informer::Builder<Self>) -> informer::Builder<Self> {
                selecting::indexed(builder.index(OWNER, by_owner))
            }
        })*
        $(impl Watched for $owned {
            fn indexed(builder: informer::Builder<Self>) -> informer::Builder<Self> {
                builder.index(OWNER, by_owner)
            }
        })*
        $(impl Watched for $selecting {
            fn indexed(builder: informer::Builder<Self>) -> informer::Builder<Self> {
                selecting::indexed(builder)
            }
        })*
        $(impl Watched for $plain {})*
    };
}

watched! {
    by owner and selector: ReplicaSet, ReplicationController, Job;
    by owner: ControllerRevision;
    by selector: Deployment, DaemonSet, StatefulSet, PodDisruptionBudget;
    plain: HorizontalPodAutoscaler, CronJob, Lease, ConfigMap,
    Endpoints, Namespace, ResourceQuota, ServiceAccount, StorageClass,
    IPAddress, ServiceCIDR, VolumeAttributesClass, CSIDriver, ResourceClaimTemplate,
    StorageVersionMigration,
}

impl Watched for Pod {
    fn indexed(builder: informer::Builder<Self>) -> informer::Builder<Self> {
        let builder = builder.summary(Facts::new);
        let builder = builder.index(OWNER, by_owner).index(CLAIM, by_claim);
        let builder = builder.index(NODE, |pod| {
            pod.spec
                .iter()
                .filter_map(|spec| spec.node_name.clone())
                .collect()
        });
        let builder = builder.index(DEVICE_CLAIM, by_device_claim);
        let builder = builder.index(LABEL, by_label);
        builder.index(STATE, |pod| {
            let ended = pods::is_terminal(pod).then_some(ENDED);
            let deleting = pods::is_deleting(pod).then_some(DELETING);
            let states = ended.into_iter().chain(deleting);
            states.map(ToOwned::to_owned).collect()
        })
    }
}

impl Watched for Node {
    fn indexed(builder: informer::Builder<Self>) -> informer::Builder<Self> {
        let builder = builder.summary(nodelifecycle::Facts::new);
        let builder = builder.index(ADDRESS, |node| {
            csr::node_addresses(node).map(address_key).collect()
        });
        let builder = builder.index(TRAFFIC, loadbalancer::traffic);
        let builder = builder.index(CIDR, nodeipam::cidrs);
        builder.index(SUBNET_SIZE, nodeipam::sizes)
    }
}

impl Watched for ClusterRole {
    fn indexed(builder: informer::Builder<Self>) -> informer::Builder<Self> {
        builder.index(AGGREGATE, |role| {
            let is_aggregate = role.aggregation_rule.is_some();
            let key = is_aggregate.then(|| AGGREGATE.to_owned());
            key.into_iter().collect()
        })
    }
}

impl Watched for CertificateSigningRequest {
    fn indexed(builder: informer::Builder<Self>) -> informer::Builder<Self> {
        builder.index(APPROVAL, |request| {
            let waiting = csr::waits_for_approval(request).then_some(WAITING);
            waiting.map(ToOwned::to_owned).into_iter().collect()
        })
    }
}

impl Watched for Service {
    fn indexed(builder: informer::Builder<Self>) -> informer::Builder<Self> {
        let builder = builder.index(TYPE, |service| {
            let spec = service.spec.as_ref();
            let balanced = spec.filter(|spec| spec.type_.as_deref() == Some(LOAD_BALANCER));
            balanced
                .map(|_| LOAD_BALANCER.to_owned())
                .into_iter()
                .collect()
        });
        builder.index(SELECTS, |service| {
            let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
            let selector = service
                .spec
                .as_ref()
                .and_then(|spec| spec.selector.as_ref());
            let label = selector.and_then(|selector| selector.iter().next());
            let label = label.map(|(key, value)| selected_key(namespace, key, value));
            label.into_iter().collect()
        })
    }
}

impl Watched for EndpointSlice {
    fn indexed(builder: informer::Builder<Self>) -> informer::Builder<Self> {
        builder.index(SERVICE, |slice| {
            let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
            let labels = slice.metadata.labels.as_ref();
            let service = labels.and_then(|labels| labels.get("kubernetes.io/service-name"));
            let service = service.map(|name| format!("{namespace}/{name}"));
            service.into_iter().collect()
        })
    }
}

/// The index key of nodes with this address.
pub(crate) fn address_key(address: IpAddr) -> String {
    address.to_canonical().to_string()
}

/// The index key of objects that select others by this label.
pub(crate) fn selected_key(namespace: &str, label: &str, value: &str) -> String {
    format!("{namespace} {label}={value}")
}

impl Watched for PersistentVolumeClaim {
    fn indexed(builder: informer::Builder<Self>) -> informer::Builder<Self> {
        builder.index(OWNER, by_owner).index(UNBOUND, |claim| {
            let class = (!storage::is_fully_bound(claim)).then(|| storage::claim_class(claim));
            class.map(ToOwned::to_owned).into_iter().collect()
        })
    }
}

impl Watched for PersistentVolume {
    fn indexed(builder: informer::Builder<Self>) -> informer::Builder<Self> {
        let builder = builder.index(HANDLE, |volume| {
            let source = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
            let key = source.map(|csi| handle_key(&csi.driver, &csi.volume_handle));
            key.into_iter().collect()
        });
        builder.index(CLAIM, |volume| {
            let Some(claim) = storage::claim_ref(volume) else {
                return vec![candidate_key(storage::volume_class(volume))];
            };
            let namespace = claim.namespace.as_deref().unwrap_or_default();
            vec![claimed_key(
                namespace,
                claim.name.as_deref().unwrap_or_default(),
            )]
        })
    }
}

impl Watched for VolumeAttachment {
    fn indexed(builder: informer::Builder<Self>) -> informer::Builder<Self> {
        let builder = builder.index(ATTACHED, |one| vec![one.spec.node_name.clone()]);
        builder.index(CLAIM, |one| {
            let volume = one.spec.source.persistent_volume_name.clone();
            volume.into_iter().collect()
        })
    }
}

impl Watched for ResourceClaim {
    fn indexed(builder: informer::Builder<Self>) -> informer::Builder<Self> {
        builder.index(OWNER, by_owner).index(POOL, |claim| {
            let results = devices::results(claim).iter();
            let mut pools: Vec<String> = results
                .map(|result| pool_key(&result.driver, &result.pool))
                .collect();
            pools.sort_unstable();
            pools.dedup();
            pools
        })
    }
}

impl Watched for ResourceSlice {
    fn indexed(builder: informer::Builder<Self>) -> informer::Builder<Self> {
        builder.index(POOL, |slice| {
            vec![pool_key(&slice.spec.driver, &slice.spec.pool.name)]
        })
    }
}

/// The index key of a pool's slices and claims.
pub(crate) fn pool_key(driver: &str, pool: &str) -> String {
    format!("{driver}/{pool}")
}

/// The index key of a ResourceClaim's pods.
pub(crate) fn device_claim_key(namespace: &str, claim: &str) -> String {
    format!("claim {namespace}/{claim}")
}

/// The index key of the pods with claims of a ResourceClaimTemplate.
pub(crate) fn device_template_key(namespace: &str, template: &str) -> String {
    format!("template {namespace}/{template}")
}

fn by_device_claim(pod: &Pod) -> Vec<String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let templates = resourceclaim::decide::entries(pod).iter();
    let templates = templates.filter_map(|entry| entry.resource_claim_template_name.as_deref());
    let templates = templates.map(|name| device_template_key(namespace, name));
    let claims = resourceclaim::decide::claim_names(pod).into_iter();
    let mut keys: Vec<String> = claims
        .map(|name| device_claim_key(namespace, &name))
        .chain(templates)
        .collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn by_label(pod: &Pod) -> Vec<String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let is_orphan = controller_of(pod).is_none();
    let labels = pod.metadata.labels.iter().flatten();
    let labels = labels.filter(|(label, _)| is_orphan || !GENERATED.contains(&label.as_str()));
    labels
        .map(|(label, value)| selected_key(namespace, label, value))
        .collect()
}

/// The index key of a claim's pods and volumes.
pub(crate) fn claimed_key(namespace: &str, claim: &str) -> String {
    format!("claim {namespace}/{claim}")
}

/// The index key of PersistentVolumes with one handle of a CSI driver.
pub(crate) fn handle_key(driver: &str, handle: &str) -> String {
    format!("{driver}^{handle}")
}

/// Namespace and name of the claim of a [`claimed_key`].
pub(crate) fn claim_of_key(key: &str) -> Option<(&str, &str)> {
    key.strip_prefix("claim ")?.split_once('/')
}

/// The index key of available volumes of a class.
pub(crate) fn candidate_key(class: &str) -> String {
    format!("class {class}")
}

fn by_claim(pod: &Pod) -> Vec<String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let claims = claims_of(pod).into_iter();
    claims.map(|claim| claimed_key(namespace, &claim)).collect()
}

/// The claims of a pod's volumes, including those of ephemeral volumes.
pub(crate) fn claims_of(pod: &Pod) -> Vec<String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let spec = pod.spec.iter();
    let volumes = spec.flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .filter_map(|volume| storage::claim_name(name, volume))
        .collect()
}

fn by_owner<K: Resource>(object: &K) -> Vec<String> {
    match controller_of(object) {
        Some(owner) => vec![owner.uid.clone()],
        None => vec![orphans_of(
            object.meta().namespace.as_deref().unwrap_or_default(),
        )],
    }
}

/// The index key of a namespace's objects without a controller.
pub(crate) fn orphans_of(namespace: &str) -> String {
    format!("orphans of {namespace}")
}

/// The owner reference that makes `owner` the controller.
pub(crate) fn controller_reference<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.meta().name.clone().unwrap_or_default(),
        uid: owner.meta().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Created for every run of the service.
pub struct Shared {
    /// The run's context.
    pub context: Context,
    /// The controllers' configuration.
    pub config: Config,
    reader: kube::Client,
    connector: Arc<dyn Connector>,
    clock: Arc<dyn Clock>,
    startup: Startup,
    queues: QueueMetrics,
    /// The metrics of the controllers.
    pub(crate) metrics: Metrics,
    /// Functions that compute gauges when the metrics are read.
    pub(crate) collectors: Collectors,
    /// Guards the table of informers that were started so far.
    informers: Mutex<HashMap<TypeId, Box<dyn Any + Send + Sync>>>,
}

impl Shared {
    pub(crate) fn new(
        context: Context,
        config: Config,
        connector: Arc<dyn Connector>,
        clock: Arc<dyn Clock>,
        (queues, metrics): (QueueMetrics, Metrics),
        collectors: Collectors,
    ) -> Arc<Self> {
        let reader = connector.client("system:kube-controller-manager");
        let informers = Mutex::default();
        Arc::new(Self {
            context,
            config,
            reader,
            connector,
            clock,
            startup: Startup::default(),
            queues,
            metrics,
            collectors,
            informers,
        })
    }

    /// The informer of a kind, started by the first call.
    pub fn informer<K: Watched>(&self) -> Informer<K> {
        let mut informers = self.informers.lock();
        let slot = informers.entry(TypeId::of::<K>()).or_insert_with(|| {
            let builder = K::indexed(Informer::builder(self.reader.clone()));
            Box::new(builder.start(&self.context))
        });
        let informer: Option<&Informer<K>> = slot.downcast_ref();
        // The map is keyed by this type.
        informer.expect("an informer of its own type").clone()
    }

    /// A builder for a controller: add watches, then `start`.
    pub fn controller(&self, controller: &Arc<impl Controller>) -> Builder {
        Builder::new(&self.context, &self.startup, controller.clone()).metrics(&self.queues)
    }

    /// Adds metrics for the queue of a controller with its own loop.
    pub fn measure<T: Item>(&self, name: &'static str, queue: &Queue<T>) {
        queue.measure(name, &self.queues);
    }

    /// For a controller with its own loop: it has started when this is dropped.
    pub fn starting(&self, name: &'static str) -> Starting {
        self.startup.begin(name)
    }

    /// Resolves when all controllers have started.
    pub async fn started(&self) {
        self.startup.finished().await;
    }

    /// A client that reads as the controller manager.
    pub fn reader(&self) -> kube::Client {
        self.reader.clone()
    }

    /// A client that writes as this service account in kube-system.
    pub fn client(&self, account: &str) -> kube::Client {
        self.connector
            .client(&format!("system:serviceaccount:kube-system:{account}"))
    }

    /// Writes objects of one kind as a service account and waits until the informer has them.
    pub fn writer<K: Watched>(&self, account: &str) -> Writer<K> {
        Writer::new(self.client(account), self.informer::<K>())
    }

    /// Records events as a component, with its service account.
    pub fn recorder(&self, account: &str, component: &str) -> Recorder {
        Recorder::start(&self.context, self.client(account), component)
    }

    /// The injected clock's time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The injected clock.
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }
}

/// How long an object with this many pods rests, so that the more pods are read, the more changes are reconciled at once.
pub(crate) fn rest_of_pods(pods: usize) -> Action {
    Action::Rest(REST_PER_POD * u32::try_from(pods).unwrap_or(u32::MAX))
}

/// The pods of a namespace that a selector matches.
pub(crate) fn selected_in(
    pods: &Informer<Pod>,
    namespace: &str,
    selector: &Selector,
) -> Vec<Arc<Pod>> {
    let required = selector.required_labels();
    labelled_in(pods, namespace, required, |pod| {
        selector.matches_with(|key| pod.label(key))
    })
}

/// The pods of a namespace whose labels `is_selected` accepts. If labels with values are required, only pods with one of them
/// are visited.
pub(crate) fn labelled_in<'a>(
    pods: &Informer<Pod>,
    namespace: &str,
    required: impl Iterator<Item = (&'a str, &'a str)>,
    is_selected: impl Fn(&dyn Labelled) -> bool,
) -> Vec<Arc<Pod>> {
    let labels = required.filter(|(label, _)| !GENERATED.contains(label));
    let keys = labels.map(|(label, value)| selected_key(namespace, label, value));
    let fewest = keys.min_by_key(|key| pods.count_by_index(LABEL, key));
    let Some(key) = fewest else {
        return pods.select_in(namespace, is_selected);
    };
    let found = pods.entries_by_index(LABEL, &key);
    let selected = found.iter().filter(|pod| is_selected(*pod));
    selected.map(|pod| pods.read_entry(pod)).collect()
}

/// Whether objects can be created in the namespace.
pub(crate) fn is_active_namespace(namespace: &Namespace) -> bool {
    let phase = namespace
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    namespace.metadata.deletion_timestamp.is_none() && phase != Some("Terminating")
}
