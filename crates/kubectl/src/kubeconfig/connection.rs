//! From a kubeconfig and flags to a client: server, credentials and namespace.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use client::{
    Kubeconfig,
    kube::Client,
    kubeconfig::{Cluster, User},
};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use serde_json::Value;

use crate::{
    args::Global,
    json::{entries, list, str_of},
    kubeconfig::{
        entry, exec, plugin_policy,
        tokens::{TokenSource, Tokens},
        validation::Resolved,
        verifier::Verifier,
    },
    kuberc,
};

const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A server and its credentials.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connection {
    pub server: String,
    pub namespace: Option<String>,
    cluster: Cluster,
    user: User,
    headers: HeaderMap,
    proxy: Option<String>,
    /// Tokens that expire; other credentials are those of the user.
    tokens: Option<Arc<Tokens>>,
}

impl Connection {
    /// From the kubeconfig, overridden by flags.
    pub(crate) fn resolve(config: &Value, global: &Global) -> Result<Self> {
        if global.insecure_skip_tls_verify && global.certificate_authority.is_some() {
            bail!("specifying a root certificates file with the insecure flag is not allowed");
        }
        let is_configured =
            list(&config["clusters"]).len() > 0 || list(&config["contexts"]).len() > 0;
        if !is_configured
            && global.server.is_none()
            && let Some(connection) = Self::in_cluster(global)?
        {
            return Ok(connection);
        }
        let name = global
            .context
            .clone()
            .unwrap_or_else(|| str_of(&config["current-context"]).to_owned());
        let context = entry(config, "contexts", &name);
        if context.is_none() && !name.is_empty() {
            let missing = format!("context was not found for specified context: {name}");
            match global.context {
                Some(_) => {
                    return Err(
                        crate::error::Plain(format!("Error in configuration: {missing}")).into(),
                    );
                }
                None => bail!("{missing}"),
            }
        }
        let empty = Value::Null;
        let context = context.unwrap_or(&empty);
        let cluster = part(
            config,
            "clusters",
            "cluster",
            global.cluster.as_deref(),
            &context["cluster"],
        )?;
        let user = part(
            config,
            "users",
            "auth info",
            global.user.as_deref(),
            &context["user"],
        )?;
        let namespace =
            Some(str_of(&context["namespace"]).to_owned()).filter(|name| !name.is_empty());
        let mut connection = Self {
            namespace,
            ..Self::default()
        };
        connection.set_cluster(cluster, global)?;
        let name_of = |flag: &Option<String>, field: &str| {
            let named = || str_of(&context[field]).to_owned();
            flag.clone().unwrap_or_else(named)
        };
        Self::check_credential_flags(global, &name_of(&global.user, "user"))?;
        connection.set_certificates(user, global);
        Resolved {
            user_name: &name_of(&global.user, "user"),
            user: &connection.user,
            exec: if has_credential_flag(global) {
                &empty
            } else {
                &user["exec"]
            },
            has_password: ["username", "password"]
                .iter()
                .any(|field| !str_of(&user[*field]).is_empty()),
            cluster_name: &name_of(&global.cluster, "cluster"),
            cluster: &connection.cluster,
            proxy: str_of(&cluster["proxy-url"]),
            impersonates_nobody: Impersonation::new(user, global).is_of_nobody(),
        }
        .check()?;
        connection.set_user(user, cluster, global)?;
        Ok(connection)
    }

    /// In-cluster configuration: the service's address and the service account.
    fn in_cluster(global: &Global) -> Result<Option<Self>> {
        let host = std::env::var("KUBERNETES_SERVICE_HOST").unwrap_or_default();
        let port = std::env::var("KUBERNETES_SERVICE_PORT").unwrap_or_default();
        if host.is_empty() || port.is_empty() {
            return Ok(None);
        }
        let token_file = format!("{SERVICE_ACCOUNT}/token");
        if std::fs::read_to_string(&token_file).is_err() {
            return Ok(None);
        }
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host
        };
        let cluster = serde_json::json!({
            "server": format!("https://{host}:{port}"),
            "certificate-authority": format!("{SERVICE_ACCOUNT}/ca.crt")});
        let user = serde_json::json!({"tokenFile": token_file});
        let namespace = std::fs::read_to_string(format!("{SERVICE_ACCOUNT}/namespace")).ok();
        let mut connection = Self {
            namespace: namespace.map(|name| name.trim().to_owned()),
            ..Self::default()
        };
        connection.set_cluster(&cluster, global)?;
        connection.set_certificates(&user, global);
        connection.set_user(&user, &cluster, global)?;
        if global.v >= 4 {
            let header = crate::request_log::prefix();
            if global.namespace.is_none() {
                eprintln!("{header}] \"Using in-cluster namespace\"");
            }
            eprintln!("{header}] \"Using in-cluster configuration\"");
        }
        Ok(Some(connection))
    }

    fn set_cluster(&mut self, cluster: &Value, global: &Global) -> Result<()> {
        let text =
            |field: &str| Some(str_of(&cluster[field]).to_owned()).filter(|text| !text.is_empty());
        let server = global.server.clone().or_else(|| text("server"));
        let server = server.unwrap_or_else(|| "http://localhost:8080".to_owned());
        self.server = match server.contains("://") {
            true => server,
            false => format!("http://{server}"),
        };
        self.cluster = Cluster {
            server: self.server.clone(),
            certificate_authority: global
                .certificate_authority
                .clone()
                .or_else(|| text("certificate-authority")),
            certificate_authority_data: text("certificate-authority-data")
                .filter(|_| global.certificate_authority.is_none()),
            tls_server_name: global
                .tls_server_name
                .clone()
                .or_else(|| text("tls-server-name")),
            insecure_skip_tls_verify: Some(
                global.insecure_skip_tls_verify || cluster["insecure-skip-tls-verify"] == true,
            ),
            // If a flag names a server, the other servers are not used.
            extensions: match global.server {
                Some(_) => Vec::new(),
                None => serde_json::from_value(cluster["extensions"].clone()).unwrap_or_default(),
            },
        };
        if self.cluster.insecure_skip_tls_verify == Some(true)
            && !global.insecure_skip_tls_verify
            && (self.cluster.certificate_authority.is_some()
                || self.cluster.certificate_authority_data.is_some())
        {
            bail!("specifying a root certificates file with the insecure flag is not allowed");
        }
        self.proxy = text("proxy-url").or_else(|| environment_proxy(&self.server));
        Ok(())
    }

    /// One way to authenticate at most; certificates are sent beside it.
    fn check_credential_flags(global: &Global, name: &str) -> Result<()> {
        if global.token.is_some() && global.username.is_some() {
            bail!(
                "more than one authentication method found for {name}; found [token basicAuth], only one is allowed"
            );
        }
        Ok(())
    }

    fn set_certificates(&mut self, user: &Value, global: &Global) {
        let text =
            |field: &str| Some(str_of(&user[field]).to_owned()).filter(|text| !text.is_empty());
        let has_flag = has_credential_flag(global);
        self.user = User {
            client_certificate: global
                .client_certificate
                .clone()
                .or_else(|| text("client-certificate")),
            client_certificate_data: text("client-certificate-data")
                .filter(|_| global.client_certificate.is_none()),
            client_key: global.client_key.clone().or_else(|| text("client-key")),
            client_key_data: text("client-key-data").filter(|_| global.client_key.is_none()),
            token: global
                .token
                .clone()
                .or_else(|| text("token").filter(|_| !has_flag)),
            token_file: text("tokenFile").filter(|_| !has_flag),
        };
    }

    fn set_user(&mut self, user: &Value, cluster: &Value, global: &Global) -> Result<()> {
        let text =
            |field: &str| Some(str_of(&user[field]).to_owned()).filter(|text| !text.is_empty());
        let has_flag = has_credential_flag(global);
        if !user["exec"].is_null() && !has_flag {
            // A broken file was reported when the command line was read.
            if let Some(preferences) = kuberc::preferences(global.kuberc.as_deref(), false)? {
                plugin_policy::check(&preferences, str_of(&user["exec"]["command"]))
                    .context("getting credentials")?;
            }
            let credential = exec::credential(&user["exec"], cluster, &self.server)?;
            if let Some(token) = credential.token {
                let source = TokenSource::Plugin {
                    exec: user["exec"].clone(),
                    cluster: cluster.clone(),
                    server: self.server.clone(),
                };
                let tokens = Tokens::new(source, token, credential.expires);
                self.tokens = Some(Arc::new(tokens));
                self.user.token = None;
            }
            let encode = |pem: String| BASE64_STANDARD.encode(pem);
            if let (Some(certificate), Some(key)) = (credential.certificate, credential.key) {
                self.user.client_certificate_data = Some(encode(certificate));
                self.user.client_key_data = Some(encode(key));
            }
        }
        if let (None, None, Some(file)) =
            (&self.tokens, &self.user.token, self.user.token_file.take())
        {
            self.tokens = Some(Arc::new(Tokens::of_file(file.into())?));
        }
        if !user["auth-provider"].is_null() {
            bail!("auth providers were removed from Kubernetes; use an exec credential plugin");
        }
        let username = global
            .username
            .clone()
            .or_else(|| text("username").filter(|_| global.token.is_none()));
        if let Some(username) = username {
            let password = global
                .password
                .clone()
                .or_else(|| text("password"))
                .unwrap_or_default();
            let basic = format!(
                "Basic {}",
                BASE64_STANDARD.encode(format!("{username}:{password}"))
            );
            self.user.token = None;
            self.tokens = None;
            self.put(header::AUTHORIZATION, &basic)?;
        }
        self.impersonate(user, global)
    }

    fn impersonate(&mut self, user: &Value, global: &Global) -> Result<()> {
        let Impersonation {
            name,
            uid,
            groups,
            extra,
        } = Impersonation::new(user, global);
        let Some(name) = name else {
            return Ok(());
        };
        self.put(HeaderName::from_static("impersonate-user"), &name)?;
        if let Some(uid) = uid {
            self.put(HeaderName::from_static("impersonate-uid"), &uid)?;
        }
        for group in groups {
            self.put(HeaderName::from_static("impersonate-group"), &group)?;
        }
        for (key, value) in extra {
            let header =
                format!("impersonate-extra-{}", crate::discovery::encode(&key)).to_lowercase();
            self.put(HeaderName::from_bytes(header.as_bytes())?, &value)?;
        }
        Ok(())
    }

    fn put(&mut self, name: HeaderName, value: &str) -> Result<()> {
        let mut value =
            HeaderValue::from_str(value).with_context(|| format!("{name}: not a header value"))?;
        value.set_sensitive(name == header::AUTHORIZATION);
        self.headers.append(name, value);
        Ok(())
    }

    /// A client; `upgrades`: over HTTP/1.1, whose connections can be upgraded.
    pub(crate) fn client(&self, upgrades: bool) -> Result<Client> {
        let files = Kubeconfig::default();
        let authority = files.authority(&self.cluster)?;
        if authority.is_some_and(|pem| !pem.windows(10).any(|part| part == b"-----BEGIN")) {
            bail!("unable to load root certificates: unable to parse bytes as PEM block");
        }
        let mut tls = files.tls(&self.cluster, &self.user)?;
        if self.cluster.insecure_skip_tls_verify != Some(true)
            && let Some(verifier) = Verifier::new(files.authorities(&self.cluster)?)
        {
            tls.dangerous().set_certificate_verifier(Arc::new(verifier));
        }
        if upgrades {
            tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        }
        let options = client::Options {
            token: self.user.token.clone(),
            server_name: self.cluster.tls_server_name.clone(),
            headers: self.headers.clone(),
            proxy: self.proxy.clone(),
            servers: self.cluster.servers(),
            allow_plaintext: true,
            ..client::Options::default()
        };
        Ok(client::https(&self.server, tls, options)?)
    }

    /// The source of tokens that expire, if there is one: their requests need
    /// [`Connection::authorize`].
    pub(crate) fn tokens(&self) -> Option<Arc<Tokens>> {
        self.tokens.clone()
    }

    /// Adds a token that is valid now.
    pub(crate) fn authorize<B>(&self, request: &mut http::Request<B>) -> Result<()> {
        if let Some(tokens) = &self.tokens {
            let headers = request.headers_mut();
            headers.insert(header::AUTHORIZATION, tokens.authorization()?);
        }
        Ok(())
    }

    /// Removes the path of the server's address, and returns it.
    pub(crate) fn remove_path(&mut self) -> String {
        let start = self.server.find("://").map_or(0, |at| at + 3);
        match self.server[start..].find('/') {
            Some(at) => self.server.split_off(start + at),
            None => String::new(),
        }
    }

    /// `HOST:PORT` of the server.
    pub(crate) fn host(&self) -> String {
        let rest = self
            .server
            .split_once("://")
            .map_or(self.server.as_str(), |(_, rest)| rest);
        rest.split('/').next().unwrap_or(rest).to_owned()
    }
}

fn has_credential_flag(global: &Global) -> bool {
    global.token.is_some() || global.username.is_some()
}

/// Whom to impersonate.
struct Impersonation {
    name: Option<String>,
    uid: Option<String>,
    groups: Vec<String>,
    extra: Vec<(String, String)>,
}

impl Impersonation {
    fn new(user: &Value, global: &Global) -> Self {
        let text =
            |field: &str| Some(str_of(&user[field]).to_owned()).filter(|text| !text.is_empty());
        let groups = match global.as_group.is_empty() {
            true => list(&user["as-groups"])
                .map(|group| str_of(group).to_owned())
                .collect(),
            false => global.as_group.clone(),
        };
        let mut extra: Vec<(String, String)> = Vec::new();
        for (key, values) in entries(&user["as-user-extra"]) {
            extra.extend(list(values).map(|value| (key.to_owned(), str_of(value).to_owned())));
        }
        for pair in &global.as_user_extra {
            // Entries that are not pairs are ignored, as upstream does.
            if let Some((key, value)) = pair.split_once('=') {
                extra.push((key.to_owned(), value.to_owned()));
            }
        }
        Self {
            name: global.as_user.clone().or_else(|| text("as")),
            uid: global.as_uid.clone().or_else(|| text("as-uid")),
            groups,
            extra,
        }
    }

    /// Whether something is asked for, but no user.
    fn is_of_nobody(&self) -> bool {
        let asks = self.uid.is_some() || !self.groups.is_empty() || !self.extra.is_empty();
        self.name.is_none() && asks
    }
}

/// The cluster or user named by a flag or the context.
fn part<'a>(
    config: &'a Value,
    section: &str,
    what: &str,
    flag: Option<&str>,
    named: &Value,
) -> Result<&'a Value> {
    let name = flag.unwrap_or_else(|| str_of(named));
    match entry(config, section, name) {
        Some(found) => Ok(found),
        None if name.is_empty() => Ok(&Value::Null),
        None if section == "clusters" => bail!("no server found for cluster \"{name}\""),
        None => bail!("{what} \"{name}\" does not exist"),
    }
}

/// The proxy for a server from the environment.
fn environment_proxy(server: &str) -> Option<String> {
    let variable = |name: &str| {
        let lower = std::env::var(name.to_lowercase()).ok();
        std::env::var(name)
            .ok()
            .or(lower)
            .filter(|value| !value.is_empty())
    };
    let (scheme, rest) = server.split_once("://")?;
    let authority = rest.split('/').next().unwrap_or(rest);
    let host = match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or(v6),
        None => authority.split(':').next().unwrap_or(authority),
    };
    let proxy = variable(if scheme == "https" {
        "HTTPS_PROXY"
    } else {
        "HTTP_PROXY"
    })?;
    let is_local = host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback());
    if is_local || is_excluded(host, &variable("NO_PROXY").unwrap_or_default()) {
        return None;
    }
    Some(if proxy.contains("://") {
        proxy
    } else {
        format!("http://{proxy}")
    })
}

fn is_excluded(host: &str, list: &str) -> bool {
    list.split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .any(|entry| {
            let suffix = entry.trim_start_matches("*.").trim_start_matches('.');
            entry == "*"
                || host == suffix
                || host.ends_with(&format!(".{suffix}"))
                || in_network(host, entry)
        })
}

/// Whether an address is in `10.0.0.0/8`.
fn in_network(host: &str, network: &str) -> bool {
    let Some((base, length)) = network.split_once('/') else {
        return false;
    };
    let (Ok(host), Ok(base), Ok(length)) = (
        host.parse::<std::net::Ipv4Addr>(),
        base.parse::<std::net::Ipv4Addr>(),
        length.parse::<u32>(),
    ) else {
        return false;
    };
    let mask = u32::MAX
        .checked_shl(32u32.saturating_sub(length))
        .unwrap_or(0);
    length <= 32 && u32::from(host) & mask == u32::from(base) & mask
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config() -> Value {
        json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "one", "user": "u", "namespace": "web"}}],
            "clusters": [
                {"name": "one", "cluster": {"server": "https://10.0.0.1:6443", "insecure-skip-tls-verify": true}},
                {"name": "two", "cluster": {"server": "https://two"}}],
            "users": [{"name": "u", "user": {"token": "abc", "as": "jane", "as-groups": ["dev"]}}]})
    }

    #[test]
    fn flags_win_over_the_context() {
        let plain = Connection::resolve(&config(), &Global::default()).unwrap();
        assert_eq!(
            (plain.server.as_str(), plain.namespace.as_deref()),
            ("https://10.0.0.1:6443", Some("web"))
        );
        assert_eq!(plain.user.token.as_deref(), Some("abc"));
        assert_eq!(plain.headers["impersonate-user"], "jane");
        assert_eq!(plain.host(), "10.0.0.1:6443");
        let mut below = Connection {
            server: "https://one:6443/k8s/a".into(),
            ..plain.clone()
        };
        assert_eq!(below.remove_path(), "/k8s/a");
        assert_eq!(
            (below.remove_path(), below.server),
            (String::new(), "https://one:6443".into())
        );
        let global = Global {
            cluster: Some("two".into()),
            token: Some("xyz".into()),
            as_user: Some("joe".into()),
            as_group: vec!["a".into(), "b".into()],
            ..Global::default()
        };
        let changed = Connection::resolve(&config(), &global).unwrap();
        assert_eq!(changed.server, "https://two");
        assert_eq!(changed.user.token.as_deref(), Some("xyz"));
        assert_eq!(changed.headers["impersonate-user"], "joe");
        assert_eq!(
            changed.headers.get_all("impersonate-group").iter().count(),
            2
        );
    }

    #[test]
    fn missing_contexts_clusters_and_users_are_named() {
        for (global, expected) in [
            (
                Global {
                    context: Some("x".into()),
                    ..Global::default()
                },
                "Error in configuration: context was not found for specified context: x",
            ),
            (
                Global {
                    cluster: Some("x".into()),
                    ..Global::default()
                },
                "no server found for cluster \"x\"",
            ),
            (
                Global {
                    user: Some("x".into()),
                    ..Global::default()
                },
                "auth info \"x\" does not exist",
            ),
        ] {
            assert_eq!(
                Connection::resolve(&config(), &global)
                    .unwrap_err()
                    .to_string(),
                expected
            );
        }
    }

    #[test]
    fn hosts_are_excluded_from_the_proxy_by_name_suffix_and_network() {
        for (host, list, excluded) in [
            ("a.example.com", "example.com", true),
            ("example.com", ".example.com", true),
            ("example.org", "example.com,*.net", false),
            ("10.1.2.3", "10.0.0.0/8", true),
            ("11.1.2.3", "10.0.0.0/8", false),
            ("x", "*", true),
        ] {
            assert_eq!(is_excluded(host, list), excluded, "{host} {list}");
        }
    }
}
