//! `kubectl apply`: three-way merge of the last applied, the live and the new configuration; or
//! server-side apply.

mod applyset;
mod conflict;
mod last_applied;
mod migrate;
pub(super) mod prune;
mod server_side;

use anyhow::{Result, anyhow, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    api::{PatchType, Query},
    args::{DryRun, DryRunMode, FilesOrSelector, Validate},
    error, hint,
    json::{self, str_of},
    manifest, merge,
    output::PrintFlags,
    resources::{Target, retain, target_of},
    session::Session,
    three_way,
};

use super::{delete::DeleteFlags, report::Report};

use applyset::ApplySet;
pub(super) use last_applied::{LAST_APPLIED, annotate, last_applied};

/// How often a patch is retried after a conflict.
const MAX_RETRIES: usize = 5;

/// Flags of `apply`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Apply {
    #[command(flatten)]
    selection: FilesOrSelector,
    /// Let the server merge
    #[arg(long)]
    server_side: bool,
    /// With --server-side: take fields from other managers
    #[arg(long)]
    force_conflicts: bool,
    /// Name of the manager used to track field ownership
    #[arg(long, value_name = "NAME")]
    field_manager: Option<String>,
    /// Values that differ from the last applied ones are overwritten
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    overwrite: bool,
    /// Delete objects that were applied before and are no longer in the files
    #[arg(long)]
    prune: bool,
    /// With --prune: the types to prune, as GROUP/VERSION/KIND
    #[arg(long, value_name = "GVK", value_delimiter = ',')]
    prune_allowlist: Vec<String>,
    /// With --prune: the ApplySet parent that records the applied objects, as [RESOURCE][.GROUP]/NAME; a plain name is a Secret
    #[arg(long, value_name = "PARENT")]
    applyset: Option<String>,
    /// With --prune: all objects of the types
    #[arg(long)]
    all: bool,
    /// With --server-side: apply to this subresource
    #[arg(long, value_name = "NAME", default_value = "")]
    subresource: String,
    /// Use the server's OpenAPI schema to compute patches
    // Patches are always computed with the built-in schema.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    #[allow(dead_code)]
    openapi_patch: bool,
    #[command(flatten)]
    how: DeleteFlags,
    #[command(flatten)]
    validate: Validate,
    #[command(flatten)]
    print: PrintFlags,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(subcommand)]
    command: Option<LastApplied>,
}

/// Commands about what was applied last.
#[derive(Debug, Subcommand)]
#[allow(clippy::enum_variant_names)] // Each variant is a command, by its name.
enum LastApplied {
    /// Edit latest last-applied-configuration annotations of a resource or object
    EditLastApplied(last_applied::Edit),
    /// Set the last-applied-configuration annotation on a live object to match the contents of a file
    SetLastApplied(last_applied::Set),
    /// View the latest last-applied-configuration annotations of a resource or object
    ViewLastApplied(last_applied::View),
}

impl Apply {
    pub(crate) async fn run(mut self, session: &Session) -> Result<()> {
        match self.command.take() {
            Some(LastApplied::EditLastApplied(command)) => return command.run(session).await,
            Some(LastApplied::SetLastApplied(command)) => return command.run(session).await,
            Some(LastApplied::ViewLastApplied(command)) => return command.run(session).await,
            None => {}
        }
        self.dry_run.mode()?;
        self.how.propagation_policy()?;
        if self.selection.files.is_empty() {
            bail!("must specify one of -f and -k");
        }
        self.validate.parameter()?;
        let mut set = match self.applyset.as_ref().filter(|set| !set.is_empty()) {
            Some(reference) => Some(ApplySet::parse(session, reference).await?),
            None => None,
        };
        self.check(session, set.as_ref()).await?;
        let is_validated = self.validate.is_on();
        let mut found = manifest::read_each(&self.selection.files, is_validated).await?;
        retain(&mut found, self.selection.selector.as_deref())?;
        if found.is_empty() {
            bail!("no objects passed to apply");
        }
        let report = Report::new(&self.print, self.dry_run.mode()?)?;
        let (mut applied, mut errors, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        // The definition of an unknown kind may be among the other objects.
        let mut unknown = Vec::new();
        for manifest in found {
            let manifest = match manifest {
                Ok(manifest) => manifest,
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            };
            match target_of(session, manifest.clone()).await {
                Ok(target) => targets.push(target),
                Err(error) if set.is_some() => errors.push(error),
                Err(_) => unknown.push(manifest),
            }
        }
        if let Some(set) = &mut set {
            set.label(&mut targets)?;
            set.begin(session, &self, &targets).await?;
        }
        for target in targets {
            let outcome = self.apply(session, &target).await;
            note(&report, outcome, &mut applied, &mut errors)?;
        }
        for manifest in unknown {
            let outcome = match target_of(session, manifest).await {
                Ok(target) => self.apply(session, &target).await,
                Err(error) => Err(error),
            };
            note(&report, outcome, &mut applied, &mut errors)?;
        }
        Self::print_objects(&report, &applied)?;
        if self.prune && errors.is_empty() {
            match &set {
                Some(set) => set.prune(session, &self, &applied).await?,
                None => self.prune(session, &applied).await?,
            }
        }
        error::aggregate(errors)
    }

    fn print_objects(report: &Report, applied: &[Value]) -> Result<()> {
        if !report.prints_objects() {
            return Ok(());
        }
        match applied {
            [] => Ok(()),
            [one] => report.print(one, ""),
            // A list of Go's types has its fields in their order.
            many => {
                let items: Vec<Value> = many.iter().map(json::sorted).collect();
                let list =
                    json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items});
                report.say_typed(&list, "")
            }
        }
    }

    async fn check(&self, session: &Session, set: Option<&ApplySet>) -> Result<()> {
        if self.force_conflicts && !self.server_side {
            bail!("--force-conflicts only works with --server-side");
        }
        if self.server_side && self.how.force {
            bail!("--force cannot be used with --server-side");
        }
        if self.server_side && self.dry_run.mode()?.is_client() {
            bail!(
                "--dry-run=client doesn't work with --server-side (did you mean --dry-run=server instead?)"
            );
        }
        if self.dry_run.mode()? == DryRunMode::Server && self.how.force {
            bail!("--dry-run=server cannot be used with --force");
        }
        if self.all && self.selection.selector.is_some() {
            bail!("cannot set --all and --selector at the same time");
        }
        if let Some(set) = set {
            if !self.prune {
                bail!("--applyset requires --prune");
            }
            set.check(session).await?;
        }
        if self.prune {
            self.check_prune()?;
            if !self.prune_allowlist.is_empty() {
                prune::types(session, &self.prune_allowlist).await?;
            }
        }
        if !self.subresource.is_empty() && !self.server_side {
            bail!("--subresource can only be specified for --server-side");
        }
        Ok(())
    }

    fn check_prune(&self) -> Result<()> {
        if self.how.force {
            bail!("--force cannot be used with --prune");
        }
        if self.applyset.as_ref().is_some_and(|set| !set.is_empty()) {
            let others = [
                ("all", self.all),
                ("selector", self.selection.selector.is_some()),
                ("prune-allowlist", !self.prune_allowlist.is_empty()),
            ];
            if let Some((flag, _)) = others.iter().find(|(_, given)| *given) {
                bail!("--{flag} is incompatible with --applyset");
            }
            return Ok(());
        }
        if !self.all && self.selection.selector.is_none() {
            bail!(
                "all resources selected for prune without explicitly passing --all. To prune all resources, pass the --all flag. If you did not mean to prune all resources, specify a label selector"
            );
        }
        if self.server_side {
            bail!(
                "--prune is in alpha and doesn't currently work on objects created by server-side apply"
            );
        }
        Ok(())
    }

    fn query(&self, manager: &str) -> Result<Query> {
        let manager = self.field_manager.as_deref().unwrap_or(manager);
        let mut query = vec![
            ("fieldManager", manager.to_owned()),
            self.validate.parameter()?,
        ];
        query.extend(self.dry_run.mode()?.parameter());
        Ok(query)
    }

    async fn apply(&self, session: &Session, target: &Target) -> Result<(Value, &'static str)> {
        let manifest = target.manifest.as_ref();
        let prefix = manifest.map_or("", |object| str_of(&object["metadata"]["generateName"]));
        if target.name.is_empty() && !prefix.is_empty() {
            bail!("from {prefix}: cannot use generate name with apply");
        }
        if target.name.is_empty() {
            bail!(
                "error when {} {:?}: resource name may not be empty",
                retrieving(target),
                target.source
            );
        }
        if self.server_side {
            return self.on_the_server(session, target).await;
        }
        let mut wanted = target.manifest.clone().unwrap_or_default();
        session.record(&mut wanted);
        annotate(&mut wanted);
        for attempt in 0.. {
            let found = session.api.find(&target.path()).await;
            let found = found
                .map_err(|error| error::with_source(error, &retrieving(target), &target.source));
            let Some(live) = found? else {
                return self.create(session, target, &wanted).await;
            };
            match self.patch(session, target, &wanted, &live).await {
                Err(error) if error::code_is(&error, 409) && attempt < MAX_RETRIES => {}
                Err(error)
                    if self.how.force
                        && (error::code_is(&error, 422) || error::code_is(&error, 409)) =>
                {
                    return self.recreate(session, target, &wanted, &live).await;
                }
                outcome => {
                    return outcome
                        .map_err(|error| hint::with_fields(error, &wanted, &target.source));
                }
            }
        }
        bail!("the object changed each time it was to be patched")
    }

    async fn patch(
        &self,
        session: &Session,
        target: &Target,
        wanted: &Value,
        live: &Value,
    ) -> Result<(Value, &'static str)> {
        if str_of(&live["metadata"]["annotations"][LAST_APPLIED]).is_empty() {
            eprintln!(
                "Warning: resource {}/{} is missing the {LAST_APPLIED} annotation which is required by kubectl apply. kubectl apply should only be used on resources created declaratively by either kubectl create --save-config or kubectl apply. The missing annotation will be patched automatically.",
                target.resource.plural, target.name
            );
        }
        let original = last_applied(live);
        let schema = merge::schema_of(wanted);
        let patch = three_way::patch(&original, wanted, live, schema);
        if patch.as_object().is_none_or(|fields| fields.is_empty()) {
            return Ok((live.clone(), "unchanged"));
        }
        if let Some(schema) = schema.filter(|_| !self.overwrite)
            && let Some(why) = conflict::find(&patch, live, schema)
        {
            // Upstream tries two documents of the API before its own types.
            eprintln!("warning: error calculating patch from openapi v3 spec: {why}");
            eprintln!("warning: error calculating patch from openapi spec: {why}");
            let error = anyhow!(conflict::describe(wanted, live, &why));
            return Err(not_applied(error, "", target));
        }
        let how = if schema.is_some() {
            PatchType::Strategic
        } else {
            PatchType::Merge
        };
        if self.dry_run.mode()?.is_client() {
            return Ok((merge::apply(live, how, &patch)?, "configured"));
        }
        let query = self.query("kubectl-client-side-apply")?;
        let patched = session.api.patch(&target.path(), how, &patch, &query).await;
        let patched = patched.map_err(|error| {
            let error = error::with_source(error, "patching", &target.source);
            not_applied(error, &json::compact(&patch), target)
        })?;
        Ok((patched, "configured"))
    }

    async fn create(
        &self,
        session: &Session,
        target: &Target,
        wanted: &Value,
    ) -> Result<(Value, &'static str)> {
        if self.dry_run.mode()?.is_client() {
            return Ok((wanted.clone(), "created"));
        }
        let query = self.query("kubectl-client-side-apply")?;
        let created = session
            .api
            .create(&target.collection(), wanted, &query)
            .await;
        let created =
            created.map_err(|error| error::with_source(error, "creating", &target.source));
        let created = created.map_err(|error| hint::with_fields(error, wanted, &target.source))?;
        Ok((created, "created"))
    }

    /// Deletes an object that cannot be changed, and creates the new one. If that is refused, the old
    /// one is created again.
    async fn recreate(
        &self,
        session: &Session,
        target: &Target,
        wanted: &Value,
        live: &Value,
    ) -> Result<(Value, &'static str)> {
        let answer = session
            .api
            .delete(&target.path(), &self.how.options(DryRunMode::None)?)
            .await?;
        self.how
            .until_gone(session, &[(target.clone(), answer)])
            .await?;
        let query = self.query("kubectl-client-side-apply")?;
        let path = target.collection();
        let error = match session.api.create(&path, wanted, &query).await {
            Ok(created) => return Ok((created, "configured")),
            Err(error) => error,
        };
        let restored = session.api.create(&path, &anew(live), &query).await;
        let error = match restored {
            Ok(_) => error,
            Err(why) => anyhow!(
                "An error occurred force-replacing the existing object with the newly provided one:\n\n{}.\n\n\
                 Additionally, an error occurred attempting to restore the original object:\n\n{}",
                error::message(&error),
                error::message(&why)
            ),
        };
        Err(not_applied(error, &json::compact(wanted), target))
    }
}

/// The error of a patch that could not be made or was refused.
fn not_applied(error: anyhow::Error, patch: &str, target: &Target) -> anyhow::Error {
    let verb = format!("applying patch:\n{patch}\nto:\n{}\nfor:", described(target));
    error::with_source(error, &verb, &target.source)
}

/// A live object as it can be created again.
fn anew(live: &Value) -> Value {
    let mut object = live.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in [
            "resourceVersion",
            "uid",
            "creationTimestamp",
            "managedFields",
        ] {
            metadata.remove(field);
        }
    }
    object
}

/// Records an outcome, and prints it unless objects are printed at the end.
fn note(
    report: &Report,
    outcome: Result<(Value, &'static str)>,
    applied: &mut Vec<Value>,
    errors: &mut Vec<anyhow::Error>,
) -> Result<()> {
    match outcome {
        Ok((object, deed)) => {
            if !report.prints_objects() {
                report.print(&object, deed)?;
            }
            applied.push(object);
        }
        Err(error) => errors.push(error),
    }
    Ok(())
}
/// What fails if the live object cannot be read, in upstream's words.
fn retrieving(target: &Target) -> String {
    let described = described(target);
    format!("retrieving current configuration of:\n{described}\nfrom server for:")
}

/// An object in the words of upstream's errors.
fn described(target: &Target) -> String {
    let Target { resource, name, .. } = target;
    let namespace = match resource.namespaced {
        true => target.namespace.as_str(),
        false => "",
    };
    format!(
        "Resource: \"{0}/{1}, Resource={2}\", GroupVersionKind: \"{0}/{1}, Kind={3}\"\nName: \"{name}\", Namespace: \"{namespace}\"",
        resource.group, resource.version, resource.plural, resource.kind,
    )
}
