//! Reading JSON values with defaults, and writing them as Go does.

use serde_json::Value;

/// A string; empty if absent.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A string without a copy; empty if absent.
pub(crate) fn str_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The elements of a list; empty if it is not a list.
pub(crate) fn list(
    value: &Value,
) -> impl DoubleEndedIterator<Item = &Value> + ExactSizeIterator + use<'_> {
    value
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
}

/// The entries of a map sorted by key; empty if it is not a map.
pub(crate) fn entries(value: &Value) -> Vec<(&str, &Value)> {
    let mut entries: Vec<_> = value
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.as_str(), value))
        .collect();
    entries.sort_by_key(|(key, _)| *key);
    entries
}

/// Whether a value is null, empty or zero.
pub(crate) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// Keys sorted, recursively.
pub(crate) fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<_> = map.keys().collect();
            keys.sort();
            let pair = |key: &String| (key.clone(), sorted(&map[key]));
            Value::Object(keys.into_iter().map(pair).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

/// Go escapes `<`, `>`, `&` and the two line separators, so that JSON can be embedded in HTML.
pub(crate) fn escape_html(json: String) -> String {
    if !json.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return json;
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", c as u32))
            }
            c => out.push(c),
        }
    }
    out
}

/// One line, keys sorted.
pub(crate) fn compact(value: &Value) -> String {
    escape_html(sorted(value).to_string())
}

/// Indented by four spaces, in the value's own key order.
pub(crate) fn indented(value: &Value) -> String {
    let mut out = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
    // Serializing a value to memory cannot fail.
    let _ = serde::Serialize::serialize(value, &mut serializer);
    escape_html(String::from_utf8_lossy(&out).into_owned())
}

/// A parsed label selector.
pub(crate) fn selector(text: &str) -> anyhow::Result<machinery::labels::Selector> {
    machinery::labels::Selector::parse(text).map_err(|error| anyhow::anyhow!(error))
}

/// Whether an object's labels match.
pub(crate) fn selects(selector: &machinery::labels::Selector, object: &Value) -> bool {
    let labels = &object["metadata"]["labels"];
    selector.matches(|key| labels[key].as_str())
}

/// A LabelSelector from a query's terms.
pub(crate) fn label_selector(text: &str) -> anyhow::Result<Value> {
    use machinery::labels::Operator;
    let parsed = selector(text)?;
    let mut labels = serde_json::Map::new();
    let mut expressions = Vec::new();
    for term in parsed.requirements() {
        let operator = match term.operator {
            Operator::Equals | Operator::DoubleEquals => {
                let value = term.values.first().cloned().unwrap_or_default();
                labels.insert(term.key.clone(), Value::String(value));
                continue;
            }
            Operator::In => "In",
            Operator::NotIn => "NotIn",
            Operator::Exists => "Exists",
            Operator::DoesNotExist => "DoesNotExist",
            Operator::NotEquals => anyhow::bail!("\"!=\" is not a valid label selector operator"),
            Operator::GreaterThan => {
                anyhow::bail!("\"gt\" is not a valid label selector operator")
            }
            Operator::LessThan => anyhow::bail!("\"lt\" is not a valid label selector operator"),
        };
        let mut expression = serde_json::json!({"key": term.key, "operator": operator});
        if !term.values.is_empty() {
            expression["values"] = serde_json::json!(term.values);
        }
        expressions.push(expression);
    }
    let mut out = serde_json::json!({});
    if !labels.is_empty() {
        out["matchLabels"] = Value::Object(labels);
    }
    if !expressions.is_empty() {
        out["matchExpressions"] = Value::Array(expressions);
    }
    Ok(out)
}
