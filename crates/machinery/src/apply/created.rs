//! The field set of a new object, all owned by its creator. The same set as a comparison with an
//! empty object gives, but written as JSON in one pass over the object, because every create needs
//! it.

use super::topology::{Form, Node, Root};
use super::walk::step_of;
use super::{UNMANAGED, Writer};
use crate::json::{Key, order::Order, write};
use crate::schema::{Field, Shape, Type};
use crate::{Object, Value};

/// The field set of a new object, without unmanaged fields; `None` if it is empty, or if an element
/// of a list has none of its keys.
pub(super) fn fields(root: Root<'_>, object: &Object, writer: &Writer<'_>) -> Option<Vec<u8>> {
    let mut set = Set {
        out: Vec::with_capacity(2048),
        is_placeless: false,
    };
    let nothing = Value::Object(Object::new());
    set.out.push(b'{');
    set.entries(Node::root(root), object, |set, entry| {
        let name = entry.name;
        let is_named = |reset: &&[&str]| **reset == [name];
        if matches!(name, "apiVersion" | "kind") || writer.reset.iter().any(is_named) {
            return false;
        }
        let old = match root {
            Root::Typed(_) => entry.field.and_then(Field::zero),
            _ => (name == "metadata").then_some(&nothing),
        };
        match old {
            Some(old) if name == "metadata" => set.metadata(entry.node, old, entry.value),
            Some(old) => set.changed(entry.node, old, entry.value),
            None => set.added(entry.node, entry.value),
        }
    });
    (set.end(0) && !set.is_placeless).then_some(set.out)
}

/// An entry of a map.
struct Entry<'n, 'o> {
    name: &'o str,
    /// Its field in the schema table.
    field: Option<&'static Field>,
    node: Node<'n>,
    value: &'o Value,
}

impl<'n, 'o> Entry<'n, 'o> {
    fn new(node: Node<'n>, key: &'o Key, value: &'o Value) -> Self {
        let declared = |schema: &'static Type| Some(&schema.fields[schema.position_of(key)?]);
        let field = struct_of(node).and_then(declared);
        Self {
            name: key,
            field,
            node: match field {
                Some(field) => Node::Field(field.shape, &field.topology),
                None => node.child(key),
            },
            value,
        }
    }

    fn is_passed_over(&self) -> bool {
        let field = self.field;
        field.is_some_and(|field| is_passed_over(field, self.value))
    }
}

/// Whether an entry is empty and will not be stored; until then its kind can tell it from an absent
/// one.
fn is_passed_over(field: &Field, value: &Value) -> bool {
    let is_empty = match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    is_empty && field.sent
}

fn struct_of(node: Node<'_>) -> Option<&'static Type> {
    match node {
        Node::Struct(schema) => Some(schema),
        Node::Field(Shape::Struct(id), _) => Some(id.get()),
        _ => None,
    }
}

/// The fields of a struct sorted by name; `None` if it has undeclared ones.
fn by_rank(schema: &Type, map: &Object) -> Option<Order> {
    let mut order = Order::new();
    for (place, key) in map.keys().enumerate() {
        order.note(schema.rank_of(key)?, place);
    }
    Some(order)
}

/// The set as far as it is written. Functions return whether they added something; if not, they
/// leave no output.
struct Set {
    out: Vec<u8>,
    /// Whether an element of a list has none of its keys.
    is_placeless: bool,
}

impl Set {
    /// Adds the entries of a map, in the order of their steps; `add` adds the fields below a step.
    fn entries<'n, 'o>(
        &mut self,
        node: Node<'n>,
        map: &'o Object,
        mut add: impl FnMut(&mut Self, &Entry<'n, 'o>) -> bool,
    ) {
        if let Some(order) = struct_of(node).and_then(|schema| by_rank(schema, map)) {
            for (_, place) in order.sorted() {
                let (key, value) = map.entry_at(place);
                self.entry(&Entry::new(node, key, value), &mut add);
            }
        } else if map.keys().is_sorted() {
            for (key, value) in map {
                self.entry(&Entry::new(node, key, value), &mut add);
            }
        } else {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_unstable_by_key(|entry| entry.0);
            for (key, value) in entries {
                self.entry(&Entry::new(node, key, value), &mut add);
            }
        }
    }

    fn entry<'n, 'o>(
        &mut self,
        entry: &Entry<'n, 'o>,
        add: &mut impl FnMut(&mut Self, &Entry<'n, 'o>) -> bool,
    ) {
        let begin = self.out.len();
        self.separate();
        self.out.extend_from_slice(b"\"f:");
        write::within(&mut self.out, entry.name.as_bytes());
        self.out.extend_from_slice(b"\":");
        if !add(self, entry) {
            self.out.truncate(begin);
        }
    }

    fn separate(&mut self) {
        if self.out.last() != Some(&b'{') {
            self.out.push(b',');
        }
    }

    /// Ends a set that began there; an empty one is removed.
    fn end(&mut self, begin: usize) -> bool {
        let has_steps = self.out.len() > begin + 1;
        match has_steps {
            true => self.out.push(b'}'),
            false => self.out.truncate(begin),
        }
        has_steps
    }

    #[inline]
    fn leaf(&mut self) -> bool {
        self.out.extend_from_slice(b"{}");
        true
    }

    /// A value that was not there before: itself, and everything below it.
    fn added(&mut self, node: Node<'_>, value: &Value) -> bool {
        const ITSELF: &[u8] = b"{\".\":{}";
        // Most values are scalars.
        if !matches!(value, Value::Object(_) | Value::Array(_)) {
            return self.leaf();
        }
        let form = node.form(Some(value));
        match (&form, value) {
            (Form::Map, Value::Object(map)) if !map.is_empty() => {
                let begin = self.out.len();
                self.out.extend_from_slice(ITSELF);
                self.all(node, map);
                if self.out.len() == begin + ITSELF.len() {
                    self.out.truncate(begin);
                    return self.leaf();
                }
            }
            (Form::Set | Form::Keyed(_), Value::Array(list)) if !list.is_empty() => {
                let Some(elements) = elements(node, &form, list) else {
                    self.is_placeless = true;
                    return self.leaf();
                };
                self.out.extend_from_slice(ITSELF);
                self.elements(node, elements);
            }
            _ => return self.leaf(),
        }
        self.out.push(b'}');
        true
    }

    /// All entries of a map, after the map itself.
    fn all(&mut self, node: Node<'_>, map: &Object) {
        let fields = struct_of(node).and_then(|schema| Some((schema, by_rank(schema, map)?)));
        let Some((schema, order)) = fields else {
            return self.entries(node, map, |set, entry| {
                !entry.is_passed_over() && set.added(entry.node, entry.value)
            });
        };
        for (rank, place) in order.sorted() {
            let (field, value) = (schema.ranked(rank), map.at(place));
            if is_passed_over(field, value) {
                continue;
            }
            let step = field.written_step.as_bytes();
            match value {
                Value::Object(_) | Value::Array(_) => {
                    // Without the `{}` of a leaf.
                    self.out.extend_from_slice(&step[..step.len() - 2]);
                    self.added(Node::Field(field.shape, &field.topology), value);
                }
                _ => self.out.extend_from_slice(step),
            }
        }
    }

    /// Elements of a list, all new.
    fn elements(&mut self, node: Node<'_>, elements: Vec<(String, Option<&Value>)>) {
        for (step, value) in elements {
            self.separate();
            write::text(&mut self.out, &step);
            self.out.push(b':');
            match value {
                Some(value) => self.added(node.element(), value),
                None => self.leaf(),
            };
        }
    }

    /// The difference from the type's zero value.
    fn changed(&mut self, node: Node<'_>, old: &Value, new: &Value) -> bool {
        let begin = self.out.len();
        let form = node.form(Some(new));
        match (&form, new) {
            (Form::Map, new) => {
                let before = old.as_object().filter(|map| !map.is_empty());
                let after = new.as_object().filter(|map| !map.is_empty());
                let Some(after) = after else {
                    return before.is_none() && old != new && self.leaf();
                };
                self.out.push(b'{');
                self.entries(node, after, |set, entry| {
                    if entry.is_passed_over() {
                        return false;
                    }
                    match before.and_then(|map| map.get(entry.name)) {
                        Some(old) => set.changed(entry.node, old, entry.value),
                        None => set.added(entry.node, entry.value),
                    }
                });
                self.end(begin)
            }
            // The zero value has no elements.
            (Form::Set | Form::Keyed(_), Value::Array(list)) if !list.is_empty() => {
                let Some(elements) = elements(node, &form, list) else {
                    self.is_placeless = true;
                    return self.leaf();
                };
                self.out.push(b'{');
                self.elements(node, elements);
                self.end(begin)
            }
            _ => old != new && self.leaf(),
        }
    }

    /// Metadata, without unmanaged fields.
    fn metadata(&mut self, node: Node<'_>, old: &Value, new: &Value) -> bool {
        let Value::Object(map) = new else {
            return false;
        };
        let begin = self.out.len();
        self.out.push(b'{');
        self.entries(node, map, |set, entry| {
            let is_unmanaged = UNMANAGED.iter().any(|step| step[2..] == *entry.name);
            if is_unmanaged || entry.is_passed_over() {
                return false;
            }
            match old.get(entry.name) {
                Some(old) => set.changed(entry.node, old, entry.value),
                None => set.added(entry.node, entry.value),
            }
        });
        self.end(begin)
    }
}

/// The steps to the elements of a list, sorted, with the element of each: `None` if several
/// elements share a step, which are owned together. The result is `None` if an element has none of
/// its keys.
fn elements<'o>(
    node: Node<'_>,
    form: &Form<'_>,
    list: &'o [Value],
) -> Option<Vec<(String, Option<&'o Value>)>> {
    let mut elements = Vec::with_capacity(list.len());
    for value in list {
        elements.push((step_of(node, form, value)?, Some(value)));
    }
    elements.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    elements.dedup_by(|next, first| {
        let is_shared = next.0 == first.0;
        if is_shared {
            first.1 = None;
        }
        is_shared
    });
    Some(elements)
}
