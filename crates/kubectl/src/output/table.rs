//! Tables from the server, and our own.

use serde_json::Value;

use super::{escape_terminal, tabwriter::Tabwriter};
use crate::json::{list, str_of};

/// Rows of text under headings.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    pub headings: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// Options for rendering a server's table as text.
#[derive(Debug, Default, Clone)]
pub(crate) struct View {
    pub wide: bool,
    pub with_namespace: bool,
    pub show_labels: bool,
    pub label_columns: Vec<String>,
    /// The prefix of names, such as `pod` if several types are listed.
    pub kind: Option<String>,
}

impl Table {
    /// A table with these headings.
    pub(crate) fn with_headings(headings: &[&str]) -> Self {
        Self {
            headings: headings
                .iter()
                .map(|heading| (*heading).to_owned())
                .collect(),
            rows: Vec::new(),
        }
    }

    /// The text form of rows of a `meta.k8s.io/v1` Table with these column definitions.
    pub(crate) fn from_rows(definitions: &Value, rows: &Value, view: &View) -> Self {
        let columns: Vec<(usize, &Value)> = list(definitions)
            .enumerate()
            .filter(|(_, column)| view.wide || column["priority"].as_i64().unwrap_or(0) == 0)
            .collect();
        let mut headings: Vec<String> = columns
            .iter()
            .map(|(_, column)| escape_terminal(&str_of(&column["name"]).to_uppercase()))
            .collect();
        if view.with_namespace {
            headings.insert(0, "NAMESPACE".into());
        }
        headings.extend(view.label_columns.iter().map(|label| label_heading(label)));
        if view.show_labels {
            headings.push("LABELS".into());
        }
        let name = columns
            .iter()
            .position(|(_, column)| column["format"] == "name" && column["type"] == "string")
            .unwrap_or(0);
        let rows = list(rows)
            .map(|row| text_row(row, &columns, name, view))
            .collect();
        Self { headings, rows }
    }

    /// The lines, with headings unless `bare`.
    pub(crate) fn render(&self, bare: bool) -> String {
        self.render_with(&mut Tabwriter::for_tables(), bare)
    }

    /// The lines, aligned with the earlier ones of the writer.
    pub(crate) fn render_with(&self, writer: &mut Tabwriter, bare: bool) -> String {
        let mut text = String::new();
        let headings = (!bare).then_some(&self.headings);
        for row in headings.into_iter().chain(&self.rows) {
            text.push_str(&row.join("\t"));
            text.push('\n');
        }
        writer.align(&text)
    }
}

fn text_row(row: &Value, columns: &[(usize, &Value)], name: usize, view: &View) -> Vec<String> {
    let metadata = &row["object"]["metadata"];
    let mut cells: Vec<String> = columns
        .iter()
        .map(|(at, _)| cell(&row["cells"][at]))
        .collect();
    if let (Some(kind), Some(name)) = (&view.kind, cells.get_mut(name)) {
        *name = format!("{kind}/{name}");
    }
    if view.with_namespace {
        cells.insert(0, cell(&metadata["namespace"]));
    }
    for label in &view.label_columns {
        cells.push(cell(&metadata["labels"][label.as_str()]));
    }
    if view.show_labels {
        cells.push(labels(&metadata["labels"]));
    }
    cells
}

fn label_heading(label: &str) -> String {
    label.rsplit('/').next().unwrap_or(label).to_uppercase()
}

/// `a=1,b=2`, or `<none>`.
pub(crate) fn labels(value: &Value) -> String {
    let Some(map) = value.as_object().filter(|map| !map.is_empty()) else {
        return "<none>".into();
    };
    let mut pairs: Vec<String> = map
        .iter()
        .map(|(k, v)| format!("{k}={}", cell(v)))
        .collect();
    pairs.sort();
    pairs.join(",")
}

/// A value as a cell: its first line, without control sequences. A tab in it begins another column,
/// as upstream.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => match text.find(['\n', '\r', '\x0c']) {
            Some(end) => format!("{}...", escape_terminal(&text[..end])),
            None => escape_terminal(text),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn table(view: &View) -> Table {
        let definitions = json!([
            {"name": "Name", "type": "string", "format": "name"}, {"name": "Ready", "priority": 0},
            {"name": "Node", "priority": 1}]);
        let rows = json!([
            {"cells": ["web-1", "1/1", "one"], "object": {"metadata": {"namespace": "a", "labels": {"app": "web"}}}},
            {"cells": ["db", "0/1\nmore", "two"], "object": {"metadata": {"namespace": "b"}}}]);
        Table::from_rows(&definitions, &rows, view)
    }

    #[test]
    fn columns_align_and_wide_ones_stay_out() {
        let text = table(&View::default()).render(false);
        assert_eq!(text, "NAME    READY\nweb-1   1/1\ndb      0/1...\n");
    }

    #[test]
    fn wide_namespace_kind_and_labels_add_columns() {
        let view = View {
            wide: true,
            with_namespace: true,
            show_labels: true,
            label_columns: vec!["x/app".into()],
            kind: Some("pod".into()),
        };
        let text = table(&view).render(true);
        assert_eq!(
            text,
            "a     pod/web-1   1/1      one         app=web\nb     pod/db      0/1...   two         <none>\n"
        );
    }
}
