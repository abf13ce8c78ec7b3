//! Walks over one or two values along a topology: field sets, comparison, merge, and removal.

use super::set::FieldSet;
use super::topology::{Form, Node, key_step};
use crate::{Object, Value};
use indexmap::IndexMap;
use std::collections::{HashMap, HashSet};

/// The difference of two values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    pub added: FieldSet,
    pub modified: FieldSet,
    pub removed: FieldSet,
    /// Whether an element of a list has none of its keys.
    pub placeless: bool,
}

/// The step to a field.
pub(super) fn field_step(name: &str) -> String {
    let mut step = String::with_capacity(name.len() + 2);
    step.push_str("f:");
    step.push_str(name);
    step
}

/// The step to an element of a list, if it has one.
pub(super) fn step_of(node: Node<'_>, form: &Form<'_>, value: &Value) -> Option<String> {
    match form {
        Form::Keyed(keys) => key_step(node, keys, value),
        _ => Some(format!("v:{value}")),
    }
}

/// Elements by their step.
type Groups<'v> = IndexMap<String, Vec<&'v Value>>;

/// Elements of a list grouped by their step, in the order of first occurrence. `None` if an element
/// has no step.
fn groups<'v>(node: Node<'_>, form: &Form<'_>, list: &'v [Value]) -> Option<Groups<'v>> {
    let mut out: Groups<'v> = IndexMap::with_capacity(list.len());
    for value in list {
        let step = step_of(node, form, value)?;
        out.entry(step).or_default().push(value);
    }
    Some(out)
}

fn list_of(value: Option<&Value>) -> &[Value] {
    value
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// The field set of a value.
pub(super) fn fields_of(node: Node<'_>, value: &Value) -> FieldSet {
    let mut set = FieldSet::default();
    match (node.form(Some(value)), value) {
        (Form::Map, Value::Object(map)) => {
            for (name, below) in map {
                let mut child = fields_of(node.child(name), below);
                let empty = below.is_null() || below.as_object().is_some_and(Object::is_empty);
                if empty || !node.declares(name) {
                    child.mark();
                }
                set.attach(field_step(name), child);
            }
        }
        (form @ (Form::Set | Form::Keyed(_)), Value::Array(list)) => {
            let Some(groups) = groups(node, &form, list) else {
                set.mark();
                return set;
            };
            for (step, values) in groups {
                let mut child = match (&form, &values[..]) {
                    (Form::Keyed(_), [one]) => fields_of(node.element(), one),
                    // Elements with the same step are owned together.
                    _ => FieldSet::default(),
                };
                child.mark();
                set.attach(step, child);
            }
        }
        (Form::Map, Value::Null) => {}
        _ => set.mark(),
    }
    set
}

/// The difference of two values, as sets relative to their position.
pub(super) fn compare(node: Node<'_>, old: Option<&Value>, new: Option<&Value>) -> Comparison {
    let form = node.form(new.or(old));
    let mut out = match &form {
        Form::Map => compare_maps(node, old, new),
        Form::Set | Form::Keyed(_) => compare_lists(node, &form, old, new),
        Form::Leaf => leaf(old, new),
    };
    // Where any type is allowed, a map that became something else loses its entries, and a value
    // that became a map is modified.
    if let (Form::Map, Some(before), Some(Value::Object(_))) = (&form, old, new)
        && !before.is_null()
        && node.form(old) == Form::Leaf
    {
        out.modified.mark();
    }
    if let (Form::Leaf, Some(Value::Object(gone)), Some(_)) = (&form, old, new)
        && node.form(old) == Form::Map
    {
        let entries = compare_entries(node, gone, &Object::new());
        out.removed = out.removed.with(entries.removed);
    }
    out
}

/// The difference of two objects.
pub(super) fn compare_objects(node: Node<'_>, old: &Object, new: &Value) -> Comparison {
    let empty = Object::new();
    compare_entries(node, old, new.as_object().unwrap_or(&empty))
}

fn leaf(old: Option<&Value>, new: Option<&Value>) -> Comparison {
    let mut out = Comparison::default();
    match (old, new) {
        (None, Some(_)) => out.added.mark(),
        (Some(_), None) => out.removed.mark(),
        (Some(old), Some(new)) if old != new => out.modified.mark(),
        _ => {}
    }
    out
}

fn compare_maps(node: Node<'_>, old: Option<&Value>, new: Option<&Value>) -> Comparison {
    let empty = Object::new();
    let before = old.and_then(Value::as_object).unwrap_or(&empty);
    let after = new.and_then(Value::as_object).unwrap_or(&empty);
    if before.is_empty() && after.is_empty() {
        return leaf(old, new);
    }
    compare_entries(node, before, after)
}

fn compare_entries(node: Node<'_>, before: &Object, after: &Object) -> Comparison {
    let mut out = Comparison::default();
    for (name, value) in before {
        let now = after.get(name).filter(|now| !node.passes_over(name, now));
        let inside = item(node.child(name), Some(value), now);
        out.attach(|| field_step(name), inside);
    }
    for (name, value) in after {
        if !before.contains_key(name) && !node.passes_over(name, value) {
            let inside = item(node.child(name), None, Some(value));
            out.attach(|| field_step(name), inside);
        }
    }
    out
}

fn compare_lists(
    node: Node<'_>,
    form: &Form<'_>,
    old: Option<&Value>,
    new: Option<&Value>,
) -> Comparison {
    if old == new {
        return Comparison::default();
    }
    let (old_list, new_list) = (list_of(old), list_of(new));
    if old_list.is_empty() && new_list.is_empty() {
        return leaf(old, new);
    }
    let both = (groups(node, form, old_list), groups(node, form, new_list));
    let (Some(before), Some(after)) = both else {
        let placeless = true;
        return Comparison {
            placeless,
            ..leaf(old, new)
        };
    };
    let mut out = Comparison::default();
    for (step, values) in &before {
        let others = after.get(step).map(Vec::as_slice);
        let inside = elements_of_one_step(node.element(), values, others.unwrap_or_default());
        out.attach(|| step.clone(), inside);
    }
    for (step, values) in after {
        if !before.contains_key(&step) {
            out.attach(|| step, elements_of_one_step(node.element(), &[], &values));
        }
    }
    out
}

/// Elements with the same step: one against one is compared inside, several are compared as a
/// whole.
fn elements_of_one_step(node: Node<'_>, old: &[&Value], new: &[&Value]) -> Comparison {
    let (before, after) = (old.first().copied(), new.first().copied());
    match (old.len(), new.len()) {
        (0 | 1, 0 | 1) => item(node, before, after),
        (0 | 1, _) => {
            let mut out = match before {
                Some(_) => item(node, before, None),
                None => Comparison::default(),
            };
            out.added.mark();
            out
        }
        (_, 0 | 1) => {
            let mut out = match after {
                Some(_) => item(node, None, after),
                None => Comparison::default(),
            };
            out.removed.mark();
            out
        }
        _ => {
            let mut out = Comparison::default();
            if old != new {
                out.modified.mark();
            }
            out
        }
    }
}

/// Compares one entry or element, which itself counts when it is added or removed.
fn item(node: Node<'_>, old: Option<&Value>, new: Option<&Value>) -> Comparison {
    let mut out = compare(node, old, new);
    match (old, new) {
        (None, Some(_)) => out.added.mark(),
        (Some(_), None) => out.removed.mark(),
        _ => {}
    }
    out
}

impl Comparison {
    /// The part of a manager's fields that was set.
    pub(super) fn set_in(&self, fields: &FieldSet) -> FieldSet {
        let modified = fields.intersection(&self.modified);
        modified.with(fields.intersection(&self.added))
    }

    /// Removes changed fields from a set.
    pub(super) fn take_from(&self, fields: &mut FieldSet) {
        for changed in [&self.modified, &self.added, &self.removed] {
            if !changed.is_blank() {
                *fields = fields.difference(changed);
            }
        }
    }

    /// Puts a comparison below a step; most are empty or have one kind of change.
    fn attach(&mut self, step: impl FnOnce() -> String, inside: Comparison) {
        let Comparison {
            added,
            modified,
            removed,
            placeless,
        } = inside;
        self.placeless |= placeless;
        match (added.is_blank(), modified.is_blank(), removed.is_blank()) {
            (true, true, true) => {}
            (false, true, true) => self.added.attach(step(), added),
            (true, false, true) => self.modified.attach(step(), modified),
            (true, true, false) => self.removed.attach(step(), removed),
            _ => {
                let step = step();
                self.added.attach(step.clone(), added);
                self.modified.attach(step.clone(), modified);
                self.removed.attach(step, removed);
            }
        }
    }
}

/// The live value with a configuration merged in. Null for a granular map or list removes nothing.
pub(super) fn merge(node: Node<'_>, live: &Value, config: &Value) -> Value {
    let form = node.form(Some(config));
    match &form {
        Form::Map => match (live.as_object(), config.as_object()) {
            (Some(live), Some(config)) => merge_entries(node, live, config),
            (Some(live), None) if !live.is_empty() => Value::Object(live.clone()),
            _ => config.clone(),
        },
        Form::Set | Form::Keyed(_) => match (live.as_array(), config.as_array()) {
            (Some(live), Some(config)) => merge_lists(node, &form, live, config),
            (Some(live), None) if !live.is_empty() => Value::Array(live.clone()),
            _ => config.clone(),
        },
        Form::Leaf => config.clone(),
    }
}

fn merge_entries(node: Node<'_>, live: &Object, config: &Object) -> Value {
    let mut out = live.clone();
    for (name, value) in config {
        let merged = match live.get(name) {
            Some(old) => merge(node.child(name), old, value),
            None => value.clone(),
        };
        out.insert(name.clone(), merged);
    }
    Value::Object(out)
}

/// The step to each element; `None` if one has none.
fn steps(node: Node<'_>, form: &Form<'_>, list: &[Value]) -> Option<Vec<String>> {
    let step = |value: &Value| match form {
        Form::Keyed(keys) => key_step(node, keys, value),
        _ => Some(format!("v:{value}")),
    };
    list.iter().map(step).collect()
}

/// Elements of the configuration keep its order; those only in the live list stay before the next
/// common element.
fn merge_lists(node: Node<'_>, form: &Form<'_>, live: &[Value], config: &[Value]) -> Value {
    let both = (steps(node, form, live), steps(node, form, config));
    let (Some(live_steps), Some(config_steps)) = both else {
        return Value::Array(config.to_vec());
    };
    let mut in_live: HashMap<&str, Option<&Value>> = HashMap::with_capacity(live.len());
    for (step, value) in live_steps.iter().zip(live) {
        // A duplicate element is replaced, not merged.
        let known = in_live.contains_key(step.as_str());
        in_live.insert(step, (!known).then_some(value));
    }
    let in_config: HashSet<&str> = config_steps.iter().map(String::as_str).collect();
    let join = |at: usize| match in_live.get(config_steps[at].as_str()) {
        Some(Some(old)) => merge(node.element(), old, &config[at]),
        _ => config[at].clone(),
    };
    let mut shared = config_steps
        .iter()
        .filter(|step| in_live.contains_key(step.as_str()));
    let mut next = shared.next();
    let mut taken: HashSet<&str> = HashSet::with_capacity(config.len());
    let mut out = Vec::with_capacity(live.len() + config.len());
    let (mut l, mut c) = (0, 0);
    while l < live.len() || c < config.len() {
        let from_live = live_steps.get(l);
        if let (Some(step), Some(wanted)) = (from_live, config_steps.get(c)) {
            if step == wanted {
                taken.insert(step);
                out.push(join(c));
                (l, c) = (l + 1, c + 1);
                next = shared.next();
                continue;
            }
            // In both lists, and not next in the configuration.
            if in_config.contains(step.as_str()) && next.is_some_and(|next| next != step) {
                l += 1;
                continue;
            }
        }
        if let Some(step) = from_live {
            if !in_config.contains(step.as_str()) {
                out.push(live[l].clone());
                l += 1;
                continue;
            }
            l += usize::from(taken.contains(step.as_str()));
        }
        if let Some(step) = config_steps.get(c) {
            taken.insert(step);
            out.push(join(c));
            c += 1;
            if next == Some(step) {
                next = shared.next();
            }
        }
    }
    Value::Array(out)
}

/// The value without the members of a non-empty set; null if nothing remains.
pub(super) fn remove(node: Node<'_>, value: &Value, set: &FieldSet) -> Value {
    let form = node.form(Some(value));
    match (&form, value) {
        (Form::Map, Value::Object(map)) => {
            let mut out = Object::with_capacity(map.len());
            for (name, below) in map {
                match set.below(&field_step(name)) {
                    Some(step) if step.is_member() => {}
                    Some(step) if !step.is_empty() => {
                        out.insert(name.clone(), remove(node.child(name), below, step));
                    }
                    _ => {
                        out.insert(name.clone(), below.clone());
                    }
                }
            }
            (!out.is_empty()).then_some(Value::Object(out))
        }
        (Form::Set | Form::Keyed(_), Value::Array(list)) => {
            let Some(steps) = steps(node, &form, list) else {
                return value.clone();
            };
            let kept = steps.iter().zip(list);
            let kept = kept.filter_map(|(step, below)| match set.below(step) {
                Some(step) if step.is_member() => None,
                Some(step) if !step.is_empty() => {
                    let left = remove(node.element(), below, step);
                    Some(with_keys(&form, left, below))
                }
                _ => Some(below.clone()),
            });
            let kept: Vec<Value> = kept.collect();
            (!kept.is_empty()).then_some(Value::Array(kept))
        }
        // Members within an atomic value.
        (_, Value::Object(_) | Value::Array(_)) => None,
        _ => Some(value.clone()),
    }
    .unwrap_or_default()
}

/// What remains of an element, with its keys as long as it stays.
fn with_keys(form: &Form<'_>, left: Value, element: &Value) -> Value {
    let Form::Keyed(keys) = form else {
        return left;
    };
    let mut left = match left {
        Value::Object(left) => left,
        _ => Object::new(),
    };
    for key in keys.iter() {
        if let Some(value) = element.get(*key).filter(|_| !left.contains_key(key)) {
            left.insert((*key).to_owned(), value.clone());
        }
    }
    Value::Object(left)
}

/// A set adapted to the topology: of an atomic value, no part is owned separately. `None` if
/// unchanged.
pub(super) fn settled(node: Node<'_>, set: &FieldSet) -> Option<FieldSet> {
    let mut out: Option<FieldSet> = None;
    for (step, below) in set.entries() {
        let child = match step.strip_prefix("f:") {
            Some(name) => node.child(name),
            None => node.element(),
        };
        let new = if child.is_whole() && !below.is_leaf() {
            Some(FieldSet::leaf())
        } else if below.is_leaf() {
            None
        } else {
            settled(child, below)
        };
        if let Some(new) = new {
            out.get_or_insert_with(|| set.clone())
                .attach(step.to_owned(), new);
        }
    }
    out
}

/// A set in which the declared fields that lead to members are members, too.
pub(super) fn with_named_fields(node: Node<'_>, set: &FieldSet) -> FieldSet {
    let mut out = set.clone();
    out.close(
        &mut |path| {
            let Some((last, above)) = path.split_last() else {
                return false;
            };
            let mut at = node;
            for step in above {
                at = match step.strip_prefix("f:") {
                    Some(name) => at.child(name),
                    None => at.element(),
                };
            }
            last.strip_prefix("f:")
                .is_some_and(|name| at.declares(name))
        },
        &mut Vec::new(),
    );
    out
}
