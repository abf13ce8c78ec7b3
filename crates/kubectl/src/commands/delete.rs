//! `kubectl delete`

use std::io::Write;

use anyhow::{Result, bail};
use clap::Args;
use futures::StreamExt;
use http::Method;
use serde_json::{Value, json};

use crate::{
    args::{DryRun, DryRunMode, Selection},
    error,
    json::str_of,
    resources::{self, Target},
    session::Session,
};

/// Flags of `delete`.
#[derive(Debug, Args)]
pub(crate) struct Delete {
    /// TYPE NAME… or TYPE/NAME…
    resources: Vec<String>,
    #[command(flatten)]
    selection: Selection,
    /// Delete all resources, in the namespace of the specified resource types
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    how: DeleteFlags,
    /// Signal for immediate shutdown: a grace period of one second
    #[arg(long)]
    now: bool,
    /// Treat "resource not found" as a successful delete
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    ignore_not_found: Option<bool>,
    /// Ask before deleting
    #[arg(short, long)]
    interactive: bool,
    /// Output mode: only name is supported
    #[arg(short, long, value_name = "MODE")]
    output: Option<String>,
    /// Raw URI to DELETE
    #[arg(long, value_name = "URI")]
    raw: Option<String>,
    #[command(flatten)]
    dry_run: DryRun,
}

/// How objects are deleted; `replace` and `apply` have these flags too.
#[derive(Debug, Clone, Args)]
pub(super) struct DeleteFlags {
    /// background, orphan or foreground: what happens to dependents
    #[arg(long, default_value = "background", num_args = 0..=1, require_equals = true, default_missing_value = "background")]
    cascade: String,
    /// Seconds given to the resource to terminate gracefully; negative leaves it to the object
    #[arg(long, default_value_t = -1, value_name = "SECONDS")]
    pub grace_period: i64,
    /// Remove resources from the API at once and bypass graceful deletion
    #[arg(long)]
    pub force: bool,
    /// Wait for the objects to be gone before returning; only delete does by default
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    wait: Option<bool>,
    /// How long to wait before giving up on a delete; 0 is as long as it takes
    #[arg(long, default_value = "0s", value_name = "DURATION")]
    timeout: String,
}

impl DeleteFlags {
    /// What happens to dependents, as the API names it.
    pub(super) fn propagation_policy(&self) -> Result<&'static str> {
        Ok(match self.cascade.as_str() {
            "background" => "Background",
            "true" => {
                warn_of_cascade("true", "background");
                "Background"
            }
            "foreground" => "Foreground",
            "false" => {
                warn_of_cascade("false", "orphan");
                "Orphan"
            }
            "orphan" => "Orphan",
            other => bail!(
                "invalid cascade value ({other}). Must be \"background\", \"foreground\", or \"orphan\""
            ),
        })
    }

    /// The body of a DELETE.
    pub(super) fn options(&self, dry_run: DryRunMode) -> Result<Value> {
        let mut options = json!({"propagationPolicy": self.propagation_policy()?});
        let grace = match self.force && self.grace_period < 0 {
            true => 0,
            false => self.grace_period,
        };
        if grace >= 0 {
            // Zero means immediate deletion, which requires --force.
            let grace = if grace == 0 && !self.force { 1 } else { grace };
            options["gracePeriodSeconds"] = json!(grace);
        }
        if dry_run == DryRunMode::Server {
            options["dryRun"] = json!(["All"]);
        }
        Ok(options)
    }

    fn check(&self) -> Result<()> {
        if self.force && self.grace_period > 0 {
            bail!("--force and --grace-period greater than 0 cannot be specified together");
        }
        if self.force {
            eprintln!(
                "Warning: Immediate deletion does not wait for confirmation that the running resource has been terminated. The resource may continue to run on the cluster indefinitely."
            );
        }
        Ok(())
    }

    /// `replace` uses these flags only when it deletes.
    pub(super) fn check_replacing(&self) -> Result<()> {
        let has_timeout = !crate::duration::parse(&self.timeout)?.is_zero();
        match self.force {
            false if self.grace_period >= 0 => {
                bail!("--grace-period must have --force specified")
            }
            false if has_timeout => bail!("--timeout must have --force specified"),
            _ => Ok(()),
        }
    }

    /// Waits until objects are gone, with `--wait`.
    pub(super) async fn until_gone(
        &self,
        session: &Session,
        deleted: &[(Target, Value)],
    ) -> Result<()> {
        let timeout = crate::duration::parse(&self.timeout)?;
        let all = async {
            for (target, answer) in deleted {
                until_gone(session, target, answer).await?;
            }
            anyhow::Ok(())
        };
        match timeout.is_zero() {
            true => all.await,
            false => tokio::time::timeout(timeout, all)
                .await
                .map_err(|_| anyhow::anyhow!("timed out waiting for the condition"))?,
        }
    }
}

impl Delete {
    pub(crate) async fn run(mut self, session: &Session) -> Result<()> {
        if self.now {
            if self.how.grace_period != -1 {
                bail!("--now and --grace-period cannot be specified together");
            }
            self.how.grace_period = 1;
        }
        if let Some(path) = &self.raw {
            return self.delete_raw(session, path).await;
        }
        self.check()?;
        self.how.propagation_policy()?;
        let dry_run = self.dry_run.mode()?;
        let ignore_not_found = self.ignore_not_found.unwrap_or(self.selects());
        let targets =
            resources::targets(session, &self.selection, &self.resources, self.all).await?;
        if let Some(output) = self.output.as_deref().filter(|output| *output != "name") {
            bail!("unexpected -o output mode: {output}. We only support '-o name'");
        }
        self.how.check()?;
        if targets.is_empty() {
            println!("No resources found");
            return Ok(());
        }
        if self.interactive && !confirmed(&targets)? {
            println!("deletion is cancelled");
            return Ok(());
        }
        let options = self.how.options(dry_run)?;
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        // Once, for a namespace that does not limit what is deleted.
        let mut warns = session.namespace_given && !self.selection.all_namespaces;
        for target in targets {
            if warns && !target.resource.namespaced {
                eprintln!(
                    "Warning: deleting cluster-scoped resources, not scoped to the provided namespace"
                );
                warns = false;
            }
            match self.delete(session, &target, &options, dry_run).await {
                Ok(answer) => deleted.push((target, answer)),
                Err(error) if ignore_not_found && error::is_not_found(&error) => {}
                Err(error) => errors.push(error::with_source(error, "deleting", &target.source)),
            }
        }
        if self.how.wait.unwrap_or(true) && dry_run == DryRunMode::None {
            match self.how.until_gone(session, &deleted).await {
                // A user who may delete, but neither get nor watch, does not wait.
                Err(error) if error::code_is(&error, 403) || error::code_is(&error, 405) => {}
                waited => waited?,
            }
        }
        error::aggregate(errors)
    }

    /// Whether objects are selected, not named.
    fn selects(&self) -> bool {
        self.all || self.selection.selector.is_some() || self.selection.field_selector.is_some()
    }

    async fn delete_raw(&self, session: &Session, path: &str) -> Result<()> {
        if self.interactive {
            bail!("--interactive can not be used with --raw");
        }
        let body = super::raw::body(&self.selection.files, self.output.as_deref())?;
        super::raw::check_path(path)?;
        let answer = session.api.raw(Method::DELETE, path, body).await?;
        std::io::stdout().write_all(&answer)?;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        if self.all
            && (self.selection.selector.is_some() || self.selection.field_selector.is_some())
        {
            bail!("setting 'all' parameter but found a non empty selector. ");
        }
        if self.all && self.resources.is_empty() && self.selection.files.is_empty() {
            bail!("at least one resource must be specified to use a selector");
        }
        let names_something =
            self.resources.iter().any(|word| word.contains('/')) || self.resources.len() > 1;
        if self.selects() && names_something {
            bail!(resources::beside_selector(&self.resources));
        }
        Ok(())
    }

    async fn delete(
        &self,
        session: &Session,
        target: &Target,
        options: &Value,
        dry_run: DryRunMode,
    ) -> Result<Value> {
        let answer = match dry_run.is_client() {
            true => Value::Null,
            false => session.api.delete(&target.path(), options).await?,
        };
        say_deleted(target, self.output.is_some(), self.how.force, dry_run);
        Ok(answer)
    }
}

/// `pod "web" deleted from default namespace`
pub(super) fn say_deleted(target: &Target, only_name: bool, is_forced: bool, dry_run: DryRunMode) {
    let kind = target.resource.kind.to_lowercase();
    let kind = match target.resource.group.as_str() {
        "" => kind,
        group => format!("{kind}.{group}"),
    };
    let name = &target.name;
    if only_name {
        return println!("{kind}/{name}");
    }
    let deed = if is_forced {
        "force deleted"
    } else {
        "deleted"
    };
    let place = match target.resource.namespaced {
        true => format!(" from {} namespace", target.namespace),
        false => String::new(),
    };
    println!("{kind} \"{name}\" {deed}{place}{}", dry_run.suffix());
}

fn confirmed(targets: &[Target]) -> Result<bool> {
    println!(
        "You are about to delete the following {} resource(s):",
        targets.len()
    );
    for target in targets {
        println!("{}", target.display());
    }
    print!("Do you want to continue? (y/N): ");
    std::io::stdout().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y"))
}

/// Watches one object until it is gone, or another one has its name.
async fn until_gone(session: &Session, target: &Target, answer: &Value) -> Result<()> {
    let uid = [&answer["metadata"]["uid"], &answer["details"]["uid"]];
    let uid = uid
        .into_iter()
        .find_map(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    loop {
        let Some(live) = session.api.find(&target.path()).await? else {
            return Ok(());
        };
        if !uid.is_empty() && live["metadata"]["uid"].as_str() != Some(&uid) {
            return Ok(());
        }
        let path = target.watch_path(str_of(&live["metadata"]["resourceVersion"]));
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

/// Once: the flag is parsed more than once.
fn warn_of_cascade(given: &str, instead: &str) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        eprintln!(
            "warning: --cascade={given} is deprecated (boolean value) and can be replaced with --cascade={instead}."
        );
    });
}
