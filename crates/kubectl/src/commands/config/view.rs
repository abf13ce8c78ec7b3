//! `kubectl config view`

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::{
    args::Global,
    json::str_of,
    kubeconfig::{self, KubeconfigFiles, entry, inner_field, read_file},
    output::{Format, PrintFlags},
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
            false => match KubeconfigFiles::new(global).default_file() {
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
            Some(printer) if matches!(printer.format, Format::Json) => {
                print!("{}", printer.render(&typed(&config))?);
                Ok(())
            }
            Some(printer) => printer.print(&config),
            None => {
                print!("{}", crate::output::yaml::to_string(&config));
                Ok(())
            }
        }
    }
}

/// The config in the order of Go's types.
fn typed(config: &Value) -> Value {
    const TOP: &[&str] = &[
        "kind",
        "apiVersion",
        "clusters",
        "users",
        "contexts",
        "current-context",
    ];
    let mut out = Map::new();
    for key in TOP.iter().filter(|key| config.get(**key).is_some()) {
        let mut value = config[*key].clone();
        let inner = inner_field(key);
        for entry in value.as_array_mut().into_iter().flatten() {
            let fields = field_order(key, &entry[inner]);
            *entry = json!({"name": entry["name"], inner: fields});
        }
        out.insert((*key).to_owned(), value);
    }
    Value::Object(out)
}

/// The fields of an entry in the order that they are declared in.
fn field_order(section: &str, content: &Value) -> Value {
    let Some(content) = content.as_object() else {
        return content.clone();
    };
    let known = super::FIELDS.iter().find(|(name, _)| *name == section);
    let known = known.map_or(&[][..], |(_, fields)| fields);
    let mut sorted: Vec<(&String, &Value)> = content.iter().collect();
    sorted.sort_by_key(|(key, _)| known.iter().position(|one| one == key));
    let fields = sorted.into_iter();
    fields
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
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
