//! A real API server with the embedded store, all controllers, and a simulated node: it binds, runs
//! and ends pods by writing what a scheduler and a kubelet would.

#![allow(clippy::unwrap_used)]
#![allow(dead_code, reason = "not every test needs all of it")]

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use apiserver::{ApiServer, ObjectCodec, Registry, User};
use client::{Connector, Event, Informer};
use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{Namespace, Pod},
};
use kube::{
    Api, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use lifecycle::{Context, Health, Service};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use stdx::{Clock, SystemClock};
use tokio_util::sync::CancellationToken;

pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) struct World {
    pub client: kube::Client,
    pub stop: CancellationToken,
    pub context: Context,
    server: Arc<ApiServer>,
    _directory: tempfile::TempDir,
}

struct InProcess(Arc<ApiServer>);

impl Connector for InProcess {
    fn client(&self, user: &str) -> kube::Client {
        let account = user
            .strip_prefix("system:serviceaccount:")
            .and_then(|rest| rest.split_once(':'));
        let user = match account {
            Some((namespace, name)) => User::service_account(namespace, name),
            None => User::new(user, [""; 0]),
        };
        client::in_process(self.0.connect(user))
    }
}

/// The API server with a CA, without controllers.
pub(crate) struct Server {
    pub server: Arc<ApiServer>,
    /// A client of the administrator.
    pub client: kube::Client,
    pub stop: CancellationToken,
    pub context: Context,
    pki: Arc<pki::Pki>,
    directory: tempfile::TempDir,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let _ = tracing_subscriber::fmt()
            .with_env_filter(std::env::var("RUST_LOG").unwrap_or("warn".into()))
            .with_test_writer()
            .try_init();
        let directory = tempfile::tempdir().unwrap();
        let names = pki::Names {
            host_names: vec!["backend.default.svc".to_owned()],
            ..pki::Names::default()
        };
        let pki = Arc::new(pki::Pki::ensure(&directory.path().join("pki"), &names).unwrap());
        Self::with_pki(pki, directory).await
    }

    /// A second server with its own store and the same CAs, as an aggregated API server has them.
    pub(crate) async fn sibling(&self) -> Self {
        Self::with_pki(self.pki.clone(), tempfile::tempdir().unwrap()).await
    }

    /// PEM of the CA of its serving certificate, which is valid for `backend.default.svc`.
    pub(crate) fn ca(&self) -> &str {
        self.pki.ca().pem()
    }

    async fn with_pki(pki: Arc<pki::Pki>, directory: tempfile::TempDir) -> Self {
        let server = api_server(&pki, directory.path());
        let admin = User::new("kubernetes-admin", ["system:masters"]);
        let client = client::in_process(server.connect(admin));
        let stop = CancellationToken::new();
        let context = Context::standalone("test", stop.clone());
        tokio::spawn(server.clone().run(context.clone()));
        server.address().await;
        Self {
            server,
            client,
            stop,
            context,
            pki,
            directory,
        }
    }

    /// Runs all controllers in `context` with clients of `connector`.
    pub(crate) fn run_controllers(
        &self,
        context: &Context,
        connector: Arc<dyn Connector>,
        clock: Arc<dyn Clock>,
    ) {
        self.run_configured(context, connector, clock, controllers::Config::default());
    }

    /// The same with another configuration.
    pub(crate) fn run_configured(
        &self,
        context: &Context,
        connector: Arc<dyn Connector>,
        clock: Arc<dyn Clock>,
        config: controllers::Config,
    ) {
        let controllers = controllers::Config {
            cluster_ca: "CA".into(),
            authority: Some(controllers::Authority(self.pki.clone())),
            ..config
        };
        let controllers = Arc::new(controllers.build_with_clock(connector, clock));
        tokio::spawn(controllers.run(context.clone()));
    }

    /// A connector directly to the server.
    pub(crate) fn connector(&self) -> Arc<dyn Connector> {
        Arc::new(InProcess(self.server.clone()))
    }
}

fn api_server(pki: &pki::Pki, directory: &std::path::Path) -> Arc<ApiServer> {
    let registry = Registry::builtin_and(&Registry::optional_versions());
    let codec = ObjectCodec::new(registry.clone());
    let store = store::embedded::Embedded::open(directory.join("store"), codec).unwrap();
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let config = apiserver::Config {
        listen: local,
        advertise: SocketAddr::from((Ipv4Addr::LOCALHOST, 6443)),
        server_name: None,
        tls: pki.apiserver_config().unwrap(),
        kubelet_tls: None,
        front_proxy: Some(pki.client_certificate(pki::Leaf::FrontProxyClient).unwrap()),
        service_cidrs: vec![(Ipv4Addr::new(10, 43, 0, 0).into(), 16)],
        node_ports: 30000..=32767,
        client_ca: pki.ca().pem().to_owned(),
        front_proxy_ca: pki.front_proxy_ca().pem().to_owned(),
        health: Health::default(),
        clock: Arc::new(SystemClock),
        limits: apiserver::Limits::default(),
        name_suffixes: std::sync::Arc::new(apiserver::RandomNameSuffixes),
        token_auth_file: None,
        access: apiserver::AccessOptions::default(),
        audit: None,
        admission: apiserver::admission::Options::default(),
        tokens: None,
    };
    config.build(store, registry).unwrap()
}

impl World {
    /// A client of this user.
    pub(crate) fn as_user(&self, user: User) -> kube::Client {
        client::in_process(self.server.connect(user))
    }

    /// A client of a kubelet in this process, on a node with this address.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn as_node(&self, name: &str, address: &str) -> kube::Client {
        let user = User::new(format!("system:node:{name}"), ["system:nodes"]);
        let service = self.server.connect(user);
        client::in_process(service.of_node(address.parse().unwrap()))
    }

    /// Starts everything, with the namespace "default".
    pub(crate) async fn new() -> Self {
        Self::configured(controllers::Config::default()).await
    }

    /// The same with a configuration of the controllers.
    pub(crate) async fn configured(config: controllers::Config) -> Self {
        Self::timed(config, Arc::new(SystemClock)).await
    }

    /// The same with a clock of the controllers.
    pub(crate) async fn timed(config: controllers::Config, clock: Arc<dyn Clock>) -> Self {
        Self::of(Server::start().await, config, clock).await
    }

    /// Starts the controllers of a server.
    pub(crate) async fn of(
        server: Server,
        config: controllers::Config,
        clock: Arc<dyn Clock>,
    ) -> Self {
        server.run_configured(&server.context, server.connector(), clock, config);
        let world = Self {
            client: server.client,
            stop: server.stop,
            context: server.context,
            server: server.server,
            _directory: server.directory,
        };
        world.namespace("default").await;
        world
    }

    pub(crate) async fn namespace(&self, name: &str) {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        match api.create(&PostParams::default(), &namespace).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(crate) async fn create<K>(&self, namespace: &str, object: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + Serialize
            + DeserializeOwned,
    {
        let object = serde_json::from_value(object).unwrap();
        self.api(namespace)
            .create(&PostParams::default(), &object)
            .await
            .unwrap()
    }

    /// Waits until `look` returns true.
    pub(crate) async fn until<T, F>(&self, what: &str, look: impl Fn() -> F)
    where
        F: Future<Output = Result<bool, T>>,
        T: std::fmt::Debug,
    {
        until(what, look).await;
    }

    /// A simulated node that accepts every pod, runs it at once, and ends it when it is deleted.
    pub(crate) fn pretend_node(&self) {
        let pods = Informer::<Pod>::builder(self.client.clone()).start(&self.context);
        let client = self.client.clone();
        let mut events = pods.subscribe();
        let address = AtomicU8::new(1);
        self.context.spawn("node", async move {
            while let Some(event) = events.next().await {
                if matches!(event, Event::Deleted(_)) {
                    continue;
                }
                let number = address.fetch_add(1, Ordering::Relaxed);
                if let Err(error) = live(&client, event.object(), number).await {
                    tracing::debug!(%error, "the pod has changed meanwhile");
                }
            }
        });
    }
}

/// Waits until `look` returns true.
pub(crate) async fn until<T, F>(what: &str, look: impl Fn() -> F)
where
    F: Future<Output = Result<bool, T>>,
    T: std::fmt::Debug,
{
    let reached = async {
        loop {
            match look().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::debug!(?error, "while waiting"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(DEADLINE, reached).await.is_err() {
        panic!("never happened: {what}");
    }
}

/// One step in a pod's life.
async fn live(client: &kube::Client, pod: &Pod, number: u8) -> Result<(), kube::Error> {
    let (namespace, name) = (
        pod.metadata.namespace.clone().unwrap(),
        pod.metadata.name.clone().unwrap(),
    );
    let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let bound = pod
        .spec
        .as_ref()
        .is_some_and(|spec| spec.node_name.is_some());
    if pod.metadata.deletion_timestamp.is_some() {
        api.delete(&name, &DeleteParams::default().grace_period(0))
            .await?;
    } else if !bound {
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace},
            "target": {"kind": "Node", "name": "n1"},
        });
        let body = serde_json::to_vec(&binding).unwrap();
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/binding");
        let request = http::Request::post(path).header("content-type", "application/json");
        client.request::<Value>(request.body(body).unwrap()).await?;
    } else if phase == Some("Pending") {
        let finishes = pod
            .metadata
            .labels
            .as_ref()
            .is_some_and(|l| l.contains_key("finishes"));
        let now = jiff::Timestamp::now().to_string();
        let ip = format!("10.42.0.{number}");
        let ready = if finishes { "False" } else { "True" };
        let status = json!({"status": {
            "phase": if finishes { "Succeeded" } else { "Running" },
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": now}],
        }});
        api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status))
            .await?;
    }
    Ok(())
}
