//! Dynamic resource allocation with a real API server, the scheduler and the controllers: claims
//! are made from templates, allocated, reserved, freed and deleted, and tainted devices evict pods.
//! The test acts as the driver, and as the kubelet that ends pods.

#![allow(clippy::unwrap_used)]

use std::{
    fmt::Debug,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use apiserver::{ApiServer, ObjectCodec, Registry, User};
use client::Connector;
use k8s_openapi::api::{
    core::v1::{Namespace, Node, Pod, ServiceAccount},
    resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice},
};
use kube::{
    Api, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use lifecycle::{Context, Health, Service};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use stdx::SystemClock;
use tokio_util::sync::CancellationToken;

struct InProcess(Arc<ApiServer>);

impl Connector for InProcess {
    fn client(&self, user: &str) -> kube::Client {
        let account = user.strip_prefix("system:serviceaccount:");
        let user = match account.and_then(|rest| rest.split_once(':')) {
            Some((namespace, name)) => User::service_account(namespace, name),
            None => User::new(user, [""; 0]),
        };
        client::in_process(self.0.connect(user))
    }
}

fn server(directory: &tempfile::TempDir) -> Arc<ApiServer> {
    let names = pki::Names::default();
    let pki = pki::Pki::ensure(&directory.path().join("pki"), &names).unwrap();
    let registry = Registry::builtin();
    let codec = ObjectCodec::new(registry.clone());
    let store = store::embedded::Embedded::open(directory.path().join("store"), codec).unwrap();
    let config = apiserver::Config {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        advertise: SocketAddr::from((Ipv4Addr::LOCALHOST, 6443)),
        server_name: None,
        tls: pki.apiserver_config().unwrap(),
        kubelet_tls: None,
        front_proxy: None,
        service_cidrs: vec![(Ipv4Addr::new(10, 43, 0, 0).into(), 16)],
        node_ports: 30000..=32767,
        client_ca: pki.ca().pem().to_owned(),
        front_proxy_ca: pki.front_proxy_ca().pem().to_owned(),
        health: Health::default(),
        clock: Arc::new(SystemClock),
        limits: apiserver::Limits::default(),
        name_suffixes: Arc::new(apiserver::RandomNameSuffixes),
        token_auth_file: None,
        access: apiserver::AccessOptions::default(),
        audit: None,
        admission: apiserver::admission::Options::default(),
        tokens: None,
    };
    config.build(store, registry).unwrap()
}

/// A cluster without kubelets.
struct World {
    client: kube::Client,
    stop: CancellationToken,
    controllers: Arc<controllers::Controllers>,
    _directory: tempfile::TempDir,
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl World {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let server = server(&directory);
        let stop = CancellationToken::new();
        let context = Context::standalone("test", stop.clone());
        tokio::spawn(server.clone().run(context.clone()));
        server.address().await;
        let connector = Arc::new(InProcess(server.clone()));
        let scheduler = scheduler::Config::new(connector.client("system:kube-scheduler"));
        tokio::spawn(Arc::new(scheduler.build()).run(context.clone()));
        let controllers = controllers::Config {
            cluster_ca: "CA".into(),
            ..controllers::Config::default()
        };
        let controllers = Arc::new(controllers.build(connector));
        tokio::spawn(controllers.clone().run(context));
        let admin = User::new("admin", ["system:masters"]);
        let world = Self {
            client: client::in_process(server.connect(admin)),
            stop,
            controllers,
            _directory: directory,
        };
        let namespaces: Api<Namespace> = Api::all(world.client.clone());
        let default = json!({"metadata": {"name": "default"}});
        // The server may have created it already.
        let default = serde_json::from_value(default).unwrap();
        let _ = namespaces.create(&PostParams::default(), &default).await;
        let accounts: Api<ServiceAccount> = Api::namespaced(world.client.clone(), "default");
        world
            .until("the service account", || async {
                accounts.get_opt("default").await.unwrap().is_some()
            })
            .await;
        world
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn claims(&self) -> Api<ResourceClaim> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn create<K>(&self, object: Value) -> K
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let mut object = object;
        object["apiVersion"] = json!(K::api_version(&()));
        object["kind"] = json!(K::kind(&()));
        let namespace = object["metadata"]["namespace"]
            .as_str()
            .map(ToOwned::to_owned);
        let path = K::url_path(&(), namespace.as_deref());
        let body = serde_json::to_vec(&object).unwrap();
        let request = http::Request::post(path).header("content-type", "application/json");
        self.client
            .request(request.body(body).unwrap())
            .await
            .unwrap()
    }

    async fn until<F: Future<Output = bool>>(&self, what: &str, is_reached: impl Fn() -> F) {
        let reached = async {
            while !is_reached().await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let reached = tokio::time::timeout(Duration::from_secs(30), reached).await;
        if reached.is_err() {
            let claims = self
                .claims()
                .list(&ListParams::default())
                .await
                .unwrap()
                .items;
            let pods = self
                .pods()
                .list(&ListParams::default())
                .await
                .unwrap()
                .items;
            let show = |value: Value| serde_json::to_string_pretty(&value).unwrap();
            panic!(
                "never happened: {what}\n{}\n{}",
                show(json!(claims)),
                show(json!(pods))
            );
        }
    }

    async fn node(&self, name: &str) {
        self.create::<Node>(json!({"metadata": {"name": name}}))
            .await;
        let nodes: Api<Node> = Api::all(self.client.clone());
        let (params, amounts) = (
            PatchParams::default(),
            json!({"cpu": "8", "memory": "8Gi", "pods": "110"}),
        );
        let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady",
            "message": "", "lastHeartbeatTime": null, "lastTransitionTime": null});
        let status = json!({"status": {"allocatable": amounts, "capacity": amounts,
            "conditions": [ready]}});
        let status = Patch::Merge(&status);
        nodes.patch_status(name, &params, &status).await.unwrap();
        let spec = json!({"spec": {"taints": null}});
        nodes
            .patch(name, &params, &Patch::Merge(&spec))
            .await
            .unwrap();
    }

    /// A class, and a slice of a node with these devices.
    async fn devices(&self, node: &str, devices: Value) {
        let pool = json!({"name": node, "generation": 1, "resourceSliceCount": 1});
        let spec = json!({"driver": "gpu.example.com", "nodeName": node, "pool": pool,
            "devices": devices});
        self.create::<ResourceSlice>(json!({"metadata": {"name": node}, "spec": spec}))
            .await;
    }

    async fn class(&self) {
        let cel = json!({"cel": {"expression": "device.driver == 'gpu.example.com'"}});
        let class = json!({"metadata": {"name": "gpu"}, "spec": {"selectors": [cel],
            "extendedResourceName": "example.com/gpu"}});
        self.create::<DeviceClass>(class).await;
        let request = json!({"name": "r", "exactly": {"deviceClassName": "gpu"}});
        let spec = json!({"spec": {"devices": {"requests": [request]}}});
        let meta = json!({"name": "one-gpu", "namespace": "default"});
        let template = json!({"metadata": meta, "spec": spec});
        self.create::<ResourceClaimTemplate>(template).await;
    }

    /// A pod with one device from the template.
    async fn pod(&self, name: &str) {
        let claims = json!([{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]);
        self.pod_with(
            name,
            json!({"resourceClaims": claims}),
            json!({"claims": [{"name": "gpu"}]}),
        )
        .await;
    }

    async fn pod_with(&self, name: &str, more: Value, resources: Value) {
        let container = json!({"name": "c", "image": "i", "resources": resources});
        let mut spec = json!({"containers": [container], "terminationGracePeriodSeconds": 0});
        let fields = more.as_object().unwrap().clone();
        spec.as_object_mut().unwrap().extend(fields);
        let meta = json!({"name": name, "namespace": "default"});
        self.create::<Pod>(json!({"metadata": meta, "spec": spec}))
            .await;
    }

    async fn bound(&self, name: &str) -> Pod {
        let pods = self.pods();
        let what = format!("{name} has a node");
        self.until(&what, || async {
            let spec = pods.get(name).await.unwrap().spec.unwrap();
            spec.node_name.is_some()
        })
        .await;
        pods.get(name).await.unwrap()
    }

    async fn waits(&self, name: &str, message: &str) {
        let pods = self.pods();
        self.until(&format!("{name} waits: {message}"), || async {
            let pod = pods.get(name).await.unwrap();
            let conditions = pod.status.and_then(|status| status.conditions);
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|one| one.message.as_deref() == Some(message))
        })
        .await;
    }

    /// The claim that was made for a pod.
    async fn claim_of(&self, pod: &Pod) -> ResourceClaim {
        let statuses = pod
            .status
            .as_ref()
            .unwrap()
            .resource_claim_statuses
            .as_ref()
            .unwrap();
        let name = statuses[0].resource_claim_name.as_deref().unwrap();
        self.claims().get(name).await.unwrap()
    }

    async fn no_claims(&self) {
        let claims = self.claims();
        self.until("no claims are left", || async {
            claims
                .list(&ListParams::default())
                .await
                .unwrap()
                .items
                .is_empty()
        })
        .await;
    }

    /// Waits until the controllers' metrics have a line.
    async fn measured(&self, line: &str) {
        self.until(line, || async { self.controllers.metrics().contains(line) })
            .await;
    }

    /// The cells of `kubectl get resourceclaims`, without the age.
    async fn printed(&self) -> Vec<Vec<String>> {
        let path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
        let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let request = http::Request::get(path).header("accept", accept);
        let table: Value = self
            .client
            .request(request.body(Vec::new()).unwrap())
            .await
            .unwrap();
        let name = |column: &Value| column["name"].as_str().unwrap().to_owned();
        let columns = table["columnDefinitions"].as_array().unwrap();
        let mut all: Vec<Vec<String>> = vec![columns.iter().map(name).collect()];
        for row in table["rows"].as_array().unwrap() {
            let cells = row["cells"].as_array().unwrap().iter().take(2);
            let text = |cell: &Value| cell.as_str().unwrap_or_default().to_owned();
            all.push(cells.map(text).collect());
        }
        all
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_templates_are_allocated_reserved_freed_and_deleted() {
    let world = World::start().await;
    world.node("n1").await;
    world.pod("first").await;
    // Without the template the controller says why; without the class the scheduler does.
    let why = "pod \"default/first\": ResourceClaim not created yet";
    world.waits("first", why).await;
    world.devices("n1", json!([{"name": "gpu-0"}])).await;
    world.class().await;

    let first = world.bound("first").await;
    let claim = world.claim_of(&first).await;
    let meta = &claim.metadata;
    assert_eq!(meta.generate_name.as_deref(), Some("first-gpu-"));
    assert_eq!(
        meta.annotations.as_ref().unwrap()["resource.kubernetes.io/pod-claim-name"],
        "gpu"
    );
    let owner = &meta.owner_references.as_ref().unwrap()[0];
    assert_eq!(
        (&*owner.kind, &*owner.name, owner.controller),
        ("Pod", "first", Some(true))
    );
    let finalizers = meta.finalizers.as_ref().unwrap();
    assert_eq!(finalizers[..], ["resource.kubernetes.io/delete-protection"]);
    let status = claim.status.as_ref().unwrap();
    let reserved = &status.reserved_for.as_ref().unwrap()[0];
    assert_eq!((&*reserved.resource, &*reserved.name), ("pods", "first"));
    assert_eq!(Some(&reserved.uid), first.metadata.uid.as_ref());
    let allocation = serde_json::to_value(status.allocation.as_ref().unwrap()).unwrap();
    let result = &allocation["devices"]["results"][0];
    let expected = json!({"driver": "gpu.example.com", "pool": "n1", "device": "gpu-0",
        "request": "r"});
    assert_eq!(*result, expected);
    let field = &allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0];
    assert_eq!(field["values"], json!(["n1"]));

    // The only device is taken.
    world.pod("second").await;
    let why = "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable, \
               preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    world.waits("second", why).await;
    let printed = world.printed().await;
    assert_eq!(printed[0][..3], ["Name", "State", "Age"]);
    let states: Vec<(bool, &str)> = printed[1..]
        .iter()
        .map(|row| (row[0].starts_with("first-gpu-"), &*row[1]))
        .collect();
    assert_eq!(states, [(true, "allocated,reserved"), (false, "pending")]);

    // Deletion of the pod frees the device for the other one.
    let now = DeleteParams::default().grace_period(0);
    world.pods().delete("first", &now).await.unwrap();
    let second = world.bound("second").await;
    let claim = world.claim_of(&second).await;
    let results = claim
        .status
        .unwrap()
        .allocation
        .unwrap()
        .devices
        .unwrap()
        .results
        .unwrap();
    assert_eq!(results[0].device, "gpu-0");

    // A pod that has ended frees it, too, although it still exists.
    let ended = json!({"status": {"phase": "Succeeded"}});
    let (params, ended) = (PatchParams::default(), Patch::Merge(&ended));
    world
        .pods()
        .patch_status("second", &params, &ended)
        .await
        .unwrap();
    world.no_claims().await;
    world.pod("third").await;
    world.bound("third").await;
    let created = "resourceclaim_controller_creates_total";
    world
        .measured(&format!(
            "{created}{{status=\"success\",admin_access=\"false\"}} 3"
        ))
        .await;
    let labels = "allocated=\"true\",admin_access=\"false\",source=\"resource_claim_template\"";
    world
        .measured(&format!(
            "resourceclaim_controller_resource_claims{{{labels}}} 1"
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_pods_never_get_one_device_twice() {
    let world = World::start().await;
    world.class().await;
    for node in ["n1", "n2"] {
        world.node(node).await;
        let devices: Vec<Value> = (0..4)
            .map(|i| json!({"name": format!("gpu-{i}")}))
            .collect();
        world.devices(node, json!(devices)).await;
    }
    for number in 0..12 {
        world.pod(&format!("p{number}")).await;
    }
    let (pods, claims) = (world.pods(), world.claims());
    let check = || async {
        let pods = pods.list(&ListParams::default()).await.unwrap().items;
        let placed = |pod: &&Pod| pod.spec.as_ref().unwrap().node_name.is_some();
        let placed = pods.iter().filter(placed).count();
        let claims = claims.list(&ListParams::default()).await.unwrap().items;
        let mut devices = Vec::new();
        for claim in claims {
            let allocation = claim.status.and_then(|status| status.allocation);
            let devices_of = allocation.and_then(|allocation| allocation.devices);
            for one in devices_of
                .and_then(|devices| devices.results)
                .into_iter()
                .flatten()
            {
                devices.push((one.pool, one.device));
            }
        }
        let count = devices.len();
        devices.sort();
        devices.dedup();
        assert_eq!(devices.len(), count, "a device was allocated twice");
        (placed, count)
    };
    world
        .until("eight pods have devices", || async {
            check().await == (8, 8)
        })
        .await;
    let all = pods.list(&ListParams::default()).await.unwrap().items;
    let placed = all
        .iter()
        .filter(|pod| pod.spec.as_ref().unwrap().node_name.is_some());
    for pod in placed.take(4) {
        let name = pod.metadata.name.as_deref().unwrap();
        pods.delete(name, &DeleteParams::default().grace_period(0))
            .await
            .unwrap();
    }
    world
        .until("the others get the devices", || async {
            check().await == (8, 8)
                && pods.list(&ListParams::default()).await.unwrap().items.len() == 8
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_of_several_pods_is_deallocated_with_the_last_one() {
    let world = World::start().await;
    world.node("n1").await;
    world.devices("n1", json!([{"name": "gpu-0"}])).await;
    let claims = json!([{"name": "gpu", "resourceClaimName": "shared"}]);
    for name in ["one", "two"] {
        world
            .pod_with(name, json!({"resourceClaims": claims}), json!({}))
            .await;
    }
    let why = "resourceclaim.resource.k8s.io \"shared\" not found";
    world.waits("one", why).await;
    let request = json!({"name": "r", "exactly": {"deviceClassName": "gpu"}});
    let spec = json!({"devices": {"requests": [request]}});
    let meta = json!({"name": "shared", "namespace": "default"});
    world
        .create::<ResourceClaim>(json!({"metadata": meta, "spec": spec}))
        .await;
    let why = "0/1 nodes are available: request r: device class gpu does not exist. no new claims \
               to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for \
               scheduling.";
    world.waits("one", why).await;
    world.class().await;
    for name in ["one", "two"] {
        world.bound(name).await;
    }
    let reserved = || async {
        let status = world
            .claims()
            .get("shared")
            .await
            .unwrap()
            .status
            .unwrap_or_default();
        let reserved = status.reserved_for.unwrap_or_default().len();
        (status.allocation.is_some(), reserved)
    };
    world
        .until("both have it", || async { reserved().await == (true, 2) })
        .await;
    let now = DeleteParams::default().grace_period(0);
    world.pods().delete("one", &now).await.unwrap();
    world
        .until("one has it", || async { reserved().await == (true, 1) })
        .await;
    world
        .claims()
        .delete("shared", &DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(world.printed().await[1][1], "deleted,allocated,reserved");
    world.pods().delete("two", &now).await.unwrap();
    world.no_claims().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_taint_evicts_the_pods_of_its_device() {
    let world = World::start().await;
    world.class().await;
    for node in ["n1", "n2"] {
        world.node(node).await;
        world.devices(node, json!([{"name": "gpu-0"}])).await;
    }
    for name in ["one", "two"] {
        world.pod(name).await;
        world.bound(name).await;
    }
    let evicted = world.bound("one").await;
    let node = evicted.spec.as_ref().unwrap().node_name.clone().unwrap();
    let slices: Api<ResourceSlice> = Api::all(world.client.clone());
    let taint = json!([{"key": "example.com/broken", "effect": "NoExecute"}]);
    let patch = json!({"spec": {"devices": [{"name": "gpu-0", "taints": taint}]}});
    slices
        .patch(&node, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    let pods = world.pods();
    world
        .until("the pod is evicted", || async {
            pods.get_opt("one").await.unwrap().is_none()
        })
        .await;
    world
        .measured("device_taint_eviction_controller_pod_deletions_total{} 1")
        .await;
    assert!(
        pods.get("two")
            .await
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_none()
    );
    world.pod("three").await;
    let why = "0/2 nodes are available: 2 cannot allocate all claims. still not schedulable, \
               preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.";
    world.waits("three", why).await;
    let patch = json!({"spec": {"devices": [{"name": "gpu-0"}]}});
    slices
        .patch(&node, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    world.bound("three").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extended_resource_is_backed_by_devices() {
    let world = World::start().await;
    world.node("n1").await;
    let amounts = json!({"example.com/gpu": "1"});
    let resources = json!({"requests": amounts, "limits": amounts});
    world.pod_with("p", json!({}), resources).await;
    world
        .waits(
            "p",
            "0/1 nodes are available: 1 Insufficient example.com/gpu. no new claims to deallocate, \
             preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
        )
        .await;
    world.devices("n1", json!([{"name": "gpu-0"}])).await;
    world.class().await;
    let pod = world.bound("p").await;
    let status = pod.status.unwrap().extended_resource_claim_status.unwrap();
    assert_eq!(status.request_mappings[0].resource_name, "example.com/gpu");
    assert_eq!(
        status.request_mappings[0].request_name,
        "container-0-request-0"
    );
    assert!(
        status
            .resource_claim_name
            .starts_with("p-extended-resources-")
    );
    let claim = world
        .claims()
        .get(&status.resource_claim_name)
        .await
        .unwrap();
    let status = claim.status.unwrap();
    assert!(status.allocation.is_some() && status.reserved_for.unwrap().len() == 1);
    let now = DeleteParams::default().grace_period(0);
    world.pods().delete("p", &now).await.unwrap();
    world.no_claims().await;
}

/// A device that a driver attaches to the node of the pod.
async fn fabric(world: &World) {
    world.class().await;
    world.node("n1").await;
    let device = json!({"name": "fabric-0", "bindsToNode": true,
        "bindingConditions": ["example.com/attached"],
        "bindingFailureConditions": ["example.com/failed"]});
    world.devices("n1", json!([device])).await;
    world.pod("p").await;
}

/// The claim of the only pod, when it is reserved and its devices have no status.
async fn reserved(world: &World) -> ResourceClaim {
    let claims = world.claims();
    let find = || async {
        let all = claims.list(&ListParams::default()).await.unwrap().items;
        all.into_iter().find(|claim| {
            let status = claim.status.as_ref();
            status.is_some_and(|status| status.reserved_for.is_some() && status.devices.is_none())
        })
    };
    world
        .until("the claim is reserved", || async { find().await.is_some() })
        .await;
    find().await.unwrap()
}

/// What a driver writes when a device is ready or has failed.
async fn set_condition(world: &World, claim: &ResourceClaim, kind: &str) {
    let condition = json!({"type": kind, "status": "True", "reason": "Because",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let device = json!({"driver": "gpu.example.com", "pool": "n1", "device": "fabric-0",
        "conditions": [condition]});
    let patch = json!({"status": {"devices": [device]}});
    let name = claim.metadata.name.as_deref().unwrap();
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    let claims = world.claims();
    claims.patch_status(name, &params, &patch).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_is_bound_when_its_device_is_ready() {
    let world = World::start().await;
    fabric(&world).await;
    let claim = reserved(&world).await;
    let pod = world.pods().get("p").await.unwrap();
    assert_eq!(pod.spec.unwrap().node_name, None, "the device is not ready");
    set_condition(&world, &claim, "example.com/attached").await;
    world.bound("p").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_is_allocated_again_when_its_device_fails() {
    let world = World::start().await;
    fabric(&world).await;
    let claim = reserved(&world).await;
    set_condition(&world, &claim, "example.com/failed").await;
    let name = claim.metadata.name.as_deref().unwrap();
    let why = format!(
        "running PreBind plugin \"DynamicResources\": device binding failed: claim={name}, \
         reason=Because, message=\"\""
    );
    world.waits("p", &why).await;
    // The scheduler deallocates the claim and tries again.
    let again = reserved(&world).await;
    assert_eq!(again.metadata.uid, claim.metadata.uid);
    set_condition(&world, &again, "example.com/attached").await;
    world.bound("p").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_does_not_wait_for_the_devices_of_a_deleted_claim() {
    let world = World::start().await;
    fabric(&world).await;
    let claim = reserved(&world).await;
    let name = claim.metadata.name.as_deref().unwrap();
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let params = PatchParams::default();
    world.claims().patch(name, &params, &patch).await.unwrap();
    let deleted = world.claims().delete(name, &DeleteParams::default()).await;
    deleted.unwrap();
    // The controller makes the claim again.
    let again = reserved(&world).await;
    assert_ne!(again.metadata.uid, claim.metadata.uid);
    set_condition(&world, &again, "example.com/attached").await;
    world.bound("p").await;
}
