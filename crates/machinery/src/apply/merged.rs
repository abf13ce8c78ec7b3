//! Applies a configuration without a manager: it is merged into an object, and managedFields stay
//! as they are. Mutating admission policies apply this way.

use super::{
    bare,
    misfits::found,
    set::readable,
    topology::{Form, Node, Root},
    walk,
};
use crate::{Object, Value};

/// Why a configuration cannot be merged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unmergeable {
    /// It does not match the type.
    #[error("failed to convert patch object to typed object: {0}")]
    Misfit(String),
    /// It sets parts of an atomic value: the parts that it omits would be lost.
    #[error("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {0}")]
    Atomic(String),
}

/// The object with the configuration merged in; its managedFields stay as they are.
pub fn merged(root: Root<'_>, live: &Object, config: &Object) -> Result<Object, Unmergeable> {
    if let Some(why) = found(root, config) {
        return Err(Unmergeable::Misfit(why));
    }
    let node = Node::root(root);
    let config = bare(config);
    let mut atomic = Vec::new();
    find_atomic(node, &config, &mut String::new(), &mut atomic);
    if !atomic.is_empty() {
        return Err(Unmergeable::Atomic(atomic.join(", ")));
    }
    let managers = live.get("metadata").and_then(|m| m.get("managedFields"));
    let Value::Object(mut object) = walk::merge(node, &bare(live), &config) else {
        return Ok(live.clone());
    };
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    if let (Some(managers), Some(metadata)) = (managers, metadata) {
        metadata.insert("managedFields".to_owned(), managers.clone());
    }
    Ok(object)
}

/// The paths of atomic maps and lists.
fn find_atomic(node: Node<'_>, value: &Value, path: &mut String, found: &mut Vec<String>) {
    if !matches!(value, Value::Object(_) | Value::Array(_)) {
        return;
    }
    if node.is_whole() {
        found.push(path.clone());
    }
    let length = path.len();
    match value {
        Value::Object(map) => {
            for (name, below) in map.iter().filter(|(name, _)| node.declares(name)) {
                path.push_str(&readable(&format!("f:{name}")));
                find_atomic(node.child(name), below, path, found);
                path.truncate(length);
            }
        }
        Value::Array(list) => {
            debug_assert_ne!(node.form(Some(value)), Form::Map, "a list is no map");
            for (index, below) in list.iter().enumerate() {
                path.push_str(&format!("[{index}]"));
                find_atomic(node.element(), below, path, found);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{json::json, schema};

    fn merge(live: Value, config: Value) -> Result<Value, String> {
        let root = Root::Typed(schema::lookup("apps/v1.Deployment").unwrap());
        let object = |value: Value| value.as_object().cloned().unwrap();
        merged(root, &object(live), &object(config))
            .map(Value::Object)
            .map_err(|why| why.to_string())
    }

    fn deployment(spec: Value) -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "managedFields": [{"manager": "m"}]},
               "spec": spec})
    }

    #[test]
    fn lists_are_merged_by_key_and_nothing_is_owned() {
        let pod = |containers: Value| json!({"template": {"spec": {"containers": containers}}});
        let live = deployment(pod(json!([{"name": "a", "image": "a"}])));
        let config = json!({"spec": pod(json!([
            {"name": "b", "image": "b"}, {"name": "a", "env": [{"name": "X", "value": "1"}]}]))});
        let merged = merge(live, config).unwrap();
        assert_eq!(
            merged["metadata"]["managedFields"],
            json!([{"manager": "m"}])
        );
        let containers = &merged["spec"]["template"]["spec"]["containers"];
        assert_eq!(
            *containers,
            json!([{"name": "b", "image": "b"},
                   {"name": "a", "image": "a", "env": [{"name": "X", "value": "1"}]}])
        );
    }

    #[test]
    fn undeclared_fields_and_atomic_values_are_refused() {
        let spec = |spec: Value| merge(deployment(json!({})), json!({"spec": spec})).unwrap_err();
        assert_eq!(
            spec(json!({"replicaz": 1})),
            "failed to convert patch object to typed object: .spec.replicaz: field not declared in schema"
        );
        assert_eq!(
            spec(json!({"selector": {"matchLabels": {"a": "b"}}})),
            "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.selector"
        );
        let args = json!({"template": {"spec": {"containers": [{"name": "a", "args": ["x"]}]}}});
        assert_eq!(
            spec(args),
            "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.template.spec.containers[0].args"
        );
    }
}
