//! The measured servers, with the same names.

use std::{
    convert::Infallible,
    fmt::Write,
    fs,
    net::UdpSocket,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use dns::cluster::Cluster;
use kube::client::Body;
use lifecycle::Context;
use serde_json::json;
use tokio_util::sync::CancellationToken;

const OURS: u16 = 5301;
const THEIRS: u16 = 5302;

fn name(service: usize) -> String {
    format!("service-{service}.default.svc.cluster.local")
}

fn address(service: usize) -> String {
    format!("10.43.{}.{}", service / 250 + 1, service % 250 + 1)
}

/// Writes dnsperf's input file.
pub(crate) fn write_questions(directory: &Path, services: usize) -> Result<PathBuf> {
    let mut text = String::new();
    for service in 0..services {
        writeln!(text, "{} A", name(service))?;
    }
    let path = directory.join("questions");
    fs::write(&path, text)?;
    Ok(path)
}

/// A query for a Service's address.
pub(crate) fn question(id: u16, service: usize) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name(service).split('.') {
        bytes.extend(u8::try_from(label.len()));
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

/// Runs a program to its end.
pub(crate) fn command(program: &str, arguments: &[&str]) -> Result<()> {
    let status = Command::new(program).args(arguments).status()?;
    if !status.success() {
        bail!("{program} {arguments:?} failed");
    }
    Ok(())
}

async fn wait_for(port: u16) -> Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(("127.0.0.1", port))?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        socket.send(&question(7, 0))?;
        if socket.recv(&mut [0; 512]).is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bail!("no server answers at port {port}");
}

/// Our server, in this process.
pub(crate) struct Mainstay {
    pub port: u16,
    stop: CancellationToken,
}

impl Mainstay {
    pub(crate) async fn start(services: usize) -> Result<Self> {
        let unreachable = tower::service_fn(|_: http::Request<Body>| async {
            Ok::<_, Infallible>(http::Response::new(Body::empty()))
        });
        let client = kube::Client::new(unreachable, "default");
        let cluster = Cluster::offline(&client);
        for service in 0..services {
            let metadata = json!({"name": format!("service-{service}"), "namespace": "default", "uid": service.to_string()});
            let spec = json!({"clusterIP": address(service), "ports": [{"port": 80}]});
            let object = json!({"metadata": metadata, "spec": spec});
            cluster.services.upsert(serde_json::from_value(object)?);
        }
        let config = dns::Config {
            client,
            saved: None,
            listen: vec![([127, 0, 0, 1], OURS).into()],
            holder: None,
            metrics: None,
            cluster_domain: "cluster.local".into(),
            cluster_dns: Vec::new(),
            own_ranges: Vec::new(),
            resolv_conf: "/dev/null".into(),
            clock: Arc::new(stdx::SystemClock),
        };
        let (server, stop) = (config.build()?, CancellationToken::new());
        let context = Context::standalone("dns", stop.clone());
        tokio::spawn(async move { server.serve(cluster, &context).await });
        wait_for(OURS).await?;
        Ok(Self { port: OURS, stop })
    }
}

impl Drop for Mainstay {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Debian's unbound with the names as local data, on all cores.
pub(crate) struct Unbound {
    pub port: u16,
    child: Child,
}

impl Unbound {
    pub(crate) async fn start(directory: &Path, services: usize) -> Result<Self> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut text = format!(
            "server:\n verbosity: 0\n interface: 127.0.0.1@{THEIRS}\n num-threads: {threads}\n\
             so-reuseport: yes\n do-daemonize: no\n username: \"\"\n chroot: \"\"\n\
             directory: {0:?}\n pidfile: \"\"\n use-syslog: no\n\
             access-control: 127.0.0.0/8 allow\n local-zone: \"cluster.local.\" static\n",
            directory
        );
        for service in 0..services {
            writeln!(
                text,
                " local-data: \"{}. 5 IN A {}\"",
                name(service),
                address(service)
            )?;
        }
        text.push_str("remote-control:\n control-enable: no\n");
        let path = directory.join("unbound.conf");
        fs::write(&path, text)?;
        let child = Command::new("unbound")
            .arg("-d")
            .arg("-c")
            .arg(&path)
            .spawn()?;
        let unbound = Self {
            port: THEIRS,
            child,
        };
        wait_for(THEIRS).await?;
        Ok(unbound)
    }
}

impl Drop for Unbound {
    fn drop(&mut self) {
        // There is nothing to save.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
