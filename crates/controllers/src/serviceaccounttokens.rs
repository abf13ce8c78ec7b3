//! Fills Secrets of type `kubernetes.io/service-account-token` with the token, the cluster's CA and
//! the namespace, and deletes them with their ServiceAccount. Removes references to deleted Secrets
//! from ServiceAccounts.

use std::{collections::BTreeMap, sync::Arc};

use client::{Api, Informer};
use k8s_openapi::{
    ByteString,
    api::core::v1::{Secret, ServiceAccount},
};
use kube::{
    ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
};
use pki::Pki;
use reconcile::{Action, Controller, Error, Key};
use serde_json::json;

use crate::shared::Shared;

/// The name in [`crate::ALL`].
pub const NAME: &str = "serviceaccount-token";
pub(crate) const TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
/// The index of Secrets by their ServiceAccount.
const FOR: &str = "service account";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";

struct Tokens {
    pki: Arc<Pki>,
    cluster_ca: String,
    secrets: Informer<Secret>,
    accounts: Informer<ServiceAccount>,
    /// Acts as the controller manager, as upstream's does: no service account may write all tokens.
    client: kube::Client,
}

/// Starts the controller, if there is a key to sign with.
pub fn start(shared: &Arc<Shared>) {
    let Some(authority) = &shared.config.authority else {
        return;
    };
    let controller = Arc::new(Tokens {
        pki: authority.0.clone(),
        cluster_ca: shared.config.cluster_ca.clone(),
        // Watches only Secrets of this type.
        secrets: Informer::builder(shared.reader())
            .fields(format!("type={TYPE}"))
            .index(FOR, |secret: &Secret| {
                vec![account_key(
                    secret.namespace(),
                    annotation(secret, ACCOUNT_NAME),
                )]
            })
            .start(&shared.context),
        accounts: shared.informer(),
        client: shared.reader(),
    });
    let secrets = controller.secrets.clone();
    shared
        .controller(&controller)
        .watches(&controller.secrets)
        .watches_with(&controller.accounts, move |event| {
            let account = event.object();
            let tokens =
                secrets.by_index(FOR, &account_key(account.namespace(), &account.name_any()));
            let tokens = tokens.iter().filter(|secret| names(secret, account));
            tokens.map(|secret| Key::from_object(&**secret)).collect()
        })
        .start();
}

/// The key of a ServiceAccount in the index [`FOR`].
fn account_key(namespace: Option<String>, name: &str) -> String {
    format!("{}/{name}", namespace.unwrap_or_default())
}

fn annotation<'a>(secret: &'a Secret, key: &str) -> &'a str {
    secret.annotations().get(key).map_or("", String::as_str)
}

/// Whether a Secret is for a ServiceAccount of this name.
fn names(secret: &Secret, account: &ServiceAccount) -> bool {
    secret.namespace() == account.namespace()
        && annotation(secret, ACCOUNT_NAME) == account.name_any()
}

/// Whether a Secret is for this ServiceAccount. Without a uid annotation it is for the current one
/// of that name.
fn is_for(secret: &Secret, account: &ServiceAccount) -> bool {
    let uid = annotation(secret, ACCOUNT_UID);
    names(secret, account) && (uid.is_empty() || account.uid().as_deref() == Some(uid))
}

/// The claims of a token.
fn claims(secret: &Secret, account: &ServiceAccount) -> serde_json::Value {
    let namespace = account.namespace().unwrap_or_default();
    let name = account.name_any();
    json!({
        "iss": "kubernetes/serviceaccount",
        "sub": format!("system:serviceaccount:{namespace}:{name}"),
        "kubernetes.io/serviceaccount/namespace": namespace,
        "kubernetes.io/serviceaccount/secret.name": secret.name_any(),
        "kubernetes.io/serviceaccount/service-account.name": name,
        "kubernetes.io/serviceaccount/service-account.uid": account.uid().unwrap_or_default(),
    })
}

/// The Secret with missing data added; `None` if it is complete.
fn filled(
    secret: &Secret,
    account: &ServiceAccount,
    ca: &str,
    sign: impl FnOnce(&serde_json::Value) -> Result<String, Error>,
) -> Result<Option<Secret>, Error> {
    let none = BTreeMap::new();
    let data = secret.data.as_ref().unwrap_or(&none);
    let held = |key: &str| data.get(key).map_or(&[][..], |value| &value.0);
    let needs_ca = !ca.is_empty() && held("ca.crt") != ca.as_bytes();
    let (needs_namespace, needs_token) = (held("namespace").is_empty(), held("token").is_empty());
    if !needs_ca && !needs_namespace && !needs_token {
        return Ok(None);
    }
    let mut filled = secret.clone();
    let data = filled.data.get_or_insert_default();
    let mut put =
        |key: &str, value: String| data.insert(key.to_owned(), ByteString(value.into_bytes()));
    if needs_ca {
        put("ca.crt", ca.to_owned());
    }
    if needs_namespace {
        put("namespace", secret.namespace().unwrap_or_default());
    }
    if needs_token {
        put("token", sign(&claims(secret, account))?);
    }
    let annotations = filled.annotations_mut();
    annotations.insert(ACCOUNT_NAME.to_owned(), account.name_any());
    annotations.insert(ACCOUNT_UID.to_owned(), account.uid().unwrap_or_default());
    Ok(Some(filled))
}

/// Not found and conflict are no errors: the object is gone, or changed and comes as an event.
fn settled(result: Result<(), kube::Error>) -> Result<(), Error> {
    match result.map_err(Error::from) {
        Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
        _ => Ok(()),
    }
}

impl Tokens {
    /// The ServiceAccount of a Secret, from the cache or the API server.
    async fn account(&self, secret: &Secret) -> Result<Option<Arc<ServiceAccount>>, Error> {
        let (namespace, name) = (
            secret.namespace().unwrap_or_default(),
            annotation(secret, ACCOUNT_NAME),
        );
        if name.is_empty() {
            return Ok(None);
        }
        let known = self.accounts.get(&namespace, name);
        if let Some(account) = known.filter(|account| is_for(secret, account)) {
            return Ok(Some(account));
        }
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &namespace);
        let found = api.get_opt(name).await?;
        Ok(found
            .filter(|account| is_for(secret, account))
            .map(Arc::new))
    }

    async fn delete(&self, secret: &Secret) -> Result<(), Error> {
        let api: Api<Secret> =
            Api::namespaced(self.client.clone(), &secret.namespace().unwrap_or_default());
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: secret.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        settled(api.delete(&secret.name_any(), &params).await.map(drop))
    }

    /// Removes references to a deleted Secret from the ServiceAccounts of its namespace.
    async fn unreference(&self, key: &Key) -> Result<(), Error> {
        let refers = |account: &ServiceAccount| {
            let mut secrets = account.secrets.iter().flatten();
            secrets.any(|secret| secret.name.as_deref() == Some(&key.name))
        };
        let accounts = self.accounts.list_in(&key.namespace);
        let accounts = accounts.iter().filter(|account| refers(account));
        for account in accounts {
            let mut account = ServiceAccount::clone(account);
            let secrets = account.secrets.iter_mut();
            secrets.for_each(|secrets| {
                secrets.retain(|secret| secret.name.as_deref() != Some(&key.name));
            });
            let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &key.namespace);
            let (name, params) = (account.name_any(), PostParams::default());
            let replaced = api.replace(&name, &params, &account);
            settled(replaced.await.map(drop))?;
        }
        Ok(())
    }
}

impl Controller for Tokens {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(secret) = self.secrets.get(&key.namespace, &key.name) else {
            self.unreference(key).await?;
            return Ok(Action::Done);
        };
        if secret.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Done);
        }
        let Some(account) = self.account(&secret).await? else {
            self.delete(&secret).await?;
            return Ok(Action::Done);
        };
        let sign = |claims: &serde_json::Value| {
            let signed = self.pki.service_account().sign(claims);
            signed.map_err(|error| Error::Invalid(error.to_string()))
        };
        if let Some(filled) = filled(&secret, &account, &self.cluster_ca, sign)? {
            let api: Api<Secret> = Api::namespaced(self.client.clone(), &key.namespace);
            let params = PostParams::default();
            let replaced = api.replace(&key.name, &params, &filled);
            // A newer version comes as an event.
            settled(replaced.await.map(drop))?;
        }
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(uid: &str) -> ServiceAccount {
        let json = json!({"metadata": {"name": "bot", "namespace": "team", "uid": uid}});
        serde_json::from_value(json).unwrap()
    }

    fn secret(uid: &str) -> Secret {
        let json = json!({"metadata": {"name": "s", "namespace": "team", "annotations": {
            ACCOUNT_NAME: "bot", ACCOUNT_UID: uid}}, "type": TYPE});
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_secret_gets_missing_data_and_keeps_the_rest() {
        let sign = |claims: &serde_json::Value| Ok(claims["sub"].as_str().unwrap().to_owned());
        let made = filled(&secret(""), &account("1"), "CA", sign)
            .unwrap()
            .unwrap();
        let data = made.data.clone().unwrap();
        let text = |key: &str| String::from_utf8(data[key].0.clone()).unwrap();
        assert_eq!(text("token"), "system:serviceaccount:team:bot");
        assert_eq!(
            (text("namespace"), text("ca.crt")),
            ("team".into(), "CA".into())
        );
        assert_eq!(annotation(&made, ACCOUNT_UID), "1");
        let again = |ca: &str| filled(&made, &account("1"), ca, |_| panic!("signs again"));
        assert!(again("CA").unwrap().is_none() && again("").unwrap().is_none());
        let renewed = again("other CA").unwrap().unwrap();
        assert_eq!(renewed.data.unwrap()["token"], data["token"]);
    }

    #[test]
    fn a_secret_is_for_one_account_and_not_for_another_of_its_name() {
        assert!(is_for(&secret("1"), &account("1")) && is_for(&secret(""), &account("2")));
        assert!(!is_for(&secret("1"), &account("2")));
    }
}
