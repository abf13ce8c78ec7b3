//! Validation of pod updates.

use super::container::check_image_space;
use super::placement::check_tolerations;
use super::printed::printed_spec;
use crate::diff::unified;
use crate::equal::equal;
use crate::internal::{internal, internal_list};
use crate::tree::{entries, int, is_set, list, same, text};
use machinery::Value;
use machinery::field::{Error, Errors, Path};
use machinery::format;
use std::collections::{HashMap, HashSet};

const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Checks the new spec of a pod against the old one.
pub fn validate_spec_update(new: &Value, old: &Value, errors: &mut Errors) {
    let path = Path::new("spec");
    for name in ["containers", "initContainers"] {
        let at = path.child(name);
        if list(&new[name]).len() != list(&old[name]).len() {
            let detail = "pod updates may not add or remove containers";
            return errors.push(Error::forbidden(&at, detail));
        }
        for (i, container) in list(&new[name]).iter().enumerate() {
            let at = at.index(i);
            if text(&container["image"]).is_empty() {
                errors.push(Error::required(&at.child("image"), ""));
            }
            check_image_space(container, &at, errors);
        }
    }
    if check_deadline(new, old, &path, errors).is_err() {
        return;
    }
    check_only_added_tolerations(new, old, &path, errors);
    check_gates(new, old, &path, errors);
    let mut munged = with_old_mutable_fields(new, old);
    // While a pod has scheduling gates, its node selection may be narrowed.
    if !list(&old["schedulingGates"]).is_empty() {
        check_narrowed(&mut munged, old, &path, errors);
    }
    if !equal("core/v1.PodSpec", &munged, old) {
        let difference = unified(&printed_spec(old), &printed_spec(&munged));
        let detail =
            format!("pod updates may not change fields other than {UPDATABLE}\n{difference}");
        errors.push(Error::forbidden(&path, detail));
    }
}

/// The new spec with all mutable fields reset to their old values.
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
    spec
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// Validates placement changes of a gated pod, and resets them.
fn check_narrowed(spec: &mut Value, old: &Value, path: &Path, errors: &mut Errors) {
    let narrowed = entries(&old["nodeSelector"]).all(|(k, v)| spec["nodeSelector"][k] == *v);
    if !narrowed {
        let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        let at = path.child("nodeSelector");
        let new = spec["nodeSelector"].clone();
        errors.push(Error::invalid(&at, new, detail));
    }
    let was = &old["affinity"]["nodeAffinity"];
    let now = &spec["affinity"]["nodeAffinity"];
    let is_changed = now.is_null() != was.is_null() || !equal("core/v1.NodeAffinity", now, was);
    let affinity = path.child("affinity.nodeAffinity");
    check_terms(
        &now[REQUIRED],
        &was[REQUIRED],
        &affinity.child(REQUIRED),
        errors,
    );
    let Value::Object(map) = spec else { return };
    map.insert("nodeSelector".to_owned(), old["nodeSelector"].clone());
    if !is_changed {
        return;
    }
    match map.get_mut("affinity") {
        Some(Value::Object(affinity)) => {
            let others = ["podAffinity", "podAntiAffinity"];
            let is_alone = others
                .iter()
                .all(|o| affinity.get(o).is_none_or(Value::is_null));
            if is_alone && old["affinity"].is_null() {
                map.shift_remove("affinity");
            } else {
                affinity.insert("nodeAffinity".to_owned(), was.clone());
            }
        }
        _ if is_set(was) => {
            let affinity = machinery::json::json!({"nodeAffinity": was});
            map.insert("affinity".to_owned(), affinity);
        }
        _ => {}
    }
}

const TERM: &str = "core/v1.NodeSelectorTerm";

/// The number of terms stays, and each may only gain requirements.
fn check_terms(new: &Value, old: &Value, path: &Path, errors: &mut Errors) {
    let at = path.child("nodeSelectorTerms");
    let (new, old) = (&new["nodeSelectorTerms"], list(&old["nodeSelectorTerms"]));
    if old.is_empty() {
        return;
    }
    if list(new).len() != old.len() {
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        return errors.push(Error::invalid(&at, internal_list(TERM, new), detail));
    }
    for (i, (new, old)) in list(new).iter().zip(old).enumerate() {
        if !has_only_additions(new, old) {
            let detail = "only additions are allowed (no mutations or deletions)";
            errors.push(Error::invalid(&at.index(i), internal(TERM, new), detail));
        }
    }
}

fn has_only_additions(new: &Value, old: &Value) -> bool {
    let fields = ["matchExpressions", "matchFields"];
    let is_empty = |term: &Value| fields.iter().all(|f| list(&term[*f]).is_empty());
    if is_empty(old) && !is_empty(new) {
        return false;
    }
    fields.iter().all(|field| {
        let (new, old) = (list(&new[*field]), list(&old[*field]));
        new.len() >= old.len() && new.iter().zip(old).all(|(n, o)| same(n, o))
    })
}

/// Returns an error if nothing else needs to be validated.
fn check_deadline(new: &Value, old: &Value, path: &Path, errors: &mut Errors) -> Result<(), ()> {
    let at = path.child("activeDeadlineSeconds");
    let (new, old) = (&new["activeDeadlineSeconds"], &old["activeDeadlineSeconds"]);
    if is_set(new) {
        let mut detail = format::in_range(int(new), 0, i64::from(i32::MAX)).pop();
        if is_set(old) && int(old) < int(new) {
            let smaller = "must be less than or equal to previous value".to_owned();
            detail.get_or_insert(smaller);
        }
        if let Some(detail) = detail {
            errors.push(Error::invalid(&at, int(new), detail));
            return Err(());
        }
    } else if is_set(old) {
        let detail = "must not update from a positive integer to nil value";
        errors.push(Error::invalid(&at, Value::Null, detail));
    }
    Ok(())
}

fn check_only_added_tolerations(new: &Value, old: &Value, path: &Path, errors: &mut Errors) {
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
    // Equal texts are found without comparing each with each.
    let texts: HashSet<String> = all.iter().map(ToString::to_string).collect();
    let kept = list(&old["tolerations"]).iter().all(|old| {
        let old = without_seconds(old);
        texts.contains(&old.to_string()) || all.iter().any(|new| same(new, &old))
    });
    if !kept {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        return errors.push(Error::forbidden(&path.child("tolerations"), detail));
    }
    check_tolerations(&new["tolerations"], &path.child("tolerations"), errors);
}

fn check_gates(new: &Value, old: &Value, path: &Path, errors: &mut Errors) {
    fn name(gate: &Value) -> &str {
        text(&gate["name"])
    }
    let known: HashSet<&str> = list(&old["schedulingGates"]).iter().map(name).collect();
    let gates = list(&new["schedulingGates"]).iter().enumerate();
    let last: HashMap<&str, usize> = gates.clone().map(|(i, gate)| (name(gate), i)).collect();
    for (i, gate) in gates {
        let is_repeated = last.get(name(gate)).is_some_and(|last| *last > i);
        if !is_repeated && !known.contains(name(gate)) {
            let at = path.child("schedulingGates");
            let at = at.index(i);
            let at = at.child("name");
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
    let spec = super::spec::pod_spec(pod);
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
    use machinery::json::json;

    fn found(new: &Value, old: &Value) -> Vec<String> {
        let mut errors = Vec::new();
        validate_spec_update(new, old, &mut errors);
        lines(errors)
    }

    #[test]
    fn a_pod_with_very_many_tolerations_and_gates_is_checked_in_linear_time() {
        let many = |prefix: &'static str| (0..20_000).map(move |i| format!("{prefix}{i}"));
        let tolerations = many("k").map(|key| json!({"key": key, "operator": "Exists"}));
        let gates = many("a.b/g").map(|name| json!({"name": name}));
        let constraints = many("zone").map(|key| json!({"topologyKey": key}));
        let spec = json!({
            "containers": [{"image": "a"}],
            "tolerations": tolerations.collect::<Vec<Value>>(),
            "schedulingGates": gates.collect::<Vec<Value>>(),
            "topologySpreadConstraints": constraints.collect::<Vec<Value>>(),
        });
        assert_eq!(found(&spec, &spec), [""; 0]);
        let mut errors = Errors::new();
        let path = Path::new("constraints");
        crate::pod::placement::check_spread(&spec["topologySpreadConstraints"], &path, &mut errors);
        let text = machinery::field::aggregate(&errors);
        assert!(
            text.ends_with("]") && !text.contains("Duplicate"),
            "{}",
            errors.len()
        );
    }

    #[test]
    fn only_few_fields_of_a_pod_may_change() {
        let old = json!({"containers": [{"name": "c", "image": "a"}], "tolerations": [{"key": "k", "operator": "Exists"}]});
        let image = json!({"containers": [{"name": "c", "image": "b"}], "tolerations": [{"key": "k", "operator": "Exists"}, {"key": "l"}]});
        assert_eq!(found(&image, &old), Vec::<String>::new());
        let name = json!({"containers": [{"name": "d", "image": "a"}], "tolerations": [{"key": "k", "operator": "Exists"}]});
        assert!(found(&name, &old)[0].starts_with("spec: Forbidden: pod updates may not change"));
        assert!(found(&name, &old)[0].ends_with(
            "\n@@ -3,7 +3,7 @@\n  \"InitContainers\": null,\n  \"Containers\": [\n   {\n-   \"Name\": \"c\",\n+   \"Name\": \"d\",\n    \"Image\": \"a\",\n    \"Command\": null,\n    \"Args\": null,\n"
        ));
        let more = json!({"containers": []});
        assert_eq!(
            found(&more, &old),
            ["spec.containers: Forbidden: pod updates may not add or remove containers"]
        );
        let empty = json!({"containers": [{"name": "c", "image": "a"}], "affinity": {},
            "tolerations": [{"key": "k", "operator": "Exists"}]});
        assert_eq!(found(&empty, &old).len(), 1);
    }

    #[test]
    fn a_gated_pod_may_narrow_where_it_goes() {
        let pod = |selector: Value, terms: Value| {
            let required = json!({"nodeSelectorTerms": terms});
            json!({"containers": [], "schedulingGates": [{"name": "g"}], "nodeSelector": selector,
                "affinity": {"nodeAffinity": {REQUIRED: required}}})
        };
        let term = |values: &[&str]| json!({"matchExpressions": [{"key": "k", "operator": "In", "values": values}]});
        let old = pod(json!({"a": "b"}), json!([term(&["v"])]));
        let more = pod(json!({"a": "b", "c": "d"}), json!([term(&["v"])]));
        assert_eq!(found(&more, &old), [""; 0]);
        let other = pod(json!({}), json!([term(&["w"])]));
        assert_eq!(
            found(&other, &old),
            [
                "spec.nodeSelector: Invalid value: {}: only additions to spec.nodeSelector are allowed (no mutations or deletions)",
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]: Invalid value: {\"MatchExpressions\":[{\"Key\":\"k\",\"Operator\":\"In\",\"Values\":[\"w\"]}],\"MatchFields\":null}: only additions are allowed (no mutations or deletions)",
            ]
        );
        let added = json!({"containers": [], "schedulingGates": [{"name": "h"}]});
        let gated = json!({"containers": [], "schedulingGates": [{"name": "g"}]});
        assert_eq!(
            found(&added, &gated),
            [
                "spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'h'"
            ]
        );
    }
}
