//! `kubectl rollout status`

use anyhow::{Result, bail};
use clap::Args;
use futures::StreamExt;
use serde_json::Value;

use crate::{
    json::{list, str_of},
    resources::Target,
    session::Session,
};

use super::{REVISION, RolloutTargets};

/// Flags of `rollout status`.
#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    which: RolloutTargets,
    /// Watch the status of the rollout until it's done
    #[arg(short, long, default_value_t = true, action = clap::ArgAction::Set)]
    watch: bool,
    /// How long to wait before ending watch; 0 never ends it
    #[arg(long, default_value = "0s", value_name = "DURATION")]
    timeout: String,
    /// Stop when the resource gets another revision than this; 0 is any
    #[arg(long, default_value_t = 0)]
    revision: i64,
}

impl Status {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let timeout = crate::duration::parse(&self.timeout)?;
        self.which.require()?;
        if self.revision < 0 {
            bail!("revision must be a positive integer: {}", self.revision);
        }
        for target in self.which.targets_or_message(session).await? {
            let follow = self.follow(session, &target);
            match timeout.is_zero() {
                true => follow.await?,
                false => tokio::time::timeout(timeout, follow)
                    .await
                    .map_err(|_| anyhow::anyhow!("timed out waiting for the condition"))??,
            }
        }
        Ok(())
    }

    /// Prints the state with each event until the rollout is done.
    async fn follow(&self, session: &Session, target: &Target) -> Result<()> {
        loop {
            let object = session.api.get(&target.path()).await?;
            if self.print_progress(&object)? || !self.watch {
                return Ok(());
            }
            let path = target.watch_path(str_of(&object["metadata"]["resourceVersion"]));
            let mut events = Box::pin(session.api.watch(&path, "application/json").await?);
            while let Some(Ok(event)) = events.next().await {
                match event["type"].as_str() {
                    Some("DELETED") => bail!("object has been deleted"),
                    Some("ERROR") => break,
                    Some("BOOKMARK") => {}
                    _ if self.print_progress(&event["object"])? => return Ok(()),
                    _ => {}
                }
            }
        }
    }

    fn print_progress(&self, object: &Value) -> Result<bool> {
        self.check_revision(object)?;
        let (line, done) = progress(object)?;
        println!("{line}");
        Ok(done)
    }

    fn check_revision(&self, object: &Value) -> Result<()> {
        if self.revision == 0 || object["kind"] != "Deployment" {
            return Ok(());
        }
        let running = object["metadata"]["annotations"][REVISION].as_str();
        let running: i64 = running.unwrap_or("0").parse().unwrap_or(0);
        if running != self.revision {
            bail!(
                "desired revision ({}) is different from the running revision ({running})",
                self.revision
            );
        }
        Ok(())
    }
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

/// The state of a rollout, in kubectl's words, and whether it is done.
fn progress(object: &Value) -> Result<(String, bool)> {
    let name = str_of(&object["metadata"]["name"]);
    let (spec, status) = (&object["spec"], &object["status"]);
    let observed =
        number(&status["observedGeneration"]) >= number(&object["metadata"]["generation"]);
    let unseen = |what: &str| {
        Ok((
            format!("Waiting for {what} spec update to be observed..."),
            false,
        ))
    };
    match str_of(&object["kind"]) {
        "Deployment" if !observed => unseen("deployment"),
        "Deployment" => deployment(name, spec, status),
        "DaemonSet" | "StatefulSet" if spec["updateStrategy"]["type"] == "OnDelete" => {
            bail!("rollout status is only available for RollingUpdate strategy type")
        }
        "DaemonSet" if !observed => unseen("daemon set"),
        "DaemonSet" => Ok(daemon_set(name, status)),
        "StatefulSet" if !observed || number(&status["observedGeneration"]) == 0 => {
            unseen("statefulset")
        }
        "StatefulSet" => Ok(stateful_set(spec, status)),
        other => {
            let version = str_of(&object["apiVersion"]).split_once('/');
            let group = version.map(|(group, _)| format!(".{group}"));
            let group = group.unwrap_or_default();
            bail!("no status viewer has been implemented for {other}{group}")
        }
    }
}

fn deployment(name: &str, spec: &Value, status: &Value) -> Result<(String, bool)> {
    let progressing = list(&status["conditions"]).find(|c| c["type"] == "Progressing");
    if progressing.is_some_and(|c| c["reason"] == "ProgressDeadlineExceeded") {
        bail!("deployment {name:?} exceeded its progress deadline");
    }
    let wanted = spec["replicas"].as_i64().unwrap_or(1);
    let (updated, total) = (
        number(&status["updatedReplicas"]),
        number(&status["replicas"]),
    );
    let available = number(&status["availableReplicas"]);
    let waiting = |what: String| {
        Ok((
            format!("Waiting for deployment {name:?} rollout to finish: {what}..."),
            false,
        ))
    };
    if updated < wanted {
        return waiting(format!(
            "{updated} out of {wanted} new replicas have been updated"
        ));
    }
    if total > updated {
        return waiting(format!(
            "{} old replicas are pending termination",
            total - updated
        ));
    }
    if available < updated {
        return waiting(format!(
            "{available} of {updated} updated replicas are available"
        ));
    }
    Ok((format!("deployment {name:?} successfully rolled out"), true))
}

fn daemon_set(name: &str, status: &Value) -> (String, bool) {
    let wanted = number(&status["desiredNumberScheduled"]);
    let (updated, available) = (
        number(&status["updatedNumberScheduled"]),
        number(&status["numberAvailable"]),
    );
    let waiting = |what: String| {
        (
            format!("Waiting for daemon set {name:?} rollout to finish: {what}..."),
            false,
        )
    };
    if updated < wanted {
        return waiting(format!(
            "{updated} out of {wanted} new pods have been updated"
        ));
    }
    if available < wanted {
        return waiting(format!(
            "{available} of {wanted} updated pods are available"
        ));
    }
    (format!("daemon set {name:?} successfully rolled out"), true)
}

fn stateful_set(spec: &Value, status: &Value) -> (String, bool) {
    let wanted = spec["replicas"].as_i64().unwrap_or(1);
    let (ready, current, updated) = (
        number(&status["readyReplicas"]),
        number(&status["currentReplicas"]),
        number(&status["updatedReplicas"]),
    );
    if ready < wanted {
        return (
            format!("Waiting for {} pods to be ready...", wanted - ready),
            false,
        );
    }
    let rolling_update = &spec["updateStrategy"]["rollingUpdate"];
    if rolling_update.is_object() {
        let due = wanted - number(&rolling_update["partition"]);
        return match updated < due {
            true => (
                format!(
                    "Waiting for partitioned roll out to finish: {updated} out of {due} new pods have been updated..."
                ),
                false,
            ),
            false => (
                format!("partitioned roll out complete: {updated} new pods have been updated..."),
                true,
            ),
        };
    }
    if status["updateRevision"] != status["currentRevision"] {
        let revision = str_of(&status["updateRevision"]);
        return (
            format!(
                "waiting for statefulset rolling update to complete {updated} pods at revision {revision}..."
            ),
            false,
        );
    }
    let revision = str_of(&status["currentRevision"]);
    (
        format!("statefulset rolling update complete {current} pods at revision {revision}..."),
        true,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_rollout_status_of_a_deployment_has_its_stages() {
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

    #[test]
    fn the_rollout_status_of_stateful_sets_and_daemon_sets_has_its_stages() {
        let set = |status: Value, partition: i64| {
            progress(&json!({"kind": "StatefulSet", "metadata": {"name": "db", "generation": 1}, "spec": {
                "replicas": 3, "updateStrategy": {"rollingUpdate": {"partition": partition}}}, "status": status}))
            .unwrap()
        };
        assert_eq!(
            set(json!({"observedGeneration": 1}), 0).0,
            "Waiting for 3 pods to be ready..."
        );
        let ready = json!({"observedGeneration": 1, "readyReplicas": 3, "updatedReplicas": 1, "updateRevision": "b"});
        assert!(set(ready.clone(), 2).1 && !set(ready, 0).1);
        let object = json!({"kind": "DaemonSet", "metadata": {"name": "d"}, "spec": {},
            "status": {"desiredNumberScheduled": 1, "updatedNumberScheduled": 1, "numberAvailable": 1}});
        assert_eq!(
            progress(&object).unwrap(),
            ("daemon set \"d\" successfully rolled out".to_owned(), true)
        );
    }
}
