//! `kubectl run`

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::{
    args::{DryRun, Output},
    session::Session,
};

use super::create::create_generated;

/// Flags of `run`.
#[derive(Debug, Args)]
pub struct Run {
    name: String,
    /// The image to run
    #[arg(long)]
    image: String,
    /// Environment variables: KEY=VALUE
    #[arg(long, value_name = "KEY=VALUE")]
    env: Vec<String>,
    /// Labels: KEY=VALUE, separated by commas
    #[arg(short, long, value_delimiter = ',', value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// Port that the container exposes
    #[arg(long)]
    port: Option<u16>,
    /// Always, OnFailure or Never
    #[arg(long, default_value = "Always")]
    restart: String,
    /// IfNotPresent, Always or Never
    #[arg(long)]
    image_pull_policy: Option<String>,
    /// Take the words after -- as the command, not as its arguments
    #[arg(long)]
    command: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    dry_run: DryRun,
    /// Arguments of the container
    #[arg(last = true)]
    args: Vec<String>,
}

impl Run {
    pub async fn run(self, session: &Session) -> Result<()> {
        create_generated(session, vec![self.pod()?], &self.output, &self.dry_run).await
    }

    fn pod(&self) -> Result<Value> {
        let pair = |text: &String| -> Result<(String, Value)> {
            let (key, value) = text
                .split_once('=')
                .with_context(|| format!("{text:?} is not KEY=VALUE"))?;
            Ok((key.to_owned(), json!(value)))
        };
        let mut labels = self
            .labels
            .iter()
            .map(pair)
            .collect::<Result<Map<_, _>>>()?;
        if labels.is_empty() {
            labels.insert("run".into(), json!(self.name));
        }
        let mut container = json!({"name": self.name, "image": self.image});
        let env = self.env.iter().map(pair).collect::<Result<Vec<_>>>()?;
        if !env.is_empty() {
            container["env"] = env
                .into_iter()
                .map(|(name, value)| json!({"name": name, "value": value}))
                .collect();
        }
        if let Some(port) = self.port {
            container["ports"] = json!([{"containerPort": port}]);
        }
        if let Some(policy) = &self.image_pull_policy {
            container["imagePullPolicy"] = json!(policy);
        }
        if !self.args.is_empty() {
            container[if self.command { "command" } else { "args" }] = json!(self.args);
        }
        Ok(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": self.name, "labels": labels},
            "spec": {"containers": [container], "restartPolicy": self.restart}}))
    }
}
