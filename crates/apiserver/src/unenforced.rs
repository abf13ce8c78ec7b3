//! Fields that the API accepts but nothing enforces yet: a client that sets one gets a Warning
//! header. One line for each gap; remove the line when the gap is closed.
//!
//! A write warns only of fields that it adds, not of those that the stored object already has.

use machinery::{Object, Value, text::same};

/// Whether a value requests the unenforced behaviour.
type Asks = fn(&Value) -> bool;

/// A field that has no effect.
struct UnenforcedField {
    group: &'static str,
    resource: &'static str,
    /// The field's path; `[]` after a name iterates a list. Empty for the whole object.
    path: &'static str,
    /// Whether a value requests the unenforced behaviour.
    asks: Asks,
    /// The warning.
    text: &'static str,
}

const fn gap(
    group: &'static str,
    resource: &'static str,
    path: &'static str,
    asks: Asks,
    text: &'static str,
) -> UnenforcedField {
    UnenforcedField {
        group,
        resource,
        path,
        asks,
        text,
    }
}

const DEVICES: &str = "devices are allocated, but nodes have no drivers for them yet; pods that use them do not start";

const GAPS: &[UnenforcedField] = &[
    gap("resource.k8s.io", "resourceclaims", "", any, DEVICES),
    gap(
        "resource.k8s.io",
        "resourceclaimtemplates",
        "",
        any,
        DEVICES,
    ),
    gap(
        "storage.k8s.io",
        "csidrivers",
        "spec.seLinuxMount",
        is_true,
        "volumes are mounted without SELinux labels",
    ),
];

/// Gaps in pods and pod templates, relative to the pod spec.
const POD_GAPS: &[(&str, Asks, &str)] = &[
    ("resourceClaims[]", any, DEVICES),
    (
        "schedulingGroup",
        any,
        "pods of a group are still scheduled one by one",
    ),
];

/// The path of the pod spec in each kind.
const POD_SPECS: &[(&str, &str, &str)] = &[
    ("", "pods", "spec"),
    ("", "podtemplates", "template.spec"),
    ("", "replicationcontrollers", "spec.template.spec"),
    ("apps", "deployments", "spec.template.spec"),
    ("apps", "replicasets", "spec.template.spec"),
    ("apps", "statefulsets", "spec.template.spec"),
    ("apps", "daemonsets", "spec.template.spec"),
    ("batch", "jobs", "spec.template.spec"),
    ("batch", "cronjobs", "spec.jobTemplate.spec.template.spec"),
];

fn any(value: &Value) -> bool {
    !value.is_null()
}

fn is_true(value: &Value) -> bool {
    *value == true
}

/// Warnings about fields of an object that have no effect, except those that the stored object already has.
pub(crate) fn warnings(
    group: &str,
    resource: &str,
    object: &Object,
    old: Option<&Object>,
) -> Vec<String> {
    let mut found = Vec::new();
    for gap in GAPS {
        if gap.resource == resource && same(gap.group, group) {
            find_unenforced(object, old, gap.path, gap.asks, gap.text, &mut found);
        }
    }
    let spec = POD_SPECS
        .iter()
        .find(|spec| spec.1 == resource && same(spec.0, group));
    if let Some((_, _, spec)) = spec {
        for (path, asks, text) in POD_GAPS {
            find_unenforced(
                object,
                old,
                &format!("{spec}.{path}"),
                *asks,
                text,
                &mut found,
            );
        }
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

    fn said(group: &str, resource: &str, object: Value, old: Option<Value>) -> Vec<String> {
        let read = |value: &Value| value.as_object().unwrap().clone();
        let old = old.as_ref().map(read);
        warnings(group, resource, &read(&object), old.as_ref())
    }

    #[test]
    fn fields_without_effect_are_warned_about_with_their_path() {
        let pod = json!({"spec": {"schedulingGroup": {"podGroupName": "a"}}});
        let said = said("", "pods", pod, None);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("spec.schedulingGroup: pods of a group "));
    }

    #[test]
    fn a_switch_that_is_off_asks_for_nothing() {
        let driver = |on: bool| json!({"spec": {"seLinuxMount": on}});
        assert!(said("storage.k8s.io", "csidrivers", driver(false), None).is_empty());
        let said = said("storage.k8s.io", "csidrivers", driver(true), None);
        assert!(
            said.len() == 1 && said[0].starts_with("spec.seLinuxMount: "),
            "{said:?}"
        );
    }

    #[test]
    fn templates_are_looked_into_like_pods() {
        let spec = json!({"resourceClaims": [{"name": "a"}], "overhead": {}});
        let cron = json!({"spec": {"jobTemplate": {"spec": {"template": {"spec": spec}}}}});
        for (group, resource, object, place) in [
            ("", "pods", json!({"spec": spec}), "spec"),
            (
                "batch",
                "cronjobs",
                cron,
                "spec.jobTemplate.spec.template.spec",
            ),
        ] {
            let said = said(group, resource, object, None);
            let start = format!("{place}.resourceClaims[0]: devices are allocated");
            assert!(said.len() == 1 && said[0].starts_with(&start), "{said:?}");
        }
    }

    #[test]
    fn only_new_fields_of_a_write_are_warned_about() {
        let claims = |names: &[&str]| {
            let claims = names.iter().map(|name| json!({"name": name}));
            json!({"spec": {"resourceClaims": claims.collect::<Vec<_>>()}})
        };
        let (one, two) = (claims(&["a"]), claims(&["a", "b"]));
        let said =
            |object: &Value, old: &Value| said("", "pods", object.clone(), Some(old.clone()));
        assert!(said(&one, &one).is_empty());
        let added = said(&two, &one);
        assert!(
            added.len() == 1 && added[0].starts_with("spec.resourceClaims[1]: "),
            "{added:?}"
        );
    }

    #[test]
    fn every_line_names_a_kind_that_is_served() {
        let registry = crate::Registry::builtin();
        let table = registry.table();
        let served = |group: &str, resource: &str| table.any_version(group, resource).is_some();
        for gap in GAPS {
            assert!(
                served(gap.group, gap.resource),
                "{}/{}",
                gap.group,
                gap.resource
            );
        }
        for (group, resource, _) in POD_SPECS {
            assert!(served(group, resource), "{group}/{resource}");
        }
    }
}
