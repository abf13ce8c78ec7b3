//! `kubectl rollout status|restart|pause|resume|history|undo`

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use futures::StreamExt;
use serde_json::{Value, json};

use crate::{
    api::PatchType,
    args::Selection,
    discovery::Discovery,
    output::table::Table,
    resources::{self, Target},
    session::Session,
};

const REVISION: &str = "deployment.kubernetes.io/revision";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Rollout {
    /// Show the status of the rollout, and wait for its end
    Status(Status),
    /// Start all pods anew
    Restart(Which),
    /// Hold the rollout
    Pause(Which),
    /// Go on with a held rollout
    Resume(Which),
    /// View earlier revisions
    History(Which),
    /// Go back to an earlier revision
    Undo(Undo),
}

impl Rollout {
    /// Under which name writes are noted in `managedFields`; going back is kubectl's own, as upstream's is.
    pub fn field_manager(&self) -> &'static str {
        match self {
            Self::Undo(_) => "",
            _ => "kubectl-rollout",
        }
    }
}

#[derive(Debug, Args)]
pub struct Which {
    /// TYPE NAME or TYPE/NAME
    resources: Vec<String>,
    #[command(flatten)]
    selection: Selection,
}

#[derive(Debug, Args)]
pub struct Status {
    #[command(flatten)]
    which: Which,
    /// Wait for the end
    #[arg(short, long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    watch: bool,
    /// How long to wait, such as 90s or 2m; 0 is for ever
    #[arg(long, default_value = "0s")]
    timeout: String,
}

#[derive(Debug, Args)]
pub struct Undo {
    #[command(flatten)]
    which: Which,
    /// The revision to go back to; 0 is the one before
    #[arg(long, default_value_t = 0)]
    to_revision: u64,
}

impl Rollout {
    pub async fn run(self, session: &Session) -> Result<()> {
        match self {
            Self::Status(status) => status.run(session).await,
            Self::Restart(which) => {
                let now = jiff::Timestamp::now()
                    .strftime("%Y-%m-%dT%H:%M:%SZ")
                    .to_string();
                let annotations = json!({"kubectl.kubernetes.io/restartedAt": now});
                let patch =
                    json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
                which.patch(session, &patch, "restarted").await
            }
            Self::Pause(which) => {
                which
                    .patch(session, &json!({"spec": {"paused": true}}), "paused")
                    .await
            }
            Self::Resume(which) => {
                which
                    .patch(session, &json!({"spec": {"paused": null}}), "resumed")
                    .await
            }
            Self::History(which) => history(session, &which).await,
            Self::Undo(undo) => undo.run(session).await,
        }
    }
}

impl Which {
    async fn targets(&self, session: &Session) -> Result<Vec<Target>> {
        let discovery = Discovery::load(&session.api).await?;
        resources::targets(session, &discovery, &self.selection, &self.resources, false).await
    }

    async fn patch(&self, session: &Session, patch: &Value, deed: &str) -> Result<()> {
        for target in self.targets(session).await? {
            session
                .api
                .patch(&target.path(), PatchType::Merge, patch)
                .await?;
            println!("{} {deed}", target.display());
        }
        Ok(())
    }
}

impl Status {
    async fn run(self, session: &Session) -> Result<()> {
        let timeout = super::wait::duration(&self.timeout)?;
        for target in self.which.targets(session).await? {
            let follow = self.follow(session, &target);
            if timeout.is_zero() {
                follow.await?;
            } else {
                tokio::time::timeout(timeout, follow)
                    .await
                    .context("timed out waiting for the condition")??;
            }
        }
        Ok(())
    }

    /// Prints each new stage until the rollout is done.
    async fn follow(&self, session: &Session, target: &Target) -> Result<()> {
        let mut said = String::new();
        loop {
            let object = session.api.get(&target.path()).await?;
            let mut version = object["metadata"]["resourceVersion"]
                .as_str()
                .unwrap_or("")
                .to_owned();
            if self.say(&object, &mut said)? || !self.watch {
                return Ok(());
            }
            version.insert_str(0, "watch=true&timeoutSeconds=60&resourceVersion=");
            let path = format!(
                "{}?{version}&fieldSelector=metadata.name%3D{}",
                target.resource.collection(Some(&target.namespace)),
                target.name
            );
            let mut events = Box::pin(session.api.watch(&path, "application/json").await?);
            while let Some(Ok(event)) = events.next().await {
                match event["type"].as_str() {
                    Some("DELETED") => bail!("object has been deleted"),
                    Some("ERROR") => break,
                    _ if self.say(&event["object"], &mut said)? => return Ok(()),
                    _ => {}
                }
            }
        }
    }

    fn say(&self, object: &Value, said: &mut String) -> Result<bool> {
        let (line, done) = progress(object)?;
        if line != *said {
            println!("{line}");
            *said = line;
        }
        Ok(done)
    }
}

/// Where a rollout stands, in kubectl's words, and whether it is done.
fn progress(object: &Value) -> Result<(String, bool)> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let number = |value: &Value| value.as_i64().unwrap_or(0);
    let (spec, status) = (&object["spec"], &object["status"]);
    let kind = object["kind"].as_str().unwrap_or_default();
    let observed =
        number(&status["observedGeneration"]) >= number(&object["metadata"]["generation"]);
    match kind {
        "Deployment" if !observed => Ok((
            "Waiting for deployment spec update to be observed...".into(),
            false,
        )),
        "Deployment" => deployment_progress(name, spec, status),
        "StatefulSet" | "DaemonSet" if !observed => Ok((
            format!(
                "Waiting for {} spec update to be observed...",
                kind.to_lowercase()
            ),
            false,
        )),
        "DaemonSet" => Ok(daemon_set_progress(name, status)),
        "StatefulSet" => Ok(stateful_set_progress(spec, status)),
        other => bail!("no status viewer has been implemented for {other}"),
    }
}

fn deployment_progress(name: &str, spec: &Value, status: &Value) -> Result<(String, bool)> {
    let number = |value: &Value| value.as_i64().unwrap_or(0);
    let conditions = status["conditions"].as_array();
    let progressing = conditions
        .into_iter()
        .flatten()
        .find(|c| c["type"] == "Progressing");
    if progressing.is_some_and(|c| c["reason"] == "ProgressDeadlineExceeded") {
        bail!("deployment \"{name}\" exceeded its progress deadline");
    }
    let wanted = spec["replicas"].as_i64().unwrap_or(1);
    let (updated, total) = (
        number(&status["updatedReplicas"]),
        number(&status["replicas"]),
    );
    let available = number(&status["availableReplicas"]);
    let waiting =
        |what: String| format!("Waiting for deployment \"{name}\" rollout to finish: {what}...");
    if updated < wanted {
        let what = format!("{updated} out of {wanted} new replicas have been updated");
        return Ok((waiting(what), false));
    }
    if total > updated {
        return Ok((
            waiting(format!(
                "{} old replicas are pending termination",
                total - updated
            )),
            false,
        ));
    }
    if available < updated {
        let what = format!("{available} of {updated} updated replicas are available");
        return Ok((waiting(what), false));
    }
    Ok((
        format!("deployment \"{name}\" successfully rolled out"),
        true,
    ))
}

fn daemon_set_progress(name: &str, status: &Value) -> (String, bool) {
    let number = |field: &str| status[field].as_i64().unwrap_or(0);
    let wanted = number("desiredNumberScheduled");
    let (updated, available) = (number("updatedNumberScheduled"), number("numberAvailable"));
    if updated < wanted {
        let what = format!("{updated} out of {wanted} new pods have been updated");
        return (
            format!("Waiting for daemon set \"{name}\" rollout to finish: {what}..."),
            false,
        );
    }
    if available < wanted {
        let what = format!("{available} of {wanted} updated pods are available");
        return (
            format!("Waiting for daemon set \"{name}\" rollout to finish: {what}..."),
            false,
        );
    }
    (
        format!("daemon set \"{name}\" successfully rolled out"),
        true,
    )
}

fn stateful_set_progress(spec: &Value, status: &Value) -> (String, bool) {
    let number = |field: &str| status[field].as_i64().unwrap_or(0);
    let wanted = spec["replicas"].as_i64().unwrap_or(1);
    let (ready, current) = (number("readyReplicas"), number("currentReplicas"));
    if ready < wanted {
        return (
            format!("Waiting for {} pods to be ready...", wanted - ready),
            false,
        );
    }
    if status["updateRevision"] != status["currentRevision"] {
        let updated = number("updatedReplicas");
        let what = format!(
            "waiting for statefulset rolling update to complete {updated} pods at revision {}...",
            status["updateRevision"].as_str().unwrap_or_default()
        );
        return (what, false);
    }
    let revision = status["currentRevision"].as_str().unwrap_or_default();
    (
        format!("statefulset rolling update complete {current} pods at revision {revision}..."),
        true,
    )
}

/// The replica sets of a deployment with their revisions, oldest first.
async fn revisions(session: &Session, target: &Target) -> Result<Vec<(u64, Value)>> {
    if target.resource.kind != "Deployment" {
        bail!("only deployments keep their history in replica sets");
    }
    let deployment = session.api.get(&target.path()).await?;
    let path = format!("/apis/apps/v1/namespaces/{}/replicasets", target.namespace);
    let sets = session.api.get(&path).await?;
    let uid = deployment["metadata"]["uid"].clone();
    let is_owned = |set: &&Value| {
        let owners = set["metadata"]["ownerReferences"].as_array();
        owners
            .into_iter()
            .flatten()
            .any(|owner| owner["uid"] == uid)
    };
    let of = |set: &Value| {
        let revision = set["metadata"]["annotations"][REVISION]
            .as_str()?
            .parse()
            .ok()?;
        Some((revision, set.clone()))
    };
    let mut found: Vec<(u64, Value)> = sets["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(is_owned)
        .filter_map(of)
        .collect();
    found.sort_by_key(|(revision, _)| *revision);
    Ok(found)
}

async fn history(session: &Session, which: &Which) -> Result<()> {
    for target in which.targets(session).await? {
        let row = |(revision, set): (u64, Value)| {
            let cause = &set["metadata"]["annotations"]["kubernetes.io/change-cause"];
            vec![
                revision.to_string(),
                cause.as_str().unwrap_or("<none>").to_owned(),
            ]
        };
        let rows = revisions(session, &target)
            .await?
            .into_iter()
            .map(row)
            .collect();
        println!("{} ", target.display());
        let headings = vec!["REVISION".into(), "CHANGE-CAUSE".into()];
        println!("{}", Table { headings, rows }.render(false));
    }
    Ok(())
}

impl Undo {
    async fn run(self, session: &Session) -> Result<()> {
        for target in self.which.targets(session).await? {
            let known = revisions(session, &target).await?;
            let found = match self.to_revision {
                0 => known.len().checked_sub(2).and_then(|at| known.get(at)),
                wanted => known.iter().find(|(revision, _)| *revision == wanted),
            };
            let (_, set) = found
                .with_context(|| format!("no rollout history found for {}", target.display()))?;
            let mut template = set["spec"]["template"].clone();
            if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
                labels.remove("pod-template-hash");
            }
            let patch = json!([{"op": "replace", "path": "/spec/template", "value": template}]);
            session
                .api
                .patch(&target.path(), PatchType::Json, &patch)
                .await?;
            println!("{} rolled back", target.display());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deployment_tells_its_stages() {
        for (status, expected, done) in [
            (
                json!({}),
                "0 out of 3 new replicas have been updated",
                false,
            ),
            (
                json!({"updatedReplicas": 3, "replicas": 4}),
                "1 old replicas are pending",
                false,
            ),
            (
                json!({"updatedReplicas": 3, "replicas": 3}),
                "0 of 3 updated replicas are available",
                false,
            ),
            (
                json!({"updatedReplicas": 3, "replicas": 3, "availableReplicas": 3}),
                "successfully rolled out",
                true,
            ),
        ] {
            let object = json!({"kind": "Deployment", "metadata": {"name": "web"},
                "spec": {"replicas": 3}, "status": status});
            let (line, is_done) = progress(&object).unwrap();
            assert!(line.contains(expected), "{line}");
            assert_eq!(is_done, done);
        }
    }
}
