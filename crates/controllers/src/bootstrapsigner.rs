//! Signs the ConfigMap kube-public/cluster-info with every bootstrap token that may sign, so that a
//! joining machine can verify the cluster's address and CA with its token. Does not create the
//! ConfigMap.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use client::Informer;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use reconcile::{Action, Controller, Error, Key, Writer};

use crate::{shared::Shared, tokencleaner};

/// The name in [`crate::ALL`].
pub const NAME: &str = "bootstrap-signer";
const ACCOUNT: &str = "bootstrap-signer";
const NAMESPACE: &str = "kube-public";
const MAP: &str = "cluster-info";
const KUBECONFIG: &str = "kubeconfig";
const SIGNATURE: &str = "jws-kubeconfig-";
const SECRET: &str = "bootstrap-token-";

struct Signer {
    shared: Arc<Shared>,
    secrets: Informer<Secret>,
    maps: Writer<ConfigMap>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    // Watches only this ConfigMap and the tokens, as the service account that may.
    let client = shared.client(ACCOUNT);
    let secrets = Informer::builder(client.clone())
        .namespace("kube-system")
        .fields(format!("type={}", tokencleaner::TYPE))
        .start(&shared.context);
    let maps = Informer::builder(client.clone())
        .namespace(NAMESPACE)
        .fields(format!("metadata.name={MAP}"))
        .start(&shared.context);
    let controller = Arc::new(Signer {
        shared: shared.clone(),
        secrets,
        maps: Writer::new(client, maps),
    });
    let keys = || vec![Key::new(NAMESPACE, MAP)];
    shared
        .controller(&controller)
        .watches_with(&controller.secrets, move |_| keys())
        .watches_with(controller.maps.cache(), move |_| keys())
        .start();
}

/// A token that may sign.
struct Token {
    id: String,
    secret: String,
    /// Its expiration; `None` if it never expires.
    end: Option<Timestamp>,
}

/// The token of a Secret, if it may sign now.
fn token(secret: &Secret, now: Timestamp) -> Option<Token> {
    let data = secret.data.as_ref()?;
    let text = |key: &str| {
        data.get(key)
            .and_then(|value| std::str::from_utf8(&value.0).ok())
    };
    let name = secret.metadata.name.as_deref()?.strip_prefix(SECRET)?;
    let id = text("token-id").filter(|id| *id == name)?;
    let key = text("token-secret").filter(|key| !key.is_empty())?;
    let end = tokencleaner::end(secret);
    let counts = end.is_none_or(|end| end > now);
    let signs = text("usage-bootstrap-signing") == Some("true");
    (counts && signs).then(|| Token {
        id: id.to_owned(),
        secret: key.to_owned(),
        end,
    })
}

/// The ConfigMap's data with the signatures of exactly these tokens; `None` if it has them.
fn sign(map: &ConfigMap, tokens: &[Token]) -> Option<BTreeMap<String, String>> {
    let data = map.data.as_ref()?;
    let content = data.get(KUBECONFIG)?;
    let mut signed = data.clone();
    signed.retain(|key, _| !key.starts_with(SIGNATURE));
    for token in tokens {
        let signature = pki::detached_signature(content, &token.id, &token.secret);
        signed.insert(format!("{SIGNATURE}{}", token.id), signature);
    }
    (signed != *data).then_some(signed)
}

impl Controller for Signer {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, _: &Key) -> Result<Action, Error> {
        let Some(map) = self.maps.cache().get(NAMESPACE, MAP) else {
            return Ok(Action::Done);
        };
        let now = self.shared.now();
        let secrets = self.secrets.list();
        let tokens = secrets.iter().filter_map(|secret| token(secret, now));
        let tokens: Vec<Token> = tokens.collect();
        if let Some(data) = sign(&map, &tokens) {
            let mut map = (*map).clone();
            map.data = Some(data);
            self.maps.update(NAMESPACE, &map).await?;
        }
        // Remove a token's signature when it expires.
        let next = tokens.iter().filter_map(|token| token.end).min();
        let left = next.and_then(|end| Duration::try_from(end.duration_since(now)).ok());
        Ok(left.map_or(Action::Done, Action::After))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    fn secret(name: &str, fields: &[(&str, &str)]) -> Secret {
        let mut secret = Secret::default();
        secret.metadata.name = Some(name.to_owned());
        let field = |(key, value): &(&str, &str)| {
            ((*key).to_owned(), ByteString(value.as_bytes().to_vec()))
        };
        secret.data = Some(fields.iter().map(field).collect());
        secret
    }

    #[test]
    fn a_token_signs_only_when_it_may_and_counts() {
        let now: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
        let good = [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-signing", "true"),
        ];
        let with = |name: &str, change: (&'static str, &'static str)| {
            let mut fields = good.to_vec();
            fields.retain(|(key, _)| *key != change.0);
            fields.push(change);
            token(&secret(name, &fields), now).is_some()
        };
        let name = "bootstrap-token-abcdef";
        assert!(with(name, ("expiration", "2026-07-01T00:00:00Z")));
        assert!(!with(name, ("expiration", "2026-05-01T00:00:00Z")));
        assert!(!with(name, ("usage-bootstrap-signing", "false")));
        assert!(!with(name, ("token-id", "fedcba")));
        assert!(!with(name, ("token-secret", "")));
        assert!(!with("another-name", ("description", "d")));
    }

    #[test]
    fn signatures_follow_the_tokens_and_the_text() {
        let map = |entries: &[(&str, &str)]| ConfigMap {
            data: Some(
                entries
                    .iter()
                    .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                    .collect(),
            ),
            ..ConfigMap::default()
        };
        let one = [Token {
            id: "abcdef".to_owned(),
            secret: "s".to_owned(),
            end: None,
        }];
        let signed = sign(&map(&[("kubeconfig", "a"), ("other", "x")]), &one).unwrap();
        let signature = pki::detached_signature("a", "abcdef", "s");
        assert_eq!(signed["jws-kubeconfig-abcdef"], signature);
        assert_eq!(signed["other"], "x");
        let done = ConfigMap {
            data: Some(signed.clone()),
            ..ConfigMap::default()
        };
        assert_eq!(sign(&done, &one), None);
        let gone = sign(&done, &[]).unwrap();
        assert!(!gone.contains_key("jws-kubeconfig-abcdef") && gone.contains_key("other"));
        assert_eq!(sign(&map(&[("other", "x")]), &one), None, "nothing to sign");
    }
}
