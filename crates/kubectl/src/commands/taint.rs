//! `kubectl taint`

use anyhow::{Result, anyhow, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    api::{PatchType, Query},
    args::{DryRun, DryRunMode, Selection, Validate},
    error,
    json::{list, str_of},
    output::PrintFlags,
    resources::{self, Target},
    session::Session,
};

use super::report::Report;

/// Flags of `taint`.
#[derive(Debug, Args)]
pub(crate) struct Taint {
    /// NODE NAME…, then KEY=VALUE:EFFECT… or KEY[:EFFECT]-…
    words: Vec<String>,
    /// Selector (label query) to filter on
    #[arg(short = 'l', long, value_name = "QUERY")]
    selector: Option<String>,
    /// Select all nodes in the cluster
    #[arg(long)]
    all: bool,
    /// Allow taints to be overwritten
    #[arg(long)]
    overwrite: bool,
    /// Name of the manager used to track field ownership
    #[arg(long, default_value = "kubectl-taint", value_name = "NAME")]
    field_manager: String,
    #[command(flatten)]
    validate: Validate,
    #[command(flatten)]
    print: PrintFlags,
    #[command(flatten)]
    dry_run: DryRun,
}

const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

impl Taint {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let dry_run = self.dry_run.mode()?;
        let mut query: Query = vec![
            self.validate.parameter()?,
            ("fieldManager", self.field_manager.clone()),
        ];
        query.extend(dry_run.parameter());
        let (resources, specs) = split_words(&self.words)?;
        let (added, removed) = parse(&specs)?;
        self.check(session, &resources, &added, &removed).await?;
        let mut errors = Vec::new();
        for target in self.nodes(session, &resources).await? {
            let change = async {
                let mut node = target.get(session).await?;
                let current: Vec<Value> = list(&node["spec"]["taints"]).cloned().collect();
                let (taints, deed) =
                    decide(&target.name, &current, &added, &removed, self.overwrite)?;
                // Printed without a suffix for dry runs, as upstream does.
                let report = Report::new(&self.print, DryRunMode::None)?;
                let taints = (!taints.is_empty()).then_some(taints);
                if !dry_run.is_client() {
                    let patch = json!({"spec": {"taints": taints}});
                    let path = target.path();
                    let sent = session.api.patch(&path, PatchType::Merge, &patch, &query);
                    return report.print(&sent.await?, deed);
                }
                match (taints, node["spec"].as_object_mut()) {
                    (None, Some(spec)) => drop(spec.remove("taints")),
                    (taints, _) => node["spec"]["taints"] = json!(taints),
                }
                report.print(&node, deed)
            };
            if let Err(error) = change.await {
                errors.push(error);
            }
        }
        error::aggregate(errors)
    }

    /// The type is Node, nothing is both added and removed, and nodes are named or selected.
    async fn check(
        &self,
        session: &Session,
        resources: &[String],
        added: &[Value],
        removed: &[Removal],
    ) -> Result<()> {
        let kind = resources[0].to_lowercase();
        let found = session.discovery.resolve(&kind).await;
        let found = found.map_err(|error| error::Plain(error.to_string()))?;
        if found.kind != "Node" {
            bail!("invalid resource type {kind}, only node types are supported");
        }
        let mut both = Vec::new();
        for taint in added {
            let conflicts = removed.iter().filter(|(key, effect)| {
                taint["key"] == key.as_str()
                    && effect
                        .as_ref()
                        .is_none_or(|effect| taint["effect"] == effect.as_str())
            });
            both.extend(
                conflicts.map(|(key, effect)| {
                    format!("{key}={}", effect.as_deref().unwrap_or_default())
                }),
            );
        }
        if !both.is_empty() {
            bail!(
                "can not both modify and remove the following taint(s) in the same command: {}",
                both.join(", ")
            );
        }
        let has_selector = self.selector.as_ref().is_some_and(|text| !text.is_empty());
        match (self.all, has_selector) {
            (true, true) => {
                bail!("setting 'all' parameter with a non empty selector is prohibited")
            }
            (false, false) if resources.len() < 2 => bail!(
                "at least one resource name must be specified since 'all' parameter is not set"
            ),
            _ => Ok(()),
        }
    }

    /// The named nodes, all, or those that the selector matches; then names are ignored.
    async fn nodes(&self, session: &Session, resources: &[String]) -> Result<Vec<Target>> {
        let selector = self.selector.clone().filter(|text| !text.is_empty());
        if !self.all && selector.is_none() {
            let mut targets = Vec::new();
            for name in &resources[1..] {
                let named = match name.contains('/') {
                    true => vec![name.clone()],
                    false => vec!["node".to_owned(), name.clone()],
                };
                let selection = Selection::default();
                targets.extend(resources::targets(session, &selection, &named, false).await?);
            }
            return Ok(targets);
        }
        let selection = Selection {
            selector,
            ..Selection::default()
        };
        resources::targets(session, &selection, &["node".to_owned()], self.all).await
    }
}

/// A key, and the effect unless all taints with the key are removed.
type Removal = (String, Option<String>);

/// The type and names, and the changes, which come last.
fn split_words(words: &[String]) -> Result<(Vec<String>, Vec<String>)> {
    let is_change = |word: &&String| word.contains([':', '=']) || word.ends_with('-');
    let names: Vec<String> = words
        .iter()
        .take_while(|word| !is_change(word))
        .cloned()
        .collect();
    let changes = words[names.len()..].to_vec();
    if let Some(stray) = changes.iter().find(|word| !is_change(word)) {
        bail!("all resources must be specified before taint changes: {stray}");
    }
    if names.is_empty() {
        bail!("one or more resources must be specified as <resource> <name>");
    }
    if changes.is_empty() {
        bail!("at least one taint update is required");
    }
    Ok((names, changes))
}

fn parse(words: &[String]) -> Result<(Vec<Value>, Vec<Removal>)> {
    let (mut added, mut removed) = (Vec::new(), Vec::new());
    let usage = |message: String| error::usage("taint", message);
    for word in words {
        if let Some(spec) = word.strip_suffix('-') {
            let (key, _, effect) = parse_one(spec).map_err(usage)?;
            let effect = (!effect.is_empty()).then(|| effect.to_owned());
            removed.push((key.to_owned(), effect));
            continue;
        }
        let (key, value, effect) = parse_one(word).map_err(usage)?;
        if effect.is_empty() {
            return Err(usage(format!("invalid taint spec: {word}")));
        }
        let is_twice = |known: &Value| known["key"] == key && known["effect"] == effect;
        if added.iter().any(is_twice) {
            return Err(usage(format!(
                "duplicated taints with the same key and effect: {{{key} {value} {effect} <nil>}}"
            )));
        }
        let mut taint = json!({"key": key});
        if !value.is_empty() {
            taint["value"] = json!(value);
        }
        taint["effect"] = json!(effect);
        added.push(taint);
    }
    Ok((added, removed))
}

/// The key, value and effect of `KEY[=VALUE]:EFFECT` or `KEY`.
fn parse_one(word: &str) -> Result<(&str, &str, &str), String> {
    let invalid = || format!("invalid taint spec: {word}");
    let check = |reasons: Vec<String>| match reasons.is_empty() {
        true => Ok(()),
        false => Err(format!("{}, {}", invalid(), reasons.join("; "))),
    };
    let parts: Vec<&str> = word.split(':').collect();
    let (key, value, effect) = match parts[..] {
        [key] => (key, "", ""),
        [pair, effect] => {
            if !EFFECTS.contains(&effect) {
                return Err(format!(
                    "invalid taint effect: {effect}, unsupported taint effect"
                ));
            }
            let pair: Vec<&str> = pair.split('=').collect();
            match pair[..] {
                [key] => (key, "", effect),
                [key, value] => (key, value, effect),
                _ => return Err(invalid()),
            }
        }
        _ => return Err(invalid()),
    };
    check(machinery::format::label_value(value))?;
    check(machinery::format::qualified_name(key))?;
    Ok((key, value, effect))
}

/// The taints after the change, and the message.
fn decide(
    node: &str,
    current: &[Value],
    added: &[Value],
    removed: &[Removal],
    overwrite: bool,
) -> Result<(Vec<Value>, &'static str)> {
    let same = |a: &Value, b: &Value| a["key"] == b["key"] && a["effect"] == b["effect"];
    let exists = added
        .iter()
        .filter(|taint| current.iter().any(|known| same(known, taint)));
    let exists: Vec<&str> = exists.map(|taint| str_of(&taint["key"])).collect();
    if !overwrite && !exists.is_empty() {
        bail!(
            "node {node} already has {} taint(s) with same effect(s) and --overwrite is false",
            exists.join(",")
        );
    }
    let mut taints: Vec<Value> = added.to_vec();
    let kept = current
        .iter()
        .filter(|taint| !added.iter().any(|new| same(new, taint)));
    taints.extend(kept.cloned());
    let is_added = taints.len() != current.len();
    let (mut is_removed, mut errors) = (false, Vec::new());
    for (key, effect) in removed {
        let before = taints.len();
        taints.retain(|taint| {
            taint["key"] != key.as_str()
                || effect
                    .as_ref()
                    .is_some_and(|effect| taint["effect"] != effect.as_str())
        });
        is_removed = taints.len() < before;
        if !is_removed {
            let effect = effect.as_ref().map(|effect| format!(":{effect}"));
            let name = format!("{key}{}", effect.unwrap_or_default());
            errors.push(anyhow!("taint {name:?} not found"));
        }
    }
    error::aggregate(errors)?;
    // Upstream counts the last removal only.
    let deed = match (is_added, is_removed) {
        _ if overwrite => "modified",
        (true, true) => "modified",
        (true, false) => "tainted",
        (false, _) => "untainted",
    };
    Ok((taints, deed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_are_added_removed_and_not_overwritten_by_accident() {
        let words = |words: &[&str]| {
            words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>()
        };
        let (added, removed) = parse(&words(&[
            "a=b:NoSchedule",
            "c:NoExecute",
            "d-",
            "e:NoSchedule-",
        ]))
        .unwrap();
        assert_eq!(added[1], json!({"key": "c", "effect": "NoExecute"}));
        assert_eq!(
            removed,
            [
                ("d".to_owned(), None),
                ("e".to_owned(), Some("NoSchedule".to_owned()))
            ]
        );
        assert!(parse(&words(&["a=b"])).is_err() && parse(&words(&["a=b:Nope"])).is_err());
        let current = [json!({"key": "a", "value": "x", "effect": "NoSchedule"})];
        assert!(decide("n", &current, &added[..1], &[], false).is_err());
        let (taints, deed) = decide("n", &current, &added[..1], &[], true).unwrap();
        assert_eq!((taints[0]["value"].as_str(), deed), (Some("b"), "modified"));
        let (taints, deed) = decide("n", &current, &[], &[("a".into(), None)], false).unwrap();
        assert_eq!((taints.len(), deed), (0, "untainted"));
        assert!(decide("n", &current, &[], &[("z".into(), None)], false).is_err());
    }
}
