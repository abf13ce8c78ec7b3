//! Whose a new object's fields are: its creator's, all of them. The same set that a comparison with
//! nothing gives, written as JSON at once, because every create needs it.

use super::topology::{Form, Node, Root};
use super::walk::{field_step, step_of};
use super::{UNMANAGED, Writer};
use crate::json::Key;
use crate::schema::{Shape, Type};
use crate::{Object, Value};

/// An element of a list that cannot be told from others: it has none of its keys.
struct Placeless;

/// The set of fields of a new object, without what nobody manages; `None` when it is empty, or when
/// nobody can say whose what is.
pub(super) fn fields(root: Root<'_>, object: &Object, writer: &Writer<'_>) -> Option<Value> {
    fields_of(root, object, writer).unwrap_or_default()
}

fn fields_of(
    root: Root<'_>,
    object: &Object,
    writer: &Writer<'_>,
) -> Result<Option<Value>, Placeless> {
    let node = Node::root(root);
    let nothing = Value::Object(Object::new());
    let mut out = Object::with_capacity(object.len());
    for (name, value) in object {
        let is_named = |reset: &&[&str]| **reset == [name.as_str()];
        if matches!(name.as_str(), "apiVersion" | "kind") || writer.reset.iter().any(is_named) {
            continue;
        }
        let old = match root {
            Root::Typed(schema) => schema.field(name).and_then(|field| field.zero()),
            _ => (name == "metadata").then_some(&nothing),
        };
        let (step, child) = below(node, name);
        let set = match (old, name == "metadata") {
            (Some(old), true) => managed(changed(child, old, value)?),
            (Some(old), false) => changed(child, old, value)?,
            (None, _) => Some(whole(child, value)?),
        };
        if let Some(set) = set {
            out.push(step, set);
        }
    }
    out.sort_keys();
    Ok((!out.is_empty()).then_some(Value::Object(out)))
}

/// Metadata without what nobody manages.
fn managed(metadata: Option<Value>) -> Option<Value> {
    let mut metadata = metadata?;
    if let Value::Object(map) = &mut metadata {
        map.retain(|step, _| step != "." && !UNMANAGED.contains(&step.as_str()));
        if map.is_empty() {
            return None;
        }
    }
    Some(metadata)
}

/// The step to an entry, and what is known of the place.
fn below<'a>(node: Node<'a>, name: &Key) -> (Key, Node<'a>) {
    let declared = |schema: &'static Type| schema.position_of(name).map(|at| &schema.fields[at]);
    let field = match node {
        Node::Struct(schema) => declared(schema),
        Node::Field(Shape::Struct(id), _) => declared(id.get()),
        _ => None,
    };
    match field {
        Some(field) => (
            Key::fixed(field.step),
            Node::Field(field.shape, &field.topology),
        ),
        None => (field_step(name).into(), node.child(name)),
    }
}

fn leaf() -> Value {
    Value::Object(Object::new())
}

/// Something that was not there before: itself, and everything below it.
fn whole(node: Node<'_>, value: &Value) -> Result<Value, Placeless> {
    let form = node.form(Some(value));
    let mut out = Object::new();
    match (&form, value) {
        (Form::Map, Value::Object(map)) if !map.is_empty() => {
            out = Object::with_capacity(map.len() + 1);
            out.push(Key::fixed("."), leaf());
            for (name, value) in map {
                if node.passes_over(name, value) {
                    continue;
                }
                let (step, child) = below(node, name);
                out.push(step, whole(child, value)?);
            }
            if out.len() == 1 {
                return Ok(leaf());
            }
            out.sort_keys();
        }
        (Form::Set | Form::Keyed(_), Value::Array(list)) if !list.is_empty() => {
            out = of_elements(node, &form, list, true)?;
        }
        _ => {}
    }
    Ok(Value::Object(out))
}

/// The elements of a list that are all new.
fn of_elements(
    node: Node<'_>,
    form: &Form<'_>,
    list: &[Value],
    itself: bool,
) -> Result<Object, Placeless> {
    let mut out = Object::with_capacity(list.len() + 1);
    if itself {
        out.push(Key::fixed("."), leaf());
    }
    for value in list {
        let step = step_of(node, form, value).ok_or(Placeless)?;
        match out.get_mut(&step) {
            // Those that share a step are owned together.
            Some(shared) => *shared = leaf(),
            None => out.push(step.into(), whole(node.element(), value)?),
        }
    }
    out.sort_keys();
    Ok(out)
}

/// What differs from the zero value that stands for nothing; `None` when nothing does.
fn changed(node: Node<'_>, old: &Value, new: &Value) -> Result<Option<Value>, Placeless> {
    let differs = || (old != new).then(leaf);
    let form = node.form(Some(new));
    let out = match (&form, new) {
        (Form::Map, new) => {
            let before = old.as_object().filter(|map| !map.is_empty());
            let after = new.as_object().filter(|map| !map.is_empty());
            let Some(after) = after else {
                return Ok(before.map_or_else(differs, |_| None));
            };
            let mut out = Object::with_capacity(after.len());
            for (name, value) in after {
                if node.passes_over(name, value) {
                    continue;
                }
                let (step, child) = below(node, name);
                let set = match before.and_then(|map| map.get(name)) {
                    Some(old) => changed(child, old, value)?,
                    None => Some(whole(child, value)?),
                };
                if let Some(set) = set {
                    out.push(step, set);
                }
            }
            out.sort_keys();
            out
        }
        // Nothing has no elements.
        (Form::Set | Form::Keyed(_), Value::Array(list)) if !list.is_empty() => {
            of_elements(node, &form, list, false)?
        }
        _ => return Ok(differs()),
    };
    Ok((!out.is_empty()).then_some(Value::Object(out)))
}
