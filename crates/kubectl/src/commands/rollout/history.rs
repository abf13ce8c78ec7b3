//! `kubectl rollout history` and `kubectl rollout undo`: revisions of deployments are replica sets,
//! those of daemon sets and stateful sets are ControllerRevisions.

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::{
    api::{PatchType, Query},
    args::{DryRun, DryRunMode},
    error,
    json::{list, str_of},
    merge,
    output::{PrintFlags, Printer, tabwriter::Tabwriter},
    record::CHANGE_CAUSE,
    resources::Target,
    session::Session,
};

use super::{
    super::{apply::LAST_APPLIED, describe, report::Report},
    REVISION, RolloutTargets,
};

/// Annotations of a deployment that `undo` does not take from a ReplicaSet.
const OWN_ANNOTATIONS: [&str; 6] = [
    LAST_APPLIED,
    REVISION,
    "deployment.kubernetes.io/revision-history",
    "deployment.kubernetes.io/desired-replicas",
    "deployment.kubernetes.io/max-replicas",
    "deprecated.deployment.rollback.to",
];
const NO_HISTORY: &str = "No rollout history found.";
const NO_SUCH_REVISION: &str = "unable to find the specified revision";

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

/// The resource whose objects are the revisions of a kind.
fn revision_resource(target: &Target, role: &str) -> Result<&'static str> {
    let (group, kind) = (&target.resource.group, &target.resource.kind);
    let qualified = match group.as_str() {
        "" => kind.clone(),
        group => format!("{kind}.{group}"),
    };
    match (group.as_str(), kind.as_str()) {
        ("apps", "Deployment") => Ok("replicasets"),
        ("apps", "DaemonSet" | "StatefulSet") => Ok("controllerrevisions"),
        (
            "" | "apps" | "batch",
            "Pod" | "ReplicaSet" | "ReplicationController" | "Job" | "CronJob",
        ) => {
            let role = if role == "history" {
                "history viewer"
            } else {
                role
            };
            bail!("no {role} has been implemented for {qualified:?}")
        }
        _ => bail!(
            "error retrieving {role} for {qualified:?}, no visitor method exists for {{{group} {kind}}}"
        ),
    }
}

/// The revisions of an object, oldest first.
async fn revisions(
    session: &Session,
    target: &Target,
    object: &Value,
    plural: &str,
) -> Result<Vec<Revision>> {
    let path = format!("/apis/apps/v1/namespaces/{}/{plural}", target.namespace);
    let uid = &object["metadata"]["uid"];
    let mut found = Vec::new();
    for keeper in session.api.items(&path).await? {
        let is_owned = list(&keeper["metadata"]["ownerReferences"])
            .any(|owner| owner["uid"] == *uid && owner["controller"] == true);
        if is_owned {
            found.extend(revision(object, keeper)?);
        }
    }
    found.sort_by_key(|revision| revision.number);
    Ok(found)
}

/// A ReplicaSet or ControllerRevision as revision; none if its number cannot be read.
fn revision(object: &Value, keeper: Value) -> Result<Option<Revision>> {
    let (number, template) = match object["kind"] == "Deployment" {
        true => {
            let number = &keeper["metadata"]["annotations"][REVISION];
            let number = match number.as_str() {
                None => 0,
                Some(number) => match number.parse() {
                    Ok(number) => number,
                    Err(_) => return Ok(None),
                },
            };
            (number, keeper["spec"]["template"].clone())
        }
        false => {
            let merged = merge::apply(object, PatchType::Strategic, &keeper["data"])?;
            let number = keeper["revision"].as_i64().unwrap_or(0);
            (number, merged["spec"]["template"].clone())
        }
    };
    let cause = str_of(&keeper["metadata"]["annotations"][CHANGE_CAUSE]).to_owned();
    Ok(Some(Revision {
        number,
        cause,
        keeper,
        template,
    }))
}

impl History {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        self.which.require()?;
        if self.revision < 0 {
            bail!("revision must be a positive integer: {}", self.revision);
        }
        let printer = self.print.printer()?;
        let mut errors = Vec::new();
        for target in self.which.targets(session).await? {
            let shown = self.show(session, &target, printer.as_ref()).await;
            errors.extend(shown.err());
        }
        error::aggregate(errors)
    }

    async fn show(
        &self,
        session: &Session,
        target: &Target,
        printer: Option<&Printer>,
    ) -> Result<()> {
        let object = target.get(session).await?;
        let plural = revision_resource(target, "history")?;
        let revisions = revisions(session, target, &object, plural).await?;
        let wanted = |revision: &&Revision| revision.number == self.revision;
        if let Some(printer) = printer {
            if self.revision > 0 {
                let found = revisions.iter().find(wanted).context(NO_SUCH_REVISION)?;
                return printer.print(&as_object(&object, found));
            }
            return revisions
                .iter()
                .try_for_each(|revision| printer.print(&as_object(&object, revision)));
        }
        if self.revision == 0 {
            println!("{} \n{}", target.display(), overview(&revisions));
            return Ok(());
        }
        let heading = format!("{} with revision #{}", target.display(), self.revision);
        if revisions.is_empty() {
            println!("{heading}\n{NO_HISTORY}");
            return Ok(());
        }
        let found = revisions.iter().find(wanted).context(NO_SUCH_REVISION)?;
        let mut template = found.template.clone();
        if target.resource.kind == "Deployment" && !found.cause.is_empty() {
            template["metadata"]["annotations"][CHANGE_CAUSE] = json!(found.cause);
        }
        println!("{heading}\n{}", describe::pod_template(&template));
        Ok(())
    }
}

/// A revision as upstream prints it: a deployment's is its ReplicaSet, others are the workload with that template.
fn as_object(object: &Value, revision: &Revision) -> Value {
    if object["kind"] == "Deployment" {
        let mut shown = revision.keeper.clone();
        // Items of lists have no kind.
        shown["apiVersion"] = json!("apps/v1");
        shown["kind"] = json!("ReplicaSet");
        return shown;
    }
    let mut shown = object.clone();
    shown["spec"]["template"] = revision.template.clone();
    shown
}

fn overview(revisions: &[Revision]) -> String {
    if revisions.is_empty() {
        return NO_HISTORY.to_owned();
    }
    let mut lines = String::from("REVISION\tCHANGE-CAUSE\n");
    for revision in revisions {
        let cause = match revision.cause.as_str() {
            "" => "<none>",
            cause => cause,
        };
        lines.push_str(&format!("{}\t{cause}\n", revision.number));
    }
    Tabwriter::for_descriptions().align(&lines)
}

/// What `undo` does to an object.
enum Rollback {
    /// Only the template of the revision is shown (`--dry-run=client`).
    Show(String),
    /// The template is that of the revision already.
    Skip,
    /// This JSON patch restores the revision.
    Patch(Value),
}

impl Undo {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let dry_run = self.dry_run.mode()?;
        self.which.require()?;
        let report = Report::new(&self.print, dry_run)?;
        let mut errors = Vec::new();
        for target in self.which.targets(session).await? {
            let undone = self.undo(session, &target, dry_run, &report).await;
            errors.extend(undone.err());
        }
        error::aggregate(errors)
    }

    async fn undo(
        &self,
        session: &Session,
        target: &Target,
        dry_run: DryRunMode,
        report: &Report,
    ) -> Result<()> {
        let object = target.get(session).await?;
        if !object["metadata"]["annotations"][LAST_APPLIED].is_null() {
            eprintln!(
                "Warning: resource {}/{} was previously managed with 'kubectl apply'. Rolling back will not update the \
                 {LAST_APPLIED} annotation, which may cause unexpected behavior on future 'kubectl apply' operations. \
                 Consider using 'kubectl apply' with your previous configuration file instead.",
                target.resource.plural, target.name
            );
        }
        let plural = revision_resource(target, "rollbacker")?;
        if self.to_revision < 0 {
            bail!(no_such_revision(self.to_revision));
        }
        let known = revisions(session, target, &object, plural).await?;
        let result = match self.decide(&object, &known, dry_run)? {
            Rollback::Show(template) => template,
            Rollback::Skip => format!(
                "skipped rollback (current template already matches revision {})",
                self.to_revision
            ),
            Rollback::Patch(patch) => {
                let query: Query = dry_run.parameter().into_iter().collect();
                let path = target.path();
                let patched = session.api.patch(&path, PatchType::Json, &patch, &query);
                patched.await.map_err(|error| {
                    let message = error::message(&error);
                    anyhow::anyhow!("failed restoring revision {}: {message}", self.to_revision)
                })?;
                "rolled back".to_owned()
            }
        };
        // The object as it was read, as upstream prints it.
        report.print(&object, &result)
    }

    fn decide(&self, object: &Value, known: &[Revision], dry_run: DryRunMode) -> Result<Rollback> {
        let is_deployment = object["kind"] == "Deployment";
        let found = self.pick(object, known)?;
        if dry_run == DryRunMode::Client {
            let template = describe::pod_template(&found.template);
            return Ok(Rollback::Show(match is_deployment {
                true => template,
                false => format!("will roll back to {template}"),
            }));
        }
        if is_deployment && object["spec"]["paused"] == true {
            bail!(
                "you cannot rollback a paused deployment; resume it first with 'kubectl rollout resume' and try again"
            );
        }
        let wanted = without_hash(&found.template);
        if without_hash(&object["spec"]["template"]) == wanted {
            return Ok(Rollback::Skip);
        }
        let mut patch = vec![json!({"op": "replace", "path": "/spec/template", "value": wanted})];
        if is_deployment {
            let annotations = restored_annotations(object, &found.keeper);
            let path = "/metadata/annotations";
            patch.push(json!({"op": "replace", "path": path, "value": annotations}));
        }
        Ok(Rollback::Patch(Value::Array(patch)))
    }

    fn pick<'a>(&self, object: &Value, known: &'a [Revision]) -> Result<&'a Revision> {
        if self.to_revision > 0 {
            let found = known.iter().find(|one| one.number == self.to_revision);
            return found.with_context(|| no_such_revision(self.to_revision));
        }
        let previous = known.len().checked_sub(2).and_then(|at| known.get(at));
        previous.with_context(|| match object["kind"] == "Deployment" {
            true => {
                let name = str_of(&object["metadata"]["name"]);
                format!("no rollout history found for deployment {name:?}")
            }
            false => "no last revision to roll back to".to_owned(),
        })
    }
}

fn no_such_revision(number: i64) -> String {
    format!("unable to find specified revision {number} in history")
}

/// The annotations of a rolled back deployment: those of the revision's ReplicaSet, among them the
/// change cause, except the ones that are about the deployment itself.
fn restored_annotations(deployment: &Value, replica_set: &Value) -> Map<String, Value> {
    let annotations = |object: &Value| {
        let annotations = object["metadata"]["annotations"].as_object();
        annotations.cloned().unwrap_or_default()
    };
    let is_own = |key: &String| OWN_ANNOTATIONS.contains(&key.as_str());
    let mut restored = annotations(replica_set);
    restored.retain(|key, _| !is_own(key));
    let own = annotations(deployment);
    restored.extend(own.into_iter().filter(|(key, _)| is_own(key)));
    restored
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overview_has_a_line_for_each_revision() {
        let revision = |number, cause: &str| Revision {
            number,
            cause: cause.to_owned(),
            keeper: Value::Null,
            template: Value::Null,
        };
        let text = overview(&[revision(1, ""), revision(2, "kubectl set image")]);
        let expected = "REVISION  CHANGE-CAUSE\n1         <none>\n2         kubectl set image\n";
        assert_eq!(text, expected);
    }
}
