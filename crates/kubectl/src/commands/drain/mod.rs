//! `kubectl cordon`, `kubectl uncordon` and `kubectl drain`

mod evict;
mod pods;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::report::Report;
use crate::{
    api::{PatchType, Query, with_query},
    args::{DryRun, DryRunMode, Selection},
    error::{self, ErrorList},
    json::list,
    output::PrintFlags,
    resources::{self, Target},
    session::Session,
};
use evict::Removal;
use pods::Sorted;

/// Flags of `cordon` and `uncordon`.
#[derive(Debug, Args)]
pub(crate) struct Cordon {
    /// Nodes
    nodes: Vec<String>,
    /// Selector (label query) to filter on
    #[arg(short = 'l', long, value_name = "QUERY")]
    selector: Option<String>,
    #[command(flatten)]
    dry_run: DryRun,
}

/// Flags of `drain`.
#[derive(Debug, Args)]
pub(crate) struct Drain {
    #[command(flatten)]
    nodes: Cordon,
    /// Continue even if there are pods that no controller manages
    #[arg(long)]
    force: bool,
    /// Ignore pods that daemon sets manage
    #[arg(long)]
    ignore_daemonsets: bool,
    /// Continue even if there are pods using emptyDir
    #[arg(long)]
    delete_emptydir_data: bool,
    /// Seconds given to each pod to terminate gracefully; negative leaves it to the pod
    #[arg(long, default_value_t = -1, value_name = "SECONDS")]
    grace_period: i64,
    /// How long to wait before giving up; 0 never gives up
    #[arg(long, default_value = "0s", value_name = "DURATION")]
    timeout: String,
    /// Label selector to filter pods on the node
    #[arg(long, value_name = "QUERY")]
    pod_selector: Option<String>,
    /// Delete pods even where eviction is supported
    #[arg(long)]
    disable_eviction: bool,
    /// Do not wait for pods that have been deleted for longer than this many seconds
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    skip_wait_for_delete_timeout: i64,
    /// Return large lists in chunks
    #[arg(long, default_value_t = 500)]
    chunk_size: i64,
}

/// A node, and the object as it was before.
struct Node {
    target: Target,
    object: Value,
}

impl Cordon {
    fn check(&self, command: &str) -> Result<()> {
        if self.nodes.is_empty() && self.selector.is_none() {
            let usage = format!("USAGE: {command} NODE [flags]");
            return Err(error::usage(command, usage));
        }
        if !self.nodes.is_empty() && self.selector().is_some() {
            let both = "error: cannot specify both a node name and a --selector option";
            return Err(error::usage(command, both));
        }
        Ok(())
    }

    fn selector(&self) -> Option<String> {
        self.selector
            .clone()
            .filter(|selector| !selector.is_empty())
    }

    /// The nodes, all of which exist.
    async fn nodes(&self, session: &Session) -> Result<Vec<Node>> {
        let selector = self.selector();
        let named = |name: &String| match name.contains('/') {
            true => name.clone(),
            false => format!("nodes/{name}"),
        };
        let mut words: Vec<String> = self.nodes.iter().map(named).collect();
        if selector.is_some() {
            words.push("nodes".to_owned());
        }
        if words.is_empty() {
            bail!(resources::NOTHING);
        }
        let selection = Selection {
            selector,
            ..Selection::default()
        };
        let mut nodes = Vec::new();
        for target in resources::targets(session, &selection, &words, false).await? {
            let object = target.get(session).await?;
            let resource = &target.resource;
            if resource.plural != "nodes" || !resource.group.is_empty() {
                // As Go prints a GroupVersionResource.
                let (group, version) = (&resource.group, &resource.version);
                let found = format!("{group}/{version}, Resource={}", resource.plural);
                bail!("error: expected resource of type node, got {found:?}");
            }
            nodes.push(Node { target, object });
        }
        Ok(nodes)
    }

    pub(crate) async fn run(self, session: &Session, unschedulable: bool) -> Result<()> {
        self.check(if unschedulable { "cordon" } else { "uncordon" })?;
        let dry_run = self.dry_run.mode()?;
        let nodes = self.nodes(session).await?;
        cordon(session, &nodes, unschedulable, dry_run).await
    }
}

/// Marks nodes. One that fails is reported, and is no error of the command.
async fn cordon(
    session: &Session,
    nodes: &[Node],
    unschedulable: bool,
    dry_run: DryRunMode,
) -> Result<()> {
    let report = Report::new(&PrintFlags::default(), dry_run)?;
    let command = if unschedulable { "cordon" } else { "uncordon" };
    for Node { target, object } in nodes {
        if (object["spec"]["unschedulable"] == true) == unschedulable {
            report.print(object, &format!("already {command}ed"))?;
            continue;
        }
        if let Err(error) = mark(session, target, unschedulable, dry_run).await {
            let message = error::message(&error);
            eprintln!(
                "error: unable to {command} node {:?}: {message}",
                target.name
            );
            continue;
        }
        report.print(object, &format!("{command}ed"))?;
    }
    Ok(())
}

async fn mark(
    session: &Session,
    target: &Target,
    unschedulable: bool,
    dry_run: DryRunMode,
) -> Result<()> {
    if dry_run.is_client() {
        return Ok(());
    }
    let value = match unschedulable {
        true => json!(true),
        false => Value::Null,
    };
    let query: Query = dry_run.parameter().into_iter().collect();
    let patch = json!({"spec": {"unschedulable": value}});
    let path = target.path();
    session
        .api
        .patch(&path, PatchType::Strategic, &patch, &query)
        .await?;
    Ok(())
}

impl Drain {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        self.nodes.check("drain")?;
        let dry_run = self.nodes.dry_run.mode()?;
        if let Some(selector) = &self.pod_selector
            && crate::json::selector(selector).is_err()
        {
            bail!("--pod-selector=<pod_selector> must be a valid label selector");
        }
        let timeout = crate::duration::parse(&self.timeout)?;
        let nodes = self.nodes.nodes(session).await?;
        cordon(session, &nodes, true, dry_run).await?;
        let (mut failed, mut pending) = (Vec::new(), Vec::new());
        for Node { target, .. } in &nodes {
            let removal = Removal {
                drain: &self,
                session,
                dry_run,
                timeout: Some(timeout).filter(|timeout| !timeout.is_zero()),
                deadline: (!timeout.is_zero()).then(|| Instant::now() + timeout),
            };
            match self.drain(&removal, &target.name).await {
                Ok(()) => println!("{} drained{}", target.display(), dry_run.suffix()),
                Err(error) => {
                    eprintln!(
                        "error: unable to drain node {:?} due to error: {}, continuing command...",
                        target.name,
                        error::message(&error)
                    );
                    pending.push(target.name.as_str());
                    failed.push(error);
                }
            }
        }
        if pending.is_empty() {
            return Ok(());
        }
        eprintln!("There are pending nodes to be drained:");
        pending.iter().for_each(|node| eprintln!(" {node}"));
        error::aggregate(failed)
    }

    async fn drain(&self, removal: &Removal<'_>, node: &str) -> Result<()> {
        let sorted = self.sorted(removal.session, node).await?;
        if let Some(refusal) = sorted.refusal() {
            return Err(refusal.into());
        }
        if let Some(warning) = sorted.warning() {
            eprintln!("Warning: {warning}");
        }
        if removal.dry_run.is_client() {
            for pod in &sorted.evicted {
                let (namespace, name) = (pods::namespace_of(pod), pods::name_of(pod));
                println!("evicting pod {namespace}/{name} (dry run)");
            }
            return Ok(());
        }
        let Err(error) = removal.run(&sorted.evicted).await else {
            return Ok(());
        };
        let left = self.sorted(removal.session, node).await?;
        if !left.evicted.is_empty() {
            eprintln!(
                "There are pending pods in node {node:?} when an error occurred: {}",
                error::message(&error)
            );
            let names = left.evicted.iter().map(pods::name_of);
            names.for_each(|name| eprintln!("pod/{name}"));
        }
        if let Some(refusal) = left.refusal() {
            eprint!(
                "Following errors occurred while getting the list of pods to delete:\n{}",
                refusal.in_one_line()
            );
        }
        Err(error)
    }

    /// The pods of a node.
    async fn sorted(&self, session: &Session, node: &str) -> Result<Sorted> {
        let mut query: Query = vec![("fieldSelector", format!("spec.nodeName={node}"))];
        let selector = self.pod_selector.iter();
        query.extend(selector.map(|selector| ("labelSelector", selector.clone())));
        let path = with_query("/api/v1/pods", &query);
        let chunk = self.chunk_size;
        let listed = session.api.list(&path, "application/json", chunk).await;
        let listed = listed.map_err(|error| ErrorList(vec![error]))?;
        let now = jiff::Timestamp::now().as_second();
        let mut sorted = Sorted::default();
        for pod in list(&listed["items"]) {
            let daemon = self.daemon(session, pod).await?;
            sorted.add(pod, self.verdict(pod, &daemon, now));
        }
        Ok(sorted)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(super) fn drain() -> Drain {
        Drain {
            nodes: Cordon {
                nodes: Vec::new(),
                selector: None,
                dry_run: DryRun::default(),
            },
            force: false,
            ignore_daemonsets: false,
            delete_emptydir_data: false,
            grace_period: -1,
            timeout: "0s".into(),
            pod_selector: None,
            disable_eviction: false,
            skip_wait_for_delete_timeout: 0,
            chunk_size: 500,
        }
    }
}
