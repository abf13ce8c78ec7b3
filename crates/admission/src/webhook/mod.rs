//! Admission webhooks: external programs that change and reject writes over HTTPS. Configurations
//! are compiled when they change and indexed by resource; a write without matching webhooks costs
//! one lookup.

mod call;
mod dispatch;
mod hooks;
mod metrics;
mod mutating;
mod patch;
mod review;
mod services;
mod source;
mod validating;

use std::{path::PathBuf, sync::Arc};

use kinds::tree;
use machinery::{
    Object, Value,
    field::{Errors, Path},
};
use webhook::{Client, Credentials};

use super::matching::{Variables, check_conditions};
use crate::{Reader, authz::Authorizer};

pub use metrics::Metrics;
pub(crate) use mutating::MutatingAdmissionWebhook;
pub use services::Endpoints;
pub(crate) use validating::ValidatingAdmissionWebhook;

/// The compilation errors in a configuration's match conditions. Unchanged ones are kept.
pub fn check(configuration: &Object, old: Option<&Object>) -> Errors {
    let variables = Variables {
        params: false,
        authorizer: true,
    };
    let webhooks = |object| tree::list(tree::get(object, "webhooks"));
    let stand = |conditions: &Value| {
        let was = old.map(webhooks).unwrap_or_default();
        was.iter()
            .any(|hook| hook["matchConditions"] == *conditions)
    };
    let new = webhooks(configuration).iter().enumerate();
    let new = new.filter(|(_, hook)| !stand(&hook["matchConditions"]));
    new.flat_map(|(i, hook)| {
        let at = Path::new("webhooks");
        let at = at.index(i);
        let at = at.child("matchConditions");
        check_conditions(&hook["matchConditions"], variables, &at)
    })
    .collect()
}

/// What both plugins share.
#[derive(Clone)]
pub struct Shared {
    pub reader: Reader,
    pub authorizers: Arc<[Arc<dyn Authorizer>]>,
    pub metrics: Metrics,
}

/// The client of a plugin, with the credentials that its configuration names.
fn client(reader: &Reader, configuration: &Value) -> Result<Client, String> {
    let credentials = match kubeconfig(configuration)? {
        Some(path) => Credentials::read(&path)?,
        None => Credentials::default(),
    };
    Ok(Client::new(
        Arc::new(Endpoints::new(reader.clone())),
        credentials,
    ))
}

/// The kubeconfig named in a WebhookAdmissionConfiguration.
fn kubeconfig(configuration: &Value) -> Result<Option<PathBuf>, String> {
    if configuration.is_null() {
        return Ok(None);
    }
    let (version, kind) = (
        tree::text(&configuration["apiVersion"]),
        tree::text(&configuration["kind"]),
    );
    if version != "apiserver.config.k8s.io/v1" || kind != "WebhookAdmissionConfiguration" {
        return Err(format!(
            "apiVersion apiserver.config.k8s.io/v1 and kind WebhookAdmissionConfiguration are wanted, not {version} and {kind}"
        ));
    }
    let path = tree::text(&configuration["kubeConfigFile"]);
    Ok((!path.is_empty()).then(|| PathBuf::from(path)))
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    #[test]
    fn a_configuration_names_a_kubeconfig_file() {
        assert_eq!(kubeconfig(&Value::Null), Ok(None));
        let good = json!({"apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "WebhookAdmissionConfiguration", "kubeConfigFile": "/a"});
        assert_eq!(kubeconfig(&good), Ok(Some("/a".into())));
        assert!(kubeconfig(&json!({"kind": "Other"})).is_err());
    }
}
