//! `kubectl label` and `kubectl annotate`: KEY=VALUE sets, KEY- removes.

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::{
    api::PatchType,
    args::{DryRun, Output, Selection},
    discovery::Discovery,
    resources,
    session::Session,
};

use super::create::report;

/// Flags of `label` and `annotate`.
#[derive(Debug, Args)]
pub struct EditFields {
    /// TYPE NAME… or TYPE/NAME…, then KEY=VALUE… or KEY-…
    words: Vec<String>,
    #[command(flatten)]
    selection: Selection,
    /// All objects of the type in the namespace
    #[arg(long)]
    all: bool,
    /// Replace values that are there already
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    dry_run: DryRun,
}

/// Which map of the metadata.
#[derive(Debug, Clone, Copy)]
pub enum Field {
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
}

impl EditFields {
    pub async fn run(self, session: &Session, field: Field) -> Result<()> {
        let is_change = |word: &&String| word.contains('=') || word.ends_with('-');
        let (changes, words): (Vec<&String>, Vec<&String>) = self.words.iter().partition(is_change);
        if changes.is_empty() {
            bail!(
                "at least one {} update is required",
                field.name().trim_end_matches('s')
            );
        }
        let changes = parse(&changes);
        let words: Vec<String> = words.into_iter().cloned().collect();
        let discovery = Discovery::load(&session.api).await?;
        let targets =
            resources::targets(session, &discovery, &self.selection, &words, self.all).await?;
        for target in targets {
            let before = session.api.get(&target.path()).await?;
            let current = &before["metadata"][field.name()];
            self.refuse_overwriting(current, &changes)?;
            let patch = json!({"metadata": {field.name(): changes}});
            let path = format!("{}{}", target.path(), self.dry_run.query());
            let after = session.api.patch(&path, PatchType::Merge, &patch).await?;
            report(
                &after,
                deed(field, current, &after["metadata"][field.name()]),
                &self.output,
                &self.dry_run,
            )?;
        }
        Ok(())
    }

    fn refuse_overwriting(&self, current: &Value, changes: &Map<String, Value>) -> Result<()> {
        for (key, value) in changes.iter().filter(|(_, value)| !value.is_null()) {
            let there = current[key.as_str()].as_str();
            if !self.overwrite && there.is_some_and(|there| Some(there) != value.as_str()) {
                bail!(
                    "'{key}' already has a value ({}), and --overwrite is false",
                    there.unwrap_or_default()
                );
            }
        }
        Ok(())
    }
}

fn parse(changes: &[&String]) -> Map<String, Value> {
    let change = |word: &&String| match word.split_once('=') {
        Some((key, value)) => (key.to_owned(), json!(value)),
        None => (word.trim_end_matches('-').to_owned(), Value::Null),
    };
    changes.iter().map(change).collect()
}

fn deed(field: Field, before: &Value, after: &Value) -> &'static str {
    match field {
        Field::Annotations => "annotated",
        Field::Labels if before == after => "not labeled",
        Field::Labels => {
            let count = |value: &Value| value.as_object().map_or(0, Map::len);
            if count(after) < count(before) {
                "unlabeled"
            } else {
                "labeled"
            }
        }
    }
}
