//! Managers may use different versions of an object: the fields of each are compared in its own
//! version.

use super::managers::{Entry, Managers};
use super::set::FieldSet;
use super::topology::{Node, Root};
use super::walk::{self, Comparison};
use super::{Writer, changeable_part};
use crate::{Object, Value};

/// The versions of an object.
pub trait Versions: Send + Sync {
    /// The topology of a version; `None` if there is no such version.
    fn root(&self, api_version: &str) -> Option<Root<'_>>;

    /// Converts an object to another version.
    fn convert(&self, object: Object, api_version: &str) -> Object;
}

/// An object with a single version.
#[derive(Debug, Clone, Copy)]
pub struct OneVersion<'a> {
    pub api_version: &'a str,
    pub root: Root<'a>,
}

impl Versions for OneVersion<'_> {
    fn root(&self, api_version: &str) -> Option<Root<'_>> {
        (api_version == self.api_version).then_some(self.root)
    }

    fn convert(&self, object: Object, _: &str) -> Object {
        object
    }
}

/// The changes of a write, in every version that has managers.
pub(super) struct Differences<'a> {
    writer: &'a Writer<'a>,
    own: Comparison,
    others: Vec<(String, Comparison)>,
}

impl<'a> Differences<'a> {
    /// In the written version.
    pub(super) fn new(own: Comparison, writer: &'a Writer<'a>) -> Self {
        Self {
            writer,
            own,
            others: Vec::new(),
        }
    }

    /// In the versions of the managers.
    pub(super) fn add_versions(&mut self, managers: &Managers, before: &Value, after: &Value) {
        for entry in &managers.0 {
            let version = &entry.id.version;
            if self.in_version(version).is_some() {
                continue;
            }
            let Some(root) = self.writer.versions.root(version) else {
                continue;
            };
            let before = converted(self.writer, before, version);
            let after = converted(self.writer, after, version);
            let comparison = walk::compare(Node::root(root), Some(&before), Some(&after));
            let comparison = changeable_part(comparison, self.writer);
            self.others.push((version.clone(), comparison));
        }
    }

    pub(super) fn in_version(&self, version: &str) -> Option<&Comparison> {
        if version == self.writer.api_version {
            return Some(&self.own);
        }
        let other = self.others.iter().find(|(known, _)| known == version);
        other.map(|(_, comparison)| comparison)
    }

    pub(super) fn own(self) -> Comparison {
        self.own
    }
}

/// Converts an object to another version.
fn converted(writer: &Writer<'_>, object: &Value, version: &str) -> Value {
    match object {
        Value::Object(map) if object["apiVersion"] != *version => {
            Value::Object(writer.versions.convert(map.clone(), version))
        }
        other => other.clone(),
    }
}

/// Drops managers of versions that no longer exist, and adapts sets to the current topology.
pub(super) fn adapt_to_schema(managers: &mut Managers, writer: &Writer<'_>) {
    managers.0.retain_mut(|entry| {
        let Some(root) = writer.versions.root(&entry.id.version) else {
            return false;
        };
        if let Some(settled) = walk::settled(Node::root(root), &entry.fields) {
            entry.fields = settled;
        }
        true
    });
}

/// Removes fields that the manager applied before and no manager applies now. Decided in the
/// version of its last configuration.
pub(super) fn prune(
    merged: Value,
    managers: &Managers,
    last: &Entry,
    writer: &Writer<'_>,
) -> Value {
    let Some(root) = writer.versions.root(&last.id.version) else {
        return merged;
    };
    if last.fields.is_empty() {
        return merged;
    }
    let node = Node::root(root);
    let merged = converted(writer, &merged, &last.id.version);
    let applied = walk::with_named_fields(node, &last.fields);
    let mut left = walk::remove(node, &merged, &applied);
    for version in versions_of(managers, &last.id.version) {
        let Some(root) = writer.versions.root(version) else {
            continue;
        };
        let node = Node::root(root);
        let merged = converted(writer, &merged, version);
        let mut kept = named_fields_of(node, &converted(writer, &left, version));
        for entry in managers.0.iter().filter(|e| e.id.version == version) {
            kept.union(&walk::with_named_fields(node, &entry.fields));
        }
        let gone = named_fields_of(node, &merged).difference(&kept);
        left = walk::remove(node, &merged, &gone);
    }
    let left = converted(writer, &left, &last.id.version);
    let gone = named_fields_of(node, &merged).difference(&named_fields_of(node, &left));
    let pruned = walk::remove(node, &merged, &gone.intersection(&applied));
    converted(writer, &pruned, writer.api_version)
}

/// Every version that has managers, the given one first.
fn versions_of<'a>(managers: &'a Managers, first: &'a str) -> Vec<&'a str> {
    let mut versions = vec![first];
    for entry in &managers.0 {
        if !versions.contains(&entry.id.version.as_str()) {
            versions.push(&entry.id.version);
        }
    }
    versions
}

fn named_fields_of(node: Node<'_>, value: &Value) -> FieldSet {
    walk::with_named_fields(node, &walk::fields_of(node, value))
}
