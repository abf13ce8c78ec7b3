//! Server-side apply: a client sends the fields it wants, and the object records their manager.
//! Other writes are recorded the same way.
//!
//! An applied field that another manager owns with another value is a conflict, unless forced; a
//! field that its last applier stops applying is removed.

mod created;
mod managers;
mod merged;
mod misfits;
pub mod scale;
mod set;
mod topology;
mod versions;
mod walk;

pub use merged::{Unmergeable, merged};
pub use misfits::misfits;
pub use set::FieldSet;
pub use topology::Root;
pub use versions::{OneVersion, Versions};

use crate::json::Key;
use crate::schema;
use crate::status::Cause;
use crate::{Object, Status, Value};
use managers::{Id, Managers};
use topology::Node;
use versions::Differences;

/// Fields of metadata that have no manager.
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
/// The one manager known to use client-side apply.
const KUBECTL: &str = "kubectl";
/// Maximum total size of annotations.
const MAX_ANNOTATIONS: usize = 256 * 1024;
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The manager of a write, and what it may not change.
#[derive(Clone, Copy)]
pub struct Writer<'a> {
    /// The field manager's name.
    pub manager: &'a str,
    /// Such as `apps/v1`.
    pub api_version: &'a str,
    /// `status`, or empty.
    pub subresource: &'a str,
    /// RFC 3339, seconds.
    pub now: &'a str,
    /// Paths that this kind of write cannot change, such as `status`.
    pub reset: &'a [&'a [&'a str]],
    /// The versions of the object, including the written one.
    pub versions: &'a dyn Versions,
}

impl<'a> Writer<'a> {
    /// The topology of the written version.
    fn root(&self) -> Root<'a> {
        let known = self.versions.root(self.api_version);
        known.unwrap_or(Root::Unknown)
    }

    fn id(&self, applied: bool) -> Id {
        Id {
            manager: self.manager.to_owned(),
            applied,
            version: self.api_version.to_owned(),
            subresource: self.subresource.to_owned(),
        }
    }
}

/// The set without unmanaged fields.
fn managed(mut set: FieldSet) -> FieldSet {
    set.cut(&["f:apiVersion"]);
    set.cut(&["f:kind"]);
    for name in UNMANAGED {
        set.cut(&["f:metadata", name]);
    }
    set.unmark("f:metadata");
    set
}

/// The set without the fields that this kind of write cannot change.
fn changeable(mut set: FieldSet, writer: &Writer<'_>) -> FieldSet {
    for path in writer.reset {
        let steps: Vec<String> = path.iter().map(|name| format!("f:{name}")).collect();
        set.cut(&steps.iter().map(String::as_str).collect::<Vec<_>>());
    }
    set
}

/// The comparison without the fields that this kind of write cannot change.
fn changeable_part(comparison: walk::Comparison, writer: &Writer<'_>) -> walk::Comparison {
    if writer.reset.is_empty() {
        return comparison;
    }
    walk::Comparison {
        added: changeable(comparison.added, writer),
        modified: changeable(comparison.modified, writer),
        removed: changeable(comparison.removed, writer),
        placeless: comparison.placeless,
    }
}

/// A copy without managedFields, which are not compared.
fn bare(object: &Object) -> Value {
    let mut copy = object.clone();
    if let Some(Value::Object(metadata)) = copy.get_mut("metadata") {
        metadata.shift_remove("managedFields");
    }
    Value::Object(copy)
}

/// The empty object of the type.
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

/// Records a write other than apply (a create if there is no live object) in the new object's
/// managedFields. Other managers lose the fields that this write changes; the time of an entry is
/// that of its last write that set something.
pub fn track(live: Option<&Object>, new: &mut Object, writer: &Writer<'_>) {
    let root = writer.root();
    let mut managers = standing(root, live, new, writer);
    // An object without managedFields does not get any by an update.
    if managers.0.is_empty() && live.is_some() {
        managers.store(new);
        return;
    }
    let id = writer.id(false);
    if live.is_none() && managers.0.is_empty() {
        let fields = created::fields(root, new, writer);
        // It was just serialized, so it parses.
        let fields = fields.map(|set| crate::json::from_slice(&set).unwrap_or_default());
        managers::store_creator(&id, fields, writer.now, new);
        return;
    }
    versions::adapt_to_schema(&mut managers, writer);
    let comparison = changeable_part(changes(root, live, new), writer);
    if comparison.placeless {
        // Ownership cannot be determined: no manager is recorded.
        Managers::default().store(new);
        return;
    }
    let mut differences = Differences::new(comparison, writer);
    if managers.0.iter().any(|e| e.id.version != id.version) {
        // Compared in other versions without managedFields.
        let before = live.map_or_else(|| nothing(root), bare);
        differences.add_versions(&managers, &before, &bare(new));
    }
    for entry in &mut managers.0 {
        if let Some(comparison) = differences.in_version(&entry.id.version) {
            comparison.take_from(&mut entry.fields);
        }
    }
    managers.0.retain(|entry| !entry.fields.is_empty());
    let comparison = differences.own();
    let changed = comparison.modified.with(comparison.added);
    managers.gain(&id, managed(changed), writer.now);
    managers.store(new);
}

/// As [`track`] for a new object, but the creator's field set is not put into the object: it is
/// returned as JSON, for [`crate::encode::new_object`], and the object holds an empty one.
pub fn track_new(new: &mut Object, writer: &Writer<'_>) -> Option<Vec<u8>> {
    let root = writer.root();
    if !standing(root, None, new, writer).0.is_empty() {
        track(None, new, writer);
        return None;
    }
    let fields = created::fields(root, new, writer);
    let none = || Value::Object(Object::new());
    let stands = fields.is_some().then(none);
    managers::store_creator(&writer.id(false), stands, writer.now, new);
    fields
}

/// The managers before a write: those that the client sent, if valid and allowed, else those of the
/// live object.
fn standing(root: Root<'_>, live: Option<&Object>, new: &Object, writer: &Writer<'_>) -> Managers {
    let of_live = || {
        live.and_then(|live| Managers::read(managers::list_of(live)))
            .unwrap_or_default()
    };
    if !writer.subresource.is_empty() {
        return of_live();
    }
    let sent = managers::list_of(new);
    let custom = !matches!(root, Root::Typed(_));
    if sent.is_some_and(|list| asks_to_forget(list, custom)) {
        return Managers::default();
    }
    Managers::read(sent)
        .filter(|managers| !managers.0.is_empty())
        .unwrap_or_else(of_live)
}

/// Whether a client resets managedFields: by an empty list, which custom resources cannot have, or
/// by one empty entry.
fn asks_to_forget(list: &[Value], custom: bool) -> bool {
    match list {
        [] => !custom,
        [one] => one.as_object().is_some_and(Object::is_empty),
        _ => false,
    }
}

/// The changes of a write, without managedFields.
fn changes(root: Root<'_>, live: Option<&Object>, new: &mut Object) -> walk::Comparison {
    // The new object is moved into a value for the comparison and back, without a copy.
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

/// Rejects a configuration with managedFields.
pub fn check(config: &Object) -> Result<(), Status> {
    match managers::list_of(config) {
        Some(_) => Err(Status::bad_request("metadata.managedFields must be nil")),
        None => Ok(()),
    }
}

/// The object after a configuration was applied to it.
pub fn apply(
    live: Option<&Object>,
    config: &Object,
    writer: &Writer<'_>,
    force: bool,
) -> Result<Object, Status> {
    let merged = match merge_and_own(live, config, writer, force) {
        Ok(object) => Ok(object),
        Err(conflicts) => match beyond_last_applied(live, writer, conflicts) {
            left if left.is_empty() => merge_and_own(live, config, writer, true),
            left => Err(left),
        },
    };
    let mut object = merged.map_err(|conflicts| conflict_status(&conflicts))?;
    if writer.manager == KUBECTL {
        renew_last_applied(&mut object, config);
    }
    Ok(object)
}

type Conflicts = Vec<(Id, FieldSet)>;

fn merge_and_own(
    live: Option<&Object>,
    config: &Object,
    writer: &Writer<'_>,
    force: bool,
) -> Result<Object, Conflicts> {
    let root = writer.root();
    let node = Node::root(root);
    let before = live.map_or_else(|| nothing(root), bare);
    let wanted = bare(config);
    let mut managers = live.map(Managers::from_object).unwrap_or_default();
    let id = writer.id(true);
    if live.is_some() && managers.0.is_empty() {
        // All previous writers become one manager.
        let first = Id {
            manager: "before-first-apply".to_owned(),
            applied: false,
            ..id.clone()
        };
        let all = walk::compare(node, Some(&nothing(root)), Some(&before));
        let all = changeable_part(all, writer);
        managers.gain(&first, managed(all.modified.with(all.added)), writer.now);
    }
    versions::adapt_to_schema(&mut managers, writer);
    let merged = walk::merge(node, &before, &wanted);
    let last = managers.get(&id).cloned();
    // Unmanaged fields count as applied until pruning is decided.
    let fields = changeable(walk::fields_of(node, &wanted), writer);
    managers.put(&id, fields.clone());
    let after = match last {
        Some(last) => versions::prune(merged, &managers, &last, writer),
        None => merged,
    };
    own(&before, &after, &mut managers, writer, force)?;
    managers.put(&id, managed(fields));
    managers.0.retain(|entry| !entry.fields.is_empty());
    // An apply that changes no value keeps its time.
    if after != before {
        managers.touch(&id, writer.now);
    }
    let Value::Object(mut object) = after else {
        return Ok(Object::new());
    };
    managers.store(&mut object);
    Ok(object)
}

/// Other managers lose changed fields; without force that is a conflict.
fn own(
    before: &Value,
    after: &Value,
    managers: &mut Managers,
    writer: &Writer<'_>,
    force: bool,
) -> Result<(), Conflicts> {
    let id = writer.id(true);
    let node = Node::root(writer.root());
    let comparison = changeable_part(walk::compare(node, Some(before), Some(after)), writer);
    let mut differences = Differences::new(comparison, writer);
    differences.add_versions(managers, before, after);
    // Managers of a version that no longer exists are dropped.
    managers
        .0
        .retain(|entry| differences.in_version(&entry.id.version).is_some());
    let is_other = |entry: &managers::Entry| !entry.id.is(&id);
    if !force {
        let others = managers.0.iter().filter(|entry| is_other(entry));
        let conflicts = others.filter_map(|entry| {
            let comparison = differences.in_version(&entry.id.version)?;
            let fields = comparison.set_in(&entry.fields);
            (!fields.is_empty()).then(|| (entry.id.clone(), fields))
        });
        let conflicts: Conflicts = conflicts.collect();
        if !conflicts.is_empty() {
            return Err(conflicts);
        }
    }
    for entry in managers.0.iter_mut().filter(|entry| is_other(entry)) {
        if let Some(comparison) = differences.in_version(&entry.id.version) {
            comparison.take_from(&mut entry.fields);
        }
    }
    managers.0.retain(|entry| !entry.fields.is_empty());
    Ok(())
}

/// A write that changes only times in managedFields keeps the old times.
pub fn keep_times(object: &mut Object, old: &Object) {
    if !only_times_differ(object, old) {
        return;
    }
    let kept = old.get("metadata").and_then(|m| m.get("managedFields"));
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    if let (Some(kept), Some(metadata)) = (kept, metadata) {
        metadata.insert("managedFields".to_owned(), kept.clone());
    }
}

fn only_times_differ(object: &Object, old: &Object) -> bool {
    let (Some(new_list), Some(old_list)) = (managers::list_of(object), managers::list_of(old))
    else {
        return false;
    };
    let pairs = || new_list.iter().zip(old_list);
    let same_but = |a: &Value, b: &Value, ignored: &[&str]| match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let counted = |o: &Object| o.keys().filter(|k| !ignored.contains(&k.as_str())).count();
            let same =
                |(k, v): (&Key, &Value)| ignored.contains(&k.as_str()) || b.get(k) == Some(v);
            counted(a) == counted(b) && a.iter().all(same)
        }
        _ => a == b,
    };
    new_list.len() == old_list.len()
        && pairs().any(|(a, b)| a["time"] != b["time"])
        && pairs().all(|(a, b)| same_but(a, b, &["time"]))
        && object.len() == old.len()
        && object.iter().all(|(key, value)| match old.get(key) {
            Some(before) if key == "metadata" => {
                same_but(value, before, &["managedFields", "resourceVersion"])
            }
            before => before == Some(value),
        })
}

/// When `kubectl apply` migrates to server-side apply, fields of its last client-side configuration
/// that still have the applied values are no conflicts.
fn beyond_last_applied(
    live: Option<&Object>,
    writer: &Writer<'_>,
    conflicts: Conflicts,
) -> Conflicts {
    let annotation = live
        .and_then(last_applied)
        .filter(|_| writer.manager == KUBECTL)
        .and_then(|text| crate::json::from_str::<Value>(text).ok())
        .filter(|last| last["apiVersion"] == writer.api_version);
    let (Some(last), Some(live)) = (annotation, live) else {
        return conflicts;
    };
    let node = Node::root(writer.root());
    let differing = walk::compare(node, Some(&last), Some(&bare(live)));
    let own = walk::fields_of(node, &last)
        .difference(&differing.modified)
        .difference(&differing.added)
        .difference(&differing.removed);
    let left = conflicts
        .into_iter()
        .map(|(id, fields)| (id, fields.difference(&own)));
    left.filter(|(_, fields)| !fields.is_empty()).collect()
}

/// The last-applied annotation of client-side `kubectl apply`.
fn last_applied(object: &Object) -> Option<&str> {
    let metadata = object.get("metadata")?;
    metadata["annotations"][LAST_APPLIED]
        .as_str()
        .filter(|text| !text.is_empty())
}

/// A server-side `kubectl apply` of an object with a last-applied annotation updates the
/// annotation.
fn renew_last_applied(object: &mut Object, config: &Object) {
    if last_applied(object).is_none() {
        return;
    }
    let mut config = config.clone();
    if let Some(annotations) = config
        .get_mut("metadata")
        .and_then(|m| m.get_mut("annotations"))
        .and_then(Value::as_object_mut)
    {
        annotations.shift_remove(LAST_APPLIED);
    }
    let mut config = Value::Object(config);
    crate::normalise::sort(&mut config);
    let annotations = object
        .get_mut("metadata")
        .and_then(|m| m.get_mut("annotations"))
        .and_then(Value::as_object_mut);
    let Some(annotations) = annotations else {
        return;
    };
    annotations.insert(
        LAST_APPLIED.to_owned(),
        Value::from(format!("{}\n", crate::text::json(&config))),
    );
    let length = |text: &Value| text.as_str().map_or(0, str::len);
    let size: usize = annotations.iter().map(|(k, v)| k.len() + length(v)).sum();
    if size > MAX_ANNOTATIONS {
        annotations.shift_remove(LAST_APPLIED);
    }
}

fn conflict_status(conflicts: &Conflicts) -> Status {
    let mut conflicts: Vec<&(Id, FieldSet)> = conflicts.iter().collect();
    conflicts.sort_by_key(|(id, _)| id.order());
    let mut causes = Vec::new();
    for (id, fields) in &conflicts {
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
            for (id, fields) in conflicts {
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
