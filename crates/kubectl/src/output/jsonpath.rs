//! JSONPath in kubectl: a template is text with `{…}` parts, or one bare path.

use anyhow::{Context, Result, bail};
use machinery::jsonpath::{self, Found};
use serde_json::Value;

use crate::json;

/// A parsed template.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Template(jsonpath::Template, bool);

impl Template {
    /// Parses a template.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let template = jsonpath::Template::parse(text)
            .map_err(|error| anyhow::anyhow!("error parsing jsonpath {text}, {error:#}"))?;
        Ok(Self(template, false))
    }

    /// Parses one path with or without braces and the first dot: `metadata.name`,
    /// `{.metadata.name}`.
    pub(crate) fn relaxed(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Self::parse("");
        }
        let inner = text
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'))
            .unwrap_or(text);
        let path = inner.strip_prefix('.').unwrap_or(inner);
        if path.is_empty() || path.contains(['{', '}']) {
            bail!(
                "unexpected path string, expected a 'name1.name2' or '.name1.name2' or '{{name1.name2}}' or '{{.name1.name2}}'"
            );
        }
        Self::parse(&format!("{{.{path}}}"))
    }

    /// Whether a missing key is an error.
    pub(crate) fn requires_keys(self, required: bool) -> Self {
        match required {
            true => Self(self.0.needs_all(), true),
            false => self,
        }
    }

    /// The output for a document.
    pub(crate) fn render(&self, document: &Value) -> Result<String> {
        let found = self.0.find(document).context("error executing jsonpath")?;
        let part = |part: Vec<Found<'_, Value>>| -> String {
            let texts = part.into_iter().map(|one| text(&one.into_value()));
            texts.collect::<Vec<String>>().join(" ")
        };
        Ok(found.into_iter().map(part).collect())
    }

    /// The results of each part as a JSON list.
    pub(crate) fn render_json(&self, document: &Value) -> Result<String> {
        let found = self.0.find(document).context("error executing jsonpath")?;
        let list = |part: Vec<Found<'_, Value>>| {
            let values = part.into_iter().map(Found::into_value).collect();
            format!("{}\n", json::indented(&json::sorted(&Value::Array(values))))
        };
        Ok(found.into_iter().map(list).collect())
    }

    /// The values at its paths; empty if they do not exist, an error if the path cannot be followed.
    pub(crate) fn try_values(&self, document: &Value) -> Result<Vec<Value>> {
        let all = self.0.find(document)?.into_iter().flatten();
        Ok(all.map(Found::into_value).collect())
    }

    /// The values at its paths; empty if they do not exist.
    pub(crate) fn values(&self, document: &Value) -> Vec<Value> {
        let found = self.0.find(document).unwrap_or_default();
        let all = found.into_iter().flatten();
        all.map(Found::into_value).collect()
    }
}

/// A value as printed.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => json::compact(other),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn templates_give_upstreams_output() {
        let document = json!({
            "kind": "List",
            "items": [
                {"metadata": {"name": "a", "labels": {"app.kubernetes.io/name": "x"}}, "n": 1, "ip": ["1", "2"]},
                {"metadata": {"name": "b"}, "n": 5, "ip": ["3"]}]});
        for (template, expected) in [
            ("{.kind}", "List"),
            (".kind", ".kind"),
            ("{.items[*].metadata.name}", "a b"),
            ("{.items[0].metadata.name}", "a"),
            ("{.items[-1].metadata.name}", "b"),
            ("{.items[0,1].n}", "1 5"),
            ("{.items[0:1].n}", "1"),
            (
                "{range .items[*]}{.metadata.name}{\"\\t\"}{.n}{\"\\n\"}{end}",
                "a\t1\nb\t5\n",
            ),
            ("{.items[?(@.n>2)].metadata.name}", "b"),
            ("{.items[?(@.metadata.name==\"a\")].ip[*]}", "1 2"),
            ("{.items[?(@.metadata.labels)].n}", "1"),
            (
                "{.items[0].metadata.labels.app\\.kubernetes\\.io/name}",
                "x",
            ),
            ("{.items[0]['metadata']['name']}", "a"),
            ("{..name}", "a b"),
            ("name={$.items[1].metadata.name};", "name=b;"),
            ("{.missing}", ""),
            ("{.items[1].ip}", "[\"3\"]"),
        ] {
            let rendered = Template::parse(template)
                .unwrap()
                .render(&document)
                .unwrap();
            assert_eq!(rendered, expected, "{template}");
        }
    }

    #[test]
    fn broken_templates_are_refused() {
        for template in ["{.a", "{.a[x]}", "{\"a}"] {
            assert!(Template::parse(template).is_err(), "{template}");
        }
        for template in ["{end}", "{.a[?(@.b=1)]}", "{.a[3]}"] {
            let used = Template::parse(template)
                .unwrap()
                .render(&json!({"a": [{"b": 1}]}));
            assert!(used.is_err(), "{template}");
        }
    }
}
