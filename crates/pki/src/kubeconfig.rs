//! Kubeconfig files for the administrator and for components that run alone.

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
}

/// One cluster and no user: what anybody may know. The form is that of kubeadm's cluster-info.
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

/// One cluster, one user, one context, with everything in the file itself.
pub(crate) fn render(server: &str, user: &str, ca: &str, certificate: &str, key: &str) -> String {
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
users:
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
