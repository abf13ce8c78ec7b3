//! `kubectl debug`: an ephemeral container in a pod, a changed copy of a pod, or a pod on a node.

mod profile;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    api::{PatchType, Query, print_warning},
    args::{Files, Selection},
    discovery::Resource,
    error,
    json::{list, str_of},
    resources::{self, Target},
    session::Session,
    streams::{self, SessionStreams},
};

use super::wait;
use profile::{Profile, Style, is_weakened};

/// Flags of `debug`.
#[derive(Debug, Args)]
pub(crate) struct Debug {
    /// POD, TYPE/NAME or node/NAME
    words: Vec<String>,
    /// File with the resource to debug
    #[arg(short, long, value_name = "FILE", value_delimiter = ',')]
    filename: Vec<String>,
    /// Container image to use for the debug container
    #[arg(long, default_value = "")]
    image: String,
    /// Container name to use for the debug container
    #[arg(short, long, default_value = "")]
    container: String,
    /// Create a copy of the target Pod with this name
    #[arg(long, default_value = "")]
    copy_to: String,
    /// With --copy-to: delete the original Pod
    #[arg(long)]
    replace: bool,
    /// With --copy-to: schedule the copy on the same node
    #[arg(long)]
    same_node: bool,
    /// With --copy-to: change images, as CONTAINER=IMAGE,…
    #[arg(long, value_name = "CONTAINER=IMAGE,…")]
    set_image: Vec<String>,
    /// With --copy-to: share the process namespace, which is the default
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    share_processes: Option<bool>,
    /// With --copy-to: keep the labels
    #[arg(long)]
    keep_labels: bool,
    /// With --copy-to: keep the annotations
    #[arg(long)]
    keep_annotations: bool,
    /// With --copy-to: keep the liveness probes
    #[arg(long)]
    keep_liveness: bool,
    /// With --copy-to: keep the readiness probes
    #[arg(long)]
    keep_readiness: bool,
    /// With --copy-to: keep the startup probes
    #[arg(long)]
    keep_startup: bool,
    /// With --copy-to: run the init containers
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    keep_init_containers: bool,
    /// Target processes in this container
    #[arg(long, default_value = "")]
    target: String,
    /// general, baseline, restricted, netadmin or sysadmin
    #[arg(long, default_value = "general")]
    profile: String,
    /// A JSON or YAML file with fields of a container that are merged over those of the profile
    #[arg(long, value_name = "FILE")]
    custom: Option<PathBuf>,
    /// Keep stdin open, and attach
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Allocate a TTY
    #[arg(short, long)]
    tty: bool,
    /// Wait for the container to start running, and then attach
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    attach: Option<bool>,
    /// Environment variables to set in the container, as KEY=VALUE
    #[arg(long)]
    env: Vec<String>,
    /// The image pull policy
    #[arg(long)]
    image_pull_policy: Option<String>,
    /// Use the words after -- as arguments, rather than as the command
    #[arg(long)]
    arguments_only: bool,
    /// Suppress informational messages
    #[arg(short, long)]
    quiet: bool,
    /// The command and its arguments
    #[arg(last = true)]
    command: Vec<String>,
}

impl Debug {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let profile = Profile::parse(&self.profile)?;
        let custom = self.custom_container()?;
        self.check(custom.as_ref())?;
        let words: Vec<String> = match self.words.as_slice() {
            [one] if !one.contains('/') => vec![format!("pods/{one}")],
            words => words.to_vec(),
        };
        let selection = Selection::from(&Files {
            filename: self.filename.clone(),
            ..Files::default()
        });
        for target in resources::targets(session, &selection, &words, false).await? {
            let object = target.get(session).await?;
            let how = (profile, custom.as_ref());
            let (pod, container) = match target.resource.kind.as_str() {
                "Node" => self.on_node(session, &target.name, how).await?,
                "Pod" if !self.copy_to.is_empty() => {
                    self.by_copy(session, &target, &object, how).await?
                }
                "Pod" => self.inside(session, &target, &object, how).await?,
                kind => {
                    let Resource { group, version, .. } = &target.resource;
                    bail!("\"{group}/{version}, Kind={kind}\" not supported by debug")
                }
            };
            if self.attach.unwrap_or(self.stdin) && !container.is_empty() {
                self.attach(session, &pod, &container).await?;
            }
        }
        Ok(())
    }

    /// Rejects conflicting flags before any request is sent.
    fn check(&self, custom: Option<&Value>) -> Result<()> {
        self.variables()?;
        let has_image = !self.image.is_empty();
        let has_container = !self.container.is_empty();
        if self.attach == Some(true) && !has_image && !has_container {
            bail!(
                "you must specify --container or create a new container using --image in order to attach."
            );
        }
        self.check_copy(has_image, has_container)?;
        if has_image && !is_reference(&self.image) {
            bail!(
                "invalid image name {:?}: invalid reference format",
                self.image
            );
        }
        if self.words.is_empty() && self.filename.is_empty() {
            bail!("NAME or filename is required for debug");
        }
        match self.image_pull_policy.as_deref() {
            None | Some("" | "Always" | "IfNotPresent" | "Never") => {}
            Some(other) => bail!("invalid image pull policy: {other}"),
        }
        for (name, image) in self.images()? {
            if !is_reference(image) {
                bail!(
                    "invalid image name {image:?} for container {name:?}: invalid reference format"
                );
            }
        }
        if !self.target.is_empty() {
            if !self.copy_to.is_empty() {
                bail!("--target is incompatible with --copy-to. Use --share-processes instead.");
            }
            if !self.quiet {
                println!(
                    "Targeting container {:?}. If you don't see processes from this container it may be because the container runtime doesn't support this feature.",
                    self.target
                );
            }
        }
        if self.tty && !self.stdin {
            bail!("-i/--stdin is required for containers with -t/--tty=true");
        }
        let fixed = ["name", "command", "image", "lifecycle", "volumeDevices"];
        let is_changed = |custom: &Value| fixed.iter().any(|field| custom.get(field).is_some());
        if custom.is_some_and(is_changed) {
            bail!(
                "name, command, image, lifecycle and volume devices are not modifiable via custom profile"
            );
        }
        if self.profile == "legacy" {
            eprintln!(
                "--profile=legacy is deprecated and planned to be removed in v1.39. It is recommended to specify other profile, for example \"--profile=general\"."
            );
        }
        Ok(())
    }

    fn check_copy(&self, has_image: bool, has_container: bool) -> Result<()> {
        let has_images = !self.set_image.is_empty();
        let has_command = !self.command.is_empty();
        if !self.copy_to.is_empty() {
            if !has_image && !has_images && !has_command {
                bail!("you must specify --image, --set-image or command arguments.");
            }
            if has_command && !has_container && !has_image {
                bail!(
                    "you must specify an existing container or a new image when specifying args."
                );
            }
            return Ok(());
        }
        for (is_set, flag) in [
            (self.replace, "--replace"),
            (self.same_node, "--same-node"),
            (has_images, "--set-image"),
        ] {
            if is_set {
                bail!("{flag} may only be used with --copy-to.");
            }
        }
        match has_image {
            true => Ok(()),
            false => bail!("you must specify --image when not using --copy-to."),
        }
    }

    /// The pairs of `--set-image`.
    fn images(&self) -> Result<Vec<(&str, &str)>> {
        pairs("set-image", &self.set_image)
    }

    fn variables(&self) -> Result<Vec<Value>> {
        let mut variables = Vec::new();
        for text in &self.env {
            for (name, value) in pairs("env", std::slice::from_ref(text))? {
                variables.push(match value {
                    "" => json!({"name": name}),
                    value => json!({"name": name, "value": value}),
                });
            }
        }
        Ok(variables)
    }

    /// The fields that flags name, in a container.
    fn set_fields(&self, container: &mut Value) -> Result<()> {
        let field = match self.arguments_only {
            true => "args",
            false => "command",
        };
        if !self.command.is_empty() {
            container[field] = json!(self.command);
            if let (false, Some(fields)) = (self.arguments_only, container.as_object_mut()) {
                fields.remove("args");
            }
        }
        let variables = self.variables()?;
        if !variables.is_empty() {
            container["env"] = json!(variables);
        }
        if !self.image.is_empty() {
            container["image"] = json!(self.image);
        }
        if let Some(policy) = self.image_pull_policy.as_deref().filter(|p| !p.is_empty()) {
            container["imagePullPolicy"] = json!(policy);
        }
        for (is_set, field) in [(self.stdin, "stdin"), (self.tty, "tty")] {
            match (is_set, container.as_object_mut()) {
                (true, _) => container[field] = json!(true),
                (false, Some(fields)) => drop(fields.remove(field)),
                (false, None) => {}
            }
        }
        Ok(())
    }

    /// A container for debugging.
    fn debug_container(
        &self,
        name: &str,
        (profile, custom): How<'_>,
        style: Style,
    ) -> Result<Value> {
        let mut container = json!({"name": name, "terminationMessagePolicy": "File"});
        self.set_fields(&mut container)?;
        profile.change_container(&mut container, style);
        customised(container, custom)
    }

    /// The file of `--custom`.
    fn custom_container(&self) -> Result<Option<Value>> {
        let named = self.custom.as_ref();
        let Some(path) = named.filter(|path| !path.as_os_str().is_empty()) else {
            return Ok(None);
        };
        let text = std::fs::read_to_string(path).map_err(|error| {
            let reason = error::io_reason(&error);
            anyhow::anyhow!(
                "must pass a container spec json file for custom profile: open {}: {reason}",
                path.display()
            )
        })?;
        let custom = serde_saphyr::from_str(&text).with_context(|| {
            format!("{} does not contain a valid container spec", path.display())
        })?;
        Ok(Some(custom))
    }

    fn name_for(&self, pod: &Value) -> String {
        if !self.container.is_empty() {
            return self.container.clone();
        }
        let fields = ["containers", "initContainers", "ephemeralContainers"];
        let taken: Vec<String> = fields
            .iter()
            .flat_map(|field| streams::container_names(pod, field))
            .collect();
        let name = (0..)
            .map(|_| format!("debugger-{}", suffix()))
            .find(|name| !taken.contains(name))
            .unwrap_or_default();
        if !self.quiet {
            println!("Defaulting debug container name to {name}.");
        }
        name
    }

    /// Adds an ephemeral container to the pod.
    async fn inside(
        &self,
        session: &Session,
        target: &Target,
        pod: &Value,
        how: How<'_>,
    ) -> Result<(Value, String)> {
        let name = self.name_for(pod);
        let mut container = self.debug_container(&name, how, Style::Ephemeral)?;
        if !self.target.is_empty() {
            container["targetContainerName"] = json!(self.target);
        }
        warn_if_weakened(pod, &container);
        // Without an order the new one would be the first.
        let known = list(&pod["spec"]["ephemeralContainers"]).map(|one| str_of(&one["name"]));
        let order: Vec<Value> = known
            .chain([name.as_str()])
            .map(|name| json!({"name": name}))
            .collect();
        let patch = json!({"spec": {
            "$setElementOrder/ephemeralContainers": order, "ephemeralContainers": [container]}});
        let path = format!("{}/ephemeralcontainers", target.path());
        let query: Query = Vec::new();
        let changed = session
            .api
            .patch(&path, PatchType::Strategic, &patch, &query)
            .await;
        let changed = changed.map_err(|error| match error::code_is(&error, 404) {
            true => anyhow::anyhow!(
                "ephemeral containers are disabled for this cluster (error from server: {:?})",
                error::message(&error)
            ),
            false => error,
        })?;
        Ok((changed, name))
    }

    /// Makes a copy of the pod with a debugging container or changed images.
    async fn by_copy(
        &self,
        session: &Session,
        target: &Target,
        pod: &Value,
        how: How<'_>,
    ) -> Result<(Value, String)> {
        let (copy, name) = self.copy(pod, how)?;
        let debugger = list(&copy["spec"]["containers"]).find(|one| one["name"] == name.as_str());
        if let Some(debugger) = debugger {
            warn_if_weakened(&copy, debugger);
        }
        let created = session.api.create(&target.collection(), &copy, &[]).await?;
        if self.replace {
            let now = json!({"gracePeriodSeconds": 0});
            session.api.delete(&target.path(), &now).await?;
        }
        Ok((created, name))
    }

    /// The copy, and the name of its debugging container; empty if only images were changed.
    fn copy(&self, pod: &Value, (profile, custom): How<'_>) -> Result<(Value, String)> {
        let mut copy = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": self.copy_to}, "spec": pod["spec"]});
        for field in ["namespace", "annotations", "labels"] {
            if let Some(value) = pod["metadata"].get(field) {
                copy["metadata"][field] = value.clone();
            }
        }
        if let Some(spec) = copy.pointer_mut("/spec").and_then(Value::as_object_mut) {
            spec.remove("ephemeralContainers");
            if !self.same_node {
                spec.remove("nodeName");
            }
            if let Some(share) = self.share_processes {
                spec.insert("shareProcessNamespace".into(), json!(share));
            }
        }
        self.change_images(&mut copy)?;
        let fields = ["containers", "initContainers"];
        let field = fields.into_iter().find(|field| {
            list(&copy["spec"][*field]).any(|one| one["name"] == self.container.as_str())
        });
        let (field, name) = match field {
            Some(field) => (field, self.container.clone()),
            None if self.image.is_empty() && !self.set_image.is_empty() => {
                return Ok((copy, String::new()));
            }
            None if self.image.is_empty() => {
                bail!("you must specify image when creating new container")
            }
            None => {
                let name = self.name_for(&copy);
                let added = json!({"name": name, "terminationMessagePolicy": "File"});
                let containers = copy.pointer_mut("/spec/containers");
                if let Some(containers) = containers.and_then(Value::as_array_mut) {
                    containers.push(added);
                }
                ("containers", name)
            }
        };
        let containers = copy["spec"][field].as_array_mut();
        let mut containers = containers.into_iter().flatten();
        if let Some(container) = containers.find(|one| one["name"] == name.as_str()) {
            self.set_fields(container)?;
            profile.change_container(container, Style::Copy);
            *container = customised(container.take(), custom)?;
        }
        self.change_copy(profile, &mut copy);
        Ok((copy, name))
    }

    fn change_images(&self, pod: &mut Value) -> Result<()> {
        let images = self.images()?;
        let image_for = |wanted: &str| {
            let found = images.iter().rev().find(|(name, _)| *name == wanted);
            found.map(|(_, image)| *image)
        };
        let containers = pod.pointer_mut("/spec/containers");
        let containers = containers.and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            if let Some(image) = image_for(str_of(&container["name"])).or(image_for("*")) {
                container["image"] = json!(image);
            }
        }
        Ok(())
    }

    /// A pod on the node, with what the profile allows of the node.
    async fn on_node(
        &self,
        session: &Session,
        node: &str,
        how: How<'_>,
    ) -> Result<(Value, String)> {
        let name = match self.container.as_str() {
            "" => "debugger",
            name => name,
        };
        let container = self.debug_container(name, how, Style::Node)?;
        let pod_name = format!("node-debugger-{node}-{}", suffix());
        let mut spec = json!({
            "containers": [container], "nodeName": node, "restartPolicy": "Never",
            "tolerations": [{"operator": "Exists"}]});
        how.0.change_node_pod(&mut spec);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": pod_name, "labels": {"app.kubernetes.io/managed-by": "kubectl-debug"}},
            "spec": spec});
        if !self.quiet {
            println!("Creating debugging pod {pod_name} with container {name} on node {node}.");
        }
        let path = format!("/api/v1/namespaces/{}/pods", session.namespace);
        let created = session.api.create(&path, &pod, &[]).await?;
        Ok((created, name.to_owned()))
    }

    /// Attaches to the container once it runs; one that has ended, or that cannot be attached to, has a log.
    async fn attach(&self, session: &Session, pod: &Value, container: &str) -> Result<()> {
        let resource = session.discovery.resolve("pods").await?;
        let mut target = resources::target(
            session,
            resource,
            str_of(&pod["metadata"]["name"]).to_owned(),
        );
        target.namespace = str_of(&pod["metadata"]["namespace"]).to_owned();
        let mut live = None;
        wait::until(session, &target, |object| {
            live = object.cloned();
            let Some(object) = object else { return true };
            let Some(state) = state_of(object, container) else {
                return false;
            };
            let message = str_of(&state["waiting"]["message"]);
            if !self.quiet && !message.is_empty() {
                print_warning(&format!("container {container}: {message}"));
            }
            !state["running"].is_null() || !state["terminated"].is_null()
        })
        .await?;
        let Some(live) = live else {
            return Err(
                error::Plain("Error from server (NotFound): pods \"\" not found".into()).into(),
            );
        };
        let has_ended =
            state_of(&live, container).is_some_and(|state| !state["terminated"].is_null());
        if has_ended {
            return streams::print_log(session, &target.path(), Some(container)).await;
        }
        let wanted = SessionStreams {
            stdin: self.stdin,
            tty: self.tty,
            quiet: self.quiet,
            detach_keys: Some(crate::detach::DEFAULT),
        };
        let attached = streams::interactive(session, &live, container, "attach", &[], wanted).await;
        let Err(error) = attached else { return Ok(()) };
        eprintln!(
            "warning: couldn't attach to pod/{}, falling back to streaming logs: {error:#}",
            target.name
        );
        streams::print_log(session, &target.path(), Some(container)).await
    }
}

/// The state of one of a pod's containers.
fn state_of<'a>(pod: &'a Value, container: &str) -> Option<&'a Value> {
    for field in [
        "initContainerStatuses",
        "containerStatuses",
        "ephemeralContainerStatuses",
    ] {
        let mut statuses = list(&pod["status"][field]);
        if let Some(status) = statuses.find(|status| status["name"] == container) {
            return Some(&status["state"]);
        }
    }
    None
}

/// A profile, and the fields of a custom one.
type How<'a> = (Profile, Option<&'a Value>);

/// The container with the custom profile merged in.
fn customised(container: Value, custom: Option<&Value>) -> Result<Value> {
    let Some(custom) = custom else {
        return Ok(container);
    };
    let mut custom = custom.clone();
    custom["name"] = container["name"].clone();
    let pod = |container: Value| json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container]}});
    let merged = crate::merge::apply(&pod(container), PatchType::Strategic, &pod(custom))?;
    Ok(merged["spec"]["containers"][0].clone())
}

fn is_reference(image: &str) -> bool {
    image.starts_with(|first: char| first.is_ascii_alphanumeric())
        && !image.contains(char::is_whitespace)
}

/// `KEY=VALUE,…` of a flag.
fn pairs<'a>(flag: &str, texts: &'a [String]) -> Result<Vec<(&'a str, &'a str)>> {
    let mut pairs = Vec::new();
    for text in texts {
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            pairs.push(pair.split_once('=').with_context(|| {
                format!(
                    "invalid argument {text:?} for \"--{flag}\" flag: {pair} must be formatted as key=value\n\
                     See 'kubectl debug --help' for usage."
                )
            })?);
        }
    }
    Ok(pairs)
}

fn warn_if_weakened(pod: &Value, container: &Value) {
    if is_weakened(pod, container) {
        eprintln!(
            "Warning: Non-root user is configured for the entire target Pod, and some capabilities granted by debug profile may not work. Please consider using \"--custom\" with a custom profile that specifies \"securityContext.runAsUser: 0\"."
        );
    }
}

/// Five random characters for a unique name.
fn suffix() -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let id = uuid::Uuid::new_v4();
    id.as_bytes()[..5]
        .iter()
        .map(|byte| LETTERS[usize::from(*byte) % LETTERS.len()] as char)
        .collect()
}
