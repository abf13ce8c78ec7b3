//! Fields that the API accepts but nothing enforces yet: a client that sets one gets a Warning
//! header. A kind lists its fields; remove the line when the gap is closed. Those of pods concern
//! all kinds with a pod template.
//!
//! A write warns only of fields that it adds, not of those that the stored object already has.

use machinery::{Object, Value};

/// Whether a value requests the unenforced behaviour.
type Asks = fn(&Value) -> bool;

/// A field that has no effect.
pub struct Unenforced {
    /// The field's path; `[]` after a name iterates a list. Empty for the whole object.
    pub path: &'static str,
    /// Whether a value requests the unenforced behaviour.
    pub asks: Asks,
    pub warning: &'static str,
}

pub(crate) const DEVICES: &str = "devices are allocated, but nodes have no drivers for them yet; pods that use them do not start";

/// A kind whose objects request devices.
pub(crate) const REQUESTS_DEVICES: &[Unenforced] = &[Unenforced {
    path: "",
    asks: is_given,
    warning: DEVICES,
}];

/// Gaps in pods and pod templates, relative to the pod spec.
const POD_FIELDS: &[Unenforced] = &[
    Unenforced {
        path: "resourceClaims[]",
        asks: is_given,
        warning: DEVICES,
    },
    Unenforced {
        path: "schedulingGroup",
        asks: is_given,
        warning: "pods of a group are still scheduled one by one",
    },
];

fn is_given(value: &Value) -> bool {
    !value.is_null()
}

pub(crate) fn is_true(value: &Value) -> bool {
    *value == true
}

/// Warnings about fields of an object that have no effect, except those that the stored object
/// already has. `pod_spec` is the path of the pod spec in it, or empty.
pub(crate) fn warnings(
    fields: &[Unenforced],
    pod_spec: &str,
    object: &Object,
    old: Option<&Object>,
) -> Vec<String> {
    let mut found = Vec::new();
    for field in fields {
        let (path, asks) = (field.path, field.asks);
        find_unenforced(object, old, path, asks, field.warning, &mut found);
    }
    if pod_spec.is_empty() {
        return found;
    }
    for field in POD_FIELDS {
        let path = format!("{pod_spec}.{}", field.path);
        let asks = field.asks;
        find_unenforced(object, old, &path, asks, field.warning, &mut found);
    }
    found
}

fn find_unenforced(
    object: &Object,
    old: Option<&Object>,
    path: &str,
    asks: Asks,
    text: &str,
    found: &mut Vec<String>,
) {
    if path.is_empty() {
        if old.is_none() {
            found.push(text.to_owned());
        }
        return;
    }
    let before = old.map(|old| at(old, path)).unwrap_or_default();
    for (place, value) in at(object, path) {
        let is_new = !before.iter().any(|(_, known)| *known == value);
        if is_new && asks(value) {
            found.push(format!("{place}: {text}"));
        }
    }
}

/// Every value at a path, with its full path.
fn at<'a>(object: &'a Object, path: &str) -> Vec<(String, &'a Value)> {
    let mut steps = path.split('.');
    let Some(first) = steps.next() else {
        return Vec::new();
    };
    let (name, is_list) = step(first);
    let Some(value) = object.get(name) else {
        return Vec::new();
    };
    let mut found = spread(name.to_owned(), value, is_list);
    for next in steps {
        let (name, is_list) = step(next);
        let below = found.into_iter().flat_map(|(place, value)| {
            let value = value.get(name);
            let all = value.map(|value| spread(format!("{place}.{name}"), value, is_list));
            all.unwrap_or_default()
        });
        found = below.collect();
    }
    found
}

fn step(text: &str) -> (&str, bool) {
    match text.strip_suffix("[]") {
        Some(name) => (name, true),
        None => (text, false),
    }
}

fn spread(place: String, value: &Value, is_list: bool) -> Vec<(String, &Value)> {
    if !is_list {
        return vec![(place, value)];
    }
    let list = value.as_array().into_iter().flatten().enumerate();
    list.map(|(index, value)| (format!("{place}[{index}]"), value))
        .collect()
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::{apps, batch, builtin::Builtin, core, storage};

    fn given(kind: &Builtin, object: Value, old: Option<Value>) -> Vec<String> {
        let read = |value: &Value| value.as_object().unwrap().clone();
        let old = old.as_ref().map(read);
        let (fields, pod_spec) = (kind.unenforced, kind.pod_spec);
        warnings(fields, pod_spec, &read(&object), old.as_ref())
    }

    #[test]
    fn fields_without_effect_are_warned_about_with_their_path() {
        let pod = json!({"spec": {"schedulingGroup": {"podGroupName": "a"}}});
        let given = given(&core::pod::KIND, pod, None);
        assert_eq!(given.len(), 1, "{given:?}");
        assert!(given[0].starts_with("spec.schedulingGroup: pods of a group "));
    }

    #[test]
    fn a_switch_that_is_off_asks_for_nothing() {
        let kind = &storage::csi_driver::KIND;
        let driver = |on: bool| json!({"spec": {"seLinuxMount": on}});
        assert!(given(kind, driver(false), None).is_empty());
        let given = given(kind, driver(true), None);
        assert!(
            given.len() == 1 && given[0].starts_with("spec.seLinuxMount: "),
            "{given:?}"
        );
    }

    #[test]
    fn templates_are_looked_into_like_pods() {
        let spec = json!({"resourceClaims": [{"name": "a"}], "overhead": {}});
        let template = json!({"spec": {"template": {"spec": spec}}});
        for (kind, object, place) in [
            (&core::pod::KIND, json!({"spec": spec}), "spec"),
            (
                &core::pod_template::KIND,
                json!({"template": {"spec": spec}}),
                "template.spec",
            ),
            (
                &apps::deployment::KIND,
                template.clone(),
                "spec.template.spec",
            ),
            (
                &batch::cron_job::KIND,
                json!({"spec": {"jobTemplate": template}}),
                "spec.jobTemplate.spec.template.spec",
            ),
        ] {
            let given = given(kind, object, None);
            let start = format!("{place}.resourceClaims[0]: devices are allocated");
            assert!(
                given.len() == 1 && given[0].starts_with(&start),
                "{given:?}"
            );
        }
    }

    #[test]
    fn only_new_fields_of_a_write_are_warned_about() {
        let claims = |names: &[&str]| {
            let claims = names.iter().map(|name| json!({"name": name}));
            json!({"spec": {"resourceClaims": claims.collect::<Vec<_>>()}})
        };
        let (one, two) = (claims(&["a"]), claims(&["a", "b"]));
        let given = |object: &Value, old: &Value| {
            given(&core::pod::KIND, object.clone(), Some(old.clone()))
        };
        assert!(given(&one, &one).is_empty());
        let added = given(&two, &one);
        assert!(
            added.len() == 1 && added[0].starts_with("spec.resourceClaims[1]: "),
            "{added:?}"
        );
    }
}
