//! Fields of an applied configuration that its type does not have. A patch drops them; apply refuses
//! them, since it could not say who owns what.

use super::{
    set::readable,
    topology::{Form, Node, Root, key_step},
};
use crate::Value;

/// The sentence of Kubernetes about all of them, `None` if every field is declared.
pub fn undeclared(root: Root<'_>, config: &Value) -> Option<String> {
    let mut found = Vec::new();
    walk(Node::root(root), config, &mut String::new(), &mut found);
    let sentence = |path: &String| format!("{path}: field not declared in schema");
    match &found[..] {
        [] => None,
        [one] => Some(sentence(one)),
        many => {
            let lines: Vec<_> = many
                .iter()
                .map(|path| format!("\n  {}", sentence(path)))
                .collect();
            Some(format!("errors:{}", lines.concat()))
        }
    }
}

fn walk(node: Node<'_>, value: &Value, path: &mut String, found: &mut Vec<String>) {
    let length = path.len();
    match value {
        Value::Object(fields) => {
            for (name, below) in fields {
                path.push_str(&readable(&format!("f:{name}")));
                if node.takes(name) {
                    walk(node.child(name), below, path, found);
                } else {
                    found.push(path.clone());
                }
                path.truncate(length);
            }
        }
        Value::Array(elements) => {
            let keys = match node.form(Some(value)) {
                Form::Keyed(keys) => keys,
                _ => Vec::new(),
            };
            for (index, element) in elements.iter().enumerate() {
                let step = (!keys.is_empty())
                    .then(|| key_step(node, &keys, element))
                    .flatten();
                path.push_str(&readable(&step.unwrap_or_else(|| format!("i:{index}"))));
                walk(node.element(), element, path, found);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use crate::json;

    use super::*;

    #[test]
    fn fields_that_a_type_lacks_are_named_by_where_they_stand() {
        let deployment = Root::Typed(crate::schema::lookup("apps/v1.Deployment").unwrap());
        let config = |spec: Value| {
            json!({"apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": "a", "labels": {"any": "label"}}, "spec": spec})
        };
        let template =
            |container: Value| json!({"template": {"spec": {"containers": [container]}}});
        assert_eq!(
            undeclared(deployment, &config(json!({"replicas": 1}))),
            None
        );
        assert_eq!(
            undeclared(deployment, &config(json!({"foo": 1}))).unwrap(),
            ".spec.foo: field not declared in schema"
        );
        let odd = config(template(json!({"name": "c", "odd": {"deep": 1}})));
        assert_eq!(
            undeclared(deployment, &odd).unwrap(),
            r#".spec.template.spec.containers[name="c"].odd: field not declared in schema"#
        );
        let two = config(json!({"a": 1, "b": 1}));
        assert_eq!(
            undeclared(deployment, &two).unwrap(),
            "errors:\n  .spec.a: field not declared in schema\n  .spec.b: field not declared in schema"
        );
    }

    #[test]
    fn custom_resources_have_what_their_schema_says() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
        "properties": {
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
        }}}});
        let root = Root::Custom(&schema);
        let config = |spec: Value| json!({"apiVersion": "e/v1", "kind": "E", "metadata": {"name": "a"}, "spec": spec});
        let fine = json!({"free": {"x": {"y": 1}}, "map": {"k": "v"}});
        assert_eq!(undeclared(root, &config(fine)), None);
        assert_eq!(
            undeclared(root, &config(json!({"odd": 1}))).unwrap(),
            ".spec.odd: field not declared in schema"
        );
        assert_eq!(undeclared(Root::Unknown, &config(json!({"odd": 1}))), None);
    }
}
