//! `kubectl delete`

use anyhow::{Result, bail};
use clap::Args;
use futures::StreamExt;
use serde_json::{Value, json};

use crate::{
    args::{DryRun, Output, Selection},
    discovery::Discovery,
    error,
    resources::{self, Target},
    session::Session,
};

/// Flags of `delete`.
#[derive(Debug, Args)]
pub struct Delete {
    /// TYPE NAME… or TYPE/NAME…
    resources: Vec<String>,
    #[command(flatten)]
    selection: Selection,
    /// All objects of the type in the namespace
    #[arg(long)]
    all: bool,
    /// background, foreground or orphan
    #[arg(long, default_value = "background", num_args = 0..=1, default_missing_value = "background")]
    cascade: String,
    /// Seconds for a graceful end; negative leaves it to the object
    #[arg(long, default_value_t = -1, allow_negative_numbers = true)]
    grace_period: i64,
    /// Do not wait for a graceful end
    #[arg(long)]
    force: bool,
    /// A grace period of one second
    #[arg(long)]
    now: bool,
    /// Objects that do not exist are no error
    #[arg(long)]
    ignore_not_found: bool,
    /// Wait until the objects are gone
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    wait: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    dry_run: DryRun,
}

impl Delete {
    pub async fn run(self, session: &Session) -> Result<()> {
        let discovery = Discovery::load(&session.api).await?;
        let targets = resources::targets(
            session,
            &discovery,
            &self.selection,
            &self.resources,
            self.all,
        )
        .await?;
        if targets.is_empty() {
            println!("No resources found");
            return Ok(());
        }
        if self.force {
            eprintln!(
                "Warning: Immediate deletion does not wait for confirmation that the running resource \
                 has been terminated. The resource may continue to run on the cluster indefinitely."
            );
        }
        let options = self.options()?;
        let mut pending = Vec::new();
        let mut failure = None;
        for target in targets {
            match self.delete(session, &target, &options).await {
                Ok(answer) => pending.push((target, answer)),
                Err(error) if self.ignore_not_found && error::is_not_found(&error) => {}
                Err(error) => {
                    if let Some(earlier) = failure.replace(error) {
                        error::report(&earlier);
                    }
                }
            }
        }
        if self.wait && self.dry_run.dry_run == "none" {
            for (target, answer) in &pending {
                until_gone(session, target, answer).await?;
            }
        }
        failure.map_or(Ok(()), Err)
    }

    fn options(&self) -> Result<Value> {
        let policy = match self.cascade.as_str() {
            "background" | "true" => "Background",
            "foreground" => "Foreground",
            "orphan" | "false" => "Orphan",
            other => bail!(
                "invalid cascade value ({other}). Must be \"background\", \"foreground\", or \"orphan\""
            ),
        };
        let mut options = json!({"propagationPolicy": policy});
        let grace = match (self.force, self.now) {
            (true, _) if self.grace_period < 0 => 0,
            (_, true) => 1,
            _ => self.grace_period,
        };
        if grace >= 0 {
            options["gracePeriodSeconds"] = json!(grace);
        }
        if self.dry_run.dry_run == "server" {
            options["dryRun"] = json!(["All"]);
        }
        Ok(options)
    }

    async fn delete(&self, session: &Session, target: &Target, options: &Value) -> Result<Value> {
        let answer = if self.dry_run.is_client() {
            session.api.get(&target.path()).await?
        } else {
            session.api.delete(&target.path(), options).await?
        };
        let name = target.display();
        if self.output.output.as_deref() == Some("name") {
            println!("{name}");
            return Ok(answer);
        }
        let (kind, name) = name.split_once('/').unwrap_or((&name, ""));
        let deed = if self.force {
            "force deleted"
        } else {
            "deleted"
        };
        let place = if target.resource.namespaced {
            format!(" from {} namespace", target.namespace)
        } else {
            String::new()
        };
        println!("{kind} \"{name}\" {deed}{place}{}", self.dry_run.suffix());
        Ok(answer)
    }
}

/// Watches one object until it does not exist any more, or another has taken its name.
async fn until_gone(session: &Session, target: &Target, answer: &Value) -> Result<()> {
    let uid = [&answer["metadata"]["uid"], &answer["details"]["uid"]];
    let uid = uid
        .into_iter()
        .find_map(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    loop {
        let live = match session.api.get(&target.path()).await {
            Ok(live) => live,
            Err(error) if error::is_not_found(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        if !uid.is_empty() && live["metadata"]["uid"].as_str() != Some(&uid) {
            return Ok(());
        }
        let version = live["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default();
        let path = format!(
            "{}?watch=true&timeoutSeconds=60&resourceVersion={version}&fieldSelector=metadata.name%3D{}",
            target.resource.collection(Some(&target.namespace)),
            target.name
        );
        let mut events = Box::pin(session.api.watch(&path, "application/json").await?);
        while let Some(Ok(event)) = events.next().await {
            match event["type"].as_str() {
                Some("DELETED") => return Ok(()),
                Some("ERROR") => break,
                _ => {}
            }
        }
    }
}
