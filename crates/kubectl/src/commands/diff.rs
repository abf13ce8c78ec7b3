//! `kubectl diff`: the changes of an apply.

use std::{fs, io, path::Path, process::Command};

use anyhow::{Result, bail};
use clap::Args;
use futures::StreamExt;
use serde_json::{Value, json};

use crate::{
    api::{PatchType, Query},
    args::Files,
    discovery::Resource,
    error::{self, Quiet},
    json, manifest, merge,
    output::yaml,
    resources::{Target, target_of},
    session::Session,
    three_way,
};

use super::apply::{LAST_APPLIED, last_applied, prune};

/// Flags of `diff`.
#[derive(Debug, Args)]
pub(crate) struct Diff {
    #[command(flatten)]
    files: Files,
    /// Only objects of the files whose labels match
    #[arg(short = 'l', long, value_name = "QUERY")]
    selector: Option<String>,
    /// Let the server merge
    #[arg(long)]
    server_side: bool,
    /// With --server-side: take fields from other managers
    #[arg(long)]
    force_conflicts: bool,
    /// Name of the manager used to track field ownership
    #[arg(long, value_name = "NAME")]
    field_manager: Option<String>,
    /// Include objects that apply --prune would delete
    #[arg(long)]
    prune: bool,
    /// With --prune: types to look at, as GROUP/VERSION/KIND
    #[arg(long, value_name = "GVK", value_delimiter = ',')]
    prune_allowlist: Vec<String>,
    /// How many objects to compare at once
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    concurrency: i64,
    /// Include managed fields in the diff
    #[arg(long)]
    show_managed_fields: bool,
    /// Include Secret values in the diff output instead of masking them
    #[arg(long)]
    show_secrets: bool,
}

impl Diff {
    /// Exits with 1 for a difference, with more for an error.
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        match self.diff(session).await {
            Err(error) if error.downcast_ref::<Quiet>().is_none() => {
                eprintln!("{}", error::line(&error));
                Err(Quiet(2).into())
            }
            outcome => outcome,
        }
    }

    async fn diff(self, session: &Session) -> Result<()> {
        if self.files.is_empty() {
            bail!("must specify one of -f and -k");
        }
        if self.force_conflicts && !self.server_side {
            bail!("--force-conflicts only works with --server-side");
        }
        let types = match self.prune {
            true => prune::types(session, &self.prune_allowlist).await?,
            false => Vec::new(),
        };
        let mut visited = prune::Visited::default();
        let live_directory = tempfile::Builder::new().prefix("LIVE-").tempdir()?;
        let merged_directory = tempfile::Builder::new().prefix("MERGED-").tempdir()?;
        // Nothing is validated before the server sees it.
        let manifests = manifest::read_each(&self.files, false).await?;
        let mut manifests = manifests.into_iter().collect::<Result<Vec<_>>>()?;
        if let Some(selector) = &self.selector {
            let selector = json::selector(selector)?;
            manifests.retain(|manifest| json::selects(&selector, &manifest.object));
        }
        let at_once = usize::try_from(self.concurrency).unwrap_or(1).max(1);
        let mut compared = futures::stream::iter(manifests)
            .map(|manifest| self.compare(session, manifest))
            .buffered(at_once);
        while let Some(compared) = compared.next().await {
            let (target, mut live, merged) = compared?;
            if let Some(live) = &live {
                visited.add(live);
            }
            if target.resource.namespaced {
                visited.add_namespace(&target.namespace);
            }
            let mut merged = Some(merged);
            self.hide(&mut live, &mut merged);
            let name = file_name(&target.resource, &target.namespace, &target.name);
            match (&live, &merged) {
                // As upstream: an absent object that is masked is null.
                (None, Some(merged)) if self.masks(merged) => {
                    fs::write(live_directory.path().join(&name), "null\n")?;
                }
                _ => write(&live_directory.path().join(&name), live.as_ref())?,
            }
            write(&merged_directory.path().join(&name), merged.as_ref())?;
        }
        drop(compared);
        let selector = self.selector.as_deref();
        for (resource, object) in visited.stale(session, &types, selector).await? {
            let metadata = &object["metadata"];
            let (namespace, name) = (
                json::str_of(&metadata["namespace"]),
                json::str_of(&metadata["name"]),
            );
            let name = file_name(&resource, namespace, name);
            let mut live = Some(object.clone());
            if object["kind"] == "Secret" && !self.show_secrets {
                mask(&mut live, &mut None);
            }
            write(&live_directory.path().join(&name), live.as_ref())?;
        }
        compare(live_directory.path(), merged_directory.path())
    }

    /// The object of a manifest as it is, and as an apply would make it.
    async fn compare(
        &self,
        session: &Session,
        manifest: manifest::Manifest,
    ) -> Result<(Target, Option<Value>, Value)> {
        let target = target_of(session, manifest).await?;
        let live = session.api.find(&target.path()).await?;
        let merged = self.merged(session, &target, live.as_ref()).await?;
        Ok((target, live, merged))
    }

    /// The object after an apply.
    async fn merged(
        &self,
        session: &Session,
        target: &Target,
        live: Option<&Value>,
    ) -> Result<Value> {
        let manager = match (&self.field_manager, self.server_side) {
            (Some(manager), _) => manager.as_str(),
            (None, true) => "kubectl",
            (None, false) => "kubectl-client-side-apply",
        };
        let mut query: Query = vec![
            ("dryRun", "All".into()),
            ("fieldManager", manager.to_owned()),
        ];
        let wanted = target.manifest.clone().unwrap_or_default();
        if self.server_side {
            query.push(("force", self.force_conflicts.to_string()));
            return session
                .api
                .patch(&target.path(), PatchType::Apply, &wanted, &query)
                .await;
        }
        let mut wanted = wanted;
        prepare(&mut wanted);
        let Some(live) = live else {
            return session
                .api
                .create(&target.collection(), &wanted, &query)
                .await;
        };
        let schema = merge::schema_of(&wanted);
        let patch = three_way::patch(&last_applied(live), &wanted, live, schema);
        let how = if schema.is_some() {
            PatchType::Strategic
        } else {
            PatchType::Merge
        };
        session.api.patch(&target.path(), how, &patch, &query).await
    }

    fn hide(&self, live: &mut Option<Value>, merged: &mut Option<Value>) {
        if !self.show_managed_fields {
            for object in live.iter_mut().chain(merged.iter_mut()) {
                if let Some(metadata) = object
                    .pointer_mut("/metadata")
                    .and_then(Value::as_object_mut)
                {
                    metadata.remove("managedFields");
                }
            }
        }
        if merged.as_ref().is_some_and(|object| self.masks(object)) {
            mask(live, merged);
        }
    }

    /// Whether the values of an object are not shown.
    fn masks(&self, object: &Value) -> bool {
        object["kind"] == "Secret" && object["apiVersion"] == "v1" && !self.show_secrets
    }
}

/// The object has annotations, if only none, and not the one of the last apply: so the annotations of
/// the last apply, which are always there, do not count as removed.
fn prepare(wanted: &mut Value) {
    if !wanted["metadata"]["annotations"].is_object() {
        wanted["metadata"]["annotations"] = json!({});
    }
    if let Some(annotations) = wanted["metadata"]["annotations"].as_object_mut() {
        annotations.shift_remove(LAST_APPLIED);
    }
}

/// Masks a secret's values; different ones are marked so that the difference shows.
fn mask(live: &mut Option<Value>, merged: &mut Option<Value>) {
    let data = |object: &Option<Value>| {
        object
            .as_ref()
            .map(|object| object["data"].clone())
            .unwrap_or_default()
    };
    let (before, after) = (data(live), data(merged));
    let hide = |object: &mut Option<Value>, other: &Value, suffix: &str| {
        let Some(data) = object
            .as_mut()
            .and_then(|object| object.pointer_mut("/data").and_then(Value::as_object_mut))
        else {
            return;
        };
        for (key, value) in data {
            let is_same = other.get(key).is_none_or(|other| other == value);
            *value = json!(if is_same {
                "***".to_owned()
            } else {
                format!("*** ({suffix})")
            });
        }
    };
    hide(live, &after, "before");
    hide(merged, &before, "after");
}

fn file_name(resource: &Resource, namespace: &str, name: &str) -> String {
    let group = match resource.group.as_str() {
        "" => String::new(),
        group => format!("{group}."),
    };
    let namespace = match resource.namespaced {
        true => namespace,
        false => "",
    };
    let name = format!(
        "{group}{}.{}.{namespace}.{name}",
        resource.version, resource.kind
    );
    name.replace('/', "_")
}

fn write(path: &Path, object: Option<&Value>) -> Result<()> {
    Ok(fs::write(
        path,
        object.map(yaml::to_string).unwrap_or_default(),
    )?)
}

/// Runs `diff -u -N`, or `KUBECTL_EXTERNAL_DIFF`, and exits with its code.
fn compare(live: &Path, merged: &Path) -> Result<()> {
    let named = std::env::var("KUBECTL_EXTERNAL_DIFF").unwrap_or_default();
    let is_word = |word: &&str| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-=".contains(c);
        !word.is_empty() && word.chars().all(is_allowed)
    };
    let mut words = named.split(' ');
    let program = match words.next() {
        None | Some("") => "diff",
        Some(program) => program,
    };
    let mut command = Command::new(program);
    if named.is_empty() {
        command.args(["-u", "-N"]);
    }
    command.arg(live).arg(merged).args(words.filter(is_word));
    let status = command.status().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            anyhow::anyhow!("failed to run {program:?}: executable file not found in $PATH")
        }
        _ => anyhow::anyhow!("failed to run {program:?}: {}", error::io_reason(&error)),
    })?;
    match status.code() {
        Some(0) => Ok(()),
        Some(1) => Err(Quiet(1).into()),
        _ => bail!("failed to run {program:?}: {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotation_of_the_last_apply_does_not_count_as_removed() {
        let applied = json!({"kind": "A", "metadata": {"name": "a"}, "spec": {"x": 1}});
        let mut live = applied.clone();
        super::super::apply::annotate(&mut live);
        let mut wanted = applied;
        prepare(&mut wanted);
        let patch = three_way::patch(&last_applied(&live), &wanted, &live, None);
        assert_eq!(patch, json!({}));
    }

    #[test]
    fn a_secrets_values_are_masked_and_changes_still_show() {
        let secret = |a: &str| {
            Some(json!({"apiVersion": "v1", "kind": "Secret", "data": {"a": a, "b": "x"}}))
        };
        let (mut live, mut merged) = (secret("1"), secret("2"));
        mask(&mut live, &mut merged);
        assert_eq!(
            live.unwrap()["data"],
            json!({"a": "*** (before)", "b": "***"})
        );
        assert_eq!(
            merged.unwrap()["data"],
            json!({"a": "*** (after)", "b": "***"})
        );
    }
}
