//! What may change in a pod that exists.

use crate::tree::{int, is_set, list, same, text};
use machinery::Value;
use machinery::field::{Error, Errors, Path};
use machinery::format;

const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Checks the new spec of a pod against the old one.
pub fn validate_spec_update(new: &Value, old: &Value, errors: &mut Errors) {
    let path = Path::new("spec");
    for name in ["containers", "initContainers"] {
        let at = path.child(name);
        if list(&new[name]).len() != list(&old[name]).len() {
            errors.push(Error::forbidden(
                &at,
                "pod updates may not add or remove containers",
            ));
            return;
        }
        for (i, container) in list(&new[name]).iter().enumerate() {
            if text(&container["image"]).is_empty() {
                errors.push(Error::required(&at.index(i).child("image"), ""));
            }
        }
    }
    check_deadline(new, old, &path, errors);
    check_tolerations(new, old, &path, errors);
    check_gates(new, old, &path, errors);
    if !same(&with_old_mutable_fields(new, old), old) {
        let detail = format!("pod updates may not change fields other than {UPDATABLE}");
        errors.push(Error::forbidden(&path, detail));
    }
}

/// The new spec with everything that may change put back to what it was.
fn with_old_mutable_fields(new: &Value, old: &Value) -> Value {
    let mut spec = new.clone();
    let Value::Object(map) = &mut spec else {
        return spec;
    };
    for name in ["containers", "initContainers"] {
        if let Some(Value::Array(containers)) = map.get_mut(name) {
            for (container, was) in containers.iter_mut().zip(list(&old[name])) {
                container["image"] = was["image"].clone();
            }
        }
    }
    for name in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        map.insert(name.to_owned(), old[name].clone());
    }
    if int(&old["terminationGracePeriodSeconds"]) < 0
        && int(&new["terminationGracePeriodSeconds"]) == 1
    {
        let name = "terminationGracePeriodSeconds";
        map.insert(name.to_owned(), old[name].clone());
    }
    // Until its gates open, a pod's choice of nodes may be narrowed.
    if !list(&old["schedulingGates"]).is_empty() {
        map.insert("nodeSelector".to_owned(), old["nodeSelector"].clone());
        map.insert("affinity".to_owned(), old["affinity"].clone());
    }
    spec
}

fn check_deadline(new: &Value, old: &Value, path: &Path, errors: &mut Errors) {
    let at = path.child("activeDeadlineSeconds");
    let (new, old) = (&new["activeDeadlineSeconds"], &old["activeDeadlineSeconds"]);
    if is_set(new) {
        let complaints = format::in_range(int(new), 0, i64::from(i32::MAX));
        errors.extend(
            complaints
                .into_iter()
                .map(|c| Error::invalid(&at, int(new), c)),
        );
        if is_set(old) && int(old) < int(new) {
            let detail = "must be less than or equal to previous value";
            errors.push(Error::invalid(&at, int(new), detail));
        }
    } else if is_set(old) {
        let detail = "must not update from a positive integer to nil value";
        errors.push(Error::invalid(&at, Value::Null, detail));
    }
}

fn check_tolerations(new: &Value, old: &Value, path: &Path, errors: &mut Errors) {
    let without_seconds = |t: &Value| {
        let mut t = t.clone();
        if let Value::Object(map) = &mut t {
            map.shift_remove("tolerationSeconds");
        }
        t
    };
    let all: Vec<Value> = list(&new["tolerations"])
        .iter()
        .map(without_seconds)
        .collect();
    let kept = list(&old["tolerations"])
        .iter()
        .all(|t| all.iter().any(|n| same(n, &without_seconds(t))));
    if !kept {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(Error::forbidden(&path.child("tolerations"), detail));
    }
}

fn check_gates(new: &Value, old: &Value, path: &Path, errors: &mut Errors) {
    for (i, gate) in list(&new["schedulingGates"]).iter().enumerate() {
        if !list(&old["schedulingGates"])
            .iter()
            .any(|g| g["name"] == gate["name"])
        {
            let at = path.child("schedulingGates").index(i).child("name");
            let detail = "only deletion is allowed, but found new scheduling gate";
            errors.push(Error::forbidden(
                &at,
                format!("{detail} '{}'", text(&gate["name"])),
            ));
        }
    }
}

/// Why a pod cannot be bound to a node now; `None` when it can.
pub fn check_binding_rules(pod: &machinery::Object) -> Option<String> {
    let spec = super::spec::of(pod);
    let node = text(&spec["nodeName"]);
    if is_set(&crate::tree::get(pod, "metadata")["deletionTimestamp"]) {
        return Some(format!(
            "pod {} is being deleted, cannot be assigned to a host",
            crate::tree::name(pod)
        ));
    }
    if !node.is_empty() {
        return Some(format!(
            "pod {} is already assigned to node \"{node}\"",
            crate::tree::name(pod)
        ));
    }
    if !list(&spec["schedulingGates"]).is_empty() {
        return Some(format!(
            "pod {} has non-empty .spec.schedulingGates",
            crate::tree::name(pod)
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::lines;
    use serde_json::json;

    fn found(new: &Value, old: &Value) -> Vec<String> {
        let mut errors = Vec::new();
        validate_spec_update(new, old, &mut errors);
        lines(errors)
    }

    #[test]
    fn only_few_fields_of_a_pod_may_change() {
        let old =
            json!({"containers": [{"name": "c", "image": "a"}], "tolerations": [{"key": "k"}]});
        let image = json!({"containers": [{"name": "c", "image": "b"}], "tolerations": [{"key": "k"}, {"key": "l"}]});
        assert_eq!(found(&image, &old), Vec::<String>::new());
        let name =
            json!({"containers": [{"name": "d", "image": "a"}], "tolerations": [{"key": "k"}]});
        assert!(found(&name, &old)[0].starts_with("spec: Forbidden: pod updates may not change"));
        let more = json!({"containers": []});
        assert_eq!(
            found(&more, &old),
            ["spec.containers: Forbidden: pod updates may not add or remove containers"]
        );
    }
}
