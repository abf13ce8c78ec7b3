//! `kubectl set env|image|resources|selector|serviceaccount|subject`

mod env;
mod env_values;
mod image;
mod resources;
mod selector;
mod serviceaccount;
mod subject;

use anyhow::{Result, bail};
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

impl Common {
    /// `--local` never asks the server, not even for a dry run.
    pub(super) fn check_local(&self) -> Result<()> {
        if self.local && self.dry_run.mode()? == DryRunMode::Server {
            bail!("cannot specify --local and --dry-run=server - did you mean --dry-run=client?");
        }
        Ok(())
    }

    /// `--local` reads files only.
    pub(super) fn refuse_local_names(&self, names: &[String]) -> Result<()> {
        if self.local && !names.is_empty() {
            bail!(targets::LOCAL_TYPES);
        }
        Ok(())
    }

    /// The objects with their current state.
    pub(super) async fn objects(
        &self,
        session: &Session,
        selection: &Selection,
        words: &[String],
    ) -> Result<Vec<(Option<Target>, Value)>> {
        if self.local {
            let manifests = manifest::read(&selection.files).await?;
            return Ok(manifests
                .into_iter()
                .map(|manifest| (None, manifest.object))
                .collect());
        }
        if self.all && selection.selector.is_some() {
            bail!("cannot set --all and --selector at the same time");
        }
        let (mut objects, mut errors) = (Vec::new(), Vec::new());
        for target in targets::targets(session, selection, words, self.all).await? {
            let object = match target.manifest.is_some() {
                true => session.api.get(&target.path()).await,
                false => target.get(session).await,
            };
            match object {
                Ok(object) => objects.push((Some(target), object)),
                Err(error) => errors.push(error),
            }
        }
        error::aggregate(errors)?;
        Ok(objects)
    }

    /// Changes every object and reports it, unless `change` returns that there is nothing to report. `failure`
    /// is the prefix of the server's errors.
    pub(super) async fn change(
        &self,
        session: &Session,
        (selection, words): (&Selection, &[String]),
        (deed, failure): (&str, &str),
        change: impl Fn(&mut Value) -> Result<bool>,
    ) -> Result<()> {
        let dry_run = self.dry_run.mode()?;
        let report = Report::new(&self.print, dry_run)?;
        let mut query: Query = vec![("fieldManager", self.field_manager.clone())];
        query.extend(dry_run.parameter());
        let mut errors = Vec::new();
        for (target, before) in self.objects(session, selection, words).await? {
            let changed = self
                .change_one(session, target.as_ref(), &before, dry_run, &query, &change)
                .await;
            match changed {
                Ok(Some(after)) => report.print(&after, deed)?,
                Ok(None) => {}
                Err(error) => errors.push(match error.downcast_ref::<error::ServerError>() {
                    Some(error::ServerError(status)) if !failure.is_empty() => {
                        anyhow::anyhow!("{failure} {}", status.message)
                    }
                    _ => error,
                }),
            }
        }
        error::aggregate(errors)
    }

    async fn change_one(
        &self,
        session: &Session,
        target: Option<&Target>,
        before: &Value,
        dry_run: DryRunMode,
        query: &Query,
        change: impl Fn(&mut Value) -> Result<bool>,
    ) -> Result<Option<Value>> {
        let mut after = before.clone();
        if !change(&mut after)? {
            return Ok(None);
        }
        session.record(&mut after);
        let Some(target) = target.filter(|_| !dry_run.is_client()) else {
            return Ok(Some(after));
        };
        if after == *before {
            return Ok(None);
        }
        let schema = crate::merge::schema_of(before);
        let patch = three_way::patch(before, &after, before, schema);
        let how = if schema.is_some() {
            PatchType::Strategic
        } else {
            PatchType::Merge
        };
        session
            .api
            .patch(&target.path(), how, &patch, query)
            .await
            .map(Some)
    }
}

/// `deployments/web`
pub(super) fn plural_name(object: &Value) -> String {
    let kind = str_of(&object["kind"]).to_lowercase();
    format!("{kind}s/{}", str_of(&object["metadata"]["name"]))
}

/// The pod spec in an object: its own, its template's or its job template's.
pub(super) fn pod_spec(object: &mut Value) -> Result<&mut Value> {
    let kind = str_of(&object["kind"]).to_owned();
    let (name, go_type) = (plural_name(object), error::go_type(object));
    let spec = match kind.as_str() {
        "Pod" => object.pointer_mut("/spec"),
        "CronJob" => object.pointer_mut("/spec/jobTemplate/spec/template/spec"),
        _ => object.pointer_mut("/spec/template/spec"),
    };
    match spec {
        Some(spec) => Ok(spec),
        None => bail!("{name} the object is not a pod or does not have a pod template: {go_type}"),
    }
}

/// Calls a function with each container whose name matches a pattern; returns how many.
pub(super) fn each_container(
    object: &mut Value,
    pattern: &str,
    fields: &[&str],
    mut with: impl FnMut(&mut Value) -> Result<()>,
) -> Result<usize> {
    let spec = pod_spec(object)?;
    let mut count = 0;
    for field in fields {
        for container in spec
            .get_mut(*field)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if is_selected(str_of(&container["name"]), pattern) {
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

/// The error for an argument beside `TYPE/NAME`.
pub(super) fn refuse_stray_words(names: &[String]) -> Result<()> {
    let has_pair = names.iter().any(|name| name.contains('/'));
    match has_pair && names.iter().any(|name| !name.contains('/')) {
        true => bail!(targets::STRAY_WORD),
        false => Ok(()),
    }
}

/// Arguments that name no object, or whole types, are rejected first.
pub(super) fn check_names(names: &[String], selection: &Selection, common: &Common) -> Result<()> {
    let is_named = !selection.files.is_empty() || common.local;
    match names {
        [] if !is_named => bail!(targets::NOTHING),
        [kind] if !kind.contains('/') && !common.all && selection.selector.is_none() => {
            bail!("resource(s) were provided, but no name was specified")
        }
        _ => Ok(()),
    }
}

/// Words that name objects, and those that are `KEY=VALUE` or `KEY-`.
pub(super) fn split_words(words: &[String]) -> (Vec<String>, Vec<String>) {
    let is_pair =
        |word: &&String| word.contains('=') || (word.ends_with('-') && !word.contains('/'));
    let (pairs, names): (Vec<&String>, Vec<&String>) = words.iter().partition(is_pair);
    let owned = |words: Vec<&String>| words.into_iter().cloned().collect();
    (owned(names), owned(pairs))
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
