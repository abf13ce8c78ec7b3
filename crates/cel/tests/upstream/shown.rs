//! Values as in the tables: every type is distinguishable.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cel::Value;
use machinery::json;

pub(crate) fn shown(value: &Value<'_>) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Uint(value) => format!("{value}u"),
        Value::Double(value) => format!("double({value:e})"),
        Value::String(text) => json::Value::from(&**text).to_string(),
        Value::Bytes(bytes) => format!("bytes({})", STANDARD.encode(bytes)),
        Value::Duration(nanos) => format!("duration({nanos}ns)"),
        Value::Timestamp(_) => format!("timestamp({})", value.display()),
        Value::List(list) => {
            let items = list
                .iter()
                .map(|item| item.map_or_else(failed, |v| shown(&v)));
            format!("[{}]", items.collect::<Vec<_>>().join(", "))
        }
        Value::Map(map) => {
            let entries = map.iter().map(|entry| {
                entry.map_or_else(failed, |(key, value)| {
                    format!("{}: {}", shown(&key), shown(&value))
                })
            });
            let mut entries: Vec<_> = entries.collect();
            entries.sort();
            let name = map.object().map_or("", |name| &**name);
            format!("{name}{{{}}}", entries.join(", "))
        }
        Value::Type(_) => format!("type({})", value.display()),
        Value::Optional(None) => "optional.none".to_owned(),
        Value::Optional(Some(value)) => format!("optional({})", shown(value)),
        Value::Library(library) => format!("{}({})", library.type_of(), value.display()),
    }
}

fn failed(error: cel::Error) -> String {
    format!("error({})", error.message)
}
