//! `kubectl create configmap` and `kubectl create secret`

use std::path::Path;

use anyhow::{Result, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{Common, Generated};

/// Where keys and values come from.
#[derive(Debug, Args)]
struct Sources {
    /// A file, KEY=FILE, or a directory whose files are keys
    #[arg(long, value_name = "[KEY=]FILE", value_delimiter = ',')]
    from_file: Vec<String>,
    /// A key and its value: KEY=VALUE
    #[arg(long, value_name = "KEY=VALUE")]
    from_literal: Vec<String>,
    /// A file with lines of KEY=VALUE
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    from_env_file: Vec<String>,
    /// Append a hash of the content to the name
    #[arg(long)]
    append_hash: bool,
}

/// Flags of `create configmap`.
#[derive(Debug, Args)]
pub(super) struct ConfigMap {
    name: String,
    #[command(flatten)]
    sources: Sources,
    #[command(flatten)]
    pub common: Common,
}

/// The kinds of secrets.
#[derive(Debug, Subcommand)]
pub(super) enum Secret {
    /// Create a secret for use with a Docker registry
    DockerRegistry(DockerRegistry),
    /// Create a secret from a local file, directory, or literal value
    Generic(Generic),
    /// Create a TLS secret
    Tls(Tls),
}

/// Flags of `create secret generic`.
#[derive(Debug, Args)]
pub(super) struct Generic {
    name: String,
    #[command(flatten)]
    sources: Sources,
    /// The type of secret to create
    #[arg(long = "type", value_name = "TYPE")]
    secret_type: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Flags of `create secret docker-registry`.
#[derive(Debug, Args)]
pub(super) struct DockerRegistry {
    name: String,
    /// Username for Docker registry authentication
    #[arg(long)]
    docker_username: Option<String>,
    /// Password for Docker registry authentication
    #[arg(long)]
    docker_password: Option<String>,
    /// Email for Docker registry
    #[arg(long)]
    docker_email: Option<String>,
    /// Server location for Docker registry
    #[arg(long, default_value = "https://index.docker.io/v1/")]
    docker_server: String,
    /// A file with a Docker configuration
    #[arg(long, value_name = "[KEY=]FILE", value_delimiter = ',')]
    from_file: Vec<String>,
    /// Append a hash of the secret to its name
    #[arg(long)]
    append_hash: bool,
    #[command(flatten)]
    common: Common,
}

/// Flags of `create secret tls`.
#[derive(Debug, Args)]
pub(super) struct Tls {
    name: String,
    /// Path to PEM encoded public key certificate
    #[arg(long)]
    cert: Option<String>,
    /// Path to private key associated with given certificate
    #[arg(long)]
    key: Option<String>,
    /// Append a hash of the secret to its name
    #[arg(long)]
    append_hash: bool,
    #[command(flatten)]
    common: Common,
}

type Entries = Vec<(String, Vec<u8>)>;

/// What the keys are for, as errors name it.
enum Owner<'a> {
    ConfigMap(&'a str),
    Secret,
}

impl Owner<'_> {
    fn invalid(&self, key: &str, why: &[String]) -> anyhow::Error {
        match self {
            Self::ConfigMap(_) => anyhow::anyhow!(
                "{key:?} is not a valid key name for a ConfigMap: {}",
                why.join(",")
            ),
            Self::Secret => anyhow::anyhow!(
                "{key:?} is not valid key name for a Secret {}",
                why.join(";")
            ),
        }
    }

    fn duplicate(&self, key: &str, known: &[u8]) -> anyhow::Error {
        let field = match std::str::from_utf8(known) {
            Ok(_) => "Data",
            Err(_) => "BinaryData",
        };
        match self {
            Self::ConfigMap(name) => anyhow::anyhow!(
                "cannot add key {key:?}, another key by that name already exists in {field} for ConfigMap {name:?}"
            ),
            Self::Secret => {
                anyhow::anyhow!("cannot add key {key}, another key by that name already exists")
            }
        }
    }
}

impl Sources {
    fn read(&self, owner: &Owner<'_>) -> Result<Entries> {
        let has_others = !self.from_file.is_empty() || !self.from_literal.is_empty();
        if has_others && !self.from_env_file.is_empty() {
            bail!("from-env-file cannot be combined with from-file or from-literal");
        }
        let mut entries = Entries::new();
        for source in &self.from_file {
            add_all(&mut entries, file_entries(source)?, owner)?;
        }
        for literal in &self.from_literal {
            let Some((key, value)) = literal.split_once('=').filter(|(key, _)| !key.is_empty())
            else {
                bail!("invalid literal source {literal}, expected key=value");
            };
            add_all(
                &mut entries,
                vec![(key.to_owned(), value.as_bytes().to_owned())],
                owner,
            )?;
        }
        for file in &self.from_env_file {
            add_all(&mut entries, env_entries(file)?, owner)?;
        }
        entries.sort();
        Ok(entries)
    }
}

fn add_all(entries: &mut Entries, more: Entries, owner: &Owner<'_>) -> Result<()> {
    for (key, value) in more {
        let why = machinery::format::config_key(&key);
        if !why.is_empty() {
            return Err(owner.invalid(&key, &why));
        }
        if let Some((_, known)) = entries.iter().find(|(known, _)| *known == key) {
            return Err(owner.duplicate(&key, known));
        }
        entries.push((key, value));
    }
    Ok(())
}

/// `FILE`, `KEY=FILE`, or every file of a directory.
fn file_entries(source: &str) -> Result<Entries> {
    let (key, path) = match source.split_once('=') {
        None => (None, source),
        Some(("", path)) => bail!("key name for file path {path} missing"),
        Some((key, "")) => bail!("file path for key name {key} missing"),
        Some((_, path)) if path.contains('=') => {
            bail!("key names or file paths cannot contain '='")
        }
        Some((key, path)) => (Some(key), path),
    };
    let path = Path::new(path);
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| unreadable(&path.to_string_lossy(), &error))
    };
    let file_name = |path: &Path| {
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    if !path.is_dir() {
        let key = key.map_or_else(|| file_name(path), ToOwned::to_owned);
        return Ok(vec![(key, read(path)?)]);
    }
    if key.is_some() {
        bail!("cannot give a key name for a directory path");
    }
    let mut entries = Entries::new();
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        if path.is_file() {
            entries.push((file_name(&path), read(&path)?));
        }
    }
    entries.sort();
    Ok(entries)
}

fn unreadable(path: &str, error: &std::io::Error) -> anyhow::Error {
    anyhow::anyhow!("error reading {path}: {}", crate::error::io_reason(error))
}

/// Lines of `KEY=VALUE`; a key alone takes its value from the environment.
fn env_entries(file: &str) -> Result<Entries> {
    if Path::new(file).is_dir() {
        bail!("env config file cannot be a directory");
    }
    let text = std::fs::read_to_string(file).map_err(|error| unreadable(file, &error))?;
    let mut entries = Entries::new();
    for line in text.trim_start_matches('\u{feff}').lines() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = match line.split_once('=') {
            Some((key, value)) => (key, value.to_owned()),
            None => (line, std::env::var(line).unwrap_or_default()),
        };
        if let Some(why) = super::super::set::invalid_variable_name(key) {
            bail!("{key:?} is not a valid key name: {why}");
        }
        entries.push((key.to_owned(), value.into_bytes()));
    }
    Ok(entries)
}

fn encoded(entries: Entries) -> Value {
    let encode =
        |(key, bytes): (String, Vec<u8>)| (key, Value::String(BASE64_STANDARD.encode(bytes)));
    Value::Object(entries.into_iter().map(encode).collect())
}

impl ConfigMap {
    pub(super) fn generate(&self) -> Result<Generated> {
        let (data, binary) = split_text(self.sources.read(&Owner::ConfigMap(&self.name))?);
        let mut object =
            json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": self.name}});
        if !data.is_empty() {
            object["data"] = Value::Object(data);
        }
        if !binary.is_empty() {
            object["binaryData"] = Value::Object(binary);
        }
        if self.sources.append_hash {
            object["metadata"]["name"] =
                json!(format!("{}-{}", self.name, config_map_hash(&object)));
        }
        Ok(Generated::new(object, "configmap:"))
    }
}

/// Text values, and binary ones in base64.
fn split_text(entries: Vec<(String, Vec<u8>)>) -> (Map<String, Value>, Map<String, Value>) {
    let (mut data, mut binary) = (Map::new(), Map::new());
    for (key, bytes) in entries {
        match String::from_utf8(bytes) {
            Ok(text) => drop(data.insert(key, Value::String(text))),
            Err(error) => {
                let encoded = BASE64_STANDARD.encode(error.as_bytes());
                binary.insert(key, Value::String(encoded));
            }
        }
    }
    (data, binary)
}

/// The suffix of a config map's name, a hash of its content.
fn config_map_hash(object: &Value) -> String {
    let mut content = json!({
        "kind": "ConfigMap", "name": object["metadata"]["name"], "data": object["data"]});
    if let Some(binary) = object.get("binaryData") {
        content["binaryData"] = binary.clone();
    }
    content_hash(&content)
}

/// The same for a secret.
fn secret_hash(object: &Value) -> String {
    content_hash(&json!({
        "kind": "Secret", "type": object["type"].as_str().unwrap_or_default(),
        "name": object["metadata"]["name"], "data": object["data"]}))
}

/// The ten-character content hash in an object's name.
pub(crate) fn content_hash(content: &Value) -> String {
    let digest = Sha256::digest(crate::json::compact(content));
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let letter = |c: char| match c {
        '0' => 'g',
        '1' => 'h',
        '3' => 'k',
        'a' => 'm',
        'e' => 't',
        c => c,
    };
    hex.chars().take(10).map(letter).collect()
}

fn secret(name: &str, kind: &str, data: Value, append_hash: bool) -> Value {
    let mut object = json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": name}});
    if data.as_object().is_some_and(|data| !data.is_empty()) {
        object["data"] = data;
    }
    if !kind.is_empty() {
        object["type"] = json!(kind);
    }
    if append_hash {
        object["metadata"]["name"] = json!(format!("{name}-{}", secret_hash(&object)));
    }
    object
}

impl Secret {
    pub(super) fn generate(self) -> Result<(Generated, Common)> {
        let (object, common, noun) = match self {
            Self::Generic(one) => (one.object()?, one.common, "secret"),
            Self::DockerRegistry(one) => (one.object()?, one.common, "secret"),
            Self::Tls(one) => (one.object()?, one.common, "secret"),
        };
        Ok((Generated::new(object, noun), common))
    }
}

impl Generic {
    fn object(&self) -> Result<Value> {
        let data = encoded(self.sources.read(&Owner::Secret)?);
        let kind = self.secret_type.as_deref().unwrap_or_default();
        Ok(secret(&self.name, kind, data, self.sources.append_hash))
    }
}

impl DockerRegistry {
    fn object(&self) -> Result<Value> {
        const KEY: &str = ".dockerconfigjson";
        let mut entries = Entries::new();
        for source in &self.from_file {
            let source = match source.contains('=') {
                true => source.clone(),
                false => format!("{KEY}={source}"),
            };
            add_all(&mut entries, file_entries(&source)?, &Owner::Secret)?;
        }
        if entries.is_empty() {
            entries.push((KEY.to_owned(), self.config()?));
        }
        entries.sort();
        let data = encoded(entries);
        Ok(secret(
            &self.name,
            "kubernetes.io/dockerconfigjson",
            data,
            self.append_hash,
        ))
    }

    fn config(&self) -> Result<Vec<u8>> {
        let (Some(username), Some(password)) = (&self.docker_username, &self.docker_password)
        else {
            bail!(
                "either --from-file or the combination of --docker-username, --docker-password and --docker-server is required"
            );
        };
        let mut entry = json!({"username": username, "password": password});
        if let Some(email) = &self.docker_email {
            entry["email"] = json!(email);
        }
        entry["auth"] = json!(BASE64_STANDARD.encode(format!("{username}:{password}")));
        let config = json!({"auths": {self.docker_server.as_str(): entry}});
        Ok(crate::json::escape_html(config.to_string()).into_bytes())
    }
}

impl Tls {
    fn object(&self) -> Result<Value> {
        let (Some(certificate), Some(key)) = (&self.cert, &self.key) else {
            bail!("key and cert must be specified");
        };
        let read = |path: &str| {
            std::fs::read(path).map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => {
                    anyhow::anyhow!(
                        "Cannot read file {path}, open {path}: no such file or directory"
                    )
                }
                _ => error.into(),
            })
        };
        let (certificate, key) = (read(certificate)?, read(key)?);
        let has =
            |pem: &[u8], what: &str| String::from_utf8_lossy(pem).contains(&format!("{what}-----"));
        if !has(&certificate, "BEGIN CERTIFICATE") {
            bail!("tls: failed to find any PEM data in certificate input");
        }
        if !has(&key, "PRIVATE KEY") {
            bail!("tls: failed to find any PEM data in key input");
        }
        let data = encoded(vec![
            ("tls.crt".to_owned(), certificate),
            ("tls.key".to_owned(), key),
        ]);
        Ok(secret(
            &self.name,
            "kubernetes.io/tls",
            data,
            self.append_hash,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_upstream() {
        // From upstream's own tests of these hashes.
        for (object, expected) in [
            (json!({"metadata": {"name": ""}, "data": {}}), "42745tchd9"),
            (
                json!({"metadata": {"name": ""}, "data": {"one": ""}}),
                "9g67k2htb6",
            ),
            (
                json!({"metadata": {"name": ""}, "data": {"two": "2", "one": "", "three": "3"}}),
                "f5h7t85m9b",
            ),
        ] {
            assert_eq!(config_map_hash(&object), expected);
        }
    }

    #[test]
    fn keys_are_checked_and_given_once() {
        let sources = |file: &[&str], literal: &[&str]| Sources {
            from_file: file.iter().map(|text| (*text).to_owned()).collect(),
            from_literal: literal.iter().map(|text| (*text).to_owned()).collect(),
            from_env_file: Vec::new(),
            append_hash: false,
        };
        assert_eq!(
            sources(&[], &["a='b'", "c=d=e"])
                .read(&Owner::Secret)
                .unwrap()[0]
                .1,
            b"'b'"
        );
        for bad in [
            sources(&[], &["a"]),
            sources(&[], &["a=1", "a=2"]),
            sources(&[], &["a b=1"]),
            sources(&["=x"], &[]),
            sources(&["x="], &[]),
            sources(&["/nonexistent-file"], &[]),
        ] {
            assert!(bad.read(&Owner::Secret).is_err(), "{bad:?}");
        }
    }
}
