//! `kubectl config view`

use anyhow::{Result, anyhow, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    args::Global,
    error::io_reason,
    json::str_of,
    kubeconfig::{self, KubeconfigFiles, entry, inner_field, typed::typed},
    output::PrintFlags,
};

use super::merged;

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
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    merge: Option<bool>,
    #[command(flatten)]
    print: PrintFlags,
}

impl View {
    pub(crate) fn run(self, global: &Global) -> Result<()> {
        let files = KubeconfigFiles::new(global);
        if self.merge == Some(false) && !files.is_explicit {
            bail!("if merge==false a precise file must be specified");
        }
        let printer = self.print.printer()?;
        if let (true, Some(path)) = (files.is_explicit, files.files.first())
            && !path.exists()
            && self.merge == Some(false)
        {
            bail!("open {}: no such file or directory", path.display());
        }
        let mut config = kubeconfig::load_as_written(&files.files)?;
        if self.minify {
            config = minified(&config, global)?;
        }
        if self.flatten {
            flatten(&mut config, &merged(global)?)?;
        }
        // `--flatten` embeds the contents of files: they are shown, so that the result is usable.
        if !self.raw && !self.flatten {
            redact(&mut config);
        }
        let config = typed(&config);
        match printer {
            Some(printer) => printer.print_typed(&config),
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
        if !name.is_empty() && entry(config, section, name).is_none() {
            bail!("cannot locate {} {name}", inner_field(section));
        }
        if let Some(entries) = out[section].as_array_mut() {
            entries.retain(|entry| entry["name"] == name && !name.is_empty());
        }
    }
    Ok(out)
}

/// Embeds certificates and keys from files, whose absolute names are those of `resolved`.
fn flatten(config: &mut Value, resolved: &Value) -> Result<()> {
    for (section, field) in [
        ("users", "client-certificate"),
        ("users", "client-key"),
        ("clusters", "certificate-authority"),
    ] {
        let inner = inner_field(section);
        for one in config[section].as_array_mut().into_iter().flatten() {
            let path = entry(resolved, section, str_of(&one["name"]));
            let path = path.map_or("", |content| str_of(&content[field]));
            let Some(content) = one[inner].as_object_mut().filter(|_| !path.is_empty()) else {
                continue;
            };
            let data = format!("{field}-data");
            if content.get(&data).is_some_and(|data| *data != "") {
                bail!("cannot have values for both path and contents");
            }
            let bytes = std::fs::read(path)
                .map_err(|error| anyhow!("open {path}: {}", io_reason(&error)))?;
            content.insert(data, json!(BASE64_STANDARD.encode(bytes)));
            content.remove(field);
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
