//! `kubectl label` and `kubectl annotate`: KEY=VALUE sets, KEY- removes.

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::{
    api::{PatchType, Query},
    args::{DryRun, DryRunMode, Selection},
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

    /// The file in the examples of messages.
    fn example_file(self) -> &'static str {
        match self {
            Self::Labels => "pod",
            Self::Annotations => "rsrc",
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Self::Labels => "label",
            Self::Annotations => "annotation",
        }
    }
}

/// `KEY=VALUE` sets, `KEY-` removes, which is null here.
type Changes = Map<String, Value>;

impl EditFields {
    pub(crate) async fn run(self, session: &Session, field: Field) -> Result<()> {
        let dry_run = self.dry_run.mode()?;
        if field == Field::Annotations {
            self.print.printer()?;
        }
        let (words, pairs) = split_words(&self.words, field)?;
        let changes = parse(&pairs, field)?;
        self.check(field, &words, &changes)?;
        let targets = match self.local {
            true => local(&self.selection).await?,
            false => resources::targets(session, &self.selection, &words, self.all).await?,
        };
        let is_single = self.is_single(&targets);
        let resource_version = self.resource_version.as_ref();
        if resource_version.is_some_and(|version| !version.is_empty()) && !is_single {
            bail!("--resource-version may only be used with a single resource");
        }
        let report = Report::new(&self.print, dry_run)?;
        let mut errors = Vec::new();
        for target in targets {
            let changed = self.change(session, &target, field, &changes, &report, is_single);
            errors.extend(changed.await.err());
        }
        error::aggregate(errors)
    }

    fn check(&self, field: Field, words: &[String], changes: &Changes) -> Result<()> {
        let is_given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        if self.list && is_given(&self.print.output) && field == Field::Labels {
            bail!("--list and --output may not be specified together");
        }
        if self.all && is_given(&self.selection.selector) {
            bail!("cannot set --all and --selector at the same time");
        }
        if self.all && is_given(&self.selection.field_selector) {
            bail!("cannot set --all and --field-selector at the same time");
        }
        let file = field.example_file();
        if self.local {
            if self.dry_run.mode()? == DryRunMode::Server {
                bail!(
                    "cannot specify --local and --dry-run=server - did you mean --dry-run=client?"
                );
            }
            if !words.is_empty() {
                bail!(
                    "can only use local files by -f {file}.yaml or --filename={file}.json when --local=true is set"
                );
            }
            if self.selection.files.is_empty() {
                bail!(
                    "one or more files must be specified as -f {file}.yaml or --filename={file}.json"
                );
            }
        } else if words.is_empty() && self.selection.files.is_empty() {
            bail!(
                "one or more resources must be specified as <resource> <name> or <resource>/<name>"
            );
        }
        if changes.is_empty() && !self.list {
            bail!("at least one {} update is required", field.noun());
        }
        Ok(())
    }

    /// Whether the arguments name one object or one file; objects that were listed are not one, even if there is only
    /// one.
    fn is_single(&self, targets: &[Target]) -> bool {
        match self.selection.files.filename.as_slice() {
            [] => targets.len() == 1 && targets[0].live.is_none(),
            [file] => file != "-" && !std::path::Path::new(file).is_dir(),
            _ => false,
        }
    }

    async fn change(
        &self,
        session: &Session,
        target: &Target,
        field: Field,
        changes: &Changes,
        report: &Report,
        is_single: bool,
    ) -> Result<()> {
        let dry_run = self.dry_run.mode()?;
        let before = target.get(session).await?;
        let current = &before["metadata"][field.name()];
        let is_sent = !self.local && !self.list && !dry_run.is_client();
        if field == Field::Labels && is_sent {
            let is_removed = |(_, value): &(&String, &Value)| value.is_null();
            for (key, _) in changes.iter().filter(is_removed) {
                if current[key.as_str()].is_null() {
                    println!("label {key:?} not found.");
                }
            }
        }
        self.refuse_overwriting(field, current, changes)?;
        let mut patch = self.patch(field, changes);
        if is_sent {
            session.record(&mut patch);
        }
        let mut after = merge::apply(&before, PatchType::Merge, &patch)?;
        if after["metadata"][field.name()].is_null() {
            after["metadata"][field.name()] = json!({});
        }
        if self.list {
            return show(&after, field, is_single);
        }
        let deed = self.deed(field, &before, changes);
        if !is_sent || deed == "not labeled" {
            return report.print(&after, deed);
        }
        let mut query: Query = dry_run.parameter().into_iter().collect();
        if let Some(manager) = &self.field_manager {
            query.push(("fieldManager", manager.clone()));
        }
        let path = target.path();
        let sent = session.api.patch(&path, PatchType::Merge, &patch, &query);
        let answer = sent.await?;
        match field {
            // Upstream prints the object that it sent.
            Field::Labels => report.print(&after, deed),
            Field::Annotations => report.print(&answer, deed),
        }
    }

    fn patch(&self, field: Field, changes: &Changes) -> Value {
        let mut metadata = json!({field.name(): changes});
        if let Some(version) = self
            .resource_version
            .as_ref()
            .filter(|text| !text.is_empty())
        {
            metadata["resourceVersion"] = json!(version);
        }
        json!({"metadata": metadata})
    }

    fn refuse_overwriting(&self, field: Field, current: &Value, changes: &Changes) -> Result<()> {
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

    fn deed(&self, field: Field, before: &Value, changes: &Changes) -> &'static str {
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

/// The objects of the files, as if they had been read from a server.
async fn local(selection: &Selection) -> Result<Vec<Target>> {
    let manifests = manifest::read(&selection.files).await?;
    let target = |manifest: manifest::Manifest| Target {
        live: Some(manifest.object),
        source: manifest.source,
        ..Target::default()
    };
    Ok(manifests.into_iter().map(target).collect())
}

/// The words that name objects, and the changes, which come last.
fn split_words(words: &[String], field: Field) -> Result<(Vec<String>, Vec<String>)> {
    let is_change = |word: &&String| {
        word.find('=').is_some_and(|at| at > 0) || (word.ends_with('-') && *word != "-")
    };
    let count = words.iter().take_while(|word| !is_change(word)).count();
    let (names, changes) = words.split_at(count);
    match changes.iter().find(|word| !is_change(word)) {
        None => Ok((names.to_vec(), changes.to_vec())),
        Some(late) => bail!(
            "all resources must be specified before {} changes: {late}",
            field.noun()
        ),
    }
}

fn parse(pairs: &[String], field: Field) -> Result<Changes> {
    let (mut changes, mut removed) = (Changes::new(), Vec::new());
    for pair in pairs {
        let Some((key, value)) = pair.split_once('=') else {
            removed.push(pair.trim_end_matches('-'));
            continue;
        };
        if field == Field::Labels {
            if value.contains('=') {
                bail!("invalid label spec: {pair}");
            }
            let why = machinery::format::label_value(value);
            if !why.is_empty() {
                bail!("invalid label value: {pair:?}: {}", why.join(";"));
            }
        }
        changes.insert(key.to_owned(), json!(value));
    }
    let both: Vec<&str> = removed
        .iter()
        .copied()
        .filter(|key| changes.contains_key(*key))
        .collect();
    match (both.is_empty(), field) {
        (true, _) => {}
        (false, Field::Labels) => {
            bail!("can not both modify and remove a label in the same command")
        }
        (false, Field::Annotations) => bail!(
            "can not both modify and remove the following annotation(s) in the same command: {}",
            both.join(", ")
        ),
    }
    for key in removed {
        changes.insert(key.to_owned(), Value::Null);
    }
    Ok(changes)
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
