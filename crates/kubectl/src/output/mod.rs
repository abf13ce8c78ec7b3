//! Output formats: tables, JSON, YAML, KYAML, names, JSONPath, Go templates, custom columns.

pub(crate) mod columns;
pub(crate) mod gotemplate;
pub(crate) mod jsonpath;
pub(crate) mod kyaml;
pub(crate) mod sort;
pub(crate) mod table;
pub(crate) mod tabwriter;
pub(crate) mod yaml;

use std::cell::Cell;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::json::{self, text};

/// Flags of every command that prints objects.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct PrintFlags {
    /// Output format: json, yaml, kyaml, name, go-template, go-template-file, template, templatefile, jsonpath,
    /// jsonpath-as-json or jsonpath-file
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<String>,
    /// Template text or file for go-template and jsonpath
    #[arg(long, value_name = "TEMPLATE")]
    pub template: Option<String>,
    /// Ignore keys of a template that the object does not have
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub allow_missing_template_keys: bool,
    /// Keep managedFields in JSON and YAML
    #[arg(long)]
    pub show_managed_fields: bool,
}

impl PrintFlags {
    /// The requested printer; `None` for the command's own message.
    pub(crate) fn printer(&self) -> Result<Option<Printer>> {
        self.with_formats(&[])
    }

    /// The same for commands with more formats, such as `wide`; those give `None`.
    pub(crate) fn with_formats(&self, own: &[&str]) -> Result<Option<Printer>> {
        let Some(output) = self.format_name() else {
            return Ok(None);
        };
        let (name, argument) = split_format(&output);
        if own.contains(&name) && argument.is_none() && name != "custom-columns" {
            return Ok(None);
        }
        let template = argument.or(self.template.as_deref());
        let is_known = |name: &str| {
            let of_columns = name == "custom-columns-file" && own.contains(&"custom-columns");
            FORMATS.contains(&name) || own.contains(&name) || of_columns
        };
        // An unknown one is quoted with its argument.
        let name = if is_known(name) { name } else { &output };
        let format = Format::parse(name, template, self.allow_missing_template_keys, own)?;
        Ok(Some(Printer::new(format, self.show_managed_fields)))
    }

    fn format_name(&self) -> Option<String> {
        let output = self.output.clone().filter(|output| !output.is_empty());
        let has_template = self
            .template
            .as_ref()
            .is_some_and(|template| !template.is_empty());
        output.or_else(|| has_template.then(|| "go-template".into()))
    }

    /// Whether `-o NAME` was given.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.output.as_deref() == Some(name)
    }
}

/// `jsonpath={.a}` as its two parts; the template may begin with `{`.
fn split_format(output: &str) -> (&str, Option<&str>) {
    match output.split_once('=') {
        Some((name, argument)) => (name, Some(argument)),
        None => (output, None),
    }
}

/// An output format.
#[derive(Debug, Clone)]
pub(crate) enum Format {
    Json,
    Yaml,
    Kyaml,
    Name,
    JsonPath(jsonpath::Template),
    JsonPathAsJson(jsonpath::Template),
    GoTemplate(gotemplate::Template),
    Columns(columns::Columns),
}

const FORMATS: &[&str] = &[
    "go-template",
    "go-template-file",
    "json",
    "jsonpath",
    "jsonpath-as-json",
    "jsonpath-file",
    "kyaml",
    "name",
    "template",
    "templatefile",
    "yaml",
];

impl Format {
    fn parse(
        name: &str,
        template: Option<&str>,
        allow_missing_keys: bool,
        own: &[&str],
    ) -> Result<Self> {
        let template = template.filter(|template| !template.is_empty());
        let needed = |kind: &str| {
            template.with_context(|| format!("{kind} format specified but no {kind} given"))
        };
        let file = |kind: &str| -> Result<String> {
            let path = needed(kind)?;
            match std::fs::read_to_string(path) {
                Ok(text) => Ok(text),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    bail!("error reading --template {path}, open {path}: no such file or directory")
                }
                Err(error) => bail!("error reading --template {path}, {error}"),
            }
        };
        let jsonpath = |text: &str| -> Result<jsonpath::Template> {
            Ok(jsonpath::Template::parse(text)?.requires_keys(!allow_missing_keys))
        };
        let go = |text: &str| -> Result<Self> {
            let mut template = gotemplate::Template::parse(text)?;
            template.allow_missing_keys = allow_missing_keys;
            Ok(Self::GoTemplate(template))
        };
        Ok(match name {
            "json" => Self::Json,
            "yaml" => Self::Yaml,
            "kyaml" => Self::Kyaml,
            "name" => Self::Name,
            "jsonpath" => Self::JsonPath(jsonpath(needed("template")?)?),
            "jsonpath-as-json" => Self::JsonPathAsJson(jsonpath(needed("template")?)?),
            "jsonpath-file" => Self::JsonPath(jsonpath(file("template")?.trim_end_matches('\n'))?),
            "go-template" | "template" => go(needed("template")?)?,
            "go-template-file" | "templatefile" => go(&file("template")?)?,
            "custom-columns" if own.contains(&"custom-columns") => {
                let spec = template
                    .context("custom-columns format specified but no custom columns given")?;
                Self::Columns(columns::Columns::parse(spec)?)
            }
            "custom-columns-file" if own.contains(&"custom-columns") => {
                let path = template
                    .context("custom-columns format specified but no custom columns given")?;
                let text = std::fs::read_to_string(path).map_err(|error| {
                    let why = crate::error::io_reason(&error);
                    anyhow::anyhow!("error reading template {path}, open {path}: {why}")
                })?;
                Self::Columns(columns::Columns::parse_file(&text)?)
            }
            _ => {
                let mut known: Vec<&str> = FORMATS.iter().chain(own).copied().collect();
                if own.contains(&"custom-columns") {
                    known.push("custom-columns-file");
                }
                known.sort_unstable();
                bail!(
                    "unable to match a printer suitable for the output format \"{name}\", allowed formats are: {}",
                    known.join(",")
                )
            }
        })
    }
}

/// Prints objects one after the other in one format.
#[derive(Debug)]
pub(crate) struct Printer {
    pub format: Format,
    show_managed_fields: bool,
    printed: Cell<usize>,
}

impl Printer {
    /// A printer for a form.
    pub(crate) fn new(format: Format, show_managed_fields: bool) -> Self {
        Self {
            format,
            show_managed_fields,
            printed: Cell::new(0),
        }
    }

    /// Prints an object or a list from a server or a file: keys are sorted.
    pub(crate) fn print(&self, object: &Value) -> Result<()> {
        print!("{}", self.render(&json::sorted(object))?);
        Ok(())
    }

    /// The same for an object in the key order of Go's types, which JSON and KYAML keep.
    pub(crate) fn print_typed(&self, object: &Value) -> Result<()> {
        match self.format {
            Format::Json | Format::Kyaml => print!("{}", self.render(object)?),
            _ => self.print(object)?,
        }
        Ok(())
    }

    /// An event of a watch; JSON has one line for each.
    pub(crate) fn print_event(&self, event: &str, object: &Value) -> Result<()> {
        let event = serde_json::json!({"type": event, "object": json::sorted(object)});
        match self.format {
            Format::Json => println!("{}", serde_json::to_string(&event)?),
            _ => self.print(&event)?,
        }
        Ok(())
    }

    /// The text of an object in its own key order.
    pub(crate) fn render(&self, object: &Value) -> Result<String> {
        let before = self.printed.replace(self.printed.get() + 1);
        let shown = || {
            let mut shown = object.clone();
            if !self.show_managed_fields {
                hide_managed_fields(&mut shown);
            }
            shown
        };
        Ok(match &self.format {
            Format::Json => format!("{}\n", json::indented(&shown())),
            Format::Yaml if before > 0 => format!("---\n{}", yaml::to_string(&shown())),
            Format::Yaml => yaml::to_string(&shown()),
            Format::Kyaml => kyaml::to_string(&shown()),
            Format::Name => {
                let mut out = String::new();
                let is_event = object["type"].is_string() && object["object"].is_object();
                let object = if is_event { &object["object"] } else { object };
                each(object, |object| {
                    out.push_str(&format!("{}\n", name(object)))
                });
                out
            }
            Format::JsonPath(template) => template.render(object)?,
            Format::JsonPathAsJson(template) => template.render_json(object)?,
            Format::GoTemplate(template) => template.render(object)?,
            Format::Columns(columns) => {
                let (lines, failure) = columns.render(object, before == 0);
                if failure.is_err() {
                    print!("{lines}");
                }
                failure?;
                lines
            }
        })
    }
}

/// Calls a function with each item of a list, or with the object itself.
pub(crate) fn each(object: &Value, mut with: impl FnMut(&Value)) {
    match object["items"].as_array() {
        Some(items) => items.iter().for_each(with),
        None => with(object),
    }
}

/// Makes control characters visible, which a terminal would execute: others write the texts. Tabs
/// and line breaks stay. Upstream escapes ESC and CR only; terminals also obey the eight-bit forms
/// (U+009B is `ESC [`) and backspaces.
pub(crate) fn escape_terminal(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' | '\n' => shown.push(c),
            '\x1b' => shown.push_str("^["),
            c if c.is_control() => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

/// `pod/web`, `deployment.apps/web`.
pub(crate) fn name(object: &Value) -> String {
    let version = text(&object["apiVersion"]);
    let kind = text(&object["kind"]).to_lowercase();
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let name = match object["metadata"]["name"].as_str() {
        None | Some("") => "<unknown>".to_owned(),
        Some(name) => name.to_owned(),
    };
    match group {
        "" => format!("{kind}/{name}"),
        group => format!("{kind}.{group}/{name}"),
    }
}

fn hide_managed_fields(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.shift_remove("managedFields");
    }
    if let Some(items) = object.get_mut("items").and_then(Value::as_array_mut) {
        items.iter_mut().for_each(hide_managed_fields);
    }
    if let Some(object) = object.get_mut("object").filter(|object| object.is_object()) {
        hide_managed_fields(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(output: &str) -> PrintFlags {
        PrintFlags {
            output: Some(output.into()),
            ..PrintFlags::default()
        }
    }

    #[test]
    fn an_unknown_format_names_those_that_are_known() {
        let error = flags("xml").printer().unwrap_err().to_string();
        assert_eq!(
            error,
            "unable to match a printer suitable for the output format \"xml\", allowed formats are: \
             go-template,go-template-file,json,jsonpath,jsonpath-as-json,jsonpath-file,kyaml,name,template,\
             templatefile,yaml"
        );
        assert!(flags("wide").printer().is_err());
        assert!(flags("wide").with_formats(&["wide"]).unwrap().is_none());
        assert!(flags("jsonpath").printer().is_err());
    }

    #[test]
    fn a_terminal_sees_control_characters_as_text() {
        for (text, shown) in [
            ("\x1b[2J\rx", "^[[2J\\rx"),
            ("a\tb\nc", "a\tb\nc"),
            ("\u{9b}31m", "\\u{9b}31m"),
            (
                "secret\u{8}\u{8}\u{7f}\u{7}",
                "secret\\u{8}\\u{8}\\u{7f}\\u{7}",
            ),
            ("größer ✓", "größer ✓"),
        ] {
            assert_eq!(escape_terminal(text), shown);
        }
    }

    #[test]
    fn several_yaml_documents_are_separated_and_html_is_escaped() {
        let printer = flags("yaml").printer().unwrap().unwrap();
        let object = serde_json::json!({"kind": "A", "metadata": {"managedFields": []}});
        assert_eq!(printer.render(&object).unwrap(), "kind: A\nmetadata: {}\n");
        assert!(printer.render(&object).unwrap().starts_with("---\n"));
        let printer = flags("json").printer().unwrap().unwrap();
        let json = printer.render(&serde_json::json!({"a": "<&>"})).unwrap();
        assert_eq!(json, "{\n    \"a\": \"\\u003c\\u0026\\u003e\"\n}\n");
    }
}
