//! YAML output: the same tree as the JSON, with sorted keys.

use machinery::{Status, Value};

/// Converts a JSON document.
pub fn from_json(json: &[u8]) -> Result<String, Status> {
    let mut value: Value = machinery::json::from_slice(json).map_err(Status::internal)?;
    sort(&mut value);
    serde_saphyr::to_string(&value).map_err(Status::internal)
}

/// One item of a list in YAML, to follow the line of the list's key.
pub fn item(json: &[u8]) -> Result<String, Status> {
    let mut value: Value = machinery::json::from_slice(json).map_err(Status::internal)?;
    sort(&mut value);
    let list = Value::from(machinery::Object::from_iter([(
        "items".to_owned(),
        vec![value].into(),
    )]));
    let mut text = serde_saphyr::to_string(&list).map_err(Status::internal)?;
    let line = text.find('\n').map_or(0, |end| end + 1);
    text.drain(..line);
    Ok(text)
}

fn sort(value: &mut Value) {
    match value {
        Value::Object(object) => {
            let mut members: Vec<_> = std::mem::take(object).into_iter().collect();
            members.sort_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
            members.iter_mut().for_each(|(_, value)| sort(value));
            object.extend(members);
        }
        Value::Array(array) => array.iter_mut().for_each(sort),
        _ => {}
    }
}
