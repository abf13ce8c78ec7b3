//! Which plugins run, in Kubernetes' order, and what the operator tells them: names switched on and
//! off, and an `AdmissionConfiguration` file.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use machinery::Value;
use serde::Deserialize;

use super::webhook::{MutatingAdmissionWebhook, ValidatingAdmissionWebhook};
use super::*;
use crate::Error;

/// What an operator says about admission.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Plugins that run although they do not by themselves.
    pub enable: Vec<String>,
    /// Plugins that do not run.
    pub disable: Vec<String>,
    /// A file of `apiserver.config.k8s.io/v1`, kind AdmissionConfiguration.
    pub config_file: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Configuration {
    api_version: String,
    kind: String,
    #[serde(default)]
    plugins: Vec<PluginConfiguration>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginConfiguration {
    name: String,
    #[serde(default)]
    path: Option<PathBuf>,
    #[serde(default)]
    configuration: Option<Value>,
}

/// Whether a plugin runs when nobody says anything.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Itself,
    Request,
    /// What upstream does outside of admission: nobody switches it off.
    Law,
}

type Entry = (&'static str, By, Arc<dyn Plugin>);

/// The plugins, in the order they are called. ResourceQuota stays last.
pub(crate) fn chain(
    options: &Options,
    reader: &Reader,
    rbac: &Rbac,
    webhooks: &WebhookShared,
    figures: &policy::Figures,
) -> Result<Vec<Arc<dyn Plugin>>, Error> {
    let configured = options
        .configuration()
        .map_err(|why| Error::Invalid(format!("admission configuration: {why}")))?;
    let all = all(&configured, reader, rbac, webhooks, figures)
        .map_err(|why| Error::Invalid(format!("admission configuration: {why}")))?;
    for name in options.enable.iter().chain(&options.disable) {
        let known = |(known, by, _): &Entry| known == name && *by != By::Law;
        if !all.iter().any(known) {
            return Err(Error::Invalid(format!("unknown admission plugin {name:?}")));
        }
    }
    let has = |list: &[String], name: &str| list.iter().any(|item| item == name);
    let runs = |(name, by, _): &Entry| match by {
        By::Law => true,
        // Who says both gets the stricter one, as upstream's check refuses it.
        By::Itself => !has(&options.disable, name) || has(&options.enable, name),
        By::Request => has(&options.enable, name) && !has(&options.disable, name),
    };
    Ok(all
        .into_iter()
        .filter(runs)
        .map(|(_, _, plugin)| plugin)
        .collect())
}

fn all(
    configured: &BTreeMap<String, Value>,
    reader: &Reader,
    rbac: &Rbac,
    webhooks: &WebhookShared,
    figures: &policy::Figures,
) -> Result<Vec<Entry>, String> {
    let of = |name: &str| configured.get(name).unwrap_or(&Value::Null);
    let asks = || webhooks.authorizers.clone();
    fn entry(by: By, plugin: impl Plugin) -> Entry {
        (plugin.name(), by, Arc::new(plugin))
    }
    use By::{Itself, Law, Request};
    Ok(vec![
        entry(Itself, namespace_lifecycle::NamespaceLifecycle),
        entry(Itself, limit_ranger::LimitRanger),
        entry(Itself, service_account::ServiceAccount),
        entry(
            Itself,
            node_restriction::NodeRestriction {
                authorizers: asks(),
            },
        ),
        entry(Itself, taint_nodes_by_condition::TaintNodesByCondition),
        entry(Request, always_pull_images::AlwaysPullImages),
        entry(
            Itself,
            pod_security::PodSecurity::new(of(pod_security::NAME))?,
        ),
        entry(
            Request,
            pod_node_selector::PodNodeSelector::new(of(pod_node_selector::NAME))?,
        ),
        entry(Itself, priority::Priority),
        entry(Itself, default_toleration_seconds::DefaultTolerationSeconds),
        entry(
            Request,
            extended_resource_toleration::ExtendedResourceToleration,
        ),
        entry(Itself, default_storage_class::DefaultStorageClass),
        entry(
            Itself,
            storage_object_in_use_protection::StorageObjectInUseProtection,
        ),
        entry(
            Itself,
            persistent_volume_claim_resize::PersistentVolumeClaimResize,
        ),
        entry(Itself, runtime_class::RuntimeClass),
        entry(
            Itself,
            certificate_approval::CertificateApproval {
                authorizers: asks(),
            },
        ),
        entry(
            Itself,
            certificate_signing::CertificateSigning {
                authorizers: asks(),
            },
        ),
        entry(
            Itself,
            cluster_trust_bundle_attest::ClusterTrustBundleAttest {
                authorizers: asks(),
            },
        ),
        entry(
            Itself,
            certificate_subject_restriction::CertificateSubjectRestriction,
        ),
        entry(Itself, default_ingress_class::DefaultIngressClass),
        entry(Itself, deny_service_external_ips::DenyServiceExternalIPs),
        entry(Itself, pod_topology_labels::PodTopologyLabels),
        entry(Itself, pod_resize_validator::PodResizeValidator),
        entry(
            Itself,
            policy::MutatingAdmissionPolicy::new(reader, asks(), figures),
        ),
        entry(
            Itself,
            policy::ValidatingAdmissionPolicy::new(reader, asks(), figures),
        ),
        entry(Law, certificate_origin::CertificateOrigin),
        entry(Law, rbac_escalation::RbacEscalation::new(rbac.clone())),
        entry(
            Itself,
            MutatingAdmissionWebhook::new(webhooks.clone(), of("MutatingAdmissionWebhook"))?,
        ),
        entry(
            Itself,
            ValidatingAdmissionWebhook::new(webhooks.clone(), of("ValidatingAdmissionWebhook"))?,
        ),
        entry(Itself, resource_quota::ResourceQuota),
    ])
}

impl Options {
    /// What each plugin is told.
    fn configuration(&self) -> Result<BTreeMap<String, Value>, String> {
        let Some(path) = &self.config_file else {
            return Ok(BTreeMap::new());
        };
        let read = |path: &std::path::Path| {
            std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let file: Configuration =
            serde_saphyr::from_str(&read(path)?).map_err(|error| error.to_string())?;
        if file.api_version != "apiserver.config.k8s.io/v1" || file.kind != "AdmissionConfiguration"
        {
            let why =
                "apiVersion apiserver.config.k8s.io/v1 and kind AdmissionConfiguration are wanted";
            return Err(why.to_owned());
        }
        let mut configured = BTreeMap::new();
        for plugin in file.plugins {
            let told = match (plugin.configuration, plugin.path) {
                (Some(told), _) => told,
                (None, Some(other)) => {
                    let other = path
                        .parent()
                        .map_or_else(|| other.clone(), |p| p.join(&other));
                    serde_saphyr::from_str(&read(&other)?).map_err(|error| error.to_string())?
                }
                (None, None) => continue,
            };
            configured.insert(plugin.name, told);
        }
        Ok(configured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;

    fn names(options: &Options) -> Result<Vec<&'static str>, String> {
        let reader = World::new().reader.clone();
        let rbac = Rbac::new(reader.clone());
        let figures = policy::Figures::new(&mut prometheus_client::registry::Registry::default());
        let webhooks = WebhookShared {
            reader: reader.clone(),
            authorizers: Arc::new([]),
            metrics: WebhookMetrics::registered(&mut Default::default()),
        };
        let chain = chain(options, &reader, &rbac, &webhooks, &figures)
            .map_err(|error| error.to_string())?;
        Ok(chain.iter().map(|plugin| plugin.name()).collect())
    }

    #[tokio::test]
    async fn plugins_are_switched_on_and_off_by_name_and_keep_their_order() {
        let usual = names(&Options::default()).unwrap();
        assert_eq!(usual.first(), Some(&"NamespaceLifecycle"));
        assert_eq!(usual.last(), Some(&"ResourceQuota"));
        assert!(!usual.contains(&"AlwaysPullImages"));
        assert!(usual.contains(&"DenyServiceExternalIPs"));
        let changed = names(&Options {
            enable: vec!["AlwaysPullImages".to_owned()],
            disable: vec!["DenyServiceExternalIPs".to_owned()],
            config_file: None,
        })
        .unwrap();
        let at = |name: &str| changed.iter().position(|other| *other == name);
        assert!(at("TaintNodesByCondition") < at("AlwaysPullImages"));
        assert!(at("AlwaysPullImages") < at("PodSecurity"));
        assert_eq!(at("DenyServiceExternalIPs"), None);
        assert_eq!(changed.len(), usual.len());
        for wrong in ["Nonsense", "RBACEscalation"] {
            let options = Options {
                disable: vec![wrong.to_owned()],
                ..Options::default()
            };
            assert!(
                names(&options)
                    .unwrap_err()
                    .contains("unknown admission plugin")
            );
        }
    }

    #[tokio::test]
    async fn a_configuration_file_that_makes_no_sense_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admission.yaml");
        let with = |text: &str| {
            std::fs::write(&path, text).unwrap();
            names(&Options {
                config_file: Some(path.clone()),
                ..Options::default()
            })
        };
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n";
        let security =
            |told: &str| format!("{head}plugins: [{{name: PodSecurity, configuration: {told}}}]");
        with(&security("{exemptions: {usernames: [a]}}")).unwrap();
        with(&security("{defaults: {enforce: strict}}")).unwrap_err();
        with(&security("{exmptions: {}}")).unwrap_err();
        with("kind: Other\napiVersion: v1\n").unwrap_err();
    }
}
