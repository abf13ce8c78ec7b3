//! Credentials for webhooks: users of a kubeconfig file, selected by the host of the webhook.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::HeaderValue;
use serde::Deserialize;

use crate::tls::Identity;

/// The users of a kubeconfig file; empty if there is no file.
#[derive(Default)]
pub struct Credentials {
    users: BTreeMap<String, User>,
    clusters: BTreeMap<String, Cluster>,
    /// The user and the cluster of the current context.
    current: Option<(String, String)>,
    /// The directory that relative paths in the file refer to.
    directory: PathBuf,
}

/// The credentials for one webhook.
#[derive(Default)]
pub(crate) struct WebhookCredentials {
    pub(crate) identity: Option<Identity>,
    pub(crate) authorization: Option<HeaderValue>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct File {
    current_context: String,
    users: Vec<NamedUser>,
    contexts: Vec<NamedContext>,
    clusters: Vec<NamedCluster>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

/// A cluster of a kubeconfig file.
#[derive(Deserialize, Default, Clone)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct Cluster {
    pub(crate) server: String,
    pub(crate) tls_server_name: String,
    pub(crate) insecure_skip_tls_verify: bool,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    /// CA certificates in PEM; if empty, the system's CAs are trusted.
    #[serde(skip)]
    pub(crate) authorities: Vec<u8>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    username: Option<String>,
    password: Option<String>,
    exec: Option<machinery::Value>,
    auth_provider: Option<machinery::Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
}

impl Credentials {
    /// Reads a kubeconfig file.
    pub fn read(path: &Path) -> Result<Self, String> {
        let failed = |why: String| format!("{}: {why}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let file: File = machinery::yaml::from_str(&text).map_err(failed)?;
        let mut contexts = file.contexts.into_iter();
        let current = contexts.find(|context| context.name == file.current_context);
        let users: BTreeMap<String, User> = file
            .users
            .into_iter()
            .map(|named| (named.name, named.user))
            .collect();
        for (name, user) in &users {
            if user.exec.is_some() || user.auth_provider.is_some() {
                let why = "exec and auth-provider credentials are not supported for webhooks";
                return Err(failed(format!("user {name:?}: {why}")));
            }
        }
        Ok(Self {
            users,
            clusters: file
                .clusters
                .into_iter()
                .map(|named| (named.name, named.cluster))
                .collect(),
            current: current.map(|context| (context.context.user, context.context.cluster)),
            directory: path.parent().map(Path::to_owned).unwrap_or_default(),
        })
    }

    /// The credentials for `host:port`.
    pub(crate) fn find(&self, target: &str) -> Result<WebhookCredentials, String> {
        match self.user(target) {
            Some(user) => self.shown(user),
            None => Ok(WebhookCredentials::default()),
        }
    }

    /// The cluster of the current context, and the credentials for it.
    pub(crate) fn current(&self) -> Result<(Cluster, WebhookCredentials), String> {
        let (user, cluster) = self
            .current
            .as_ref()
            .ok_or("current-context names no context")?;
        let cluster = self.clusters.get(cluster);
        let mut cluster = cluster
            .cloned()
            .ok_or("the current context names no cluster")?;
        cluster.authorities = self
            .bytes(
                cluster.certificate_authority_data.as_deref(),
                cluster.certificate_authority.as_deref(),
            )?
            .unwrap_or_default();
        let shown = match self.users.get(user) {
            Some(user) => self.shown(user)?,
            None => WebhookCredentials::default(),
        };
        Ok((cluster, shown))
    }

    /// Finds the user for `host:port`. Tries the exact name, then `*.` and a parent domain, then both without `:443`,
    /// then `*`, then the user of the current context.
    fn user(&self, target: &str) -> Option<&User> {
        let named = |target: &str| {
            let exact = self.users.get(target);
            exact.or_else(|| {
                let starts = target.match_indices('.').map(|(at, _)| at);
                let mut patterns = starts.map(|at| format!("*{}", &target[at..]));
                patterns.find_map(|pattern| self.users.get(&pattern))
            })
        };
        named(target)
            .or_else(|| named(target.strip_suffix(":443")?))
            .or_else(|| self.users.get("*"))
            .or_else(|| self.users.get(&self.current.as_ref()?.0))
    }

    fn read_file(&self, path: &Path) -> Result<Vec<u8>, String> {
        let path = self.directory.join(path);
        std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Decodes base64 data in the kubeconfig file, or reads the file that it names.
    fn bytes(&self, data: Option<&str>, path: Option<&Path>) -> Result<Option<Vec<u8>>, String> {
        match (data, path) {
            (Some(data), _) => STANDARD
                .decode(data.trim())
                .map(Some)
                .map_err(|error| error.to_string()),
            (None, Some(path)) => self.read_file(path).map(Some),
            (None, None) => Ok(None),
        }
    }

    fn shown(&self, user: &User) -> Result<WebhookCredentials, String> {
        let certificate = self.bytes(
            user.client_certificate_data.as_deref(),
            user.client_certificate.as_deref(),
        )?;
        let key = self.bytes(user.client_key_data.as_deref(), user.client_key.as_deref())?;
        let token = match (&user.token, &user.token_file) {
            (Some(token), _) if !token.is_empty() => Some(token.clone()),
            (_, Some(path)) => Some(
                String::from_utf8_lossy(&self.read_file(path)?)
                    .trim()
                    .to_owned(),
            ),
            _ => None,
        };
        let basic = user.username.as_ref().map(|name| {
            let password = user.password.as_deref().unwrap_or_default();
            format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))
        });
        let authorization = token.map(|token| format!("Bearer {token}")).or(basic);
        let authorization = authorization.map(|text| {
            let mut value = HeaderValue::from_str(&text)
                .map_err(|_| "the credentials have characters that a header cannot carry")?;
            value.set_sensitive(true);
            Ok::<_, String>(value)
        });
        Ok(WebhookCredentials {
            identity: certificate
                .zip(key)
                .map(|(certificate, key)| Identity { certificate, key }),
            authorization: authorization.transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_user_is_shown() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        let user = |name: &str| format!("- name: \"{name}\"\n  user: {{token: \"{name}\"}}\n");
        let names = ["a.b.svc:8443", "a.b.svc", "*.b.svc", "*.svc:99", "*"];
        let users: String = names.iter().map(|name| user(name)).collect();
        std::fs::write(&path, format!("users:\n{users}")).unwrap();
        let credentials = Credentials::read(&path).unwrap();
        for (target, expected) in [
            ("a.b.svc:8443", "a.b.svc:8443"),
            ("a.b.svc:443", "a.b.svc"),
            ("c.b.svc:443", "*.b.svc"),
            ("x.y.svc:99", "*.svc:99"),
            ("x.y.svc:98", "*"),
        ] {
            let shown = credentials.find(target).unwrap();
            let authorization = shown.authorization.unwrap();
            assert_eq!(
                authorization.to_str().unwrap(),
                format!("Bearer {expected}"),
                "{target}"
            );
        }
        let none = Credentials::default().find("a:443").unwrap();
        assert!(none.authorization.is_none() && none.identity.is_none());
    }
}
