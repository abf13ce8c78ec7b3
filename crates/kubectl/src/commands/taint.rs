//! `kubectl taint`

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    api::{PatchType, Query},
    args::{DryRun, Selection, Validate},
    error,
    json::{list, str_of},
    output::PrintFlags,
    resources,
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
        let is_spec = |word: &&String| word.contains([':', '=']) || word.ends_with('-');
        let names: Vec<String> = self
            .words
            .iter()
            .take_while(|word| !is_spec(word))
            .cloned()
            .collect();
        if names.is_empty() {
            bail!("one or more resources must be specified as <resource> <name>");
        }
        let (added, removed) = parse(&self.words[names.len()..])?;
        let is_removed =
            |taint: &&Value| removed.iter().any(|(key, _)| taint["key"] == key.as_str());
        if let Some(both) = added.iter().find(is_removed) {
            let key = str_of(&both["key"]);
            let effect = removed.iter().find(|(removed, _)| removed == key);
            let effect = effect.and_then(|(_, effect)| effect.as_deref());
            bail!(
                "can not both modify and remove the following taint(s) in the same command: {key}={}",
                effect.unwrap_or_default()
            );
        }
        if added.is_empty() && removed.is_empty() {
            bail!("at least one taint update is required");
        }
        if let Some(kind) = names.first()
            && !["node", "nodes", "no"].contains(&kind.as_str())
            && !kind.contains('/')
        {
            bail!("invalid resource type {kind}, only node types are supported");
        }
        if self.all && self.selector.is_some() {
            bail!("setting 'all' parameter with a non empty selector is prohibited");
        }
        let dry_run = self.dry_run.mode()?;
        let report = Report::new(&self.print, dry_run)?;
        let selection = Selection {
            selector: self.selector.clone(),
            ..Selection::default()
        };
        let mut query: Query = vec![
            self.validate.parameter()?,
            ("fieldManager", self.field_manager.clone()),
        ];
        query.extend(dry_run.parameter());
        for target in resources::targets(session, &selection, &names, self.all).await? {
            let mut node = target.get(session).await?;
            let current: Vec<Value> = list(&node["spec"]["taints"]).cloned().collect();
            let (taints, deed) = decide(&target.name, &current, &added, &removed, self.overwrite)?;
            node["spec"]["taints"] = json!(taints);
            if dry_run.is_client() {
                match report.prints_objects() {
                    true => report.print(&node, deed)?,
                    // Printed without the dry-run suffix, as upstream does.
                    false => println!("{} {deed}", target.display()),
                }
                continue;
            }
            let taints = if taints.is_empty() {
                Value::Null
            } else {
                json!(taints)
            };
            let patch = json!({"spec": {"taints": taints}});
            let after = session
                .api
                .patch(&target.path(), PatchType::Merge, &patch, &query)
                .await?;
            report.print(&after, deed)?;
        }
        Ok(())
    }
}

type Removal = (String, Option<String>);

fn parse(words: &[String]) -> Result<(Vec<Value>, Vec<Removal>)> {
    let (mut added, mut removed) = (Vec::new(), Vec::new());
    for word in words {
        if let Some(spec) = word.strip_suffix('-') {
            let (key, effect) = match spec.split_once(':') {
                Some((key, effect)) => (key, Some(effect.to_owned())),
                None => (spec, None),
            };
            let key = key.split('=').next().unwrap_or(key);
            removed.push((key.to_owned(), effect));
            continue;
        }
        if word.matches(':').count() > 1 || word.matches('=').count() > 1 {
            let message = format!("invalid taint spec: {word}");
            return Err(error::usage("taint", message));
        }
        let (pair, effect) = match word.rsplit_once(':') {
            Some((pair, effect)) => (pair, Some(effect)),
            None => (word.as_str(), None),
        };
        let name = match effect {
            Some(_) => pair.split('=').next().unwrap_or(pair),
            None => pair,
        };
        if let Some(why) = machinery::format::qualified_name(name).first() {
            return Err(error::usage(
                "taint",
                format!("invalid taint spec: {word}, {why}"),
            ));
        }
        let effect = effect.unwrap_or_default();
        if !EFFECTS.contains(&effect) {
            return Err(error::usage(
                "taint",
                format!("invalid taint effect: {effect}, unsupported taint effect"),
            ));
        }
        let mut taint = json!({});
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if key.is_empty() {
            bail!("invalid taint spec: {word}");
        }
        taint["key"] = json!(key);
        if !value.is_empty() {
            taint["value"] = json!(value);
        }
        taint["effect"] = json!(effect);
        let is_twice =
            |known: &Value| known["key"] == taint["key"] && known["effect"] == taint["effect"];
        if added.iter().any(is_twice) {
            return Err(error::usage(
                "taint",
                format!(
                    "duplicated taints with the same key and effect: {{{key} {value} {effect} <nil>}}"
                ),
            ));
        }
        added.push(taint);
    }
    Ok((added, removed))
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
    if let (false, Some(known)) = (overwrite, exists.into_iter().next()) {
        bail!(
            "node {node} already has {} taint(s) with same effect(s) and --overwrite is false",
            str_of(&known["key"])
        );
    }
    let is_removed = |taint: &Value| {
        removed.iter().any(|(key, effect)| {
            taint["key"] == key.as_str()
                && effect
                    .as_ref()
                    .is_none_or(|effect| taint["effect"] == effect.as_str())
        })
    };
    for (key, effect) in removed {
        let matches = |taint: &&Value| {
            taint["key"] == key.as_str()
                && effect
                    .as_ref()
                    .is_none_or(|effect| taint["effect"] == effect.as_str())
        };
        if !current.iter().any(|taint| matches(&taint)) {
            match effect {
                Some(effect) => bail!("taint \"{key}:{effect}\" not found"),
                None => bail!("taint {key:?} not found"),
            }
        }
    }
    let mut taints: Vec<Value> = added.to_vec();
    let kept = current
        .iter()
        .filter(|taint| !is_removed(taint) && !added.iter().any(|new| same(new, taint)));
    taints.extend(kept.cloned());
    let deed = match (added.is_empty(), removed.is_empty()) {
        (true, _) => "untainted",
        (false, true) => "tainted",
        (false, false) => "modified",
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
        assert_eq!((taints[0]["value"].as_str(), deed), (Some("b"), "tainted"));
        let (taints, deed) = decide("n", &current, &[], &[("a".into(), None)], false).unwrap();
        assert_eq!((taints.len(), deed), (0, "untainted"));
        assert!(decide("n", &current, &[], &[("z".into(), None)], false).is_err());
    }
}
