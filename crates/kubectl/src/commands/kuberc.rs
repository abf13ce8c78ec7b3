//! `kubectl kuberc view|set`

use std::{io::Write, path::Path};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    args::Global,
    json::list,
    kuberc,
    output::{PrintFlags, yaml},
};

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Kuberc {
    /// Set values in the kuberc configuration
    Set(Set),
    /// Display the contents of the kuberc file
    View(View),
}

/// Flags of `kuberc view`.
#[derive(Debug, Args)]
pub(crate) struct View {
    #[command(flatten)]
    print: PrintFlags,
}

/// Flags of `kuberc set`.
#[derive(Debug, Args)]
pub(crate) struct Set {
    /// defaults, aliases or credentialplugin
    #[arg(long)]
    section: Option<String>,
    /// The command, such as "get" or "create secret generic"
    #[arg(long)]
    command: Option<String>,
    /// With aliases: the name
    #[arg(long)]
    name: Option<String>,
    /// A flag and its value, as NAME=VALUE; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    option: Vec<String>,
    /// With aliases: arguments before the user's
    #[arg(long)]
    prependarg: Vec<String>,
    /// With aliases: arguments after the user's
    #[arg(long)]
    appendarg: Vec<String>,
    /// With credentialplugin: AllowAll, DenyAll or Allowlist
    #[arg(long)]
    policy: Option<String>,
    /// With --policy=Allowlist: a plugin that may run, as command=PROGRAM; may be repeated
    #[arg(long, value_name = "FIELD=VALUE", value_delimiter = ',')]
    allowlist_entry: Vec<String>,
    /// Replace an existing entry
    #[arg(long)]
    overwrite: bool,
}

impl Kuberc {
    pub(crate) fn run(self, global: &Global) -> Result<()> {
        let (path, is_named) = kuberc::path(global.kuberc.as_deref())?
            .context("KUBERC is disabled via KUBERC=off environment variable")?;
        match self {
            Self::View(view) => {
                if !path.exists() && is_named {
                    bail!("kuberc file not found at {}", path.display());
                }
                if !path.exists() {
                    return offer(&path);
                }
                let preferences = kuberc::read(&path, true)?;
                match view.print.printer()? {
                    Some(printer) => printer.print_typed(&in_order(&preferences)),
                    None => {
                        print!("{}", yaml::to_string(&preferences));
                        Ok(())
                    }
                }
            }
            Self::Set(set) => {
                let mut preferences = kuberc::read(&path, false)?;
                set.change(&mut preferences)?;
                save(&path, &preferences)
            }
        }
    }
}

/// The fields in the order of upstream's types.
fn in_order(value: &Value) -> Value {
    const FIELDS: &[&str] = &[
        "kind",
        "apiVersion",
        "defaults",
        "aliases",
        "credentialPluginPolicy",
        "credentialPluginAllowlist",
        "name",
        "command",
        "prependArgs",
        "appendArgs",
        "options",
        "default",
    ];
    match value {
        Value::Array(items) => items.iter().map(in_order).collect(),
        Value::Object(map) => {
            let mut fields: Vec<(&String, &Value)> = map.iter().collect();
            fields.sort_by_key(|(key, _)| FIELDS.iter().position(|one| one == key));
            let fields = fields.into_iter();
            fields
                .map(|(key, value)| (key.clone(), in_order(value)))
                .collect()
        }
        other => other.clone(),
    }
}

fn save(path: &Path, preferences: &Value) -> Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let mut preferences = preferences.clone();
    if preferences.get("aliases").is_none() {
        preferences["aliases"] = Value::Null;
    }
    std::fs::write(path, yaml::to_string(&preferences))?;
    println!("Updated {}", path.display());
    Ok(())
}

/// Asks whether to write a file with the options that upstream recommends.
fn offer(path: &Path) -> Result<()> {
    println!("kuberc file not found at {}", path.display());
    print!("Would you like to generate a default kuberc file with recommended options? (y/N): ");
    std::io::stdout().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    match answer.trim().eq_ignore_ascii_case("y") {
        true => save(path, &recommended()),
        false => Ok(()),
    }
}

fn recommended() -> Value {
    let always = |command: &str, flag: &str| json!({"command": command, "options": [{"name": flag, "default": "true"}]});
    json!({
        "apiVersion": "kubectl.config.k8s.io/v1beta1",
        "kind": "Preference",
        "defaults": [always("apply", "server-side"), always("delete", "interactive")],
    })
}

impl Set {
    fn check(&self, section: &str) -> Result<()> {
        let is_given = |value: &Option<String>| value.as_ref().is_some_and(|v| !v.is_empty());
        match section {
            "defaults" | "aliases" | "credentialplugin" => {}
            _ => bail!(
                "--section must be \"defaults\", \"aliases\", or \"credentialplugin\", got: {section}"
            ),
        }
        if section == "aliases" && !is_given(&self.name) {
            bail!("--name is required when --section=aliases");
        }
        if section == "defaults" && is_given(&self.name) {
            bail!("--name should not be specified when --section=defaults");
        }
        if section == "defaults" && !(self.prependarg.is_empty() && self.appendarg.is_empty()) {
            bail!("--prependarg and --appendarg are only valid for --section=aliases");
        }
        if section != "credentialplugin" {
            if !is_given(&self.command) {
                bail!("--command is required when --section=aliases or --section=defaults");
            }
            return Ok(());
        }
        let has_entries = !self.allowlist_entry.is_empty();
        match self.policy.as_deref().unwrap_or_default() {
            "" => bail!("--policy is required when --section=credentialplugin"),
            "AllowAll" | "DenyAll" if has_entries => bail!(
                "--allowlist-entry may only be used when --section=credentialplugin and --policy=Allowlist"
            ),
            "Allowlist" if !has_entries => bail!(
                "--allowlist-entry is required when --section=credentialplugin and --policy=Allowlist"
            ),
            "AllowAll" | "DenyAll" | "Allowlist" => Ok(()),
            other => bail!(
                " --policy must be  \"AllowAll\", \"DenyAll\", or \"Allowlist\", got: {other}"
            ),
        }
    }

    fn change_plugins(&self, preferences: &mut Value) -> Result<()> {
        let mut entries = Vec::new();
        for pair in &self.allowlist_entry {
            match pair.split_once('=') {
                None => bail!("improperly formatted allowlist entry: {pair:?}"),
                Some(("name", _)) => {
                    bail!("allowlist entry field \"name\" is deprecated, use \"command\" instead")
                }
                Some(("command", value)) if value.trim().is_empty() => {
                    bail!("empty value in allowlist entry for field \"command\"")
                }
                Some(("command", value)) => entries.push(json!({"command": value})),
                Some((field, _)) => bail!("unrecognized allowlist entry field: {field:?}"),
            }
        }
        preferences["credentialPluginPolicy"] = json!(self.policy);
        match (entries.is_empty(), preferences.as_object_mut()) {
            (false, _) => preferences["credentialPluginAllowlist"] = json!(entries),
            // With other policies a list would make the whole file invalid.
            (true, Some(fields)) => drop(fields.remove("credentialPluginAllowlist")),
            (true, None) => {}
        }
        Ok(())
    }

    fn change(&self, preferences: &mut Value) -> Result<()> {
        if preferences["apiVersion"].is_null() {
            preferences["apiVersion"] = json!("kubectl.config.k8s.io/v1beta1");
            preferences["kind"] = json!("Preference");
        }
        let section = self.section.as_deref();
        let section = section.context("required flag(s) \"section\" not set")?;
        self.check(section)?;
        if section == "credentialplugin" {
            return self.change_plugins(preferences);
        }
        let command = self.command.as_deref().unwrap_or_default();
        let mut entry = json!({"command": command});
        let key = match section {
            "defaults" => ("command", command.to_owned()),
            _ => {
                let name = self.name.clone().unwrap_or_default();
                entry["name"] = json!(name);
                for (field, words) in [
                    ("prependArgs", &self.prependarg),
                    ("appendArgs", &self.appendarg),
                ] {
                    if !words.is_empty() {
                        entry[field] = json!(words);
                    }
                }
                ("name", name)
            }
        };
        let mut options = Vec::new();
        for option in &self.option {
            let (name, value) = option.split_once('=').with_context(|| {
                format!("invalid option format {option:?}, expected flag=value")
            })?;
            let name = name.trim_start_matches('-');
            options.push(json!({"name": name, "default": value}));
        }
        if !options.is_empty() {
            entry["options"] = json!(options);
        }
        let mut entries: Vec<Value> = list(&preferences[section]).cloned().collect();
        let known = entries
            .iter()
            .position(|known| known[key.0] == key.1.as_str());
        match known {
            Some(_) if !self.overwrite => match section {
                "defaults" => bail!(
                    "defaults for command {:?} already exist, use --overwrite to replace",
                    key.1
                ),
                _ => bail!(
                    "alias {:?} already exists, use --overwrite to replace",
                    key.1
                ),
            },
            Some(at) => {
                // What no flag names stays.
                for field in ["options", "prependArgs", "appendArgs"] {
                    if entry.get(field).is_none()
                        && let Some(kept) = entries[at].get(field)
                    {
                        entry[field] = kept.clone();
                    }
                }
                entries[at] = entry;
            }
            None => entries.push(entry),
        }
        preferences[section] = json!(entries);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn preferences_are_shown_in_the_order_of_upstreams_types() {
        let given = json!({"aliases": [{"command": "get", "name": "g"}], "defaults": [], "kind": "Preference"});
        assert_eq!(
            in_order(&given).to_string(),
            r#"{"kind":"Preference","defaults":[],"aliases":[{"name":"g","command":"get"}]}"#
        );
    }
}
