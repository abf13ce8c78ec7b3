//! Which plugins run, in Kubernetes' order, and their configuration: the enable and disable lists,
//! and an `AdmissionConfiguration` file.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use machinery::Value;
use serde::Deserialize;

use super::webhook::{MutatingAdmissionWebhook, ValidatingAdmissionWebhook};
use super::*;

/// Why the options are invalid.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

/// The admission options.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Plugins enabled in addition to the default ones.
    pub enable: Vec<String>,
    /// Disabled plugins.
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

/// When a plugin runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Activation {
    Default,
    OptIn,
    /// Upstream does this outside of admission: it cannot be disabled.
    Always,
}

type Entry = (&'static str, Activation, Arc<dyn Plugin>);

/// The plugins in the order of invocation. ResourceQuota is last.
pub fn chain(
    options: &Options,
    reader: &Reader,
    rbac: &Rbac,
    webhooks: &WebhookShared,
    figures: &policy::Figures,
) -> Result<Vec<Arc<dyn Plugin>>, Error> {
    let configured = options
        .configuration()
        .map_err(|why| Error(format!("admission configuration: {why}")))?;
    let all = all(&configured, reader, rbac, webhooks, figures)
        .map_err(|why| Error(format!("admission configuration: {why}")))?;
    for name in options.enable.iter().chain(&options.disable) {
        let known = |(known, by, _): &Entry| known == name && *by != Activation::Always;
        if !all.iter().any(known) {
            return Err(Error(format!("unknown admission plugin {name:?}")));
        }
    }
    let has = |list: &[String], name: &str| list.iter().any(|item| item == name);
    let runs = |(name, by, _): &Entry| match by {
        Activation::Always => true,
        // Upstream rejects a plugin in both lists. Here a default plugin stays enabled and an
        // opt-in one disabled.
        Activation::Default => !has(&options.disable, name) || has(&options.enable, name),
        Activation::OptIn => has(&options.enable, name) && !has(&options.disable, name),
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
    fn entry(by: Activation, plugin: impl Plugin) -> Entry {
        (plugin.name(), by, Arc::new(plugin))
    }
    use Activation::{Always, Default, OptIn};
    Ok(vec![
        entry(Default, namespace_lifecycle::NamespaceLifecycle),
        entry(Default, limit_ranger::LimitRanger),
        entry(Default, service_account::ServiceAccount),
        entry(
            Default,
            node_restriction::NodeRestriction {
                authorizers: asks(),
            },
        ),
        entry(Default, taint_nodes_by_condition::TaintNodesByCondition),
        entry(OptIn, always_pull_images::AlwaysPullImages),
        entry(
            Default,
            pod_security::PodSecurity::new(of(pod_security::NAME))?,
        ),
        entry(
            OptIn,
            pod_node_selector::PodNodeSelector::new(of(pod_node_selector::NAME))?,
        ),
        entry(Default, priority::Priority),
        entry(
            Default,
            default_toleration_seconds::DefaultTolerationSeconds,
        ),
        entry(
            OptIn,
            extended_resource_toleration::ExtendedResourceToleration,
        ),
        entry(Default, default_storage_class::DefaultStorageClass),
        entry(
            Default,
            storage_object_in_use_protection::StorageObjectInUseProtection,
        ),
        entry(
            Default,
            persistent_volume_claim_resize::PersistentVolumeClaimResize,
        ),
        entry(Default, runtime_class::RuntimeClass),
        entry(
            Default,
            certificate_approval::CertificateApproval {
                authorizers: asks(),
            },
        ),
        entry(
            Default,
            certificate_signing::CertificateSigning {
                authorizers: asks(),
            },
        ),
        entry(
            Default,
            cluster_trust_bundle_attest::ClusterTrustBundleAttest {
                authorizers: asks(),
            },
        ),
        entry(
            Default,
            certificate_subject_restriction::CertificateSubjectRestriction,
        ),
        entry(Default, default_ingress_class::DefaultIngressClass),
        entry(Default, deny_service_external_ips::DenyServiceExternalIPs),
        entry(Default, pod_topology_labels::PodTopologyLabels),
        entry(Default, pod_resize_validator::PodResizeValidator),
        entry(
            Default,
            policy::MutatingAdmissionPolicy::new(reader, asks(), figures),
        ),
        entry(
            Default,
            policy::ValidatingAdmissionPolicy::new(reader, asks(), figures),
        ),
        entry(Always, certificate_origin::CertificateOrigin),
        entry(Always, rbac_escalation::RbacEscalation::new(rbac.clone())),
        entry(
            Default,
            MutatingAdmissionWebhook::new(webhooks.clone(), of("MutatingAdmissionWebhook"))?,
        ),
        entry(
            Default,
            ValidatingAdmissionWebhook::new(webhooks.clone(), of("ValidatingAdmissionWebhook"))?,
        ),
        entry(Default, resource_quota::ResourceQuota),
    ])
}

impl Options {
    /// The configuration of each plugin.
    fn configuration(&self) -> Result<BTreeMap<String, Value>, String> {
        let Some(path) = &self.config_file else {
            return Ok(BTreeMap::new());
        };
        let read = |path: &std::path::Path| {
            std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let file: Configuration = machinery::yaml::from_str(&read(path)?)?;
        if file.api_version != "apiserver.config.k8s.io/v1" || file.kind != "AdmissionConfiguration"
        {
            let why =
                "apiVersion apiserver.config.k8s.io/v1 and kind AdmissionConfiguration are wanted";
            return Err(why.to_owned());
        }
        let mut configured = BTreeMap::new();
        for plugin in file.plugins {
            let document = match (plugin.configuration, plugin.path) {
                (Some(document), _) => document,
                (None, Some(other)) => {
                    let other = path
                        .parent()
                        .map_or_else(|| other.clone(), |p| p.join(&other));
                    machinery::yaml::from_str(&read(&other)?)?
                }
                (None, None) => continue,
            };
            configured.insert(plugin.name, document);
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
        let security = |document: &str| {
            format!("{head}plugins: [{{name: PodSecurity, configuration: {document}}}]")
        };
        with(&security("{exemptions: {usernames: [a]}}")).unwrap();
        with(&security("{defaults: {enforce: strict}}")).unwrap_err();
        with(&security("{exmptions: {}}")).unwrap_err();
        with("kind: Other\napiVersion: v1\n").unwrap_err();
    }
}
