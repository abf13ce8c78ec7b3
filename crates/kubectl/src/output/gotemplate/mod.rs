//! Go templates on JSON, for `-o go-template`: the language of Go's text/template with its
//! functions, and kubectl's `exists` and `base64decode`.

mod exec;
mod funcs;
mod lex;
mod parse;
mod printf;

use anyhow::{Context, Result};
use serde_json::Value;

/// A value as Go's fmt prints it.
pub(crate) fn text_of(value: &Value) -> String {
    funcs::text(value)
}

/// A parsed template.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    set: parse::Set,
    /// Whether a missing key is `<no value>` instead of an error.
    pub allow_missing_keys: bool,
}

impl Template {
    /// Parses a template.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let set = parse::parse(text).map_err(|error| {
            anyhow::anyhow!("error parsing template {text}, template: output:1: {error:#}")
        })?;
        Ok(Self {
            set,
            allow_missing_keys: true,
        })
    }

    /// The output for a document.
    pub(crate) fn render(&self, document: &Value) -> Result<String> {
        let run = exec::run(&self.set, document, self.allow_missing_keys);
        run.context("error executing template")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn templates_give_gos_output() {
        let document = json!({
            "kind": "List", "n": 3, "big": 1_000_000, "f": 1.5, "yes": true, "empty": [], "s": "aGk=", "m": {"b": 2, "a": 1},
            "items": [{"metadata": {"name": "a", "labels": {"x/y": "1"}}}, {"metadata": {"name": "b"}}]});
        for (template, expected) in [
            ("{{.kind}}", "List"),
            ("{{range .items}}{{.metadata.name}}\n{{end}}", "a\nb\n"),
            (
                "{{range $i, $x := .items}}{{if $i}},{{end}}{{$x.metadata.name}}{{end}}",
                "a,b",
            ),
            ("{{range $k, $v := .m}}{{$k}}={{$v}};{{end}}", "a=1;b=2;"),
            ("{{range .empty}}x{{else}}none{{end}}", "none"),
            (
                "{{if and .yes (eq .n 3)}}y{{else if .yes}}z{{else}}n{{end}}",
                "y",
            ),
            ("{{with .missing}}x{{else}}{{$.kind}}{{end}}", "List"),
            ("{{.missing}}", "<no value>"),
            ("{{index (index .items 0).metadata.labels \"x/y\"}}", "1"),
            (
                "{{len .items}} {{ .f }} {{.m}} {{.items | len | printf \"%03d\"}}",
                "2 1.5 map[a:1 b:2] 002",
            ),
            ("a {{- /* c */ -}} b{{\"\\n\"}}{{`x`}}", "ab\nx"),
            ("{{$n := 1}}{{range .items}}{{$n = 2}}{{end}}{{$n}}", "2"),
            (
                "{{.s | base64decode}} {{exists . \"m\" \"a\"}} {{exists . \"m\" \"z\"}}",
                "hi true false",
            ),
            (
                "{{define \"t\"}}<{{.}}>{{end}}{{template \"t\" .kind}}",
                "<List>",
            ),
            (
                "{{printf \"%s-%v-%q-%5.2f\" .kind .n .kind .f}}",
                "List-3-\"List\"- 1.50",
            ),
            (
                "{{range .items}}{{if eq .metadata.name \"b\"}}{{break}}{{end}}{{.metadata.name}}{{end}}",
                "a",
            ),
            (
                "{{ne 1 2}} {{lt 1 2}} {{ge .n 3}} {{not true}} {{or 0 \"x\"}}",
                "true true true false x",
            ),
            (
                "{{slice .kind 1 3}} {{html \"<a>\"}} {{print 1 2 \"x\"}} {{println .n}}",
                "is &lt;a&gt; 1 2x 3\n",
            ),
            (
                "{{.big}} {{eq .n 3}} {{printf \"%d\" .n}}",
                "1000000 true 3",
            ),
            (
                "{{0b11}} {{0o17}} {{017}} {{0x1F}} {{1_0}} {{-2}}",
                "3 15 15 31 10 -2",
            ),
            ("{{print .none}} {{js \"a=b\"}}", "<nil> a\\u003Db"),
        ] {
            let parsed = Template::parse(template).unwrap();
            assert_eq!(parsed.render(&document).unwrap(), expected, "{template}");
        }
    }

    #[test]
    fn broken_templates_are_refused_and_misuse_fails() {
        for template in [
            "{{.a",
            "{{if}}x{{end}}",
            "{{end}}",
            "{{range .a}}",
            "{{nosuch 1}}",
            "{{.a..b}}",
            "{{0x}}",
            "{{template}}",
            "{{$x}}",
        ] {
            assert!(Template::parse(template).is_err(), "{template}");
        }
        for template in [
            "{{index .a 5}}",
            "{{.a.b.c}}",
            "{{len 3}}",
            "{{template \"t\"}}",
            "{{eq (len .a) 1.0}}",
            "{{nil}}",
            "{{1 2}}",
        ] {
            let run = Template::parse(template)
                .unwrap()
                .render(&json!({"a": [1]}));
            assert!(run.is_err(), "{template}");
        }
        let mut strict = Template::parse("{{.x}}").unwrap();
        strict.allow_missing_keys = false;
        assert!(strict.render(&json!({})).is_err());
    }

    #[test]
    fn a_template_that_calls_itself_ends_with_an_error() {
        let template =
            Template::parse("{{define \"t\"}}{{template \"t\" .}}{{end}}{{template \"t\" .}}")
                .unwrap();
        assert!(template.render(&json!({})).is_err());
    }
}
