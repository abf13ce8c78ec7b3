//! The cluster's settings for nodes. Servers publish them in a ConfigMap; an agent saves them, so
//! that it can start without a server.

use std::{collections::BTreeMap, fs, io, path::Path};

use serde::{Deserialize, Serialize};

use crate::{Error, Settings, families::Ranges};

/// Namespace and name of the ConfigMap.
pub const CONFIG_MAP: (&str, &str) = ("kube-system", "mainstay-node");

const CLUSTER_CIDR: &str = "clusterCIDR";
const SERVICE_CIDR: &str = "serviceCIDR";
const CLUSTER_DOMAIN: &str = "clusterDomain";

/// The cluster's settings for nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// The name of this node; empty if it was saved by an earlier version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// `https://HOST:PORT`.
    pub server: String,
    /// All servers, as last seen.
    #[serde(default)]
    pub servers: Vec<String>,
    /// The ranges of pods.
    pub cluster_cidr: Ranges,
    /// The ranges of services.
    pub service_cidr: Ranges,
    /// The DNS domain.
    pub cluster_domain: String,
}

impl Facts {
    /// The ConfigMap's data, as a server writes it.
    pub fn publish(settings: &Settings) -> BTreeMap<String, String> {
        BTreeMap::from([
            (CLUSTER_CIDR.to_owned(), settings.cluster_cidr.to_string()),
            (SERVICE_CIDR.to_owned(), settings.service_cidr.to_string()),
            (CLUSTER_DOMAIN.to_owned(), settings.cluster_domain.clone()),
        ])
    }

    /// Parses the data.
    pub fn parse(server: &str, data: &BTreeMap<String, String>) -> Result<Self, Error> {
        let text = |key: &str| {
            let missing = || Error::Join(format!("ConfigMap {} has no {key}", CONFIG_MAP.1));
            data.get(key).ok_or_else(missing)
        };
        let range = |key: &str| {
            let wrong = |error| Error::Join(format!("ConfigMap {}: {key}: {error}", CONFIG_MAP.1));
            text(key)?.parse::<Ranges>().map_err(wrong)
        };
        Ok(Self {
            node_name: String::new(),
            server: server.to_owned(),
            servers: Vec::new(),
            cluster_cidr: range(CLUSTER_CIDR)?,
            service_cidr: range(SERVICE_CIDR)?,
            cluster_domain: text(CLUSTER_DOMAIN)?.clone(),
        })
    }

    /// The saved facts and CA of an earlier start.
    pub fn load(dir: &Path) -> Result<Option<(Self, String)>, Error> {
        let read = |name: &str| match fs::read_to_string(dir.join(name)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Directory {
                path: dir.join(name),
                source,
            }),
        };
        let (Some(facts), Some(ca)) = (read("cluster.json")?, read("ca.crt")?) else {
            return Ok(None);
        };
        let facts = serde_json::from_str(&facts)
            .inspect_err(|error| tracing::warn!(%error, "cannot use cluster.json"));
        Ok(facts.ok().map(|facts| (facts, ca)))
    }

    /// Saves them for the next start.
    pub fn save(&self, dir: &Path, ca: &str) -> Result<(), Error> {
        let facts = serde_json::to_string(self).unwrap_or_default();
        for (name, text) in [("ca.crt", ca), ("cluster.json", &facts)] {
            let path = dir.join(name);
            if fs::read_to_string(&path).is_ok_and(|there| there == text) {
                continue;
            }
            let write = || {
                let temporary = dir.join(format!("{name}.new"));
                fs::write(&temporary, text)?;
                fs::File::open(&temporary)?.sync_all()?;
                fs::rename(&temporary, &path)?;
                fs::File::open(dir)?.sync_all()
            };
            write().map_err(|source: io::Error| Error::Directory { path, source })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    #[test]
    fn published_cluster_facts_are_read_and_stored_by_a_node() {
        let settings = Settings::resolve(Options {
            node_name: Some("n".into()),
            node_ip: "192.0.2.1".parse().ok(),
            cluster_domain: Some("example.org".into()),
            ..Options::default()
        })
        .unwrap();
        let mut data = Facts::publish(&settings);
        let facts = Facts::parse("https://192.0.2.1:6443", &data).unwrap();
        assert_eq!(facts.cluster_cidr, settings.cluster_cidr);
        assert_eq!(facts.cluster_domain, "example.org");
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Facts::load(dir.path()).unwrap(), None);
        facts.save(dir.path(), "pem").unwrap();
        let loaded = Facts::load(dir.path()).unwrap();
        assert_eq!(loaded, Some((facts, "pem".to_owned())));
        data.remove("serviceCIDR");
        let error = Facts::parse("x", &data).unwrap_err().to_string();
        assert!(error.contains("serviceCIDR"), "{error}");
    }
}
