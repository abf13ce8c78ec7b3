//! Server-side apply: a client says which fields it wants, and the object remembers whose they
//! are. Ordinary writes are remembered the same way.
//!
//! An applied field that another manager owns with another value is a conflict, unless forced; a
//! field that its last owner stops applying is removed.

mod created;
mod managers;
mod set;
mod topology;
mod undeclared;
mod walk;

pub use set::FieldSet;
pub use topology::Root;
pub use undeclared::undeclared;

use crate::json::Key;
use crate::schema;
use crate::status::Cause;
use crate::{Object, Status, Value};
use managers::{Id, Managers};
use topology::Node;

/// Fields of metadata that nobody manages.
const UNMANAGED: &[&str] = &[
    "f:name",
    "f:namespace",
    "f:creationTimestamp",
    "f:selfLink",
    "f:uid",
    "f:clusterName",
    "f:generation",
    "f:managedFields",
    "f:resourceVersion",
];
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Who writes, and what it may not change.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a> {
    /// The field manager's name.
    pub manager: &'a str,
    /// Such as `apps/v1`.
    pub api_version: &'a str,
    /// `status`, or empty.
    pub subresource: &'a str,
    /// RFC 3339, seconds.
    pub now: &'a str,
    /// Top-level fields that this way of writing leaves alone, such as `status`.
    pub reset: &'a [&'a str],
}

impl Writer<'_> {
    fn id(&self, applied: bool) -> Id {
        Id {
            manager: self.manager.to_owned(),
            applied,
            version: self.api_version.to_owned(),
            subresource: self.subresource.to_owned(),
        }
    }
}

/// The set without what nobody manages.
fn managed(mut set: FieldSet, writer: &Writer<'_>) -> FieldSet {
    set.cut(&["f:apiVersion"]);
    set.cut(&["f:kind"]);
    for name in UNMANAGED {
        set.cut(&["f:metadata", name]);
    }
    set.unmark("f:metadata");
    for name in writer.reset {
        set.cut(&[format!("f:{name}").as_str()]);
    }
    set
}

/// A copy without managedFields, which are no part of the comparison.
fn bare(object: &Object) -> Value {
    let mut copy = object.clone();
    if let Some(Value::Object(metadata)) = copy.get_mut("metadata") {
        metadata.shift_remove("managedFields");
    }
    Value::Object(copy)
}

/// What an object of the type is before anything is set in it.
fn nothing(root: Root<'_>) -> Value {
    match root {
        Root::Typed(schema) => schema
            .fields
            .iter()
            .filter_map(|f| Some((Key::fixed(f.name), f.zero()?.clone())))
            .collect::<Object>()
            .into(),
        _ => Value::Object(Object::from_iter([(
            "metadata".to_owned(),
            Value::Object(Object::new()),
        )])),
    }
}

/// Remembers an ordinary write (create when there is no live object) in the new object's
/// managedFields.
pub fn track(root: Root<'_>, live: Option<&Object>, new: &mut Object, writer: &Writer<'_>) {
    let sent = new
        .get("metadata")
        .map(|m| &m["managedFields"])
        .and_then(Value::as_array);
    // A list with one empty entry asks to forget all.
    let reset =
        sent.is_some_and(|l| l.len() == 1 && l[0].as_object().is_some_and(Object::is_empty));
    let mut managers = Managers::of(new);
    if managers.0.is_empty() && !reset {
        managers = live.map(Managers::of).unwrap_or_default();
    }
    // An object that nobody tracks is not tracked from the middle of its life on.
    if reset || (managers.0.is_empty() && live.is_some()) {
        Managers::default().store(new);
        return;
    }
    let id = writer.id(false);
    if live.is_none() && managers.0.is_empty() {
        managers::store_creator(&id, created::fields(root, new, writer), writer.now, new);
        return;
    }
    let comparison = changes(root, live, new);
    let changed = comparison.modified.with(comparison.added);
    if !managers.0.is_empty() {
        managers.take_from_others(&id, &changed);
        managers.take_from_others(&id, &comparison.removed);
    }
    let owned = managers
        .get(&id)
        .map(|e| e.fields.difference(&comparison.removed));
    let fields = owned.unwrap_or_default().with(changed);
    managers.set(&id, managed(fields, writer), writer.now);
    managers.store(new);
}

/// What a write changed, leaving managedFields aside.
fn changes(root: Root<'_>, live: Option<&Object>, new: &mut Object) -> walk::Comparison {
    // The new object becomes a value for the comparison and goes back, without being copied.
    let after = Value::Object(std::mem::take(new));
    let node = Node::root(root);
    let comparison = match live {
        Some(live) => walk::compare_objects(node, live, &after),
        None => walk::compare(node, Some(&nothing(root)), Some(&after)),
    };
    if let Value::Object(object) = after {
        *new = object;
    }
    comparison
}

/// The object after a configuration was applied to it. When nothing changes, the live object comes
/// back as it is.
pub fn apply(
    root: Root<'_>,
    live: Option<&Object>,
    config: &Object,
    writer: &Writer<'_>,
    force: bool,
) -> Result<Object, Status> {
    let has_managers = config
        .get("metadata")
        .map(|m| &m["managedFields"])
        .and_then(Value::as_array)
        .is_some_and(|l| !l.is_empty());
    if has_managers {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    match merge_and_own(root, live, config, writer, force) {
        Ok(object) => Ok(object),
        Err(conflicts) if is_upgrade(root, live, writer, &conflicts) => {
            merge_and_own(root, live, config, writer, true).map_err(|c| conflict_status(&c))
        }
        Err(conflicts) => Err(conflict_status(&conflicts)),
    }
}

type Conflicts = Vec<(Id, FieldSet)>;

fn merge_and_own(
    root: Root<'_>,
    live: Option<&Object>,
    config: &Object,
    writer: &Writer<'_>,
    force: bool,
) -> Result<Object, Conflicts> {
    let node = Node::root(root);
    let before = live.map_or_else(|| nothing(root), bare);
    let wanted = bare(config);
    let mut managers = live.map(Managers::of).unwrap_or_default();
    let id = writer.id(true);
    if let (Some(live), true) = (live, managers.0.is_empty()) {
        // Whoever wrote it before is remembered under one name.
        let first = Id {
            manager: "before-first-apply".to_owned(),
            applied: false,
            ..id.clone()
        };
        let fields = managed(walk::fields_of(node, &bare(live)), writer);
        managers.set(&first, fields, writer.now);
    }
    let merged = walk::merge(node, &before, &wanted);
    let last = managers
        .get(&id)
        .map(|e| e.fields.clone())
        .unwrap_or_default();
    let fields = managed(walk::fields_of(node, &wanted), writer);
    managers.set(&id, fields, writer.now);
    let after = prune(node, &merged, &managers, &last);
    own(node, &before, &after, &mut managers, &id, force)?;
    let Value::Object(mut object) = after else {
        return Ok(Object::new());
    };
    managers.store(&mut object);
    Ok(keep_if_same(object, live))
}

/// What the manager applied last and nobody wants any more goes.
fn prune(node: Node<'_>, merged: &Value, managers: &Managers, last: &FieldSet) -> Value {
    if last.is_empty() {
        return merged.clone();
    }
    let mut wanted = FieldSet::default();
    for entry in &managers.0 {
        wanted.union(&entry.fields);
    }
    let gone =
        walk::with_named_fields(node, last).difference(&walk::with_named_fields(node, &wanted));
    walk::remove(node, merged, &gone)
}

/// Others lose what changed; without force they would rather not.
fn own(
    node: Node<'_>,
    before: &Value,
    after: &Value,
    managers: &mut Managers,
    id: &Id,
    force: bool,
) -> Result<(), Conflicts> {
    let comparison = walk::compare(node, Some(before), Some(after));
    let mut changed = comparison.modified;
    changed.union(&comparison.added);
    if !force {
        let conflicts: Conflicts = managers
            .0
            .iter()
            .filter(|e| !e.id.is(id))
            .map(|e| (e.id.clone(), e.fields.intersection(&changed)))
            .filter(|(_, fields)| !fields.is_empty())
            .collect();
        if !conflicts.is_empty() {
            return Err(conflicts);
        }
    }
    changed.union(&comparison.removed);
    managers.take_from_others(id, &changed);
    Ok(())
}

/// An apply that changes nothing keeps the times in managedFields, too.
fn keep_if_same(object: Object, live: Option<&Object>) -> Object {
    let timeless = |object: &Object| {
        let mut managers = Managers::of(object);
        managers.0.iter_mut().for_each(|e| e.time.clear());
        managers
            .0
            .sort_by(|a, b| (&a.id.manager, a.id.applied).cmp(&(&b.id.manager, b.id.applied)));
        managers
    };
    match live {
        Some(live) if bare(live) == bare(&object) && timeless(live) == timeless(&object) => {
            live.clone()
        }
        _ => object,
    }
}

/// `kubectl apply` that moves to the server side meets only itself: fields of its last
/// client-side configuration are no conflicts.
fn is_upgrade(
    root: Root<'_>,
    live: Option<&Object>,
    writer: &Writer<'_>,
    conflicts: &Conflicts,
) -> bool {
    if writer.manager != "kubectl" {
        return false;
    }
    let annotation = live
        .and_then(|l| l.get("metadata"))
        .and_then(|m| m["annotations"][LAST_APPLIED].as_str())
        .and_then(|text| crate::json::from_str::<Value>(text).ok());
    let Some(last) = annotation else { return false };
    let mut own = walk::fields_of(Node::root(root), &last);
    own.insert([
        "f:metadata",
        "f:annotations",
        format!("f:{LAST_APPLIED}").as_str(),
    ]);
    conflicts
        .iter()
        .all(|(_, fields)| fields.difference(&own).is_empty())
}

fn conflict_status(conflicts: &Conflicts) -> Status {
    let mut causes = Vec::new();
    for (id, fields) in conflicts {
        for field in fields.paths() {
            causes.push(Cause {
                reason: "FieldManagerConflict".to_owned(),
                message: format!("conflict with {}", id.name()),
                field,
            });
        }
    }
    let message = match causes.as_slice() {
        [one] => format!(
            "Apply failed with 1 conflict: {}: {}",
            one.message, one.field
        ),
        _ => {
            let mut lines = Vec::new();
            let mut sorted: Vec<&(Id, FieldSet)> = conflicts.iter().collect();
            sorted.sort_by_key(|(id, _)| id.name());
            for (id, fields) in sorted {
                lines.push(format!("conflicts with {}:", id.name()));
                lines.extend(fields.paths().into_iter().map(|p| format!("- {p}")));
            }
            format!(
                "Apply failed with {} conflicts: {}",
                causes.len(),
                lines.join("\n")
            )
        }
    };
    Status::apply_conflict(causes, message)
}

/// The topology of a type in the schema table.
pub fn typed(name: &str) -> Option<Root<'static>> {
    schema::lookup(name).map(Root::Typed)
}

#[cfg(test)]
mod tests;
