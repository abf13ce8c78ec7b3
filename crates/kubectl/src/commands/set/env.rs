//! `kubectl set env`

use std::io::BufRead;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    args::{FilesOrSelector, Selection},
    json::{entries, list, str_of},
    session::Session,
};

use super::{Common, each_container, env_values, is_selected, pod_spec, split_words};

/// Flags of `set env`.
#[derive(Debug, Args)]
pub(super) struct Env {
    /// TYPE NAME or TYPE/NAME, then KEY=VALUE… or KEY-…; - reads pairs from standard input
    words: Vec<String>,
    /// The containers in the selected pod templates to change; wildcards are allowed
    #[arg(short, long, default_value = "*")]
    containers: String,
    /// Variables, as KEY=VALUE
    #[arg(short, long)]
    env: Vec<String>,
    /// A config map or secret whose keys become variables, as configmap/NAME
    #[arg(long, value_name = "TYPE/NAME")]
    from: Option<String>,
    /// With --from: only these keys
    #[arg(long, value_delimiter = ',')]
    keys: Vec<String>,
    /// Prefix to append to variable names
    #[arg(long, default_value = "")]
    prefix: String,
    /// Display the environment and any changes in the standard format
    #[arg(long)]
    list: bool,
    /// With --list: show secret or config map references in their values
    #[arg(long)]
    resolve: bool,
    /// Overwrite existing variables
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    overwrite: bool,
    #[command(flatten)]
    selection: FilesOrSelector,
    #[command(flatten)]
    common: Common,
}

impl Env {
    pub(super) async fn run(self, session: &Session) -> Result<()> {
        let is_pair = |word: &String| split_words(std::slice::from_ref(word)).0.is_empty();
        let first = self.words.iter().position(is_pair);
        let is_late = |first: usize| {
            self.words[first..]
                .iter()
                .any(|word| !is_pair(word) && word != "-")
        };
        if first.is_some_and(is_late) {
            bail!(
                "all resources must be specified before environment changes: {}",
                self.words.join(" ")
            );
        }
        let (names, pairs) = split_words(&self.words);
        let mut names = names;
        let mut pairs: Vec<String> = pairs.into_iter().chain(self.env.clone()).collect();
        if names.last().is_some_and(|word| word == "-") {
            names.pop();
            pairs.extend(
                std::io::stdin()
                    .lock()
                    .lines()
                    .collect::<Result<Vec<_>, _>>()?,
            );
        }
        let selection = Selection::from(&self.selection);
        self.common.check_local()?;
        if names.is_empty() && selection.files.is_empty() {
            bail!(
                "one or more resources must be specified as <resource> <name> or <resource>/<name>"
            );
        }
        if self.list && self.common.print.output.is_some() {
            bail!("--list and --output may not be specified together");
        }
        super::check_names(&names, &selection, &self.common)?;
        super::refuse_stray_words(&names)?;
        if !self.keys.is_empty() && self.from.is_none() {
            bail!("when specifying --keys, a configmap or secret must be provided with --from");
        }
        let (mut set, removed) = parse(&pairs)?;
        if let Some(from) = &self.from {
            set.extend(self.object_variables(session, from).await?);
        }
        if self.list {
            return self
                .show(session, (&selection, &names), (&set, &removed))
                .await;
        }
        let change = |object: &mut Value| {
            let before = object.clone();
            let found = each_container(
                object,
                &self.containers,
                &["containers", "initContainers"],
                |container| self.update(container, &set, &removed),
            );
            let found = found.map_err(|error| match error.downcast_ref::<Taken>() {
                Some(taken) => anyhow::anyhow!("{} {taken}", super::plural_name(object)),
                None => error,
            })?;
            if found == 0 {
                self.warn_of_no_containers(object);
            }
            Ok(found > 0 && *object != before)
        };
        let failure = "failed to patch env update to pod template:";
        self.common
            .change(
                session,
                (&selection, &names),
                ("env updated", failure),
                change,
            )
            .await
    }

    fn update(&self, container: &mut Value, set: &[Value], removed: &[String]) -> Result<()> {
        if !container["env"].is_array() {
            container["env"] = json!([]);
        }
        let Some(env) = container.pointer_mut("/env").and_then(Value::as_array_mut) else {
            return Ok(());
        };
        for variable in set {
            match env
                .iter_mut()
                .find(|known| known["name"] == variable["name"])
            {
                Some(known) if !self.overwrite && known["value"] != variable["value"] => {
                    return Err(Taken {
                        name: str_of(&known["name"]).to_owned(),
                        value: str_of(&known["value"]).to_owned(),
                    }
                    .into());
                }
                Some(known) => *known = variable.clone(),
                None => env.push(variable.clone()),
            }
        }
        env.retain(|known| !removed.iter().any(|name| known["name"] == name.as_str()));
        if env.is_empty()
            && let Some(container) = container.as_object_mut()
        {
            container.remove("env");
        }
        Ok(())
    }

    /// References to every key of a config map or secret.
    async fn object_variables(&self, session: &Session, from: &str) -> Result<Vec<Value>> {
        let (kind, name) = from
            .split_once('/')
            .context("--from takes configmap/NAME or secret/NAME")?;
        let resource = session.discovery.resolve(kind).await?;
        let field = match resource.kind.as_str() {
            "ConfigMap" => "configMapKeyRef",
            "Secret" => "secretKeyRef",
            _ => bail!("unsupported resource specified in --from"),
        };
        let object = session
            .api
            .get(&resource.object(&session.namespace, name))
            .await?;
        let keys = entries(&object["data"]).into_iter().map(|(key, _)| key);
        let wanted =
            |key: &&str| self.keys.is_empty() || self.keys.iter().any(|wanted| wanted == key);
        let variable = |key: &str| {
            let name = variable_name(key);
            if name != key {
                eprintln!("Warning: key {key} transferred to {name}");
            }
            let name = format!("{}{name}", self.prefix);
            json!({"name": name, "valueFrom": {field: {"key": key, "name": str_of(&object["metadata"]["name"])}}})
        };
        Ok(keys.filter(wanted).map(variable).collect())
    }

    async fn show(
        &self,
        session: &Session,
        (selection, names): (&Selection, &[String]),
        (set, removed): (&[Value], &[String]),
    ) -> Result<()> {
        for (_, mut object) in self.common.objects(session, selection, names).await? {
            let whole = object.clone();
            let kind = str_of(&whole["kind"]);
            let name = str_of(&whole["metadata"]["name"]);
            // Objects without pods have nothing to show.
            let Ok(spec) = pod_spec(&mut object) else {
                continue;
            };
            let is_chosen =
                |container: &&Value| is_selected(str_of(&container["name"]), &self.containers);
            let chosen: Vec<Value> = env_values::containers(spec)
                .filter(is_chosen)
                .cloned()
                .collect();
            if chosen.is_empty() {
                self.warn_of_no_containers(&whole);
            }
            for mut container in chosen {
                if self.update(&mut container, set, removed).is_err() {
                    break;
                }
                println!("# {kind} {name}, container {}", str_of(&container["name"]));
                self.show_container(session, &whole, &container).await;
            }
        }
        Ok(())
    }

    async fn show_container(&self, session: &Session, object: &Value, container: &Value) {
        let mut resolver = env_values::Resolver::default();
        let mut failed = Vec::new();
        for variable in list(&container["env"]) {
            let name = str_of(&variable["name"]);
            let Some(from) = variable.get("valueFrom") else {
                println!("{name}={}", str_of(&variable["value"]));
                continue;
            };
            if self.resolve {
                match resolver.value(session, from, (object, container)).await {
                    Ok(value) => {
                        println!("{name}={value}");
                        continue;
                    }
                    Err(error) => failed.push((name.to_owned(), error.to_string())),
                }
            }
            println!("# {name} from {}", env_values::describe(from));
        }
        for line in env_values::failures(failed) {
            eprintln!("{line}");
        }
    }

    fn warn_of_no_containers(&self, object: &Value) {
        eprintln!(
            "Warning: {}/{} does not have any containers matching {:?}",
            str_of(&object["kind"]),
            str_of(&object["metadata"]["name"]),
            self.containers
        );
    }
}

/// A variable that may not be overwritten.
#[derive(Debug)]
struct Taken {
    name: String,
    value: String,
}

impl std::fmt::Display for Taken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, value } = self;
        write!(
            f,
            "'{name}' already has a value ({value}), and --overwrite is false"
        )
    }
}

impl std::error::Error for Taken {}

/// Variables to set, and names to remove.
fn parse(pairs: &[String]) -> Result<(Vec<Value>, Vec<String>)> {
    let (mut set, mut removed) = (Vec::new(), Vec::new());
    for pair in pairs
        .iter()
        .map(|pair| pair.trim())
        .filter(|pair| !pair.is_empty() && !pair.starts_with('#'))
    {
        match pair.split_once('=') {
            Some((name, value)) if !name.is_empty() => {
                if let Some(why) = invalid_name(name) {
                    bail!("{name:?} is not a valid key name: {why}");
                }
                set.push(json!({"name": name, "value": value}))
            }
            None if pair.ends_with('-') => removed.push(pair.trim_end_matches('-').to_owned()),
            _ => bail!("invalid environment variable {pair:?}: expected KEY=VALUE or KEY-"),
        }
    }
    if let Some(both) = removed
        .iter()
        .find(|name| set.iter().any(|known| known["name"] == name.as_str()))
    {
        bail!("can not both modify and remove the environment variable {both} in the same command");
    }
    Ok((set, removed))
}

/// Why a variable cannot have this name. The server allows more than kubectl.
fn invalid_name(name: &str) -> Option<String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let is_valid =
        !name.starts_with(|first: char| first.is_ascii_digit()) && name.chars().all(is_allowed);
    (!is_valid).then(|| {
        machinery::format::pattern_message(
            "a valid environment variable name must consist of alphabetic characters, digits, '_', '-', or '.', and must not \
             start with a digit",
            "[-._a-zA-Z][-._a-zA-Z0-9]*",
            &["my.env-name", "MY_ENV.NAME", "MyEnvName1"],
        )
    })
}

/// A key as a variable's name: capitals and underscores.
fn variable_name(key: &str) -> String {
    key.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_set_and_dashes_remove() {
        let words = |words: &[&str]| {
            words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>()
        };
        let (set, removed) = parse(&words(&["A=1", "B=", "C-"])).unwrap();
        assert_eq!(
            set,
            [
                json!({"name": "A", "value": "1"}),
                json!({"name": "B", "value": ""})
            ]
        );
        assert_eq!(removed, ["C"]);
        assert!(parse(&words(&["A=1", "A-"])).is_err() && parse(&words(&["A"])).is_err());
        assert_eq!(variable_name("my.key-1"), "MY_KEY_1");
    }
}
