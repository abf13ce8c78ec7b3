//! The printer columns of a version, and their cells.

use kinds::Column;
use machinery::{
    Value,
    jsonpath::{Found, Template},
};

/// The columns and their paths; the name column has no path.
pub(super) fn columns(given: &Value) -> (Vec<Column>, Vec<Option<Template>>) {
    let column = |name: &str, kind: &str, format: &str, about: &str, priority: i64| Column {
        name: name.to_owned().into(),
        kind: kind.to_owned().into(),
        format: format.to_owned().into(),
        description: about.to_owned().into(),
        priority: priority as i32,
    };
    let mut columns = vec![kinds::columns::NAME];
    let mut cells = vec![None];
    let given = given.as_array().filter(|given| !given.is_empty());
    for one in given.into_iter().flatten() {
        let text = |key: &str| one[key].as_str().unwrap_or_default();
        let priority = one["priority"].as_i64().unwrap_or(0);
        let path = Template::path(text("jsonPath")).ok();
        if path.is_none() {
            // An invalid path ends the columns, as upstream.
            break;
        }
        let usual = || {
            format!(
                "Custom resource definition column (in JSONPath format): {}",
                text("jsonPath")
            )
        };
        let about = match text("description") {
            "" => usual(),
            about => about.to_owned(),
        };
        columns.push(column(
            text("name"),
            text("type"),
            text("format"),
            &about,
            priority,
        ));
        cells.push(path);
    }
    if given.is_none() {
        let about = kinds::columns::AGE.description;
        columns.push(column("Age", "date", "", &about, 0));
        cells.push(Template::path(".metadata.creationTimestamp").ok());
    }
    (columns, cells)
}

/// A cell: the first value at the path, if it has the column's type. Dates are shown as ages.
pub(super) fn cell(kind: &str, found: Option<Found<'_, Value>>, now: i64) -> Value {
    let Some(found) = found else {
        return Value::Null;
    };
    let value = found.into_value();
    match (kind, value) {
        ("string", Value::Null) => "<no value>".into(),
        ("string", Value::String(text)) => text.into(),
        ("string", mut value @ (Value::Object(_) | Value::Array(_))) => {
            machinery::normalise::sort(&mut value);
            machinery::text::json(&value).into()
        }
        ("string", value) => machinery::text::plain(&value).into(),
        ("integer", value) => match (value.as_i64(), value.as_f64()) {
            (Some(i), _) => i.into(),
            // Values out of range become the minimum, as in Go on amd64.
            (None, Some(f)) if f >= i64::MAX as f64 || f.is_nan() => i64::MIN.into(),
            (None, Some(f)) => (f as i64).into(),
            (None, None) => Value::Null,
        },
        ("number", value @ Value::Number(_)) => value,
        ("boolean", value @ Value::Bool(_)) => value,
        ("date", Value::String(at)) => age(&at, now).into(),
        _ => Value::Null,
    }
}

fn age(at: &str, now: i64) -> String {
    match at {
        "" | "null" => "<unknown>".to_owned(),
        at => match machinery::time::parse(at) {
            Ok(moment) => machinery::time::human_duration(now - moment.seconds),
            Err(_) => "<invalid>".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    #[test]
    fn a_cell_is_of_its_columns_type_or_empty() {
        for (kind, value, shown) in [
            ("string", json!("a"), json!("a")),
            (
                "string",
                json!({"b": 1, "a": [2]}),
                json!("{\"a\":[2],\"b\":1}"),
            ),
            ("string", json!(2.5), json!("2.5")),
            ("string", json!(null), json!("<no value>")),
            ("integer", json!(2.5), json!(2)),
            ("integer", json!(1e21), json!(i64::MIN)),
            ("integer", json!("a"), json!(null)),
            ("number", json!(3), json!(3)),
            ("boolean", json!(true), json!(true)),
            ("boolean", json!(1), json!(null)),
            ("date", json!("1970-01-01T00:00:00Z"), json!("10s")),
            ("date", json!("soon"), json!("<invalid>")),
            ("date", json!(""), json!("<unknown>")),
        ] {
            let found = Some(Found::Part(&value));
            assert_eq!(cell(kind, found, 10), shown, "{kind} {value}");
        }
        assert_eq!(cell("string", None, 10), json!(null));
    }
}
