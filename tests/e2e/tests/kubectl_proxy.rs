//! kubectl through a proxy that speaks TLS and wants a password: requests, watches and upgraded connections. A proxy
//! with a certificate of another CA gets neither the password nor a request.

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, Mutex, mpsc},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{ServerConfig, crypto::ring};
use serde_json::{Value, json};
use testkit::{Cluster, Machine, Ran};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

/// `jane:secret` as the proxy reads it.
const PASSWORD: &str = "Proxy-Authorization: Basic amFuZTpzZWNyZXQ=";

/// A proxy on a machine; it ends with the test.
struct Proxy {
    port: u16,
    /// The CA of its certificate, as PEM.
    authority: String,
    /// The heads of the requests that it has read.
    requests: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    fn on(machine: &Machine) -> Self {
        let (config, authority) = certificate();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (port_of, seen) = (mpsc::channel(), requests.clone());
        let sender = port_of.0;
        machine.thread(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
                let port = listener.local_addr().expect("an address").port();
                sender.send(port).expect("the test waits");
                let acceptor = TlsAcceptor::from(Arc::new(config));
                while let Ok((tcp, _)) = listener.accept().await {
                    tokio::spawn(serve(acceptor.clone(), tcp, seen.clone()));
                }
            });
        });
        Self {
            port: port_of.1.recv().expect("a port"),
            authority,
            requests,
        }
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().expect("no panic"))
    }

    fn address(&self, user: &str) -> String {
        format!("https://{user}localhost:{}", self.port)
    }
}

/// A server's configuration for `localhost`, and the CA of its certificate.
fn certificate() -> (ServerConfig, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let authority = CertifiedIssuer::self_signed(params, key).expect("a CA");
    let own = KeyPair::generate().expect("a key");
    let leaf = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    let leaf = leaf.signed_by(&own, &authority).expect("a certificate");
    let key = own.serialize_der().try_into().expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key);
    (config.expect("a configuration"), authority.pem())
}

/// Reads one request and tunnels to the server that it names, if the password is right.
async fn serve(acceptor: TlsAcceptor, tcp: TcpStream, seen: Arc<Mutex<Vec<String>>>) {
    let Ok(mut client) = acceptor.accept(tcp).await else {
        return;
    };
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = client.read_u8().await else {
            return;
        };
        head.push(byte);
    }
    let head = String::from_utf8(head).expect("text");
    let is_allowed = head.lines().any(|line| line == PASSWORD);
    let server = head.split(' ').nth(1).expect("an address").to_owned();
    seen.lock().expect("no panic").push(head);
    let answer: &[u8] = match is_allowed {
        true => b"HTTP/1.1 200 Connection established\r\n\r\n",
        false => b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
    };
    let _ = client.write_all(answer).await;
    let _ = client.flush().await;
    if is_allowed && let Ok(mut server) = TcpStream::connect(server).await {
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
}

/// The administrator's kubeconfig with another server and these fields of its cluster.
fn kubeconfig(cluster: &Cluster, name: &str, proxy: Option<&str>, authority: &str) -> PathBuf {
    let view = ["config", "view", "--raw", "--flatten", "-o", "json"];
    let config = cluster.kubectl(&view).success();
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    let fields = &mut config["clusters"][0]["cluster"];
    let own = fields["certificate-authority-data"].as_str().expect("a CA");
    let own = BASE64_STANDARD.decode(own).expect("base64");
    let both = [own, authority.as_bytes().to_vec()].concat();
    fields["certificate-authority-data"] = json!(BASE64_STANDARD.encode(both));
    // Upstream's clients reach loopback addresses without the proxy of the environment.
    let address = cluster.machine().address().split('/').next();
    fields["server"] = json!(format!("https://{}:6443", address.expect("an address")));
    if let Some(proxy) = proxy {
        fields["proxy-url"] = json!(proxy);
    }
    let path = cluster.machine().dir().join(name);
    fs::write(&path, config.to_string()).expect("a file");
    path
}

/// Runs our kubectl with a kubeconfig and this `HTTPS_PROXY`.
fn kubectl(cluster: &Cluster, kubeconfig: &PathBuf, proxy: &str, args: &[&str]) -> Ran {
    let binary = std::env::var("MAINSTAY_BIN").expect("the binary");
    let mut command = cluster.machine().command(&binary);
    command.arg("kubectl").args(args);
    command
        .env("KUBECONFIG", kubeconfig)
        .env("HTTPS_PROXY", proxy);
    command.output().expect("kubectl starts").into()
}

#[test]
fn everything_goes_through_an_https_proxy_that_is_trusted() {
    let cluster = Cluster::up();
    let create = [
        "create",
        "deployment",
        "web",
        "--image=mainstay.local/hello",
    ];
    cluster.kubectl(&create).success();
    let proxy = Proxy::on(cluster.machine());
    let (named, anonymous) = (proxy.address("jane:secret@"), proxy.address(""));
    let config = |name: &str, proxy_url: Option<&str>| {
        kubeconfig(&cluster, name, proxy_url, &proxy.authority)
    };
    let through = config("through", Some(&named));
    let plain = config("plain", None);
    for (kubeconfig, variable) in [(&through, ""), (&plain, named.as_str())] {
        let run = |args: &[&str]| kubectl(&cluster, kubeconfig, variable, args).success();
        assert_eq!(run(&["get", "nodes", "-o", "name"]), "node/one\n");
        // A watch, and an upgraded connection.
        run(&["rollout", "status", "deployment/web", "--timeout=90s"]);
        let exec = ["exec", "deployment/web", "--", "/mainstay", "version"];
        assert!(run(&exec).contains("mainstay"));
        let requests = proxy.requests();
        assert!(requests.len() >= 3, "{requests:?}");
        for request in requests {
            assert!(request.starts_with("CONNECT "), "{request}");
            assert!(request.contains(":6443 HTTP/1.1\r\n"), "{request}");
        }
    }
    let refused = config("refused", Some(&anonymous));
    let ran = kubectl(&cluster, &refused, "", &["get", "nodes"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(
        ran.stderr,
        "Unable to connect to the server: Proxy Authentication Required\n"
    );
    assert!(!proxy.requests().is_empty());

    let (_, other) = certificate();
    let distrusted = kubeconfig(&cluster, "distrusted", Some(&named), &other);
    let ran = kubectl(&cluster, &distrusted, "", &["get", "nodes"]);
    let expected =
        "tls: failed to verify certificate: x509: certificate signed by unknown authority";
    assert!(!ran.ok && ran.stderr.contains(expected), "{ran:?}");
    assert_eq!(proxy.requests(), Vec::<String>::new());
}
