//! `kubectl config set` and `unset`: single properties of a kubeconfig. A path names fields and entries separated by
//! dots; the name of an entry may contain dots, and ends where a field of its type begins.

use anyhow::{Result, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    args::Global,
    json::{list, str_of},
    kubeconfig::{self, KubeconfigFiles, entry, remove_entry, set_entry, write_file},
};

use super::{default_file, edit, file_of, file_of_current, merged};

/// Flags of `config set`.
#[derive(Debug, Args)]
pub(crate) struct Set {
    /// The property, such as users.admin.token
    pub(super) property: String,
    pub(super) value: String,
    /// The value is binary and is stored in base64
    #[arg(long)]
    pub(super) set_raw_bytes: bool,
}

/// The type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Text,
    Bytes,
    Bool,
    /// It can only be removed.
    Other,
}

/// A field, as a path names it and as it is written.
type Field = (&'static str, &'static str, Type);

const CLUSTER: &[Field] = &[
    ("server", "server", Type::Text),
    ("tls-server-name", "tls-server-name", Type::Text),
    (
        "insecure-skip-tls-verify",
        "insecure-skip-tls-verify",
        Type::Bool,
    ),
    ("certificate-authority", "certificate-authority", Type::Text),
    (
        "certificate-authority-data",
        "certificate-authority-data",
        Type::Bytes,
    ),
    ("proxy-url", "proxy-url", Type::Text),
    ("disable-compression", "disable-compression", Type::Bool),
    ("extensions", "extensions", Type::Other),
];
const CONTEXT: &[Field] = &[
    ("cluster", "cluster", Type::Text),
    ("user", "user", Type::Text),
    ("namespace", "namespace", Type::Text),
    ("extensions", "extensions", Type::Other),
];
/// Upstream's paths have other names for impersonation than its files.
const USER: &[Field] = &[
    ("client-certificate", "client-certificate", Type::Text),
    (
        "client-certificate-data",
        "client-certificate-data",
        Type::Bytes,
    ),
    ("client-key", "client-key", Type::Text),
    ("client-key-data", "client-key-data", Type::Bytes),
    ("token", "token", Type::Text),
    ("tokenFile", "tokenFile", Type::Text),
    ("act-as", "as", Type::Text),
    ("act-as-uid", "as-uid", Type::Text),
    ("act-as-groups", "as-groups", Type::Other),
    ("act-as-user-extra", "as-user-extra", Type::Other),
    ("username", "username", Type::Text),
    ("password", "password", Type::Text),
    ("auth-provider", "auth-provider", Type::Other),
    ("exec", "exec", Type::Other),
    ("extensions", "extensions", Type::Other),
];

/// What a path names.
#[derive(Debug, PartialEq, Eq)]
enum Property {
    CurrentContext,
    /// `kind` and `apiVersion`, which a file always has.
    Fixed,
    Colors,
    Preferences,
    Extensions,
    /// A list of entries.
    Section(&'static str),
    Entry(&'static str, String),
    Field(&'static str, String, &'static str, Type),
}

impl Property {
    fn parse(path: &str) -> Result<Self> {
        let parts: Vec<&str> = path.split('.').collect();
        let only = |property: Self| match parts.len() {
            1 => Ok(property),
            _ => bail!("unable to parse one or more field values of {path}"),
        };
        match (parts[0], parts.get(1)) {
            ("current-context", _) => only(Self::CurrentContext),
            ("kind" | "apiVersion", _) => only(Self::Fixed),
            ("extensions", _) => only(Self::Extensions),
            ("preferences", None) => Ok(Self::Preferences),
            ("preferences", Some(&"colors")) if parts.len() == 2 => Ok(Self::Colors),
            ("clusters", _) => Self::within(path, "clusters", CLUSTER, &parts[1..]),
            ("contexts", _) => Self::within(path, "contexts", CONTEXT, &parts[1..]),
            ("users", _) => Self::within(path, "users", USER, &parts[1..]),
            _ => bail!("unable to parse {path} after [] at api.Config"),
        }
    }

    fn within(
        path: &str,
        section: &'static str,
        fields: &'static [Field],
        parts: &[&str],
    ) -> Result<Self> {
        if parts.is_empty() {
            return Ok(Self::Section(section));
        }
        let field_of = |part: &str| fields.iter().find(|(name, ..)| *name == part);
        let behind = parts
            .iter()
            .skip(1)
            .position(|part| field_of(part).is_some());
        let Some(end) = behind.map(|at| at + 1) else {
            return Ok(Self::Entry(section, parts.join(".")));
        };
        if parts.len() > end + 1 {
            bail!("unable to parse one or more field values of {path}");
        }
        let (_, written, kind) = field_of(parts[end]).copied().unwrap_or(fields[0]);
        Ok(Self::Field(section, parts[..end].join("."), written, kind))
    }
}

/// Fails as Go's decoder does, with the place of the first wrong byte.
fn check_base64(text: &str) -> Result<()> {
    let Err(error) = BASE64_STANDARD.decode(text) else {
        return Ok(());
    };
    let at = match error {
        base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => {
            at
        }
        _ => text.len() / 4 * 4,
    };
    bail!("error decoding input value: illegal base64 data at input byte {at}")
}

/// A bool, as Go parses it.
fn switch(text: &str) -> Result<Value> {
    match crate::argv::switch(text) {
        Ok(value) => Ok(json!(value)),
        Err(error) => bail!("{error}"),
    }
}

impl Set {
    pub(super) fn run(self, global: &Global) -> Result<()> {
        if self.value.is_empty() {
            bail!("you cannot use set to unset a property");
        }
        if self.property.is_empty() {
            bail!("you must specify a property");
        }
        match Property::parse(&self.property)? {
            Property::Fixed => {}
            Property::CurrentContext => edit(&default_file(global)?, |config| {
                config["current-context"] = json!(self.value);
                Ok(())
            })?,
            Property::Colors => {
                let value = switch(&self.value)?;
                edit(&default_file(global)?, |config| {
                    config["preferences"]["colors"] = value;
                    Ok(())
                })?;
            }
            Property::Section(section) | Property::Entry(section, _) => {
                let config = merged(global)?;
                let names: Vec<&str> = list(&config[section])
                    .map(|entry| str_of(&entry["name"]))
                    .collect();
                bail!("can't set a map to a value: map[{}]", names.join(" "))
            }
            Property::Preferences | Property::Extensions => {
                bail!("can't set a map to a value: map[]")
            }
            Property::Field(section, name, field, kind) => {
                let value = self.parsed(field, kind)?;
                edit(&file_of(global, section, &name)?, |config| {
                    let known = entry(config, section, &name).cloned();
                    let mut content = known.filter(Value::is_object).unwrap_or_else(|| json!({}));
                    content[field] = value;
                    set_entry(config, section, &name, content);
                    Ok(())
                })?;
            }
        }
        println!("Property {:?} set.", self.property);
        Ok(())
    }

    /// The value of a field of an entry.
    fn parsed(&self, field: &str, kind: Type) -> Result<Value> {
        match kind {
            Type::Text => Ok(json!(self.value)),
            Type::Bool => switch(&self.value),
            Type::Bytes if self.set_raw_bytes => Ok(json!(BASE64_STANDARD.encode(&self.value))),
            Type::Bytes => check_base64(&self.value).map(|()| json!(self.value)),
            Type::Other => bail!("{field} cannot be set as one value"),
        }
    }
}

pub(super) fn unset(global: &Global, path: &str) -> Result<()> {
    if path.is_empty() {
        bail!("you must specify a property");
    }
    match Property::parse(path)? {
        Property::Fixed => {}
        Property::CurrentContext => edit(&file_of_current(global)?, |config| {
            config["current-context"] = json!("");
            Ok(())
        })?,
        Property::Colors | Property::Preferences => remove_everywhere(global, "preferences")?,
        Property::Extensions => remove_everywhere(global, "extensions")?,
        Property::Section(section) => remove_everywhere(global, section)?,
        Property::Entry(section, name) => edit(&file_of(global, section, &name)?, |config| {
            remove_entry(config, section, &name);
            Ok(())
        })?,
        Property::Field(section, name, field, _) => {
            if entry(&merged(global)?, section, &name).is_none() {
                bail!("current map key `{name}` is invalid");
            }
            edit(&file_of(global, section, &name)?, |config| {
                let known = entry(config, section, &name).cloned();
                let mut content = known.filter(Value::is_object).unwrap_or_else(|| json!({}));
                if let Some(fields) = content.as_object_mut() {
                    fields.remove(field);
                }
                set_entry(config, section, &name, content);
                Ok(())
            })?;
        }
    }
    println!("Property {path:?} unset.");
    Ok(())
}

/// Removes a part of all files.
fn remove_everywhere(global: &Global, part: &str) -> Result<()> {
    for path in KubeconfigFiles::new(global).files {
        let mut config = kubeconfig::read_file(&path)?;
        let has_it = config.get(part).is_some_and(|part| !part.is_null());
        if let Some(parts) = config.as_object_mut().filter(|_| has_it) {
            parts.remove(part);
            write_file(&path, &config)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_entries_with_dots_and_their_fields() {
        let field = |section, name: &str, field, kind| {
            Property::Field(section, name.to_owned(), field, kind)
        };
        for (path, expected) in [
            ("current-context", Property::CurrentContext),
            ("preferences.colors", Property::Colors),
            ("clusters", Property::Section("clusters")),
            ("clusters.a", Property::Entry("clusters", "a".to_owned())),
            (
                "users.a.nope",
                Property::Entry("users", "a.nope".to_owned()),
            ),
            (
                "clusters.10.0.0.1.server",
                field("clusters", "10.0.0.1", "server", Type::Text),
            ),
            (
                "clusters.server.server",
                field("clusters", "server", "server", Type::Text),
            ),
            ("users.u.act-as", field("users", "u", "as", Type::Text)),
            (
                "users.u.client-key-data",
                field("users", "u", "client-key-data", Type::Bytes),
            ),
        ] {
            assert_eq!(Property::parse(path).unwrap(), expected, "{path}");
        }
        for (path, expected) in [
            ("nope", "unable to parse nope after [] at api.Config"),
            ("", "unable to parse  after [] at api.Config"),
            (
                "users.u.exec.command",
                "unable to parse one or more field values of users.u.exec.command",
            ),
        ] {
            let error = Property::parse(path).unwrap_err().to_string();
            assert_eq!(error, expected);
        }
    }
}
