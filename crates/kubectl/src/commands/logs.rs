//! `kubectl logs`

use std::io::Write;

use anyhow::{Context, Result, bail};
use clap::Args;
use futures::StreamExt;
use serde_json::Value;

use crate::{
    args::Selection,
    discovery::{Discovery, encode},
    resources,
    session::Session,
};

/// Flags of `logs`.
#[derive(Debug, Args)]
pub struct Logs {
    /// POD or TYPE/NAME
    resource: Option<String>,
    /// The container
    name: Option<String>,
    #[arg(short, long)]
    container: Option<String>,
    /// Only pods whose labels match
    #[arg(short = 'l', long, value_name = "QUERY")]
    selector: Option<String>,
    /// Every container of the pod
    #[arg(long)]
    all_containers: bool,
    /// Put pod and container before each line
    #[arg(long)]
    prefix: bool,
    /// Go on as the log grows
    #[arg(short, long)]
    follow: bool,
    /// The log of the container's previous run
    #[arg(short, long)]
    previous: bool,
    /// Put a time before each line
    #[arg(long)]
    timestamps: bool,
    /// Only the last lines
    #[arg(long, default_value_t = -1, allow_negative_numbers = true)]
    tail: i64,
    /// Only what is newer, such as 5s, 2m, 3h
    #[arg(long)]
    since: Option<String>,
    /// Only what is newer than this time (RFC 3339)
    #[arg(long)]
    since_time: Option<String>,
    /// At most this many bytes
    #[arg(long)]
    limit_bytes: Option<u64>,
}

impl Logs {
    pub async fn run(self, session: &Session) -> Result<()> {
        for pod in self.pods(session).await? {
            for container in self.containers(&pod)? {
                self.print(session, &pod, &container).await?;
            }
        }
        Ok(())
    }

    async fn pods(&self, session: &Session) -> Result<Vec<Value>> {
        if let Some(selector) = &self.selector {
            return pods_with(session, selector).await;
        }
        let word = self
            .resource
            .as_deref()
            .context("expected 'logs POD_NAME', 'logs TYPE/NAME' or -l")?;
        Ok(vec![pod_of(session, word).await?])
    }

    fn containers(&self, pod: &Value) -> Result<Vec<String>> {
        if let Some(name) = self.container.as_ref().or(self.name.as_ref()) {
            return Ok(vec![name.clone()]);
        }
        if self.all_containers {
            let lists = ["initContainers", "containers", "ephemeralContainers"];
            return Ok(lists
                .iter()
                .flat_map(|list| container_names(pod, list))
                .collect());
        }
        Ok(vec![default_container(pod)?])
    }

    async fn print(&self, session: &Session, pod: &Value, container: &str) -> Result<()> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (
            text(&pod["metadata"]["namespace"]),
            text(&pod["metadata"]["name"]),
        );
        let path = format!(
            "/api/v1/namespaces/{namespace}/pods/{name}/log?{}",
            self.query(container)?
        );
        let mut chunks = Box::pin(session.api.stream(&path, "*/*").await?);
        let prefix = format!("[pod/{name}/{container}] ");
        let mut out = std::io::stdout().lock();
        let mut at_start = true;
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk?;
            if self.prefix {
                for line in chunk.split_inclusive(|byte| *byte == b'\n') {
                    if at_start {
                        out.write_all(prefix.as_bytes())?;
                    }
                    out.write_all(line)?;
                    at_start = line.ends_with(b"\n");
                }
            } else {
                out.write_all(&chunk)?;
            }
            out.flush()?;
        }
        Ok(())
    }

    fn query(&self, container: &str) -> Result<String> {
        let mut parts = vec![format!("container={}", encode(container))];
        for (set, name) in [
            (self.follow, "follow"),
            (self.previous, "previous"),
            (self.timestamps, "timestamps"),
        ] {
            if set {
                parts.push(format!("{name}=true"));
            }
        }
        // Several pods at once: the last lines of each, unless told otherwise.
        let tail = if self.tail < 0 && self.selector.is_some() {
            10
        } else {
            self.tail
        };
        if tail >= 0 {
            parts.push(format!("tailLines={tail}"));
        }
        if let Some(since) = &self.since {
            parts.push(format!(
                "sinceSeconds={}",
                super::wait::duration(since)?.as_secs().max(1)
            ));
        }
        if let Some(time) = &self.since_time {
            parts.push(format!("sinceTime={}", encode(time)));
        }
        if let Some(bytes) = self.limit_bytes {
            parts.push(format!("limitBytes={bytes}"));
        }
        Ok(parts.join("&"))
    }
}

/// The pod that a word means: a pod's name, `pod/x`, or the first pod of `deployment/x`.
pub async fn pod_of(session: &Session, word: &str) -> Result<Value> {
    if !word.contains('/') {
        let path = format!(
            "/api/v1/namespaces/{}/pods/{}",
            session.namespace,
            encode(word)
        );
        return session.api.get(&path).await;
    }
    let discovery = Discovery::load(&session.api).await?;
    let words = [word.to_owned()];
    let targets =
        resources::targets(session, &discovery, &Selection::default(), &words, false).await?;
    let target = targets.first().context("no such resource")?;
    let object = session.api.get(&target.path()).await?;
    if target.resource.kind == "Pod" {
        return Ok(object);
    }
    let selector = &object["spec"]["selector"];
    let labels = selector.get("matchLabels").unwrap_or(selector);
    let query = crate::output::table::labels(labels);
    let pods = pods_with(session, &query).await?;
    let Some(first) = pods.first() else {
        bail!("no pods found for {word}")
    };
    if pods.len() > 1 {
        let name = first["metadata"]["name"].as_str().unwrap_or_default();
        eprintln!("Found {} pods, using pod/{name}", pods.len());
    }
    Ok(first.clone())
}

async fn pods_with(session: &Session, selector: &str) -> Result<Vec<Value>> {
    let path = format!(
        "/api/v1/namespaces/{}/pods?labelSelector={}",
        session.namespace,
        encode(selector)
    );
    let list = session.api.get(&path).await?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

fn container_names(pod: &Value, list: &str) -> Vec<String> {
    let containers = pod["spec"][list].as_array().into_iter().flatten();
    containers
        .filter_map(|container| Some(container["name"].as_str()?.to_owned()))
        .collect()
}

/// The container that is meant when none is named.
pub fn default_container(pod: &Value) -> Result<String> {
    let annotation = &pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"];
    let names = container_names(pod, "containers");
    if let Some(named) = annotation
        .as_str()
        .filter(|named| names.iter().any(|name| name == named))
    {
        return Ok(named.to_owned());
    }
    let first = names
        .first()
        .cloned()
        .context("the pod has no containers")?;
    if names.len() > 1 {
        eprintln!(
            "Defaulted container \"{first}\" out of: {}",
            names.join(", ")
        );
    }
    Ok(first)
}
