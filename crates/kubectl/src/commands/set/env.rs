//! `kubectl set env`

use std::io::BufRead;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    args::{FilesOrSelector, Selection},
    json::{entries, list, str_of},
    session::Session,
};

use super::{Common, Subject, Words, each_container, env_values, is_selected, pod_spec};

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
        let selection = Selection::from(&self.selection);
        self.common.check_all(&selection)?;
        let (names, pairs) = split_words(&self.words)?;
        self.common.check_flags()?;
        self.check(&selection, &names)?;
        let pairs: Vec<String> = self.env.iter().cloned().chain(pairs).collect();
        let (mut set, removed) = parse(&pairs)?;
        if let Some(from) = self.from.as_ref().filter(|from| !from.is_empty()) {
            set.extend(self.object_variables(session, &selection, from).await?);
        }
        for variable in &mut set {
            variable["name"] = json!(format!("{}{}", self.prefix, str_of(&variable["name"])));
        }
        let objects = self.common.objects(session, &selection, &names).await?;
        if self.list {
            return self.show(session, objects, (&set, &removed)).await;
        }
        let change = |object: &mut Value, _: &mut Vec<anyhow::Error>| {
            let update = |container: &mut Value| self.update(container, &set, &removed);
            let found = each_container(object, |name| is_selected(name, &self.containers), update)?;
            if found == 0 {
                self.warn_of_no_containers(object);
            }
            Ok(true)
        };
        let words = Words {
            deed: "env updated",
            failure: "failed to patch env update to pod template:",
            skips_unchanged: true,
        };
        self.common.change(session, objects, &words, change).await
    }

    fn check(&self, selection: &Selection, names: &[String]) -> Result<()> {
        self.common.check_local()?;
        if names.is_empty() && selection.files.filename.iter().all(String::is_empty) {
            bail!(
                "one or more resources must be specified as <resource> <name> or <resource>/<name>"
            );
        }
        if self.list
            && self
                .common
                .print
                .output
                .as_ref()
                .is_some_and(|text| !text.is_empty())
        {
            bail!("--list and --output may not be specified together");
        }
        if !self.keys.is_empty() && self.from.as_ref().is_none_or(String::is_empty) {
            bail!("when specifying --keys, a configmap or secret must be provided with --from");
        }
        Ok(())
    }

    /// Sets and removes variables. Of a variable that is given twice, the first value counts.
    fn update(&self, container: &mut Value, set: &[Value], removed: &[String]) -> Result<()> {
        let existing: Vec<Value> = list(&container["env"]).cloned().collect();
        let named = |name: &Value| set.iter().find(|given| given["name"] == *name);
        if !self.overwrite {
            for given in set {
                let known = existing.iter().find(|known| known["name"] == given["name"]);
                if let Some(known) = known
                    && str_of(&known["value"]) != str_of(&given["value"])
                {
                    let (name, value) = (str_of(&known["name"]), str_of(&known["value"]));
                    bail!("'{name}' already has a value ({value}), and --overwrite is false");
                }
            }
        }
        let mut covered: Vec<String> = removed.to_vec();
        let mut env = Vec::new();
        for known in &existing {
            let name = str_of(&known["name"]);
            if covered.iter().any(|covered| covered == name) {
                continue;
            }
            match named(&known["name"]) {
                Some(newer) => {
                    covered.push(name.to_owned());
                    env.push(newer.clone());
                }
                None => env.push(known.clone()),
            }
        }
        for given in set {
            let name = str_of(&given["name"]);
            if !covered.iter().any(|covered| covered == name) {
                covered.push(name.to_owned());
                env.push(given.clone());
            }
        }
        match (env.is_empty(), container.as_object_mut()) {
            (true, Some(container)) => drop(container.remove("env")),
            _ => container["env"] = Value::Array(env),
        }
        Ok(())
    }

    /// References to every key of a config map or secret; with `--local`, of those in the files.
    async fn object_variables(
        &self,
        session: &Session,
        selection: &Selection,
        from: &str,
    ) -> Result<Vec<Value>> {
        let names = [from.to_owned()];
        let objects = match self.common.local {
            true => self.common.objects(session, selection, &[]).await?,
            false => {
                let selection = Selection::default();
                self.common.objects(session, &selection, &names).await?
            }
        };
        let mut variables = Vec::new();
        for (_, object) in &objects {
            let field = match str_of(&object["kind"]) {
                "ConfigMap" => "configMapKeyRef",
                "Secret" => "secretKeyRef",
                _ => bail!("unsupported resource specified in --from"),
            };
            let keys = entries(&object["data"]).into_iter().map(|(key, _)| key);
            for key in
                keys.filter(|key| self.keys.is_empty() || self.keys.iter().any(|one| one == key))
            {
                let name = variable_name(key);
                if name != key {
                    eprintln!("Warning: key {key} transferred to {name}");
                }
                let source = json!({"name": str_of(&object["metadata"]["name"]), "key": key});
                variables.push(json!({"name": name, "valueFrom": {field: source}}));
            }
        }
        Ok(variables)
    }

    async fn show(
        &self,
        session: &Session,
        objects: Vec<Subject>,
        (set, removed): (&[Value], &[String]),
    ) -> Result<()> {
        for (_, mut object) in objects {
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

/// The types and names, and the variables, which come last.
fn split_words(words: &[String]) -> Result<(Vec<String>, Vec<String>)> {
    let is_variable =
        |word: &&String| word.find('=').is_some_and(|at| at > 0) || word.ends_with('-');
    let count = words.iter().take_while(|word| !is_variable(word)).count();
    let (names, pairs) = words.split_at(count);
    if !pairs.iter().all(|word| is_variable(&word)) {
        bail!(
            "all resources must be specified before environment changes: {}",
            words.join(" ")
        );
    }
    Ok((names.to_vec(), pairs.to_vec()))
}

/// Variables to set, and names to remove; `-` reads variables from standard input.
fn parse(pairs: &[String]) -> Result<(Vec<Value>, Vec<String>)> {
    let (mut set, mut removed, mut given) = (Vec::new(), Vec::new(), Vec::new());
    for pair in pairs {
        match pair.split_once('=') {
            _ if pair == "-" => {
                let lines = std::io::stdin().lock().lines();
                set.extend(from_lines(&lines.collect::<Result<Vec<_>, _>>()?));
            }
            Some((name, value)) => {
                if let Some(why) = invalid_name(name) {
                    bail!("{name:?} is not a valid key name: {why}");
                }
                given.push(name);
                set.push(json!({"name": name, "value": value}));
            }
            None => match pair.strip_suffix('-') {
                Some(name) => removed.push(name.to_owned()),
                None => bail!("unknown environment variable: {pair}"),
            },
        }
    }
    if removed.iter().any(|name| given.contains(&name.as_str())) {
        bail!("can not both modify and remove the same environment variable in the same command");
    }
    Ok((set, removed))
}

/// The variables of lines; text after `#` is a comment.
fn from_lines(lines: &[String]) -> Vec<Value> {
    let pair = |line: &String| {
        let line = line.split('#').next().unwrap_or_default();
        let (name, value) = line.split_once('=')?;
        Some(json!({"name": name, "value": value}))
    };
    lines.iter().filter_map(pair).collect()
}

/// Why a variable cannot have this name. The server allows more than kubectl.
pub(super) fn invalid_name(name: &str) -> Option<String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let is_valid = !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.chars().all(is_allowed);
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
