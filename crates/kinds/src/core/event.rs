//! Event: an occurrence on an object. Events of core/v1 and events.k8s.io/v1 are the same objects,
//! stored as core/v1 and expired after an hour.

use std::time::Duration;

use crate::builtin::Builtin;
use crate::columns::{column, formatted, name_cell, since, wide};
use crate::metadata::{self, Check};
use crate::tree::{get, int, is_set, namespace, same, text};
use crate::{Column, Subresource, check};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    kind: "Event",
    plural: "events",
    lifetime: Some(Duration::from_secs(3600)),
    needs_sync: |_| false,
    short_names: &["ev"],
    schema: "core/v1.Event",
    allows_create_on_update: true,
    // Upstream does not validate names and metadata in the core group.
    validate_name: metadata::path_segment,
    metadata_checks: &[],
    validate_create: |object| check_both(object, "reportingComponent"),
    validate_update: |object, _, _: Subresource<'_>| check_both(object, "reportingComponent"),
    selectable: SELECTABLE,
    selectable_fields,
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

/// The same objects under events.k8s.io.
pub const EVENTS_V1: Builtin = Builtin {
    group: "events.k8s.io",
    schema: "events/v1.Event",
    validate_name: metadata::subdomain,
    metadata_checks: &[Check::Change],
    stored_as: Some("core/v1.Event"),
    to_stored: |object| renamed(object, "v1", |(new, old)| (new, old)),
    from_stored: |object| renamed(object, "events.k8s.io/v1", |(new, old)| (old, new)),
    validate_create: validate_new,
    validate_update: |object, old, _: Subresource<'_>| validate_change(object, old),
    selectable: SELECTABLE_V1,
    row: |object, now| row(&(EVENTS_V1.to_stored)(object.clone()), now),
    ..KIND
};

/// Fields with different names: in events.k8s.io, in core.
const RENAMED: &[(&str, &str)] = &[
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

type Pair = (&'static str, &'static str);

fn renamed(object: Object, version: &str, direction: fn(Pair) -> Pair) -> Object {
    let mut out = Object::with_capacity(object.len());
    for (key, value) in object {
        let pair = RENAMED
            .iter()
            .map(|p| direction(*p))
            .find(|(from, _)| *from == key);
        out.insert(pair.map_or(key, |(_, to)| to.into()), value);
    }
    out.insert("apiVersion".to_owned(), Value::from(version));
    out
}

const COLUMNS: &[Column] = &[
    column("Last Seen", "string", "Time since it happened last."),
    column("Type", "string", "Normal or Warning."),
    column("Reason", "string", "Reason in one word."),
    column("Object", "string", "Object that the event is about."),
    wide("Subobject", "string", "Field of the object."),
    wide("Source", "string", "Component that reported it."),
    column("Message", "string", "What happened."),
    wide("First Seen", "string", "Time since it happened first."),
    wide("Count", "string", "Number of occurrences."),
    formatted("Name", "string", "name", "Name of the event.", 1),
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let involved = get(object, "involvedObject");
    let mut first = since(get(object, "firstTimestamp"), now);
    if !is_set(get(object, "firstTimestamp")) {
        first = since(get(object, "eventTime"), now);
    }
    let mut last = since(get(object, "lastTimestamp"), now);
    if !is_set(get(object, "lastTimestamp")) {
        last.clone_from(&first);
    }
    let mut count = int(get(object, "count")).max(1);
    let series = get(object, "series");
    if is_set(series) {
        last = since(&series["lastObservedTime"], now);
        count = int(&series["count"]);
    }
    let mut target = text(&involved["kind"]).to_lowercase();
    if !text(&involved["name"]).is_empty() {
        target = format!("{target}/{}", text(&involved["name"]));
    }
    vec![
        Value::from(last),
        get(object, "type").as_str().unwrap_or_default().into(),
        text(get(object, "reason")).into(),
        Value::from(target),
        text(&involved["fieldPath"]).into(),
        Value::from(source(object)),
        text(get(object, "message")).trim().into(),
        Value::from(first),
        Value::from(count),
        name_cell(object),
    ]
}

fn source(object: &Object) -> String {
    let source = get(object, "source");
    let or = |a: &Value, b: &Value| {
        if text(a).is_empty() {
            text(b).to_owned()
        } else {
            text(a).to_owned()
        }
    };
    let component = or(&source["component"], get(object, "reportingComponent"));
    let host = or(&source["host"], get(object, "reportingInstance"));
    if host.is_empty() {
        component
    } else {
        format!("{component}, {host}")
    }
}

const SELECTABLE: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

const SELECTABLE_V1: &[&str] = &[
    "regarding.kind",
    "regarding.namespace",
    "regarding.name",
    "regarding.uid",
    "regarding.apiVersion",
    "regarding.resourceVersion",
    "regarding.fieldPath",
    "reason",
    "reportingController",
    "type",
];

/// The fields under the names of both groups: an event is selectable by either, in whichever group
/// it was written.
fn selectable_fields(object: &Object) -> Vec<(&'static str, String)> {
    let either = |core: &str, new: &str| match get(object, core) {
        Value::Null => get(object, new).clone(),
        value => value.clone(),
    };
    let about = either("involvedObject", "regarding");
    let reporting = text(&either("reportingComponent", "reportingController")).to_owned();
    let component = text(&either("source", "deprecatedSource")["component"]).to_owned();
    let mut out = Vec::with_capacity(SELECTABLE.len() + SELECTABLE_V1.len());
    for name in SELECTABLE[..7].iter().chain(&SELECTABLE_V1[..7]) {
        let field = name.split_once('.').map_or("", |(_, field)| field);
        out.push((*name, text(&about[field]).to_owned()));
    }
    out.push(("reason", text(get(object, "reason")).to_owned()));
    out.push(("reportingComponent", reporting.clone()));
    out.push(("reportingController", reporting.clone()));
    out.push((
        "source",
        if component.is_empty() {
            reporting
        } else {
            component
        },
    ));
    out.push(("type", text(get(object, "type")).to_owned()));
    out
}

/// The rules of both groups; `object` is in core's form.
fn check_both(object: &Object, controller_field: &str) -> Errors {
    const LIMIT: usize = 128;
    const NOTE_LIMIT: usize = 1024;
    let mut errors = Vec::new();
    let path = Path::new("involvedObject.namespace");
    let about = text(&get(object, "involvedObject")["namespace"]);
    let own = namespace(object);
    // Events on cluster-scoped objects are in `default`.
    let of_cluster = matches!(own, "" | "default");
    let dated = is_set(get(object, "eventTime"));
    let fits = match (dated, about) {
        (false, "") => of_cluster,
        (false, about) => about == own,
        (true, "") => matches!(own, "default" | "kube-system"),
        (true, _) => true,
    };
    if !fits {
        let detail = "does not match event.namespace";
        errors.push(Error::invalid(&path, about, detail));
    }
    if dated {
        let controller = text(get(object, "reportingComponent"));
        let at = Path::new(controller_field);
        if controller.is_empty() {
            errors.push(Error::required(&at, ""));
        }
        check::form(
            format::qualified_name(controller),
            controller,
            &at,
            &mut errors,
        );
        let mut limit = |field: &str, limit: usize, needed: bool| {
            let value = text(get(object, field));
            let at = Path::new(field);
            if needed && value.is_empty() {
                errors.push(Error::required(&at, ""));
            }
            if value.len() > limit {
                let detail = format!("can have at most {limit} characters");
                errors.push(Error::invalid(&at, "", detail));
            }
        };
        for field in ["reportingInstance", "action", "reason"] {
            limit(field, LIMIT, true);
        }
        limit("message", NOTE_LIMIT, false);
    }
    errors
}

/// Stricter rules of events.k8s.io for new events.
fn validate_new(object: &Object) -> Errors {
    let object = &(EVENTS_V1.to_stored)(object.clone());
    let mut errors = check_both(object, "reportingController");
    check_series(object, &mut errors);
    if !is_set(get(object, "eventTime")) {
        errors.push(Error::required(&Path::new("eventTime"), ""));
    }
    let mut refuse = |field: &str, detail: String| {
        errors.push(Error::invalid(&Path::new(field), "", detail));
    };
    let kind = text(get(object, "type"));
    if !matches!(kind, "Normal" | "Warning") {
        refuse("type", format!("has invalid value: {kind}"));
    }
    let source = get(object, "source");
    let unset = [
        ("firstTimestamp", !is_set(get(object, "firstTimestamp"))),
        ("lastTimestamp", !is_set(get(object, "lastTimestamp"))),
        ("count", int(get(object, "count")) == 0),
        (
            "source",
            text(&source["component"]).is_empty() && text(&source["host"]).is_empty(),
        ),
    ];
    for (field, unset) in unset {
        if !unset {
            refuse(field, "needs to be unset".to_owned());
        }
    }
    errors
}

fn check_series(object: &Object, errors: &mut Errors) {
    let series = get(object, "series");
    if !is_set(series) {
        return;
    }
    if int(&series["count"]) < 2 {
        let detail = "should be at least 2";
        errors.push(Error::invalid(&Path::new("series.count"), "", detail));
    }
    if !is_set(&series["lastObservedTime"]) {
        let at = Path::new("series.lastObservedTime");
        errors.push(Error::required(&at, ""));
    }
}

/// Through events.k8s.io only the series may change.
fn validate_change(object: &Object, old: &Object) -> Errors {
    let new = &(EVENTS_V1.to_stored)(object.clone());
    let old = &(EVENTS_V1.to_stored)(old.clone());
    let mut errors = check_both(new, "reportingController");
    if !same(get(new, "series"), get(old, "series")) {
        check_series(new, &mut errors);
    }
    // Upstream checks `reason` twice.
    let fields = [
        ("involvedObject", "involvedObject"),
        ("reason", "reason"),
        ("message", "message"),
        ("source", "source"),
        ("firstTimestamp", "firstTimestamp"),
        ("lastTimestamp", "lastTimestamp"),
        ("count", "count"),
        ("reason", "reason"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingComponent", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ];
    for (field, named) in fields {
        let (value, before) = (get(new, field), get(old, field));
        let set_or_not = field == "related" && is_set(value) != is_set(before);
        if !same(value, before) || set_or_not {
            let value = printed(field, value);
            errors.push(Error::invalid(&Path::new(named), value, check::IMMUTABLE));
        }
    }
    errors
}

/// A value with the field names of upstream's internal type.
fn printed(field: &str, value: &Value) -> Value {
    let of = |names: &[(&str, &str)]| {
        let spelled = names
            .iter()
            .map(|(theirs, ours)| ((*theirs).to_owned(), Value::from(text(&value[*ours]))));
        Value::Object(spelled.collect())
    };
    match field {
        "related" if !is_set(value) => Value::Null,
        "involvedObject" | "related" => of(&[
            ("Kind", "kind"),
            ("Namespace", "namespace"),
            ("Name", "name"),
            ("UID", "uid"),
            ("APIVersion", "apiVersion"),
            ("ResourceVersion", "resourceVersion"),
            ("FieldPath", "fieldPath"),
        ]),
        "source" => of(&[("Component", "component"), ("Host", "host")]),
        "count" => int(value).into(),
        "firstTimestamp" | "lastTimestamp" | "eventTime" => value.clone(),
        _ => text(value).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    const DATED: &str = r#""metadata": {"namespace": "default"}, "eventTime": "2026-01-01T00:00:00.000000Z",
        "reason": "r", "action": "a", "reportingInstance": "i", "type": "Normal""#;

    #[test]
    fn events_with_an_event_time_need_a_reporting_controller() {
        let core = object(&format!(r#"{{{DATED}}}"#));
        let messages = lines((KIND.validate_create)(&core));
        assert_eq!(messages[0], "reportingComponent: Required value");
        assert_eq!(
            messages[1],
            r#"reportingComponent: Invalid value: "": name part must be non-empty"#
        );
        let undated =
            object(r#"{"metadata": {"namespace": "a"}, "involvedObject": {"namespace": "b"}}"#);
        assert_eq!(
            lines((KIND.validate_create)(&undated)),
            [r#"involvedObject.namespace: Invalid value: "b": does not match event.namespace"#]
        );
    }

    #[test]
    fn the_new_events_group_rejects_deprecated_fields() {
        let event =
            |more: &str| object(&format!(r#"{{{DATED}, "reportingController": "c"{more}}}"#));
        assert_eq!(lines((EVENTS_V1.validate_create)(&event(""))), [""; 0]);
        assert_eq!(
            lines((EVENTS_V1.validate_create)(&event(
                r#", "deprecatedCount": 1, "deprecatedSource": {"host": "h"}, "series": {"count": 1}"#
            ))),
            [
                r#"series.count: Invalid value: "": should be at least 2"#,
                "series.lastObservedTime: Required value",
                r#"count: Invalid value: "": needs to be unset"#,
                r#"source: Invalid value: "": needs to be unset"#,
            ]
        );
        let changed = event(r#", "note": "n""#);
        assert_eq!(
            lines((EVENTS_V1.validate_update)(&changed, &event(""), None)),
            [r#"message: Invalid value: "n": field is immutable"#]
        );
    }

    #[test]
    fn both_groups_show_the_same_event() {
        let core = object(
            r#"{"apiVersion": "v1", "kind": "Event", "involvedObject": {"name": "p"}, "message": "m",
                "reportingComponent": "k"}"#,
        );
        let new = (EVENTS_V1.from_stored)(core.clone());
        assert_eq!(get(&new, "regarding")["name"], "p");
        assert_eq!(get(&new, "note"), "m");
        assert_eq!(get(&new, "apiVersion"), "events.k8s.io/v1");
        assert_eq!(selectable_fields(&new), selectable_fields(&core));
        assert_eq!((EVENTS_V1.to_stored)(new), core);
    }
}
