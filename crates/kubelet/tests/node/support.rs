//! A node: the real API server and a kubelet in this process, with a fake runtime.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use apiserver::{ApiServer, Limits, ObjectCodec, Registry, User};
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::{Api, api::PostParams};
use kubelet::{Config, configuration::KubeletConfiguration};
use lifecycle::{Context, Service};
use pki::{Leaf, Names, Pki};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::runtime::Fake;

pub(crate) struct TestNode {
    pub runtime: Fake,
    pub client: kube::Client,
    pub pki: Pki,
    pub port: u16,
    pub directory: TempDir,
    server: Arc<ApiServer>,
    stop: CancellationToken,
    kubelet: Option<CancellationToken>,
    change: Change,
}

/// Changes the kubelet's settings in a directory of the test's.
type Change = fn(&mut KubeletConfiguration, &Path);

impl TestNode {
    /// Starts everything; returns when the node is ready.
    pub(crate) async fn start() -> Self {
        Self::start_with(Fake::new()).await
    }

    /// The same with a prepared runtime.
    pub(crate) async fn start_with(runtime: Fake) -> Self {
        Self::start_changed(runtime, |_, _| {}).await
    }

    /// The same with other settings.
    pub(crate) async fn start_changed(runtime: Fake, change: Change) -> Self {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_test_writer()
            .try_init();
        let directory = tempfile::tempdir().unwrap();
        let names = Names {
            node_name: Some("node".into()),
            node_ips: vec!["127.0.0.1".parse().unwrap()],
            ..Names::default()
        };
        let pki = Pki::ensure(&directory.path().join("pki"), &names).unwrap();
        let stop = CancellationToken::new();
        let server = start_server(&directory, &pki, stop.clone()).await;
        let client =
            client::in_process(server.connect(User::new("kubernetes-admin", ["system:masters"])));
        // A controller creates it in a whole cluster; pods are rejected without it.
        let account = serde_json::json!({"metadata": {"name": "default"}});
        Api::<ServiceAccount>::namespaced(client.clone(), "default")
            .create(
                &PostParams::default(),
                &serde_json::from_value(account).unwrap(),
            )
            .await
            .unwrap();
        runtime
            .serve(&directory.path().join("cri.sock"), stop.clone())
            .await;
        let port = free_port();
        let mut node = Self {
            runtime,
            client,
            pki,
            port,
            directory,
            server,
            stop,
            kubelet: None,
            change,
        };
        node.start_kubelet();
        node.wait("the node to be ready", || node.is_ready()).await;
        node
    }

    pub(crate) fn start_kubelet(&mut self) {
        let user = User::new("system:node:node", ["system:nodes"]);
        let client = client::in_process(self.server.connect(user));
        // The test machine's own memory pressure must not evict pods.
        let mut kubelet = KubeletConfiguration {
            eviction_hard: [("memory.available".to_owned(), "1Mi".to_owned())].into(),
            feature_gates: [("CSIVolumeHealth".to_owned(), true)].into(),
            ..Default::default()
        };
        (self.change)(&mut kubelet, self.directory.path());
        let config = Config {
            port: self.port,
            client_ca: self.pki.ca().pem().as_bytes().to_vec(),
            cgroup_root: kubelet.cgroup_root.clone(),
            kubelet: kubelet.complete(),
            static_pods_dir: Some(self.path("manifests")),
            ..Config::new(
                "node",
                "127.0.0.1".parse().unwrap(),
                client,
                self.path("cri.sock"),
                self.directory.path(),
                self.pki.kubelet_config().unwrap(),
            )
        };
        std::fs::create_dir_all(self.path("manifests")).unwrap();
        let stop = self.stop.child_token();
        let context = Context::standalone("kubelet", stop.clone());
        tokio::spawn(config.build().run(context));
        self.kubelet = Some(stop);
    }

    /// Stops the kubelet, and waits until its port is free for the next one.
    pub(crate) async fn stop_kubelet(&mut self) {
        self.kubelet.take().unwrap().cancel();
        let address = ("0.0.0.0", self.port);
        self.wait("the kubelet to leave its port", || async {
            tokio::net::TcpListener::bind(address).await.is_ok()
        })
        .await;
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn is_ready(&self) -> bool {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get_opt("node").await.unwrap();
        let conditions = node
            .and_then(|node| node.status)
            .and_then(|status| status.conditions);
        conditions
            .into_iter()
            .flatten()
            .any(|c| c.type_ == "Ready" && c.status == "True")
    }

    /// Creates a pod on this node.
    pub(crate) async fn create(&self, name: &str, mut spec: serde_json::Value) -> Pod {
        spec["nodeName"] = "node".into();
        spec["automountServiceAccountToken"] = false.into();
        let pod = serde_json::json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name}, "spec": spec});
        let pod = serde_json::from_value(pod).unwrap();
        self.pods()
            .create(&PostParams::default(), &pod)
            .await
            .unwrap()
    }

    pub(crate) async fn get(&self, name: &str) -> Option<Pod> {
        self.pods().get_opt(name).await.unwrap()
    }

    /// The pod's status as JSON.
    pub(crate) async fn status(&self, name: &str) -> serde_json::Value {
        let pod = self.get(name).await;
        pod.map_or(serde_json::Value::Null, |pod| {
            serde_json::to_value(pod.status).unwrap()
        })
    }

    /// Waits until the pod's status has this value at this path.
    pub(crate) async fn shows(
        &self,
        pod: &str,
        path: &str,
        expected: impl Into<serde_json::Value>,
    ) {
        let expected = expected.into();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        loop {
            let status = self.status(pod).await;
            if status.pointer(path) == Some(&expected) {
                return;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "{pod} never shows {expected} at {path}: {status:#}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until `condition` returns true.
    pub(crate) async fn wait<F: Future<Output = bool>>(
        &self,
        what: &str,
        condition: impl Fn() -> F,
    ) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        while !condition().await {
            assert!(
                tokio::time::Instant::now() < deadline,
                "waited in vain for {what}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Checks that a condition holds for a while.
    pub(crate) async fn stays<F: Future<Output = bool>>(
        &self,
        what: &str,
        condition: impl Fn() -> F,
    ) {
        let end = tokio::time::Instant::now() + Duration::from_secs(2);
        while tokio::time::Instant::now() < end {
            assert!(condition().await, "it did not stay so: {what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The response of the kubelet's server to one of the cluster's identities.
    pub(crate) async fn ask(&self, leaf: Leaf, path: &str) -> (u16, String) {
        let config = self.pki.client_config(leaf).unwrap();
        let request = http::Request::get(path).header("host", "node");
        let answer = self.send(config, request.body(()).unwrap()).await;
        (answer.status, answer.body)
    }

    /// The response to POST.
    pub(crate) async fn post(&self, leaf: Leaf, path: &str) -> (u16, String) {
        let config = self.pki.client_config(leaf).unwrap();
        let request = http::Request::post(path).header("host", "node");
        let answer = self.send(config, request.body(()).unwrap()).await;
        (answer.status, answer.body)
    }

    /// The response to a client without a certificate.
    pub(crate) async fn ask_with_token(&self, token: Option<&str>, path: &str) -> (u16, String) {
        let config = self.anonymous();
        let mut request = http::Request::get(path).header("host", "node");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = self.send(config, request.body(()).unwrap()).await;
        (answer.status, answer.body)
    }

    /// A connection without a certificate. The users in [`TOKENS`] have tokens that are their names.
    pub(crate) async fn session(&self, token: Option<&str>) -> Session {
        let io = self.connect(self.anonymous()).await;
        let (sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        let token = token.map(|token| format!("Bearer {token}"));
        Session { sender, token }
    }

    /// The response to a client with a certificate of another CA; `None` if the handshake fails.
    pub(crate) async fn ask_of(
        &self,
        other: &Pki,
        leaf: Leaf,
        path: &str,
    ) -> Option<(u16, String)> {
        let mut config = self.anonymous();
        config.client_auth_cert_resolver = other.client_certificate(leaf).unwrap();
        let request = http::Request::get(path).header("host", "node");
        let answer = self.try_send(config, request.body(()).unwrap()).await?;
        Some((answer.status, answer.body))
    }

    fn anonymous(&self) -> rustls::ClientConfig {
        use rustls::pki_types::{CertificateDer, pem::PemObject};
        let mut roots = rustls::RootCertStore::empty();
        let pem = self.pki.ca().pem().to_owned();
        roots
            .add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap())
            .unwrap();
        rustls::ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth()
    }

    async fn connect(
        &self,
        config: rustls::ClientConfig,
    ) -> hyper_util::rt::TokioIo<tokio_rustls::client::TlsStream<tokio::net::TcpStream>> {
        let tcp = tokio::net::TcpStream::connect(("127.0.0.1", self.port))
            .await
            .unwrap();
        let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        hyper_util::rt::TokioIo::new(connector.connect(name, tcp).await.unwrap())
    }

    async fn send(&self, config: rustls::ClientConfig, request: http::Request<()>) -> Answered {
        self.try_send(config, request).await.expect("an answer")
    }

    /// `None` if the server closes the connection.
    async fn try_send(
        &self,
        config: rustls::ClientConfig,
        request: http::Request<()>,
    ) -> Option<Answered> {
        use http_body_util::{BodyExt, Empty};
        let io = self.connect(config).await;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        let request = request.map(|()| Empty::<bytes::Bytes>::new());
        let response = sender.send_request(request).await.ok()?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Some(Answered {
            status,
            length: None,
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    }

    /// The response to HEAD over HTTP/2.
    pub(crate) async fn head(&self, leaf: Leaf, path: &str) -> Answered {
        use http_body_util::{BodyExt, Empty};
        let mut config = self.pki.client_config(leaf).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let io = self.connect(config).await;
        let executor = hyper_util::rt::TokioExecutor::new();
        let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io)
            .await
            .unwrap();
        tokio::spawn(connection);
        let request = http::Request::head(format!("https://node{path}"));
        let request = request.body(Empty::<bytes::Bytes>::new()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        let status = response.status().as_u16();
        let length = response.headers().get("content-length").cloned();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Answered {
            status,
            length: length.and_then(|length| length.to_str().ok()?.parse().ok()),
            body: String::from_utf8_lossy(&body).into_owned(),
        }
    }
}

/// A connection of a user.
pub(crate) struct Session {
    sender: hyper::client::conn::http1::SendRequest<http_body_util::Empty<bytes::Bytes>>,
    token: Option<String>,
}

impl Session {
    /// The status of the response.
    pub(crate) async fn request(&mut self, method: &str, path: &str) -> u16 {
        use http_body_util::{BodyExt, Empty};
        let request = http::Request::builder().method(method).uri(path);
        let mut request = request.header("host", "node");
        if let Some(token) = &self.token {
            request = request.header("authorization", token);
        }
        self.sender.ready().await.unwrap();
        let request = request.body(Empty::new()).unwrap();
        let response = self.sender.send_request(request).await.unwrap();
        let status = response.status().as_u16();
        response.into_body().collect().await.unwrap();
        status
    }
}

/// A response of the kubelet's server.
pub(crate) struct Answered {
    pub status: u16,
    pub length: Option<u64>,
    pub body: String,
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Users with tokens.
const TOKENS: &[&str] = &[
    "metrics",
    "stats",
    "log",
    "pods",
    "healthz",
    "configz",
    "statusz",
    "proxy",
    "run",
    "checkpoint",
    "admin",
    "stranger",
];

/// Writes the token file of the API server.
fn write_tokens(file: &Path) {
    let line = |user: &&str| format!("{user},{user},{user}\n");
    let lines: String = TOKENS.iter().map(line).collect();
    std::fs::write(file, lines).unwrap();
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

async fn start_server(directory: &TempDir, pki: &Pki, stop: CancellationToken) -> Arc<ApiServer> {
    let registry = Registry::builtin();
    let codec = ObjectCodec::new(registry.clone());
    let store = store::embedded::Embedded::open(directory.path().join("store"), codec).unwrap();
    let tokens = directory.path().join("tokens.csv");
    write_tokens(&tokens);
    let config = apiserver::Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        advertise: "127.0.0.1:6443".parse().unwrap(),
        server_name: None,
        tls: pki.apiserver_config().unwrap(),
        kubelet_tls: Some(Arc::new(
            pki.client_config(Leaf::ApiserverKubeletClient).unwrap(),
        )),
        front_proxy: Some(pki.client_certificate(Leaf::FrontProxyClient).unwrap()),
        service_cidrs: vec![("10.43.0.0".parse().unwrap(), 16)],
        node_ports: 30000..=32767,
        client_ca: pki.ca().pem().to_owned(),
        front_proxy_ca: pki.front_proxy_ca().pem().to_owned(),
        health: lifecycle::Health::default(),
        clock: Arc::new(stdx::SystemClock),
        limits: Limits::default(),
        name_suffixes: std::sync::Arc::new(apiserver::RandomNameSuffixes),
        token_auth_file: Some(tokens),
        access: apiserver::AccessOptions::default(),
        audit: None,
        admission: apiserver::admission::Options::default(),
        tokens: None,
    };
    let server = config.build(store, registry).unwrap();
    tokio::spawn(server.clone().run(Context::standalone("apiserver", stop)));
    server.address().await;
    server
}
