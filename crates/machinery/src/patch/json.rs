//! JSON patch (RFC 6902): a list of operations, all or none.

use crate::{Object, Value, decode::MAX_DEPTH, text};

/// Further operations are rejected.
pub const MAX_OPERATIONS: usize = 10_000;

/// Maximum bytes that the copies of one patch may add: copies of copies grow exponentially.
const MAX_COPIED: usize = 3 << 20;

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The patch itself is invalid: a bad request.
    #[error("{0}")]
    Malformed(String),
    /// It has more operations than allowed.
    #[error("{0}")]
    TooMany(String),
    /// It does not apply to the object: unprocessable.
    #[error("{0}")]
    DoesNotApply(String),
    /// A `test` found another value: unprocessable.
    #[error("{0}")]
    TestFailed(String),
}

/// Go's name of a JSON value's type.
pub fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Rejects anything but a list of operations; returns messages about unknown fields of operations.
/// Without `strict`, operations are not checked.
pub fn check(patch: &Value, strict: bool) -> Result<Vec<String>, String> {
    let [list, operation] = if strict {
        ["[]handlers.jsonPatchOp", "handlers.jsonPatchOp"]
    } else {
        ["jsonpatch.Patch", "jsonpatch.Operation"]
    };
    let into = |value: &Value, what: &str| {
        format!(
            "json: cannot unmarshal {} into Go value of type {what}",
            go_kind(value)
        )
    };
    let operations = match patch {
        Value::Null => return Ok(Vec::new()),
        Value::Array(operations) => operations,
        other => return Err(into(other, list)),
    };
    let mut unknown = Vec::new();
    for (index, one) in operations.iter().enumerate() {
        let fields = match one {
            Value::Object(fields) => fields,
            Value::Null => continue,
            other => return Err(into(other, operation)),
        };
        for (name, value) in fields.iter().filter(|_| strict) {
            match (name.as_str(), value) {
                ("op" | "path" | "from", Value::String(_) | Value::Null) | ("value", _) => {}
                ("op" | "path" | "from", other) => {
                    return Err(format!(
                        "json: cannot unmarshal {} into Go struct field jsonPatchOp.{name} of type string",
                        go_kind(other)
                    ));
                }
                _ => {
                    let path = text::quote(&format!("[{index}].{name}"));
                    unknown.push(format!("unknown field {path}"));
                }
            }
        }
    }
    Ok(unknown)
}

/// The object after all operations.
pub fn apply(target: &Object, patch: &Value) -> Result<Object, Error> {
    let operations = match patch {
        Value::Array(operations) => operations.as_slice(),
        _ => &[],
    };
    if operations.len() > MAX_OPERATIONS {
        return Err(Error::TooMany(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let mut document = Value::Object(target.clone());
    let mut limits = Limits::default();
    for operation in operations {
        step(&mut document, operation, &mut limits)?;
    }
    match document {
        Value::Object(map) => Ok(map),
        _ => Err(Error::DoesNotApply("the patch leaves no object".to_owned())),
    }
}

/// The document before the first operation that does not apply, and that operation.
pub fn before_failure<'p>(target: &Object, patch: &'p Value) -> Option<(Value, &'p Value)> {
    let operations = patch.as_array()?;
    if operations.len() > MAX_OPERATIONS {
        return None;
    }
    let run = |operations: &[Value]| {
        let mut document = Value::Object(target.clone());
        let mut limits = Limits::default();
        let mut steps = operations.iter();
        let failed = steps.position(|one| step(&mut document, one, &mut limits).is_err());
        (document, failed)
    };
    // A failed operation may have changed the document: the ones before it are applied again.
    let failed = run(operations).1?;
    Some((run(&operations[..failed]).0, &operations[failed]))
}

/// The approximate serialized size of a tree.
fn size(value: &Value) -> usize {
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(key, item)| key.len() + 4 + size(item))
            .sum(),
        Value::Array(list) => list.iter().map(|item| size(item) + 1).sum(),
        Value::String(text) => text.len() + 2,
        _ => 4,
    }
}

/// Nodes that moves and changes of lists and maps may visit: a patch may move a large part very often.
const MAX_VISITED: usize = 200_000_000;

/// Elements of a list or map that move by one place in the time of a visit.
const MOVED_AT_ONCE: usize = 4;

/// What the operations of a patch may still do.
#[derive(Default)]
struct Limits {
    /// Bytes that copies have added.
    copied: usize,
    /// Nodes that were visited.
    visited: usize,
}

impl Limits {
    fn visit(&mut self, nodes: usize) -> Result<(), Error> {
        self.visited += nodes;
        match self.visited > MAX_VISITED {
            true => Err(Error::DoesNotApply(
                "the patch moves too many values".to_owned(),
            )),
            false => Ok(()),
        }
    }
}

/// A patch must not make a tree deeper than a decoded one may be.
fn must_fit(path: &str, depth: usize) -> Result<(), Error> {
    if path.matches('/').count() + depth > MAX_DEPTH {
        let why = "exceeded max depth".to_owned();
        return Err(Error::Malformed(why));
    }
    Ok(())
}

/// The depth of a tree, and the number of its nodes.
fn measure(value: &Value) -> (usize, usize) {
    let sum = |(depth, nodes): (usize, usize), below: &Value| {
        let (deeper, more) = measure(below);
        (depth.max(deeper), nodes + more)
    };
    let (depth, nodes) = match value {
        Value::Array(items) => items.iter().fold((0, 0), sum),
        Value::Object(map) => map.values().fold((0, 0), sum),
        _ => return (0, 1),
    };
    (depth + 1, nodes + 1)
}

fn step(document: &mut Value, operation: &Value, limits: &mut Limits) -> Result<(), Error> {
    let text_of = |name: &str| {
        let missing = || Error::DoesNotApply(format!("the operation has no {name}"));
        operation[name].as_str().ok_or_else(missing)
    };
    // An absent value is null.
    let value = || operation.get("value").cloned().unwrap_or_default();
    match operation["op"].as_str().unwrap_or_default() {
        "add" => {
            let (path, value) = (text_of("path")?, value());
            must_fit(path, value.depth())?;
            add(document, path, value, limits)
        }
        "remove" => remove(document, text_of("path")?, limits).map(drop),
        "replace" => {
            let (path, value) = (text_of("path")?, value());
            must_fit(path, value.depth())?;
            replace(document, path, value)
        }
        "move" => {
            let value = remove(document, text_of("from")?, limits)?;
            let path = text_of("path")?;
            let (depth, nodes) = measure(&value);
            limits.visit(nodes)?;
            must_fit(path, depth)?;
            add(document, path, value, limits)
        }
        "copy" => {
            let value = read(document, text_of("from")?)?;
            let path = text_of("path")?;
            must_fit(path, value.depth())?;
            limits.copied += size(value);
            if limits.copied > MAX_COPIED {
                let copied = limits.copied;
                return Err(Error::DoesNotApply(format!(
                    "the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED}"
                )));
            }
            let value = value.clone();
            add(document, path, value, limits)
        }
        "test" => test(document, text_of("path")?, operation),
        other => Err(Error::DoesNotApply(format!(
            "unexpected kind of operation: {}",
            text::quote(other)
        ))),
    }
}

fn missing(path: &str) -> Error {
    Error::DoesNotApply(format!("the object has no {path}"))
}

fn unescaped(step: &str) -> String {
    step.replace("~1", "/").replace("~0", "~")
}

/// The index of an element; negative numbers count from the end.
fn position(step: &str, length: usize) -> Option<usize> {
    match step.parse::<i64>().ok()? {
        back if back < 0 => length.checked_sub(usize::try_from(back.unsigned_abs()).ok()?),
        ahead => usize::try_from(ahead).ok(),
    }
    .filter(|at| *at < length)
}

/// The map or list that contains a path's value, and its name there. Text before the first slash is
/// ignored.
fn container<'a>(document: &'a mut Value, path: &str) -> Result<(&'a mut Value, String), Error> {
    let mut steps: Vec<&str> = path.split('/').skip(1).collect();
    let last = steps.pop().ok_or_else(|| missing(path))?;
    let mut at = document;
    for step in steps {
        let step = unescaped(step);
        let below = match at {
            Value::Object(map) => map.get_mut(&step),
            Value::Array(list) => match position(&step, list.len()) {
                Some(i) => list.get_mut(i),
                None => None,
            },
            _ => None,
        };
        at = below
            .filter(|below| below.is_object() || below.is_array())
            .ok_or_else(|| missing(path))?;
    }
    Ok((at, unescaped(last)))
}

/// The value at a path; a name that a map does not have is null.
fn read<'d>(document: &'d mut Value, path: &str) -> Result<&'d Value, Error> {
    let (container, last) = container(document, path)?;
    match container {
        Value::Object(map) => Ok(map.get(&last).unwrap_or(&Value::Null)),
        Value::Array(list) => position(&last, list.len())
            .map(|i| &list[i])
            .ok_or_else(|| missing(path)),
        _ => Err(missing(path)),
    }
}

fn test(document: &mut Value, path: &str, operation: &Value) -> Result<(), Error> {
    let expected = operation.get("value").unwrap_or(&Value::Null);
    let same = if path.is_empty() {
        document == expected
    } else {
        read(document, path)? == expected
    };
    if same {
        return Ok(());
    }
    Err(Error::TestFailed(format!("{path} is something else")))
}

fn replace(document: &mut Value, path: &str, value: Value) -> Result<(), Error> {
    if path.is_empty() {
        *document = value;
        return Ok(());
    }
    let (container, last) = container(document, path)?;
    match container {
        Value::Object(map) => {
            map.insert(last, value);
            Ok(())
        }
        Value::Array(list) => match position(&last, list.len()) {
            Some(i) => {
                list[i] = value;
                Ok(())
            }
            None => Err(missing(path)),
        },
        _ => Err(missing(path)),
    }
}

fn add(document: &mut Value, path: &str, value: Value, limits: &mut Limits) -> Result<(), Error> {
    let (container, last) = container(document, path)?;
    match container {
        Value::Object(map) => {
            map.insert(last, value);
        }
        Value::Array(list) if last == "-" => list.push(value),
        Value::Array(list) => {
            let i = position(&last, list.len() + 1).ok_or_else(|| missing(path))?;
            limits.visit((list.len() - i) / MOVED_AT_ONCE)?;
            list.insert(i, value);
        }
        _ => return Err(missing(path)),
    }
    Ok(())
}

fn remove(document: &mut Value, path: &str, limits: &mut Limits) -> Result<Value, Error> {
    let (container, last) = container(document, path)?;
    // Those behind it move up.
    limits.visit(match container {
        Value::Object(map) => map.len() / MOVED_AT_ONCE,
        Value::Array(list) => list.len() / MOVED_AT_ONCE,
        _ => 0,
    })?;
    let removed = match container {
        Value::Object(map) => map.shift_remove(&last),
        Value::Array(list) => position(&last, list.len()).map(|i| list.remove(i)),
        _ => None,
    };
    removed.ok_or_else(|| missing(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    fn patched(target: Value, patch: Value) -> Result<Value, Error> {
        let Value::Object(target) = target else {
            panic!("no object")
        };
        apply(&target, &patch).map(Value::Object)
    }

    #[test]
    fn a_patch_may_not_visit_a_large_document_for_each_operation() {
        let moved = |items: usize| {
            let there = json!({"op": "move", "from": "/data", "path": "/other"});
            let back = json!({"op": "move", "from": "/other", "path": "/data"});
            let moves = [there, back].into_iter().cycle().take(MAX_OPERATIONS);
            let data: Vec<u32> = vec![0; items];
            patched(json!({"data": data}), Value::Array(moves.collect()))
        };
        assert!(moved(1_000).is_ok());
        let why = moved(500_000).unwrap_err();
        assert_eq!(why.to_string(), "the patch moves too many values");
        let mut data = json!([[[1], 2], {"a": {}}]);
        assert_eq!(measure(&data).0, data.depth());
        data[0] = json!("x");
        assert_eq!(measure(&data), (data.depth(), 4));
    }

    #[test]
    fn json_patch_operations_change_the_document() {
        let cases = [
            (
                json!([{"op": "add", "path": "/a", "value": 1}]),
                json!({"l": [1, 2], "m": {"k": 0}, "a": 1}),
            ),
            (
                json!([{"op": "add", "path": "/l/-", "value": 3}]),
                json!({"l": [1, 2, 3], "m": {"k": 0}}),
            ),
            (
                json!([{"op": "add", "path": "/l/0", "value": 0}]),
                json!({"l": [0, 1, 2], "m": {"k": 0}}),
            ),
            (
                json!([{"op": "remove", "path": "/l/1"}]),
                json!({"l": [1], "m": {"k": 0}}),
            ),
            (
                json!([{"op": "replace", "path": "/m/k", "value": 5}]),
                json!({"l": [1, 2], "m": {"k": 5}}),
            ),
            (
                json!([{"op": "move", "from": "/m/k", "path": "/n"}]),
                json!({"l": [1, 2], "m": {}, "n": 0}),
            ),
            (
                json!([{"op": "copy", "from": "/l", "path": "/m/l"}]),
                json!({"l": [1, 2], "m": {"k": 0, "l": [1, 2]}}),
            ),
            (
                json!([{"op": "test", "path": "/m/k", "value": 0}]),
                json!({"l": [1, 2], "m": {"k": 0}}),
            ),
            (
                json!([{"op": "add", "path": "/m/a~1b", "value": 1}]),
                json!({"l": [1, 2], "m": {"k": 0, "a/b": 1}}),
            ),
        ];
        for (patch, expected) in cases {
            let target = json!({"l": [1, 2], "m": {"k": 0}});
            assert_eq!(patched(target, patch.clone()).unwrap(), expected, "{patch}");
        }
    }

    #[test]
    fn operations_that_do_not_apply_are_refused() {
        for patch in [
            json!([{"op": "remove", "path": "/x"}]),
            json!([{"op": "replace", "path": "/l/0", "value": 1}]),
            json!([{"op": "x", "path": "/"}]),
            json!([{"op": "add"}]),
            json!([{"op": "add", "path": "/x/y", "value": 1}]),
            json!([{"op": "add", "path": "/l/5", "value": 1}]),
            json!([{"op": "add", "path": "", "value": 1}]),
        ] {
            let result = patched(json!({"l": []}), patch.clone());
            assert!(
                matches!(result, Err(Error::DoesNotApply(_))),
                "{patch} {result:?}"
            );
        }
        let test = json!([{"op": "test", "path": "/l", "value": 1}]);
        let result = patched(json!({"l": []}), test);
        assert!(matches!(result, Err(Error::TestFailed(_))), "{result:?}");
    }

    #[test]
    fn edge_cases_agree_with_upstreams_library() {
        let cases = [
            // An absent name can be replaced and copied.
            (
                json!([{"op": "replace", "path": "/x", "value": 1}]),
                json!({"l": [1], "x": 1}),
            ),
            (
                json!([{"op": "copy", "from": "/x", "path": "/y"}]),
                json!({"l": [1], "y": null}),
            ),
            (
                json!([{"op": "add", "path": "/x"}]),
                json!({"l": [1], "x": null}),
            ),
            (
                json!([{"op": "test", "path": "/x", "value": null}]),
                json!({"l": [1]}),
            ),
            // Text before the first slash is ignored.
            (
                json!([{"op": "add", "path": "z/x", "value": 1}]),
                json!({"l": [1], "x": 1}),
            ),
            // The end of a list is one after its last element.
            (
                json!([{"op": "add", "path": "/l/-1", "value": 2}]),
                json!({"l": [1, 2]}),
            ),
            (json!(null), json!({"l": [1]})),
        ];
        for (patch, expected) in cases {
            let result = patched(json!({"l": [1]}), patch.clone());
            assert_eq!(result.unwrap(), expected, "{patch}");
        }
    }

    #[test]
    fn an_invalid_json_patch_is_refused_with_gos_message() {
        let cases = [
            (
                json!({}),
                "json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
            ),
            (
                json!(["x"]),
                "json: cannot unmarshal string into Go value of type handlers.jsonPatchOp",
            ),
            (
                json!([{"op": 1}]),
                "json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string",
            ),
        ];
        for (patch, expected) in cases {
            assert_eq!(check(&patch, true).unwrap_err(), expected);
        }
        let odd = json!([{"op": "add", "path": "/a", "odd": 1}]);
        assert_eq!(check(&odd, true).unwrap(), [r#"unknown field "[0].odd""#]);
        assert!(check(&odd, false).unwrap().is_empty());
    }

    #[test]
    fn copies_of_copies_end_before_they_are_too_deep_or_too_large() {
        let target = json!({"data": {"k": "v"}}).as_object().cloned().unwrap();
        let deeper = json!({"op": "copy", "from": "/data", "path": "/data/x"});
        let error = apply(&target, &Value::from(vec![deeper; 2000])).unwrap_err();
        assert_eq!(error, Error::Malformed("exceeded max depth".to_owned()));
        let names: Vec<String> = (0..60).map(|n| format!("/{n}")).collect();
        let doubling = names
            .iter()
            .map(|name| json!({"op": "copy", "from": "/data", "path": format!("/data{name}")}));
        let error = apply(&target, &doubling.collect()).unwrap_err().to_string();
        assert!(error.contains("exceeding the limit"), "{error}");
        let nested = (0..100).fold(json!(1), |inner, _| json!([inner]));
        let far = "/data/0".to_owned() + &"/0".repeat(30);
        let add = json!([{"op": "add", "path": far, "value": nested}]);
        let error = apply(&target, &add).unwrap_err();
        assert_eq!(error, Error::Malformed("exceeded max depth".to_owned()));
    }
}
