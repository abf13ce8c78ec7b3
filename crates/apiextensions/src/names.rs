//! Which names of a definition are accepted: those that no other definition of its group has.

use std::collections::{HashMap, HashSet};

use kinds::Names;
use machinery::{Value, text::quote};

/// The names in use, by group. A definition is identified by its plural.
#[derive(Default)]
pub struct InUse {
    groups: HashMap<String, Group>,
}

/// The names of a group.
#[derive(Default)]
struct Group {
    /// Plurals, singulars and short names, each with the definitions that have it.
    resources: HashMap<String, HashSet<String>>,
    /// Kinds and kinds of lists, likewise.
    kinds: HashMap<String, HashSet<String>>,
    /// The names of each definition.
    owners: HashMap<String, DefinitionNames>,
}

/// The names of one definition.
#[derive(Default)]
struct DefinitionNames {
    resources: Vec<String>,
    kinds: Vec<String>,
}

/// The owner of built-in names; no plural is empty.
const BUILT_IN: &str = "";

impl InUse {
    /// Reserves the names of a built-in kind.
    pub fn reserve(&mut self, names: &Names) {
        let group = self.groups.entry(names.group.clone()).or_default();
        let single = [&names.plural, &names.singular].into_iter();
        let own = DefinitionNames {
            resources: single.chain(&names.short_names).cloned().collect(),
            kinds: vec![names.kind.clone(), names.list_kind.clone()],
        };
        group.add(BUILT_IN, &own);
    }

    /// Replaces the accepted names of a definition.
    pub fn set(&mut self, group: &str, plural: &str, accepted: &Value) {
        self.release(group, plural);
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let short = accepted["shortNames"].as_array().into_iter().flatten();
        let single = [&accepted["plural"], &accepted["singular"]].into_iter();
        let kinds = [&accepted["kind"], &accepted["listKind"]].into_iter();
        let own = DefinitionNames {
            resources: single.chain(short).filter_map(text).collect(),
            kinds: kinds.filter_map(text).collect(),
        };
        let group = self.groups.entry(group.to_owned()).or_default();
        group.add(plural, &own);
        group.owners.insert(plural.to_owned(), own);
    }

    /// Releases the names of a deleted definition.
    pub fn release(&mut self, group: &str, plural: &str) {
        let Some(group) = self.groups.get_mut(group) else {
            return;
        };
        let own = group.owners.remove(plural).unwrap_or_default();
        let both = [
            (&mut group.resources, own.resources),
            (&mut group.kinds, own.kinds),
        ];
        for (known, names) in both {
            for name in names {
                let left = known.get_mut(&name).map(|owners| {
                    owners.remove(plural);
                    owners.len()
                });
                if left == Some(0) {
                    known.remove(&name);
                }
            }
        }
    }

    /// The names that others hold.
    pub fn by_others<'a>(&'a self, group: &str, plural: &'a str) -> NamesInUse<'a> {
        NamesInUse {
            group: self.groups.get(group),
            plural,
        }
    }
}

impl Group {
    fn add(&mut self, owner: &str, own: &DefinitionNames) {
        let both = [
            (&mut self.resources, &own.resources),
            (&mut self.kinds, &own.kinds),
        ];
        for (known, names) in both {
            for name in names {
                let owners = known.entry(name.clone()).or_default();
                owners.insert(owner.to_owned());
            }
        }
    }
}

/// The names of others in the same group.
#[derive(Clone, Copy)]
pub struct NamesInUse<'a> {
    group: Option<&'a Group>,
    plural: &'a str,
}

impl NamesInUse<'_> {
    fn has_resource(&self, name: &str) -> bool {
        self.has(|group| group.resources.get(name))
    }

    fn has_kind(&self, name: &str) -> bool {
        self.has(|group| group.kinds.get(name))
    }

    fn has<'g>(&'g self, owners: impl Fn(&'g Group) -> Option<&'g HashSet<String>>) -> bool {
        let owners = self.group.and_then(owners);
        owners.is_some_and(|owners| owners.iter().any(|owner| owner != self.plural))
    }
}

/// Why not all names of a definition are accepted.
#[derive(Debug, PartialEq)]
pub struct Conflict {
    pub reason: &'static str,
    pub message: String,
}

/// The accepted names, and the last conflict. Names accepted `before` stay if the new ones
/// conflict.
pub fn accept(wanted: &Value, before: &Value, taken: NamesInUse<'_>) -> (Value, Option<Conflict>) {
    let mut names = match before {
        Value::Object(_) => before.clone(),
        _ => machinery::json::json!({}),
    };
    let mut conflict = None;
    let single = [
        ("plural", "PluralConflict", true),
        ("singular", "SingularConflict", true),
        ("kind", "KindConflict", false),
        ("listKind", "ListKindConflict", false),
    ];
    for (key, reason, is_resource) in single {
        if key == "kind" {
            accept_short(wanted, before, taken, &mut names, &mut conflict);
        }
        let name = wanted[key].as_str().unwrap_or_default();
        let is_used = || match is_resource {
            true => taken.has_resource(name),
            false => taken.has_kind(name),
        };
        if wanted[key] != before[key] && is_used() {
            let message = in_use(name);
            conflict = Some(Conflict { reason, message });
        } else {
            names[key] = wanted[key].clone();
        }
    }
    put(&mut names, "categories", &wanted["categories"]);
    (names, conflict)
}

/// Short names are accepted all together, or not at all.
fn accept_short(
    wanted: &Value,
    before: &Value,
    taken: NamesInUse<'_>,
    names: &mut Value,
    conflict: &mut Option<Conflict>,
) {
    let list = |value: &Value| value["shortNames"].as_array().cloned().unwrap_or_default();
    let own = list(before);
    let new = list(wanted).into_iter().filter(|name| !own.contains(name));
    let used: Vec<String> = new
        .filter_map(|name| name.as_str().map(str::to_owned))
        .filter(|name| taken.has_resource(name))
        .map(|name| in_use(&name))
        .collect();
    if used.is_empty() {
        return put(names, "shortNames", &wanted["shortNames"]);
    }
    let message = match &used[..] {
        [one] => one.clone(),
        all => format!("[{}]", all.join(", ")),
    };
    let reason = "ShortNamesConflict";
    *conflict = Some(Conflict { reason, message });
}

fn put(names: &mut Value, key: &str, value: &Value) {
    let Some(names) = names.as_object_mut() else {
        return;
    };
    match value {
        Value::Null => drop(names.shift_remove(key)),
        value => drop(names.insert(key.to_owned(), value.clone())),
    }
}

fn in_use(name: &str) -> String {
    format!("{} is already in use", quote(name))
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    #[test]
    fn names_are_accepted_one_by_one_and_the_last_conflict_is_reported() {
        let mut in_use = InUse::default();
        let names = json!({"plural": "foos", "singular": "foo", "shortNames": ["f", "g"],
            "kind": "Foo", "listKind": "FooList"});
        in_use.set("example.com", "foos", &names);
        let taken = in_use.by_others("example.com", "bars");
        let wanted = |short: &[&str], kind: &str| {
            json!({"plural": "bars", "singular": "bar", "shortNames": short, "kind": kind,
                "listKind": format!("{kind}List"), "categories": ["all"]})
        };
        let reported = |reason, message: &str| {
            let message = message.to_owned();
            Some(Conflict { reason, message })
        };
        let free = wanted(&["b"], "Bar");
        assert_eq!(accept(&free, &Value::Null, taken), (free.clone(), None));
        let (names, conflict) = accept(&wanted(&["f", "b", "g"], "Bar"), &Value::Null, taken);
        let message = "[\"f\" is already in use, \"g\" is already in use]";
        assert_eq!(conflict, reported("ShortNamesConflict", message));
        assert_eq!(
            names,
            json!({"plural": "bars", "singular": "bar", "kind": "Bar", "listKind": "BarList", "categories": ["all"]})
        );
        let (names, conflict) = accept(&wanted(&["b"], "Foo"), &Value::Null, taken);
        assert_eq!(
            conflict,
            reported("ListKindConflict", "\"FooList\" is already in use")
        );
        assert_eq!(
            (&names["kind"], &names["plural"]),
            (&Value::Null, &json!("bars"))
        );
        // A definition keeps the names it has.
        let (names, conflict) = accept(&wanted(&["f"], "Foo"), &free, taken);
        assert_eq!(names["kind"], "Bar");
        assert_eq!(names["shortNames"], json!(["b"]));
        assert_eq!(conflict.map(|c| c.reason), Some("ListKindConflict"));
    }

    #[test]
    fn names_are_free_for_their_owner_other_groups_and_when_they_are_released() {
        let mut in_use = InUse::default();
        let names = |plural: &str, kind: &str| json!({"plural": plural, "kind": kind});
        let wants = |in_use: &InUse, group: &str, plural: &str, kind: &str| {
            let taken = in_use.by_others(group, plural);
            let (_, conflict) = accept(&names(plural, kind), &Value::Null, taken);
            conflict.map(|conflict| conflict.reason)
        };
        in_use.set("a.example", "foos", &names("foos", "Foo"));
        assert_eq!(wants(&in_use, "a.example", "foos", "Foo"), None);
        assert_eq!(wants(&in_use, "b.example", "bars", "Foo"), None);
        let conflict = Some("KindConflict");
        assert_eq!(wants(&in_use, "a.example", "bars", "Foo"), conflict);
        in_use.set("a.example", "foos", &names("foos", "Other"));
        assert_eq!(wants(&in_use, "a.example", "bars", "Foo"), None);
        assert_eq!(wants(&in_use, "a.example", "bars", "Other"), conflict);
        in_use.release("a.example", "foos");
        assert_eq!(wants(&in_use, "a.example", "bars", "Other"), None);
        in_use.reserve(&Names {
            group: "a.example".to_owned(),
            version: "v1".to_owned(),
            kind: "Foo".to_owned(),
            list_kind: "FooList".to_owned(),
            plural: "foos".to_owned(),
            singular: "foo".to_owned(),
            short_names: Vec::new(),
            categories: Vec::new(),
        });
        assert_eq!(wants(&in_use, "a.example", "foos", "Foo"), conflict);
    }
}
