//! `kubectl rollout history` and `kubectl rollout undo`: revisions of deployments are replica sets,
//! those of daemon sets and stateful sets are ControllerRevisions.

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    api::{PatchType, Query},
    args::{DryRun, DryRunMode},
    json::{list, str_of},
    merge,
    output::{PrintFlags, tabwriter::Tabwriter},
    resources::Target,
    session::Session,
};

use super::{
    super::{apply::LAST_APPLIED, describe, report::Report},
    RolloutTargets,
};

const CAUSE: &str = "kubernetes.io/change-cause";

/// Flags of `rollout history`.
#[derive(Debug, Args)]
pub(crate) struct History {
    #[command(flatten)]
    which: RolloutTargets,
    /// See the details, including podTemplate, of this revision
    #[arg(long, default_value_t = 0)]
    revision: i64,
    #[command(flatten)]
    print: PrintFlags,
}

/// Flags of `rollout undo`.
#[derive(Debug, Args)]
pub(crate) struct Undo {
    #[command(flatten)]
    which: RolloutTargets,
    /// The revision to roll back to; 0 is the previous one
    #[arg(long, default_value_t = 0)]
    to_revision: i64,
    #[command(flatten)]
    print: PrintFlags,
    #[command(flatten)]
    dry_run: DryRun,
}

/// A revision: its number, its object, and its pod template.
struct Revision {
    number: i64,
    cause: String,
    keeper: Value,
    template: Value,
}

/// The revisions of an object, oldest first.
async fn revisions(
    session: &Session,
    target: &Target,
    object: &Value,
    role: &str,
) -> Result<Vec<Revision>> {
    let is_deployment = target.resource.kind == "Deployment";
    let plural = match target.resource.kind.as_str() {
        "Deployment" => "replicasets",
        "DaemonSet" | "StatefulSet" => "controllerrevisions",
        "Pod" | "ReplicaSet" | "ReplicationController" | "Job" | "CronJob" => {
            let role = if role == "history" {
                "history viewer"
            } else {
                role
            };
            bail!(
                "no {role} has been implemented for {:?}",
                target.resource.kind
            )
        }
        kind => bail!(
            "error retrieving {role} for {kind:?}, no visitor method exists for {{{} {kind}}}",
            target.resource.group
        ),
    };
    let path = format!("/apis/apps/v1/namespaces/{}/{plural}", target.namespace);
    let uid = &object["metadata"]["uid"];
    let mut found = Vec::new();
    for keeper in session.api.items(&path).await? {
        let is_owned =
            list(&keeper["metadata"]["ownerReferences"]).any(|owner| owner["uid"] == *uid);
        if !is_owned {
            continue;
        }
        let annotation =
            str_of(&keeper["metadata"]["annotations"]["deployment.kubernetes.io/revision"]);
        let (number, template) = match is_deployment {
            true => (
                annotation.parse().unwrap_or(0),
                keeper["spec"]["template"].clone(),
            ),
            false => {
                let merged = merge::apply(object, PatchType::Strategic, &keeper["data"])?;
                (
                    keeper["revision"].as_i64().unwrap_or(0),
                    merged["spec"]["template"].clone(),
                )
            }
        };
        let cause = str_of(&keeper["metadata"]["annotations"][CAUSE]).to_owned();
        found.push(Revision {
            number,
            cause,
            keeper,
            template,
        });
    }
    found.sort_by_key(|revision| revision.number);
    Ok(found)
}

impl History {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        if self.revision < 0 {
            bail!("revision must be a positive integer: {}", self.revision);
        }
        let printer = self.print.printer()?;
        for target in self.which.targets(session, true).await? {
            let object = target.get(session).await?;
            let revisions = revisions(session, &target, &object, "history").await?;
            if let Some(printer) = &printer {
                let wanted =
                    |revision: &&Revision| self.revision == 0 || revision.number == self.revision;
                // Objects with the template of each revision, as upstream rebuilds them; those of deployments are replica sets.
                let shown = |revision: &Revision| match target.resource.kind.as_str() {
                    "Deployment" => {
                        let mut shown = revision.keeper.clone();
                        // Items of lists have no kind.
                        shown["apiVersion"] = json!("apps/v1");
                        shown["kind"] = json!("ReplicaSet");
                        shown
                    }
                    _ => {
                        let mut shown = object.clone();
                        shown["spec"]["template"] = revision.template.clone();
                        shown
                    }
                };
                if self.revision > 0 && !revisions.iter().any(|one| wanted(&one)) {
                    bail!("unable to find the specified revision");
                }
                revisions
                    .iter()
                    .filter(wanted)
                    .try_for_each(|revision| printer.print(&shown(revision)))?;
                continue;
            }
            if self.revision > 0 {
                let found = revisions
                    .iter()
                    .find(|revision| revision.number == self.revision);
                let heading = format!("{} with revision #{}", target.display(), self.revision);
                if revisions.is_empty() {
                    println!("{heading}\nNo rollout history found.");
                    continue;
                }
                let found = found.context("unable to find the specified revision")?;
                let mut template = found.template.clone();
                if target.resource.kind == "Deployment" && !found.cause.is_empty() {
                    template["metadata"]["annotations"][CAUSE] = json!(found.cause);
                }
                println!("{heading}\n{}", describe::pod_template(&template));
                continue;
            }
            let mut lines = String::from("REVISION\tCHANGE-CAUSE\n");
            for revision in &revisions {
                let cause = if revision.cause.is_empty() {
                    "<none>"
                } else {
                    &revision.cause
                };
                lines.push_str(&format!("{}\t{cause}\n", revision.number));
            }
            match revisions.is_empty() {
                true => println!("{} \nNo rollout history found.", target.display()),
                false => println!(
                    "{} \n{}",
                    target.display(),
                    Tabwriter::for_descriptions().align(&lines)
                ),
            }
        }
        Ok(())
    }
}

impl Undo {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let dry_run = self.dry_run.mode()?;
        let report = Report::new(&self.print, dry_run)?;
        for target in self.which.targets(session, false).await? {
            let object = target.get(session).await?;
            if object["spec"]["paused"] == true {
                bail!(
                    "you cannot rollback a paused deployment; resume it first with 'kubectl rollout resume' and try again"
                );
            }
            if !object["metadata"]["annotations"][LAST_APPLIED].is_null() {
                eprintln!(
                    "Warning: resource {}/{} was previously managed with 'kubectl apply'. Rolling back will not update the \
                     {LAST_APPLIED} annotation, which may cause unexpected behavior on future 'kubectl apply' operations. \
                     Consider using 'kubectl apply' with your previous configuration file instead.",
                    target.resource.plural, target.name
                );
            }
            let known = revisions(session, &target, &object, "rollbacker").await?;
            if known.is_empty() {
                let kind = target.resource.kind.to_lowercase();
                bail!("no rollout history found for {kind} {:?}", target.name);
            }
            let found = self.pick(&known);
            // Deployments name themselves.
            let found = match target.resource.kind == "Deployment" && self.to_revision == 0 {
                true => found.map_err(|_| {
                    anyhow::anyhow!("no rollout history found for deployment {:?}", target.name)
                })?,
                false => found?,
            };
            if dry_run == DryRunMode::Client {
                println!(
                    "{} {}{}",
                    target.display(),
                    describe::pod_template(&found.template),
                    dry_run.suffix()
                );
                continue;
            }
            let current = without_hash(&object["spec"]["template"]);
            let wanted = without_hash(&found.template);
            if current == wanted {
                println!(
                    "{} skipped rollback (current template already matches revision {})",
                    target.display(),
                    found.number
                );
                continue;
            }
            let query: Query = dry_run.parameter().into_iter().collect();
            let patch = json!([{"op": "replace", "path": "/spec/template", "value": wanted}]);
            let after = session
                .api
                .patch(&target.path(), PatchType::Json, &patch, &query)
                .await?;
            report.print(&after, "rolled back")?;
        }
        Ok(())
    }

    fn pick<'a>(&self, known: &'a [Revision]) -> Result<&'a Revision> {
        match self.to_revision {
            0 => known
                .len()
                .checked_sub(2)
                .and_then(|at| known.get(at))
                .context("no last revision to roll back to"),
            wanted => known
                .iter()
                .find(|revision| revision.number == wanted)
                .with_context(|| format!("unable to find specified revision {wanted} in history")),
        }
    }
}

fn without_hash(template: &Value) -> Value {
    let mut template = template.clone();
    if let Some(labels) = template
        .pointer_mut("/metadata/labels")
        .and_then(Value::as_object_mut)
    {
        labels.remove("pod-template-hash");
    }
    if let Some(metadata) = template
        .pointer_mut("/metadata")
        .and_then(Value::as_object_mut)
    {
        metadata.retain(|_, value| !value.is_null());
    }
    template
}
