//! How objects are printed: tables, JSON, YAML, names, JSONPath, columns of one's own.

pub mod columns;
pub mod jsonpath;
pub mod table;

use anyhow::{Result, bail};
use serde_json::Value;

use jsonpath::Template;

/// A form of output.
#[derive(Debug, Clone)]
pub enum Format {
    /// The server's table; wide or not.
    Table {
        wide: bool,
    },
    Json,
    Yaml,
    Name,
    JsonPath(Template),
    Columns(columns::Columns),
}

impl Format {
    /// Reads the value of `-o`.
    pub fn parse(text: Option<&str>) -> Result<Self> {
        let Some(text) = text else {
            return Ok(Self::Table { wide: false });
        };
        if let Some(template) = text.strip_prefix("jsonpath=") {
            return Ok(Self::JsonPath(Template::parse(template)?));
        }
        if let Some(columns) = text.strip_prefix("custom-columns=") {
            return Ok(Self::Columns(columns::Columns::parse(columns)?));
        }
        match text {
            "wide" => Ok(Self::Table { wide: true }),
            "json" => Ok(Self::Json),
            "yaml" => Ok(Self::Yaml),
            "name" => Ok(Self::Name),
            other => bail!(
                "unable to match a printer suitable for the output format \"{other}\", allowed formats \
                 are: custom-columns,json,jsonpath,name,wide,yaml"
            ),
        }
    }

    /// Prints an object or a list in every form but the table's.
    pub fn print(&self, object: &Value, show_managed_fields: bool) -> Result<()> {
        let mut object = object.clone();
        if !show_managed_fields {
            hide_managed_fields(&mut object);
        }
        match self {
            Self::Table { .. } => bail!("a table is printed from rows"),
            Self::Json => println!("{}", indented(&object)?),
            Self::Yaml => print!("{}", yaml(&object)?),
            Self::Name => each(&object, |object| println!("{}", name(object))),
            Self::JsonPath(template) => print!("{}", template.render(&object)?),
            Self::Columns(columns) => columns.print(&object)?,
        }
        Ok(())
    }
}

fn each(object: &Value, mut with: impl FnMut(&Value)) {
    match object["items"].as_array() {
        Some(items) => items.iter().for_each(with),
        None => with(object),
    }
}

/// `pod/web`, `deployment.apps/web`.
pub fn name(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (
        text(&object["apiVersion"]),
        text(&object["kind"]).to_lowercase(),
    );
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let name = text(&object["metadata"]["name"]);
    if group.is_empty() {
        format!("{kind}/{name}")
    } else {
        format!("{kind}.{group}/{name}")
    }
}

fn hide_managed_fields(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    if let Some(items) = object.get_mut("items").and_then(Value::as_array_mut) {
        items.iter_mut().for_each(hide_managed_fields);
    }
}

/// JSON as kubectl prints it: four spaces.
fn indented(object: &Value) -> Result<String> {
    let mut out = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
    serde::Serialize::serialize(&sorted(object), &mut serializer)?;
    Ok(String::from_utf8(out)?)
}

/// YAML with keys in alphabetical order, as kubectl prints it.
pub fn yaml(object: &Value) -> Result<String> {
    let text = serde_saphyr::to_string(&sorted(object))?;
    Ok(if text.ends_with('\n') {
        text
    } else {
        format!("{text}\n")
    })
}

/// Keys in alphabetical order, all the way down.
pub fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<_> = map.keys().collect();
            keys.sort();
            Value::Object(
                keys.into_iter()
                    .map(|key| (key.clone(), sorted(&map[key])))
                    .collect(),
            )
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}
