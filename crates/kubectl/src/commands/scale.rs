//! `kubectl scale`

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    api::{PatchType, Query},
    args::{DryRun, DryRunMode, FilesOrSelector},
    output::PrintFlags,
    resources::{self, Target},
    session::Session,
};

use super::report::Report;

/// Flags of `scale`.
#[derive(Debug, Args)]
pub(crate) struct Scale {
    /// TYPE NAME… or TYPE/NAME…
    resources: Vec<String>,
    #[command(flatten)]
    selection: FilesOrSelector,
    /// Select all resources in the namespace of the specified resource types
    #[arg(long)]
    all: bool,
    /// The new desired number of replicas
    #[arg(long, value_name = "COUNT")]
    replicas: Option<i32>,
    /// Only scale if this is the current number of replicas
    #[arg(long, default_value_t = -1, value_name = "COUNT")]
    current_replicas: i64,
    /// Only scale if this is the current resource version
    #[arg(long, value_name = "VERSION")]
    resource_version: Option<String>,
    /// How long to wait for the replicas; 0 does not wait
    #[arg(long, default_value = "0s", value_name = "DURATION")]
    timeout: String,
    #[command(flatten)]
    print: PrintFlags,
    #[command(flatten)]
    dry_run: DryRun,
}

impl Scale {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let Some(replicas) = self.replicas else {
            bail!("required flag(s) \"replicas\" not set");
        };
        if replicas < 0 {
            bail!(
                "The --replicas=COUNT flag is required, and COUNT must be greater than or equal to 0"
            );
        }
        if self.current_replicas < -1 {
            bail!("The --current-replicas must specify an integer of -1 or greater");
        }
        let report = Report::new(&self.print, self.dry_run.mode()?)?;
        let targets = resources::targets(
            session,
            &(&self.selection).into(),
            &self.resources,
            self.all,
        )
        .await?;
        if self.resource_version.is_some() && targets.len() > 1 {
            bail!("cannot use --resource-version with multiple resources");
        }
        if targets.is_empty() {
            bail!("no objects passed to scale");
        }
        for target in targets {
            self.scale(session, &target, &report).await?;
        }
        Ok(())
    }

    async fn scale(&self, session: &Session, target: &Target, report: &Report) -> Result<()> {
        let dry_run = self.dry_run.mode()?;
        // The object of a file is not read from the server.
        let mut object = match &target.manifest {
            Some(object) => object.clone(),
            None => target.get(session).await?,
        };
        if !dry_run.is_client() {
            let path = format!("{}/scale", target.path());
            self.check(session, &path).await?;
            let mut patch = json!({"spec": {"replicas": self.replicas.unwrap_or(0)}});
            if let Some(version) = &self.resource_version {
                patch["metadata"]["resourceVersion"] = json!(version);
            }
            let query: Query = dry_run.parameter().into_iter().collect();
            session
                .api
                .patch(&path, PatchType::Merge, &patch, &query)
                .await?;
            session.record_afterwards(&target.path(), &query).await?;
        }
        object["spec"]["replicas"] = json!(self.replicas.unwrap_or(0));
        let timeout = crate::duration::parse(&self.timeout)?;
        if !timeout.is_zero() && dry_run == DryRunMode::None {
            self.wait(session, target, timeout).await?;
        }
        report.print(&object, "scaled")
    }

    async fn check(&self, session: &Session, path: &str) -> Result<()> {
        if self.current_replicas < 0 && self.resource_version.is_none() {
            return Ok(());
        }
        let scale = session.api.get(path).await?;
        let current = scale["spec"]["replicas"].as_i64().unwrap_or(0);
        if self.current_replicas >= 0 && current != self.current_replicas {
            bail!(
                "Expected replicas to be {}, was {current}",
                self.current_replicas
            );
        }
        if let Some(version) = &self.resource_version
            && scale["metadata"]["resourceVersion"] != version.as_str()
        {
            bail!(
                "Expected resource version to be {version}, was {}",
                crate::json::str_of(&scale["metadata"]["resourceVersion"])
            );
        }
        Ok(())
    }

    /// Waits until the controller has reached the replicas.
    async fn wait(&self, session: &Session, target: &Target, timeout: Duration) -> Result<()> {
        let wanted = i64::from(self.replicas.unwrap_or(0));
        let has_them = |object: &Value| {
            let observed = object["status"]["observedGeneration"]
                .as_i64()
                .unwrap_or(i64::MAX);
            observed >= object["metadata"]["generation"].as_i64().unwrap_or(0)
                && object["status"]["replicas"].as_i64().unwrap_or(0) == wanted
        };
        let until = super::wait::until(session, target, |object| object.is_some_and(has_them));
        tokio::time::timeout(timeout, until)
            .await
            .context("timed out waiting for the condition")?
    }
}
