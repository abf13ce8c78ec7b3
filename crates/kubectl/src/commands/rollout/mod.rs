//! `kubectl rollout status|restart|pause|resume|history|undo`

mod history;
mod status;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    api::{PatchType, Query},
    args::{DryRunMode, FilesOrSelector},
    error,
    output::PrintFlags,
    resources::{self, Target},
    session::Session,
};

use super::report::Report;

const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";
/// The annotation with the revision of a deployment or of its ReplicaSet.
const REVISION: &str = "deployment.kubernetes.io/revision";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Rollout {
    /// View rollout history
    History(history::History),
    /// Mark the provided resource as paused
    Pause(Change),
    /// Restart a resource
    Restart(Change),
    /// Resume a paused resource
    Resume(Change),
    /// Show the status of the rollout
    Status(status::Status),
    /// Undo a previous rollout
    Undo(history::Undo),
}

impl Rollout {
    /// The field manager of writes; undo uses kubectl's default, as upstream.
    pub(crate) fn field_manager(&self) -> &'static str {
        match self {
            Self::Undo(_) => "",
            _ => "kubectl-rollout",
        }
    }

    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        match self {
            Self::History(command) => command.run(session).await,
            Self::Status(command) => command.run(session).await,
            Self::Undo(command) => command.run(session).await,
            Self::Pause(command) => command.run(session, RolloutAction::Pause).await,
            Self::Resume(command) => command.run(session, RolloutAction::Resume).await,
            Self::Restart(command) => command.run(session, RolloutAction::Restart).await,
        }
    }
}

/// Which objects a rollout command is about.
#[derive(Debug, Args)]
pub(super) struct RolloutTargets {
    /// TYPE NAME or TYPE/NAME
    resources: Vec<String>,
    #[command(flatten)]
    selection: FilesOrSelector,
}

impl RolloutTargets {
    fn require(&self) -> Result<()> {
        if self.resources.is_empty() && self.selection.files.is_empty() {
            bail!("required resource not specified");
        }
        Ok(())
    }

    /// The objects; types without names are all objects of the namespace.
    async fn targets(&self, session: &Session) -> Result<Vec<Target>> {
        self.require()?;
        let selection = (&self.selection).into();
        resources::targets(session, &selection, &self.resources, true).await
    }

    /// The same, with a message if there are none.
    async fn targets_or_message(&self, session: &Session) -> Result<Vec<Target>> {
        let targets = self.targets(session).await?;
        if targets.is_empty() {
            eprintln!("No resources found in {} namespace.", session.namespace);
        }
        Ok(targets)
    }
}

/// Flags of `pause`, `resume` and `restart`.
#[derive(Debug, Args)]
pub(crate) struct Change {
    #[command(flatten)]
    which: RolloutTargets,
    /// Name of the manager used to track field ownership
    #[arg(long, default_value = "kubectl-rollout", value_name = "NAME")]
    field_manager: String,
    #[command(flatten)]
    print: PrintFlags,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RolloutAction {
    Pause,
    Resume,
    Restart,
}

impl Change {
    async fn run(self, session: &Session, deed: RolloutAction) -> Result<()> {
        self.which.require()?;
        let report = Report::new(&self.print, DryRunMode::None)?;
        let query: Query = vec![("fieldManager", self.field_manager.clone())];
        let now = jiff::Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%SZ")
            .to_string();
        let mut errors = Vec::new();
        for target in self.which.targets_or_message(session).await? {
            let changed = async {
                let object = target.get(session).await?;
                let patch = decide(&target, &object, deed, &now)?;
                let path = target.path();
                let patched = session
                    .api
                    .patch(&path, PatchType::Strategic, &patch, &query);
                let after = patched.await.map_err(|error| {
                    anyhow::anyhow!("failed to patch: {}", error::message(&error))
                })?;
                report.print(&after, past(deed))
            };
            errors.extend(changed.await.err());
        }
        error::aggregate(errors)
    }
}

fn past(deed: RolloutAction) -> &'static str {
    match deed {
        RolloutAction::Pause => "paused",
        RolloutAction::Resume => "resumed",
        RolloutAction::Restart => "restarted",
    }
}

/// The patch, or why there is none.
fn decide(target: &Target, object: &Value, deed: RolloutAction, now: &str) -> Result<Value> {
    let kind = target.resource.kind.as_str();
    let resource = target.resource.qualified_plural();
    let is_paused = object["spec"]["paused"] == true;
    match (deed, kind) {
        (RolloutAction::Pause | RolloutAction::Resume, "Deployment") => {
            let wants_pause = deed == RolloutAction::Pause;
            if is_paused == wants_pause {
                let state = if is_paused {
                    "already paused"
                } else {
                    "not paused"
                };
                bail!("error: {resource} {:?} is {state}", target.name);
            }
            Ok(json!({"spec": {"paused": if wants_pause { json!(true) } else { Value::Null }}}))
        }
        (RolloutAction::Pause, _) => bail!(
            "error: {resource} {:?} pausing is not supported",
            target.name
        ),
        (RolloutAction::Resume, _) => {
            bail!(
                "error: {resource} {:?} resuming is not supported",
                target.name
            )
        }
        (RolloutAction::Restart, "Deployment" | "DaemonSet" | "StatefulSet") => {
            if is_paused {
                bail!(
                    "error: {resource} {:?} can't restart paused deployment (run rollout resume first)",
                    target.name
                );
            }
            if object["spec"]["template"]["metadata"]["annotations"][RESTARTED_AT] == now {
                bail!(
                    "failed to create patch for {}: if restart has already been triggered within the past second, please \
                     wait before attempting to trigger another",
                    target.name
                );
            }
            let annotations = json!({RESTARTED_AT: now});
            Ok(json!({"spec": {"template": {"metadata": {"annotations": annotations}}}}))
        }
        (RolloutAction::Restart, _) => {
            bail!(
                "error: {resource} {:?} restarting is not supported",
                target.name
            )
        }
    }
}
