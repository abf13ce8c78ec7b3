//! `kubectl create`: from files, or from flags. Each kind that can be created by flags has a
//! generator.

mod data;
mod network;
mod policy;
mod rbac;
mod token;
mod workload;

pub(crate) use data::content_hash;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};

use crate::{
    api::Query,
    args::{DryRun, Files, Validate},
    error,
    json::{list, str_of},
    manifest::{self, Manifest},
    output::PrintFlags,
    resources::{Target, of_each, retain, target_of},
    session::Session,
};

use super::{apply::annotate, report::Report};

/// Flags of `create`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Create {
    #[command(flatten)]
    files: Files,
    /// Only objects of the files whose labels match
    #[arg(short = 'l', long, value_name = "QUERY")]
    selector: Option<String>,
    /// Edit the object before it is created
    #[arg(long)]
    edit: bool,
    /// With --edit: end lines as Windows does
    #[arg(long)]
    windows_line_endings: bool,
    /// Raw URI to POST the file to
    #[arg(long, value_name = "URI")]
    raw: Option<String>,
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    generator: Option<Generator>,
}

/// Flags of `create` and all its generators.
#[derive(Debug, Clone, Args)]
pub(super) struct Common {
    #[command(flatten)]
    print: PrintFlags,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(flatten)]
    validate: Validate,
    /// Name of the manager used to track field ownership
    #[arg(long, default_value = "kubectl-create", value_name = "NAME")]
    field_manager: String,
    /// Save the configuration of the object in its annotation, for later applies
    #[arg(long)]
    save_config: bool,
}

/// Objects that can be created from flags alone.
#[derive(Debug, Subcommand)]
enum Generator {
    /// Create a cluster role
    Clusterrole(rbac::ClusterRole),
    /// Create a cluster role binding for a particular cluster role
    Clusterrolebinding(rbac::ClusterRoleBinding),
    /// Create a config map from a local file, directory or literal value
    #[command(alias = "cm")]
    Configmap(data::ConfigMap),
    /// Create a cron job with the specified name
    #[command(alias = "cj")]
    Cronjob(workload::CronJob),
    /// Create a deployment with the specified name
    #[command(alias = "deploy")]
    Deployment(workload::Deployment),
    /// Create an ingress with the specified name
    #[command(alias = "ing")]
    Ingress(network::Ingress),
    /// Create a job with the specified name
    Job(workload::Job),
    /// Create a namespace with the specified name
    #[command(alias = "ns")]
    Namespace(policy::Namespace),
    /// Create a pod disruption budget with the specified name
    #[command(alias = "pdb")]
    Poddisruptionbudget(policy::PodDisruptionBudget),
    /// Create a priority class with the specified name
    #[command(alias = "pc")]
    Priorityclass(policy::PriorityClass),
    /// Create a quota with the specified name
    #[command(alias = "resourcequota")]
    Quota(policy::Quota),
    /// Create a role with single rule
    Role(rbac::Role),
    /// Create a role binding for a particular role or cluster role
    Rolebinding(rbac::RoleBinding),
    /// Create a secret using a specified subcommand
    #[command(subcommand)]
    Secret(data::Secret),
    /// Create a service using a specified subcommand
    #[command(alias = "svc", subcommand)]
    Service(network::Service),
    /// Create a service account with the specified name
    #[command(alias = "sa")]
    Serviceaccount(policy::ServiceAccount),
    /// Request a service account token
    Token(token::Token),
}

/// An object that a generator made.
pub(super) struct Generated {
    pub object: Value,
    /// Upstream's noun in `failed to create …`; empty if it passes on the server's message.
    pub noun: &'static str,
}

impl Generated {
    pub(super) fn new(object: Value, noun: &'static str) -> Self {
        Self { object, noun }
    }
}

impl Create {
    pub(crate) async fn run(mut self, session: &Session) -> Result<()> {
        if let Some(path) = &self.raw {
            if self.edit {
                bail!("--raw and --edit are mutually exclusive");
            }
            if self.selector.is_some() {
                bail!("--raw and --selector (-l) are mutually exclusive");
            }
            let print = &self.common.print;
            return super::raw::send(session, Method::POST, path, &self.files, print).await;
        }
        match self.generator.take() {
            Some(Generator::Token(token)) => token.run(session).await,
            Some(generator) => {
                let (generated, common) = generator.generate(session).await?;
                common.create(session, generated).await
            }
            None => self.create_files(session).await,
        }
    }

    async fn create_files(&self, session: &Session) -> Result<()> {
        let report = Report::new(&self.common.print, self.common.dry_run.mode()?)?;
        self.common.validate.parameter()?;
        if self.files.is_empty() {
            bail!("must specify one of -f and -k");
        }
        let is_validated = self.common.validate.is_on();
        let mut found = manifest::read_each(&self.files, is_validated).await?;
        retain(&mut found, self.selector.as_deref())?;
        if found.is_empty() {
            bail!("no objects passed to create");
        }
        let (targets, left_out) = of_each(session, found).await;
        if self.edit {
            self.edit_and_create(session, targets, &report).await?;
            return error::join(Ok(()), left_out);
        }
        let mut errors = Vec::new();
        for target in targets {
            let created = self.common.create_target(session, &target, &report).await;
            errors.extend(created.err());
        }
        error::join(error::aggregate(errors), left_out)
    }
}

impl Create {
    /// Creates objects as they were edited; what was edited in vain is kept in its file.
    async fn edit_and_create(
        &self,
        session: &Session,
        targets: Vec<Target>,
        report: &Report,
    ) -> Result<()> {
        let mut editor = super::editor::Editor::new(&self.common.print, self.windows_line_endings)?;
        for target in targets {
            let before = target.manifest.unwrap_or_default();
            let Some(object) = editor.edit_one(&before)? else {
                continue;
            };
            let source = String::new();
            let target = target_of(session, Manifest { object, source }).await?;
            let created = self.common.create_target(session, &target, report).await;
            if created.is_err() {
                editor.keep_copy()?;
                return created;
            }
        }
        Ok(())
    }
}

impl Common {
    fn query(&self) -> Result<Query> {
        let mut query = vec![
            self.validate.parameter()?,
            ("fieldManager", self.field_manager.clone()),
        ];
        query.extend(self.dry_run.mode()?.parameter());
        Ok(query)
    }

    async fn create_target(
        &self,
        session: &Session,
        target: &Target,
        report: &Report,
    ) -> Result<()> {
        let mut object = target.manifest.clone().unwrap_or_default();
        if self.save_config {
            annotate(&mut object);
        }
        session.record(&mut object);
        if self.dry_run.mode()?.is_client() {
            return report.print(&object, "created");
        }
        // An object that was read from a server is created anew.
        if let Some(metadata) = object
            .pointer_mut("/metadata")
            .and_then(Value::as_object_mut)
        {
            metadata.remove("resourceVersion");
        }
        let created = session
            .api
            .create(&target.collection(), &object, &self.query()?)
            .await;
        let created =
            created.map_err(|error| error::with_source(error, "creating", &target.source));
        let created =
            created.map_err(|error| crate::hint::with_fields(error, &object, &target.source))?;
        report.print(&created, "created")
    }

    /// Creates what a generator made.
    async fn create(&self, session: &Session, generated: Generated) -> Result<()> {
        self.validate.parameter()?;
        let Generated { object, noun } = generated;
        let mut object = crate::merge::typed(&object);
        let report = Report::new(&self.print, self.dry_run.mode()?)?;
        let (version, kind) = (
            str_of(&object["apiVersion"]).to_owned(),
            str_of(&object["kind"]).to_owned(),
        );
        let is_namespaced = schema_is_namespaced(&kind);
        if is_namespaced && session.namespace_given {
            object["metadata"]["namespace"] = json!(session.namespace);
        }
        if self.save_config {
            annotate_generated(&mut object);
        }
        if self.dry_run.mode()?.is_client() {
            return report.say_typed(&object, "created");
        }
        let Some(resource) = session.discovery.of_kind(&version, &kind).await? else {
            bail!("the server doesn't have a resource type \"{kind}\"");
        };
        let path = resource.collection(Some(&session.namespace));
        let created = session.api.create(&path, &object, &self.query()?).await;
        let created =
            created.map_err(
                |error| match (noun, error.downcast::<error::ServerError>()) {
                    ("", Ok(error)) => error.into(),
                    (noun, Ok(error::ServerError(status))) => {
                        anyhow::anyhow!("failed to create {noun} {}", status.message)
                    }
                    (_, Err(error)) => error,
                },
            )?;
        report.say_typed(&created, "created")
    }
}

/// Whether a generated kind is namespaced.
fn schema_is_namespaced(kind: &str) -> bool {
    !matches!(
        kind,
        "Namespace" | "ClusterRole" | "ClusterRoleBinding" | "PriorityClass"
    )
}

impl Generator {
    async fn generate(self, session: &Session) -> Result<(Generated, Common)> {
        Ok(match self {
            Self::Clusterrole(one) => (one.generate(session).await?, one.common),
            Self::Clusterrolebinding(one) => (one.generate()?, one.common),
            Self::Configmap(one) => (one.generate()?, one.common),
            Self::Cronjob(one) => (one.generate()?, one.common),
            Self::Deployment(one) => (one.generate()?, one.common),
            Self::Ingress(one) => (one.generate()?, one.common),
            Self::Job(one) => (one.generate(session).await?, one.common),
            Self::Namespace(one) => (one.generate(), one.common),
            Self::Poddisruptionbudget(one) => (one.generate()?, one.common),
            Self::Priorityclass(one) => (one.generate(), one.common),
            Self::Quota(one) => (one.generate()?, one.common),
            Self::Role(one) => (one.generate(session).await?, one.common),
            Self::Rolebinding(one) => (one.generate()?, one.common),
            Self::Secret(one) => one.generate()?,
            Self::Service(one) => one.generate()?,
            Self::Serviceaccount(one) => (one.generate(), one.common),
            Self::Token(_) => bail!("a token is requested, not generated"),
        })
    }
}

/// Creates an object of another command, such as the service of `expose`.
pub(super) async fn create_object(
    session: &Session,
    mut object: Value,
    query: &Query,
    dry_run: crate::args::DryRunMode,
) -> Result<Value> {
    session.record(&mut object);
    let (version, kind) = (str_of(&object["apiVersion"]), str_of(&object["kind"]));
    if dry_run.is_client() {
        return Ok(object);
    }
    let Some(resource) = session.discovery.of_kind(version, kind).await? else {
        bail!("no matches for kind {kind:?} in version {version:?}");
    };
    let namespace = match str_of(&object["metadata"]["namespace"]) {
        "" => session.namespace.clone(),
        given => given.to_owned(),
    };
    session
        .api
        .create(&resource.collection(Some(&namespace)), &object, query)
        .await
}

/// Sets the last-applied annotation of a generated object, written as Go's types are.
fn annotate_generated(object: &mut Value) {
    let note = format!("{object}\n");
    object["metadata"]["annotations"][super::apply::LAST_APPLIED] = Value::String(note);
}

/// The container's name: the last part of the image's name.
pub(super) fn container_name(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    let last = last.split(['@', ':']).next().unwrap_or(last);
    let clean = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let name = last
        .chars()
        .map(clean)
        .collect::<String>()
        .trim_matches('-')
        .to_owned();
    // Invalid names are left to the server to reject.
    if name.is_empty() {
        last.to_owned()
    } else {
        name
    }
}

/// Makes container names unique by a number.
pub(super) fn unique_names(names: Vec<String>) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for name in names {
        let mut unique = name.clone();
        let mut at = 1;
        while out.contains(&unique) {
            at += 1;
            unique = format!("{name}-{at}");
        }
        out.push(unique);
    }
    out
}

/// `KEY=VALUE,…` as a map.
pub(super) fn pairs(text: &str) -> Result<Value> {
    if text.is_empty() {
        bail!("no label spec passed");
    }
    let mut map = serde_json::Map::new();
    for pair in text.split(',') {
        match pair.split_once('=') {
            Some((_, value)) if value.contains('=') => bail!("unexpected label spec: {pair}"),
            Some(("", _)) => bail!("unexpected empty label key"),
            Some((key, value)) => drop(map.insert(key.to_owned(), json!(value))),
            None => bail!("unexpected label spec: {pair}"),
        }
    }
    Ok(crate::json::sorted(&Value::Object(map)))
}

/// A number if it is one, else a string.
pub(super) fn int_or_string(text: &str) -> Value {
    text.parse::<i32>()
        .map_or_else(|_| json!(text), |number| json!(number))
}

/// Whether an object is in a list already.
pub(super) fn contains(values: &Value, value: &Value) -> bool {
    list(values).any(|known| known == value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_named_after_their_images() {
        for (image, name) in [
            ("nginx", "nginx"),
            ("registry.example:5000/team/my_app:v1.2", "my-app"),
            ("hello@sha256:abc", "hello"),
        ] {
            assert_eq!(container_name(image), name);
        }
        assert_eq!(unique_names(vec!["a".into(), "a".into()]), ["a", "a-2"]);
    }
}
