//! The kuberc file: default flags, and aliases.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::CommandFactory;
use serde_json::{Value, json};

use crate::{
    args::Cli,
    json::{list, str_of},
    kubeconfig,
};

const VERSIONS: &[&str] = &[
    "kubectl.config.k8s.io/v1",
    "kubectl.config.k8s.io/v1beta1",
    "kubectl.config.k8s.io/v1alpha1",
];

/// The file: `--kuberc`, `$KUBERC`, or `~/.kube/kuberc`; `None` if disabled.
pub(crate) fn path(flag: Option<&str>) -> Option<(PathBuf, bool)> {
    if std::env::var("KUBECTL_KUBERC").is_ok_and(|value| value == "false") {
        return None;
    }
    let named = flag
        .map(ToOwned::to_owned)
        .or_else(|| std::env::var("KUBERC").ok())
        .filter(|path| !path.is_empty());
    match named.as_deref() {
        Some("off") => None,
        Some(path) => Some((path.into(), true)),
        None => Some((kubeconfig::home().join(".kube/kuberc"), false)),
    }
}

/// The preferences in the file; empty if the default file is absent.
pub(crate) fn read(path: &std::path::Path, is_named: bool) -> Result<Value> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !is_named => {
            return Ok(json!({}));
        }
        Err(error) => {
            let why = crate::error::io_reason(&error);
            let said = format!(
                "error occurred while applying preferences kuberc error kuberc: open {}: {why}",
                path.display()
            );
            return Err(crate::error::Plain(said).into());
        }
    };
    let preferences: Value =
        serde_saphyr::from_str(&text).with_context(|| format!("kuberc {}", path.display()))?;
    let version = str_of(&preferences["apiVersion"]);
    if preferences["kind"] != "Preference" || !VERSIONS.contains(&version) {
        bail!(
            "kuberc {}: not a Preference of {}",
            path.display(),
            VERSIONS[0]
        );
    }
    Ok(preferences)
}

/// The words with aliases replaced and default flags added.
pub(crate) fn apply(words: Vec<String>) -> Result<Vec<String>> {
    let flag =
        words
            .iter()
            .enumerate()
            .find_map(|(at, word)| match word.strip_prefix("--kuberc") {
                Some("") => words.get(at + 1).cloned(),
                Some(rest) => rest.strip_prefix('=').map(ToOwned::to_owned),
                None => None,
            });
    let Some((path, is_named)) = path(flag.as_deref()) else {
        return Ok(words);
    };
    let preferences = read(&path, is_named)?;
    Ok(changed(words, &preferences))
}

fn changed(words: Vec<String>, preferences: &Value) -> Vec<String> {
    // The defaults of a command are not those of its aliases.
    match aliased(&words, preferences) {
        Some(words) => words,
        None => with_defaults(words, preferences),
    }
}

/// The position, length and name of the command in the words.
fn command(words: &[String]) -> Option<(usize, usize, String)> {
    let start = words
        .iter()
        .skip(1)
        .position(|word| !word.starts_with('-'))?
        + 1;
    let root = Cli::command();
    let mut at = &root;
    let mut path = Vec::new();
    for word in &words[start..] {
        match at.find_subcommand(word) {
            Some(next) => {
                path.push(next.get_name().to_owned());
                at = next;
            }
            None => break,
        }
    }
    Some((start, path.len(), path.join(" ")))
}

/// The words with an alias replaced, if there is one.
fn aliased(words: &[String], preferences: &Value) -> Option<Vec<String>> {
    let (start, 0, _) = command(words)? else {
        return None;
    };
    let mut aliases = list(&preferences["aliases"]);
    let alias = aliases.find(|alias| alias["name"] == words[start].as_str())?;
    let texts = |value: &Value| {
        list(value)
            .map(|word| str_of(word).to_owned())
            .collect::<Vec<_>>()
    };
    let mut out = words[..start].to_vec();
    out.extend(
        str_of(&alias["command"])
            .split_whitespace()
            .map(ToOwned::to_owned),
    );
    out.extend(texts(&alias["prependArgs"]));
    let given = &words[start + 1..];
    out.extend(given.iter().cloned());
    // Flags may precede the command.
    let flags = [&words[1..start], given].concat();
    let mut more: Vec<String> = list(&alias["options"])
        .chain(list(&alias["flags"]))
        .filter_map(|flag| option(flag, &flags))
        .collect();
    more.extend(texts(&alias["appendArgs"]));
    insert(&mut out, more);
    Some(out)
}

fn with_defaults(words: Vec<String>, preferences: &Value) -> Vec<String> {
    let Some((start, count, path)) = command(&words).filter(|(_, count, _)| *count > 0) else {
        return words;
    };
    let defaults = list(&preferences["defaults"]).chain(list(&preferences["overrides"]));
    let Some(defaults) = defaults
        .into_iter()
        .find(|one| one["command"] == path.as_str())
    else {
        return words;
    };
    let given = [&words[1..start], &words[start + count..]].concat();
    let options = list(&defaults["options"]).chain(list(&defaults["flags"]));
    let more = options.filter_map(|flag| option(flag, &given)).collect();
    let mut words = words;
    insert(&mut words, more);
    words
}

/// `--name=value`, unless the user has set the flag.
fn option(flag: &Value, given: &[String]) -> Option<String> {
    let name = str_of(&flag["name"]);
    let long = format!("--{name}");
    let is_given = given
        .iter()
        .take_while(|word| *word != "--")
        .any(|word| *word == long || word.starts_with(&format!("{long}=")) || is_short(word, name));
    let value = flag.get("default").or(flag.get("value"))?;
    (!is_given && !name.is_empty())
        .then(|| format!("{long}={}", crate::output::jsonpath::text(value)))
}

/// Whether a word is the short form of a flag.
fn is_short(word: &str, name: &str) -> bool {
    const SHORT: &[(&str, char)] = &[
        ("namespace", 'n'),
        ("output", 'o'),
        ("selector", 'l'),
        ("all-namespaces", 'A'),
        ("filename", 'f'),
        ("watch", 'w'),
        ("container", 'c'),
    ];
    let letter = SHORT
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, letter)| *letter);
    letter.is_some_and(|letter| word.starts_with(&format!("-{letter}")))
}

/// Inserts words before `--`, or at the end.
fn insert(words: &mut Vec<String>, more: Vec<String>) {
    let at = words
        .iter()
        .position(|word| word == "--")
        .unwrap_or(words.len());
    words.splice(at..at, more);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_and_defaults_change_the_arguments() {
        let preferences = json!({
            "aliases": [{"name": "getn", "command": "get", "prependArgs": ["nodes"], "options": [{"name": "output", "default": "wide"}]},
                        {"name": "runx", "command": "run", "appendArgs": ["--", "sh"], "options": [{"name": "image", "default": "x"}]}],
            "defaults": [{"command": "run", "options": [{"name": "restart", "default": "Never"}]},
                         {"command": "delete", "options": [{"name": "interactive", "default": "true"}]},
                         {"command": "create secret generic", "options": [{"name": "type", "default": "t"}]}]});
        let run = |line: &str| {
            changed(
                line.split(' ').map(ToOwned::to_owned).collect(),
                &preferences,
            )
            .join(" ")
        };
        for (line, expected) in [
            ("kubectl getn", "kubectl get nodes --output=wide"),
            ("kubectl getn -o json", "kubectl get nodes -o json"),
            (
                "kubectl --output=yaml getn",
                "kubectl --output=yaml get nodes",
            ),
            ("kubectl runx p", "kubectl run p --image=x -- sh"),
            (
                "kubectl delete pod x",
                "kubectl delete pod x --interactive=true",
            ),
            (
                "kubectl delete pod x --interactive=false",
                "kubectl delete pod x --interactive=false",
            ),
            (
                "kubectl create secret generic s",
                "kubectl create secret generic s --type=t",
            ),
            ("kubectl get pods", "kubectl get pods"),
        ] {
            assert_eq!(run(line), expected, "{line}");
        }
    }
}
