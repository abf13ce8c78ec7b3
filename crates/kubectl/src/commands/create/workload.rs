//! `kubectl create deployment|job|cronjob`

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::{
    json::{entries, str_of},
    session::Session,
};

use super::{Common, Generated, container_name, unique_names};

/// Flags of `create deployment`.
#[derive(Debug, Args)]
pub(super) struct Deployment {
    name: String,
    /// Image names to run; may be repeated
    #[arg(long, value_delimiter = ',')]
    image: Vec<String>,
    /// Number of replicas to create
    #[arg(short, long, default_value_t = 1)]
    replicas: i32,
    /// The containerPort that this deployment exposes
    #[arg(long, default_value_t = -1)]
    port: i32,
    /// Command to run instead of the image's own
    #[arg(last = true)]
    command: Vec<String>,
    #[command(flatten)]
    pub common: Common,
}

impl Deployment {
    pub(super) fn generate(&self) -> Result<Generated> {
        if self.image.is_empty() {
            bail!("required flag(s) \"image\" not set");
        }
        let images: Vec<&String> = self
            .image
            .iter()
            .filter(|image| !image.is_empty())
            .collect();
        if self.image.len() > 1 && !self.command.is_empty() {
            bail!("cannot specify multiple --image options and command");
        }
        let names = unique_names(images.iter().map(|image| container_name(image)).collect());
        let container = |(image, name): (&String, String)| {
            let mut container = json!({"name": name, "image": image});
            if !self.command.is_empty() {
                container["command"] = json!(self.command);
            }
            container["resources"] = json!({});
            container
        };
        let mut containers: Vec<Value> = images.into_iter().zip(names).map(container).collect();
        // The port is that of the first container.
        if let (Some(first), true) = (containers.first_mut(), self.port >= 0) {
            first["ports"] = json!([{"containerPort": self.port}]);
        }
        let labels = json!({"app": self.name});
        let object = json!({
            "kind": "Deployment", "apiVersion": "apps/v1",
            "metadata": {"name": self.name, "labels": labels},
            "spec": {
                "replicas": self.replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
                "strategy": {}},
            "status": {}});
        Ok(Generated::new(object, "deployment:"))
    }
}

/// Flags of `create job`.
#[derive(Debug, Args)]
pub(super) struct Job {
    name: String,
    /// Image name to run
    #[arg(long)]
    image: Option<String>,
    /// The cron job to create a job from, as cronjob/NAME
    #[arg(long, value_name = "CRONJOB")]
    from: Option<String>,
    /// Command to run instead of the image's own
    #[arg(last = true)]
    command: Vec<String>,
    #[command(flatten)]
    pub common: Common,
}

impl Job {
    pub(super) async fn generate(&self, session: &Session) -> Result<Generated> {
        let object = match (&self.image, &self.from) {
            (Some(_), Some(_)) | (None, None) => {
                bail!("either --image or --from must be specified")
            }
            (None, Some(_)) if !self.command.is_empty() => {
                bail!("cannot specify --from and command")
            }
            (Some(image), None) => json!({
                "kind": "Job", "apiVersion": "batch/v1",
                "metadata": {"name": self.name},
                "spec": {"template": {"metadata": {}, "spec": pod_spec(&self.name, image, &self.command, "Never")}},
                "status": {}}),
            (None, Some(from)) => self.of_cron_job(session, from).await?,
        };
        Ok(Generated::new(object, "job:"))
    }

    async fn of_cron_job(&self, session: &Session, from: &str) -> Result<Value> {
        let Some((kind, name)) = from.split_once('/') else {
            session.discovery.resolve(from).await?;
            bail!("resource(s) were provided, but no name was specified");
        };
        let resource = session.discovery.resolve(kind).await?;
        if resource.kind != "CronJob" {
            bail!(
                "unknown object type *{}.{}",
                resource.version,
                resource.kind
            );
        }
        let cron_job = session
            .api
            .get(&resource.object(&session.namespace, name))
            .await?;
        let template = &cron_job["spec"]["jobTemplate"];
        let mut annotations = Map::new();
        annotations.insert("cronjob.kubernetes.io/instantiate".into(), json!("manual"));
        for (key, value) in entries(&template["metadata"]["annotations"]) {
            annotations.insert(key.to_owned(), value.clone());
        }
        let mut metadata = json!({"name": self.name});
        if let Some(labels) = template["metadata"].get("labels") {
            metadata["labels"] = labels.clone();
        }
        metadata["annotations"] = Value::Object(annotations);
        metadata["ownerReferences"] = json!([{
            "apiVersion": "batch/v1", "kind": "CronJob", "name": str_of(&cron_job["metadata"]["name"]),
            "uid": cron_job["metadata"]["uid"], "controller": true}]);
        Ok(json!({
            "kind": "Job", "apiVersion": "batch/v1", "metadata": metadata, "spec": template["spec"], "status": {}}))
    }
}

/// Flags of `create cronjob`.
#[derive(Debug, Args)]
pub(super) struct CronJob {
    name: String,
    /// Image name to run
    #[arg(long)]
    image: Option<String>,
    /// When to run, in the Cron format
    #[arg(long)]
    schedule: Option<String>,
    /// Restart policy of the job: OnFailure or Never
    #[arg(long)]
    restart: Option<String>,
    /// Command to run instead of the image's own
    #[arg(last = true)]
    command: Vec<String>,
    #[command(flatten)]
    pub common: Common,
}

impl CronJob {
    pub(super) fn generate(&self) -> Result<Generated> {
        let (image, schedule) = match (&self.image, &self.schedule) {
            (Some(image), Some(schedule)) => (image, schedule),
            (None, None) => bail!("required flag(s) \"image\", \"schedule\" not set"),
            (None, _) => bail!("required flag(s) \"image\" not set"),
            (_, None) => bail!("required flag(s) \"schedule\" not set"),
        };
        let restart = self
            .restart
            .as_deref()
            .filter(|policy| !policy.is_empty())
            .unwrap_or("OnFailure");
        let spec = pod_spec(&self.name, image, &self.command, restart);
        let object = json!({
            "kind": "CronJob", "apiVersion": "batch/v1",
            "metadata": {"name": self.name},
            "spec": {
                "schedule": schedule,
                "jobTemplate": {
                    "metadata": {"name": self.name},
                    "spec": {"template": {"metadata": {}, "spec": spec}}}},
            "status": {}});
        Ok(Generated::new(object, "cronjob:"))
    }
}

fn pod_spec(name: &str, image: &str, command: &[String], restart: &str) -> Value {
    let mut container = json!({"name": name, "image": image});
    if !command.is_empty() {
        container["command"] = json!(command);
    }
    container["resources"] = json!({});
    json!({"containers": [container], "restartPolicy": restart})
}
