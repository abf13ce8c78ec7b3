//! `kubectl label` and `kubectl annotate`: KEY=VALUE sets, KEY- removes.

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::{
    api::{PatchType, Query},
    args::{DryRun, Selection},
    error,
    json::{entries, str_of},
    manifest, merge,
    output::PrintFlags,
    resources::{self, Target},
    session::Session,
};

use super::report::Report;

/// Flags of `label` and `annotate`.
#[derive(Debug, Args)]
pub(crate) struct EditFields {
    /// TYPE NAME… or TYPE/NAME…, then KEY=VALUE… or KEY-…
    words: Vec<String>,
    #[command(flatten)]
    selection: Selection,
    /// Select all resources, in the namespace of the specified resource types
    #[arg(long)]
    all: bool,
    /// Allow values to be overwritten
    #[arg(long)]
    overwrite: bool,
    /// Display the values
    #[arg(long)]
    list: bool,
    /// Change the content of the file and print it, not the server's object
    #[arg(long)]
    local: bool,
    /// Only succeed if this is the current resource version of the object
    #[arg(long, value_name = "VERSION")]
    resource_version: Option<String>,
    /// Name of the manager used to track field ownership
    #[arg(long, value_name = "NAME")]
    field_manager: Option<String>,
    #[command(flatten)]
    print: PrintFlags,
    #[command(flatten)]
    dry_run: DryRun,
}

/// Labels or annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    Labels,
    Annotations,
}

impl Field {
    fn name(self) -> &'static str {
        match self {
            Self::Labels => "labels",
            Self::Annotations => "annotations",
        }
    }

    fn contradiction(self, key: &str) -> anyhow::Error {
        match self {
            Self::Labels => {
                anyhow::anyhow!("can not both modify and remove a label in the same command")
            }
            Self::Annotations => anyhow::anyhow!(
                "can not both modify and remove the following annotation(s) in the same command: {key}"
            ),
        }
    }

    fn command(self) -> &'static str {
        match self {
            Self::Labels => "label",
            Self::Annotations => "annotate",
        }
    }
}

impl EditFields {
    pub(crate) async fn run(self, session: &Session, field: Field) -> Result<()> {
        let (changes, words) = self.split(field)?;
        let dry_run = self.dry_run.mode()?;
        let report = Report::new(&self.print, dry_run)?;
        if self.all && self.selection.selector.is_some() {
            bail!("cannot set --all and --selector at the same time");
        }
        if self.local && self.selection.files.is_empty() {
            bail!(
                "can only use local files by -f pod.yaml or --filename=pod.json when --local=true is set"
            );
        }
        if self.local {
            for manifest in manifest::read(&self.selection.files).await? {
                let after = merge::apply(
                    &manifest.object,
                    PatchType::Merge,
                    &self.patch(field, &changes),
                )?;
                report.print(&after, self.deed(field, &manifest.object, &changes))?;
            }
            return Ok(());
        }
        let targets = resources::targets(session, &self.selection, &words, self.all).await?;
        // Objects that were listed are not one object, even if there is only one.
        let is_single = targets.len() == 1 && targets[0].live.is_none();
        if self.resource_version.is_some() && !is_single {
            bail!("--resource-version may only be used with a single resource");
        }
        let mut errors = Vec::new();
        let one = targets.len() == 1;
        for target in targets {
            let changed = self
                .change(session, &target, field, &changes, &report, one)
                .await;
            errors.extend(changed.err());
        }
        error::aggregate(errors)
    }

    async fn change(
        &self,
        session: &Session,
        target: &Target,
        field: Field,
        changes: &Map<String, Value>,
        report: &Report,
        one: bool,
    ) -> Result<()> {
        let dry_run = self.dry_run.mode()?;
        let before = target.get(session).await?;
        let current = &before["metadata"][field.name()];
        self.refuse_overwriting(field, current, changes)?;
        if self.list {
            let patch = self.patch(field, changes);
            let listed = merge::apply(&before, PatchType::Merge, &patch)?;
            return show(&listed, field, one);
        }
        for (key, _) in changes
            .iter()
            .filter(|(key, value)| value.is_null() && current[key.as_str()].is_null())
        {
            if field == Field::Labels && !report.prints_objects() && !dry_run.is_client() {
                println!("label {key:?} not found.");
            }
        }
        let deed = self.deed(field, &before, changes);
        let mut patch = self.patch(field, changes);
        session.record(&mut patch);
        if dry_run.is_client() {
            return report.print(&merge::apply(&before, PatchType::Merge, &patch)?, deed);
        }
        if deed == "not labeled" {
            return report.print(&before, deed);
        }
        let mut query: Query = dry_run.parameter().into_iter().collect();
        if let Some(manager) = &self.field_manager {
            query.push(("fieldManager", manager.clone()));
        }
        let after = session
            .api
            .patch(&target.path(), PatchType::Merge, &patch, &query)
            .await?;
        report.print(&after, deed)
    }

    /// The changes, and the words that name objects.
    fn split(&self, field: Field) -> Result<(Map<String, Value>, Vec<String>)> {
        let is_change =
            |word: &&String| (word.contains('=') || word.ends_with('-')) && !word.starts_with('-');
        let words: Vec<String> = self
            .words
            .iter()
            .take_while(|word| !is_change(word))
            .cloned()
            .collect();
        let mut changes = Map::new();
        for word in &self.words[words.len()..] {
            let (key, value) = match word.split_once('=') {
                Some((key, value)) => (key, json!(value)),
                None => match word.strip_suffix('-') {
                    Some(key) => (key, Value::Null),
                    None => bail!("unknown {} spec: {word}", field.command()),
                },
            };
            if let Some(known) = changes.get(key)
                && known.is_null() != value.is_null()
            {
                return Err(field.contradiction(key));
            }
            if field == Field::Labels && word.matches('=').count() > 1 {
                bail!("invalid label spec: {word}");
            }
            if field == Field::Labels
                && let Some(text) = value.as_str()
                && let Some(why) = machinery::format::label_value(text).first()
            {
                bail!("invalid label value: {word:?}: {why}");
            }
            changes.insert(key.to_owned(), value);
        }
        if words.is_empty() && self.selection.files.is_empty() {
            bail!(
                "one or more resources must be specified as <resource> <name> or <resource>/<name>"
            );
        }
        if changes.is_empty() && !self.list {
            let noun = field.name().trim_end_matches('s');
            bail!("at least one {noun} update is required");
        }
        Ok((changes, words))
    }

    fn patch(&self, field: Field, changes: &Map<String, Value>) -> Value {
        let mut metadata = json!({field.name(): changes});
        if let Some(version) = &self.resource_version {
            metadata["resourceVersion"] = json!(version);
        }
        json!({"metadata": metadata})
    }

    fn refuse_overwriting(
        &self,
        field: Field,
        current: &Value,
        changes: &Map<String, Value>,
    ) -> Result<()> {
        let mut found = Vec::new();
        for (key, value) in changes.iter().filter(|(_, value)| !value.is_null()) {
            let there = current[key.as_str()].as_str();
            let differs = there.is_some_and(|there| Some(there) != value.as_str());
            // The change cause is meant to be overwritten.
            if differs && !self.overwrite && key != "kubernetes.io/change-cause" {
                let there = there.unwrap_or_default();
                found.push(format!("'{key}' already has a value ({there})"));
            }
        }
        if field == Field::Annotations && !found.is_empty() {
            let found = found.join("; ");
            bail!("--overwrite is false but found the following declared annotation(s): {found}");
        }
        let refused = |text| anyhow::anyhow!("{text}, and --overwrite is false");
        error::aggregate(found.into_iter().map(refused).collect())
    }

    fn deed(&self, field: Field, before: &Value, changes: &Map<String, Value>) -> &'static str {
        if field == Field::Annotations {
            return "annotated";
        }
        let current = &before["metadata"]["labels"];
        let added = changes
            .iter()
            .any(|(key, value)| !value.is_null() && current[key.as_str()] != *value);
        let removed = changes
            .iter()
            .any(|(key, value)| value.is_null() && !current[key.as_str()].is_null());
        match (added, removed) {
            (true, true) => "modified",
            (true, false) => "labeled",
            (false, true) => "unlabeled",
            (false, false) => "not labeled",
        }
    }
}

fn show(object: &Value, field: Field, one: bool) -> Result<()> {
    let indent = if one { "" } else { " " };
    if !one {
        let version = str_of(&object["apiVersion"]);
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let (kind, name) = (str_of(&object["kind"]), str_of(&object["metadata"]["name"]));
        println!("Listing {} for {kind}.{group}/{name}:", field.name());
    }
    for (key, value) in entries(&object["metadata"][field.name()]) {
        println!("{indent}{key}={}", str_of(value));
    }
    Ok(())
}
