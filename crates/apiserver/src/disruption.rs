//! Whether a PodDisruptionBudget allows an eviction: at most one budget may select the pod, and it
//! must have disruptions left. Taking one is a write of the budget's status, so that two evictions
//! never share the last one. Evicting an unhealthy pod takes none if enough healthy pods remain.

use std::sync::Arc;

use kinds::tree::{get, int, list, text};
use machinery::json::json;
use machinery::{Object, Status, Value, labels};
use store::Freshness;

use crate::{
    Resource, Stored, failure, meta,
    write::{self, Write},
};

const SEVERAL: &str = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
const REFUSED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

/// Maximum entries of a budget's `disruptedPods` before evictions are refused.
const MAX_NOTED: usize = 2000;

/// An allowed eviction.
#[derive(Default)]
pub(crate) struct Allowed {
    /// The budget that allowed it.
    pub(crate) budget: Option<String>,
    /// The pod's revision for which this holds; `None` if it holds for any.
    pub(crate) revision: Option<u64>,
}

/// Takes one disruption from the pod's budget if it needs one, or refuses the eviction.
pub(crate) async fn allow(write: &Write) -> Result<Allowed, Status> {
    let key = write.resource.key(&write.namespace, &write.name);
    let read = write.path.store.get(&key, Freshness::Newest).await;
    let (_, entry) = read.map_err(failure::of_store)?;
    let entry = entry.ok_or_else(|| write.not_found(&write.name))?;
    let (pod, revision) = (entry.object.parse(), entry.mod_revision);
    let phase = text(&get(&pod, "status")["phase"]);
    if matches!(phase, "Succeeded" | "Failed") || meta::is_deleting(&pod) {
        return Ok(Allowed::default());
    }
    if phase == "Pending" {
        return Ok(Allowed {
            revision: Some(revision),
            ..Allowed::default()
        });
    }
    let registry = &write.path.registry;
    let Some(budgets) = registry.get("policy", "v1", "poddisruptionbudgets") else {
        return Ok(Allowed::default());
    };
    let Some(budget) = only_budget(write, &pod).await? else {
        return Ok(Allowed::default());
    };
    let name = budget.header.name().to_string();
    if is_spared(&pod, &budget.parse()) {
        return Ok(Allowed {
            budget: Some(name),
            revision: Some(revision),
        });
    }
    let now = meta::time(write.path.clock.now());
    let taking = budget_write(write, budgets, &name);
    let change = |budget: &Object| with_disruption(budget, &write.name, &now);
    write::update(&taking, &change).await?;
    Ok(Allowed {
        budget: Some(name),
        revision: None,
    })
}

/// The one budget that selects the pod.
async fn only_budget(write: &Write, pod: &Object) -> Result<Option<Arc<Stored>>, Status> {
    let reader = &write.path.reader;
    let listed = reader.list("policy", "poddisruptionbudgets", &write.namespace);
    let (_, listed) = listed.await?;
    let mut matching = listed.iter().filter(|b| selects(&b.parse(), pod));
    match (matching.next(), matching.next()) {
        (_, Some(_)) => Err(Status::unknown(SEVERAL)),
        (budget, None) => Ok(budget.cloned()),
    }
}

/// A write of a budget's status by the server itself.
fn budget_write(write: &Write, budgets: Arc<Resource>, name: &str) -> Write {
    Write {
        user: write.user.clone(),
        fence: write.fence.clone(),
        subresource: "status".to_owned(),
        dry_run: write.dry_run,
        internal: true,
        ..write
            .path
            .own_write(budgets, &write.namespace, name, "update")
    }
}

fn selects(budget: &Object, pod: &Object) -> bool {
    let selector = budget.get("spec").and_then(|spec| spec.get("selector"));
    let labels = meta::metadata(pod)
        .and_then(|metadata| metadata.get("labels"))
        .and_then(Value::as_object);
    labels::Selector::from_label_selector(selector)
        .is_ok_and(|selector| selector.matches_map(labels))
}

/// Whether the pod is unhealthy and may be evicted without taking a disruption.
fn is_spared(pod: &Object, budget: &Object) -> bool {
    let ready = list(&get(pod, "status")["conditions"])
        .iter()
        .any(|c| c["type"] == "Ready" && c["status"] == "True");
    if ready {
        return false;
    }
    let status = get(budget, "status");
    let desired = int(&status["desiredHealthy"]);
    get(budget, "spec")["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        || (desired > 0 && int(&status["currentHealthy"]) >= desired)
}

/// 429: the disruption controller has not processed the budget's last change yet.
pub(crate) fn in_progress(budget: &str) -> Status {
    let why = format!("The disruption budget {budget} is still being processed by the server.");
    refuse(why, 10)
}

fn refuse(why: String, retry_after: u32) -> Status {
    let mut status = Status::too_many_requests(REFUSED, retry_after);
    let cause = machinery::status::Cause {
        reason: "DisruptionBudget".to_owned(),
        message: why,
        field: String::new(),
    };
    status.details.get_or_insert_default().causes.push(cause);
    status
}

/// The budget with one disruption less.
fn with_disruption(budget: &Object, pod: &str, now: &str) -> Result<Object, Status> {
    let name = meta::text(budget, "name");
    let status = get(budget, "status");
    let generation = meta::number(budget, "generation").unwrap_or(0);
    if int(&status["observedGeneration"]) < generation {
        return Err(in_progress(name));
    }
    let forbidden = |why: &str| Status::forbidden("policy", "poddisruptionbudget", name, why);
    let allowed = int(&status["disruptionsAllowed"]);
    if allowed < 0 {
        return Err(forbidden("pdb disruptions allowed is negative"));
    }
    let noted = status["disruptedPods"].as_object();
    if noted.is_some_and(|noted| noted.len() > MAX_NOTED) {
        let why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
        return Err(forbidden(why));
    }
    if allowed == 0 {
        return Err(refuse(exhausted(name, status), 0));
    }
    let mut budget = budget.clone();
    let observed = status["observedGeneration"].clone();
    let status = budget.entry("status").or_insert_with(|| json!({}));
    status["disruptionsAllowed"] = (allowed - 1).into();
    status["disruptedPods"][pod] = now.into();
    if allowed == 1 {
        set_exhausted(status, observed, now);
    }
    Ok(budget)
}

/// The message when no disruption is left.
fn exhausted(name: &str, status: &Value) -> String {
    let conditions = list(&status["conditions"]);
    let condition = conditions.iter().find(|c| c["type"] == "DisruptionAllowed");
    let reported = condition.filter(|c| c["status"] == "False" && !text(&c["message"]).is_empty());
    let (desired, healthy) = (
        int(&status["desiredHealthy"]),
        int(&status["currentHealthy"]),
    );
    let now = "does not allow evicting pods currently";
    match reported.map(|c| (text(&c["reason"]), text(&c["message"]))) {
        Some(("SyncFailed", message)) => {
            format!("The disruption budget {name} {now} because it failed sync: {message}")
        }
        _ if healthy <= desired => format!(
            "The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
        ),
        Some((reason, message)) => {
            format!("The disruption budget {name} {now} ({reason}): {message}")
        }
        None => format!("The disruption budget {name} {now}"),
    }
}

fn set_exhausted(status: &mut Value, observed: Value, now: &str) {
    let mut condition = json!({
        "type": "DisruptionAllowed", "status": "False", "observedGeneration": observed,
        "lastTransitionTime": now, "reason": "InsufficientPods", "message": "",
    });
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(conditions) = status["conditions"].as_array_mut() else {
        return;
    };
    match conditions
        .iter_mut()
        .find(|c| c["type"] == "DisruptionAllowed")
    {
        Some(old) => {
            if old["status"] == "False" {
                condition["lastTransitionTime"] = old["lastTransitionTime"].clone();
            }
            *old = condition;
        }
        None => conditions.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Object {
        value.as_object().unwrap().clone()
    }

    fn cause(status: Status) -> (u16, String) {
        let causes = status.details.unwrap().causes;
        (status.code, causes[0].message.clone())
    }

    #[test]
    fn the_last_allowed_disruption_is_granted_once() {
        let budget = object(json!({"metadata": {"name": "b"}, "status": {
            "disruptionsAllowed": 1, "currentHealthy": 3, "desiredHealthy": 2}}));
        let taken = with_disruption(&budget, "p1", "now").unwrap();
        assert_eq!(taken["status"]["disruptionsAllowed"], 0);
        assert_eq!(taken["status"]["disruptedPods"]["p1"], "now");
        assert_eq!(
            taken["status"]["conditions"][0]["reason"],
            "InsufficientPods"
        );
        assert_eq!(
            cause(with_disruption(&taken, "p2", "now").unwrap_err()),
            (
                429,
                "The disruption budget b does not allow evicting pods currently".to_owned()
            )
        );
    }

    #[test]
    fn a_refused_eviction_has_the_reason() {
        let reported = |generation: i64, status: Value| {
            let budget =
                json!({"metadata": {"name": "b", "generation": generation}, "status": status});
            cause(with_disruption(&object(budget), "p", "now").unwrap_err())
        };
        assert_eq!(
            reported(1, json!({"disruptionsAllowed": 1})),
            (
                429,
                "The disruption budget b is still being processed by the server.".to_owned()
            )
        );
        assert_eq!(
            reported(0, json!({"desiredHealthy": 2, "currentHealthy": 1})).1,
            "The disruption budget b needs 2 healthy pods and has 1 currently"
        );
        let failed = json!([{"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "m"}]);
        assert_eq!(
            reported(0, json!({"conditions": failed})).1,
            "The disruption budget b does not allow evicting pods currently because it failed sync: m"
        );
    }

    #[test]
    fn a_pod_that_is_not_healthy_goes_where_the_others_are_enough() {
        let pod = |ready: &str| {
            object(json!({"status": {"conditions": [{"type": "Ready", "status": ready}]}}))
        };
        let budget = |policy: &str, healthy: i64| {
            object(json!({"spec": {"unhealthyPodEvictionPolicy": policy},
                "status": {"desiredHealthy": 2, "currentHealthy": healthy}}))
        };
        assert!(is_spared(&pod("False"), &budget("IfHealthyBudget", 2)));
        assert!(!is_spared(&pod("False"), &budget("IfHealthyBudget", 1)));
        assert!(is_spared(&pod("False"), &budget("AlwaysAllow", 0)));
        assert!(!is_spared(&pod("True"), &budget("AlwaysAllow", 2)));
    }
}
