//! Values in an applied configuration that do not match its type. Other patches drop or reject them
//! later; apply rejects them first, since it could not determine their owners.

use super::{
    Writer,
    set::readable,
    topology::{Form, Node, Root, Scalar, key_step},
};
use crate::text::{literal, plain, quote};
use crate::{Object, Value};
use std::collections::HashSet;

/// Kubernetes' error message about all of them; `None` if everything matches.
pub fn misfits(config: &Object, writer: &Writer<'_>) -> Option<String> {
    found(writer.root(), config)
}

/// The same for a known topology.
pub(super) fn found(root: Root<'_>, config: &Object) -> Option<String> {
    let mut found = Vec::new();
    entries(Node::root(root), config, &mut String::new(), &mut found);
    match &found[..] {
        [] => None,
        [one] => Some(one.clone()),
        many => Some(format!("errors:\n  {}", many.join("\n  "))),
    }
}

fn walk(node: Node<'_>, value: &Value, path: &mut String, found: &mut Vec<String>) {
    let mut wrong = |why: String| found.push(format!("{path}: {why}"));
    match (node.expects(), value) {
        (_, Value::Null)
        | (Scalar::Anything, Value::Bool(_) | Value::Number(_) | Value::String(_)) => {}
        (Scalar::Map, Value::Object(_)) | (Scalar::List, Value::Array(_)) => {
            inside(node, value, path, found);
        }
        (Scalar::Anything, _) => inside(node, value, path, found),
        (Scalar::Map, other) => wrong(format!("expected map, got &{{{}}}", plain(other))),
        (Scalar::List, other) => wrong(format!("expected list, got &{{{}}}", plain(other))),
        (Scalar::Text, Value::String(_))
        | (Scalar::Number, Value::Number(_))
        | (Scalar::Truth, Value::Bool(_))
        | (Scalar::Any, Value::String(_) | Value::Number(_) | Value::Bool(_)) => {}
        (Scalar::Text, other) => wrong(format!(
            "expected string, got &value.valueUnstructured{{Value:{}}}",
            literal(other)
        )),
        (Scalar::Number, other) => {
            let kind = match other {
                Value::Bool(_) => "bool",
                Value::Array(_) => "[]interface {}",
                Value::Object(_) => "map[string]interface {}",
                _ => "string",
            };
            wrong(format!("expected numeric (int or float), got {kind}"));
        }
        (Scalar::Truth, other) => wrong(format!("expected boolean, got &{{{}}}", plain(other))),
        (Scalar::Any, other) => wrong(format!("expected any scalar, got &{{{}}}", plain(other))),
    }
}

/// Nothing after an undeclared field is checked.
fn entries(node: Node<'_>, fields: &Object, path: &mut String, found: &mut Vec<String>) {
    let length = path.len();
    for (name, below) in fields {
        path.push_str(&readable(&format!("f:{name}")));
        let declared = node.takes(name);
        if declared {
            walk(node.child(name), below, path, found);
        } else {
            found.push(format!("{path}: field not declared in schema"));
        }
        path.truncate(length);
        if !declared {
            return;
        }
    }
}

fn inside(node: Node<'_>, value: &Value, path: &mut String, found: &mut Vec<String>) {
    let length = path.len();
    match value {
        Value::Object(fields) => entries(node, fields, path, found),
        Value::Array(elements) => {
            let form = node.form(Some(value));
            let mut seen: HashSet<String> = HashSet::new();
            for (index, element) in elements.iter().enumerate() {
                let step = match step(node, &form, index, element) {
                    Ok(step) => step,
                    Err(why) => {
                        found.push(format!("{path}: element {index}: {why}"));
                        return;
                    }
                };
                let shown = readable(&step);
                let is_index = step.starts_with("i:");
                if !seen.insert(step) && !is_index {
                    found.push(format!("{path}: duplicate entries for key {shown}"));
                }
                path.push_str(&shown);
                walk(node.element(), element, path, found);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

/// The step to an element, or the error if there is none.
fn step(node: Node<'_>, form: &Form<'_>, index: usize, element: &Value) -> Result<String, String> {
    let why = match (form, element) {
        (Form::Keyed(keys), Value::Object(_)) => {
            return key_step(node, keys, element).ok_or_else(|| {
                let keys: Vec<String> = keys.iter().map(|key| quote(key)).collect();
                format!(
                    "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
                    keys.join(" ")
                )
            });
        }
        (Form::Keyed(_), Value::Null) => "associative list with keys may not have a null element",
        (Form::Keyed(_), _) => "associative list with keys may not have non-map elements",
        (Form::Set, Value::Object(_)) => {
            "associative list without keys has an element that's a map type"
        }
        (Form::Set, Value::Array(_)) => "not supported: associative list with lists as elements",
        (Form::Set, Value::Null) => {
            "associative list without keys has an element that's an explicit null"
        }
        (Form::Set, value) => return Ok(format!("v:{value}")),
        _ => return Ok(format!("i:{index}")),
    };
    Err(why.to_owned())
}

#[cfg(test)]
mod tests {
    use crate::json::json;

    use super::*;

    fn misfits(root: Root<'_>, config: &Value) -> Option<String> {
        found(root, config.as_object().unwrap())
    }

    #[test]
    fn undeclared_fields_are_reported_with_their_path() {
        let deployment = Root::Typed(crate::schema::lookup("apps/v1.Deployment").unwrap());
        let config = |spec: Value| {
            json!({"apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": "a", "labels": {"any": "label"}}, "spec": spec})
        };
        let template =
            |container: Value| json!({"template": {"spec": {"containers": [container]}}});
        assert_eq!(misfits(deployment, &config(json!({"replicas": 1}))), None);
        assert_eq!(
            misfits(deployment, &config(json!({"foo": 1}))).unwrap(),
            ".spec.foo: field not declared in schema"
        );
        let odd = config(template(json!({"name": "c", "odd": {"deep": 1}})));
        assert_eq!(
            misfits(deployment, &odd).unwrap(),
            r#".spec.template.spec.containers[name="c"].odd: field not declared in schema"#
        );
        let two = config(json!({"a": 1, "b": 1}));
        assert_eq!(
            misfits(deployment, &two).unwrap(),
            ".spec.a: field not declared in schema"
        );
    }

    #[test]
    fn undeclared_fields_of_custom_resources_are_reported() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
        "properties": {
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
            "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
                "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}}}},
            "unsaid": {"type": "object"},
            "never": {"type": "object", "additionalProperties": false},
        }}}});
        let root = Root::Custom(&schema);
        let config = |spec: Value| json!({"apiVersion": "e/v1", "kind": "E", "metadata": {"name": "a"}, "spec": spec});
        let fine = json!({"free": {"x": {"y": 1}}, "map": {"k": "v"}});
        assert_eq!(misfits(root, &config(fine)), None);
        // Preserving unknown fields applies to all levels below.
        let fine = json!({"open": {"list": [{"a": "b", "odd": 1}]}, "unsaid": {"odd": 1}});
        assert_eq!(misfits(root, &config(fine)), None);
        assert_eq!(
            misfits(root, &config(json!({"never": {"odd": 1}}))).unwrap(),
            ".spec.never.odd: field not declared in schema"
        );
        assert_eq!(
            misfits(root, &config(json!({"odd": 1}))).unwrap(),
            ".spec.odd: field not declared in schema"
        );
        assert_eq!(misfits(Root::Unknown, &config(json!({"odd": 1}))), None);
    }

    #[test]
    fn values_of_another_type_and_elements_without_a_place_are_refused() {
        let map = Root::Typed(crate::schema::lookup("core/v1.ConfigMap").unwrap());
        let owner = |uid: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid});
        let cases = [
            (json!({"data": "x"}), ".data: expected map, got &{x}"),
            (
                json!({"data": {"a": 1}}),
                ".data.a: expected string, got &value.valueUnstructured{Value:1}",
            ),
            (
                json!({"immutable": "yes"}),
                ".immutable: expected boolean, got &{yes}",
            ),
            (
                json!({"metadata": {"finalizers": ["a/b", "a/b"]}}),
                r#".metadata.finalizers: duplicate entries for key [="a/b"]"#,
            ),
            (
                json!({"metadata": {"ownerReferences": [owner("u"), owner("u")]}}),
                r#".metadata.ownerReferences: duplicate entries for key [uid="u"]"#,
            ),
            (
                json!({"metadata": {"ownerReferences": ["p"]}}),
                ".metadata.ownerReferences: element 0: associative list with keys may not have non-map elements",
            ),
        ];
        for (config, expected) in cases {
            assert_eq!(misfits(map, &config).as_deref(), Some(expected), "{config}");
        }
        // A key that is always serialized has its zero value, so the element can be identified.
        let keyless = json!({"metadata": {"ownerReferences": [{"name": "p"}]}});
        assert_eq!(misfits(map, &keyless), None);
    }
}
