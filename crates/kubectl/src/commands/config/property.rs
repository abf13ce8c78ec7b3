//! `kubectl config set` and `unset`: single properties of a kubeconfig.

use anyhow::{Result, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    args::Global,
    json::{list, str_of},
    kubeconfig::{self, entry, remove_entry, set_entry},
};

use super::{default_file, edit, file_of, file_of_current, merged};

/// The section that is no list.
const PREFERENCES: &str = "preferences";

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

/// A property's section, entry and fields. Names may contain dots, as in
/// `clusters.my\.name.server`.
struct Property {
    section: String,
    name: String,
    fields: Vec<String>,
}

impl Property {
    fn parse(text: &str, config: &Value) -> Result<Self> {
        let placeholder = '\u{1}';
        let escaped = text.replace("\\.", &placeholder.to_string());
        let parts: Vec<String> = escaped
            .split('.')
            .map(|part| part.replace(placeholder, "."))
            .collect();
        let section = parts[0].clone();
        if section == "current-context" {
            return Ok(Self {
                section,
                name: String::new(),
                fields: Vec::new(),
            });
        }
        let mut sections = kubeconfig::SECTIONS.iter().map(|(known, _)| *known);
        if section != PREFERENCES && !sections.any(|known| known == section) {
            bail!("unable to parse {text} after [] at api.Config");
        }
        // An existing entry whose name contains dots is found without escapes too.
        let known = list(&config[section.as_str()]).map(|entry| str_of(&entry["name"]));
        let rest = parts[1..].join(".");
        let longest = known
            .filter(|name| rest == *name || rest.starts_with(&format!("{name}.")))
            .max_by_key(|name| name.len());
        match longest {
            Some(name) => {
                let fields = rest[name.len()..].trim_start_matches('.');
                Ok(Self {
                    section,
                    name: name.to_owned(),
                    fields: fields
                        .split('.')
                        .filter(|part| !part.is_empty())
                        .map(ToOwned::to_owned)
                        .collect(),
                })
            }
            None => Ok(Self {
                section,
                name: parts.get(1).cloned().unwrap_or_default(),
                fields: parts.get(2..).unwrap_or_default().to_vec(),
            }),
        }
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

impl Set {
    pub(super) fn run(self, global: &Global) -> Result<()> {
        let property = Property::parse(&self.property, &merged(global)?)?;
        let is_bytes = property
            .fields
            .last()
            .is_some_and(|field| field.ends_with("-data"));
        let value = match is_bytes {
            true if self.set_raw_bytes => json!(BASE64_STANDARD.encode(&self.value)),
            true => {
                check_base64(&self.value)?;
                json!(self.value)
            }
            false => match self.value.as_str() {
                "true" => json!(true),
                "false" => json!(false),
                text => json!(text),
            },
        };
        if property.section == "current-context" {
            edit(&default_file(global)?, |config| {
                config["current-context"] = json!(self.value);
                Ok(())
            })?;
        } else if property.section == PREFERENCES {
            let is_colors = property.name == "colors" && property.fields.is_empty();
            if !is_colors || !value.is_boolean() {
                bail!("unable to parse {} after [] at api.Config", self.property);
            }
            edit(&default_file(global)?, |config| {
                config[PREFERENCES]["colors"] = value;
                Ok(())
            })?;
        } else {
            let Some((last, path)) = property.fields.split_last() else {
                bail!("{:?} names no field", self.property);
            };
            check_field(&property.section, &property.fields, &value)?;
            edit(
                &file_of(global, &property.section, &property.name)?,
                |config| {
                    let mut content = entry(config, &property.section, &property.name)
                        .cloned()
                        .unwrap_or_else(|| json!({}));
                    let mut at = &mut content;
                    for field in path {
                        at = &mut at[field.as_str()];
                    }
                    at[last.as_str()] = value;
                    set_entry(config, &property.section, &property.name, content);
                    Ok(())
                },
            )?;
        }
        println!("Property {:?} set.", self.property);
        Ok(())
    }
}

/// Fields of entries, and which of them are true or false.
const FIELDS: &[(&str, &[&str])] = &[
    (
        "clusters",
        &[
            "server",
            "tls-server-name",
            "insecure-skip-tls-verify",
            "certificate-authority",
            "certificate-authority-data",
            "proxy-url",
            "disable-compression",
            "extensions",
        ],
    ),
    ("contexts", &["cluster", "user", "namespace", "extensions"]),
    (
        "users",
        &[
            "client-certificate",
            "client-certificate-data",
            "client-key",
            "client-key-data",
            "token",
            "tokenFile",
            "as",
            "as-uid",
            "as-groups",
            "as-user-extra",
            "username",
            "password",
            "auth-provider",
            "exec",
            "extensions",
        ],
    ),
];
const SWITCHES: &[&str] = &["insecure-skip-tls-verify", "disable-compression"];

/// Rejects unknown fields, which other programs would drop, and non-boolean values of switches, which make them
/// reject the file.
fn check_field(section: &str, fields: &[String], value: &Value) -> Result<()> {
    let Some(first) = fields.first() else {
        return Ok(());
    };
    let known = FIELDS.iter().find(|(name, _)| *name == section);
    if known.is_some_and(|(_, known)| !known.contains(&first.as_str())) {
        bail!("unable to parse {first:?} in {section}: there is no such field");
    }
    if SWITCHES.contains(&first.as_str()) && !value.is_boolean() {
        bail!("strconv.ParseBool: parsing {value}: invalid syntax");
    }
    Ok(())
}

/// Words after a name that are no field belong to the name; unsetting an absent entry changes nothing.
fn missing_entry(property: &Property) -> Result<()> {
    match check_field(&property.section, &property.fields, &json!(true)) {
        Ok(()) => bail!("current map key `{}` is invalid", property.name),
        Err(_) => Ok(()),
    }
}

pub(super) fn unset(global: &Global, text: &str) -> Result<()> {
    let property = Property::parse(text, &merged(global)?)?;
    if property.section == "current-context" {
        edit(&file_of_current(global)?, |config| {
            config["current-context"] = json!("");
            Ok(())
        })?;
    } else {
        edit(
            &file_of(global, &property.section, &property.name)?,
            |config| {
                let Some((last, path)) = property.fields.split_last() else {
                    remove_entry(config, &property.section, &property.name);
                    return Ok(());
                };
                let Some(content) = entry(config, &property.section, &property.name) else {
                    return missing_entry(&property);
                };
                let mut content = content.clone();
                let mut at = &mut content;
                for field in path {
                    at = &mut at[field.as_str()];
                }
                if let Some(at) = at.as_object_mut() {
                    at.remove(last);
                }
                set_entry(config, &property.section, &property.name, content);
                Ok(())
            },
        )?;
    }
    println!("Property {text:?} unset.");
    Ok(())
}
