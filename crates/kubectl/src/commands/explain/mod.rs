//! `kubectl explain`: documentation of a kind and its fields from the server's OpenAPI.

mod openapi_v2;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::{
    discovery::Resource,
    json::{entries, list, str_of},
    session::Session,
};

/// Flags of `explain`.
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// TYPE[.FIELD…]
    resource: Option<String>,
    /// The group and version to explain, as GROUP/VERSION
    #[arg(long, value_name = "GROUP/VERSION")]
    api_version: Option<String>,
    /// Print the names of all fields, recursively
    #[arg(short = 'R', long)]
    recursive: bool,
    /// plaintext, or plaintext-openapiv2 for the layout of older versions
    #[arg(short, long, default_value = "plaintext")]
    output: String,
}

impl Explain {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let Some(word) = &self.resource else {
            bail!(
                "You must specify the type of resource to explain. Use \"kubectl api-resources\" for a complete list of supported resources."
            );
        };
        if !["plaintext", "plaintext-openapiv2"].contains(&self.output.as_str()) {
            bail!("unrecognized format: {}", self.output);
        }
        let is_v2 = self.output == "plaintext-openapiv2" || lacks_openapi_v3(session).await;
        if is_v2 {
            return self.explain_v2(session, word).await;
        }
        let (resource, fields) = self.resolve(session, word).await?;
        let path = match resource.group.as_str() {
            "" => format!("/openapi/v3/api/{}", resource.version),
            group => format!("/openapi/v3/apis/{group}/{}", resource.version),
        };
        let document = session
            .api
            .get_as(&path, "application/json")
            .await
            .context("couldn't get the OpenAPI document")?;
        let Some(schema) = schema_of(&document, &resource) else {
            bail!(
                "GVR ({}, Resource={}) not found in OpenAPI schema",
                resource.api_version(),
                resource.plural
            );
        };
        let mut text = String::new();
        if !resource.group.is_empty() {
            text.push_str(&format!("GROUP:      {}\n", resource.group));
        }
        text.push_str(&format!(
            "KIND:       {}\nVERSION:    {}\n\n",
            resource.kind, resource.version
        ));
        let printer = Printer {
            document: &document,
            recursive: self.recursive,
        };
        match printer.output(schema, &fields) {
            Some(body) => println!("{text}{body}"),
            None => {
                print!("{text}");
                bail!(
                    "field {:?} does not exist",
                    fields.last().cloned().unwrap_or_default()
                )
            }
        }
        Ok(())
    }

    async fn explain_v2(&self, session: &Session, word: &str) -> Result<()> {
        let (resource, path) = match &self.api_version {
            None => self.resolve(session, word).await?,
            Some(_) => {
                let (first, resource) = preferred(session, word).await?;
                (resource, fields(&word[first.len()..]))
            }
        };
        let (group, version) = match &self.api_version {
            None => (resource.group.as_str(), resource.version.as_str()),
            Some(version) => version.split_once('/').unwrap_or(("", version)),
        };
        let gvk = openapi_v2::Gvk {
            group,
            version,
            kind: &resource.kind,
        };
        let document = session
            .api
            .get_as("/openapi/v2", "application/json")
            .await?;
        print!(
            "{}",
            openapi_v2::explain(&document, &gvk, &path, self.recursive)?
        );
        Ok(())
    }

    /// The resource, and the field path after it.
    async fn resolve(&self, session: &Session, word: &str) -> Result<(Resource, Vec<String>)> {
        let (first, resource) = preferred(session, word).await?;
        let all = session.discovery.resources().await?;
        let Some(version) = &self.api_version else {
            return Ok(split(word, resource, &all));
        };
        let found = all
            .iter()
            .find(|one| one.plural == resource.plural && one.api_version() == *version);
        let (group, number) = version.split_once('/').unwrap_or(("", version));
        let plural = &resource.plural;
        let missing = match all.iter().any(|one| one.api_version() == *version) {
            true => {
                format!("GVR ({group}/{number}, Resource={plural}) not found in OpenAPI schema")
            }
            false => format!("couldn't find resource for \"{group}/{number}, Resource={plural}\""),
        };
        Ok((
            found.context(missing)?.clone(),
            fields(&word[first.len()..]),
        ))
    }
}

/// The first part of a path like `pods.spec`, and its resource.
async fn preferred<'a>(session: &Session, word: &'a str) -> Result<(&'a str, Resource)> {
    let first = word.split('.').next().unwrap_or_default();
    if first.is_empty() {
        bail!("invalid jsonpath syntax, first node must be field node");
    }
    match session.discovery.resolve(first).await {
        Ok(resource) => Ok((first, resource)),
        Err(_) => {
            let error = format!("the server doesn't have a resource type {first:?}");
            // Printed without the prefix of other errors.
            Err(crate::error::Plain(error).into())
        }
    }
}

/// Whether the server has no OpenAPI v3 documents.
async fn lacks_openapi_v3(session: &Session) -> bool {
    let index = session.api.get_as("/openapi/v3", "application/json").await;
    index.is_err()
}

/// `.spec.replicas` as its parts.
fn fields(path: &str) -> Vec<String> {
    let parts = path.split('.').skip(1).filter(|part| !part.is_empty());
    parts.map(ToOwned::to_owned).collect()
}

/// The first resource of this name whose group stands in the word (`deployments.apps.spec`), or else
/// the preferred one; what follows is the path of a field.
fn split(word: &str, preferred: Resource, all: &[Resource]) -> (Resource, Vec<String>) {
    let others = all.iter().filter(|one| one.plural == preferred.plural);
    for one in [&preferred].into_iter().chain(others) {
        if let Some(path) = word.strip_prefix(&one.qualified_plural()) {
            return (one.clone(), fields(path));
        }
    }
    let path = word.find('.').map_or("", |at| &word[at..]);
    (preferred, fields(path))
}

fn schema_of<'a>(document: &'a Value, resource: &Resource) -> Option<&'a Value> {
    let is_it = |gvk: &Value| {
        gvk["kind"] == resource.kind.as_str()
            && str_of(&gvk["group"]) == resource.group
            && gvk["version"] == resource.version.as_str()
    };
    let schemas = document["components"]["schemas"].as_object()?;
    schemas
        .values()
        .find(|schema| list(&schema["x-kubernetes-group-version-kind"]).any(is_it))
}

struct Printer<'a> {
    document: &'a Value,
    recursive: bool,
}

impl<'a> Printer<'a> {
    fn resolve(&self, schema: &'a Value) -> &'a Value {
        let Some(reference) = schema["$ref"].as_str() else {
            return schema;
        };
        let name = reference.rsplit('/').next().unwrap_or_default();
        self.document["components"]["schemas"]
            .get(name)
            .unwrap_or(schema)
    }

    fn output(&self, schema: &'a Value, fields: &[String]) -> Option<String> {
        self.output_at(schema, fields, 0)
    }

    /// Follows the path; `None` if it does not exist.
    fn output_at(&self, schema: &'a Value, fields: &[String], depth: usize) -> Option<String> {
        if depth > 64 {
            return None;
        }
        let resolved = self.resolve(schema);
        let Some((first, rest)) = fields.split_first() else {
            return Some(self.whole(resolved));
        };
        if let Some(property) = resolved["properties"].get(first) {
            let mut text = String::new();
            if rest.is_empty() {
                text.push_str(&format!("FIELD: {first} <{}>\n", self.type_of(property)));
                if list(&property["enum"]).len() > 0 {
                    text.push_str("ENUM:");
                    for value in list(&property["enum"]) {
                        text.push_str(&format!("\n    {}", shown(value)));
                    }
                }
                text.push_str("\n\n");
            }
            text.push_str(&self.output_at(property, rest, depth + 1)?);
            return Some(text);
        }
        if !resolved["items"].is_null() {
            return self.output_at(&resolved["items"], fields, depth + 1);
        }
        if resolved["additionalProperties"].is_object() {
            return self.output_at(&resolved["additionalProperties"], fields, depth + 1);
        }
        list(&resolved["allOf"]).find_map(|one| self.output_at(one, fields, depth + 1))
    }

    fn whole(&self, schema: &'a Value) -> String {
        let description = match self.description(schema, 0) {
            text if text.is_empty() => "<empty>".to_owned(),
            text => text,
        };
        let mut text = format!(
            "DESCRIPTION:\n{}\n",
            indented(&wrapped(&description, 76), 4)
        );
        let fields = self.fields(schema, 1, &mut Vec::new());
        if !fields.is_empty() {
            text.push_str("FIELDS:\n");
            text.push_str(&fields);
        }
        text
    }

    fn description(&self, schema: &'a Value, depth: usize) -> String {
        let schema = self.resolve(schema);
        let mut text = String::new();
        if depth > 16 {
            return text;
        }
        if let Some(description) = schema["description"]
            .as_str()
            .filter(|text| !text.is_empty())
        {
            text.push_str(description);
            text.push('\n');
        }
        for one in list(&schema["allOf"]) {
            text.push_str(&self.description(one, depth + 1));
        }
        for field in ["items", "additionalProperties"] {
            if schema[field].is_object() {
                text.push_str(&self.description(&schema[field], depth + 1));
            }
        }
        text
    }

    fn fields(&self, schema: &'a Value, level: usize, seen: &mut Vec<&'a str>) -> String {
        let reference = schema["$ref"].as_str().unwrap_or_default();
        if !reference.is_empty() && seen.contains(&reference) {
            return String::new();
        }
        seen.push(reference);
        let resolved = self.resolve(schema);
        let mut text = String::new();
        for (name, property) in entries(&resolved["properties"]) {
            text.push_str(&self.field(resolved, name, property, level));
            if self.recursive {
                text.push_str(&self.fields(property, level + 1, seen));
            }
        }
        for one in list(&resolved["allOf"]) {
            text.push_str(&self.fields(one, level, seen));
        }
        for field in ["items", "additionalProperties"] {
            if resolved[field].is_object() {
                text.push_str(&self.fields(&resolved[field], level, seen));
            }
        }
        seen.pop();
        text
    }

    fn field(&self, owner: &Value, name: &str, schema: &'a Value, level: usize) -> String {
        let indent = level * 2;
        let pad = " ".repeat(indent);
        let mut text = format!("{pad}{name}\t<{}>", self.type_of(schema));
        if list(&owner["required"]).any(|required| required == name) {
            text.push_str(" -required-");
        }
        let values: Vec<String> = list(&schema["enum"]).map(shown).collect();
        if !values.is_empty() {
            let more = if values.len() > 4 { ", ...." } else { "" };
            text.push_str(&format!(
                "\n{pad}enum: {}{more}",
                values[..values.len().min(4)].join(", ")
            ));
        }
        text.push('\n');
        if !self.recursive {
            let description = schema["description"]
                .as_str()
                .filter(|text| !text.is_empty())
                .unwrap_or("<no description>");
            text.push_str(&format!(
                "{}\n\n",
                indented(&wrapped(description, 78 - indent), indent + 2)
            ));
        }
        text
    }

    fn type_of(&self, schema: &'a Value) -> String {
        if schema["items"].is_object() {
            return format!("[]{}", self.type_of(&schema["items"]));
        }
        if schema["additionalProperties"].is_object() {
            return format!(
                "map[string]{}",
                self.type_of(&schema["additionalProperties"])
            );
        }
        if schema["properties"].is_null() && list(&schema["allOf"]).len() == 1 {
            return self.type_of(&schema["allOf"][0]);
        }
        if let Some(reference) = schema["$ref"].as_str() {
            let kind = str_of(&self.resolve(schema)["type"]);
            return match kind {
                "" | "object" => reference
                    .rsplit(['/', '.'])
                    .next()
                    .unwrap_or("Object")
                    .to_owned(),
                kind => kind.to_owned(),
            };
        }
        match str_of(&schema["type"]) {
            "" | "object" => "Object".to_owned(),
            kind => kind.to_owned(),
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => "\"\"".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn indented(text: &str, amount: usize) -> String {
    let pad = " ".repeat(amount);
    format!("{pad}{}", text.replace('\n', &format!("\n{pad}")))
}

/// Wraps lines at this width between words; line breaks of the text stay.
fn wrapped(text: &str, width: usize) -> String {
    let mut out = String::new();
    for (at, line) in text.split('\n').enumerate() {
        if at > 0 {
            out.push('\n');
        }
        let (mut used, mut spaces) = (0, 0);
        for (at, word) in line.split(' ').enumerate() {
            spaces += usize::from(at > 0);
            let length = word.chars().count();
            if length == 0 {
                continue;
            }
            // The spaces at the end of a line are dropped, also the second one behind a sentence.
            if used > 0 && used + spaces + length > width {
                out.push('\n');
                used = 0;
            } else {
                out.push_str(&" ".repeat(spaces));
                used += spaces;
            }
            spaces = 0;
            out.push_str(word);
            used += length;
        }
        if used + spaces <= width {
            out.push_str(&" ".repeat(spaces));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn wrapped_lines_begin_with_a_word() {
        for (text, expected) in [
            ("one two. three", "one two.\nthree"),
            ("one two.  three", "one two.\nthree"),
            ("one  two", "one  two"),
            ("  one\ntwo", "  one\ntwo"),
            ("see https://long.example", "see\nhttps://long.example"),
            ("https://long.example", "https://long.example"),
        ] {
            assert_eq!(wrapped(text, 9), expected, "{text:?}");
        }
    }

    #[test]
    fn fields_show_type_description_and_whether_they_are_required() {
        let document = json!({"components": {"schemas": {
            "a.Spec": {"type": "object", "description": "What is wanted.", "required": ["n"], "properties": {
                "n": {"type": "integer", "description": "How many."},
                "mode": {"type": "string", "enum": ["A", ""]},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "items": {"type": "array", "items": {"$ref": "#/components/schemas/a.Spec"}}}},
            "a.Kind": {"type": "object", "description": "A kind.", "properties": {
                "spec": {"allOf": [{"$ref": "#/components/schemas/a.Spec"}], "description": "The spec."}}}}}});
        let printer = Printer {
            document: &document,
            recursive: false,
        };
        let text = printer
            .output(
                &document["components"]["schemas"]["a.Kind"],
                &["spec".to_owned()],
            )
            .unwrap();
        assert_eq!(
            text,
            "FIELD: spec <Spec>\n\n\nDESCRIPTION:\n    The spec.\n    What is wanted.\n    \nFIELDS:\n  items\t<[]Spec>\n    <no description>\n\n  labels\t<map[string]string>\n    <no description>\n\n  mode\t<string>\n  enum: A, \"\"\n    <no description>\n\n  n\t<integer> -required-\n    How many.\n\n"
        );
        assert!(
            printer
                .output(
                    &document["components"]["schemas"]["a.Kind"],
                    &["none".to_owned()]
                )
                .is_none()
        );
        let recursive = Printer {
            document: &document,
            recursive: true,
        };
        assert!(
            recursive
                .output(&document["components"]["schemas"]["a.Kind"], &[])
                .unwrap()
                .contains("    n\t<integer> -required-\n")
        );
    }
}
