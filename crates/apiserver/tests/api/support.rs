//! A server in this process: HTTPS on loopback, the embedded store in a temporary directory.

use std::{
    future::Future,
    path::PathBuf,
    process::{Command, Output},
    sync::Arc,
    time::Duration,
};

use apiserver::{ApiServer, Config, Limits, ObjectCodec, Registry, User};
use lifecycle::{Context, Service};
use pki::{Leaf, Names, Pki};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) type AnyStore = Arc<dyn store::Store<ObjectCodec>>;

/// A running server; dropping it stops everything.
pub(crate) struct Server {
    pub server: Arc<ApiServer>,
    pub store: AnyStore,
    pub pki: Arc<Pki>,
    pub url: String,
    directory: TempDir,
    stop: CancellationToken,
    run: Option<JoinHandle<lifecycle::Outcome>>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::start_with(Limits::default()).await
    }

    pub(crate) async fn start_with(limits: Limits) -> Self {
        Self::start_on(limits, Arc::new(stdx::SystemClock)).await
    }

    pub(crate) async fn start_on(limits: Limits, clock: Arc<dyn stdx::Clock>) -> Self {
        Self::configured(|config, _| {
            config.limits = limits;
            config.clock = clock;
        })
        .await
    }

    /// A server whose configuration is changed before it starts, with the directory it uses.
    pub(crate) async fn configured(change: impl FnOnce(&mut Config, &std::path::Path)) -> Self {
        Self::with_kinds(Registry::builtin(), change).await
    }

    /// The same with other kinds.
    pub(crate) async fn with_kinds(
        registry: Arc<Registry>,
        change: impl FnOnce(&mut Config, &std::path::Path),
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::open(directory, registry, |store| store, change).await
    }

    /// A server over another store, made from the usual one.
    pub(crate) async fn over(wrap: impl FnOnce(AnyStore) -> AnyStore) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::open(directory, Registry::builtin(), wrap, |_, _| {}).await
    }

    /// A server that serves other kinds.
    pub(crate) async fn start_with_kinds(registry: Arc<Registry>) -> Self {
        Self::with_kinds(registry, |_, _| {}).await
    }

    /// Stops the server and starts it again over the same store.
    pub(crate) async fn restart(self) -> Self {
        self.restart_over(|store| store).await
    }

    /// The same, over another store made from it.
    pub(crate) async fn restart_over(mut self, wrap: impl FnOnce(AnyStore) -> AnyStore) -> Self {
        self.stop.cancel();
        self.run.take().unwrap().await.unwrap().unwrap();
        let directory = std::mem::replace(&mut self.directory, tempfile::tempdir().unwrap());
        drop(self);
        Self::open(directory, Registry::builtin(), wrap, |_, _| {}).await
    }

    async fn open(
        directory: TempDir,
        registry: Arc<Registry>,
        wrap: impl FnOnce(AnyStore) -> AnyStore,
        change: impl FnOnce(&mut Config, &std::path::Path),
    ) -> Self {
        let names = Names {
            node_name: Some("n1".to_owned()),
            ..Names::default()
        };
        let pki = Arc::new(Pki::ensure(&directory.path().join("pki"), &names).unwrap());
        let clock: Arc<dyn stdx::Clock> = Arc::new(stdx::SystemClock);
        let tokens = apiserver::authn::Tokens::new(pki.clone(), "cluster.local", clock.clone());
        let mut config = Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            advertise: "192.0.2.1:6443".parse().unwrap(),
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
            clock,
            limits: Limits::default(),
            name_suffixes: std::sync::Arc::new(apiserver::RandomNameSuffixes),
            token_auth_file: None,
            access: apiserver::AccessOptions::default(),
            audit: None,
            admission: apiserver::admission::Options::default(),
            tokens: Some(Arc::new(tokens)),
        };
        change(&mut config, directory.path());
        // The stopped server may hold its lock a moment longer.
        let store = eventually(|| async {
            let codec = ObjectCodec::new(registry.clone());
            let store = store::embedded::Config {
                clock: config.clock.clone(),
                ..Default::default()
            };
            store.open(directory.path().join("store"), codec).ok()
        })
        .await;
        let store = wrap(store);
        let has_services = registry.get("", "v1", "services").is_some();
        let server = config.build(store.clone(), registry).unwrap();
        let stop = CancellationToken::new();
        let context = Context::standalone("apiserver", stop.clone());
        let run = tokio::spawn(server.clone().run(context));
        let address = tokio::time::timeout(Duration::from_secs(20), server.address())
            .await
            .unwrap();
        let url = format!("https://{address}");
        let server = Self {
            server,
            store,
            pki,
            url,
            directory,
            stop,
            run: Some(run),
        };
        // Created by a controller otherwise; without it no pod is admitted.
        let account = machinery::json::json!({"metadata": {"name": "default"}});
        let path = "/api/v1/namespaces/default/serviceaccounts";
        let made = admin(&server, "POST", path, account).await;
        assert!(matches!(made.code, 201 | 409), "{}", made.body);
        if has_services {
            let path = "/livez";
            let live = || async { admin(&server, "GET", path, machinery::json::Value::Null).await };
            eventually(|| async { (live().await.code == 200).then_some(()) }).await;
        }
        server
    }

    /// The server's directory.
    pub(crate) fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// A client in this process.
    pub(crate) fn client(&self, user: User) -> kube::Client {
        client::in_process(self.server.connect(user))
    }

    /// A client with all permissions.
    pub(crate) fn admin(&self) -> kube::Client {
        self.client(User::new("kubernetes-admin", ["system:masters"]))
    }

    /// The kubeconfig of one of the cluster's identities.
    pub(crate) fn kubeconfig(&self, leaf: Leaf) -> PathBuf {
        let path = self
            .directory
            .path()
            .join(format!("{}.kubeconfig", leaf.file()));
        std::fs::write(&path, self.pki.kubeconfig(leaf, &self.url).unwrap()).unwrap();
        path
    }

    /// Runs the real kubectl as the administrator; `None` if it is not installed.
    pub(crate) async fn kubectl(&self, arguments: &[&str], input: &str) -> Option<Output> {
        let kubectl = PathBuf::from("/usr/bin/kubectl");
        if !kubectl.exists() {
            return None;
        }
        let mut command = Command::new(kubectl);
        command
            .args(arguments)
            .env("KUBECONFIG", self.kubeconfig(Leaf::Admin));
        command
            .env("HOME", self.directory.path())
            .env_remove("HTTPS_PROXY")
            .env("NO_PROXY", "*");
        let input = input.to_owned();
        let run = tokio::task::spawn_blocking(move || {
            use std::{io::Write, process::Stdio};
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            child
                .stdin
                .take()
                .unwrap()
                .write_all(input.as_bytes())
                .unwrap();
            child.wait_with_output().unwrap()
        });
        Some(run.await.unwrap())
    }

    /// Runs kubectl and expects success; returns its output.
    pub(crate) async fn kubectl_ok(&self, arguments: &[&str], input: &str) -> Option<String> {
        let output = self.kubectl(arguments, input).await?;
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(
            output.status.success(),
            "kubectl {arguments:?}\n{out}\n{err}"
        );
        Some(out)
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(run) = self.run.take() {
            run.abort();
        }
    }
}

/// A raw response, for what typed clients hide.
pub(crate) struct Raw {
    pub code: u16,
    pub headers: http::HeaderMap,
    pub body: String,
}

impl Raw {
    pub(crate) fn json(&self) -> machinery::json::Value {
        machinery::json::from_str(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// Sends a request through the in-process transport as a user.
pub(crate) async fn send(
    server: &Server,
    user: User,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<String>,
) -> Raw {
    use http_body_util::BodyExt;
    use tower::Service as _;
    let mut request = http::Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request
        .body(http_body_util::Full::new(bytes::Bytes::from(body.into())))
        .unwrap();
    let response = server.server.connect(user).call(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Raw {
        code: parts.status.as_u16(),
        headers: parts.headers,
        body: text(&bytes),
    }
}

/// Sends JSON as the administrator.
pub(crate) async fn admin(
    server: &Server,
    method: &str,
    path: &str,
    body: machinery::json::Value,
) -> Raw {
    let user = User::new("kubernetes-admin", ["system:masters"]);
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let media = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    send(server, user, method, path, &[("content-type", media)], body).await
}

pub(crate) type Tls = tokio_rustls::client::TlsStream<tokio::net::TcpStream>;

/// A connection over the socket, HTTP/1.1, with the administrator's certificate.
pub(crate) async fn dial(server: &Server) -> Tls {
    dial_with(server, server.pki.client_config(Leaf::Admin).unwrap()).await
}

/// The same with other settings.
pub(crate) async fn dial_with(server: &Server, mut config: rustls::ClientConfig) -> Tls {
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let address = server.url.trim_start_matches("https://");
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap()
}

/// Sends one request over the socket; the response may be an upgrade.
pub(crate) async fn over_socket(
    server: &Server,
    request: http::Request<http_body_util::Full<bytes::Bytes>>,
) -> http::Response<hyper::body::Incoming> {
    let io = hyper_util::rt::TokioIo::new(dial(server).await);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let mut request = request;
    let host = server.url.trim_start_matches("https://").parse().unwrap();
    request.headers_mut().insert("host", host);
    sender.send_request(request).await.unwrap()
}

/// Retries until `look` returns a value, up to a deadline.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(look: impl Fn() -> F) -> T {
    let found = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(20), found);
    found.await.expect("it happens within the time")
}
