//! Lines of a description: labels and values separated by tabs, aligned at the end.

use serde_json::Value;

use crate::{
    json::{entries, list, str_of},
    output::{escape_terminal, tabwriter::Tabwriter},
};

const MAX_ANNOTATION: usize = 140;
const HIDDEN: &[&str] = &["kubectl.kubernetes.io/last-applied-configuration"];

/// A description being built.
#[derive(Debug, Default)]
pub(super) struct Text {
    pending: String,
    done: String,
}

impl Text {
    /// A line, indented.
    pub(super) fn line(&mut self, level: usize, line: &str) {
        self.pending.push_str(&"  ".repeat(level));
        self.pending.push_str(&escape_terminal(line));
        self.pending.push('\n');
    }

    /// `Name:  value`
    pub(super) fn field(&mut self, level: usize, name: &str, value: &str) {
        self.line(level, &format!("{name}:\t{value}"));
    }

    /// A field, if the value is set.
    pub(super) fn optional(&mut self, level: usize, name: &str, value: &Value) {
        if !value.is_null() && *value != "" {
            self.field(level, name, &plain(value));
        }
    }

    /// Name and, if any, namespace.
    pub(super) fn head(&mut self, object: &Value) {
        self.field(0, "Name", str_of(&object["metadata"]["name"]));
        if !object["metadata"]["namespace"].is_null() {
            self.field(0, "Namespace", str_of(&object["metadata"]["namespace"]));
        }
    }

    /// Labels and annotations.
    pub(super) fn maps(&mut self, object: &Value) {
        self.labels("Labels", &object["metadata"]["labels"]);
        self.annotations("Annotations", &object["metadata"]["annotations"]);
    }

    /// `a=b` lines, one below the other.
    pub(super) fn labels(&mut self, title: &str, labels: &Value) {
        let lines = entries(labels)
            .into_iter()
            .map(|(key, value)| format!("{key}={}", str_of(value)));
        self.lines(title, lines.collect());
    }

    /// Values one below the other, or `<none>`.
    pub(super) fn lines(&mut self, title: &str, lines: Vec<String>) {
        if lines.is_empty() {
            return self.field(0, title, "<none>");
        }
        for (at, line) in lines.iter().enumerate() {
            let title = if at == 0 {
                format!("{title}:")
            } else {
                String::new()
            };
            self.line(0, &format!("{title}\t{line}"));
        }
    }

    /// `a: b` lines; long values are below their keys.
    pub(super) fn annotations(&mut self, title: &str, annotations: &Value) {
        self.lines(title, annotation_lines(annotations));
    }

    /// A table of conditions; `times` are the fields with times in it.
    pub(super) fn conditions(&mut self, conditions: &Value, columns: &[(&str, &str)], gap: &str) {
        if list(conditions).len() == 0 {
            return;
        }
        let headings: Vec<&str> = columns.iter().map(|(heading, _)| *heading).collect();
        // Upstream's rule of LastProbeTime has the length of LastHeartbeatTime's.
        let rule = |heading: &&str| match *heading {
            "LastProbeTime" => "-".repeat(17),
            heading => "-".repeat(heading.len()),
        };
        let rules: Vec<String> = headings.iter().map(rule).collect();
        self.line(0, &format!("Conditions:\n  {}", headings.join("\t")));
        self.line(1, &rules.join("\t"));
        for condition in list(conditions) {
            let cell = |field: &str| match field.ends_with("Time") {
                true => time(&condition[field]),
                false => str_of(&condition[field]).to_owned(),
            };
            let cells: Vec<String> = columns.iter().map(|(_, field)| cell(field)).collect();
            self.line(1, &cells.join(&format!("{gap}\t")));
        }
    }

    /// Aligns the pending lines; later lines have separate columns.
    pub(super) fn flush(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        self.done
            .push_str(&Tabwriter::for_descriptions().align(&pending));
    }

    /// The whole text with tabs instead of aligned columns.
    pub(super) fn with_tabs(self) -> String {
        self.done + &self.pending
    }

    /// The whole text.
    pub(super) fn finish(mut self) -> String {
        self.flush();
        self.done
    }
}

/// `a: b` for each annotation; the lines of long values are indented below their keys.
pub(super) fn annotation_lines(annotations: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    let shown = entries(annotations).into_iter();
    for (key, value) in shown.filter(|(key, _)| !HIDDEN.contains(key)) {
        let value = str_of(value).strip_suffix('\n').unwrap_or(str_of(value));
        if value.len() + key.len() + 2 > MAX_ANNOTATION || value.contains('\n') {
            lines.push(format!("{key}:"));
            let short = |line| format!("  {}", shortened(line, MAX_ANNOTATION - 2));
            lines.extend(value.split('\n').map(short));
        } else {
            lines.push(format!("{key}: {value}"));
        }
    }
    lines
}

/// The first bytes of a line that is longer than that many.
pub(super) fn shortened(line: &str, length: usize) -> String {
    if line.len() <= length {
        return line.to_owned();
    }
    let end = (0..=length).rev().find(|at| line.is_char_boundary(*at));
    format!("{}...", &line[..end.unwrap_or(0)])
}

/// A value without quotes.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A number; zero if absent.
pub(super) fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

/// `[a b]`
pub(super) fn bracketed(value: &Value) -> String {
    format!("[{}]", list(value).map(plain).collect::<Vec<_>>().join(" "))
}

/// `Mon, 02 Jan 2006 15:04:05 -0700` in the user's time zone.
pub(super) fn time(value: &Value) -> String {
    let Ok(at) = str_of(value).parse::<jiff::Timestamp>() else {
        return "Mon, 01 Jan 0001 00:00:00 +0000".to_owned();
    };
    at.to_zoned(jiff::tz::TimeZone::system())
        .strftime("%a, %d %b %Y %H:%M:%S %z")
        .to_string()
}

/// The age of a time.
pub(super) fn since(value: &Value) -> String {
    machinery::time::age(value.as_str(), jiff::Timestamp::now().as_second())
}

/// `a=b,c in (d)` of a label selector, or of a map of labels.
pub(super) fn selector(value: &Value) -> String {
    let object = serde_json::json!({"spec": {"selector": value}});
    crate::streams::pod_selector(&object)
        .map_or_else(|| "<none>".to_owned(), |query| sorted(&query))
}

/// The terms of a query sorted by key.
fn sorted(query: &str) -> String {
    let mut terms: Vec<String> = Vec::new();
    for part in query.split(',') {
        match terms.last_mut() {
            // A comma between values.
            Some(last) if last.contains('(') && !last.ends_with(')') => {
                last.push(',');
                last.push_str(part);
            }
            _ => terms.push(part.to_owned()),
        }
    }
    let key = |term: &String| {
        let end = term.find(['=', ' ']).unwrap_or(term.len());
        term[..end].trim_start_matches('!').to_owned()
    };
    terms.sort_by_key(key);
    terms.join(",")
}

/// `a=1,b=2` with unquoted values, or `<none>`.
pub(super) fn format_labels(value: &Value) -> String {
    let pairs: Vec<String> = entries(value)
        .into_iter()
        .map(|(key, value)| format!("{key}={}", str_of(value)))
        .collect();
    match pairs.is_empty() {
        true => "<none>".to_owned(),
        false => pairs.join(","),
    }
}

/// `Kind/name` of the controller.
pub(super) fn controller(object: &Value) -> Option<String> {
    let owner =
        list(&object["metadata"]["ownerReferences"]).find(|owner| owner["controller"] == true)?;
    Some(format!(
        "{}/{}",
        str_of(&owner["kind"]),
        str_of(&owner["name"])
    ))
}

/// The value, or `<unset>`.
pub(super) fn or_unset(value: &Value) -> String {
    match value.is_null() {
        true => "<unset>".to_owned(),
        false => plain(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_in_values_do_not_reach_the_terminal() {
        let mut text = Text::default();
        text.lines("Data", vec!["\x1b]0;title\x07\x1b[2J\rx".to_owned()]);
        let text = text.finish();
        assert!(!text.contains(['\x1b', '\r']), "{text:?}");
        assert!(text.contains("^[]0;title"), "{text:?}");
    }

    #[test]
    fn terms_of_a_selector_and_their_values_are_sorted() {
        let expression = |key: &str, operator: &str, values: &[&str]| serde_json::json!({"key": key, "operator": operator, "values": values});
        let expressions = [
            expression("tier", "NotIn", &["b", "a"]),
            expression("app", "In", &["rich", "poor"]),
        ];
        let query = selector(&serde_json::json!({"matchExpressions": expressions}));
        assert_eq!(query, "app in (poor,rich),tier notin (a,b)");
    }

    #[test]
    fn conditions_have_rules_as_long_as_upstreams() {
        let mut text = Text::default();
        let conditions = serde_json::json!([{"type": "Resizing", "status": "True"}]);
        let columns = [
            ("Type", "type"),
            ("Status", "status"),
            ("LastProbeTime", "none"),
        ];
        text.conditions(&conditions, &columns, " ");
        assert_eq!(
            text.with_tabs(),
            "Conditions:\n  Type\tStatus\tLastProbeTime\n  ----\t------\t-----------------\n  Resizing \tTrue \t\n"
        );
    }
}
