//! `kubectl debug`: an ephemeral container in a pod, a changed copy of a pod, or a pod on a node.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    api::{PatchType, Query},
    args::Selection,
    discovery::Resource,
    error,
    json::{list, str_of},
    resources::{self, Target},
    session::Session,
    streams::{self, Wanted},
};

use super::wait;

/// Flags of `debug`.
#[derive(Debug, Args)]
pub(crate) struct Debug {
    /// POD, TYPE/NAME or node/NAME
    words: Vec<String>,
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
    #[arg(long, default_value = "")]
    set_image: String,
    /// With --copy-to: share the process namespace
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    share_processes: bool,
    /// With --copy-to: keep the labels
    #[arg(long)]
    keep_labels: bool,
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
        if self.image.is_empty() && self.set_image.is_empty() && self.copy_to.is_empty() {
            bail!("you must specify --image when not using --copy-to.");
        }
        if self.words.is_empty() {
            return Err(error::usage(
                "debug",
                "NAME or TYPE/NAME is required for debug",
            ));
        }
        self.check()?;
        let words: Vec<String> = match self.words.as_slice() {
            [one] if !one.contains('/') => vec![format!("pods/{one}")],
            words => words.to_vec(),
        };
        for target in resources::targets(session, &Selection::default(), &words, false).await? {
            let object = target.get(session).await?;
            let (pod, container) = match target.resource.kind.as_str() {
                "Node" => self.on_node(session, &target.name).await?,
                "Pod" if !self.copy_to.is_empty() => self.copy(session, &target, &object).await?,
                "Pod" => self.inside(session, &target, &object).await?,
                kind => {
                    let Resource { group, version, .. } = &target.resource;
                    bail!("\"{group}/{version}, Kind={kind}\" not supported by debug")
                }
            };
            if self.attach.unwrap_or(self.stdin) {
                self.attach(session, &pod, &container).await?;
            }
        }
        Ok(())
    }

    /// Rejects conflicting flags before any request is sent.
    fn check(&self) -> Result<()> {
        if self.copy_to.is_empty() {
            for (is_set, flag) in [
                (self.replace, "--replace"),
                (self.same_node, "--same-node"),
                (!self.set_image.is_empty(), "--set-image"),
            ] {
                if is_set {
                    bail!("{flag} may only be used with --copy-to.");
                }
            }
        } else if !self.target.is_empty() {
            bail!("--target is incompatible with --copy-to. Use --share-processes instead.");
        }
        for variable in &self.env {
            if !variable.contains('=') {
                bail!(
                    "invalid argument {variable:?} for \"--env\" flag: {variable} must be formatted as key=value\n\
                     See 'kubectl debug --help' for usage."
                );
            }
        }
        let image = &self.image;
        if !image.is_empty() && !image.starts_with(|first: char| first.is_ascii_alphanumeric()) {
            bail!("invalid image name {image:?}: invalid reference format");
        }
        match self.image_pull_policy.as_deref() {
            None | Some("" | "Always" | "IfNotPresent" | "Never") => {}
            Some(other) => bail!("invalid image pull policy: {other}"),
        }
        match self.profile.as_str() {
            "general" | "baseline" | "legacy" | "restricted" | "netadmin" | "sysadmin" => Ok(()),
            other => bail!("unknown profile: {other}"),
        }
    }

    fn debug_container(&self, name: &str) -> Result<Value> {
        let mut container = json!({"name": name, "image": self.image});
        if !self.command.is_empty() {
            container[if self.arguments_only {
                "args"
            } else {
                "command"
            }] = json!(self.command);
        }
        for variable in &self.env {
            let (key, value) = variable
                .split_once('=')
                .with_context(|| format!("invalid env: {variable}"))?;
            if !container["env"].is_array() {
                container["env"] = json!([]);
            }
            if let Some(env) = container.pointer_mut("/env").and_then(Value::as_array_mut) {
                env.push(json!({"name": key, "value": value}));
            }
        }
        if let Some(policy) = &self.image_pull_policy {
            container["imagePullPolicy"] = json!(policy);
        }
        if self.stdin {
            container["stdin"] = json!(true);
        }
        if self.tty {
            container["tty"] = json!(true);
        }
        match self.profile.as_str() {
            "general" => {
                container["securityContext"] = json!({"capabilities": {"add": ["SYS_PTRACE"]}})
            }
            "baseline" | "legacy" => {}
            "restricted" => {
                container["securityContext"] = json!({
                    "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true,
                    "seccompProfile": {"type": "RuntimeDefault"}});
            }
            "netadmin" => {
                container["securityContext"] =
                    json!({"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}})
            }
            "sysadmin" => container["securityContext"] = json!({"privileged": true}),
            other => bail!("unknown profile: {other}"),
        }
        self.customised(container)
    }

    /// The container with the custom profile merged in.
    fn customised(&self, container: Value) -> Result<Value> {
        let Some(path) = &self.custom else {
            return Ok(container);
        };
        let text = std::fs::read_to_string(path).map_err(|error| {
            let reason = error::io_reason(&error);
            anyhow::anyhow!(
                "must pass a container spec json file for custom profile: open {}: {reason}",
                path.display()
            )
        })?;
        let mut custom: Value = serde_saphyr::from_str(&text).with_context(|| {
            format!("{} does not contain a valid container spec", path.display())
        })?;
        let fixed = ["name", "command", "image", "lifecycle", "volumeDevices"];
        if fixed.iter().any(|field| custom.get(field).is_some()) {
            bail!(
                "name, command, image, lifecycle and volume devices are not modifiable via custom profile"
            );
        }
        custom["name"] = container["name"].clone();
        let pod = |container: Value| json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container]}});
        let merged = crate::merge::apply(&pod(container), PatchType::Strategic, &pod(custom))?;
        Ok(merged["spec"]["containers"][0].clone())
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
    ) -> Result<(Value, String)> {
        if self.image.is_empty() {
            bail!("--image is required");
        }
        let name = self.name_for(pod);
        let mut container = self.debug_container(&name)?;
        container["terminationMessagePolicy"] = json!("File");
        if !self.target.is_empty() {
            if !self.quiet {
                println!(
                    "Targeting container {:?}. If you don't see processes from this container it may be because the container runtime doesn't support this feature.",
                    self.target
                );
            }
            container["targetContainerName"] = json!(self.target);
        }
        let patch = json!({"spec": {"ephemeralContainers": [container]}});
        let path = format!("{}/ephemeralcontainers", target.path());
        let query: Query = Vec::new();
        let changed = session
            .api
            .patch(&path, PatchType::Strategic, &patch, &query)
            .await;
        let changed = changed.map_err(|error| match error::code_is(&error, 404) {
            true => anyhow::anyhow!(
                "ephemeral containers are disabled for this cluster (error from server: {error})."
            ),
            false => error,
        })?;
        Ok((changed, name))
    }

    /// Copies the pod with the debug container, or with other images.
    async fn copy(
        &self,
        session: &Session,
        target: &Target,
        pod: &Value,
    ) -> Result<(Value, String)> {
        let mut copy = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": self.copy_to}, "spec": pod["spec"]});
        let mut fields = vec!["annotations"];
        if self.keep_labels {
            fields.push("labels");
        }
        for field in fields {
            if let Some(value) = pod["metadata"].get(field) {
                copy["metadata"][field] = value.clone();
            }
        }
        if let Some(spec) = copy.pointer_mut("/spec").and_then(Value::as_object_mut) {
            spec.remove("ephemeralContainers");
            if !self.same_node {
                spec.remove("nodeName");
            }
            spec.insert("shareProcessNamespace".into(), json!(self.share_processes));
        }
        for container in copy
            .pointer_mut("/spec/containers")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(container) = container.as_object_mut() {
                ["livenessProbe", "readinessProbe", "startupProbe"]
                    .iter()
                    .for_each(|probe| drop(container.remove(*probe)));
            }
        }
        self.change_images(&mut copy)?;
        let known =
            list(&copy["spec"]["containers"]).any(|one| one["name"] == self.container.as_str());
        let name = match (self.image.is_empty(), known) {
            (true, _) => streams::container_of(&copy, Some(&self.container), true)?,
            (false, true) => self.container.clone(),
            (false, false) => self.name_for(pod),
        };
        if !self.image.is_empty() {
            let debugger = self.debug_container(&name)?;
            if let Some(containers) = copy
                .pointer_mut("/spec/containers")
                .and_then(Value::as_array_mut)
            {
                match containers
                    .iter_mut()
                    .find(|one| one["name"] == name.as_str())
                {
                    Some(container) => {
                        for (key, value) in debugger.as_object().into_iter().flatten() {
                            container[key.as_str()] = value.clone();
                        }
                    }
                    None => containers.push(debugger),
                }
            }
        }
        if self.replace {
            session
                .api
                .delete(&target.path(), &json!({"gracePeriodSeconds": 0}))
                .await?;
        }
        let created = session.api.create(&target.collection(), &copy, &[]).await?;
        Ok((created, name))
    }

    fn change_images(&self, pod: &mut Value) -> Result<()> {
        for pair in self.set_image.split(',').filter(|pair| !pair.is_empty()) {
            let (name, image) = pair.split_once('=').with_context(|| {
                format!("invalid --set-image {pair:?}, expected container=image")
            })?;
            for container in pod
                .pointer_mut("/spec/containers")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                if name == "*" || container["name"] == name {
                    container["image"] = json!(image);
                }
            }
        }
        Ok(())
    }

    /// A pod on the node, with the node's file system at /host.
    async fn on_node(&self, session: &Session, node: &str) -> Result<(Value, String)> {
        let name = if self.container.is_empty() {
            "debugger".to_owned()
        } else {
            self.container.clone()
        };
        let mut container = self.debug_container(&name)?;
        container["volumeMounts"] = json!([{"mountPath": "/host", "name": "host-root"}]);
        if self.profile == "general"
            && let Some(container) = container.as_object_mut()
        {
            container.remove("securityContext");
        }
        let pod_name = format!("node-debugger-{node}-{}", suffix());
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": pod_name, "labels": {"app.kubernetes.io/managed-by": "kubectl-debug"}},
            "spec": {
                "containers": [container], "hostIPC": true, "hostNetwork": true, "hostPID": true, "nodeName": node,
                "restartPolicy": "Never", "tolerations": [{"operator": "Exists"}],
                "volumes": [{"name": "host-root", "hostPath": {"path": "/"}}]}});
        println!("Creating debugging pod {pod_name} with container {name} on node {node}.");
        let path = format!("/api/v1/namespaces/{}/pods", session.namespace);
        Ok((session.api.create(&path, &pod, &[]).await?, name))
    }

    async fn attach(&self, session: &Session, pod: &Value, container: &str) -> Result<()> {
        let resource = session.discovery.resolve("pods").await?;
        let mut target = resources::target(
            session,
            resource,
            str_of(&pod["metadata"]["name"]).to_owned(),
        );
        target.namespace = str_of(&pod["metadata"]["namespace"]).to_owned();
        let mut live = pod.clone();
        wait::until(session, &target, |object| {
            let Some(object) = object else { return true };
            live = object.clone();
            let statuses = ["containerStatuses", "ephemeralContainerStatuses"]
                .iter()
                .flat_map(|field| list(&object["status"][*field]));
            let mut own = statuses.filter(|status| status["name"] == container);
            own.any(|status| {
                !status["state"]["running"].is_null() || !status["state"]["terminated"].is_null()
            })
        })
        .await?;
        let wanted = Wanted {
            stdin: self.stdin,
            tty: self.tty,
            quiet: self.quiet,
        };
        streams::interactive(session, &live, container, "attach", &[], wanted).await
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
