//! Our own API server in a process of its own: what `mainstay` runs, without its clients.

use std::{
    io::{BufRead, BufReader, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
};

use anyhow::Context;
use apiserver::{ApiServer, ObjectCodec, Registry};
use lifecycle::{Health, Supervisor};
use pki::{Leaf, Names, Pki};
use stdx::SystemClock;
use tokio_util::sync::CancellationToken;

use crate::peer::Peer;

/// Serves until it is killed; prints the address when it is ready.
pub(crate) async fn serve(
    directory: &Path,
    listen: SocketAddr,
    dual_stack: bool,
) -> anyhow::Result<()> {
    // As the program `mainstay` does.
    allocator::purge_in_background();
    let (server, supervisor) = assemble(directory, listen, dual_stack)?;
    let announce = async {
        println!("{}", server.address().await);
        std::io::stdout().flush()
    };
    let (_, announced) = tokio::join!(supervisor.run(CancellationToken::new()), announce);
    Ok(announced?)
}

/// The server for a directory, and its supervisor.
pub(crate) fn assemble(
    directory: &Path,
    listen: SocketAddr,
    dual_stack: bool,
) -> anyhow::Result<(Arc<ApiServer>, Supervisor)> {
    let pki = Arc::new(Pki::ensure(&directory.join("pki"), &Names::default())?);
    let health = Health::default();
    let registry = Registry::builtin();
    let codec = ObjectCodec::new(registry.clone());
    let store = store::embedded::Embedded::open(directory.join("store"), codec)?;
    let tokens = apiserver::authn::Tokens::new(pki.clone(), "cluster.local", Arc::new(SystemClock));
    let mut service_cidrs = vec![(IpAddr::V4(Ipv4Addr::new(10, 43, 0, 0)), 16)];
    if dual_stack {
        let network = Ipv6Addr::new(0xfd00, 0x43, 0, 0, 0, 0, 0, 0);
        service_cidrs.push((IpAddr::V6(network), 112));
    }
    let config = apiserver::Config {
        listen,
        advertise: listen,
        server_name: None,
        tls: pki.apiserver_config()?,
        kubelet_tls: Some(Arc::new(pki.client_config(Leaf::ApiserverKubeletClient)?)),
        front_proxy: Some(pki.client_certificate(Leaf::FrontProxyClient)?),
        service_cidrs,
        node_ports: 30000..=32767,
        client_ca: pki.ca().pem().to_owned(),
        front_proxy_ca: pki.front_proxy_ca().pem().to_owned(),
        health: health.clone(),
        clock: Arc::new(SystemClock),
        limits: apiserver::Limits::default(),
        name_suffixes: std::sync::Arc::new(apiserver::RandomNameSuffixes),
        token_auth_file: Some(directory.join("tokens.csv")).filter(|file| file.exists()),
        access: apiserver::AccessOptions::default(),
        audit: None,
        admission: Default::default(),
        tokens: Some(Arc::new(tokens)),
    };
    let server = config.build(store, registry)?;
    let services: Vec<Arc<dyn lifecycle::Service>> = vec![server.clone()];
    let supervisor = Supervisor::new(services, std::time::Duration::from_secs(5), health)?;
    Ok((server, supervisor))
}

/// A bearer token.
pub(crate) fn random_token() -> anyhow::Result<String> {
    let mut seed = [0; 24];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut seed)?;
    Ok(seed.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Our server as a child process, killed when this is dropped.
pub(crate) struct Own {
    child: Child,
    _directory: tempfile::TempDir,
    pub peer: Peer,
}

impl Own {
    /// Starts it with an empty directory below `parent`, which should be on the disk to measure.
    pub(crate) fn start(parent: &Path) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir_in(parent)?;
        let token = random_token()?;
        let tokens: PathBuf = directory.path().join("tokens.csv");
        std::fs::write(&tokens, format!("{token},bench,bench,system:masters\n"))?;
        let mut child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .arg(directory.path())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().context("no output")?;
        let mut address = String::new();
        BufReader::new(output).read_line(&mut address)?;
        let url = format!("https://{}", address.trim());
        let peer = Peer::with_token("mainstay", &url, &token, vec![child.id()])?;
        Ok(Self {
            child,
            _directory: directory,
            peer,
        })
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
