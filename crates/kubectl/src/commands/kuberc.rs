//! `kubectl kuberc view|set`

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
    /// defaults or aliases
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
    /// Replace an existing entry
    #[arg(long)]
    overwrite: bool,
}

impl Kuberc {
    pub(crate) fn run(self, global: &Global) -> Result<()> {
        let (path, _) = kuberc::path(global.kuberc.as_deref()).context("KUBERC is disabled")?;
        match self {
            Self::View(view) => {
                if !path.exists() {
                    bail!("no kuberc file at {}", path.display());
                }
                let preferences = kuberc::read(&path, true)?;
                match view.print.printer()? {
                    Some(printer) => printer.print(&preferences),
                    None => {
                        print!("{}", yaml::to_string(&preferences));
                        Ok(())
                    }
                }
            }
            Self::Set(set) => {
                let mut preferences = kuberc::read(&path, false)?;
                set.change(&mut preferences)?;
                if let Some(directory) = path.parent() {
                    std::fs::create_dir_all(directory)?;
                }
                std::fs::write(&path, yaml::to_string(&preferences))?;
                println!("Updated {}", path.display());
                Ok(())
            }
        }
    }
}

impl Set {
    fn change(&self, preferences: &mut Value) -> Result<()> {
        if preferences["apiVersion"].is_null() {
            preferences["apiVersion"] = json!("kubectl.config.k8s.io/v1beta1");
            preferences["kind"] = json!("Preference");
        }
        let section = self.section.as_deref();
        let section = section.context("required flag(s) \"section\" not set")?;
        if !["defaults", "aliases"].contains(&section) {
            bail!(
                "--section must be \"defaults\", \"aliases\", or \"credentialplugin\", got: {section}"
            );
        }
        let command = self
            .command
            .as_deref()
            .context("--command is required when --section=aliases or --section=defaults")?;
        let mut entry = json!({"command": command});
        let key = match section {
            "defaults" => ("command", command.to_owned()),
            _ => {
                let name = self
                    .name
                    .clone()
                    .context("--name is required when --section=aliases")?;
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
            let (name, value) = option
                .split_once('=')
                .with_context(|| format!("invalid option {option:?}, expected NAME=VALUE"))?;
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
            Some(at) => entries[at] = entry,
            None => entries.push(entry),
        }
        preferences[section] = json!(entries);
        Ok(())
    }
}
