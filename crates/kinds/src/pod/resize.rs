//! What a resize may change in a pod: cpu and memory of its containers and of the pod.

use super::resources::quality_of_service;
use crate::equal::equal;
use crate::tree::{entries, get, is_empty, is_set, list, text};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};

const LISTS: &[&str] = &["containers", "initContainers"];
const CONTAINER: &str = "core/v1.Container";

/// Restores everything in the spec except what a resize may change. If containers are added,
/// removed or renamed, the new spec stays as it is for validation to reject.
pub(crate) fn keep_all_but_resources(new: &mut Value, old: &Value) {
    let length = |spec: &Value, name: &str| list(&spec[name]).len();
    if LISTS
        .iter()
        .any(|name| length(new, name) != length(old, name))
    {
        return;
    }
    let mut kept = old.clone();
    let Value::Object(map) = &mut kept else {
        return;
    };
    match new.get("resources").filter(|r| is_set(r)) {
        Some(resources) => map.insert("resources".to_owned(), resources.clone()),
        None => map.shift_remove("resources"),
    };
    for name in LISTS {
        let same_names = list(&new[*name])
            .iter()
            .zip(list(&old[*name]))
            .all(|(n, o)| n["name"] == o["name"]);
        if !same_names {
            map.insert((*name).to_owned(), new[*name].clone());
            continue;
        }
        let Some(Value::Array(containers)) = map.get_mut(name) else {
            continue;
        };
        for (container, asked) in containers.iter_mut().zip(list(&new[*name])) {
            for field in ["resources", "resizePolicy"] {
                let Value::Object(container) = container else {
                    continue;
                };
                match asked.get(field) {
                    Some(value) => container.insert(field.to_owned(), value.clone()),
                    None => container.shift_remove(field),
                };
            }
        }
    }
    *new = kept;
}

/// Validates a resize, beyond the rules of all pods.
pub(crate) fn validate_resize(pod: &Object, old: &Object, mut errors: Errors) -> Errors {
    let nothing = Path::default();
    let (new, was) = (get(pod, "spec"), get(old, "spec"));
    if is_set(&get(old, "metadata")["annotations"]["kubernetes.io/config.mirror"]) {
        let detail = "static pods cannot be resized";
        return vec![Error::forbidden(&nothing, detail)];
    }
    if was["os"]["name"] == "windows" {
        let detail = "windows pods cannot be resized";
        return vec![Error::forbidden(&nothing, detail)];
    }
    let path = Path::new("spec");
    let status = get(old, "status");
    let quality = match text(&status["qosClass"]) {
        "" => quality_of_service(was),
        class => class,
    };
    if quality != quality_of_service(new) {
        let detail = "Pod QOS Class may not change as a result of resizing";
        let shown = text(&get(pod, "status")["qosClass"]);
        errors.push(Error::invalid(&path, shown, detail));
    }
    let running = list(&status["containerStatuses"])
        .iter()
        .find(|c| is_set(&c["state"]["running"]));
    if running.is_some_and(|c| !is_set(&c["resources"])) {
        let detail = "Pod running on node without support for resize";
        errors.push(Error::forbidden(&path, detail));
    }
    check_pod_level(new, was, &path, &mut errors);
    if !list(&status["nodeAllocatableResourceClaimStatuses"]).is_empty() {
        let detail = "pods with node allocatable resource claims cannot be resized";
        errors.push(Error::forbidden(&path, detail));
    }
    if !check_order(new, was, &path, &mut errors) {
        return errors;
    }
    for name in ["initContainers", "containers"] {
        for (i, (n, o)) in list(&new[name]).iter().zip(list(&was[name])).enumerate() {
            let at = path.child(name);
            let at = at.index(i);
            let at = at.child("resources");
            check_removed(
                &n["resources"],
                &o["resources"],
                "resource",
                &at,
                &mut errors,
            );
        }
    }
    check_only_resources(new, was, &path, &mut errors);
    if errors.is_empty() && !equal("core/v1.PodSpec", &with_old_amounts(new, was), was) {
        let detail = "only cpu and memory resources are mutable";
        errors.push(Error::forbidden(&path, detail));
    }
    errors
}

fn has_amounts(resources: &Value) -> bool {
    !is_empty(&resources["requests"]) || !is_empty(&resources["limits"])
}

fn check_pod_level(new: &Value, old: &Value, path: &Path, errors: &mut Errors) {
    let (new, old) = (&new["resources"], &old["resources"]);
    if !has_amounts(new) && !has_amounts(old) {
        return;
    }
    let at = path.child("resources");
    if is_set(old) && !is_set(new) {
        let detail = "pod-level resources cannot be removed";
        return errors.push(Error::forbidden(&at, detail));
    }
    check_removed(new, old, "pod-level resource", &at, errors);
    let mut munged = new.clone();
    put_back(&mut munged, old);
    if !equal("core/v1.ResourceRequirements", &munged, old) {
        let detail = "only cpu and memory resources are mutable at pod-level";
        errors.push(Error::forbidden(path, detail));
    }
}

fn check_removed(new: &Value, old: &Value, what: &str, path: &Path, errors: &mut Errors) {
    for kind in ["requests", "limits"] {
        if entries(&old[kind]).any(|(name, _)| !is_set(&new[kind][name])) {
            let detail = format!("{what} {kind} cannot be removed");
            errors.push(Error::forbidden(&path.child(kind), detail));
        }
    }
}

/// Whether the containers are the same in the same order.
fn check_order(new: &Value, old: &Value, path: &Path, errors: &mut Errors) -> bool {
    let before = errors.len();
    for name in LISTS {
        let (new, old, at) = (list(&new[*name]), list(&old[*name]), path.child(name));
        if new.len() != old.len() {
            let detail = format!("{name} may not be added or removed on resize");
            errors.push(Error::forbidden(&at, detail));
            continue;
        }
        for (i, _) in (new.iter().zip(old).enumerate()).filter(|(_, (n, o))| n["name"] != o["name"])
        {
            let detail = format!("{name} may not be renamed or reordered on resize");
            errors.push(Error::forbidden(&at.index(i).child("name"), detail));
        }
    }
    errors.len() == before
}

/// Restores cpu and memory in `resources`.
fn put_back(resources: &mut Value, old: &Value) {
    for kind in ["limits", "requests"] {
        for name in ["cpu", "memory"] {
            let was = &old[kind][name];
            if is_set(was) {
                resources[kind][name] = was.clone();
            } else if let Some(Value::Object(map)) = resources.get_mut(kind) {
                map.shift_remove(name);
            }
        }
    }
}

fn with_old_amount(container: &Value, old: &Value) -> Value {
    let mut container = container.clone();
    if let Value::Object(map) = &mut container {
        let resources = map
            .entry("resources")
            .or_insert_with(|| Value::Object(Object::new()));
        if let Value::Object(map) = resources {
            // Claims cannot be resized.
            map.shift_remove("claims");
        }
        put_back(resources, &old["resources"]);
    }
    container
}

fn with_old_amounts(new: &Value, old: &Value) -> Value {
    let mut spec = new.clone();
    for name in LISTS {
        if let Some(Value::Array(containers)) = spec.get_mut(*name) {
            for (container, was) in containers.iter_mut().zip(list(&old[*name])) {
                *container = with_old_amount(container, was);
            }
        }
    }
    if is_set(&spec["resources"])
        && (has_amounts(&new["resources"]) || has_amounts(&old["resources"]))
    {
        put_back(&mut spec["resources"], &old["resources"]);
        if !is_set(&old["resources"]) && is_empty(&spec["resources"]) {
            spec["resources"] = Value::Null;
        }
    }
    spec
}

fn check_only_resources(new: &Value, old: &Value, path: &Path, errors: &mut Errors) {
    for (n, o) in list(&new["containers"])
        .iter()
        .zip(list(&old["containers"]))
    {
        if !equal(CONTAINER, &with_old_amount(n, o), o) {
            let detail = "only cpu and memory resources are mutable";
            errors.push(Error::forbidden(path, detail));
        }
    }
    let pairs = list(&new["initContainers"]).iter();
    for (i, (n, o)) in pairs.zip(list(&old["initContainers"])).enumerate() {
        let at = path.child("initContainers");
        let at = at.index(i);
        if !equal(CONTAINER, &with_old_amount(n, o), o) {
            let detail = "only cpu and memory resources for init or sidecar containers are mutable";
            errors.push(Error::forbidden(&at, detail));
        }
        if n["restartPolicy"] == "Always" || equal(CONTAINER, n, o) {
            continue;
        }
        for policy in list(&n["resizePolicy"]) {
            if policy["restartPolicy"] == "RestartContainer" {
                let detail = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
                errors.push(Error::forbidden(&at, detail));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};
    use machinery::json::json;

    fn pod(cpu: &str, image: &str) -> Object {
        object(&format!(
            r#"{{"spec": {{"containers": [{{"name": "c", "image": "{image}", "resources": {{"requests": {{"cpu": "{cpu}"}}}}}}]}},
                "status": {{"qosClass": "Burstable"}}}}"#
        ))
    }

    #[test]
    fn a_resize_changes_amounts_and_nothing_else() {
        let (old, mut new) = (pod("1", "a"), pod("2", "b"));
        assert_eq!(
            lines(validate_resize(&new, &old, Vec::new())),
            ["spec: Forbidden: only cpu and memory resources are mutable"]
        );
        let mut spec = get(&new, "spec").clone();
        keep_all_but_resources(&mut spec, get(&old, "spec"));
        new.insert("spec".to_owned(), spec);
        assert_eq!(lines(validate_resize(&new, &old, Vec::new())), [""; 0]);
        assert_eq!(get(&new, "spec")["containers"][0]["image"], "a");
        assert_eq!(
            get(&new, "spec")["containers"][0]["resources"]["requests"]["cpu"],
            "2"
        );
    }

    #[test]
    fn a_resize_keeps_the_qos_class_and_removes_no_resources() {
        let old = pod("1", "a");
        let mut new = old.clone();
        new.insert(
            "spec".to_owned(),
            json!({"containers": [{"name": "c", "image": "a", "resources": {}}]}),
        );
        assert_eq!(
            lines(validate_resize(&new, &old, Vec::new())),
            [
                "spec: Invalid value: \"Burstable\": Pod QOS Class may not change as a result of resizing",
                "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed",
            ]
        );
    }
}
