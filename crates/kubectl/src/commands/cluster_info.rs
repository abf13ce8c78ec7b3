//! `kubectl cluster-info` and `kubectl cluster-info dump`

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    api::with_query,
    error,
    json::{list, sorted, str_of},
    output::PrintFlags,
    session::Session,
};

/// Flags of `cluster-info`.
#[derive(Debug, Args)]
pub(crate) struct ClusterInfo {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Dump relevant information for debugging and diagnosis
    Dump(Dump),
}

/// Flags of `cluster-info dump`.
#[derive(Debug, Args)]
struct Dump {
    /// Where to output the files; - is standard output
    #[arg(long, value_name = "DIR", default_value = "")]
    output_directory: String,
    /// Namespaces to dump, separated by commas
    #[arg(long, value_delimiter = ',')]
    namespaces: Vec<String>,
    /// If true, dump all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// How long to wait for the log of a container
    #[arg(long, default_value = "20s", value_name = "DURATION")]
    pod_running_timeout: String,
    #[command(flatten)]
    print: PrintFlags,
}

impl ClusterInfo {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        match self.command {
            Some(Command::Dump(dump)) => dump.run(session).await,
            None => print_addresses(session).await,
        }
    }
}

async fn print_addresses(session: &Session) -> Result<()> {
    let line = |name: &str, url: &str| println!("{name} is running at {url}");
    line("Kubernetes control plane", &session.connection.server);
    let selector = [(
        "labelSelector",
        "kubernetes.io/cluster-service=true".to_owned(),
    )];
    let path = with_query("/api/v1/namespaces/kube-system/services", &selector);
    for service in session.api.items(&path).await? {
        let (metadata, spec) = (&service["metadata"], &service["spec"]);
        let name = str_of(&metadata["name"]);
        let shown = match str_of(&metadata["labels"]["kubernetes.io/name"]) {
            "" => name,
            label => label,
        };
        let address = list(&service["status"]["loadBalancer"]["ingress"]).next();
        let url = match address {
            Some(ingress) => {
                let host = [&ingress["ip"], &ingress["hostname"]]
                    .into_iter()
                    .map(str_of)
                    .find(|host| !host.is_empty());
                let ports = list(&spec["ports"])
                    .map(|port| format!("http://{}:{}", host.unwrap_or_default(), port["port"]));
                ports.collect::<Vec<_>>().join(" ")
            }
            None => {
                let port = match list(&spec["ports"]).next() {
                    Some(port)
                        if list(&spec["ports"]).len() == 1 && str_of(&port["name"]).is_empty() =>
                    {
                        String::new()
                    }
                    Some(port) => format!(":{}", str_of(&port["name"])),
                    None => String::new(),
                };
                let server = session.connection.server.trim_end_matches('/');
                format!(
                    "{server}/api/v1/namespaces/{}/services/{name}{port}/proxy",
                    str_of(&metadata["namespace"])
                )
            }
        };
        line(shown, &url);
    }
    println!("\nTo further debug and diagnose cluster problems, use 'kubectl cluster-info dump'.");
    Ok(())
}

impl Dump {
    async fn run(mut self, session: &Session) -> Result<()> {
        if self.print.output.is_none() && self.print.template.is_none() {
            self.print.output = Some("json".to_owned());
        }
        let timeout = crate::duration::parse(&self.pod_running_timeout)?;
        if timeout.is_zero() {
            bail!("--pod-running-timeout must be higher than zero");
        }
        self.write(
            "nodes",
            &list_of(session, "/api/v1/nodes", "NodeList").await?,
        )?;
        let namespaces = match (
            self.all_namespaces,
            self.namespaces.iter().all(String::is_empty),
        ) {
            (true, _) => {
                let all = session.api.items("/api/v1/namespaces").await?;
                all.iter()
                    .map(|namespace| str_of(&namespace["metadata"]["name"]).to_owned())
                    .collect()
            }
            (false, false) => self.namespaces.clone(),
            (false, true) => vec!["kube-system".to_owned(), session.namespace.clone()],
        };
        for namespace in namespaces {
            self.dump(session, &namespace).await?;
        }
        if !self.output_directory.is_empty() && self.output_directory != "-" {
            println!("Cluster info dumped to {}", self.output_directory);
        }
        Ok(())
    }

    async fn dump(&self, session: &Session, namespace: &str) -> Result<()> {
        for (group, plural, kind) in [
            ("/api/v1", "events", "EventList"),
            (
                "/api/v1",
                "replicationcontrollers",
                "ReplicationControllerList",
            ),
            ("/api/v1", "services", "ServiceList"),
            ("/apis/apps/v1", "daemonsets", "DaemonSetList"),
            ("/apis/apps/v1", "deployments", "DeploymentList"),
            ("/apis/apps/v1", "replicasets", "ReplicaSetList"),
            ("/api/v1", "pods", "PodList"),
        ] {
            let objects = list_of(
                session,
                &format!("{group}/namespaces/{namespace}/{plural}"),
                kind,
            )
            .await?;
            let file = match plural {
                "replicationcontrollers" => "replication-controllers",
                plural => plural,
            };
            self.write(&format!("{namespace}/{file}"), &objects)?;
            if plural != "pods" {
                continue;
            }
            for pod in list(&objects["items"]) {
                self.put_logs(session, namespace, pod).await?;
            }
        }
        Ok(())
    }

    async fn put_logs(&self, session: &Session, namespace: &str, pod: &Value) -> Result<()> {
        let name = str_of(&pod["metadata"]["name"]);
        let spec = &pod["spec"];
        let mut text = String::new();
        for container in list(&spec["initContainers"]).chain(list(&spec["containers"])) {
            let container = str_of(&container["name"]);
            let path =
                format!("/api/v1/namespaces/{namespace}/pods/{name}/log?container={container}");
            let log = session.api.raw(http::Method::GET, &path, Vec::new()).await;
            let log = match log {
                Ok(log) => String::from_utf8_lossy(&log).into_owned(),
                Err(error) => format!("Request log error: {}\n", error::message(&error)),
            };
            let place = format!("logs for container {container} of pod {namespace}/{name}");
            text.push_str(&format!(
                "==== START {place} ====\n{log}==== END {place} ====\n"
            ));
        }
        self.put(&format!("{namespace}/{name}/logs.txt"), &text)
    }

    fn write(&self, name: &str, objects: &Value) -> Result<()> {
        let ending = match self.print.output.as_deref() {
            Some("json") => "json",
            Some("yaml") => "yaml",
            _ => "txt",
        };
        if self.print.output.as_deref() == Some("name") {
            let kind = str_of(&objects["kind"]);
            bail!("list types are not supported by name printing: *v1.{kind}");
        }
        let text = match self.print.printer()? {
            Some(printer) if ending == "json" => printer.render(&typed(objects))?,
            Some(printer) => printer.render(&sorted(objects))?,
            None => String::new(),
        };
        self.put(&format!("{name}.{ending}"), &text)
    }

    fn put(&self, name: &str, text: &str) -> Result<()> {
        if self.output_directory.is_empty() || self.output_directory == "-" {
            print!("{text}");
            return Ok(());
        }
        let path = PathBuf::from(&self.output_directory).join(name);
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// A list and its items in the key order of Go's types.
fn typed(objects: &Value) -> Value {
    let kind = str_of(&objects["kind"]).trim_end_matches("List");
    let item = |item: &Value| {
        let mut item = item.clone();
        item["kind"] = json!(kind);
        item["apiVersion"] = objects["apiVersion"].clone();
        let mut item = crate::merge::typed(&item);
        if let Some(fields) = item.as_object_mut() {
            fields.shift_remove("kind");
            fields.shift_remove("apiVersion");
        }
        item
    };
    let items: Vec<Value> = list(&objects["items"]).map(item).collect();
    json!({
        "kind": objects["kind"], "apiVersion": objects["apiVersion"],
        "metadata": objects["metadata"], "items": items})
}

async fn list_of(session: &Session, path: &str, kind: &str) -> Result<Value> {
    let mut answer = session.api.list(path, "application/json", 500).await?;
    answer["kind"] = json!(kind);
    Ok(answer)
}
