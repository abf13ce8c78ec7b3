//! A machine that joins a cluster as a node: it discovers the CA, gets an identity with a bootstrap
//! token, and runs a node's services with it. Everything needed to start again is saved in
//! `DATA-DIR/agent`: from then on it needs neither the token nor, to keep its pods, services and
//! DNS running, a server.

mod certificates;
mod discovery;
mod facts;
mod join;
mod token;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use client::kube;
use http::{HeaderMap, HeaderValue, header::USER_AGENT};
use pki::Renewing;
use rustls::pki_types::{CertificateDer, pem::PemObject};

use crate::{Error, Settings};

pub use certificates::Certificates;
pub use facts::{CONFIG_MAP, Facts};
pub use token::Token;

/// The agent's directory in the data directory.
const DIRECTORY: &str = "agent";
/// The kubelet's client certificate in that directory.
const KUBELET: &str = "kubelet.pem";

/// The last known names of the cluster in that directory.
const NAMES: &str = "names";

/// The options for joining.
#[derive(Debug, Clone, Default)]
pub struct Join {
    /// `https://HOST:PORT` of a server; remembered after joining.
    pub server: Option<String>,
    /// A bootstrap token; needed for the first start.
    pub token: Option<String>,
    /// `sha256:…` of the CA's public key; any of them may match.
    pub ca_hashes: Vec<String>,
}

/// The state of an agent that has joined.
pub struct Membership {
    pub facts: Facts,
    /// All servers, shared by every client.
    pub servers: client::Servers,
    /// The cluster's CA, as PEM.
    pub ca: String,
    /// `system:node:NAME` as a client.
    pub kubelet: Arc<Renewing>,
    /// The kubelet's serving certificate; empty until it is issued.
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

/// The User-Agent of a component, as upstream's: its field manager.
fn agent_header(name: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(USER_AGENT, HeaderValue::from_static(name))])
}

/// Follows the cluster's servers: clients use new ones at once, and they are saved for the next
/// start.
pub fn follow_servers(
    settings: &Settings,
    membership: &Arc<Membership>,
) -> Box<crate::known_servers::Changed> {
    let (dir, membership) = (directory(settings), membership.clone());
    Box::new(move |servers| {
        tracing::info!(?servers, "known servers of the cluster");
        membership.servers.set(servers);
        let facts = Facts {
            servers: servers.to_vec(),
            ..membership.facts.clone()
        };
        facts.save(&dir, &membership.ca)
    })
}

/// The name under which the agent of a data directory joined, for a start without `--node-name`.
pub fn joined_name(data_dir: &Path) -> Result<Option<String>, Error> {
    let dir = data_dir.join(DIRECTORY);
    let Some((facts, ca)) = Facts::load(&dir)? else {
        return Ok(None);
    };
    if !facts.node_name.is_empty() {
        return Ok(Some(facts.node_name));
    }
    Ok(certified_name(&*Renewing::load(&dir.join(KUBELET))?, &ca))
}

/// The node's name in the kubelet's client certificate, while that is valid. Earlier versions saved
/// the name nowhere else.
fn certified_name(kubelet: &Renewing, ca: &str) -> Option<String> {
    let pem = kubelet.pem()?;
    let chain = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    let identifier = pki::Identifier::new(ca, ca).ok()?;
    let peer = identifier.identify(&chain.ok()?, jiff::Timestamp::now());
    let name = peer.ok()?.user.strip_prefix("system:node:")?.to_owned();
    Some(name)
}

/// Rejects another name than the one in the certificates of this machine.
fn check_name(facts: &Facts, settings: &Settings) -> Result<(), Error> {
    let (joined, name) = (&facts.node_name, &settings.node_name);
    if joined.is_empty() || joined == name {
        return Ok(());
    }
    Err(Error::Join(format!(
        "this machine has joined as node {joined:?}, and --node-name is {name:?}: use that name, or run \
         `mainstay reset` first and join again"
    )))
}

/// Rejects the pins of another cluster than the one that this machine has joined.
fn check_cluster(ca: &str, pins: &[String]) -> Result<(), Error> {
    join::check_pins(ca, pins).map_err(|error| match error {
        Error::Join(why) => Error::Join(format!(
            "this machine has joined a cluster before, and {why}: to join another cluster, run `mainstay reset` first"
        )),
        other => other,
    })
}

/// Where the DNS of an agent saves the names of the cluster, for a start while no server is
/// reachable.
pub(crate) fn saved_names(data_dir: &Path) -> PathBuf {
    data_dir.join(DIRECTORY).join(NAMES)
}

/// Removes the names of the cluster to which this machine belonged before.
fn forget_names(data_dir: &Path) -> Result<(), Error> {
    let path = saved_names(data_dir);
    match std::fs::remove_dir_all(&path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::Directory { path, source })
        }
        _ => Ok(()),
    }
}

/// The agent's directory.
fn directory(settings: &Settings) -> PathBuf {
    settings.data_dir.join(DIRECTORY)
}

/// Joins, or loads the state of an earlier start.
pub async fn membership(settings: &Settings, join: &Join) -> Result<Membership, Error> {
    let dir = directory(settings);
    let kubelet = Renewing::load(&dir.join(KUBELET))?;
    let serving = Renewing::load(&dir.join("kubelet-serving.pem"))?;
    let proxy = Renewing::load(&dir.join("proxy.pem"))?;
    let known = Facts::load(&dir)?;
    let has_joined = known.is_some() && kubelet.is_valid(jiff::Timestamp::now());
    let (facts, ca) = match known {
        Some((mut facts, ca)) if has_joined => {
            if facts.node_name.is_empty() {
                facts.node_name = certified_name(&kubelet, &ca).unwrap_or_default();
            }
            check_name(&facts, settings)?;
            check_cluster(&ca, &join.ca_hashes)?;
            if let Some(server) = &join.server {
                facts.server.clone_from(server);
            }
            (facts, ca)
        }
        _ => {
            let joined = join::first(settings, join, &kubelet).await?;
            forget_names(&settings.data_dir)?;
            joined
        }
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
        tracing::warn!(%error, "no server reachable, continuing with the cached cluster settings");
    }
    membership.facts.node_name.clone_from(&settings.node_name);
    membership.facts.save(&dir, &membership.ca)?;
    Ok(membership)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pki::{
        KeyedRequest,
        csr::{self, RequestedCertificate},
    };

    use super::*;
    use crate::Options;

    #[test]
    fn the_names_of_an_earlier_cluster_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        forget_names(dir.path()).unwrap();
        let names = saved_names(dir.path());
        std::fs::create_dir_all(&names).unwrap();
        std::fs::write(names.join("services.json"), "{}").unwrap();
        forget_names(dir.path()).unwrap();
        assert!(!names.exists() && dir.path().join(DIRECTORY).exists());
    }

    #[test]
    fn a_member_of_one_cluster_does_not_join_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let pki = pki::Pki::ensure(dir.path(), &pki::Names::default()).unwrap();
        let ca = pki.ca();
        check_cluster(ca.pem(), &[]).unwrap();
        check_cluster(ca.pem(), &[ca.public_key_hash()]).unwrap();
        let refused = check_cluster(ca.pem(), &["sha256:00".to_owned()]);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("but --ca-hash is sha256:00"), "{refused}");
        assert!(refused.contains("`mainstay reset`"), "{refused}");
    }

    #[test]
    fn an_agent_keeps_the_name_under_which_it_joined() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(joined_name(dir.path()).unwrap(), None);
        let settings = |name: &str| {
            Settings::resolve(Options {
                node_name: Some(name.into()),
                node_ip: "192.0.2.1".parse().ok(),
                ..Options::default()
            })
            .unwrap()
        };
        let published = Facts::publish(&settings("two"));
        let mut facts = Facts::parse("https://192.0.2.1:6443", &published).unwrap();
        let agent = dir.path().join(DIRECTORY);
        std::fs::create_dir(&agent).unwrap();
        // As saved by an earlier version.
        facts.save(&agent, "pem").unwrap();
        assert_eq!(joined_name(dir.path()).unwrap(), None);
        check_name(&facts, &settings("vm")).unwrap();
        // Then the certificate has the name.
        let pki = pki::Pki::ensure(&dir.path().join("pki"), &pki::Names::default()).unwrap();
        let keyed = KeyedRequest::new(&RequestedCertificate {
            common_name: "system:node:two".into(),
            organizations: vec!["system:nodes".into()],
            ..RequestedCertificate::default()
        });
        let keyed = keyed.unwrap();
        let request = csr::Request::parse(keyed.request.as_bytes()).unwrap();
        let usages = csr::Usages::parse(&["digital signature", "client auth"]).unwrap();
        let (now, life) = (jiff::Timestamp::now(), Duration::from_secs(3600));
        let certificate = pki.ca().sign(&request, &usages, now, life).unwrap();
        let kubelet = Renewing::load(&agent.join(KUBELET)).unwrap();
        kubelet.replace(&keyed, &certificate).unwrap();
        facts.save(&agent, pki.ca().pem()).unwrap();
        assert_eq!(joined_name(dir.path()).unwrap().as_deref(), Some("two"));
        kubelet.forget().unwrap();
        facts.node_name = "two".into();
        facts.save(&agent, "pem").unwrap();
        assert_eq!(joined_name(dir.path()).unwrap().as_deref(), Some("two"));
        check_name(&facts, &settings("two")).unwrap();
        let refused = check_name(&facts, &settings("vm")).unwrap_err().to_string();
        assert!(refused.contains("joined as node \"two\""), "{refused}");
    }
}
