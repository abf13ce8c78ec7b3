//! LimitRange: limits and defaults for the resources of a namespace's pods and claims.

use crate::builtin::Builtin;
use crate::columns::{NAME_CREATED, name_created};
use crate::metadata::Check;
use crate::pod::{check_container_name, check_name, may_be_overcommitted};
use crate::tree::{child_or_new, each, entries, get, list, name, text};
use crate::{Context, Subresource, check};
use machinery::field::{Error, Errors, Path};
use machinery::quantity::Quantity;
use machinery::{Object, Value, format};
use std::collections::BTreeSet;

pub const KIND: Builtin = Builtin {
    kind: "LimitRange",
    plural: "limitranges",
    short_names: &["limits"],
    schema: "core/v1.LimitRange",
    allows_create_on_update: true,
    // A LimitRange without a name is named by its uid.
    prepare_create: |object, _: &Context<'_>| {
        if name(object).is_empty() {
            let uid = get(object, "metadata")["uid"].clone();
            child_or_new(object, "metadata").insert("name".to_owned(), uid);
        }
    },
    default,
    validate_create: validate,
    validate_update: |object, _, _: Subresource<'_>| validate(object),
    columns: NAME_CREATED,
    row: name_created,
    metadata_checks: &[Check::Whole],
    ..Builtin::EMPTY
};

/// Container defaults that follow from the given limits.
fn default(object: &mut Object) {
    for item in each(child_or_new(object, "spec"), "limits") {
        if get(item, "type") != "Container" {
            continue;
        }
        for (to, from) in [
            ("default", "max"),
            ("defaultRequest", "default"),
            ("defaultRequest", "min"),
        ] {
            let Some(source) = item.get(from).and_then(Value::as_object).cloned() else {
                continue;
            };
            let target = child_or_new(item, to);
            for (name, quantity) in source {
                target.entry(name).or_insert(quantity);
            }
        }
    }
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let path = Path::new("spec.limits");
    let mut kinds = BTreeSet::new();
    for (i, item) in list(&get(object, "spec")["limits"]).iter().enumerate() {
        let at = path.index(i);
        let kind = text(&item["type"]);
        check_kind(kind, &at.child("type"), &mut errors);
        if !kinds.insert(kind) {
            errors.push(Error::duplicate(&at.child("type"), kind));
        }
        check_names(item, kind, &at, &mut errors);
        for name in names(item) {
            check_order(item, name, &at, &mut errors);
        }
    }
    errors
}

fn check_kind(kind: &str, path: &Path, errors: &mut Errors) {
    let complaints = format::qualified_name(kind);
    let standard = ["Container", "PersistentVolumeClaim", "Pod"];
    if !complaints.is_empty() {
        check::form(complaints, kind, path, errors);
    } else if !kind.contains('/') && !standard.contains(&kind) {
        let detail = "must be a standard limit type or fully qualified";
        errors.push(Error::invalid(path, kind, detail));
    }
}

/// Every field that limits or defaults a resource, in the order of errors.
const FIELDS: &[&str] = &[
    "max",
    "min",
    "default",
    "defaultRequest",
    "maxLimitRequestRatio",
];

/// Whether a field applies to this type.
fn counts(kind: &str, field: &str) -> bool {
    kind != "Pod" || !field.starts_with("default")
}

fn check_names(item: &Value, kind: &str, path: &Path, errors: &mut Errors) {
    for field in FIELDS {
        let at = path.child(field);
        if !counts(kind, field) {
            if entries(&item[*field]).next().is_some() {
                let detail = "may not be specified when `type` is 'Pod'";
                errors.push(Error::forbidden(&at, detail));
            }
            continue;
        }
        if *field == "maxLimitRequestRatio"
            && kind == "PersistentVolumeClaim"
            && ["min", "max"]
                .iter()
                .all(|f| item[*f].get("storage").is_none())
        {
            let detail =
                "either minimum or maximum storage value is required, but neither was provided";
            errors.push(Error::required(&path.child("limits"), detail));
        }
        for (name, _) in entries(&item[*field]) {
            if matches!(kind, "Container" | "Pod") {
                check_container_name(name, &at.key(name), errors);
            } else {
                check_name(name, &at.key(name), errors);
            }
        }
    }
}

/// Every resource named in an item.
fn names(item: &Value) -> BTreeSet<&str> {
    let kind = text(&item["type"]);
    let fields = FIELDS.iter().filter(|f| counts(kind, f));
    fields
        .flat_map(|f| entries(&item[*f]))
        .map(|(name, _)| name.as_str())
        .collect()
}

/// min ≤ defaultRequest ≤ default ≤ max, and a ratio within these limits.
fn check_order(item: &Value, name: &str, path: &Path, errors: &mut Errors) {
    let kind = text(&item["type"]);
    let amount = |field: &str| -> Option<Quantity> {
        let value = item[field].get(name).filter(|_| counts(kind, field))?;
        text(value).parse().ok()
    };
    // The error's field, the field whose value it shows, the compared fields, and their names.
    let pairs = [
        ("min", "min", ("min", "min"), ("max", "max")),
        (
            "defaultRequest",
            "defaultRequest",
            ("min", "min"),
            ("defaultRequest", "default request"),
        ),
        (
            "defaultRequest",
            "defaultRequest",
            ("defaultRequest", "default request"),
            ("max", "max"),
        ),
        (
            "defaultRequest",
            "defaultRequest",
            ("defaultRequest", "default request"),
            ("default", "default limit"),
        ),
        ("default", "min", ("min", "min"), ("default", "default")),
        ("default", "max", ("default", "default"), ("max", "max")),
    ];
    for (at, shown, (low, low_name), (high, high_name)) in pairs {
        if let (Some(a), Some(b)) = (amount(low), amount(high))
            && a > b
        {
            let detail = format!("{low_name} value {a} is greater than {high_name} value {b}");
            let at = path.child(at);
            let at = at.key(name);
            errors.push(Error::invalid(&at, item[shown][name].clone(), detail));
        }
    }
    let at = path.child("maxLimitRequestRatio");
    let at = at.key(name);
    if let Some(ratio) = amount("maxLimitRequestRatio") {
        let shown = || item["maxLimitRequestRatio"][name].clone();
        if ratio < Quantity::from_millis(1000) {
            let detail = format!("ratio {ratio} is less than 1");
            errors.push(Error::invalid(&at, shown(), detail));
        }
        if let (Some(min), Some(max)) = (amount("min"), amount("max")) {
            let limit = max.to_f64() / min.to_f64();
            if ratio.to_f64() > limit {
                let detail = format!("ratio {ratio} is greater than max/min = {limit:.6}");
                errors.push(Error::invalid(&at, shown(), detail));
            }
        }
    }
    if let (Some(limit), Some(request)) = (amount("default"), amount("defaultRequest"))
        && !may_be_overcommitted(name)
        && limit != request
    {
        let detail =
            format!("default value {limit} must equal to defaultRequest value {request} in {name}");
        let at = path.child("defaultRequest");
        let at = at.key(name);
        errors.push(Error::invalid(
            &at,
            item["defaultRequest"][name].clone(),
            detail,
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn limits_are_min_default_max_in_order() {
        let range = |item: &str| object(&format!(r#"{{"spec": {{"limits": [{item}]}}}}"#));
        let good = range(
            r#"{"type": "Container", "min": {"cpu": "1"}, "defaultRequest": {"cpu": "2"}, "default": {"cpu": "3"},
                "max": {"cpu": "4"}, "maxLimitRequestRatio": {"cpu": "4"}}"#,
        );
        assert_eq!(lines(validate(&good)), [""; 0]);
        let bad = range(
            r#"{"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "3"}}"#,
        );
        assert_eq!(
            lines(validate(&bad)),
            [
                "spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1",
                "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"3\": ratio 3 is greater than max/min = 0.500000",
            ]
        );
        let claim = range(r#"{"type": "PersistentVolumeClaim"}"#);
        assert_eq!(
            lines(validate(&claim)),
            [
                "spec.limits[0].limits: Required value: either minimum or maximum storage value is required, but neither was provided"
            ]
        );
    }

    #[test]
    fn a_range_without_a_name_is_called_by_its_uid() {
        let mut range = object(r#"{"metadata": {"uid": "u"}}"#);
        let context = Context { now: "", user: "" };
        (KIND.prepare_create)(&mut range, &context);
        assert_eq!(name(&range), "u");
    }
}
