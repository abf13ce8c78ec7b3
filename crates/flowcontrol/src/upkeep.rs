//! Maintains the default objects: creates missing ones, corrects mandatory ones, and suggested ones
//! unless their annotation forbids it. Suggested objects of older versions are deleted.

use http::Method;
use kinds::tree;
use machinery::{Object, Value};

use super::{
    GROUP, LEVELS, SCHEMAS,
    defaults::{self, AUTOUPDATE, Default},
};
use registry::Reader;
use request::Client;

/// The field manager of these objects.
const MANAGER: &str = "api-priority-and-fairness-config-producer-v1";

/// Corrects all of them, as far as possible. `false`: they are not served here.
pub(super) async fn ensure(reader: &Reader, api: &dyn Client) -> Result<bool, String> {
    for (resource, mut defaults) in [(LEVELS, defaults::levels()), (SCHEMAS, defaults::schemas())] {
        if reader.resource(GROUP, resource).is_none() {
            return Ok(false);
        }
        let listed = reader.list_readable(GROUP, resource).await;
        let readable = listed.map_err(|status| status.message)?;
        // An object that cannot be read exists.
        let is_unreadable = |default: &Default| {
            readable
                .unreadable
                .iter()
                .any(|name| name == tree::name(&default.object))
        };
        defaults.retain(|default| !is_unreadable(default));
        let changes = changes(&readable.parsed(), defaults).into_iter();
        let writes = changes.map(|change| write(api, resource, change));
        futures::future::try_join_all(writes).await?;
    }
    Ok(true)
}

#[derive(Debug, PartialEq)]
enum Change {
    Create(Object),
    Update(Object),
    Delete(String),
}

async fn write(api: &dyn Client, resource: &str, change: Change) -> Result<(), String> {
    let as_manager = |path: String| format!("{path}?fieldManager={MANAGER}");
    let (method, path, body) = match change {
        Change::Create(object) => {
            let path = as_manager(super::path(resource, ""));
            (Method::POST, path, Some(object))
        }
        Change::Update(object) => {
            let path = as_manager(super::path(resource, tree::name(&object)));
            (Method::PUT, path, Some(object))
        }
        Change::Delete(name) => (Method::DELETE, super::path(resource, &name), None),
    };
    api.write(method, &path, body).await
}

/// The writes that correct the stored objects.
fn changes(stored: &[Object], defaults: Vec<Default>) -> Vec<Change> {
    let is_default = |object: &&Object| {
        let mut names = defaults.iter().map(|default| tree::name(&default.object));
        names.any(|name| name == tree::name(object))
    };
    let unwanted = stored.iter().filter(|object| !is_default(object));
    let unwanted = unwanted.filter(|object| follows(object) == Some(true));
    let mut changes: Vec<Change> = unwanted
        .map(|object| Change::Delete(tree::name(object).to_owned()))
        .collect();
    for default in defaults {
        let name = tree::name(&default.object);
        match stored.iter().find(|object| tree::name(object) == name) {
            Some(current) => changes.extend(revised(current, &default).map(Change::Update)),
            None => changes.push(Change::Create(default.object)),
        }
    }
    changes
}

/// The value of the annotation, if it is a boolean as Go parses one.
fn follows(object: &Object) -> Option<bool> {
    match tree::text(&tree::get(object, "metadata")["annotations"][AUTOUPDATE]) {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// The corrected object; `None` if it is correct.
fn revised(current: &Object, default: &Default) -> Option<Object> {
    // Without the annotation, an object in its first generation follows the defaults.
    let untouched = tree::int(&tree::get(current, "metadata")["generation"]) == 1;
    let follow = default.is_mandatory || follows(current).unwrap_or(untouched);
    let spec = tree::get(&default.object, "spec");
    let is_changed = follow && !is_right(current, spec);
    let is_marked = follows(current) == Some(follow);
    if is_marked && !is_changed {
        return None;
    }
    let mut revised = current.clone();
    if is_changed {
        revised.insert("spec".to_owned(), spec.clone());
    }
    if !is_marked {
        let metadata = tree::child_or_new(&mut revised, "metadata");
        let annotations = tree::child_or_new(metadata, "annotations");
        annotations.insert(AUTOUPDATE.to_owned(), follow.to_string().into());
    }
    Some(revised)
}

/// Whether the spec is the default's. The operator may change the exempt level's seats.
fn is_right(current: &Object, default: &Value) -> bool {
    let spec = tree::get(current, "spec");
    let mut wanted = default.clone();
    if tree::is_set(&wanted["exempt"]) && tree::is_set(&spec["exempt"]) {
        for field in ["nominalConcurrencyShares", "lendablePercent"] {
            wanted["exempt"][field] = spec["exempt"][field].clone();
        }
    }
    *spec == wanted
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    fn default(name: &str) -> Default {
        let mut all = defaults::levels().into_iter().chain(defaults::schemas());
        all.find(|default| tree::name(&default.object) == name)
            .unwrap()
    }

    /// A stored default, possibly changed by an operator.
    fn stored(name: &str, generation: i64, autoupdate: Option<&str>, changed: bool) -> Object {
        let mut object = default(name).object;
        let metadata = tree::child_or_new(&mut object, "metadata");
        metadata.insert("generation".to_owned(), generation.into());
        let annotations = autoupdate.map_or(json!({}), |value| json!({AUTOUPDATE: value}));
        metadata.insert("annotations".to_owned(), annotations);
        if changed {
            let spec = tree::child_or_new(&mut object, "spec");
            spec["limited"]["nominalConcurrencyShares"] = 77.into();
        }
        object
    }

    #[test]
    fn mandatory_objects_are_put_right_and_suggested_ones_as_far_as_they_follow() {
        // Name, generation, annotation, changed: the expected annotation and spec; `None`:
        // unchanged.
        let cases = [
            ("catch-all", 1, Some("true"), false, None),
            ("catch-all", 2, Some("true"), true, Some(("true", 5))),
            ("catch-all", 2, Some("false"), true, Some(("true", 5))),
            ("system", 1, Some("true"), false, None),
            ("system", 2, Some("true"), true, Some(("true", 30))),
            ("system", 2, Some("false"), true, None),
            ("system", 2, Some("0"), true, None),
            ("system", 1, None, true, Some(("true", 30))),
            ("system", 2, None, true, Some(("false", 77))),
            ("system", 2, Some("maybe"), true, Some(("false", 77))),
            ("system", 1, None, false, Some(("true", 30))),
        ];
        for (name, generation, autoupdate, changed, expected) in cases {
            let current = stored(name, generation, autoupdate, changed);
            let revised = revised(&current, &default(name));
            let revised = revised.map(|object| {
                let shares = &tree::get(&object, "spec")["limited"]["nominalConcurrencyShares"];
                let follows = &tree::get(&object, "metadata")["annotations"][AUTOUPDATE];
                (tree::text(follows).to_owned(), tree::int(shares))
            });
            let expected = expected.map(|(follows, shares)| (str::to_owned(follows), shares));
            assert_eq!(
                revised, expected,
                "{name} {generation} {autoupdate:?} {changed}"
            );
        }
    }

    #[test]
    fn the_seats_of_the_exempt_level_are_left_to_the_operator() {
        let mut current = stored("exempt", 2, Some("true"), false);
        let level = defaults::levels().remove(0);
        current.insert("spec".to_owned(), tree::get(&level.object, "spec").clone());
        tree::child_or_new(&mut current, "spec")["exempt"]["lendablePercent"] = 5.into();
        assert_eq!(revised(&current, &level), None);
    }

    #[test]
    fn missing_objects_are_created_and_outdated_suggested_ones_are_deleted() {
        let mut old = stored("system", 1, Some("true"), false);
        tree::child_or_new(&mut old, "metadata").insert("name".to_owned(), "old".into());
        let mut mine = old.clone();
        let metadata = tree::child_or_new(&mut mine, "metadata");
        metadata.insert("name".to_owned(), "mine".into());
        metadata.insert("annotations".to_owned(), json!({}));
        let right = stored("system", 1, Some("true"), false);
        let all = defaults::levels();
        let count = all.len();
        let changes = changes(&[old, mine, right], all);
        assert_eq!(changes[0], Change::Delete("old".to_owned()));
        assert_eq!(changes.len(), count);
        assert!(
            changes[1..]
                .iter()
                .all(|change| matches!(change, Change::Create(_)))
        );
    }
}
