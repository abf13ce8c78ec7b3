//! The configuration of an extender.

use std::{collections::BTreeSet, time::Duration};

use client::kubeconfig::{Cluster, Kubeconfig, User};
use serde::Deserialize;

/// The default timeout.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// One extender.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Settings {
    /// The URL; verbs are paths below it.
    pub url_prefix: String,
    /// Empty if the extender does not filter.
    pub filter_verb: String,
    /// Empty if the extender does not take part in preemption.
    pub preempt_verb: String,
    /// Empty if the extender does not score.
    pub prioritize_verb: String,
    /// The factor of its scores.
    pub weight: i64,
    /// Empty if the extender does not bind.
    pub bind_verb: String,
    /// Without a CA any certificate is accepted.
    #[serde(rename = "enableHTTPS")]
    pub enable_https: bool,
    tls_config: Option<Tls>,
    http_timeout: Option<String>,
    /// Whether it caches nodes and gets only their names.
    pub node_cache_capable: bool,
    /// Only pods that request one of these are sent to it; all pods if empty.
    pub managed_resources: Vec<ManagedResource>,
    /// Whether scheduling continues if it does not answer.
    pub ignorable: bool,
}

/// An extended resource that an extender manages.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ManagedResource {
    /// Its name.
    pub name: String,
    /// Whether NodeResourcesFit ignores it.
    pub ignored_by_scheduler: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Tls {
    insecure: bool,
    server_name: Option<String>,
    cert_file: Option<String>,
    key_file: Option<String>,
    ca_file: Option<String>,
    cert_data: Option<String>,
    key_data: Option<String>,
    ca_data: Option<String>,
}

impl Settings {
    /// The timeout of a request.
    pub fn timeout(&self) -> Result<Duration, String> {
        let Some(text) = self.http_timeout.as_deref() else {
            return Ok(DEFAULT_TIMEOUT);
        };
        let duration = machinery::duration::positive(text);
        let duration = duration.map_err(|why| format!("httpTimeout: {why}"))?;
        Ok(if duration.is_zero() {
            DEFAULT_TIMEOUT
        } else {
            duration
        })
    }

    /// A client of the extender. Must be called inside a Tokio runtime.
    pub fn client(&self) -> Result<kube::Client, String> {
        let given = self.tls_config.clone().unwrap_or_default();
        let has_authority = given.ca_file.is_some() || given.ca_data.is_some();
        let insecure = given.insecure || (self.enable_https && !has_authority);
        let cluster = Cluster {
            certificate_authority: given.ca_file,
            certificate_authority_data: given.ca_data,
            insecure_skip_tls_verify: Some(insecure),
            ..Cluster::default()
        };
        let user = User {
            client_certificate: given.cert_file,
            client_certificate_data: given.cert_data,
            client_key: given.key_file,
            client_key_data: given.key_data,
            ..User::default()
        };
        let tls = Kubeconfig::default().tls(&cluster, &user);
        let options = client::Options {
            server_name: given.server_name,
            allow_plaintext: true,
            ..client::Options::default()
        };
        let client = client::https(&self.url_prefix, tls.map_err(text)?, options);
        client.map_err(text)
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Validates all extenders together, as upstream.
pub fn validate(extenders: &[Settings]) -> Result<(), String> {
    let mut names = BTreeSet::new();
    for (at, extender) in extenders.iter().enumerate() {
        let path = format!("extenders[{at}]");
        if !extender.url_prefix.starts_with("http://")
            && !extender.url_prefix.starts_with("https://")
        {
            return Err(format!(
                "{path}.urlPrefix: Invalid value: {:?}: must begin with http:// or https://",
                extender.url_prefix
            ));
        }
        if !extender.prioritize_verb.is_empty() && extender.weight <= 0 {
            return Err(format!(
                "{path}.weight: Invalid value: {}: must have a positive weight applied to it",
                extender.weight
            ));
        }
        extender.timeout().map_err(|why| format!("{path}.{why}"))?;
        for (number, resource) in extender.managed_resources.iter().enumerate() {
            let path = format!("{path}.managedResources[{number}].name");
            let name = &resource.name;
            if !is_extended(name) {
                return Err(format!(
                    "{path}: Invalid value: {name:?}: is an invalid extended resource name"
                ));
            }
            if !names.insert(name) {
                return Err(format!(
                    "{path}: Invalid value: {name:?}: duplicate extender managed resource name"
                ));
            }
        }
    }
    let binders = extenders
        .iter()
        .filter(|extender| !extender.bind_verb.is_empty());
    match binders.count() {
        0 | 1 => Ok(()),
        several => Err(format!(
            "extenders: Invalid value: \"found {several} extenders implementing bind\": \
             only one extender can implement bind"
        )),
    }
}

/// Whether a name is that of an extended resource: with a domain that is not Kubernetes' own.
fn is_extended(name: &str) -> bool {
    let Some((domain, rest)) = name.split_once('/') else {
        return false;
    };
    let own = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
    !own && !domain.is_empty() && !rest.is_empty() && !name.starts_with("requests.")
}
