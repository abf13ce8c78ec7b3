//! Sets of field paths, in the form of `managedFields` (FieldsV1).
//!
//! A step of a path is text: `f:name` for a field or map entry, `k:{"name":"x"}` for an element of
//! a keyed list, `v:"x"` for an element of a set.

use crate::{Object, Value};
use std::collections::BTreeMap;

/// A tree of steps; a node is a member of the set or only leads to members.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    member: bool,
    below: BTreeMap<String, FieldSet>,
}

impl FieldSet {
    /// From the JSON of a managedFields entry; anything but an object is an empty set.
    pub fn from_json(value: &Value) -> Self {
        let mut set = Self::node(value);
        // An empty set is serialized as an empty object, too.
        set.member = false;
        set
    }

    /// Whether every step is valid.
    pub(super) fn is_readable(value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Object(map) => map.iter().all(|(step, below)| {
                let known =
                    step == "." || ["f:", "k:", "v:", "i:"].iter().any(|p| step.starts_with(p));
                known && below.is_object() && Self::is_readable(below)
            }),
            _ => false,
        }
    }

    fn node(value: &Value) -> Self {
        let Value::Object(map) = value else {
            return Self::default();
        };
        let mut set = Self {
            member: map.is_empty(),
            below: BTreeMap::new(),
        };
        for (step, below) in map {
            if step == "." {
                set.member = true;
            } else {
                set.below.insert(step.to_string(), Self::node(below));
            }
        }
        set
    }

    /// As the JSON of a managedFields entry.
    pub fn to_json(&self) -> Value {
        let mut map = Object::with_capacity(self.below.len() + 1);
        if self.member && !self.below.is_empty() {
            map.insert(".", Value::Object(Object::new()));
        }
        for (step, below) in &self.below {
            map.insert(step.clone(), below.to_json());
        }
        Value::Object(map)
    }

    /// As [`FieldSet::to_json`], consuming the set.
    pub(super) fn into_json(self) -> Value {
        // A leaf needs no allocation.
        let mut map = match self.below.len() {
            0 => Object::new(),
            count => Object::with_capacity(count + usize::from(self.member)),
        };
        if self.member && !self.below.is_empty() {
            map.insert(".", Value::Object(Object::new()));
        }
        for (step, below) in self.below {
            map.insert(step, below.into_json());
        }
        Value::Object(map)
    }

    /// Whether the set has no path.
    pub fn is_empty(&self) -> bool {
        !self.member && self.below.values().all(Self::is_empty)
    }

    /// Whether this node itself is in the set.
    pub fn is_member(&self) -> bool {
        self.member
    }

    /// The subset below a step.
    pub fn below(&self, step: &str) -> Option<&Self> {
        self.below.get(step)
    }

    /// A set of only this node.
    pub(super) fn leaf() -> Self {
        Self {
            member: true,
            below: BTreeMap::new(),
        }
    }

    /// Whether it has only this node.
    pub(super) fn is_leaf(&self) -> bool {
        self.member && self.below.is_empty()
    }

    /// The next steps, with the subset below each.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, &Self)> {
        self.below
            .iter()
            .map(|(step, below)| (step.as_str(), below))
    }

    /// Whether a path is in the set.
    pub(super) fn has(&self, path: &[&str]) -> bool {
        let node = path.iter().try_fold(self, |node, step| node.below(step));
        node.is_some_and(Self::is_member)
    }

    /// Adds this node to the set.
    pub(super) fn mark(&mut self) {
        self.member = true;
    }

    /// Whether there is not even a node below; faster than [`FieldSet::is_empty`].
    pub(super) fn is_blank(&self) -> bool {
        !self.member && self.below.is_empty()
    }

    /// Puts a set below a step; an empty one is not added.
    pub(super) fn attach(&mut self, step: String, set: Self) {
        if !set.is_blank() {
            self.below.insert(step, set);
        }
    }

    /// Removes a node and everything below it.
    pub(super) fn cut(&mut self, path: &[&str]) {
        let Some((first, rest)) = path.split_first() else {
            return;
        };
        if rest.is_empty() {
            self.below.remove(*first);
        } else if let Some(below) = self.below.get_mut(*first) {
            below.cut(rest);
            if below.is_blank() {
                self.below.remove(*first);
            }
        }
    }

    /// Removes only the node itself.
    pub(super) fn unmark(&mut self, step: &str) {
        if let Some(below) = self.below.get_mut(step) {
            below.member = false;
            if below.is_blank() {
                self.below.remove(step);
            }
        }
    }

    /// Adds a path.
    pub fn insert<'a>(&mut self, path: impl IntoIterator<Item = &'a str>) {
        let mut node = self;
        for step in path {
            node = node.below.entry(step.to_owned()).or_default();
        }
        node.member = true;
    }

    /// Adds all paths of another set.
    pub fn union(&mut self, other: &Self) {
        self.member |= other.member;
        for (step, below) in &other.below {
            match self.below.get_mut(step) {
                Some(mine) => mine.union(below),
                None => {
                    self.below.insert(step.clone(), below.clone());
                }
            }
        }
    }

    /// As [`FieldSet::union`], consuming the other set.
    #[must_use]
    pub(super) fn with(mut self, other: Self) -> Self {
        if self.is_blank() {
            return other;
        }
        self.member |= other.member;
        for (step, below) in other.below {
            match self.below.remove(&step) {
                Some(mine) => self.below.insert(step, mine.with(below)),
                None => self.below.insert(step, below),
            };
        }
        self
    }

    /// Paths in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let below = self.below.iter().filter_map(|(step, mine)| {
            let both = mine.intersection(other.below.get(step)?);
            (!both.is_empty()).then(|| (step.clone(), both))
        });
        Self {
            member: self.member && other.member,
            below: below.collect(),
        }
    }

    /// Paths in this set and not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let below = self.below.iter().filter_map(|(step, mine)| {
            let rest = match other.below.get(step) {
                Some(theirs) => mine.difference(theirs),
                None => mine.clone(),
            };
            (!rest.is_empty()).then(|| (step.clone(), rest))
        });
        Self {
            member: self.member && !other.member,
            below: below.collect(),
        }
    }

    /// Paths in this set that are neither in the other nor below one of its paths.
    #[must_use]
    pub fn without_subtrees(&self, other: &Self) -> Self {
        if other.member {
            return Self::default();
        }
        let below = self.below.iter().filter_map(|(step, mine)| {
            let rest = match other.below.get(step) {
                Some(theirs) => mine.without_subtrees(theirs),
                None => mine.clone(),
            };
            (!rest.is_empty()).then(|| (step.clone(), rest))
        });
        Self {
            member: self.member,
            below: below.collect(),
        }
    }

    /// Makes inner nodes that are struct fields members; `is_named` decides which are.
    pub(super) fn close(
        &mut self,
        is_named: &mut dyn FnMut(&[String]) -> bool,
        path: &mut Vec<String>,
    ) {
        for (step, below) in &mut self.below {
            path.push(step.clone());
            if !below.below.is_empty() && !below.member && is_named(path) {
                below.member = true;
            }
            below.close(is_named, path);
            path.pop();
        }
    }

    /// Every path in readable form: `.spec.containers[name="c"].image`.
    pub fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.collect(&mut String::new(), &mut out);
        out
    }

    /// The members of a level come before those below them.
    fn collect(&self, path: &mut String, out: &mut Vec<String>) {
        let length = path.len();
        for (step, _) in self.below.iter().filter(|(_, below)| below.member) {
            out.push(format!("{path}{}", readable(step)));
        }
        for (step, below) in &self.below {
            path.push_str(&readable(step));
            below.collect(path, out);
            path.truncate(length);
        }
    }
}

/// A step of a path in readable form.
pub(super) fn readable(step: &str) -> String {
    match step.split_at_checked(2) {
        Some(("f:", name)) => format!(".{name}"),
        Some(("k:", key)) => match crate::json::from_str::<Object>(key) {
            Ok(fields) => {
                let pairs = fields.iter().map(|(k, v)| format!("{k}={}", shown(v)));
                format!("[{}]", pairs.collect::<Vec<_>>().join(","))
            }
            Err(_) => format!("[{key}]"),
        },
        Some(("v:", value)) => format!("[={value}]"),
        Some(("i:", index)) => format!("[{index}]"),
        _ => format!("[{step}]"),
    }
}

/// A key's value; keys should be scalars.
fn shown(value: &Value) -> String {
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| format!("{key}={}", shown(value)))
            .collect(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    #[test]
    fn sets_read_and_write_their_json() {
        let json = json!({"f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:image": {}}}}});
        let set = FieldSet::from_json(&json);
        assert_eq!(set.to_json(), json);
        assert_eq!(
            set.paths(),
            [
                ".metadata.labels",
                ".metadata.labels.app",
                ".spec.containers[name=\"c\"]",
                ".spec.containers[name=\"c\"].image"
            ]
        );
        assert!(FieldSet::from_json(&json!({})).is_empty());
    }

    #[test]
    fn the_algebra_of_sets_holds() {
        let a = FieldSet::from_json(&json!({"f:a": {"f:x": {}, "f:y": {}}, "f:b": {}}));
        let b = FieldSet::from_json(&json!({"f:a": {"f:x": {}}, "f:c": {}}));
        assert_eq!(a.intersection(&b).to_json(), json!({"f:a": {"f:x": {}}}));
        assert_eq!(
            a.difference(&b).to_json(),
            json!({"f:a": {"f:y": {}}, "f:b": {}})
        );
        let mut both = a.difference(&b);
        both.union(&a.intersection(&b));
        assert_eq!(both, a);
        let whole = FieldSet::from_json(&json!({"f:a": {}}));
        assert_eq!(a.without_subtrees(&whole).to_json(), json!({"f:b": {}}));
    }
}
