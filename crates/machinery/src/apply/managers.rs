//! `metadata.managedFields`: which manager set which fields.

use super::set::FieldSet;
use crate::{Object, Value, text};
use indexmap::IndexMap;
use std::collections::HashMap;

/// Further updaters are merged into one entry.
const MAX_UPDATERS: usize = 10;
/// The manager of that entry.
const ANCIENT: &str = "ancient-changes";

/// The identity of a manager entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Id {
    pub(super) manager: String,
    pub(super) applied: bool,
    pub(super) version: String,
    pub(super) subresource: String,
}

impl Id {
    /// Whether both are the same manager. The version of an applier does not count.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.manager == other.manager
            && self.applied == other.applied
            && text::same(&self.subresource, &other.subresource)
            && (self.applied || self.version == other.version)
    }

    /// The sort key of managers.
    pub(super) fn order(&self) -> String {
        let quote = |text: &str| Value::from(text).to_string();
        let mut text = format!("{{\"manager\":{}", quote(&self.manager));
        if self.applied {
            text.push_str(",\"operation\":\"Apply\"");
        } else {
            let version = quote(&self.version);
            text.push_str(&format!(
                ",\"operation\":\"Update\",\"apiVersion\":{version}"
            ));
        }
        if !self.subresource.is_empty() {
            text.push_str(&format!(",\"subresource\":{}", quote(&self.subresource)));
        }
        text.push('}');
        text
    }

    /// The name in conflict messages.
    pub(super) fn name(&self) -> String {
        let mut name = crate::text::quote(&self.manager);
        if !self.subresource.is_empty() {
            name = format!(
                "{name} with subresource {}",
                crate::text::quote(&self.subresource)
            );
        }
        if self.applied {
            name
        } else {
            format!("{name} using {}", self.version)
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: Id,
    pub(super) time: String,
    pub(super) fields: FieldSet,
}

/// The managedFields of an object as stored.
pub(super) fn list_of(object: &Object) -> Option<&[Value]> {
    let metadata = object.get("metadata")?;
    metadata.get("managedFields")?.as_array().map(Vec::as_slice)
}

/// All managers of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Managers(pub(super) Vec<Entry>);

impl Managers {
    /// The managers of a live object; unreadable managedFields count as none.
    pub(super) fn from_object(object: &Object) -> Self {
        Self::read(list_of(object)).unwrap_or_default()
    }

    /// From managedFields; `None` if an entry is invalid.
    pub(super) fn read(list: Option<&[Value]>) -> Option<Self> {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let entries = list.into_iter().flatten().map(|e| {
            let id = Id {
                manager: text(&e["manager"]),
                applied: match e["operation"].as_str()? {
                    "Apply" => true,
                    "Update" => false,
                    _ => return None,
                },
                version: text(&e["apiVersion"]),
                subresource: text(&e["subresource"]),
            };
            let readable = !id.version.is_empty()
                && e["fieldsType"] == "FieldsV1"
                && FieldSet::is_readable(&e["fieldsV1"]);
            readable.then(|| Entry {
                id,
                time: text(&e["time"]),
                fields: FieldSet::from_json(&e["fieldsV1"]),
            })
        });
        // Of several entries of the same manager the last one counts.
        let mut managers: IndexMap<String, Entry> = IndexMap::new();
        for entry in entries {
            let entry = entry?;
            managers.insert(entry.id.order(), entry);
        }
        Some(Self(managers.into_values().collect()))
    }

    pub(super) fn get(&self, id: &Id) -> Option<&Entry> {
        self.0.iter().find(|e| e.id.is(id))
    }

    /// Sets a manager's fields.
    pub(super) fn put(&mut self, id: &Id, fields: FieldSet) {
        match self.0.iter_mut().find(|e| e.id.is(id)) {
            Some(entry) => {
                entry.id = id.clone();
                entry.fields = fields;
            }
            None => self.0.push(Entry {
                id: id.clone(),
                time: String::new(),
                fields,
            }),
        }
    }

    /// Adds fields to a manager's, with the current time.
    pub(super) fn gain(&mut self, id: &Id, fields: FieldSet, now: &str) {
        if fields.is_empty() {
            return;
        }
        let before = self.get(id).map(|e| e.fields.clone()).unwrap_or_default();
        self.put(id, before.with(fields));
        self.touch(id, now);
    }

    /// Sets the time of a manager's last write.
    pub(super) fn touch(&mut self, id: &Id, now: &str) {
        if let Some(entry) = self.0.iter_mut().find(|e| e.id.is(id)) {
            now.clone_into(&mut entry.time);
        }
    }

    /// Merges the oldest updaters if there are too many.
    fn cap(&mut self) {
        let is_updater = |e: &Entry| !e.id.applied && e.id.subresource.is_empty();
        let mut excess = self
            .0
            .iter()
            .filter(|e| is_updater(e))
            .count()
            .saturating_sub(MAX_UPDATERS);
        if excess == 0 {
            return;
        }
        let others = |at: &usize| is_updater(&self.0[*at]) && self.0[*at].id.manager != ANCIENT;
        let mut oldest: Vec<usize> = (0..self.0.len()).filter(others).collect();
        oldest.sort_by(|a, b| self.0[*a].time.cmp(&self.0[*b].time));
        let mut left: Vec<Option<Entry>> =
            std::mem::take(&mut self.0).into_iter().map(Some).collect();
        // The merged entry of each version.
        let is_ancient = |at: &usize| {
            left[*at]
                .as_ref()
                .is_some_and(|e| is_updater(e) && e.id.manager == ANCIENT)
        };
        let ancient: Vec<usize> = (0..left.len()).filter(is_ancient).collect();
        let version = |at: usize| left[at].as_ref().map(|e| e.id.version.clone());
        let mut gathered: HashMap<String, usize> = ancient
            .into_iter()
            .filter_map(|at| Some((version(at)?, at)))
            .collect();
        for at in oldest {
            if excess == 0 {
                break;
            }
            let Some(mut entry) = left[at].take() else {
                continue;
            };
            match gathered
                .get(&entry.id.version)
                .and_then(|at| left[*at].as_mut())
            {
                Some(gathered) => {
                    gathered.fields.union(&entry.fields);
                    if gathered.time < entry.time {
                        gathered.time = entry.time;
                    }
                    excess -= 1;
                }
                // The first one is only renamed.
                None => {
                    ANCIENT.clone_into(&mut entry.id.manager);
                    gathered.insert(entry.id.version.clone(), left.len());
                    left.push(Some(entry));
                }
            }
        }
        self.0 = left.into_iter().flatten().collect();
    }

    /// Writes the managers into an object.
    pub(super) fn store(mut self, object: &mut Object) {
        self.cap();
        store(self.into_value(), object);
    }

    /// As stored in an object; `None` if there are none.
    pub(super) fn into_value(mut self) -> Option<Value> {
        self.0.sort_by(|a, b| {
            let key = |e: &Entry| {
                (
                    !e.id.applied,
                    e.time.clone(),
                    e.id.manager.clone(),
                    e.id.version.clone(),
                    e.id.subresource.clone(),
                )
            };
            key(a).cmp(&key(b))
        });
        let entries = (!self.0.is_empty()).then(|| self.0.into_iter().map(to_json).collect());
        entries.map(Value::Array)
    }
}

fn store(entries: Option<Value>, object: &mut Object) {
    let metadata = object
        .entry("metadata")
        .or_insert_with(|| Value::Object(Object::new()));
    let Value::Object(metadata) = metadata else {
        return;
    };
    match entries {
        Some(entries) => drop(metadata.insert("managedFields", entries)),
        None => drop(metadata.shift_remove("managedFields")),
    }
}

/// Stores the creator of a new object, who owns all of its fields.
pub(super) fn store_creator(id: &Id, fields: Option<Value>, now: &str, object: &mut Object) {
    let entries = fields.map(|fields| Value::Array(vec![entry_json(id, now, fields)]));
    store(entries, object);
}

fn to_json(entry: Entry) -> Value {
    entry_json(&entry.id, &entry.time, entry.fields.into_json())
}

fn entry_json(id: &Id, time: &str, fields: Value) -> Value {
    let mut map = Object::with_capacity(7);
    let mut put = |name: &'static str, value: Value| {
        map.push(name.into(), value);
    };
    put("manager", id.manager.as_str().into());
    put(
        "operation",
        if id.applied { "Apply" } else { "Update" }.into(),
    );
    put("apiVersion", id.version.as_str().into());
    if !time.is_empty() {
        put("time", time.into());
    }
    put("fieldsType", "FieldsV1".into());
    put("fieldsV1", fields);
    if !id.subresource.is_empty() {
        put("subresource", id.subresource.as_str().into());
    }
    Value::Object(map)
}
