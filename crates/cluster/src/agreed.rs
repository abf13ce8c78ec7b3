//! Settings that a cluster keeps for its lifetime, and that all of its servers share. They are recorded in the data
//! directory, in etcd and in backups: a start with others is refused, since Services, DNS and routes would not fit the
//! objects that there are.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use store::Freshness;

use crate::{
    Error, Settings,
    agent::{CONFIG_MAP, Facts},
    marker::Marker,
    storage::Storage,
};

/// The settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Agreed {
    cluster_cidr: String,
    service_cidr: String,
    node_cidr_mask: u8,
    /// For the second range, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    second_node_cidr_mask: Option<u8>,
    pub(crate) cluster_domain: String,
}

impl Agreed {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            cluster_cidr: settings.cluster_cidr.to_string(),
            service_cidr: settings.service_cidr.to_string(),
            node_cidr_mask: settings.node_cidr_masks[0],
            second_node_cidr_mask: settings.node_cidr_masks.get(1).copied(),
            cluster_domain: settings.cluster_domain.clone(),
        }
    }

    /// Rejects settings that differ from those of `whose` cluster.
    pub(crate) fn check(&self, own: &Self, whose: &str) -> Result<(), Error> {
        self.check_lasting(own, whose)?;
        let shown = |agreed: &Self| match agreed.second_node_cidr_mask {
            Some(second) => format!("{},{second}", agreed.node_cidr_mask),
            None => agreed.node_cidr_mask.to_string(),
        };
        let masks = (shown(self), shown(own));
        compare("node-cidr-mask-size", &masks.0, &masks.1, whose)
    }

    /// The same for what no server can change. A single server may change the size of the nodes' ranges: it counts for
    /// new nodes.
    fn check_lasting(&self, own: &Self, whose: &str) -> Result<(), Error> {
        for (flag, theirs, own) in [
            ("cluster-cidr", &self.cluster_cidr, &own.cluster_cidr),
            ("service-cidr", &self.service_cidr, &own.service_cidr),
            ("cluster-domain", &self.cluster_domain, &own.cluster_domain),
        ] {
            compare(flag, theirs, own, whose)?;
        }
        Ok(())
    }
}

fn compare(flag: &'static str, theirs: &str, own: &str, whose: &str) -> Result<(), Error> {
    if theirs == own {
        return Ok(());
    }
    let why = format!(
        "{whose} has {theirs}, and this start has {own}; a cluster keeps it for its lifetime, and all servers need the \
         same: start with --{flag} {theirs}"
    );
    Err(Error::Option(flag, why))
}

/// Rejects a start with other settings than the cluster of this data directory, or of its store, has.
pub(crate) async fn check(settings: &Settings, storage: &Storage) -> Result<(), Error> {
    let own = Agreed::new(settings);
    let whose = format!("the cluster of {}", settings.data_dir.display());
    if let Some(agreed) = Marker::read(&settings.data_dir)?.and_then(|marker| marker.agreed) {
        return agreed.check_lasting(&own, &whose);
    }
    // Directories and backups of earlier versions have no record of it.
    let key = apiserver::object_key("", "configmaps", CONFIG_MAP.0, CONFIG_MAP.1);
    let (_, found) = storage.store().get(&key, Freshness::Newest).await?;
    let Some(found) = found else {
        return Ok(());
    };
    let Ok(map) = serde_json::from_slice::<Published>(&found.object.bytes()) else {
        return Ok(());
    };
    let Ok(facts) = Facts::parse("", &map.data) else {
        return Ok(());
    };
    let agreed = Agreed {
        cluster_cidr: facts.cluster_cidr.to_string(),
        service_cidr: facts.service_cidr.to_string(),
        cluster_domain: facts.cluster_domain,
        ..own.clone()
    };
    agreed.check_lasting(&own, &whose)
}

/// The ConfigMap that agents read.
#[derive(Deserialize)]
struct Published {
    #[serde(default)]
    data: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    fn settings(change: impl FnOnce(&mut Options)) -> Settings {
        let mut options = Options {
            node_name: Some("n".into()),
            node_ip: "192.0.2.1".parse().ok(),
            ..Options::default()
        };
        change(&mut options);
        Settings::resolve(options).unwrap()
    }

    #[test]
    fn a_cluster_keeps_its_ranges_and_its_domain() {
        let first = Agreed::new(&settings(|_| {}));
        let checked = |change: fn(&mut Options)| {
            let own = Agreed::new(&settings(change));
            first
                .check_lasting(&own, "it")
                .map_err(|error| error.to_string())
        };
        assert_eq!(checked(|_| {}), Ok(()));
        assert_eq!(
            checked(|options| options.node_cidr_mask_size = Some(26)),
            Ok(())
        );
        for (change, expected) in [
            (
                (|options| options.service_cidr = "10.60.0.0/16".parse().ok()) as fn(&mut Options),
                "--service-cidr: it has 10.43.0.0/16",
            ),
            (
                |options| options.cluster_cidr = "10.44.0.0/16".parse().ok(),
                "--cluster-cidr: it has 10.42.0.0/16",
            ),
            (
                |options| options.cluster_domain = Some("example.org".into()),
                "--cluster-domain: it has cluster.local",
            ),
        ] {
            let refused = checked(change).unwrap_err();
            assert!(refused.starts_with(expected), "{refused}");
        }
        let masks = Agreed::new(&settings(|options| options.node_cidr_mask_size = Some(26)));
        let refused = first.check(&masks, "etcd").unwrap_err().to_string();
        assert!(
            refused.starts_with("--node-cidr-mask-size: etcd has 24"),
            "{refused}"
        );
    }
}
