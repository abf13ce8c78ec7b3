//! Upstream's kube-apiserver with its own etcd, started from files on this machine.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context;

use crate::{peer::Peer, serve};

/// How long it may take until it is ready.
const START: Duration = Duration::from_secs(120);

/// Its processes, killed when this is dropped.
pub(crate) struct Upstream {
    processes: Vec<Child>,
    /// What both programs print.
    log: PathBuf,
    _directory: tempfile::TempDir,
    pub peer: Peer,
}

impl Upstream {
    /// Starts both programs with an empty directory below `parent` and waits until they are ready.
    pub(crate) fn start(program: &Path, etcd: &Path, parent: &Path) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir_in(parent)?;
        let at = |name: &str| directory.path().join(name).display().to_string();
        let token = serve::random_token()?;
        std::fs::write(
            at("tokens.csv"),
            format!("{token},bench,bench,system:masters\n"),
        )?;
        let pki = pki::Pki::ensure(&directory.path().join("pki"), &pki::Names::default())?;
        drop(pki);
        let log = directory.path().join("log");
        let (client, peers, secure) = (free_port()?, free_port()?, free_port()?);
        let (client, peers) = (local(client), local(peers));
        let store = run(
            etcd,
            &log,
            &[
                ("data-dir", &at("etcd")),
                ("listen-client-urls", &client),
                ("advertise-client-urls", &client),
                ("listen-peer-urls", &peers),
                ("initial-advertise-peer-urls", &peers),
                ("initial-cluster", &format!("default={peers}")),
                ("log-level", "error"),
            ],
        )?;
        let server = run(
            program,
            &log,
            &[
                ("etcd-servers", &client),
                ("bind-address", "127.0.0.1"),
                ("secure-port", &secure.to_string()),
                ("cert-dir", &at("certificates")),
                ("token-auth-file", &at("tokens.csv")),
                ("authorization-mode", "RBAC"),
                (
                    "service-account-issuer",
                    "https://kubernetes.default.svc.cluster.local",
                ),
                ("service-account-key-file", &at("pki/sa.pub")),
                ("service-account-signing-key-file", &at("pki/sa.key")),
                ("service-cluster-ip-range", "10.43.0.0/16"),
                ("endpoint-reconciler-type", "none"),
                // Without it a machine needs a default route.
                ("advertise-address", "192.0.2.1"),
            ],
        )?;
        let url = format!("https://127.0.0.1:{secure}");
        let processes = vec![server, store];
        let ids = processes.iter().map(Child::id).collect();
        let mut started = Self {
            peer: Peer::with_token("upstream", &url, &token, ids)?,
            processes,
            log,
            _directory: directory,
        };
        started.wait()?;
        Ok(started)
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START;
        while self.peer.ask("GET", "/readyz", "").is_err() {
            for process in &mut self.processes {
                if let Some(status) = process.try_wait()? {
                    let log = std::fs::read_to_string(&self.log)?;
                    let last = log.lines().next_back().unwrap_or_default();
                    anyhow::bail!("a program of upstream ended: {status}: {last}");
                }
            }
            anyhow::ensure!(Instant::now() < deadline, "upstream is not ready");
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // It may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn local(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

/// A port that was free a moment ago.
fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.port())
}

fn run(program: &Path, log: &Path, flags: &[(&str, &str)]) -> anyhow::Result<Child> {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)?;
    Command::new(program)
        .args(
            flags
                .iter()
                .map(|(name, value)| format!("--{name}={value}")),
        )
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))
}
