//! `kubectl config view`

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    args::Global,
    json::str_of,
    kubeconfig::{self, Places, entry, inner_field, read_file},
    output::PrintFlags,
};

use super::{merged, put_file};

/// Flags of `config view`.
#[derive(Debug, Args)]
pub(crate) struct View {
    /// Remove all information not used by current-context from the output
    #[arg(long)]
    minify: bool,
    /// Flatten the resulting kubeconfig file into self-contained output
    #[arg(long)]
    flatten: bool,
    /// Display raw byte data and sensitive data
    #[arg(long)]
    raw: bool,
    /// Merge the full hierarchy of kubeconfig files
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    merge: bool,
    #[command(flatten)]
    print: PrintFlags,
}

impl View {
    pub(crate) fn run(self, global: &Global) -> Result<()> {
        let mut config = match self.merge {
            true => merged(global)?,
            false => match Places::new(global).default_file() {
                Some(path) => read_file(path)?,
                None => json!({}),
            },
        };
        if self.minify {
            config = minified(&config, global)?;
        }
        if self.flatten {
            flatten(&mut config)?;
        }
        // `--flatten` embeds the contents of files: they are shown, so that the result is usable.
        if !self.raw && !self.flatten {
            redact(&mut config);
        }
        let config = kubeconfig::normal(&config);
        match self.print.printer()? {
            Some(printer) => printer.print(&config),
            None => {
                print!("{}", crate::output::yaml::to_string(&config));
                Ok(())
            }
        }
    }
}

/// Only what the current context uses.
fn minified(config: &Value, global: &Global) -> Result<Value> {
    let current = global
        .context
        .clone()
        .unwrap_or_else(|| str_of(&config["current-context"]).to_owned());
    if current.is_empty() {
        bail!("current-context must exist in order to minify");
    }
    let Some(context) = entry(config, "contexts", &current) else {
        bail!("cannot locate context {current}");
    };
    let mut out = config.clone();
    out["current-context"] = json!(current);
    for (section, name) in [
        ("contexts", current.as_str()),
        ("clusters", str_of(&context["cluster"])),
        ("users", str_of(&context["user"])),
    ] {
        if let Some(entries) = out[section].as_array_mut() {
            entries.retain(|entry| entry["name"] == name);
        }
    }
    Ok(out)
}

/// Embeds certificates and keys from files.
fn flatten(config: &mut Value) -> Result<()> {
    for (section, field) in [
        ("clusters", "certificate-authority"),
        ("users", "client-certificate"),
        ("users", "client-key"),
    ] {
        let inner = inner_field(section);
        for entry in config[section].as_array_mut().into_iter().flatten() {
            let path = str_of(&entry[inner][field]).to_owned();
            let Some(content) = entry[inner].as_object_mut().filter(|_| !path.is_empty()) else {
                continue;
            };
            put_file(content, field, &path, true)?;
        }
    }
    Ok(())
}

/// Redacts credentials.
fn redact(config: &mut Value) {
    for entry in config
        .pointer_mut("/users")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        for field in ["token", "password"] {
            if !str_of(&entry["user"][field]).is_empty() {
                entry["user"][field] = json!("REDACTED");
            }
        }
        for field in ["client-certificate-data", "client-key-data"] {
            if !str_of(&entry["user"][field]).is_empty() {
                entry["user"][field] = json!("DATA+OMITTED");
            }
        }
    }
    for entry in config
        .pointer_mut("/clusters")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if !str_of(&entry["cluster"]["certificate-authority-data"]).is_empty() {
            entry["cluster"]["certificate-authority-data"] = json!("DATA+OMITTED");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let mut config =
            json!({"users": [{"name": "u", "user": {"token": "abc", "client-key-data": "x"}}]});
        redact(&mut config);
        assert_eq!(
            config["users"][0]["user"],
            json!({"token": "REDACTED", "client-key-data": "DATA+OMITTED"})
        );
    }
}
