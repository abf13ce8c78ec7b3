//! A server under load: its address, credentials and processes.

use std::{path::Path, sync::Arc};

use anyhow::Context;
use client::Kubeconfig;
use rustls::pki_types::ServerName;

use crate::wire::Connection;

/// A server, and how to reach it.
#[derive(Clone)]
pub(crate) struct Peer {
    /// The name in the table.
    pub name: &'static str,
    pub processes: Vec<u32>,
    address: String,
    server: ServerName<'static>,
    tls: Arc<rustls::ClientConfig>,
    token: Option<String>,
}

impl Peer {
    /// The current context of a kubeconfig.
    pub(crate) fn read(
        name: &'static str,
        path: &Path,
        processes: Vec<u32>,
    ) -> anyhow::Result<Self> {
        Self::of(name, &Kubeconfig::read(path)?, processes)
    }

    /// A server by its address and a bearer token. Its certificate is not verified: this measures
    /// servers on the same machine.
    pub(crate) fn with_token(
        name: &'static str,
        url: &str,
        token: &str,
        processes: Vec<u32>,
    ) -> anyhow::Result<Self> {
        let mut config = Kubeconfig {
            current_context: Some("bench".to_owned()),
            clusters: vec![Default::default()],
            users: vec![Default::default()],
            contexts: vec![Default::default()],
            ..Kubeconfig::default()
        };
        config.clusters[0].name = "bench".to_owned();
        config.clusters[0].cluster.server = url.to_owned();
        config.clusters[0].cluster.insecure_skip_tls_verify = Some(true);
        config.users[0].name = "bench".to_owned();
        config.users[0].user.token = Some(token.to_owned());
        config.contexts[0].name = "bench".to_owned();
        config.contexts[0].context.cluster = "bench".to_owned();
        config.contexts[0].context.user = "bench".to_owned();
        Self::of(name, &config, processes)
    }

    fn of(name: &'static str, config: &Kubeconfig, processes: Vec<u32>) -> anyhow::Result<Self> {
        let (_, cluster, user) = config.resolve(None)?;
        let mut tls = config.tls(cluster, user)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let server = cluster.server.trim_end_matches('/');
        let address = server
            .strip_prefix("https://")
            .context("the server must speak HTTPS")?;
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        Ok(Self {
            name,
            processes,
            address: address.to_owned(),
            server: ServerName::try_from(host)?,
            tls: Arc::new(tls),
            token: user.token.clone(),
        })
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> anyhow::Result<Connection> {
        Connection::open(&self.address, self.tls.clone(), self.server.clone())
    }

    /// The head of a request. `more` are additional header lines.
    pub(crate) fn head(&self, method: &str, path: &str, more: &str, length: usize) -> String {
        let token = match &self.token {
            Some(token) => format!("authorization: Bearer {token}\r\n"),
            None => String::new(),
        };
        let media = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nuser-agent: bench\r\naccept: application/json\r\n{token}\
             content-type: {media}\r\ncontent-length: {length}\r\n{more}\r\n",
            self.address
        )
    }

    /// A whole request.
    pub(crate) fn request(&self, method: &str, path: &str, more: &str, body: &str) -> Vec<u8> {
        [
            self.head(method, path, more, body.len()).as_bytes(),
            body.as_bytes(),
        ]
        .concat()
    }

    /// Sends one request on a new connection.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> anyhow::Result<u64> {
        let request = self.request(method, path, "", body);
        self.connect()?.exchange(&request)
    }
}
