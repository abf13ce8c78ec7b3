//! `kubectl cordon`, `kubectl uncordon` and `kubectl drain`

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    api::{PatchType, Query, with_query},
    args::{DryRun, DryRunMode, Selection},
    error::{self, Plain, ServerError},
    json::{list, str_of},
    output::PrintFlags,
    resources::{self, Target},
    session::Session,
};

use super::{report::Report, wait};

/// The retry interval of an eviction that a budget forbids.
const RETRY: Duration = Duration::from_secs(5);

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

impl Cordon {
    async fn targets(&self, session: &Session, command: &str) -> Result<Vec<Target>> {
        if self.nodes.is_empty() && self.selector.is_none() {
            return Err(error::usage(
                command,
                format!("USAGE: {command} NODE [flags]"),
            ));
        }
        if !self.nodes.is_empty() && self.selector.is_some() {
            let both = "error: cannot specify both a node name and a --selector option";
            return Err(error::usage(command, both));
        }
        let mut words = vec!["nodes".to_owned()];
        words.extend(
            self.nodes
                .iter()
                .map(|name| name.rsplit('/').next().unwrap_or(name).to_owned()),
        );
        let selection = Selection {
            selector: self.selector.clone(),
            ..Selection::default()
        };
        resources::targets(session, &selection, &words, false).await
    }

    pub(crate) async fn run(self, session: &Session, unschedulable: bool) -> Result<()> {
        let dry_run = self.dry_run.mode()?;
        let command = if unschedulable { "cordon" } else { "uncordon" };
        for target in self.targets(session, command).await? {
            cordon(session, &target, unschedulable, dry_run).await?;
        }
        Ok(())
    }
}

async fn cordon(
    session: &Session,
    target: &Target,
    unschedulable: bool,
    dry_run: DryRunMode,
) -> Result<()> {
    let report = Report::new(&PrintFlags::default(), dry_run)?;
    let node = target.get(session).await?;
    let verb = if unschedulable {
        "cordoned"
    } else {
        "uncordoned"
    };
    if (node["spec"]["unschedulable"] == true) == unschedulable {
        return report.print(&node, &format!("already {verb}"));
    }
    if !dry_run.is_client() {
        let value = if unschedulable {
            json!(true)
        } else {
            Value::Null
        };
        let query: Query = dry_run.parameter().into_iter().collect();
        let patch = json!({"spec": {"unschedulable": value}});
        session
            .api
            .patch(&target.path(), PatchType::Strategic, &patch, &query)
            .await?;
    }
    report.print(&node, verb)
}

/// What happens to a pod of the node.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Evict,
    Skip,
    Warn(&'static str),
    Refuse(&'static str),
}

impl Drain {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let dry_run = self.nodes.dry_run.mode()?;
        if let Some(selector) = &self.pod_selector
            && crate::json::selector(selector).is_err()
        {
            bail!("--pod-selector=<pod_selector> must be a valid label selector");
        }
        let targets = self.nodes.targets(session, "drain").await?;
        for target in &targets {
            cordon(session, target, true, dry_run).await?;
        }
        let timeout = crate::duration::parse(&self.timeout)?;
        for target in &targets {
            let drained = async {
                match timeout.is_zero() {
                    true => self.drain(session, &target.name, dry_run).await,
                    false => {
                        tokio::time::timeout(timeout, self.drain(session, &target.name, dry_run))
                            .await
                            .with_context(|| format!("global timeout reached: {timeout:?}"))?
                    }
                }
            };
            if let Err(error) = drained.await {
                eprintln!(
                    "error: unable to drain node {:?} due to error: {error:#}, continuing command...",
                    target.name
                );
                eprintln!("There are pending nodes to be drained:\n {}", target.name);
                return Err(match error.is::<ServerError>() {
                    true => error,
                    false => Plain(format!("{error:#}")).into(),
                });
            }
            println!("{} drained{}", target.display(), dry_run.suffix());
        }
        Ok(())
    }

    async fn drain(&self, session: &Session, node: &str, dry_run: DryRunMode) -> Result<()> {
        let mut query: Query = vec![("fieldSelector", format!("spec.nodeName={node}"))];
        query.extend(
            self.pod_selector
                .iter()
                .map(|selector| ("labelSelector", selector.clone())),
        );
        let answer = session
            .api
            .list(
                &with_query("/api/v1/pods", &query),
                "application/json",
                self.chunk_size,
            )
            .await?;
        let (mut evicted, mut warnings, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for pod in list(&answer["items"]) {
            match self.decide(session, pod).await? {
                Verdict::Evict => evicted.push(pod.clone()),
                Verdict::Skip => {}
                Verdict::Warn(why) => {
                    warnings.push((why, pod_name(pod)));
                    if why != IS_DAEMON {
                        evicted.push(pod.clone());
                    }
                }
                Verdict::Refuse(why) => refused.push((why, pod_name(pod))),
            }
        }
        if !refused.is_empty() {
            bail!("{}", grouped("cannot delete ", &refused));
        }
        if !warnings.is_empty() {
            eprintln!("Warning: {}", grouped("", &warnings));
        }
        if dry_run.is_client() {
            evicted
                .iter()
                .for_each(|pod| println!("evicting pod {} (dry run)", pod_name(pod)));
            return Ok(());
        }
        for pod in &evicted {
            self.evict(session, pod, dry_run).await?;
        }
        if dry_run == DryRunMode::None {
            for pod in &evicted {
                self.until_gone(session, pod).await?;
            }
        }
        Ok(())
    }

    async fn decide(&self, session: &Session, pod: &Value) -> Result<Verdict> {
        let controller =
            list(&pod["metadata"]["ownerReferences"]).find(|owner| owner["controller"] == true);
        let is_daemon = match controller.filter(|owner| owner["kind"] == "DaemonSet") {
            None => None,
            Some(owner) => {
                let (namespace, name) = (
                    str_of(&pod["metadata"]["namespace"]),
                    str_of(&owner["name"]),
                );
                Some(
                    session
                        .api
                        .find(&format!(
                            "/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"
                        ))
                        .await?
                        .is_some(),
                )
            }
        };
        Ok(self.verdict(pod, controller.is_some(), is_daemon))
    }

    /// `daemon`: whether the daemon set of the pod still exists.
    fn verdict(&self, pod: &Value, is_managed: bool, daemon: Option<bool>) -> Verdict {
        if !pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_null() {
            return Verdict::Skip;
        }
        let is_finished = ["Succeeded", "Failed"].contains(&str_of(&pod["status"]["phase"]));
        match daemon {
            Some(true) if !is_finished && self.ignore_daemonsets => {
                return Verdict::Warn(IS_DAEMON);
            }
            Some(true) if !is_finished => {
                return Verdict::Refuse(
                    "DaemonSet-managed Pods (use --ignore-daemonsets to ignore)",
                );
            }
            Some(false) if !self.force => {
                return Verdict::Refuse(
                    "Pods that declare no controller (use --force to override)",
                );
            }
            _ => {}
        }
        let has_local_data =
            list(&pod["spec"]["volumes"]).any(|volume| volume["emptyDir"].is_object());
        if has_local_data && !is_finished && !self.delete_emptydir_data {
            return Verdict::Refuse(
                "Pods with local storage (use --delete-emptydir-data to override)",
            );
        }
        if !is_managed && !is_finished {
            return match self.force {
                true => Verdict::Warn("deleting Pods that declare no controller"),
                false => {
                    Verdict::Refuse("Pods that declare no controller (use --force to override)")
                }
            };
        }
        match has_local_data && !is_finished {
            true => Verdict::Warn("deleting Pods with local storage"),
            false => Verdict::Evict,
        }
    }

    async fn evict(&self, session: &Session, pod: &Value, dry_run: DryRunMode) -> Result<()> {
        let (namespace, name) = (
            str_of(&pod["metadata"]["namespace"]),
            str_of(&pod["metadata"]["name"]),
        );
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let mut options = json!({});
        if self.grace_period >= 0 {
            options["gracePeriodSeconds"] = json!(self.grace_period);
        }
        if dry_run == DryRunMode::Server {
            options["dryRun"] = json!(["All"]);
        }
        println!("evicting pod {namespace}/{name}{}", dry_run.suffix());
        if self.disable_eviction {
            return match session.api.delete(&path, &options).await {
                Err(error) if !error::is_not_found(&error) => Err(error),
                _ => Ok(()),
            };
        }
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options});
        loop {
            match session
                .api
                .create(&format!("{path}/eviction"), &eviction, &[])
                .await
            {
                Ok(_) => return Ok(()),
                Err(error) if error::is_not_found(&error) => return Ok(()),
                // A disruption budget does not allow it now.
                Err(error) if error::code_is(&error, 429) => {
                    eprintln!(
                        "error when evicting pods/{name:?} -n {namespace:?} (will retry after 5s): {}",
                        plain(&error)
                    );
                    tokio::time::sleep(RETRY).await;
                }
                Err(error) => bail!(
                    "error when evicting pods/{name:?} -n {namespace:?}: {}",
                    plain(&error)
                ),
            }
        }
    }

    async fn until_gone(&self, session: &Session, pod: &Value) -> Result<()> {
        let resource = session.discovery.resolve("pods").await?;
        let mut target = resources::target(
            session,
            resource,
            str_of(&pod["metadata"]["name"]).to_owned(),
        );
        target.namespace = str_of(&pod["metadata"]["namespace"]).to_owned();
        let uid = &pod["metadata"]["uid"];
        let now = jiff::Timestamp::now().as_second();
        wait::until(session, &target, |live| {
            live.is_none_or(|live| {
                let deleted = live["metadata"]["deletionTimestamp"]
                    .as_str()
                    .and_then(|text| text.parse::<jiff::Timestamp>().ok());
                let is_stuck = self.skip_wait_for_delete_timeout > 0
                    && deleted
                        .is_some_and(|at| now - at.as_second() > self.skip_wait_for_delete_timeout);
                live["metadata"]["uid"] != *uid || is_stuck
            })
        })
        .await?;
        println!("pod/{} evicted", target.name);
        Ok(())
    }
}

const IS_DAEMON: &str = "ignoring DaemonSet-managed Pods";

fn plain(error: &anyhow::Error) -> String {
    match error.downcast_ref::<error::ServerError>() {
        Some(error::ServerError(status)) => status.message.clone(),
        None => format!("{error:#}"),
    }
}

fn pod_name(pod: &Value) -> String {
    format!(
        "{}/{}",
        str_of(&pod["metadata"]["namespace"]),
        str_of(&pod["metadata"]["name"])
    )
}

/// `why: a, b; other: c`
fn grouped(prefix: &str, entries: &[(&'static str, String)]) -> String {
    let mut reasons: Vec<&str> = entries.iter().map(|(why, _)| *why).collect();
    reasons.sort_unstable();
    reasons.dedup();
    let part = |why: &str| {
        let names: Vec<&str> = entries
            .iter()
            .filter(|(other, _)| *other == why)
            .map(|(_, name)| name.as_str())
            .collect();
        format!("{prefix}{why}: {}", names.join(", "))
    };
    reasons.into_iter().map(part).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain() -> Drain {
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

    #[test]
    fn draining_unmanaged_pods_and_local_data_needs_flags() {
        let plain = json!({"spec": {}});
        let local = json!({"spec": {"volumes": [{"emptyDir": {}}]}});
        let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}});
        assert_eq!(drain().verdict(&plain, true, None), Verdict::Evict);
        assert!(matches!(
            drain().verdict(&plain, false, None),
            Verdict::Refuse(_)
        ));
        assert!(matches!(
            drain().verdict(&local, true, None),
            Verdict::Refuse(_)
        ));
        assert!(matches!(
            drain().verdict(&plain, true, Some(true)),
            Verdict::Refuse(_)
        ));
        assert_eq!(drain().verdict(&mirror, false, None), Verdict::Skip);
        let lax = Drain {
            force: true,
            ignore_daemonsets: true,
            delete_emptydir_data: true,
            ..drain()
        };
        assert!(matches!(lax.verdict(&plain, false, None), Verdict::Warn(_)));
        assert_eq!(
            lax.verdict(&plain, true, Some(true)),
            Verdict::Warn(IS_DAEMON)
        );
    }
}
