//! `kubectl create`: from a file, or a few kinds from flags.

use anyhow::{Context, Result, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::{
    args::{DryRun, Output},
    discovery::Discovery,
    manifest,
    output::{self, Format},
    resources::{Target, target_of},
    session::Session,
};

/// Flags of `create`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Create {
    /// Files or directories with manifests; - is standard input
    #[arg(short, long, value_name = "FILE")]
    filename: Vec<String>,
    /// Look into directories below the given one too
    #[arg(short = 'R', long)]
    recursive: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(subcommand)]
    what: Option<What>,
}

/// What can be made from flags alone.
#[derive(Debug, Subcommand)]
enum What {
    /// Create a deployment
    #[command(alias = "deploy")]
    Deployment(Deployment),
    /// Create a config map from files and literals
    #[command(alias = "cm")]
    Configmap(Data),
    /// Create a secret
    Secret {
        #[command(subcommand)]
        kind: Secret,
    },
    /// Create a namespace
    #[command(alias = "ns")]
    Namespace(Named),
    /// Create a service account
    #[command(alias = "sa")]
    Serviceaccount(Named),
    /// Create a service
    #[command(alias = "svc")]
    Service {
        #[command(subcommand)]
        kind: Service,
    },
}

#[derive(Debug, Args)]
struct Named {
    name: String,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    dry_run: DryRun,
}

#[derive(Debug, Args)]
struct Deployment {
    #[command(flatten)]
    named: Named,
    /// Image to run; may be given several times
    #[arg(long, required = true, value_delimiter = ',')]
    image: Vec<String>,
    /// How many pods
    #[arg(short, long, default_value_t = 1)]
    replicas: i32,
    /// Port that the container exposes
    #[arg(long)]
    port: Option<u16>,
    /// Command to run instead of the image's own
    #[arg(last = true)]
    command: Vec<String>,
}

#[derive(Debug, Args)]
struct Data {
    #[command(flatten)]
    named: Named,
    /// A key and its value: KEY=VALUE
    #[arg(long, value_name = "KEY=VALUE")]
    from_literal: Vec<String>,
    /// A file, or KEY=FILE
    #[arg(long, value_name = "[KEY=]FILE")]
    from_file: Vec<String>,
    /// Type of the secret
    #[arg(long = "type", hide = true)]
    secret_type: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Secret {
    /// Create a secret from files and literals
    Generic(Data),
}

#[derive(Debug, Subcommand)]
enum Service {
    /// With a cluster address
    Clusterip(Ports),
    /// With a port on every node
    Nodeport(Ports),
}

#[derive(Debug, Args)]
struct Ports {
    #[command(flatten)]
    named: Named,
    /// PORT[:TARGET-PORT], several separated by commas
    #[arg(long, value_delimiter = ',')]
    tcp: Vec<String>,
}

impl Create {
    pub async fn run(self, session: &Session) -> Result<()> {
        let Some(what) = self.what else {
            let objects = manifest::read(&self.filename, self.recursive)
                .context("must specify -f, or what to create")?;
            return create_all(session, objects, &self.output, &self.dry_run).await;
        };
        let (object, named) = what.object()?;
        create_generated(session, vec![object], &named.output, &named.dry_run).await
    }
}

/// Creates each object and says so.
pub async fn create_all(
    session: &Session,
    objects: Vec<Value>,
    output: &Output,
    dry_run: &DryRun,
) -> Result<()> {
    let discovery = Discovery::load(&session.api).await?;
    for object in objects {
        let target = target_of(session, &discovery, object)?;
        let created = create_one(session, &target, dry_run).await?;
        report(&created, "created", output, dry_run)?;
    }
    Ok(())
}

/// Creates objects that flags describe. What `--dry-run=client` shows of them has a namespace only if
/// one was named: the manifest is then good for any.
pub async fn create_generated(
    session: &Session,
    objects: Vec<Value>,
    output: &Output,
    dry_run: &DryRun,
) -> Result<()> {
    if dry_run.is_client() && !session.namespace_given {
        let mut objects = objects.iter();
        return objects.try_for_each(|object| report(object, "created", output, dry_run));
    }
    create_all(session, objects, output, dry_run).await
}

async fn create_one(session: &Session, target: &Target, dry_run: &DryRun) -> Result<Value> {
    let object = target.manifest.clone().unwrap_or_default();
    if dry_run.is_client() {
        return Ok(object);
    }
    let collection = target.resource.collection(Some(&target.namespace));
    session
        .api
        .create(&format!("{collection}{}", dry_run.query()), &object)
        .await
}

/// `deployment.apps/web created`, or the object in the asked-for form.
pub fn report(object: &Value, deed: &str, output: &Output, dry_run: &DryRun) -> Result<()> {
    match Format::parse(output.output.as_deref())? {
        Format::Table { .. } => println!("{} {deed}{}", output::name(object), dry_run.suffix()),
        format => format.print(object, false)?,
    }
    Ok(())
}

impl What {
    fn object(self) -> Result<(Value, Named)> {
        match self {
            Self::Deployment(deployment) => Ok((deployment.object(), deployment.named)),
            Self::Configmap(data) => Ok((data.config_map()?, data.named)),
            Self::Secret {
                kind: Secret::Generic(data),
            } => Ok((data.secret()?, data.named)),
            Self::Namespace(named) => Ok((bare("Namespace", &named.name), named)),
            Self::Serviceaccount(named) => Ok((bare("ServiceAccount", &named.name), named)),
            Self::Service {
                kind: Service::Clusterip(ports),
            } => Ok((ports.object("ClusterIP")?, ports.named)),
            Self::Service {
                kind: Service::Nodeport(ports),
            } => Ok((ports.object("NodePort")?, ports.named)),
        }
    }
}

fn bare(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}})
}

impl Deployment {
    fn object(&self) -> Value {
        let name = &self.named.name;
        let container = |image: &String| {
            let mut container = json!({"name": container_name(image), "image": image});
            if let Some(port) = self.port {
                container["ports"] = json!([{"containerPort": port}]);
            }
            if !self.command.is_empty() {
                container["command"] = json!(self.command);
            }
            container
        };
        let containers: Vec<Value> = self.image.iter().map(container).collect();
        let labels = json!({"app": name});
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "replicas": self.replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}}}})
    }
}

/// The last part of an image's name without tag and digest.
pub fn container_name(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    let last = last.split(['@', ':']).next().unwrap_or(last);
    let clean = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    last.chars()
        .map(clean)
        .collect::<String>()
        .trim_matches('-')
        .to_owned()
}

impl Data {
    fn entries(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let mut entries = Vec::new();
        for literal in &self.from_literal {
            let (key, value) = literal
                .split_once('=')
                .with_context(|| format!("invalid literal source {literal}, expected key=value"))?;
            entries.push((key.to_owned(), value.as_bytes().to_owned()));
        }
        for source in &self.from_file {
            entries.extend(file_entries(source)?);
        }
        Ok(entries)
    }

    fn config_map(&self) -> Result<Value> {
        let (mut data, mut binary) = (Map::new(), Map::new());
        for (key, bytes) in self.entries()? {
            match String::from_utf8(bytes) {
                Ok(text) => drop(data.insert(key, Value::String(text))),
                Err(error) => {
                    let encoded = BASE64_STANDARD.encode(error.as_bytes());
                    binary.insert(key, Value::String(encoded));
                }
            }
        }
        let mut object = bare("ConfigMap", &self.named.name);
        if !data.is_empty() {
            object["data"] = Value::Object(data);
        }
        if !binary.is_empty() {
            object["binaryData"] = Value::Object(binary);
        }
        Ok(object)
    }

    fn secret(&self) -> Result<Value> {
        let encode =
            |(key, bytes): (String, Vec<u8>)| (key, Value::String(BASE64_STANDARD.encode(bytes)));
        let data: Map<String, Value> = self.entries()?.into_iter().map(encode).collect();
        let mut object = bare("Secret", &self.named.name);
        object["data"] = Value::Object(data);
        if let Some(kind) = &self.secret_type {
            object["type"] = json!(kind);
        }
        Ok(object)
    }
}

/// `FILE`, `KEY=FILE`, or every file of a directory.
fn file_entries(source: &str) -> Result<Vec<(String, Vec<u8>)>> {
    let (key, path) = match source.split_once('=') {
        Some((key, path)) => (Some(key), path),
        None => (None, source),
    };
    let path = std::path::Path::new(path);
    let read = |path: &std::path::Path| {
        std::fs::read(path).with_context(|| format!("error reading {}", path.display()))
    };
    let file_name = |path: &std::path::Path| {
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
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        if path.is_file() {
            entries.push((file_name(&path), read(&path)?));
        }
    }
    entries.sort();
    Ok(entries)
}

impl Ports {
    fn object(&self, kind: &str) -> Result<Value> {
        let name = &self.named.name;
        let port = |text: &String| -> Result<Value> {
            let (port, target) = text.split_once(':').unwrap_or((text, text));
            let port: u16 = port
                .parse()
                .with_context(|| format!("invalid port {port:?}"))?;
            let target = target
                .parse::<u16>()
                .map_or_else(|_| json!(target), |n| json!(n));
            let name = text.replace(':', "-");
            Ok(json!({"name": name, "port": port, "protocol": "TCP", "targetPort": target}))
        };
        let ports = self.tcp.iter().map(port).collect::<Result<Vec<_>>>()?;
        if ports.is_empty() {
            bail!("at least one tcp port must be specified");
        }
        let mut object = bare("Service", name);
        object["metadata"]["labels"] = json!({"app": name});
        object["spec"] = json!({"type": kind, "selector": {"app": name}, "ports": ports});
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_named_after_their_images() {
        for (image, name) in [
            ("nginx", "nginx"),
            ("registry.example:5000/team/my_app:v1.2", "my-app"),
            ("hello@sha256:abc", "hello"),
        ] {
            assert_eq!(container_name(image), name);
        }
    }
}
