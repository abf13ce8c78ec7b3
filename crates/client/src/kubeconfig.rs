//! Kubeconfig files, and clients for their contexts.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use serde::{Deserialize, Serialize};

use crate::{Error, servers::Servers, transport::Options};

/// The parts of a kubeconfig that clients need.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Kubeconfig {
    /// The default context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_context: Option<String>,
    /// The clusters.
    pub clusters: Vec<NamedCluster>,
    /// The users.
    pub users: Vec<NamedUser>,
    /// The contexts.
    pub contexts: Vec<NamedContext>,
    /// The base of relative file names.
    #[serde(skip)]
    pub directory: PathBuf,
}

/// A cluster and its name.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NamedCluster {
    /// Its name.
    pub name: String,
    /// The server.
    pub cluster: Cluster,
}

/// The server of a cluster and its TLS settings.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Cluster {
    /// `https://…`.
    pub server: String,
    /// The PEM file of the CA.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_authority: Option<String>,
    /// The CA as base64 of the PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_authority_data: Option<String>,
    /// The expected name in the server's certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_server_name: Option<String>,
    /// Whether to accept any certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insecure_skip_tls_verify: Option<bool>,
    /// Extensions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<Extension>,
}

/// A named extension of a cluster.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Extension {
    /// Its name.
    pub name: String,
    /// Its content.
    pub extension: serde_json::Value,
}

impl Cluster {
    /// The cluster's servers, if the extension lists several.
    pub fn servers(&self) -> Option<Servers> {
        let mut extensions = self.extensions.iter();
        let found = extensions.find(|one| one.name == pki::SERVERS_EXTENSION)?;
        let servers = found.extension["servers"].as_array()?;
        let servers: Vec<&str> = servers.iter().filter_map(|url| url.as_str()).collect();
        (!servers.is_empty()).then(|| Servers::new(&servers))
    }
}

/// A user and its name.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NamedUser {
    /// Its name in this file.
    pub name: String,
    /// The user.
    pub user: User,
}

/// A user's credentials.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct User {
    /// PEM file of the certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_certificate: Option<String>,
    /// The certificate as base64 of the PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_certificate_data: Option<String>,
    /// PEM file of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_key: Option<String>,
    /// The key as base64 of the PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_key_data: Option<String>,
    /// A bearer token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// A file with a bearer token.
    #[serde(rename = "tokenFile", skip_serializing_if = "Option::is_none")]
    pub token_file: Option<String>,
}

/// Secrets must not be logged.
impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User").finish_non_exhaustive()
    }
}

/// A context and its name.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NamedContext {
    /// Its name.
    pub name: String,
    /// The context.
    pub context: Context,
}

/// A cluster and a user.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Context {
    /// The cluster's name.
    pub cluster: String,
    /// The user's name.
    pub user: String,
    /// The default namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl Kubeconfig {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = read(path)?;
        let text = String::from_utf8(text)
            .map_err(|_| Error::Kubeconfig(format!("{} is not text", path.display())))?;
        let mut config = Self::parse(&text)?;
        config.directory = path.parent().map(Path::to_owned).unwrap_or_default();
        Ok(config)
    }

    /// Reads the files of a list such as `$KUBECONFIG` as one, as kubectl does: the first file that
    /// defines a name or the current context wins, and files that do not exist are skipped. A file
    /// whose name contains the separator is one file.
    pub fn read_list(list: &Path) -> Result<Self, Error> {
        let split: Vec<PathBuf> = std::env::split_paths(list).collect();
        let mut files = split.iter().filter(|path| path.exists());
        let Some(first) = files.next().filter(|_| split.len() > 1 && !list.exists()) else {
            return Self::read(list);
        };
        let mut merged = Self::read(first)?.with_absolute_files();
        for file in files {
            merged.add_missing(Self::read(file)?.with_absolute_files());
        }
        Ok(merged)
    }

    /// Adds what `other` defines and this one does not.
    fn add_missing(&mut self, other: Self) {
        fn add<T>(into: &mut Vec<T>, from: Vec<T>, name: impl Fn(&T) -> &str) {
            for one in from {
                if into.iter().all(|known| name(known) != name(&one)) {
                    into.push(one);
                }
            }
        }
        self.current_context = self.current_context.take().or(other.current_context);
        add(&mut self.clusters, other.clusters, |one| &one.name);
        add(&mut self.users, other.users, |one| &one.name);
        add(&mut self.contexts, other.contexts, |one| &one.name);
    }

    /// File names no longer depend on the directory of the kubeconfig.
    fn with_absolute_files(mut self) -> Self {
        let directory = std::mem::take(&mut self.directory);
        let clusters = self.clusters.iter_mut().map(|one| &mut one.cluster);
        let authorities = clusters.map(|one| &mut one.certificate_authority);
        let users = self.users.iter_mut().map(|one| &mut one.user);
        let credentials = users.flat_map(|one| {
            [
                &mut one.client_certificate,
                &mut one.client_key,
                &mut one.token_file,
            ]
        });
        for file in authorities.chain(credentials).flatten() {
            if !file.is_empty() {
                *file = directory.join(&*file).to_string_lossy().into_owned();
            }
        }
        self
    }

    /// Parses YAML or JSON.
    pub fn parse(text: &str) -> Result<Self, Error> {
        machinery::yaml::from_str(text).map_err(Error::Kubeconfig)
    }

    /// A client for the named context, or the current one. Must be called inside a Tokio runtime.
    pub fn client(&self, context: Option<&str>) -> Result<kube::Client, Error> {
        self.client_with(context, Vec::new())
    }

    /// The same over HTTP/1.1 only, for connections that are upgraded.
    pub fn upgrading_client(&self, context: Option<&str>) -> Result<kube::Client, Error> {
        self.client_with(context, vec![b"http/1.1".to_vec()])
    }

    fn client_with(
        &self,
        context: Option<&str>,
        protocols: Vec<Vec<u8>>,
    ) -> Result<kube::Client, Error> {
        let (context, cluster, user) = self.resolve(context)?;
        let options = Options {
            token: self.token(user)?,
            server_name: cluster.tls_server_name.clone(),
            namespace: context.namespace.clone(),
            servers: cluster.servers(),
            ..Options::default()
        };
        let mut tls = self.tls(cluster, user)?;
        tls.alpn_protocols = protocols;
        crate::https(&cluster.server, tls, options)
    }

    /// The parts of a context.
    pub fn resolve(&self, context: Option<&str>) -> Result<(&Context, &Cluster, &User), Error> {
        let missing = |what: &str, name: &str| Error::Kubeconfig(format!("no {what} {name:?}"));
        let name = context
            .or(self.current_context.as_deref())
            .ok_or_else(|| Error::Kubeconfig("no current-context".to_owned()))?;
        let context = self.contexts.iter().find(|context| context.name == name);
        let context = &context.ok_or_else(|| missing("context", name))?.context;
        let cluster = self
            .clusters
            .iter()
            .find(|cluster| cluster.name == context.cluster);
        let cluster = &cluster
            .ok_or_else(|| missing("cluster", &context.cluster))?
            .cluster;
        let user = self.users.iter().find(|user| user.name == context.user);
        let user = &user.ok_or_else(|| missing("user", &context.user))?.user;
        Ok((context, cluster, user))
    }

    /// The TLS settings for a server and an identity.
    pub fn tls(&self, cluster: &Cluster, user: &User) -> Result<ClientConfig, Error> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(tls_error)?;
        let builder = if cluster.insecure_skip_tls_verify == Some(true) {
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(pki::AnyServer(provider)))
        } else {
            builder.with_root_certificates(self.authorities(cluster)?)
        };
        let certificate = self.pem(&user.client_certificate_data, &user.client_certificate)?;
        let key = self.pem(&user.client_key_data, &user.client_key)?;
        let (Some(certificate), Some(key)) = (certificate, key) else {
            return Ok(builder.with_no_client_auth());
        };
        let chain = rustls_pemfile::certs(&mut &*certificate).collect::<Result<Vec<_>, _>>();
        let key = rustls_pemfile::private_key(&mut &*key).map_err(tls_error)?;
        let key = key.ok_or_else(|| Error::Tls("the client key is empty".to_owned()))?;
        builder
            .with_client_auth_cert(chain.map_err(tls_error)?, key)
            .map_err(tls_error)
    }

    /// The CA of a cluster as PEM, if it has one.
    pub fn authority(&self, cluster: &Cluster) -> Result<Option<Vec<u8>>, Error> {
        self.pem(
            &cluster.certificate_authority_data,
            &cluster.certificate_authority,
        )
    }

    /// The CAs that a cluster's server is verified with: its own, or those of this machine.
    pub fn authorities(&self, cluster: &Cluster) -> Result<RootCertStore, Error> {
        let mut roots = RootCertStore::empty();
        let Some(pem) = self.authority(cluster)? else {
            // Skip certificates of the bundle that we cannot parse.
            for certificate in system_authorities() {
                let _ = roots.add(certificate);
            }
            return Ok(roots);
        };
        for certificate in rustls_pemfile::certs(&mut &*pem) {
            roots
                .add(certificate.map_err(tls_error)?)
                .map_err(tls_error)?;
        }
        Ok(roots)
    }

    fn token(&self, user: &User) -> Result<Option<String>, Error> {
        match (&user.token, &user.token_file) {
            (Some(token), _) => Ok(Some(token.clone())),
            (None, Some(file)) => {
                let bytes = read(&self.directory.join(file))?;
                Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned()))
            }
            (None, None) => Ok(None),
        }
    }

    /// Data takes precedence over a file, as everywhere in Kubernetes.
    fn pem(&self, data: &Option<String>, file: &Option<String>) -> Result<Option<Vec<u8>>, Error> {
        match (data.as_deref().filter(|data| !data.is_empty()), file) {
            (Some(data), _) => {
                let compact: String = data.split_whitespace().collect();
                STANDARD.decode(compact).map(Some).map_err(tls_error)
            }
            (None, Some(file)) => read(&self.directory.join(file)).map(Some),
            (None, None) => Ok(None),
        }
    }
}

/// The CAs that this machine trusts: `SSL_CERT_FILE`, or the first existing bundle of the usual
/// distributions.
fn system_authorities() -> Vec<rustls::pki_types::CertificateDer<'static>> {
    const BUNDLES: &[&str] = &[
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
        "/etc/ssl/cert.pem",
    ];
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let mut places = named.into_iter().chain(BUNDLES.iter().map(PathBuf::from));
    let Some(pem) = places.find_map(|path| std::fs::read(path).ok()) else {
        return Vec::new();
    };
    rustls_pemfile::certs(&mut &*pem).flatten().collect()
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })
}

fn tls_error(error: impl std::fmt::Display) -> Error {
    Error::Tls(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
apiVersion: v1
kind: Config
current-context: here
preferences: {}
clusters:
- name: local
  cluster: {server: "https://127.0.0.1:6443", insecure-skip-tls-verify: true}
users:
- name: admin
  user: {token: abc}
contexts:
- name: here
  context: {cluster: local, user: admin, namespace: web}
- name: broken
  context: {cluster: gone, user: admin}
"#;

    #[test]
    fn a_context_names_its_server_identity_and_namespace() {
        let config = Kubeconfig::parse(FILE).unwrap();
        let (context, cluster, user) = config.resolve(None).unwrap();
        assert_eq!(context.namespace.as_deref(), Some("web"));
        assert_eq!(cluster.server, "https://127.0.0.1:6443");
        assert_eq!(config.token(user).unwrap().as_deref(), Some("abc"));
        assert!(config.tls(cluster, user).is_ok());
    }

    #[test]
    fn a_context_that_points_nowhere_is_an_error_that_names_it() {
        let config = Kubeconfig::parse(FILE).unwrap();
        let error = config.resolve(Some("broken")).unwrap_err().to_string();
        assert_eq!(error, "kubeconfig: no cluster \"gone\"");
    }

    #[test]
    fn of_several_files_the_first_one_that_defines_a_name_wins() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("sub/two"));
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(
            &one,
            "current-context: there\nusers: [{name: admin, user: {token: mine}}]",
        )
        .unwrap();
        let more = FILE.replace("{token: abc}", "{token: abc, tokenFile: unused}")
            + "- {name: there, context: {cluster: local, user: guest}}\n";
        let more = more.replace(
            "users:\n",
            "users:\n- {name: guest, user: {tokenFile: token}}\n",
        );
        std::fs::write(&two, more).unwrap();
        std::fs::write(dir.path().join("sub/token"), "guests").unwrap();
        let absent = dir.path().join("absent");
        let list = std::env::join_paths([&absent, &one, &two]).unwrap();
        let config = Kubeconfig::read_list(Path::new(&list)).unwrap();
        let (_, cluster, user) = config.resolve(None).unwrap();
        assert_eq!(cluster.server, "https://127.0.0.1:6443");
        assert_eq!(config.token(user).unwrap().as_deref(), Some("guests"));
        let (_, _, user) = config.resolve(Some("here")).unwrap();
        assert_eq!(config.token(user).unwrap().as_deref(), Some("mine"));
        let absent = Kubeconfig::read_list(&absent).unwrap_err().to_string();
        assert!(absent.contains("absent"), "{absent}");
    }
}
