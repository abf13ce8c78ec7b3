//! AppArmor profiles that old clients set in annotations; kubelets read the field.

use super::security::{APP_ARMOR, check_app_armor};
use crate::tree::{each, get, is_set, text};
use machinery::field::Path;
use machinery::json::json;
use machinery::{Object, Value};

/// The profile that an annotation names, if any.
pub(super) fn app_armor_profile(annotation: &str) -> Option<Value> {
    match annotation {
        "unconfined" => Some(json!({"type": "Unconfined"})),
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        other => {
            let file = other.strip_prefix("localhost/").filter(|f| !f.is_empty())?;
            Some(json!({"type": "Localhost", "localhostProfile": file}))
        }
    }
}

/// Copies profiles from annotations into the fields of containers that have none.
pub(crate) fn copy_annotations(pod: &mut Object) {
    let annotations = get(pod, "metadata")["annotations"].clone();
    if crate::tree::entries(&annotations).all(|(key, _)| !key.starts_with(APP_ARMOR)) {
        return;
    }
    let spec = get(pod, "spec");
    if spec["os"]["name"] == "windows" {
        return;
    }
    let of_pod = spec["securityContext"]["appArmorProfile"].clone();
    let Some(Value::Object(spec)) = pod.get_mut("spec") else {
        return;
    };
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in each(spec, list) {
            let key = format!("{APP_ARMOR}{}", text(get(container, "name")));
            let own = &get(container, "securityContext")["appArmorProfile"];
            let Some(annotation) = annotations[key.as_str()].as_str().filter(|_| !is_set(own))
            else {
                continue;
            };
            let mut errors = Vec::new();
            let Some(profile) = app_armor_profile(annotation) else {
                continue;
            };
            check_app_armor(&profile, &Path::default(), &mut errors);
            if errors.is_empty() && profile != of_pod {
                crate::tree::child_or_new(container, "securityContext")
                    .insert("appArmorProfile".to_owned(), profile);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    #[test]
    fn annotations_become_fields() {
        let mut pod = object(
            r#"{"metadata": {"annotations": {
                "container.apparmor.security.beta.kubernetes.io/a": "localhost/p",
                "container.apparmor.security.beta.kubernetes.io/b": "unconfined",
                "container.apparmor.security.beta.kubernetes.io/c": "odd"}},
                "spec": {"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}],
                    "securityContext": {"appArmorProfile": {"type": "Unconfined"}}}}"#,
        );
        copy_annotations(&mut pod);
        let of = |i: usize| get(&pod, "spec")["containers"][i]["securityContext"].to_string();
        assert_eq!(
            of(0),
            r#"{"appArmorProfile":{"type":"Localhost","localhostProfile":"p"}}"#
        );
        assert_eq!(of(1), "null");
        assert_eq!(of(2), "null");
    }
}
