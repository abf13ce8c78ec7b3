//! An aggregated API server: a second server with the same CAs that has a definition of `Thing`. It
//! is reached over HTTPS through a connection that tests can interrupt.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::{
    api::{
        core::v1::{Namespace, Service},
        discovery::v1::EndpointSlice,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};

use crate::world::{self, Server};

pub(crate) const GROUP: &str = "agg.example.com";

/// Forwards connections until it is cut.
#[derive(Default)]
struct Cable {
    is_cut: AtomicBool,
    connections: Mutex<Vec<AbortHandle>>,
}

pub(crate) struct Backend {
    /// Clients of the two servers.
    front: kube::Client,
    back: kube::Client,
    cable: Arc<Cable>,
    checks: AtomicUsize,
    _server: Server,
}

impl Backend {
    /// Starts a backend of `front` and waits until it is available.
    pub(crate) async fn install(front: &Server) -> Self {
        let server = front.sibling().await;
        let cable = Arc::new(Cable::default());
        let address = forward(cable.clone(), server.server.address().await).await;
        let backend = Self {
            front: front.client.clone(),
            back: server.client.clone(),
            cable,
            checks: AtomicUsize::new(0),
            _server: server,
        };
        backend.define().await;
        until_discovered(&backend.back).await;
        backend.register(front.ca(), address).await;
        backend.wait_for("Passed").await;
        until_discovered(&backend.front).await;
        backend
    }

    async fn define(&self) {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let definition = json!({"metadata": {"name": format!("things.{GROUP}")}, "spec": {
            "group": GROUP, "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
        let definitions: Api<CustomResourceDefinition> = Api::all(self.back.clone());
        create(&definitions, definition).await;
    }

    async fn register(&self, ca: &str, address: SocketAddr) {
        let service = json!({"metadata": {"name": "backend"}, "spec": {"ports": [{"name": "https", "port": 443}]}});
        let services: Api<Service> = Api::namespaced(self.front.clone(), "default");
        create(&services, service).await;
        // Validation forbids loopback for addressType IPv4, but not for FQDN.
        let slice = json!({"metadata": {"name": "backend-1", "labels": {"kubernetes.io/service-name": "backend"}},
            "addressType": "FQDN", "ports": [{"name": "https", "port": address.port()}],
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": true}}]});
        create(&self.slices(), slice).await;
        let service = json!({"metadata": {"name": format!("v1.{GROUP}")}, "spec": {
            "group": GROUP, "version": "v1", "groupPriorityMinimum": 2000, "versionPriority": 10,
            "caBundle": STANDARD.encode(ca), "service": {"namespace": "default", "name": "backend"}}});
        create(&Api::<APIService>::all(self.front.clone()), service).await;
    }

    fn slices(&self) -> Api<EndpointSlice> {
        Api::namespaced(self.front.clone(), "default")
    }

    /// Waits until the APIService has this reason.
    async fn wait_for(&self, reason: &str) {
        let services: Api<APIService> = Api::all(self.front.clone());
        world::until(reason, || async {
            let found = services.get(&format!("v1.{GROUP}")).await?;
            let conditions = found.status.unwrap_or_default().conditions;
            let mut reasons = conditions.into_iter().flatten().map(|one| one.reason);
            Ok::<_, kube::Error>(reasons.any(|found| found.as_deref() == Some(reason)))
        })
        .await;
    }

    /// Changes the endpoint, so that availability is checked at once.
    async fn check(&self) {
        let number = self.checks.fetch_add(1, Ordering::Relaxed);
        let endpoint = json!({"addresses": ["127.0.0.1"], "hostname": format!("check-{number}")});
        let patch = Patch::Merge(json!({"endpoints": [endpoint]}));
        let params = PatchParams::default();
        let patched = self.slices().patch("backend-1", &params, &patch).await;
        patched.unwrap();
    }

    /// Ends all connections and accepts no new ones. The other server does not know it yet.
    pub(crate) fn cut(&self) {
        self.cable.is_cut.store(true, Ordering::SeqCst);
        let connections = std::mem::take(&mut *self.cable.connections.lock());
        connections.iter().for_each(AbortHandle::abort);
    }

    /// The same, and waits until the backend is known to be unavailable.
    pub(crate) async fn leave(&self) {
        self.cut();
        self.check().await;
        self.wait_for("FailedDiscoveryCheck").await;
    }

    /// Accepts connections again, and waits until the backend is available.
    pub(crate) async fn come_back(&self) {
        self.cable.is_cut.store(false, Ordering::SeqCst);
        self.check().await;
        self.wait_for("Passed").await;
    }

    /// Creates a namespace in the backend's own store.
    pub(crate) async fn namespace(&self, name: &str) {
        let namespaces: Api<Namespace> = Api::all(self.back.clone());
        create(&namespaces, json!({"metadata": {"name": name}})).await;
    }

    /// Things through the aggregator.
    pub(crate) fn things(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.front.clone(), namespace, &thing())
    }

    /// Things directly at the backend.
    pub(crate) fn stored_things(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.back.clone(), namespace, &thing())
    }

    /// Creates one through the aggregator.
    pub(crate) async fn make_thing(&self, namespace: &str, meta: Value) -> DynamicObject {
        let object =
            json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Thing", "metadata": meta});
        let object = serde_json::from_value(object).unwrap();
        let things = self.things(namespace);
        things
            .create(&PostParams::default(), &object)
            .await
            .unwrap()
    }
}

/// Waits until aggregated discovery has things.
async fn until_discovered(client: &kube::Client) {
    let media = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    world::until("things are discovered", || async {
        let request = http::Request::get("/apis").header("accept", media);
        let document = client.request_text(request.body(Vec::new()).unwrap()).await;
        document.map(|document| document.contains("\"resource\":\"things\""))
    })
    .await;
}

fn thing() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, "v1", "Thing"))
}

async fn create<K>(api: &Api<K>, object: Value)
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let object = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}

/// Listens on loopback and forwards connections to a server.
async fn forward(cable: Arc<Cable>, to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            if cable.is_cut.load(Ordering::SeqCst) {
                continue;
            }
            let connection = tokio::spawn(async move {
                let mut far = TcpStream::connect(to).await?;
                tokio::io::copy_bidirectional(&mut near, &mut far).await
            });
            let mut connections = cable.connections.lock();
            connections.push(connection.abort_handle());
        }
    });
    address
}
