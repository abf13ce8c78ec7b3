//! Bootstrap tokens: Secrets in kube-system with expiry and usages, as kubeadm makes them.

use std::{collections::BTreeMap, time::Duration};

use client::kube::{
    self, Api,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
    runtime::wait::await_condition,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};

use crate::{Error, agent::Token};

const NAMESPACE: &str = "kube-system";
const TYPE: &str = "bootstrap.kubernetes.io/token";
const PREFIX: &str = "bootstrap-token-";
/// Nodes with a token of this group may request their certificates.
pub const GROUP: &str = "system:bootstrappers:mainstay:nodes";
/// How long signing cluster-info with a new token may take.
const SIGNING_TIMEOUT: Duration = Duration::from_secs(10);
const USAGES: [&str; 2] = ["authentication", "signing"];

/// A token to create.
#[derive(Debug, Clone)]
pub struct NewToken {
    pub token: Token,
    /// Its time to live; `None` for ever.
    pub ttl: Option<SignedDuration>,
    pub description: Option<String>,
    pub usages: Vec<String>,
    pub groups: Vec<String>,
}

impl NewToken {
    /// A token for nodes.
    pub fn new(token: Token, ttl: Option<SignedDuration>) -> Self {
        Self {
            token,
            ttl,
            description: None,
            usages: USAGES.map(str::to_owned).into(),
            groups: vec![GROUP.to_owned()],
        }
    }

    fn secret(&self, now: Timestamp) -> Result<Secret, Error> {
        if let Some(wrong) = self
            .usages
            .iter()
            .find(|usage| !USAGES.contains(&usage.as_str()))
        {
            let why = format!("{wrong:?} is not one of {}", USAGES.join(", "));
            return Err(Error::Option("usages", why));
        }
        let is_bootstrapper = |group: &&String| !group.starts_with("system:bootstrappers:");
        if let Some(wrong) = self.groups.iter().find(is_bootstrapper) {
            let why = format!("{wrong:?} does not begin with system:bootstrappers:");
            return Err(Error::Option("groups", why));
        }
        let mut data: BTreeMap<String, String> = self
            .usages
            .iter()
            .map(|usage| (format!("usage-bootstrap-{usage}"), "true".to_owned()))
            .collect();
        data.insert("token-id".into(), self.token.id.clone());
        data.insert("token-secret".into(), self.token.secret.clone());
        if !self.groups.is_empty() {
            data.insert("auth-extra-groups".into(), self.groups.join(","));
        }
        if let Some(description) = &self.description {
            data.insert("description".into(), description.clone());
        }
        if let Some(ttl) = self.ttl {
            let end = now
                .checked_add(ttl)
                .map_err(|error| Error::Option("ttl", error.to_string()))?;
            let end = end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            data.insert("expiration".into(), end);
        }
        let bytes = |text: String| ByteString(text.into_bytes());
        Ok(Secret {
            metadata: ObjectMeta {
                name: Some(format!("{PREFIX}{}", self.token.id)),
                namespace: Some(NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            type_: Some(TYPE.to_owned()),
            data: Some(
                data.into_iter()
                    .map(|(key, text)| (key, bytes(text)))
                    .collect(),
            ),
            ..Secret::default()
        })
    }
}

/// An existing token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenInfo {
    pub id: String,
    pub expires: Option<String>,
    pub usages: Vec<String>,
    pub groups: String,
    pub description: String,
}

impl TokenInfo {
    fn from_secret(secret: &Secret) -> Option<Self> {
        let data = secret.data.as_ref()?;
        let text = |key: &str| {
            let value = data.get(key)?;
            String::from_utf8(value.0.clone()).ok()
        };
        let usage = |key: &String| {
            let usage = key.strip_prefix("usage-bootstrap-")?;
            (text(key)? == "true").then(|| usage.to_owned())
        };
        Some(Self {
            id: text("token-id")?,
            expires: text("expiration"),
            usages: data.keys().filter_map(usage).collect(),
            groups: text("auth-extra-groups").unwrap_or_default(),
            description: text("description").unwrap_or_default(),
        })
    }
}

/// Creates a token, and waits until cluster-info is signed with it, so that it can be used at once.
pub async fn create(client: &kube::Client, new: &NewToken) -> Result<(), Error> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let secret = new.secret(Timestamp::now())?;
    secrets.create(&PostParams::default(), &secret).await?;
    if !new.usages.iter().any(|usage| usage == "signing") {
        return Ok(());
    }
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-public");
    let key = format!("jws-kubeconfig-{}", new.token.id);
    let signed = await_condition(maps, "cluster-info", |map: Option<&ConfigMap>| {
        let data = map.and_then(|map| map.data.as_ref());
        data.is_some_and(|data| data.contains_key(&key))
    });
    match tokio::time::timeout(SIGNING_TIMEOUT, signed).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(Error::Join(format!(
            "cluster-info cannot be watched: {error}"
        ))),
        Err(_) => {
            tracing::warn!(
                "cluster-info is not signed with the token yet: do the controllers run?"
            );
            Ok(())
        }
    }
}

/// All tokens.
pub async fn list(client: &kube::Client) -> Result<Vec<TokenInfo>, Error> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let only = ListParams::default().fields(&format!("type={TYPE}"));
    let listed = secrets.list(&only).await?;
    Ok(listed
        .items
        .iter()
        .filter_map(TokenInfo::from_secret)
        .collect())
}

/// Deletes a token by its id, or by the complete token.
pub async fn delete(client: &kube::Client, token: &str) -> Result<(), Error> {
    let id = token.split('.').next().unwrap_or_default();
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let name = format!("{PREFIX}{id}");
    match secrets.delete(&name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Err(Error::NoToken(id.to_owned())),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_becomes_a_secret_as_kubeadm_makes_it() {
        let token = Token::parse("abcdef.0123456789abcdef").unwrap();
        let new = NewToken::new(token, Some(SignedDuration::from_hours(24)));
        let now: Timestamp = "2026-01-01T00:00:00.5Z".parse().unwrap();
        let secret = new.secret(now).unwrap();
        assert_eq!(
            secret.metadata.name.as_deref(),
            Some("bootstrap-token-abcdef")
        );
        let known = TokenInfo::from_secret(&secret).unwrap();
        assert_eq!(known.id, "abcdef");
        assert_eq!(known.expires.as_deref(), Some("2026-01-02T00:00:00Z"));
        assert_eq!(known.usages, USAGES);
        assert_eq!(known.groups, GROUP);
        let refused = |new: NewToken| new.secret(now).unwrap_err().to_string();
        let wrong = NewToken {
            groups: vec!["system:masters".into()],
            ..new.clone()
        };
        assert!(refused(wrong).starts_with("--groups"));
        let wrong = NewToken {
            usages: vec!["root".into()],
            ..new
        };
        assert!(refused(wrong).starts_with("--usages"));
    }
}
