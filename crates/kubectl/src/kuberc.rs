//! The kuberc file: default flags, and aliases.

use std::{
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, bail};
use clap::Command;
use serde_json::{Value, json};

use crate::{
    argv,
    called::Called,
    error::{Plain, io_reason},
    json::{entries, list, str_of},
    kubeconfig::{self, plugin_policy},
    manifest,
};

const VERSIONS: &[&str] = &[
    "kubectl.config.k8s.io/v1beta1",
    "kubectl.config.k8s.io/v1alpha1",
];

/// The file: `--kuberc`, `$KUBERC`, or `~/.kube/kuberc`, and whether it was named; `None` if
/// disabled.
pub(crate) fn path(flag: Option<&str>) -> Result<Option<(PathBuf, bool)>> {
    if std::env::var("KUBECTL_KUBERC").is_ok_and(|value| value == "false") {
        return Ok(None);
    }
    let variable = std::env::var("KUBERC").ok().filter(|path| !path.is_empty());
    let flag = flag.filter(|path| !path.is_empty());
    Ok(match (flag, variable.as_deref()) {
        (Some(_), Some("off")) => {
            bail!("disabling kuberc via KUBERC=off and passing kuberc flag are mutually exclusive")
        }
        (None, Some("off")) => None,
        (Some(path), _) | (None, Some(path)) => Some((path.into(), true)),
        (None, None) => Some((kubeconfig::home().join(".kube/kuberc"), false)),
    })
}

/// The preferences in a file, as it is written; empty if there is none and that is no error.
pub(crate) fn read(path: &Path, must_exist: bool) -> Result<Value> {
    match decoded(path) {
        Ok((preferences, _)) => Ok(preferences),
        Err(broken) if broken.is_absent && !must_exist => Ok(json!({})),
        Err(broken) => Err(applying(anyhow!("kuberc error kuberc: {}", broken.why))),
    }
}

/// The words with aliases replaced and default flags added.
pub(crate) fn apply(root: &Command, words: Vec<String>) -> Result<Vec<String>> {
    if words.len() < 2 {
        return Ok(words);
    }
    let changed = || match preferences(flag(&words)?.as_deref(), true)? {
        None => Ok(words.clone()),
        Some(preferences) => {
            check(&preferences)?;
            changed(root, &words, &preferences)
        }
    };
    changed().map_err(applying)
}

fn applying(error: anyhow::Error) -> anyhow::Error {
    Plain(format!(
        "error occurred while applying preferences {error:#}"
    ))
    .into()
}

/// The value of `--kuberc`.
fn flag(words: &[String]) -> Result<Option<String>> {
    let mut words = words.iter().take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        let given = match word.strip_prefix("--kuberc") {
            Some("") => words.next().cloned(),
            Some(rest) if rest.starts_with('=') => Some(rest[1..].to_owned()),
            _ => continue,
        };
        let given = given.filter(|path| !path.is_empty());
        return Ok(Some(given.context("kuberc file is not found")?));
    }
    Ok(None)
}

/// The preferences, with the fields of v1beta1. A file that was not named and is not valid is only
/// reported, if `reports`.
pub(crate) fn preferences(flag: Option<&str>, reports: bool) -> Result<Option<Value>> {
    let Some((path, is_named)) = path(flag).map_err(|error| anyhow!("kuberc error {error}"))?
    else {
        return Ok(None);
    };
    let shown = path.display();
    match decoded(&path) {
        Ok((preferences, unknown)) => {
            if reports && !unknown.is_empty() {
                let unknown = unknown.join(", ");
                eprintln!(
                    "kuberc: ignoring strict decoding error in {shown}: strict decoding error: {unknown}"
                );
            }
            Ok(Some(current(&preferences)))
        }
        Err(broken) if is_named => bail!("kuberc error kuberc: {}", broken.why),
        Err(broken) => {
            if reports && !broken.is_absent {
                eprintln!("kuberc: no preferences loaded from {shown}: {}", broken.why);
            }
            Ok(None)
        }
    }
}

/// Why there are no preferences in a file.
struct Broken {
    is_absent: bool,
    why: String,
}

/// The first valid document of a file, and what is unknown in it.
fn decoded(path: &Path) -> Result<(Value, Vec<String>), Broken> {
    let text = std::fs::read_to_string(path).map_err(|error| Broken {
        is_absent: error.kind() == io::ErrorKind::NotFound,
        why: format!("open {}: {}", path.display(), io_reason(&error)),
    })?;
    let documents = manifest::documents(&text, &path.display().to_string());
    let is_valid = |preferences: &Value| {
        let version = str_of(&preferences["apiVersion"]);
        let sections = ["aliases", "defaults", "overrides"];
        let mut entries = sections
            .iter()
            .flat_map(|section| list(&preferences[section]));
        preferences["kind"] == "Preference"
            && VERSIONS.contains(&version)
            && entries.all(Value::is_object)
    };
    let found = documents
        .ok()
        .and_then(|all| all.into_iter().find(is_valid));
    match found {
        Some(preferences) => {
            let unknown = unknown(&preferences);
            Ok((preferences, unknown))
        }
        None => Err(Broken {
            is_absent: false,
            why: format!(
                "no valid preferences found in {}, use --v=5 to see details",
                path.display()
            ),
        }),
    }
}

/// The names of the two fields that another version has.
fn names_of(preferences: &Value) -> [&'static str; 2] {
    match str_of(&preferences["apiVersion"]).ends_with("v1alpha1") {
        true => ["overrides", "flags"],
        false => ["defaults", "options"],
    }
}

/// The fields that the version does not have, in Go's words.
fn unknown(preferences: &Value) -> Vec<String> {
    let [defaults, options] = names_of(preferences);
    let plugins = ["credentialPluginPolicy", "credentialPluginAllowlist"];
    let plugins = plugins.iter().filter(|_| defaults == "defaults").copied();
    let top: Vec<&str> = ["apiVersion", "kind", "aliases", defaults]
        .into_iter()
        .chain(plugins)
        .collect();
    let alias = ["name", "command", "prependArgs", "appendArgs", options];
    let mut found = Vec::new();
    let mut look = |value: &Value, at: &str, known: &[&str]| {
        let names = entries(value).into_iter().map(|(name, _)| name);
        let odd = names.filter(|name| !known.contains(name));
        found.extend(odd.map(|name| format!("unknown field \"{at}{name}\"")));
    };
    look(preferences, "", &top);
    for (section, known) in [("aliases", &alias[..]), (defaults, &["command", options])] {
        for (n, entry) in list(&preferences[section]).enumerate() {
            let at = format!("{section}[{n}].");
            look(entry, &at, known);
            for (n, option) in list(&entry[options]).enumerate() {
                look(
                    option,
                    &format!("{at}{options}[{n}]."),
                    &["name", "default"],
                );
            }
        }
    }
    found
}

/// Preferences with the fields of v1beta1.
fn current(preferences: &Value) -> Value {
    let [defaults, options] = names_of(preferences);
    let mut current = preferences.clone();
    current["defaults"] = preferences[defaults].clone();
    for section in ["defaults", "aliases"] {
        let entries = current[section].as_array_mut().into_iter().flatten();
        for entry in entries.filter(|entry| entry.is_object()) {
            entry["options"] = entry[options].clone();
        }
    }
    current
}

/// Names of aliases and flags.
fn check(preferences: &Value) -> Result<()> {
    let check_flags = |entry: &Value| {
        let names = list(&entry["options"]).map(|option| str_of(&option["name"]));
        match names.into_iter().find(|name| name.starts_with('-')) {
            Some(name) => bail!("flag name {name} should be in long form without dashes"),
            None => Ok(()),
        }
    };
    let mut names: Vec<&str> = Vec::new();
    for alias in list(&preferences["aliases"]) {
        let name = str_of(&alias["name"]);
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphabetic()) {
            bail!("invalid alias name, can only include alphabetical characters");
        }
        check_flags(alias)?;
        if names.contains(&name) {
            bail!("duplicate alias name {name}");
        }
        names.push(name);
    }
    list(&preferences["defaults"]).try_for_each(check_flags)?;
    plugin_policy::validate(preferences)
}

fn changed(root: &Command, words: &[String], preferences: &Value) -> Result<Vec<String>> {
    let called = Called::find(root, words);
    if called.path.is_empty() {
        return match called.start {
            Some(start) => aliased(root, words, start, preferences),
            None => Ok(words.to_vec()),
        };
    }
    let mut more = Vec::new();
    for entry in list(&preferences["defaults"]) {
        let command = str_of(&entry["command"]);
        let named = Called::named(root, command);
        if named.path.is_empty() {
            eprintln!("Warning: command {command:?} not found to set kuberc override");
        } else if named.path == called.path {
            let invalid = |name: &str| anyhow!("invalid flag {name} for command {command}");
            more.extend(options(entry, &called, words, invalid)?);
        }
    }
    let mut words = words.to_vec();
    insert(&mut words, more);
    Ok(words)
}

/// The words with an alias replaced, if there is one.
fn aliased(
    root: &Command,
    words: &[String],
    start: usize,
    preferences: &Value,
) -> Result<Vec<String>> {
    let name = words[start].as_str();
    let mut aliases = list(&preferences["aliases"]);
    let Some(alias) = aliases.find(|alias| alias["name"] == name) else {
        return Ok(words.to_vec());
    };
    let command = str_of(&alias["command"]);
    let called = Called::named(root, command);
    let names: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
    if called.path.is_empty() {
        let names = names.join(" ");
        bail!("command {command:?} not found to set alias {name:?}: [{names}]");
    }
    // The defaults of a command are not those of its aliases.
    let mut defaults = list(&preferences["defaults"]).map(|entry| str_of(&entry["command"]));
    if defaults.any(|command| command.split_whitespace().next() == Some(name)) {
        bail!("alias {name} can not be overridden");
    }
    let texts = |field: &str| list(&alias[field]).map(|word| str_of(word).to_owned());
    let mut out = words[..start].to_vec();
    out.extend(names);
    out.extend(texts("prependArgs"));
    out.extend_from_slice(&words[start + 1..]);
    let program = &words[0];
    let invalid = |flag: &str| anyhow!("invalid alias flag {flag} in alias {program}");
    let more = options(alias, &called, words, invalid)?;
    insert(&mut out, more);
    out.extend(texts("appendArgs"));
    Ok(argv::normal(root, out))
}

/// `--name=value` for each option of an entry that the words do not set.
fn options(
    entry: &Value,
    called: &Called<'_>,
    words: &[String],
    invalid: impl Fn(&str) -> anyhow::Error,
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for option in list(&entry["options"]) {
        let name = str_of(&option["name"]);
        let flag = called.flag(name).ok_or_else(|| invalid(name))?;
        if !called.is_set(flag, words) {
            let value = crate::output::jsonpath::text(&option["default"]);
            found.push(format!("--{}={value}", called.own_name(name)));
        }
    }
    Ok(found)
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

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(ToOwned::to_owned).collect()
    }

    #[test]
    fn aliases_and_defaults_change_the_arguments() {
        let preferences = json!({
            "aliases": [{"name": "getn", "command": "get", "prependArgs": ["nodes"], "options": [{"name": "output", "default": "wide"}]},
                        {"name": "runx", "command": "run", "appendArgs": ["--", "sh"], "options": [{"name": "image", "default": "x"}]},
                        {"name": "bind", "command": "create rolebinding", "options": [{"name": "user", "default": "jane"}]},
                        {"name": "sh", "command": "exec", "appendArgs": ["-l"]}],
            "defaults": [{"command": "run", "options": [{"name": "restart", "default": "Never"}]},
                         {"command": "delete", "options": [{"name": "interactive", "default": "true"}]},
                         {"command": "delete", "options": [{"name": "wait", "default": false}]},
                         {"command": "get", "options": [{"name": "output", "default": "wide"}]},
                         {"command": "create secret generic", "options": [{"name": "type", "default": "t"}]}]});
        let root = argv::command();
        for (line, expected) in [
            ("kubectl getn", "kubectl get nodes --output=wide"),
            ("kubectl getn -o json", "kubectl get nodes -o json"),
            ("kubectl -n x getn", "kubectl -n x get nodes --output=wide"),
            (
                "kubectl --output=yaml getn",
                "kubectl --output=yaml get nodes",
            ),
            ("kubectl runx p", "kubectl run p --image=x -- sh"),
            ("kubectl sh p -- bash", "kubectl exec p -- bash -l"),
            (
                "kubectl bind x",
                "kubectl create rolebinding x --subject-user=jane",
            ),
            (
                "kubectl bind x --user=joe",
                "kubectl create rolebinding x --subject-user=joe",
            ),
            (
                "kubectl delete pod x",
                "kubectl delete pod x --interactive=true --wait=false",
            ),
            // The value of a flag is not the command.
            (
                "kubectl -n get delete ns x",
                "kubectl -n get delete ns x --interactive=true --wait=false",
            ),
            (
                "kubectl delete pod x -i=false --wait",
                "kubectl delete pod x -i=false --wait",
            ),
            ("kubectl get pods -Aojson", "kubectl get pods -Aojson"),
            (
                "kubectl create secret generic s",
                "kubectl create secret generic s --type=t",
            ),
            ("kubectl top pods", "kubectl top pods"),
            ("kubectl mine", "kubectl mine"),
        ] {
            let changed = changed(&root, &words(line), &preferences).expect(line);
            assert_eq!(changed.join(" "), expected, "{line}");
        }
    }

    #[test]
    fn invalid_preferences_are_named_as_by_upstream() {
        let root = argv::command();
        let option = |name: &str| json!([{"name": name, "default": "x"}]);
        for (preferences, line, expected) in [
            (
                json!({"defaults": [{"command": "get", "options": option("nope")}]}),
                "kubectl get pods",
                "invalid flag nope for command get",
            ),
            (
                json!({"defaults": [{"command": "top", "options": option("--x")}]}),
                "kubectl get pods",
                "flag name --x should be in long form without dashes",
            ),
            (
                json!({"aliases": [{"name": "g1", "command": "get"}]}),
                "kubectl get pods",
                "invalid alias name, can only include alphabetical characters",
            ),
            (
                json!({"aliases": [{"name": "g", "command": "get"}, {"name": "g", "command": "top"}]}),
                "kubectl get pods",
                "duplicate alias name g",
            ),
            (
                json!({"aliases": [{"name": "g", "command": "nope"}]}),
                "kubectl g",
                "command \"nope\" not found to set alias \"g\": [nope]",
            ),
            (
                json!({"aliases": [{"name": "g", "command": "get", "options": option("nope")}]}),
                "kubectl g",
                "invalid alias flag nope in alias kubectl",
            ),
            (
                json!({"aliases": [{"name": "g", "command": "get"}], "defaults": [{"command": "g"}]}),
                "kubectl g",
                "alias g can not be overridden",
            ),
        ] {
            let applied =
                check(&preferences).and_then(|()| changed(&root, &words(line), &preferences));
            assert_eq!(applied.unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn a_file_has_the_fields_of_its_version_and_may_have_several_documents() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let header = "apiVersion: kubectl.config.k8s.io/v1alpha1\nkind: Preference\n";
        let text = format!(
            "kind: Other\n---\n{header}x: 1\noverrides: [{{command: get, flags: [{{name: a, default: b, c: d}}]}}]\n"
        );
        std::fs::write(file.path(), text).unwrap();
        let (preferences, unknown) = decoded(file.path()).ok().unwrap();
        assert_eq!(
            unknown,
            [
                "unknown field \"x\"",
                "unknown field \"overrides[0].flags[0].c\""
            ]
        );
        assert_eq!(
            current(&preferences)["defaults"][0]["options"][0]["name"],
            "a"
        );
        for text in ["kind: Preference\n", "kind: ["] {
            std::fs::write(file.path(), text).unwrap();
            let broken = decoded(file.path()).err().unwrap();
            assert!(!broken.is_absent && broken.why.starts_with("no valid preferences found in "));
        }
        assert!(decoded(Path::new("/nonexistent")).err().unwrap().is_absent);
    }

    #[test]
    fn the_flag_names_the_file_up_to_the_dashes() {
        for (line, expected) in [
            ("kubectl get --kuberc a", Some("a")),
            ("kubectl get --kuberc=a", Some("a")),
            ("kubectl exec p -- x --kuberc=a", None),
        ] {
            assert_eq!(flag(&words(line)).unwrap().as_deref(), expected, "{line}");
        }
        assert!(flag(&words("kubectl get --kuberc")).is_err());
    }
}
