//! Event: something happened to an object. Events of core/v1 and events.k8s.io/v1 are the same
//! objects, kept in core's form and expired after an hour.

use crate::builtin::Builtin;
use crate::columns::{column, name_cell, since, wide};
use crate::tree::{get, int, is_set, namespace, text};
use crate::{Column, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    kind: "Event",
    plural: "events",
    short_names: &["ev"],
    schema: "core/v1.Event",
    creates_on_update: true,
    validate_create: validate,
    validate_update: |object, _, _: Subresource<'_>| validate(object),
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
    stored_as: Some("core/v1.Event"),
    to_stored: |object| renamed(object, "v1", |(new, old)| (new, old)),
    from_stored: |object| renamed(object, "events.k8s.io/v1", |(new, old)| (old, new)),
    validate_create: validate_new,
    validate_update: |_, _, _: Subresource<'_>| Vec::new(),
    selectable: SELECTABLE_V1,
    row: |object, now| row(&(EVENTS_V1.to_stored)(object.clone()), now),
    ..KIND
};

/// Fields that the two groups name differently: events.k8s.io's name, core's name.
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
    column("Reason", "string", "Why, in one word."),
    column("Object", "string", "What it is about."),
    wide("Subobject", "string", "Which part of it."),
    wide("Source", "string", "Who says so."),
    column("Message", "string", "What happened."),
    wide("First Seen", "string", "Time since it happened first."),
    wide("Count", "string", "How often."),
    Column {
        format: "name",
        ..wide("Name", "string", "Name of the event.")
    },
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

/// The fields under the names of both groups: an event is found through either, whoever wrote it.
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

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let path = Path::new("involvedObject").child("namespace");
    let about = text(&get(object, "involvedObject")["namespace"]);
    let own = namespace(object);
    // Events about objects without a namespace go to `default`.
    let fits = if about.is_empty() {
        own == "default" || own == "kube-system" || own.is_empty()
    } else {
        about == own
    };
    if !fits {
        errors.push(Error::invalid(
            &path,
            about,
            "does not match event.namespace",
        ));
    }
    errors
}

/// events.k8s.io is stricter with new events.
fn validate_new(object: &Object) -> Errors {
    let mut errors = Vec::new();
    if !is_set(get(object, "eventTime")) {
        errors.push(Error::required(&Path::new("eventTime"), ""));
    }
    let controller = text(get(object, "reportingController"));
    let at = Path::new("reportingController");
    if controller.is_empty() {
        errors.push(Error::required(&at, ""));
    } else {
        crate::check::form(
            format::qualified_name(controller),
            controller,
            &at,
            &mut errors,
        );
    }
    for (field, limit) in [("reportingInstance", 128), ("action", 128), ("reason", 128)] {
        let value = text(get(object, field));
        let at = Path::new(field);
        if value.is_empty() {
            errors.push(Error::required(&at, ""));
        } else if value.len() > limit {
            errors.push(Error::invalid(
                &at,
                "",
                format!("can have at most {limit} characters"),
            ));
        }
    }
    if text(get(object, "note")).len() > 1024 {
        errors.push(Error::invalid(
            &Path::new("message"),
            "",
            "can have at most 1024 characters",
        ));
    }
    let kind = text(get(object, "type"));
    if !matches!(kind, "Normal" | "Warning") {
        errors.push(Error::invalid(
            &Path::new("type"),
            "",
            "has invalid value: ".to_owned() + kind,
        ));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

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
