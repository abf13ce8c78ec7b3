//! `explain --output=plaintext-openapiv2`: the older layout, from the server's OpenAPI v2 document.
//! It is also used with servers that have no OpenAPI v3.

use anyhow::{Result, bail};
use serde_json::Value;

use crate::json::{entries, list, str_of};

/// Lines are at most this long.
const WIDTH: usize = 80;
const FIELD_INDENT: usize = 3;
const DESCRIPTION_INDENT: usize = 5;
/// Deeper schemas are cut off, in case a hostile server's refer to each other without end.
const MAX_DEPTH: usize = 64;

/// The group, version and kind that are explained.
pub(super) struct Gvk<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
}

impl Gvk<'_> {
    fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    fn matches(&self, gvk: &Value) -> bool {
        str_of(&gvk["group"]) == self.group
            && gvk["version"] == self.version
            && gvk["kind"] == self.kind
    }
}

/// What a schema describes.
enum Shape<'a> {
    Reference(&'a str),
    Array(&'a Value),
    /// Without a schema of the values, they are anything.
    Map(Option<&'a Value>),
    Kind,
    Primitive(&'a str),
    Anything,
}

fn shape(schema: &Value) -> Shape<'_> {
    if let Some(reference) = schema["$ref"].as_str() {
        return Shape::Reference(reference.trim_start_matches("#/definitions/"));
    }
    let has_properties = schema["properties"].is_object();
    match str_of(&schema["type"]) {
        "" | "object" if has_properties => Shape::Kind,
        "" => Shape::Anything,
        "object" => {
            let values = Some(&schema["additionalProperties"]);
            Shape::Map(values.filter(|values| values.is_object()))
        }
        "array" => Shape::Array(&schema["items"]),
        primitive => Shape::Primitive(primitive),
    }
}

fn description(schema: &Value) -> &str {
    str_of(&schema["description"])
}

/// The explanation of a kind or of one of its fields.
pub(super) fn explain(
    document: &Value,
    gvk: &Gvk<'_>,
    path: &[String],
    recursive: bool,
) -> Result<String> {
    let definitions = &document["definitions"];
    let found = entries(definitions).into_iter().find(|(_, schema)| {
        list(&schema["x-kubernetes-group-version-kind"]).any(|one| gvk.matches(one))
    });
    let Some((_, schema)) = found else {
        bail!(
            "couldn't find resource for \"{}/{}, Kind={}\"",
            gvk.group,
            gvk.version,
            gvk.kind
        );
    };
    let explainer = Explainer {
        definitions,
        recursive,
    };
    let schema = explainer.lookup(schema, path)?;
    let name = path.last().map_or("", String::as_str);
    Ok(explainer.model(schema, name, gvk))
}

struct Explainer<'a> {
    definitions: &'a Value,
    recursive: bool,
}

impl<'a> Explainer<'a> {
    fn definition(&self, name: &str) -> &'a Value {
        self.definitions.get(name).unwrap_or(&Value::Null)
    }

    /// Follows a path of fields; primitive values end it early.
    fn lookup(&self, schema: &'a Value, path: &[String]) -> Result<&'a Value> {
        let mut schema = schema;
        let mut path = path;
        for _ in 0..MAX_DEPTH {
            let Some((first, rest)) = path.split_first() else {
                break;
            };
            schema = match shape(schema) {
                Shape::Reference(name) => self.definition(name),
                Shape::Array(items) => items,
                Shape::Map(Some(values)) => values,
                Shape::Map(None) | Shape::Primitive(_) | Shape::Anything => break,
                Shape::Kind => {
                    path = rest;
                    match schema["properties"].get(first) {
                        Some(field) => field,
                        None => bail!("field {first:?} does not exist"),
                    }
                }
            };
        }
        Ok(schema)
    }

    /// The page about a schema: descriptions of everything on the way to its fields are collected.
    fn model(&self, schema: &'a Value, name: &str, gvk: &Gvk<'_>) -> String {
        let mut text = format!(
            "KIND:     {}\nVERSION:  {}\n\n",
            gvk.kind,
            gvk.api_version()
        );
        let mut type_name = String::new();
        let mut descriptions = Vec::new();
        let mut schema = schema;
        for _ in 0..MAX_DEPTH {
            descriptions.push(description(schema));
            let is_reference = matches!(shape(schema), Shape::Reference(_));
            if type_name.is_empty() && !is_reference {
                type_name = self.type_name(schema, 0);
            }
            schema = match shape(schema) {
                Shape::Reference(name) => self.definition(name),
                Shape::Array(items) => items,
                Shape::Map(Some(values)) => values,
                Shape::Map(None) => {
                    descriptions.push(description(schema));
                    break;
                }
                Shape::Kind | Shape::Primitive(_) | Shape::Anything => break,
            };
        }
        match shape(schema) {
            Shape::Kind if !name.is_empty() => {
                text.push_str(&format!("RESOURCE: {name} <{type_name}>\n\n"));
            }
            Shape::Primitive(_) => text.push_str(&format!("FIELD:    {name} <{type_name}>\n\n")),
            _ => {}
        }
        text.push_str(&described(&descriptions));
        if matches!(shape(schema), Shape::Kind) {
            text.push_str("\nFIELDS:\n");
            self.fields(schema, FIELD_INDENT, &mut Vec::new(), &mut text);
        }
        text
    }

    fn fields(&self, kind: &'a Value, indent: usize, seen: &mut Vec<&'a str>, text: &mut String) {
        let mut fields = entries(&kind["properties"]);
        fields.sort_by_key(|(name, _)| *name);
        let pad = " ".repeat(indent);
        for (name, field) in fields {
            text.push_str(&format!("{pad}{name}\t<{}>", self.type_name(field, 0)));
            if self.recursive {
                text.push('\n');
                self.nested(field, indent + FIELD_INDENT, seen, text);
                continue;
            }
            if list(&kind["required"]).any(|required| required == name) {
                text.push_str(" -required-");
            }
            text.push('\n');
            text.push_str(&indented(description(field), indent + 2));
            text.push('\n');
        }
    }

    fn nested(&self, field: &'a Value, indent: usize, seen: &mut Vec<&'a str>, text: &mut String) {
        match shape(field) {
            Shape::Reference(name) if seen.contains(&name) || seen.len() > MAX_DEPTH => {}
            Shape::Reference(name) => {
                seen.push(name);
                self.nested(self.definition(name), indent, seen, text);
                seen.pop();
            }
            Shape::Array(inner) | Shape::Map(Some(inner)) => {
                self.nested(inner, indent, seen, text);
            }
            Shape::Kind => self.fields(field, indent, seen, text),
            Shape::Map(None) | Shape::Primitive(_) | Shape::Anything => {}
        }
    }

    fn type_name(&self, schema: &Value, depth: usize) -> String {
        if depth > MAX_DEPTH {
            return String::new();
        }
        let inner = |schema| self.type_name(schema, depth + 1);
        match shape(schema) {
            Shape::Reference(name) => inner(self.definition(name)),
            Shape::Array(items) => format!("[]{}", inner(items)),
            Shape::Map(values) => {
                format!("map[string]{}", values.map(inner).unwrap_or_default())
            }
            Shape::Kind => "Object".to_owned(),
            Shape::Primitive(name) => name.to_owned(),
            Shape::Anything => String::new(),
        }
    }
}

fn described(descriptions: &[&str]) -> String {
    let mut text = "DESCRIPTION:\n".to_owned();
    let given = || descriptions.iter().enumerate();
    for (at, description) in given().filter(|(_, text)| !text.is_empty()) {
        if at > 0 {
            text.push('\n');
        }
        text.push_str(&indented(description, DESCRIPTION_INDENT));
    }
    if given().all(|(_, text)| text.is_empty()) {
        text.push_str(&indented("<empty>", DESCRIPTION_INDENT));
    }
    text
}

fn indented(text: &str, indent: usize) -> String {
    let line = |line: &String| match line.is_empty() {
        true => "\n".to_owned(),
        false => format!("{}{line}\n", " ".repeat(indent)),
    };
    wrapped(text, WIDTH.saturating_sub(indent))
        .iter()
        .map(line)
        .collect()
}

/// The lines of a text, filled up to the width. Code, empty lines and lists keep their lines.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    // A line that ends with a colon is not filled up, unless its last word was wrapped.
    let mut is_heading = false;
    let flush = |line: &mut String, lines: &mut Vec<String>| {
        if !line.is_empty() {
            lines.push(std::mem::take(line));
        }
    };
    for source in text.split('\n') {
        if source.starts_with("    ") {
            flush(&mut line, &mut lines);
            lines.push(source.to_owned());
            is_heading = false;
            continue;
        }
        if source.trim().is_empty() && !lines.is_empty() {
            flush(&mut line, &mut lines);
            lines.push(String::new());
            is_heading = false;
            continue;
        }
        if is_heading || source.trim().is_empty() || is_bullet(source.trim()) {
            flush(&mut line, &mut lines);
        }
        for word in source.split_whitespace() {
            is_heading = word.ends_with(':');
            if !line.is_empty() && line.len() + 1 + word.len() > width {
                flush(&mut line, &mut lines);
                is_heading = false;
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    flush(&mut line, &mut lines);
    lines
}

/// `- text`, `* text`, `1 text` or `1. text`
fn is_bullet(line: &str) -> bool {
    let rest = match line.trim_start_matches(|c: char| c.is_ascii_digit()) {
        rest if rest.len() < line.len() => rest.strip_prefix('.').unwrap_or(rest),
        _ => match line.strip_prefix(['-', '*']) {
            Some(rest) => rest,
            None => return false,
        },
    };
    rest.starts_with(|c: char| c.is_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document() -> Value {
        let gvk = json!([{"group": "g", "version": "v1", "kind": "Box"}]);
        json!({"definitions": {
            "g.Box": {"type": "object", "description": "A box.", "x-kubernetes-group-version-kind": gvk,
                "properties": {"spec": {"$ref": "#/definitions/g.Spec", "description": "Wanted."}, "any": {"description": "X."}}},
            "g.Spec": {"type": "object", "required": ["n"], "description": "The spec.", "properties": {
                "n": {"type": "integer", "description": "How many:\nmore\n- a\n- b"},
                "map": {"type": "object", "additionalProperties": {"type": "string"}},
                "free": {"type": "object"},
                "children": {"type": "array", "items": {"$ref": "#/definitions/g.Spec"}}}}}})
    }

    fn explained(path: &[&str], recursive: bool) -> Result<String> {
        let gvk = Gvk {
            group: "g",
            version: "v1",
            kind: "Box",
        };
        let path: Vec<String> = path.iter().map(|one| (*one).to_owned()).collect();
        explain(&document(), &gvk, &path, recursive)
    }

    #[test]
    fn fields_have_the_types_and_descriptions_of_the_old_layout() {
        assert_eq!(
            explained(&["spec"], false).unwrap(),
            "KIND:     Box\nVERSION:  g/v1\n\nRESOURCE: spec <Object>\n\nDESCRIPTION:\n     Wanted.\n\n     The spec.\n\n\
             FIELDS:\n   children\t<[]Object>\n\n   free\t<map[string]>\n\n   map\t<map[string]string>\n\n   \
             n\t<integer> -required-\n     How many:\n     more\n     - a\n     - b\n\n"
        );
        assert_eq!(
            explained(&["spec", "n"], false).unwrap(),
            "KIND:     Box\nVERSION:  g/v1\n\nFIELD:    n <integer>\n\nDESCRIPTION:\n     How many:\n     more\n     - a\n     - b\n"
        );
        assert_eq!(
            explained(&["any"], false).unwrap(),
            "KIND:     Box\nVERSION:  g/v1\n\nDESCRIPTION:\n     X.\n"
        );
        let error = explained(&["spec", "none"], false).unwrap_err();
        assert_eq!(error.to_string(), "field \"none\" does not exist");
    }

    #[test]
    fn a_schema_that_contains_itself_is_printed_once_on_each_path() {
        let text = explained(&[], true).unwrap();
        assert!(
            text.ends_with(
                "FIELDS:\n   any\t<>\n   spec\t<Object>\n      children\t<[]Object>\n      free\t<map[string]>\n      \
                 map\t<map[string]string>\n      n\t<integer>\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn long_lines_are_filled_up_to_the_width() {
        assert_eq!(wrapped("aa bb cc\ndd", 5), ["aa bb", "cc dd"]);
        assert_eq!(
            wrapped("\na\n\nb\n    code  x\nc", 9),
            ["a", "b", "    code  x", "c"]
        );
        // An empty line is kept if a line was finished before it.
        assert_eq!(wrapped("a:\nb\n\nc", 9), ["a:", "b", "", "c"]);
        assert_eq!(wrapped("", 9), Vec::<String>::new());
    }
}
