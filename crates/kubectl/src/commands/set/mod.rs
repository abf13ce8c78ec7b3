//! `kubectl set env|image|resources|selector|serviceaccount|subject`

mod env;
mod env_values;
mod image;
mod resources;
mod selector;
mod serviceaccount;
mod subject;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::{
    api::{PatchType, Query},
    args::{DryRun, DryRunMode, Selection},
    error,
    json::str_of,
    manifest,
    output::PrintFlags,
    resources::{self as targets, Target},
    session::Session,
    three_way,
};

use super::report::Report;

/// Flags of `set`.
#[derive(Debug, Args)]
pub(crate) struct Set {
    #[command(subcommand)]
    what: SetCommand,
}

/// What can be set.
#[derive(Debug, Subcommand)]
enum SetCommand {
    /// Update environment variables on a pod template
    Env(env::Env),
    /// Update the image of a pod template
    Image(image::Image),
    /// Update resource requests/limits on objects with pod templates
    #[command(alias = "limits")]
    Resources(resources::Resources),
    /// Set the selector on a resource
    Selector(selector::Selector),
    /// Update the service account of a resource
    #[command(alias = "sa")]
    Serviceaccount(serviceaccount::ServiceAccount),
    /// Update the user, group, or service account in a role binding or cluster role binding
    Subject(subject::Subject),
}

impl Set {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        match self.what {
            SetCommand::Env(command) => command.run(session).await,
            SetCommand::Image(command) => command.run(session).await,
            SetCommand::Resources(command) => command.run(session).await,
            SetCommand::Selector(command) => command.run(session).await,
            SetCommand::Serviceaccount(command) => command.run(session).await,
            SetCommand::Subject(command) => command.run(session).await,
        }
    }
}

/// Flags of every `set` command.
#[derive(Debug, Args)]
pub(super) struct Common {
    /// Select all resources, in the namespace of the specified resource types
    #[arg(long)]
    pub all: bool,
    /// Change the content of the file and print it, not the server's object
    #[arg(long)]
    pub local: bool,
    /// Name of the manager used to track field ownership
    #[arg(long, default_value = "kubectl-set", value_name = "NAME")]
    pub field_manager: String,
    #[command(flatten)]
    pub print: PrintFlags,
    #[command(flatten)]
    pub dry_run: DryRun,
}

/// An object to change, and where it came from unless it is local.
pub(super) type Subject = (Option<Target>, Value);

/// The words of one `set` command.
pub(super) struct Words {
    /// `image updated`
    pub deed: &'static str,
    /// The prefix of the server's errors; without one, errors do not name the object.
    pub failure: &'static str,
    /// Whether unchanged objects are neither sent nor printed.
    pub skips_unchanged: bool,
}

impl Common {
    /// `--local` never asks the server, not even for a dry run.
    pub(super) fn check_local(&self) -> Result<()> {
        if self.local && self.dry_run.mode()? == DryRunMode::Server {
            bail!("cannot specify --local and --dry-run=server - did you mean --dry-run=client?");
        }
        Ok(())
    }

    /// `--all` and a selector exclude each other.
    pub(super) fn check_all(&self, selection: &Selection) -> Result<()> {
        let has_selector = selection
            .selector
            .as_ref()
            .is_some_and(|text| !text.is_empty());
        match self.all && has_selector {
            true => bail!("cannot set --all and --selector at the same time"),
            false => Ok(()),
        }
    }

    /// `--local` reads files only.
    pub(super) fn refuse_local_names(&self, names: &[String]) -> Result<()> {
        if self.local && !names.is_empty() {
            bail!(targets::LOCAL_TYPES);
        }
        Ok(())
    }

    /// Flags that are checked before objects are read.
    pub(super) fn check_flags(&self) -> Result<()> {
        self.dry_run.mode()?;
        self.print.printer().map(drop)
    }

    /// The objects with their current state.
    pub(super) async fn objects(
        &self,
        session: &Session,
        selection: &Selection,
        words: &[String],
    ) -> Result<Vec<Subject>> {
        if self.local {
            if selection.files.is_empty() {
                bail!(targets::NOTHING);
            }
            let mut objects = Vec::new();
            for manifest in manifest::read(&selection.files).await? {
                let object = crate::merge::decoded(&manifest.object)
                    .with_context(|| format!("unable to decode {:?}", manifest.source))?;
                objects.push((None, object));
            }
            return Ok(objects);
        }
        let (mut objects, mut errors) = (Vec::new(), Vec::new());
        for target in targets::targets(session, selection, words, self.all).await? {
            let object = match target.manifest.is_some() {
                true => session.api.get(&target.path()).await,
                false => target.get(session).await,
            };
            match object {
                Ok(object) => objects.push((Some(target), crate::merge::typed(&object))),
                Err(error) => errors.push(error),
            }
        }
        error::aggregate(errors)?;
        Ok(objects)
    }

    /// Changes every object and reports it, unless `change` returns that there is nothing to report. What it adds
    /// to the list are errors that leave the rest of the change in force.
    pub(super) async fn change(
        &self,
        session: &Session,
        objects: Vec<Subject>,
        words: &Words,
        change: impl Fn(&mut Value, &mut Vec<anyhow::Error>) -> Result<bool>,
    ) -> Result<()> {
        let dry_run = self.dry_run.mode()?;
        let report = Report::new(&self.print, dry_run)?;
        let mut errors = Vec::new();
        let changed: Vec<(Subject, Result<Option<Value>>)> = objects
            .into_iter()
            .map(|(target, before)| {
                let mut after = before.clone();
                let result = change(&mut after, &mut errors).map(|is_changed| {
                    session.record(&mut after);
                    is_changed.then(|| crate::merge::typed(&after))
                });
                ((target, before), result)
            })
            .collect();
        for ((target, before), result) in changed {
            let sent = match result {
                Ok(None) => continue,
                Ok(Some(after)) if words.skips_unchanged && after == before => continue,
                Ok(Some(after)) => self.send(session, target.as_ref(), &before, after).await,
                Err(error) if words.failure.is_empty() => Err(error),
                Err(error) => {
                    let name = object_name(target.as_ref(), &before);
                    Err(anyhow!("error: {name} {error}\n"))
                }
            };
            match sent {
                Ok(after) => report.say_typed(&after, words.deed)?,
                Err(error) => errors.push(match error.downcast_ref::<error::ServerError>() {
                    Some(error::ServerError(status)) if !words.failure.is_empty() => {
                        anyhow!("{} {}", words.failure, status.message)
                    }
                    _ => error,
                }),
            }
        }
        error::aggregate(errors)
    }

    /// Sends the change, unless it is local or a client's dry run.
    async fn send(
        &self,
        session: &Session,
        target: Option<&Target>,
        before: &Value,
        after: Value,
    ) -> Result<Value> {
        let dry_run = self.dry_run.mode()?;
        let Some(target) = target.filter(|_| !dry_run.is_client()) else {
            return Ok(after);
        };
        let mut query: Query = vec![("fieldManager", self.field_manager.clone())];
        query.extend(dry_run.parameter());
        let schema = crate::merge::schema_of(before);
        let patch = three_way::patch(before, &after, before, schema);
        let how = match schema {
            Some(_) => PatchType::Strategic,
            None => PatchType::Merge,
        };
        let path = target.path();
        let answer = session.api.patch(&path, how, &patch, &query).await?;
        Ok(crate::merge::typed(&answer))
    }
}

/// `deployments/web`; a local object has its kind and group, and with a group a line break, as in upstream.
fn object_name(target: Option<&Target>, object: &Value) -> String {
    let name = str_of(&object["metadata"]["name"]);
    if let Some(target) = target {
        return format!("{}/{name}", target.resource.plural);
    }
    let kind = str_of(&object["kind"]).to_lowercase();
    match str_of(&object["apiVersion"]).split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{name}\n"),
        None => format!("{kind}/{name}"),
    }
}

/// Why a variable cannot have this name.
pub(super) fn invalid_variable_name(name: &str) -> Option<String> {
    env::invalid_name(name)
}

/// The pod spec in an object: its own, its template's or its job template's.
pub(super) fn pod_spec(object: &mut Value) -> Result<&mut Value> {
    let go_type = error::go_type(object);
    let spec = match str_of(&object["kind"]) {
        "Pod" => object.pointer_mut("/spec"),
        "CronJob" => object.pointer_mut("/spec/jobTemplate/spec/template/spec"),
        _ => object.pointer_mut("/spec/template/spec"),
    };
    match spec {
        Some(spec) => Ok(spec),
        None => bail!("the object is not a pod or does not have a pod template: {go_type}"),
    }
}

/// Calls a function with each container whose name is selected; returns how many.
pub(super) fn each_container(
    object: &mut Value,
    is_selected: impl Fn(&str) -> bool,
    mut with: impl FnMut(&mut Value) -> Result<()>,
) -> Result<usize> {
    let spec = pod_spec(object)?;
    let mut count = 0;
    for field in ["containers", "initContainers"] {
        for container in spec
            .get_mut(field)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if is_selected(str_of(&container["name"])) {
                with(container)?;
                count += 1;
            }
        }
    }
    Ok(count)
}

/// Whether a container's name matches a pattern with `*`. As in upstream, the part before the first
/// star may be anywhere in the name.
pub(super) fn is_selected(name: &str, pattern: &str) -> bool {
    let parts: Vec<&str> = pattern.split('*').collect();
    if parts.len() == 1 {
        return name == pattern;
    }
    let mut at = 0;
    for (index, part) in parts.iter().enumerate() {
        if part.is_empty() {
            continue;
        }
        let found = name.get(at..).and_then(|rest| rest.find(part));
        let is_last = index == parts.len() - 1;
        match found {
            Some(next) if next >= at && !(is_last && name.len() != part.len() + next) => at = next,
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_selected_as_by_upstream() {
        for (name, pattern, expected) in [
            ("web", "*", true),
            ("web", "web", true),
            ("web", "we", false),
            ("web", "w*", true),
            ("new", "w*", true),
            ("web", "*b", true),
            ("web", "*e", false),
            ("web", "w*b", true),
            ("web", "x*", false),
            ("web", "", false),
        ] {
            assert_eq!(is_selected(name, pattern), expected, "{name} {pattern}");
        }
    }
}
