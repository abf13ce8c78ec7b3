//! `kubectl run`

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    api::{Query, with_query},
    args::{DryRun, DryRunMode, Files},
    error,
    json::{list, str_of},
    output::PrintFlags,
    resources,
    session::Session,
    streams::{self, SessionStreams},
};

use super::{
    create::{create_object, pairs},
    delete::{DeleteFlags, say_deleted},
    expose::{overridden, port_number},
    report::Report,
    wait,
};

/// How long the log before an attach may take.
const EARLY_LOG: Duration = Duration::from_secs(5);

/// Whether a text is the name of an image.
pub(super) fn is_reference(text: &str) -> bool {
    const LABEL: &str = "(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])";
    const PART: &str = "[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*";
    const TAG: &str = "[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}";
    const DIGEST: &str = "[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}";
    let host = format!(r"(?:{LABEL}(?:\.{LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?");
    let whole = format!("^(?:{host}/)?{PART}(?:/{PART})*(?::{TAG})?(?:@{DIGEST})?$");
    regex::Regex::new(&whole).is_ok_and(|pattern| pattern.is_match(text))
}

/// Flags of `run`.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// NAME [ARG…]: the pod, and arguments of its container
    #[arg(value_name = "NAME")]
    words: Vec<String>,
    /// The image for the container to run
    #[arg(long)]
    image: Option<String>,
    /// Environment variables to set in the container, as KEY=VALUE
    #[arg(long, value_name = "KEY=VALUE")]
    env: Vec<String>,
    /// Labels to apply to the pod, as KEY=VALUE,…
    #[arg(short, long, value_name = "KEY=VALUE,…")]
    labels: Option<String>,
    /// Annotations to apply to the pod, as KEY=VALUE
    #[arg(long, value_name = "KEY=VALUE")]
    annotations: Vec<String>,
    /// The port that this container exposes
    #[arg(long)]
    port: Option<String>,
    /// Create a ClusterIP service associated with the pod
    #[arg(long)]
    expose: bool,
    /// The restart policy for this pod: Always, OnFailure, Never
    #[arg(long, default_value = "Always")]
    restart: String,
    /// The image pull policy for the container
    #[arg(long)]
    image_pull_policy: Option<String>,
    /// Use the words after -- as the command, rather than as arguments
    #[arg(long)]
    command: bool,
    /// Run the container in privileged mode
    #[arg(long)]
    privileged: bool,
    /// Keep stdin open on the container
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Allocate a TTY for the container
    #[arg(short, long)]
    tty: bool,
    /// Leave stdin open after the first attach completes
    #[arg(long)]
    leave_stdin_open: bool,
    /// Wait for the pod to start running, and then attach to it
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    attach: Option<bool>,
    /// Delete the pod after it exits; only with --attach or --stdin
    #[arg(long = "rm")]
    remove: bool,
    /// Keys that leave the container, separated by commas
    #[arg(long, value_name = "KEYS", default_value = crate::detach::DEFAULT)]
    detach_keys: String,
    #[command(flatten)]
    how: DeleteFlags,
    // As in upstream these flags are accepted and have no effect.
    #[allow(dead_code)]
    #[command(flatten)]
    files: Files,
    /// Suppress prompt messages
    #[arg(short, long)]
    quiet: bool,
    /// How long to wait until the pod is running
    #[arg(long, default_value = "1m0s", value_name = "DURATION")]
    pod_running_timeout: String,
    /// A JSON object that changes the generated one
    #[arg(long, value_name = "JSON")]
    overrides: Option<String>,
    /// How to override: json, merge or strategic
    #[arg(long, default_value = "merge")]
    override_type: String,
    /// Name of the manager used to track field ownership
    #[arg(long, default_value = "kubectl-run", value_name = "NAME")]
    field_manager: String,
    /// Save the configuration of the object in its annotation, for later applies
    #[arg(long)]
    save_config: bool,
    #[command(flatten)]
    print: PrintFlags,
    #[command(flatten)]
    dry_run: DryRun,
    /// Arguments of the container
    #[arg(last = true)]
    args: Vec<String>,
}

impl Run {
    /// The name and the arguments, also those behind `--`.
    fn all_words(&self) -> impl Iterator<Item = &String> {
        self.words.iter().chain(&self.args)
    }

    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let name = self
            .all_words()
            .next()
            .cloned()
            .ok_or_else(|| match self.image.is_none() {
                true => anyhow::anyhow!("required flag(s) \"image\" not set"),
                false => error::usage("run", "NAME is required for run"),
            })?;
        super::exec::check_patience(&self.pod_running_timeout)
            .map_err(|error| error::usage("run", error))?;
        let attach = self.attach.unwrap_or(self.stdin);
        let policy = self.how.propagation_policy()?;
        self.check(attach)?;
        let dry_run = self.dry_run.mode()?;
        let report = Report::new(&self.print, dry_run)?;
        let mut pod = self.pod(&name)?;
        if let Some(overrides) = self.overrides.as_ref().filter(|text| !text.is_empty()) {
            pod = overridden(&pod, overrides, &self.override_type)?;
        }
        session.record(&mut pod);
        if session.namespace_given {
            pod["metadata"]["namespace"] = json!(session.namespace);
        }
        if self.save_config && !dry_run.is_client() {
            super::apply::annotate(&mut pod);
        }
        let mut query: Query = vec![("fieldManager", self.field_manager.clone())];
        query.extend(dry_run.parameter());
        let created = create_object(session, pod, &query, dry_run).await?;
        if self.expose {
            let service = self.service(session, &name)?;
            let service = create_object(session, service, &query, dry_run).await?;
            report.say_typed(&service, "created")?;
            if self.print.is("yaml") {
                // Upstream separates the documents twice.
                println!("---");
            }
        }
        if !attach {
            return report.say_typed(&created, "created");
        }
        let outcome = self.attached(session, &created).await;
        if self.remove {
            self.remove(session, &created, policy).await?;
        }
        // Why the pod has failed is the last line.
        outcome.map_err(|error| match error.downcast::<Terminated>() {
            Ok(Terminated { text, code }) => {
                eprintln!("{text}");
                error::Quiet(code).into()
            }
            Err(error) => error,
        })
    }

    fn check(&self, attach: bool) -> Result<()> {
        match self.image.as_deref() {
            None => bail!("required flag(s) \"image\" not set"),
            Some("") => bail!("--image is required"),
            Some(image) if !is_reference(image) => {
                bail!("Invalid image name {image:?}: invalid reference format")
            }
            Some(_) => {}
        }
        if self.tty && !self.stdin {
            return Err(error::usage(
                "run",
                "-i/--stdin is required for containers with -t/--tty=true",
            ));
        }
        if self.expose && self.port.is_none() {
            return Err(error::usage(
                "run",
                "--port must be set when exposing a service",
            ));
        }
        if !["", "Always", "OnFailure", "Never"].contains(&self.restart.as_str()) {
            return Err(error::usage(
                "run",
                format!("invalid restart policy: {}", self.restart),
            ));
        }
        if !attach && self.remove {
            return Err(error::usage(
                "run",
                "--rm should only be used for attached containers",
            ));
        }
        if attach && self.dry_run.mode()? != DryRunMode::None {
            return Err(error::usage(
                "run",
                "--dry-run=[server|client] can't be used with attached containers options (--attach, --stdin, or --tty)",
            ));
        }
        match self.image_pull_policy.as_deref() {
            None | Some("" | "Always" | "IfNotPresent" | "Never") => Ok(()),
            Some(other) => Err(error::usage(
                "run",
                format!("invalid image pull policy: {other}"),
            )),
        }
    }

    fn pod(&self, name: &str) -> Result<Value> {
        let labels = match &self.labels {
            Some(labels) if !labels.is_empty() => pairs(labels)?,
            _ => json!({"run": name}),
        };
        let mut metadata = json!({"name": name, "labels": labels});
        let is_pair = |text: &&String| text.find('=').is_some_and(|at| at > 0);
        let invalid = self.annotations.iter().filter(|text| !is_pair(text));
        let invalid: Vec<&str> = invalid.map(String::as_str).collect();
        if !invalid.is_empty() {
            bail!("invalid annotations format: {}", invalid.join(", "));
        }
        for (key, value) in self
            .annotations
            .iter()
            .filter_map(|text| text.split_once('='))
        {
            metadata["annotations"][key] = json!(value);
        }
        let mut container = json!({"name": name, "image": self.image});
        let args: Vec<&String> = self.all_words().skip(1).collect();
        if !args.is_empty() {
            container[if self.command { "command" } else { "args" }] = json!(args);
        }
        if let Some(port) = self.port.as_ref().filter(|port| !port.is_empty()) {
            container["ports"] = json!([{"containerPort": port_number(port)?}]);
        }
        if !self.env.is_empty() {
            let variable = |text: &String| {
                let (name, value) = text
                    .split_once('=')
                    .filter(|(name, _)| super::set::invalid_variable_name(name).is_none())
                    .with_context(|| format!("invalid env: {text}"))?;
                Ok(match value {
                    "" => json!({"name": name}),
                    value => json!({"name": name, "value": value}),
                })
            };
            container["env"] = self.env.iter().map(variable).collect::<Result<_>>()?;
        }
        container["resources"] = json!({});
        if let Some(policy) = self
            .image_pull_policy
            .as_ref()
            .filter(|policy| !policy.is_empty())
        {
            container["imagePullPolicy"] = json!(policy);
        }
        if self.privileged {
            container["securityContext"] = json!({"privileged": true});
        }
        if self.stdin {
            container["stdin"] = json!(true);
            if !self.leave_stdin_open {
                container["stdinOnce"] = json!(true);
            }
        }
        if self.tty {
            container["tty"] = json!(true);
        }
        let restart = match self.restart.as_str() {
            "" => "Always",
            restart => restart,
        };
        Ok(crate::merge::typed(&json!({
            "kind": "Pod", "apiVersion": "v1", "metadata": metadata,
            "spec": {"containers": [container], "restartPolicy": restart, "dnsPolicy": "ClusterFirst"}})))
    }

    /// The service of `--expose`; its selector is also its labels, if labels are given.
    fn service(&self, session: &Session, name: &str) -> Result<Value> {
        let mut metadata = json!({"name": name});
        if session.namespace_given {
            metadata["namespace"] = json!(session.namespace);
        }
        let selector = match self.labels.as_deref() {
            Some(labels) if !labels.is_empty() => {
                metadata["labels"] = pairs(labels)?;
                pairs(labels)?
            }
            _ => json!({"run": name}),
        };
        let port = port_number(self.port.as_deref().unwrap_or_default())?;
        Ok(crate::merge::typed(&json!({
            "kind": "Service", "apiVersion": "v1", "metadata": metadata,
            "spec": {
                "ports": [{"protocol": "TCP", "port": port, "targetPort": port}],
                "selector": selector}})))
    }

    /// Attaches to the pod once it runs, and exits with its code.
    async fn attached(&self, session: &Session, created: &Value) -> Result<()> {
        let resource = session.discovery.resolve("pods").await?;
        let mut target = resources::target(
            session,
            resource,
            str_of(&created["metadata"]["name"]).to_owned(),
        );
        target.namespace = str_of(&created["metadata"]["namespace"]).to_owned();
        let timeout = crate::duration::parse(&self.pod_running_timeout)?;
        let mut pod = Value::Null;
        let has_begun = wait::until(session, &target, |object| {
            pod = object.cloned().unwrap_or_default();
            object.is_none() || may_be_attached_to(&pod)
        });
        tokio::time::timeout(timeout, has_begun)
            .await
            .with_context(|| format!("timed out waiting for the pod {} to run", target.name))??;
        let container = streams::container_of(&pod, None, true)?;
        if pod["status"]["phase"] == "Running" {
            self.print_early_log(session, &target, &container).await;
            let wanted = SessionStreams {
                stdin: self.stdin,
                tty: self.tty,
                quiet: self.quiet,
                detach_keys: Some(&self.detach_keys),
            };
            if let Err(error) =
                streams::interactive(session, &pod, &container, "attach", &[], wanted).await
            {
                // A container that ended before it could be attached to has a log.
                eprintln!(
                    "warning: couldn't attach to pod/{}, falling back to streaming logs: {error:#}",
                    target.name
                );
                streams::print_log(session, &target.path(), None).await?;
            }
        } else {
            streams::print_log(session, &target.path(), None).await?;
        }
        if self.leave_stdin_open || self.restart == "Always" {
            return Ok(());
        }
        wait::until(session, &target, |object| {
            pod = object.cloned().unwrap_or_default();
            let phase = str_of(&pod["status"]["phase"]);
            object.is_none()
                || phase == "Succeeded"
                || (phase == "Failed" && self.restart == "Never")
        })
        .await?;
        exit_of(&pod)
    }

    /// What the container printed before it is attached to.
    async fn print_early_log(
        &self,
        session: &Session,
        target: &resources::Target,
        container: &str,
    ) {
        use std::io::Write;
        let path = format!("{}/log", target.path());
        let path = with_query(&path, &[("container", container.to_owned())]);
        let log = session.api.raw(http::Method::GET, &path, Vec::new());
        let log = match tokio::time::timeout(EARLY_LOG, log).await {
            Ok(log) => log,
            Err(_) => Err(anyhow::anyhow!("context deadline exceeded")),
        };
        match log {
            Ok(log) => drop(std::io::stdout().write_all(&log)),
            Err(error) => eprintln!(
                "warning: couldn't fetch pre-attach logs: {}",
                error::message(&error)
            ),
        }
    }

    /// Deletes the pod, and the service if there is one.
    async fn remove(&self, session: &Session, created: &Value, policy: &str) -> Result<()> {
        let options = json!({"propagationPolicy": policy});
        let name = str_of(&created["metadata"]["name"]);
        let kinds: &[&str] = match self.expose {
            true => &["pods", "services"],
            false => &["pods"],
        };
        for kind in kinds {
            let resource = session.discovery.resolve(kind).await?;
            let mut target = resources::target(session, resource, name.to_owned());
            target.namespace = str_of(&created["metadata"]["namespace"]).to_owned();
            match session.api.delete(&target.path(), &options).await {
                Ok(_) if self.quiet => {}
                Ok(_) => say_deleted(&target, false, false, DryRunMode::None),
                Err(error) if error::is_not_found(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Ended, or running and ready.
fn may_be_attached_to(pod: &Value) -> bool {
    let is_ready =
        |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    match str_of(&pod["status"]["phase"]) {
        "Succeeded" | "Failed" => true,
        "Running" => list(&pod["status"]["conditions"]).any(is_ready),
        _ => false,
    }
}

/// A pod whose container has failed.
#[derive(Debug)]
struct Terminated {
    text: String,
    code: u8,
}

impl std::fmt::Display for Terminated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Terminated {}

/// Exits as the pod did.
fn exit_of(pod: &Value) -> Result<()> {
    if pod["status"]["phase"] == "Succeeded" || pod.is_null() {
        return Ok(());
    }
    let place = format!(
        "{}/{}",
        str_of(&pod["metadata"]["namespace"]),
        str_of(&pod["metadata"]["name"])
    );
    let ended = list(&pod["status"]["containerStatuses"])
        .next()
        .map(|status| &status["state"]["terminated"]);
    match ended.and_then(|ended| ended["exitCode"].as_i64()) {
        Some(code) if code != 0 => {
            let ended = ended.unwrap_or(&Value::Null);
            let text = format!("pod {place} terminated ({})", str_of(&ended["reason"]));
            let code = u8::try_from(code & 0xff).unwrap_or(1);
            Err(Terminated { text, code }.into())
        }
        _ => bail!("pod {place} failed with unknown exit code"),
    }
}
