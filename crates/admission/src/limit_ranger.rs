//! LimitRanges set default requests and limits of containers, and bound the resources of
//! containers, pods and claims.

use std::sync::Arc;

use async_trait::async_trait;
use kinds::tree;
use machinery::{
    Object, Status, Value,
    json::Key,
    pod_resources::{Field, PodResources},
    quantity::Quantity,
};
use quota::amounts::{self, Amounts};

use super::{Attributes, Operation, Plugin};
use crate::Stored;

pub(crate) const NAME: &str = "LimitRanger";

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

pub(crate) struct LimitRanger;

#[async_trait]
impl Plugin for LimitRanger {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let creates = attributes.operation == Operation::Create;
        let resizes = attributes.operation == Operation::Update
            && attributes.is("", "pods")
            && attributes.subresource == "resize";
        (creates && attributes.is_write_of("", "pods"))
            || attributes.is_write_of("", "persistentvolumeclaims")
            || resizes
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: &mut Object) -> Result<(), Status> {
        if attributes.resource == "pods" && attributes.operation == Operation::Create {
            for range in ranges(attributes).await? {
                give_defaults(object, range.parsed());
            }
        }
        Ok(())
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(object) = object else { return Ok(()) };
        for range in ranges(attributes).await? {
            let range = range.parsed();
            let errors = match attributes.resource {
                "pods" => pod_errors(object, range),
                _ => claim_errors(object, range),
            };
            match errors.as_slice() {
                [] => {}
                [one] => return Err(attributes.forbidden(one)),
                several => {
                    let why = format!("[{}]", several.join(", "));
                    return Err(attributes.forbidden(&why));
                }
            }
        }
        Ok(())
    }
}

async fn ranges(attributes: &Attributes<'_>) -> Result<Vec<Arc<Stored>>, Status> {
    let (namespace, reader) = (attributes.namespace, attributes.reader);
    Ok(reader.list("", "limitranges", namespace).await?.1)
}

fn limits<'a>(range: &'a Object, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    let limits = tree::list(&tree::get(range, "spec")["limits"]).iter();
    limits.filter(move |limit| limit["type"] == kind)
}

fn give_defaults(pod: &mut Object, range: &Object) {
    let (mut requests, mut maxima) = (Object::new(), Object::new());
    for limit in limits(range, "Container") {
        let copy = |(name, value): (&Key, &Value)| (name.clone(), value.clone());
        requests.extend(tree::entries(&limit["defaultRequest"]).map(copy));
        maxima.extend(tree::entries(&limit["default"]).map(copy));
    }
    let mut notes = Vec::new();
    let spec = tree::child_or_new(pod, "spec");
    for (list, what) in [
        ("containers", "container"),
        ("initContainers", "init container"),
    ] {
        for container in tree::each(spec, list) {
            let name = tree::text(tree::get(container, "name")).to_owned();
            let resources = tree::child_or_new(container, "resources");
            let said = [
                ("requests", "request", &requests),
                ("limits", "limit", &maxima),
            ];
            for (field, word, defaults) in said {
                let set = fill(resources, field, defaults);
                if !set.is_empty() {
                    notes.push(format!("{} {word} for {what} {name}", set.join(", ")));
                }
            }
        }
    }
    if !notes.is_empty() {
        let metadata = tree::child_or_new(pod, "metadata");
        let note = format!("LimitRanger plugin set: {}", notes.join("; "));
        tree::child_or_new(metadata, "annotations").insert(ANNOTATION.to_owned(), note.into());
    }
}

/// Sets missing values; returns their names.
fn fill(resources: &mut Object, field: &str, defaults: &Object) -> Vec<String> {
    let known = tree::get(resources, field);
    let missing = defaults
        .iter()
        .filter(|(name, _)| known.get(name.as_str()).is_none());
    let missing: Vec<(Key, Value)> = missing.map(|(n, v)| (n.clone(), v.clone())).collect();
    let mut names: Vec<String> = missing.iter().map(|(name, _)| name.to_string()).collect();
    if !missing.is_empty() {
        tree::child_or_new(resources, field).extend(missing);
    }
    names.sort();
    names
}

fn pod_errors(pod: &Object, range: &Object) -> Vec<String> {
    let spec = tree::get(pod, "spec");
    let mut errors = Vec::new();
    for limit in limits(range, "Container") {
        for list in ["containers", "initContainers"] {
            for container in tree::list(&spec[list]) {
                let resources = &container["resources"];
                let (requests, maxima) = (
                    amounts::from_json(&resources["requests"]),
                    amounts::from_json(&resources["limits"]),
                );
                errors.extend(bounds("Container", limit, &requests, &maxima));
            }
        }
    }
    for limit in limits(range, "Pod") {
        let total = |field| {
            let pod = PodResources::from_json(field, spec, None);
            amounts::from_list(&pod.total_without_overhead())
        };
        let (requests, maxima) = (total(Field::Requests), total(Field::Limits));
        errors.extend(bounds("Pod", limit, &requests, &maxima));
    }
    errors
}

fn claim_errors(claim: &Object, range: &Object) -> Vec<String> {
    let kind = "PersistentVolumeClaim";
    let requests = amounts::from_json(&tree::get(claim, "spec")["resources"]["requests"]);
    let mut errors = Vec::new();
    for limit in limits(range, kind) {
        for (name, bound) in amounts::from_json(&limit["min"]) {
            errors.extend(minimum(kind, &name, bound, &requests, &Amounts::new()));
        }
        for (name, bound) in amounts::from_json(&limit["max"]) {
            let head = format!("maximum {name} usage per {kind} is {bound}");
            match requests.get(&name) {
                None => errors.push(format!("{head}.  No request is specified")),
                Some(asked) if *asked > bound => {
                    errors.push(format!("{head}, but request is {asked}"));
                }
                Some(_) => {}
            }
        }
    }
    errors
}

fn bounds(kind: &str, limit: &Value, requests: &Amounts, limits: &Amounts) -> Vec<String> {
    let mut errors = Vec::new();
    for (name, bound) in amounts::from_json(&limit["min"]) {
        errors.extend(minimum(kind, &name, bound, requests, limits));
    }
    for (name, bound) in amounts::from_json(&limit["max"]) {
        errors.extend(maximum(kind, &name, bound, requests, limits));
    }
    for (name, bound) in amounts::from_json(&limit["maxLimitRequestRatio"]) {
        errors.extend(ratio(kind, &name, bound, requests, limits));
    }
    errors
}

fn minimum(
    kind: &str,
    name: &str,
    bound: Quantity,
    requests: &Amounts,
    limits: &Amounts,
) -> Option<String> {
    let head = format!("minimum {name} usage per {kind} is {bound}");
    let Some(asked) = requests.get(name) else {
        return Some(format!("{head}.  No request is specified"));
    };
    if *asked < bound {
        return Some(format!("{head}, but request is {asked}"));
    }
    let limit = limits.get(name).filter(|limit| **limit < bound)?;
    Some(format!("{head}, but limit is {limit}"))
}

fn maximum(
    kind: &str,
    name: &str,
    bound: Quantity,
    requests: &Amounts,
    limits: &Amounts,
) -> Option<String> {
    let head = format!("maximum {name} usage per {kind} is {bound}");
    let Some(limit) = limits.get(name) else {
        return Some(format!("{head}.  No limit is specified"));
    };
    if *limit > bound {
        return Some(format!("{head}, but limit is {limit}"));
    }
    let asked = requests.get(name).filter(|asked| **asked > bound)?;
    Some(format!("{head}, but request is {asked}"))
}

fn ratio(
    kind: &str,
    name: &str,
    bound: Quantity,
    requests: &Amounts,
    limits: &Amounts,
) -> Option<String> {
    let head = format!("{name} max limit to request ratio per {kind} is {bound}");
    let Some(asked) = requests.get(name).filter(|asked| !asked.is_zero()) else {
        return Some(format!(
            "{head}, but no request is specified or request is 0"
        ));
    };
    let Some(limit) = limits.get(name).filter(|limit| !limit.is_zero()) else {
        return Some(format!("{head}, but no limit is specified or limit is 0"));
    };
    let got = limit.to_f64() / asked.to_f64();
    (got > bound.to_f64()).then(|| format!("{head}, but provided ratio is {got:.6}"))
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::testing::object;

    fn range(kind: &str, limit: Value) -> Object {
        let mut limit = limit;
        limit["type"] = kind.into();
        object(json!({"spec": {"limits": [limit]}}))
    }

    fn pod(resources: Value) -> Object {
        object(
            json!({"metadata": {}, "spec": {"containers": [{"name": "a", "resources": resources}]}}),
        )
    }

    #[test]
    fn containers_get_the_defaults_that_they_do_not_have() {
        let range = range(
            "Container",
            json!({
                "default": {"cpu": "500m", "memory": "1Gi"}, "defaultRequest": {"cpu": "100m"},
            }),
        );
        let mut given = pod(json!({"limits": {"memory": "2Gi"}}));
        give_defaults(&mut given, &range);
        let resources = &given["spec"]["containers"][0]["resources"];
        assert_eq!(resources["limits"], json!({"memory": "2Gi", "cpu": "500m"}));
        assert_eq!(resources["requests"], json!({"cpu": "100m"}));
        assert_eq!(
            given["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu request for container a; cpu limit for container a"
        );
    }

    #[test]
    fn values_out_of_bounds_are_refused_with_kubernetes_message() {
        let cases = [
            (
                json!({"min": {"cpu": "100m"}}),
                json!({}),
                "minimum cpu usage per Container is 100m.  No request is specified",
            ),
            (
                json!({"min": {"cpu": "100m"}}),
                json!({"requests": {"cpu": "50m"}}),
                "minimum cpu usage per Container is 100m, but request is 50m",
            ),
            (
                json!({"max": {"cpu": "1"}}),
                json!({"requests": {"cpu": "50m"}}),
                "maximum cpu usage per Container is 1.  No limit is specified",
            ),
            (
                json!({"max": {"cpu": "1"}}),
                json!({"limits": {"cpu": "2"}}),
                "maximum cpu usage per Container is 1, but limit is 2",
            ),
            (
                json!({"maxLimitRequestRatio": {"cpu": "2"}}),
                json!({"limits": {"cpu": "2"}, "requests": {"cpu": "500m"}}),
                "cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000",
            ),
        ];
        for (limit, resources, expected) in cases {
            assert_eq!(
                pod_errors(&pod(resources), &range("Container", limit)),
                [expected]
            );
        }
        let fine = json!({"limits": {"cpu": "1"}, "requests": {"cpu": "500m"}});
        let all = json!({"min": {"cpu": "100m"}, "max": {"cpu": "1"}});
        assert!(pod_errors(&pod(fine), &range("Container", all)).is_empty());
    }

    #[test]
    fn pods_are_bounded_as_a_whole_and_claims_by_their_size() {
        let two = json!([{"resources": {"limits": {"cpu": "1"}}}, {"resources": {"limits": {"cpu": "1"}}}]);
        let pod = object(json!({"spec": {"containers": two, "overhead": {"cpu": "1"}}}));
        let errors = pod_errors(&pod, &range("Pod", json!({"max": {"cpu": "1500m"}})));
        assert_eq!(
            errors,
            ["maximum cpu usage per Pod is 1500m, but limit is 2"]
        );
        let claim = object(json!({"spec": {"resources": {"requests": {"storage": "5Gi"}}}}));
        let range = range("PersistentVolumeClaim", json!({"max": {"storage": "2Gi"}}));
        let expected = "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 5Gi";
        assert_eq!(claim_errors(&claim, &range), [expected]);
    }
}
