//! Which objects a quota counts: all, or pods and claims of certain scopes.

use machinery::{Object, Value};

use crate::tree;

/// Whether a quota with this spec counts an object.
pub fn matches(spec: &Value, resource: &str, object: &Object) -> bool {
    let scopes = tree::list(&spec["scopes"]).iter();
    let expressions = tree::list(&spec["scopeSelector"]["matchExpressions"]).iter();
    let mut scopes = scopes.map(|scope| (tree::text(scope), &Value::Null));
    let mut expressions = expressions.map(|e| (tree::text(&e["scopeName"]), e));
    scopes.all(|(scope, expression)| in_scope(scope, expression, resource, object))
        && expressions.all(|(scope, expression)| in_scope(scope, expression, resource, object))
}

fn in_scope(scope: &str, expression: &Value, resource: &str, object: &Object) -> bool {
    if resource == "persistentvolumeclaims" {
        return scope == "VolumeAttributesClass" && has_class(expression, object);
    }
    if resource != "pods" {
        return false;
    }
    let spec = tree::get(object, "spec");
    let terminating = is_terminating(object);
    match scope {
        "Terminating" => terminating,
        "NotTerminating" => !terminating,
        "BestEffort" => best_effort(spec),
        "NotBestEffort" => !best_effort(spec),
        "PriorityClass" => selects(expression, tree::text(&spec["priorityClassName"])),
        "CrossNamespacePodAffinity" => crosses_namespaces(spec),
        _ => false,
    }
}

/// Whether a pod has an active deadline (scope Terminating).
pub fn is_terminating(pod: &Object) -> bool {
    let deadline = &tree::get(pod, "spec")["activeDeadlineSeconds"];
    deadline.as_i64().is_some_and(|seconds| seconds >= 0)
}

/// A claim counts for the class that it asks for, the one that its volume has, and the one that this is changed to.
fn has_class(expression: &Value, claim: &Object) -> bool {
    let status = tree::get(claim, "status");
    let classes = [
        &tree::get(claim, "spec")["volumeAttributesClassName"],
        &status["currentVolumeAttributesClassName"],
        &status["modifyVolumeStatus"]["targetVolumeAttributesClassName"],
    ];
    let named = classes.map(tree::text).into_iter();
    let mut named = named.filter(|class| !class.is_empty()).peekable();
    match named.peek() {
        None => selects(expression, ""),
        Some(_) => named.any(|class| selects(expression, class)),
    }
}

fn selects(expression: &Value, class: &str) -> bool {
    let listed = tree::list(&expression["values"])
        .iter()
        .any(|value| value == class);
    match tree::text(&expression["operator"]) {
        "In" => listed,
        "NotIn" => !listed,
        "DoesNotExist" => class.is_empty(),
        _ => !class.is_empty(),
    }
}

/// Whether no container requests or limits cpu or memory.
fn best_effort(spec: &Value) -> bool {
    let states = |container: &Value| {
        ["requests", "limits"].iter().any(|which| {
            ["cpu", "memory"].iter().any(|name| {
                let amount = tree::text(&container["resources"][which][name]);
                !matches!(amount, "" | "0")
            })
        })
    };
    let all = tree::list(&spec["containers"])
        .iter()
        .chain(tree::list(&spec["initContainers"]));
    !all.chain([spec]).any(states)
}

fn crosses_namespaces(spec: &Value) -> bool {
    let crosses = |term: &Value| {
        !tree::list(&term["namespaces"]).is_empty() || !term["namespaceSelector"].is_null()
    };
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let affinity = &spec["affinity"][kind];
        let required = &affinity["requiredDuringSchedulingIgnoredDuringExecution"];
        let preferred = &affinity["preferredDuringSchedulingIgnoredDuringExecution"];
        tree::list(required).iter().any(crosses)
            || tree::list(preferred)
                .iter()
                .any(|item| crosses(&item["podAffinityTerm"]))
    })
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    fn object(json: Value) -> Object {
        json.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn claims_are_chosen_by_their_volume_attributes_class() {
        let scope = |operator: &str, values: Value| {
            json!({"scopeSelector": {"matchExpressions": [
            {"scopeName": "VolumeAttributesClass", "operator": operator, "values": values}]}})
        };
        let gold = json!({"spec": {"volumeAttributesClassName": "gold"}});
        let changing = json!({"spec": {"volumeAttributesClassName": "gold"},
            "status": {"currentVolumeAttributesClassName": "silver"}});
        let plain = json!({"spec": {}});
        for (quota, claim, counts) in [
            (scope("In", json!(["gold"])), &gold, true),
            (scope("In", json!(["silver"])), &gold, false),
            (scope("In", json!(["silver"])), &changing, true),
            (scope("In", json!(["gold"])), &plain, false),
            (scope("NotIn", json!(["gold"])), &plain, true),
            (scope("NotIn", json!(["gold"])), &gold, false),
            (scope("Exists", Value::Null), &gold, true),
            (scope("DoesNotExist", Value::Null), &plain, true),
            (scope("DoesNotExist", Value::Null), &gold, false),
            (json!({"scopes": ["BestEffort"]}), &plain, false),
        ] {
            let claim = object(claim.clone());
            let found = matches(&quota, "persistentvolumeclaims", &claim);
            assert_eq!(found, counts, "{quota} {claim:?}");
        }
    }

    #[test]
    fn scopes_choose_pods() {
        let quiet = json!({"containers": [{}]});
        let busy = json!({"containers": [{"resources": {"limits": {"cpu": "1"}}}]});
        let mortal = json!({"containers": [{}], "activeDeadlineSeconds": 5});
        let high = json!({"containers": [{}], "priorityClassName": "high"});
        let scopes = |name: &str| json!({"scopes": [name]});
        let class = json!({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}});
        for (quota, pod, counts) in [
            (json!({}), &quiet, true),
            (scopes("BestEffort"), &quiet, true),
            (scopes("BestEffort"), &busy, false),
            (scopes("NotBestEffort"), &busy, true),
            (scopes("Terminating"), &mortal, true),
            (scopes("NotTerminating"), &mortal, false),
            (class.clone(), &high, true),
            (class, &quiet, false),
        ] {
            let pod = object(json!({ "spec": pod }));
            assert_eq!(matches(&quota, "pods", &pod), counts, "{quota} {pod:?}");
        }
        assert!(!matches(
            &scopes("BestEffort"),
            "services",
            &object(json!({}))
        ));
    }
}
