//! Kubeconfig files for the administrator and for standalone components.

use std::path::PathBuf;

use base64::{Engine, prelude::BASE64_STANDARD};

use crate::Leaf;

/// A kubeconfig that is written at start and again whenever its certificate is renewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubeconfig {
    pub leaf: Leaf,
    pub path: PathBuf,
    /// `https://HOST:PORT`
    pub server: String,
    /// All servers of the cluster, if there are several: our own clients fail over between them.
    pub servers: Vec<String>,
}

/// The name of the cluster extension that lists the servers.
pub const SERVERS_EXTENSION: &str = "mainstay.dev/servers";

/// The extension as lines of a cluster; empty for less than two servers.
fn extension(servers: &[String]) -> String {
    if servers.len() < 2 {
        return String::new();
    }
    let list: Vec<String> = servers.iter().map(|url| format!("{url:?}")).collect();
    format!(
        "    extensions:
    - name: {SERVERS_EXTENSION}
      extension:
        servers: [{}]
",
        list.join(", ")
    )
}

/// One cluster and no user: public information. The form is that of kubeadm's cluster-info.
pub(crate) fn render_cluster(server: &str, ca: &str) -> String {
    let ca = BASE64_STANDARD.encode(ca);
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: \"\"
  cluster:
    certificate-authority-data: {ca}
    server: {server}
contexts: []
current-context: \"\"
users: []
"
    )
}

/// One cluster, one user, one context, with all data embedded.
pub(crate) fn render(
    (server, servers): (&str, &[String]),
    user: &str,
    ca: &str,
    certificate: &str,
    key: &str,
) -> String {
    let extension = extension(servers);
    let ca = BASE64_STANDARD.encode(ca);
    let certificate = BASE64_STANDARD.encode(certificate);
    let key = BASE64_STANDARD.encode(key);
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: mainstay
  cluster:
    server: {server}
    certificate-authority-data: {ca}
{extension}users:
- name: {user}
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
contexts:
- name: mainstay
  context:
    cluster: mainstay
    user: {user}
current-context: mainstay
"
    )
}
