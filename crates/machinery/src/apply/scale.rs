//! Ownership of replicas: the managedFields of an object as its Scale shows them, and back.

use super::managers::{self, Entry, Id, Managers};
use super::set::FieldSet;
use crate::{Object, Value};

/// The version of every Scale.
pub const API_VERSION: &str = "autoscaling/v1";

/// The steps to the replicas in a Scale.
const REPLICAS: &[&str] = &["f:spec", "f:replicas"];

/// The path of the replicas in each version of an object.
pub trait Replicas {
    /// `None` if there is no such version, an empty path if it has no Scale.
    fn path(&self, api_version: &str) -> Option<Vec<String>>;
}

impl<F: Fn(&str) -> Option<Vec<String>>> Replicas for F {
    fn path(&self, api_version: &str) -> Option<Vec<String>> {
        self(api_version)
    }
}

fn steps(path: &[String]) -> Vec<String> {
    path.iter().map(|name| format!("f:{name}")).collect()
}

fn has(fields: &FieldSet, path: &[String]) -> bool {
    let steps = steps(path);
    !path.is_empty() && fields.has(&steps.iter().map(String::as_str).collect::<Vec<_>>())
}

fn only(path: &[&str]) -> FieldSet {
    let mut set = FieldSet::default();
    set.insert(path.iter().copied());
    set
}

/// The managedFields of an object's Scale: the owners of the replicas.
pub fn shown(object: &Object, replicas: &dyn Replicas) -> Option<Value> {
    let entries = Managers::from_object(object)
        .0
        .into_iter()
        .filter_map(|entry| {
            let path = replicas.path(&entry.id.version)?;
            has(&entry.fields, &path).then(|| Entry {
                id: Id {
                    version: API_VERSION.to_owned(),
                    ..entry.id
                },
                fields: only(REPLICAS),
                time: entry.time,
            })
        });
    Managers(entries.collect()).into_value()
}

/// Updates the owners of the replicas after a write of the Scale.
pub fn take_over(object: &mut Object, scale: &Object, api_version: &str, replicas: &dyn Replicas) {
    let mut of_scale = Managers::read(managers::list_of(scale)).unwrap_or_default();
    let mut all = Managers::default();
    for mut entry in Managers::from_object(object).0 {
        let Some(path) = replicas.path(&entry.id.version) else {
            continue;
        };
        if has(&entry.fields, &path) {
            // Updaters of a Scale have its version.
            match of_scale.0.iter().position(|e| e.id.is(&entry.id)) {
                Some(at) => drop(of_scale.0.remove(at)),
                None => {
                    let steps = steps(&path);
                    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
                    entry.fields = entry.fields.difference(&only(&steps));
                }
            }
        }
        if !entry.fields.is_empty() {
            all.0.push(entry);
        }
    }
    let path = steps(&replicas.path(api_version).unwrap_or_default());
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    for entry in of_scale.0.into_iter().filter(|e| e.fields.has(REPLICAS)) {
        let known = all.0.iter().position(|e| e.id.is(&entry.id));
        // Upstream sets no time for a manager that is new to the object.
        let time = known.map(|at| all.0.remove(at).time);
        all.0.push(Entry {
            id: Id {
                version: api_version.to_owned(),
                ..entry.id
            },
            time: time.unwrap_or_default(),
            fields: only(&path),
        });
    }
    all.store(object);
}
