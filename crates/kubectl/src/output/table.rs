//! Tables: columns as wide as their widest cell, three spaces apart.

use serde_json::Value;

/// Rows of text under headings.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Table {
    pub headings: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// What to leave out and put in when a server's table is turned into text.
#[derive(Debug, Default, Clone, Copy)]
pub struct View<'a> {
    pub wide: bool,
    pub with_namespace: bool,
    pub show_labels: bool,
    pub label_columns: &'a [String],
    /// Put before the name: `pod/` when several types are listed.
    pub name_prefix: Option<&'a str>,
}

impl Table {
    /// The text form of a `meta.k8s.io/v1` Table.
    pub fn of(server: &Value, view: View<'_>) -> Self {
        let columns: Vec<(usize, &Value)> = list(&server["columnDefinitions"])
            .enumerate()
            .filter(|(_, column)| view.wide || column["priority"].as_i64().unwrap_or(0) == 0)
            .collect();
        let mut headings: Vec<String> = columns
            .iter()
            .map(|(_, column)| cell(&column["name"]).to_uppercase())
            .collect();
        if view.with_namespace {
            headings.insert(0, "NAMESPACE".into());
        }
        headings.extend(view.label_columns.iter().map(|label| label_heading(label)));
        if view.show_labels {
            headings.push("LABELS".into());
        }
        let rows = list(&server["rows"])
            .map(|row| text_row(row, &columns, view))
            .collect();
        Self { headings, rows }
    }

    /// The lines; headings first unless `bare`.
    pub fn render(&self, bare: bool) -> String {
        let mut widths: Vec<usize> = self
            .headings
            .iter()
            .map(|h| if bare { 0 } else { h.chars().count() })
            .collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut out = String::new();
        let headings = (!bare).then_some(&self.headings);
        for row in headings.into_iter().chain(&self.rows) {
            push_line(&mut out, row, &widths);
        }
        out
    }
}

fn push_line(out: &mut String, row: &[String], widths: &[usize]) {
    let mut line = String::new();
    for (cell, width) in row.iter().zip(widths) {
        line.push_str(&format!("{cell:<width$}   "));
    }
    out.push_str(line.trim_end());
    out.push('\n');
}

fn text_row(row: &Value, columns: &[(usize, &Value)], view: View<'_>) -> Vec<String> {
    let metadata = &row["object"]["metadata"];
    let mut cells: Vec<String> = columns
        .iter()
        .map(|(at, _)| cell(&row["cells"][at]))
        .collect();
    if let (Some(prefix), Some(first)) = (view.name_prefix, cells.first_mut()) {
        *first = format!("{prefix}/{first}");
    }
    if view.with_namespace {
        cells.insert(0, cell(&metadata["namespace"]));
    }
    for label in view.label_columns {
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
pub fn labels(value: &Value) -> String {
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

/// A value as a cell.
pub fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.replace('\n', "\\n"),
        other => other.to_string(),
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn server_table() -> Value {
        json!({
            "columnDefinitions": [
                {"name": "Name", "priority": 0}, {"name": "Ready", "priority": 0}, {"name": "Node", "priority": 1}],
            "rows": [
                {"cells": ["web-1", "1/1", "one"], "object": {"metadata": {"namespace": "a", "labels": {"app": "web"}}}},
                {"cells": ["db", "0/1", "two"], "object": {"metadata": {"namespace": "b"}}}]})
    }

    #[test]
    fn columns_align_and_wide_ones_stay_out() {
        let text = Table::of(&server_table(), View::default()).render(false);
        assert_eq!(text, "NAME    READY\nweb-1   1/1\ndb      0/1\n");
    }

    #[test]
    fn wide_namespace_and_labels_add_columns() {
        let view = View {
            wide: true,
            with_namespace: true,
            show_labels: true,
            ..View::default()
        };
        let text = Table::of(&server_table(), view).render(true);
        assert_eq!(
            text,
            "a   web-1   1/1   one   app=web\nb   db      0/1   two   <none>\n"
        );
    }
}
