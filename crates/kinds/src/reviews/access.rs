//! Validation of access reviews, and their selectors.

use crate::check;
use crate::shown::{GoField, GoType, shown};
use crate::tree::{get, is_set, list, text};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};

/// The subject of a review.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// The requesting user.
    Requester,
    /// Any user.
    AnyUser,
    /// Any user, in this namespace.
    AnyUserInNamespace,
}

const PATH: &[GoField] = &[
    GoField("path", "Path", GoType::Text),
    GoField("verb", "Verb", GoType::Text),
];

/// Validates a review.
pub fn validate(review: &Object, about: About) -> Errors {
    let mut errors = Vec::new();
    let (spec, path) = (get(review, "spec"), Path::new("spec"));
    let (resource, other) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let at = path.child("nonResourceAttributes");
    match (is_set(resource), is_set(other)) {
        (true, true) => {
            let detail = "cannot be specified in combination with resourceAttributes";
            errors.push(Error::invalid(&at, shown(other, PATH), detail));
        }
        (false, false) => {
            let detail =
                "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            let at = path.child("resourceAttributes");
            errors.push(Error::invalid(&at, Value::Null, detail));
        }
        _ => {}
    }
    if about != About::Requester
        && text(&spec["user"]).is_empty()
        && list(&spec["groups"]).is_empty()
    {
        let detail = "at least one of user or group must be specified";
        errors.push(Error::invalid(&path.child("user"), "", detail));
    }
    let selectors = path.child("resourceAttributes");
    for (name, check) in [
        (
            "fieldSelector",
            check_field as fn(&Value, &Path, &mut Errors),
        ),
        ("labelSelector", check_label),
    ] {
        check_selector(&resource[name], check, &selectors.child(name), &mut errors);
    }
    check_metadata(get(review, "metadata"), about, &mut errors);
    if about == About::AnyUserInNamespace {
        let here = text(&get(review, "metadata")["namespace"]);
        let asked = text(&resource["namespace"]);
        if is_set(resource) && asked != here {
            let at = selectors.child("namespace");
            let detail = "must match metadata.namespace";
            errors.push(Error::invalid(&at, asked, detail));
        }
        if is_set(other) {
            let detail = "disallowed on this kind of request";
            errors.push(Error::invalid(&at, shown(other, PATH), detail));
        }
    }
    errors
}

fn check_metadata(metadata: &Value, about: About, errors: &mut Errors) {
    let is_here = about == About::AnyUserInNamespace;
    let mut entries = crate::tree::entries(metadata);
    let may_stand = |key: &str| key == "managedFields" || (is_here && key == "namespace");
    if entries.any(|(key, value)| !may_stand(key) && !crate::tree::is_empty(value)) {
        let detail = match is_here {
            true => "must be empty except for namespace",
            false => "must be empty",
        };
        errors.push(Error::invalid(
            &Path::new("metadata"),
            metadata.clone(),
            detail,
        ));
    }
}

fn check_selector(
    selector: &Value,
    check: fn(&Value, &Path, &mut Errors),
    path: &Path,
    errors: &mut Errors,
) {
    if !is_set(selector) {
        return;
    }
    let (raw, requirements) = (
        text(&selector["rawSelector"]),
        list(&selector["requirements"]),
    );
    if !raw.is_empty() && !requirements.is_empty() {
        let detail = "may not specified at the same time as requirements";
        errors.push(Error::invalid(&path.child("rawSelector"), raw, detail));
    }
    if raw.is_empty() && requirements.is_empty() {
        let detail = format!("when {path} is specified, requirements or rawSelector is required");
        errors.push(Error::required(&path.child("requirements"), detail));
    }
    for (i, requirement) in requirements.iter().enumerate() {
        check(requirement, &path.child("requirements").index(i), errors);
    }
}

fn check_values(requirement: &Value, path: &Path, errors: &mut Errors) {
    let (values, at) = (list(&requirement["values"]), path.child("values"));
    match text(&requirement["operator"]) {
        "In" | "NotIn" if values.is_empty() => {
            let detail = "must be specified when `operator` is 'In' or 'NotIn'";
            errors.push(Error::required(&at, detail));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.push(Error::forbidden(&at, detail));
        }
        // Unknown operators are accepted: newer clients may have more.
        _ => {}
    }
}

fn check_field(requirement: &Value, path: &Path, errors: &mut Errors) {
    if text(&requirement["key"]).is_empty() {
        errors.push(Error::required(&path.child("key"), "must be specified"));
    }
    check_values(requirement, path, errors);
}

fn check_label(requirement: &Value, path: &Path, errors: &mut Errors) {
    check_values(requirement, path, errors);
    let key = text(&requirement["key"]);
    check::form(format::qualified_name(key), key, &path.child("key"), errors);
    let at = path.child("values");
    for (i, value) in list(&requirement["values"]).iter().enumerate() {
        let (value, at) = (text(value), at.index(i));
        check::form(format::label_value(value), value, &at, errors);
    }
}

/// A field selector as text, and whether parts of it could not be represented.
pub fn field_selector(selector: &Value) -> (String, bool) {
    let raw = text(&selector["rawSelector"]);
    if !raw.is_empty() {
        return (raw.to_owned(), false);
    }
    let mut terms = Vec::new();
    let mut is_cut = false;
    for requirement in list(&selector["requirements"]) {
        let (key, values) = (text(&requirement["key"]), list(&requirement["values"]));
        let operator = match text(&requirement["operator"]) {
            "In" => "=",
            "NotIn" => "!=",
            _ => "",
        };
        match values {
            [value] if !operator.is_empty() => {
                terms.push(format!("{key}{operator}{}", text(value)))
            }
            _ => is_cut = true,
        }
    }
    (terms.join(","), is_cut)
}

/// The same for labels.
pub fn label_selector(selector: &Value) -> (String, bool) {
    let raw = text(&selector["rawSelector"]);
    if !raw.is_empty() {
        return (raw.to_owned(), false);
    }
    let mut terms = Vec::new();
    let mut is_cut = false;
    for requirement in list(&selector["requirements"]) {
        let key = text(&requirement["key"]);
        let values: Vec<&str> = list(&requirement["values"]).iter().map(text).collect();
        let values = values.join(",");
        match text(&requirement["operator"]) {
            "In" => terms.push(format!("{key} in ({values})")),
            "NotIn" => terms.push(format!("{key} notin ({values})")),
            "Exists" => terms.push(key.to_owned()),
            "DoesNotExist" => terms.push(format!("!{key}")),
            _ => is_cut = true,
        }
    }
    (terms.join(","), is_cut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};
    use machinery::json::json;

    fn messages(spec: &str, about: About) -> Vec<String> {
        let json = format!(r#"{{"metadata": {{"namespace": "n"}}, "spec": {spec}}}"#);
        lines(validate(&object(&json), about))
    }

    #[test]
    fn an_access_review_needs_one_kind_of_attributes_and_a_user_or_group() {
        assert_eq!(
            messages("{}", About::AnyUserInNamespace),
            [
                "spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified",
                "spec.user: Invalid value: \"\": at least one of user or group must be specified",
            ]
        );
        assert_eq!(
            messages(
                r#"{"user": "u", "nonResourceAttributes": {"path": "/x"}}"#,
                About::AnyUserInNamespace
            ),
            [
                r#"spec.nonResourceAttributes: Invalid value: {"Path":"/x","Verb":""}: disallowed on this kind of request"#
            ]
        );
        assert_eq!(
            messages(
                r#"{"user": "u", "resourceAttributes": {"namespace": "m"}}"#,
                About::AnyUserInNamespace
            ),
            [
                "spec.resourceAttributes.namespace: Invalid value: \"m\": must match metadata.namespace"
            ]
        );
        assert_eq!(
            messages(r#"{"resourceAttributes": {}}"#, About::Requester),
            [r#"metadata: Invalid value: {"namespace":"n"}: must be empty"#]
        );
    }

    #[test]
    fn selectors_are_raw_or_in_parts() {
        let selector = |fields: &str| {
            let spec =
                format!(r#"{{"user": "u", "resourceAttributes": {{"namespace": "n", {fields}}}}}"#);
            messages(&spec, About::AnyUserInNamespace)
        };
        assert_eq!(
            selector(r#""fieldSelector": {}"#),
            [
                "spec.resourceAttributes.fieldSelector.requirements: Required value: when spec.resourceAttributes.fieldSelector is specified, requirements or rawSelector is required"
            ]
        );
        assert_eq!(
            selector(
                r#""fieldSelector": {"rawSelector": "a=b", "requirements": [{"operator": "In"}]}"#
            ),
            [
                "spec.resourceAttributes.fieldSelector.rawSelector: Invalid value: \"a=b\": may not specified at the same time as requirements",
                "spec.resourceAttributes.fieldSelector.requirements[0].key: Required value: must be specified",
                "spec.resourceAttributes.fieldSelector.requirements[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
            ]
        );
        assert_eq!(
            selector(
                r#""labelSelector": {"requirements": [{"key": "k", "operator": "Exists", "values": ["v"]}]}"#
            ),
            [
                "spec.resourceAttributes.labelSelector.requirements[0].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            ]
        );
    }

    #[test]
    fn unknown_selector_requirements_are_skipped_and_reported() {
        let parts = json!({"requirements": [
            {"key": "a", "operator": "In", "values": ["x"]},
            {"key": "b", "operator": "NotIn", "values": ["y"]},
            {"key": "c", "operator": "Near", "values": ["z"]}]});
        assert_eq!(field_selector(&parts), ("a=x,b!=y".to_owned(), true));
        assert_eq!(
            label_selector(&parts),
            ("a in (x),b notin (y)".to_owned(), true)
        );
        assert_eq!(
            field_selector(&json!({"rawSelector": "a=b"})),
            ("a=b".to_owned(), false)
        );
    }
}
