//! Which of the names that a definition wants it gets: those that no other of its group has.

use std::collections::HashSet;

use machinery::{Value, text::quote};

/// The names of others in the same group.
#[derive(Default)]
pub struct Taken {
    /// Plurals, singulars and short names.
    pub resources: HashSet<String>,
    /// Kinds and kinds of lists.
    pub kinds: HashSet<String>,
}

/// Why a definition does not get all of its names.
#[derive(Debug, PartialEq)]
pub struct Conflict {
    pub reason: &'static str,
    pub message: String,
}

/// The names that are accepted, and the last conflict. Those that were accepted `before` stay where
/// others are not to be had.
pub fn accept(wanted: &Value, before: &Value, taken: &Taken) -> (Value, Option<Conflict>) {
    let mut names = match before {
        Value::Object(_) => before.clone(),
        _ => machinery::json::json!({}),
    };
    let mut conflict = None;
    let single = [
        ("plural", "PluralConflict", &taken.resources),
        ("singular", "SingularConflict", &taken.resources),
        ("kind", "KindConflict", &taken.kinds),
        ("listKind", "ListKindConflict", &taken.kinds),
    ];
    for (key, reason, used) in single {
        if key == "kind" {
            accept_short(wanted, before, taken, &mut names, &mut conflict);
        }
        let name = wanted[key].as_str().unwrap_or_default();
        if wanted[key] != before[key] && used.contains(name) {
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
    taken: &Taken,
    names: &mut Value,
    conflict: &mut Option<Conflict>,
) {
    let list = |value: &Value| value["shortNames"].as_array().cloned().unwrap_or_default();
    let own = list(before);
    let new = list(wanted).into_iter().filter(|name| !own.contains(name));
    let used: Vec<String> = new
        .filter_map(|name| name.as_str().map(str::to_owned))
        .filter(|name| taken.resources.contains(name))
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
    fn names_are_accepted_one_by_one_and_the_last_conflict_is_told() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let taken = Taken {
            resources: set(&["foos", "foo", "f", "g"]),
            kinds: set(&["Foo", "FooList"]),
        };
        let wanted = |short: &[&str], kind: &str| {
            json!({"plural": "bars", "singular": "bar", "shortNames": short, "kind": kind,
                "listKind": format!("{kind}List"), "categories": ["all"]})
        };
        let told = |reason, message: &str| {
            let message = message.to_owned();
            Some(Conflict { reason, message })
        };
        let free = wanted(&["b"], "Bar");
        assert_eq!(accept(&free, &Value::Null, &taken), (free.clone(), None));
        let (names, conflict) = accept(&wanted(&["f", "b", "g"], "Bar"), &Value::Null, &taken);
        let message = "[\"f\" is already in use, \"g\" is already in use]";
        assert_eq!(conflict, told("ShortNamesConflict", message));
        assert_eq!(
            names,
            json!({"plural": "bars", "singular": "bar", "kind": "Bar", "listKind": "BarList", "categories": ["all"]})
        );
        let (names, conflict) = accept(&wanted(&["b"], "Foo"), &Value::Null, &taken);
        assert_eq!(
            conflict,
            told("ListKindConflict", "\"FooList\" is already in use")
        );
        assert_eq!(
            (&names["kind"], &names["plural"]),
            (&Value::Null, &json!("bars"))
        );
        // What a definition has it keeps.
        let (names, conflict) = accept(&wanted(&["f"], "Foo"), &free, &taken);
        assert_eq!(names["kind"], "Bar");
        assert_eq!(names["shortNames"], json!(["b"]));
        assert_eq!(conflict.map(|c| c.reason), Some("ListKindConflict"));
    }
}
