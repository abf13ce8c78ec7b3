//! A machine that joins a cluster as a node: it finds out whom to trust, gets an identity with a
//! bootstrap token, and runs a node's parts with it. Everything that it needs to start again is kept
//! in `DATA-DIR/agent`: from then on it needs neither the token nor, to keep its pods, services and
//! names going, a server.

mod certificates;
mod discovery;
mod facts;
mod join;
mod token;

use std::{path::PathBuf, sync::Arc};

use client::kube;
use http::{HeaderMap, HeaderValue, header::USER_AGENT};
use pki::Renewing;

use crate::{Error, Settings};

pub use certificates::Certificates;
pub use facts::{CONFIG_MAP, Facts};
pub use token::Token;

/// How to join.
#[derive(Debug, Clone, Default)]
pub struct Join {
    /// `https://HOST:PORT` of a server; an agent that has joined before remembers it.
    pub server: Option<String>,
    /// A bootstrap token; needed for the first start.
    pub token: Option<String>,
    /// `sha256:…` of the cluster authority's public key; any of them may match.
    pub ca_hashes: Vec<String>,
}

/// What an agent that has joined knows and holds.
pub struct Membership {
    pub facts: Facts,
    /// All servers, shared by every client.
    pub servers: client::Servers,
    /// The authority of the cluster, as PEM.
    pub ca: String,
    /// `system:node:NAME` as a client.
    pub kubelet: Arc<Renewing>,
    /// The kubelet as a server; empty until the server has approved it.
    pub serving: Arc<Renewing>,
    /// `system:node-proxy:NAME` as a client.
    pub proxy: Arc<Renewing>,
}

impl Membership {
    /// A client with one of the identities. Must be called inside a Tokio runtime.
    pub fn client(&self, identity: &Arc<Renewing>) -> Result<kube::Client, Error> {
        let agent = match Arc::ptr_eq(identity, &self.proxy) {
            true => "kube-proxy",
            false => "kubelet",
        };
        let options = client::Options {
            renewals: Some(identity.generation()),
            servers: Some(self.servers.clone()),
            headers: agent_header(agent),
            ..client::Options::default()
        };
        let tls = identity.client_config(self.ca.as_bytes())?;
        Ok(client::https(&self.facts.server, tls, options)?)
    }
}

/// What a component calls itself, as upstream's do: the fields that it writes are managed under this name.
fn agent_header(name: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(USER_AGENT, HeaderValue::from_static(name))])
}

/// What an agent does when the cluster has other servers: its clients know them at once, and its next
/// start does, too.
pub fn follow_servers(
    settings: &Settings,
    membership: &Arc<Membership>,
) -> Box<crate::known_servers::Changed> {
    let (dir, membership) = (directory(settings), membership.clone());
    Box::new(move |servers| {
        tracing::info!(?servers, "the cluster's servers");
        membership.servers.set(servers);
        let facts = Facts {
            servers: servers.to_vec(),
            ..membership.facts.clone()
        };
        facts.save(&dir, &membership.ca)
    })
}

/// Where an agent keeps what it holds.
fn directory(settings: &Settings) -> PathBuf {
    settings.data_dir.join("agent")
}

/// Joins, or finds what an earlier start got.
pub async fn membership(settings: &Settings, join: &Join) -> Result<Membership, Error> {
    let dir = directory(settings);
    let kubelet = Renewing::load(&dir.join("kubelet.pem"))?;
    let serving = Renewing::load(&dir.join("kubelet-serving.pem"))?;
    let proxy = Renewing::load(&dir.join("proxy.pem"))?;
    let known = Facts::load(&dir)?;
    let has_joined = known.is_some() && kubelet.is_valid(jiff::Timestamp::now());
    let (facts, ca) = match known {
        Some((mut facts, ca)) if has_joined => {
            join::check_pins(&ca, &join.ca_hashes)?;
            if let Some(server) = &join.server {
                facts.server.clone_from(server);
            }
            (facts, ca)
        }
        _ => join::first(settings, join, &kubelet).await?,
    };
    let mut membership = Membership {
        servers: client::Servers::new(&facts.servers),
        facts,
        ca,
        kubelet,
        serving,
        proxy,
    };
    if let Err(error) = join::complete(settings, &mut membership).await {
        if !has_joined || matches!(error, Error::Version(_)) {
            return Err(error);
        }
        tracing::warn!(%error, "no server answers: going on with what is known of the cluster");
    }
    membership.facts.save(&dir, &membership.ca)?;
    Ok(membership)
}
