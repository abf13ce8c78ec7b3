//! Debian's etcd on machines of a network: one member each, with TLS between members and to
//! clients.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::{Child, Command},
};

use crate::Machine;

/// The etcd members. Their machines belong to the test.
pub struct Etcd {
    members: Vec<Member>,
    /// The directory of the CA, the certificate and the key.
    files: tempfile::TempDir,
}

struct Member {
    address: String,
    process: Option<Child>,
}

impl Etcd {
    /// A cluster of one member per machine; none runs yet.
    pub fn on(machines: &[&Machine]) -> Self {
        let addresses = machines.iter().map(|machine| machine.address().to_owned());
        let members: Vec<Member> = addresses
            .map(|address| Member {
                address,
                process: None,
            })
            .collect();
        let files = tempfile::tempdir().expect("a directory");
        let names: Vec<String> = members.iter().map(|one| one.address.clone()).collect();
        for (name, text) in certificates(names) {
            fs::write(files.path().join(name), text).expect("a file");
        }
        Self { members, files }
    }

    /// The flags with which a server reaches all members.
    pub fn flags(&self) -> Vec<String> {
        let [authority, certificate, key] = self.client_files();
        let flags = [
            ("--store", "etcd".to_owned()),
            ("--etcd-endpoints", self.urls().join(",")),
            ("--etcd-cafile", authority),
            ("--etcd-certfile", certificate),
            ("--etcd-keyfile", key),
        ];
        let words = flags
            .into_iter()
            .map(|(flag, value)| [flag.to_owned(), value]);
        words.flatten().collect()
    }

    fn file(&self, name: &str) -> String {
        self.files.path().join(name).display().to_string()
    }

    /// Starts a member on its machine, also again after it was killed.
    pub fn start(&mut self, number: usize, machine: &Machine) {
        let numbered = self.members.iter().enumerate();
        let peers = numbered.map(|(n, member)| format!("m{n}={}", peer_url(&member.address)));
        let peers = peers.collect::<Vec<_>>().join(",");
        let (client, peer) = (client_url(machine.address()), peer_url(machine.address()));
        let name = format!("m{number}");
        let log = File::options()
            .create(true)
            .append(true)
            .open(machine.dir().join("etcd.log"));
        let log = log.expect("a log file");
        let mut command = machine.command("etcd");
        command
            .args(["--name", &name, "--log-level", "error"])
            .arg("--data-dir")
            .arg(data_dir(machine))
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &peers])
            .args(["--trusted-ca-file", &self.file("ca"), "--client-cert-auth"])
            .args(["--cert-file", &self.file("crt")])
            .args(["--key-file", &self.file("key")])
            .args(["--peer-trusted-ca-file", &self.file("ca")])
            .args(["--peer-cert-file", &self.file("crt")])
            .args(["--peer-key-file", &self.file("key")])
            .args(["--peer-client-cert-auth", "--pre-vote"])
            .stdout(log.try_clone().expect("a log file"))
            .stderr(log);
        let process = command
            .spawn()
            .expect("etcd is installed (make test does it)");
        self.members[number].process = Some(process);
    }

    /// Kills a member with SIGKILL.
    pub fn kill(&mut self, number: usize) {
        let process = self.members[number].process.take();
        let mut process = process.expect("it runs");
        process.kill().expect("it can be killed");
        process.wait().expect("it ends");
    }
}

impl Etcd {
    /// Sends a member a signal, such as `-STOP`.
    pub fn signal(&self, number: usize, signal: &str) {
        let process = self.members[number].process.as_ref();
        let pid = process.expect("it runs").id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill {signal}");
    }

    /// Where a member of this machine keeps its data.
    pub fn data_dir(&self, machine: &Machine) -> PathBuf {
        data_dir(machine)
    }

    /// The client URLs of the members.
    pub fn urls(&self) -> Vec<String> {
        let members = self.members.iter();
        members.map(|member| client_url(&member.address)).collect()
    }

    /// The files of the CA, of the client certificate and of its key.
    pub fn client_files(&self) -> [String; 3] {
        ["ca", "crt", "key"].map(|name| self.file(name))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for mut process in self.members.iter_mut().filter_map(|one| one.process.take()) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn data_dir(machine: &Machine) -> PathBuf {
    machine.disk().join("etcd")
}

fn client_url(address: &str) -> String {
    format!("https://{address}:2379")
}

fn peer_url(address: &str) -> String {
    format!("https://{address}:2380")
}

/// A new CA, and one certificate for all members and clients.
fn certificates(names: Vec<String>) -> [(&'static str, String); 3] {
    let mut authority = rcgen::CertificateParams::default();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_key = rcgen::KeyPair::generate().expect("a key");
    let ca = authority.self_signed(&authority_key).expect("an authority");
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let key = rcgen::KeyPair::generate().expect("a key");
    let leaf = rcgen::CertificateParams::new(names).expect("names");
    let certificate = leaf.signed_by(&key, &issuer).expect("a certificate");
    [
        ("ca", ca.pem()),
        ("crt", certificate.pem()),
        ("key", key.serialize_pem()),
    ]
}
