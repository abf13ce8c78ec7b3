//! Debian's etcd, started by the tests on loopback with a directory of their own.

use std::{
    net::TcpListener,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    time::Instant,
};

use store::etcd::proto::etcdserverpb::{StatusRequest, maintenance_client::MaintenanceClient};
use tonic::transport::Endpoint;

use super::PATIENCE;

pub(crate) struct Cluster {
    members: Vec<Member>,
    directory: tempfile::TempDir,
    tls: Option<TlsFiles>,
}

struct Member {
    client: u16,
    peer: u16,
    process: Option<Child>,
}

pub(crate) struct TlsFiles {
    pub ca: String,
    pub certificate: String,
    pub key: String,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in 0..self.members.len() {
            self.kill(member);
        }
    }
}

/// Two ports that are free right now.
fn ports() -> (u16, u16) {
    let listeners = [0; 2].map(|port| TcpListener::bind(("127.0.0.1", port)).unwrap());
    let [client, peer] = listeners.map(|listener| listener.local_addr().unwrap().port());
    (client, peer)
}

impl Cluster {
    pub(crate) fn start(count: usize) -> Self {
        Self::start_with(count, None)
    }

    pub(crate) fn start_with(count: usize, tls: Option<TlsFiles>) -> Self {
        let mut cluster = Self::planned(count);
        cluster.tls = tls;
        if let Some(tls) = &cluster.tls {
            for (name, text) in [
                ("ca", &tls.ca),
                ("crt", &tls.certificate),
                ("key", &tls.key),
            ] {
                std::fs::write(cluster.directory.path().join(name), text).unwrap();
            }
        }
        (0..count).for_each(|member| cluster.spawn(member));
        cluster
    }

    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    pub(crate) fn endpoints(&self) -> Vec<String> {
        let scheme = self.scheme();
        // By name: the static binary uses our own resolver.
        let endpoint = |member: &Member| format!("{scheme}://localhost:{}", member.client);
        self.members.iter().map(endpoint).collect()
    }

    /// Starts a member, also again after it was killed.
    pub(crate) fn spawn(&mut self, number: usize) {
        let peers: Vec<String> = self
            .members
            .iter()
            .enumerate()
            .map(|(number, member)| format!("m{number}=http://127.0.0.1:{}", member.peer))
            .collect();
        let peer = format!("http://127.0.0.1:{}", self.members[number].peer);
        let client = self.endpoints()[number].replace("localhost", "127.0.0.1");
        let mut command = Command::new("etcd");
        command
            .args(["--name", &format!("m{number}")])
            .arg("--data-dir")
            .arg(self.directory.path().join(number.to_string()))
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args([
                "--initial-cluster",
                &peers.join(","),
                "--log-level",
                "error",
            ])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if self.tls.is_some() {
            let file = |name: &str| self.directory.path().join(name);
            command
                .arg("--trusted-ca-file")
                .arg(file("ca"))
                .arg("--cert-file")
                .arg(file("crt"))
                .arg("--key-file")
                .arg(file("key"))
                .arg("--client-cert-auth");
        }
        // SAFETY: prctl is async-signal-safe, and nothing else runs between fork and exec.
        unsafe {
            // No process is left even if the test is killed.
            command.pre_exec(|| {
                rustix::process::set_parent_process_death_signal(Some(
                    rustix::process::Signal::KILL,
                ))?;
                Ok(())
            });
        }
        self.members[number].process = Some(command.spawn().expect("etcd is installed"));
    }

    /// Stops a member with SIGSTOP: its connections stay open, but nothing is answered.
    pub(crate) fn pause(&self, number: usize) {
        self.signal(number, rustix::process::Signal::STOP);
    }

    /// Resumes a member.
    pub(crate) fn resume(&self, number: usize) {
        self.signal(number, rustix::process::Signal::CONT);
    }

    fn signal(&self, number: usize, signal: rustix::process::Signal) {
        let process = self.members[number].process.as_ref().expect("it runs");
        let pid = rustix::process::Pid::from_child(process);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub(crate) fn kill(&mut self, number: usize) {
        if let Some(mut process) = self.members[number].process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// The member that leads.
    pub(crate) async fn leader(&self) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for (number, endpoint) in self.endpoints().into_iter().enumerate() {
                let endpoint = endpoint.replace("localhost", "127.0.0.1");
                let channel = Endpoint::from_shared(endpoint).unwrap().connect_lazy();
                let mut client = MaintenanceClient::new(channel);
                let Ok(status) = client.status(StatusRequest {}).await else {
                    continue;
                };
                let status = status.into_inner();
                if status.leader != 0 && status.leader == status.header.unwrap().member_id {
                    return number;
                }
            }
            assert!(Instant::now() < deadline, "no member leads");
        }
    }

    /// Waits until a member answers as part of the quorum.
    pub(crate) async fn wait_for(&self, number: usize) {
        let endpoints = vec![self.endpoints()[number].clone()];
        let config = store::etcd::Config {
            endpoints,
            patience: PATIENCE,
            ..store::etcd::Config::default()
        };
        config.connect(store::Plain).await.unwrap();
    }

    /// A cluster without running members.
    pub(crate) fn planned(count: usize) -> Self {
        let member = |_| {
            let (client, peer) = ports();
            Member {
                client,
                peer,
                process: None,
            }
        };
        Self {
            members: (0..count).map(member).collect(),
            directory: tempfile::tempdir().unwrap(),
            tls: None,
        }
    }

    /// Connects as soon as the cluster answers.
    pub(crate) async fn connect(
        &self,
        config: store::etcd::Config,
    ) -> std::sync::Arc<store::etcd::Etcd<store::Plain>> {
        self.connect_via(0, config).await
    }

    /// Connects as soon as the cluster answers; calls go to this member first.
    pub(crate) async fn connect_via(
        &self,
        first: usize,
        config: store::etcd::Config,
    ) -> std::sync::Arc<store::etcd::Etcd<store::Plain>> {
        let mut endpoints = self.endpoints();
        endpoints.rotate_left(first);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let config = store::etcd::Config {
                endpoints: endpoints.clone(),
                patience: std::time::Duration::ZERO,
                ..config.clone()
            };
            match config.connect(store::Plain).await {
                Ok(store) => return store,
                Err(error) if Instant::now() > deadline => panic!("{error}"),
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }
}
