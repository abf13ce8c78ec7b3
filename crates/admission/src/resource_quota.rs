//! Keeps a namespace's usage within its quotas. The charge is part of the write's transaction: two
//! writers cannot both take the last unit, and a rejected write costs nothing.
//!
//! The quota controller recounts usage that decreases (deletions, finished pods). A quota that no
//! controller has processed yet is counted here.

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status, Value, quantity::Quantity};
use store::{Action, Op, Precondition};

use quota::{
    amounts::{self, Amounts},
    scopes, usage,
};

use super::{Attributes, Operation, Plugin};
use crate::Stored;

pub(crate) const NAME: &str = "ResourceQuota";

pub(crate) struct ResourceQuota;

#[async_trait]
impl Plugin for ResourceQuota {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        // The status of a claim has what an expansion allocated, and the classes that its volume has.
        let is_counted = match attributes.subresource {
            "" => true,
            "resize" => attributes.is("", "pods"),
            "status" => attributes.is("", "persistentvolumeclaims"),
            _ => false,
        };
        !attributes.namespace.is_empty()
            && matches!(attributes.operation, Operation::Create | Operation::Update)
            && is_counted
            && !attributes.is("", "namespaces")
    }

    fn mutates(&self) -> bool {
        false
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(object) = object else { return Ok(()) };
        if !counts(attributes, object) {
            return Ok(());
        }
        let namespace = attributes.namespace;
        let (_, quotas) = attributes
            .reader
            .list("", "resourcequotas", namespace)
            .await?;
        if quotas.is_empty() {
            return Ok(());
        }
        let new = usage(attributes.group, attributes.resource, object);
        let old = match (attributes.operation, attributes.old) {
            (Operation::Update, Some(old)) => usage(attributes.group, attributes.resource, old),
            _ => Amounts::new(),
        };
        let growth = growth(&new, &old);
        for stored in &quotas {
            charge(attributes, object, stored, &new, &growth).await?;
        }
        Ok(())
    }
}

/// Whether a write can increase usage. An update of a pod does if it is a resize, or moves the pod
/// between the scopes Terminating and NotTerminating.
fn counts(attributes: &Attributes<'_>, object: &Object) -> bool {
    let Some(old) = attributes.old else {
        return true;
    };
    !attributes.is("", "pods")
        || attributes.subresource == "resize"
        || scopes::is_terminating(old) != scopes::is_terminating(object)
}

/// The increase of usage; the controller counts decreases.
fn growth(new: &Amounts, old: &Amounts) -> Amounts {
    let more = new.iter().map(|(name, amount)| {
        let before = old.get(name).copied().unwrap_or(Quantity::ZERO);
        (name.clone(), amount.minus(before))
    });
    more.filter(|(_, amount)| !amount.is_zero() && !amount.is_negative())
        .collect()
}

async fn charge(
    attributes: &Attributes<'_>,
    object: &Object,
    stored: &Stored,
    whole: &Amounts,
    growth: &Amounts,
) -> Result<(), Status> {
    let mut quota = stored.parse();
    let spec = tree::get(&quota, "spec").clone();
    if !scopes::matches(&spec, attributes.resource, object) {
        return Ok(());
    }
    let hard = amounts::from_json(&spec["hard"]);
    let name = tree::name(&quota).to_owned();
    if attributes.resource == "pods" {
        unspecified(&name, &hard, tree::get(object, "spec"))
            .map_err(|why| attributes.forbidden(&why))?;
    }
    // An object that this quota did not count before is charged in full.
    let counted = |old: &Object| scopes::matches(&spec, attributes.resource, old);
    let charged = match attributes.old {
        Some(old) if !counted(old) => whole,
        _ => growth,
    };
    let asked: Amounts = charged
        .iter()
        .filter(|(n, _)| hard.contains_key(*n))
        .map(|(n, a)| (n.clone(), *a))
        .collect();
    if asked.is_empty() {
        return Ok(());
    }
    let mut used = amounts::from_json(&tree::get(&quota, "status")["used"]);
    if asked.keys().any(|name| !used.contains_key(name)) {
        let counted = count(attributes, &spec).await?;
        for name in asked.keys() {
            let amount = counted.get(name).copied().unwrap_or(Quantity::ZERO);
            used.entry(name.clone()).or_insert(amount);
        }
    }
    let mut after = used.clone();
    amounts::add(&mut after, &asked);
    // A status says what is so already: it is charged and never refused.
    if attributes.subresource != "status"
        && let Some(why) = excess(&name, &hard, &used, &asked, &after)
    {
        return Err(attributes.forbidden(&why));
    }
    let status = tree::child_or_new(&mut quota, "status");
    if !tree::is_set(tree::get(status, "hard")) {
        status.insert("hard".to_owned(), spec["hard"].clone());
    }
    status.insert("used".to_owned(), amounts::to_json(&after));
    let Some(resource) = attributes.reader.resource("", "resourcequotas") else {
        return Ok(());
    };
    let key = resource.key(attributes.namespace, &name);
    let draft = resource.draft(&mut quota).await?;
    let action = Action::Put {
        draft,
        expires_in: None,
    };
    let precondition = Precondition::Revision(stored.revision);
    attributes.effects.also(Op {
        key,
        precondition,
        action,
    });
    Ok(())
}

/// Why the usage after the charge exceeds the quota, if it does.
fn excess(
    name: &str,
    hard: &Amounts,
    used: &Amounts,
    asked: &Amounts,
    after: &Amounts,
) -> Option<String> {
    let over = |resource: &&String| after[*resource] > hard[*resource];
    let exceeded: Vec<&String> = asked.keys().filter(over).collect();
    if exceeded.is_empty() {
        return None;
    }
    let say = |amounts: &Amounts| {
        let said = exceeded.iter().map(|name| {
            let amount = amounts.get(*name).copied().unwrap_or(Quantity::ZERO);
            format!("{name}={amount}")
        });
        said.collect::<Vec<_>>().join(",")
    };
    Some(format!(
        "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
        say(asked),
        say(used),
        say(hard)
    ))
}

/// The usage by all objects of this kind in the namespace that the quota counts.
async fn count(attributes: &Attributes<'_>, spec: &Value) -> Result<Amounts, Status> {
    let (group, resource) = (attributes.group, attributes.resource);
    let (_, objects) = attributes
        .reader
        .list(group, resource, attributes.namespace)
        .await?;
    let mut total = Amounts::new();
    for object in objects.iter().map(|stored| stored.parse()) {
        if scopes::matches(spec, resource, &object) {
            amounts::add(&mut total, &usage(group, resource, &object));
        }
    }
    Ok(total)
}

/// A quota on requests or limits requires every container to set them.
fn unspecified(quota: &str, hard: &Amounts, spec: &Value) -> Result<(), String> {
    let mut complaints = Vec::new();
    for name in hard.keys() {
        let (which, resource) = match name.split_once('.') {
            Some(("requests", rest)) => ("requests", rest),
            Some(("limits", rest)) => ("limits", rest),
            _ => ("requests", name.as_str()),
        };
        if !matches!(resource, "cpu" | "memory")
            || tree::is_set(&spec["resources"][which][resource])
        {
            continue;
        }
        let all = tree::list(&spec["containers"])
            .iter()
            .chain(tree::list(&spec["initContainers"]));
        let silent =
            all.filter(|container| !tree::is_set(&container["resources"][which][resource]));
        let silent: Vec<&str> = silent
            .map(|container| tree::text(&container["name"]))
            .collect();
        if !silent.is_empty() {
            complaints.push(format!("{name} for: {}", silent.join(",")));
        }
    }
    if complaints.is_empty() {
        return Ok(());
    }
    Err(format!(
        "failed quota: {quota}: must specify {}",
        complaints.join("; ")
    ))
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::testing::{Case, object};

    fn pod(cpu: &str) -> Value {
        json!({"metadata": {"name": "web", "namespace": "team"}, "spec": {"containers": [
            {"name": "a", "resources": {"requests": {"cpu": cpu}}}]}})
    }

    async fn quota(case: &Case, hard: Value, used: Value) {
        let metadata = json!({"name": "q", "namespace": "team"});
        let quota = json!({"metadata": metadata, "spec": {"hard": hard},
                           "status": {"hard": hard, "used": used}});
        case.world.put("", "resourcequotas", quota).await;
    }

    fn case() -> Case {
        Case::new(Operation::Create, "", "pods").named("team", "web")
    }

    async fn ask(case: &Case, json: Value) -> Result<(), String> {
        let object = object(json);
        let checked = ResourceQuota
            .validate(&case.attributes(), Some(&object))
            .await;
        checked.map_err(|status| status.message)
    }

    #[tokio::test]
    async fn usage_within_the_quota_is_charged_in_the_same_transaction() {
        let case = case();
        let hard = json!({"pods": "2", "requests.cpu": "1"});
        quota(&case, hard, json!({"pods": "1", "requests.cpu": "500m"})).await;
        ask(&case, pod("500m")).await.unwrap();
        let ops = case.effects.take_ops();
        let Action::Put { draft, .. } = &ops[0].action else {
            panic!()
        };
        let written: Value = machinery::json::from_slice(draft.bytes()).unwrap();
        assert_eq!(
            written["status"]["used"],
            json!({"pods": "2", "requests.cpu": "1"})
        );
        assert!(matches!(ops[0].precondition, Precondition::Revision(_)));
    }

    #[tokio::test]
    async fn exceeding_the_quota_is_refused_with_kubernetes_message() {
        let case = case();
        quota(
            &case,
            json!({"pods": "2", "cpu": "1"}),
            json!({"pods": "1", "cpu": "800m"}),
        )
        .await;
        assert_eq!(
            ask(&case, pod("500m")).await.unwrap_err(),
            "pods \"web\" is forbidden: exceeded quota: q, requested: cpu=500m, used: cpu=800m, \
             limited: cpu=1"
        );
        assert_eq!(
            ask(&case, json!({"spec": {"containers": [{"name": "a"}]}}))
                .await
                .unwrap_err(),
            "pods \"web\" is forbidden: failed quota: q: must specify cpu for: a"
        );
        assert!(case.effects.take_ops().is_empty());
    }

    #[tokio::test]
    async fn a_pod_that_comes_into_a_scope_is_charged_and_other_updates_are_not_judged() {
        let mut case = case();
        case.operation = Operation::Update;
        case.old = Some(object(pod("1")));
        let scoped =
            |scope: &str| json!({"matchExpressions": [{"scopeName": scope, "operator": "Exists"}]});
        for (name, scope) in [("ends", "Terminating"), ("stays", "NotTerminating")] {
            let quota = json!({"metadata": {"name": name, "namespace": "team"},
                "spec": {"hard": {"pods": "1"}, "scopeSelector": scoped(scope)},
                "status": {"hard": {"pods": "1"}, "used": {"pods": "0"}}});
            case.world.put("", "resourcequotas", quota).await;
        }
        let mut ending = pod("1");
        ending["spec"]["activeDeadlineSeconds"] = 60.into();
        ask(&case, ending.clone()).await.unwrap();
        let ops = case.effects.take_ops();
        assert_eq!(ops.len(), 1);
        let Action::Put { draft, .. } = &ops[0].action else {
            panic!()
        };
        let written: Value = machinery::json::from_slice(draft.bytes()).unwrap();
        assert_eq!(written["metadata"]["name"], "ends");
        assert_eq!(written["status"]["used"], json!({"pods": "1"}));
        // A quota on requests does not reject a label change of a pod without them.
        quota(
            &case,
            json!({"requests.memory": "1"}),
            json!({"requests.memory": "0"}),
        )
        .await;
        let mut labelled = pod("1");
        labelled["metadata"]["labels"] = json!({"a": "b"});
        ask(&case, labelled).await.unwrap();
        assert!(case.effects.take_ops().is_empty());
    }

    #[tokio::test]
    async fn a_claim_whose_volume_gets_another_class_is_charged_for_it() {
        let mut case =
            Case::new(Operation::Update, "", "persistentvolumeclaims").named("team", "c");
        let claim = |classes: Value| {
            json!({"metadata": {"name": "c", "namespace": "team"},
                "spec": {"resources": {"requests": {"storage": "1Gi"}}}, "status": classes})
        };
        let gold = json!({"matchExpressions": [{"scopeName": "VolumeAttributesClass", "operator": "In", "values": ["gold"]}]});
        let hard = json!({"requests.storage": "1Gi"});
        let quota = |used: &str| {
            json!({"metadata": {"name": "q", "namespace": "team"},
                "spec": {"hard": hard, "scopeSelector": gold},
                "status": {"hard": hard, "used": {"requests.storage": used}}})
        };
        case.subresource = "status";
        assert!(ResourceQuota.handles(&case.attributes()));
        case.old = Some(object(claim(json!({}))));
        case.world.put("", "resourcequotas", quota("1Gi")).await;
        let new = claim(json!({"currentVolumeAttributesClassName": "gold"}));
        // Also beyond the quota: the volume has the class already.
        ask(&case, new.clone()).await.unwrap();
        let ops = case.effects.take_ops();
        let Action::Put { draft, .. } = &ops[0].action else {
            panic!()
        };
        let written: Value = machinery::json::from_slice(draft.bytes()).unwrap();
        assert_eq!(
            written["status"]["used"],
            json!({"requests.storage": "2Gi"})
        );
        case.world.put("", "resourcequotas", quota("0")).await;
        ask(&case, new.clone()).await.unwrap();
        assert_eq!(case.effects.take_ops().len(), 1);
        // It is counted once.
        case.old = Some(object(new.clone()));
        ask(&case, new).await.unwrap();
        assert!(case.effects.take_ops().is_empty());
    }

    #[tokio::test]
    async fn a_quota_without_status_is_counted() {
        let case = case();
        let metadata = json!({"name": "q", "namespace": "team"});
        let new = json!({"metadata": metadata, "spec": {"hard": {"pods": "1"}}});
        case.world.put("", "resourcequotas", new).await;
        ask(&case, pod("1")).await.unwrap();
        case.world.put("", "pods", pod("1")).await;
        ask(&case, pod("1")).await.unwrap_err();
    }

    #[test]
    fn objects_are_counted_by_every_name_that_quotas_know() {
        let names = |group: &str, resource: &str, json: Value| {
            let usage = usage(group, resource, &object(json));
            usage
                .iter()
                .map(|(name, amount)| format!("{name}={amount}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            names("apps", "deployments", json!({})),
            ["count/deployments.apps=1"]
        );
        let service = json!({"spec": {"type": "NodePort", "ports": [{}, {}]}});
        assert_eq!(
            names("", "services", service),
            [
                "count/services=1",
                "services=1",
                "services.loadbalancers=0",
                "services.nodeports=2"
            ]
        );
        let ended = json!({"spec": {"containers": []}, "status": {"phase": "Failed"}});
        assert_eq!(names("", "pods", ended), ["count/pods=1"]);
    }

    #[test]
    fn an_update_is_charged_for_the_added_usage() {
        let amounts = |json: Value| amounts::from_json(&json);
        let more = growth(
            &amounts(json!({"cpu": "3", "pods": "1"})),
            &amounts(json!({"cpu": "1", "pods": "1"})),
        );
        assert_eq!(amounts::to_json(&more), json!({"cpu": "2"}));
        assert!(growth(&amounts(json!({"cpu": "1"})), &amounts(json!({"cpu": "3"}))).is_empty());
    }
}
