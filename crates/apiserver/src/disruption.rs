//! Whether an eviction may go on: at most one budget may select the pod, and that budget must have
//! disruptions left. Taking one is a write of the budget's status, so that two evictions never
//! share the last one.

use machinery::json::json;
use machinery::{Object, Status, Value, labels};
use store::{Action, Freshness, Op, Precondition};

use crate::{
    failure, meta,
    write::{self, Write},
};

const SEVERAL: &str = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";

/// How many pods may be noted as evicted in a budget before no more are let go.
const MAX_NOTED: usize = 2000;

/// Takes one disruption of the pod's budget, or refuses.
pub(crate) async fn allow(write: &Write) -> Result<(), Status> {
    let Some(budgets) = write
        .core
        .registry
        .get("policy", "v1", "poddisruptionbudgets")
    else {
        return Ok(());
    };
    for _ in 0..write::ATTEMPTS {
        let key = write.resource.key(&write.namespace, &write.name);
        let read = write.core.store.get(&key, Freshness::Newest).await;
        let (_, pod) = read.map_err(failure::of_store)?;
        let pod = pod
            .ok_or_else(|| write.not_found(&write.name))?
            .object
            .parse();
        if is_over(&pod) || meta::is_deleting(&pod) {
            return Ok(());
        }
        let (_, listed) = write
            .core
            .reader
            .list("policy", "poddisruptionbudgets", &write.namespace)
            .await?;
        let matching: Vec<_> = listed
            .iter()
            .filter(|budget| selects(&budget.parse(), &pod))
            .collect();
        let budget = match matching.as_slice() {
            [] => return Ok(()),
            [budget] => *budget,
            _ => return Err(Status::internal(SEVERAL)),
        };
        let revision = budget.revision;
        let name = budget.header.name.to_string();
        let now = meta::time(write.core.config.clock.now());
        let Some(mut taken) = take(budget.parse(), &write.name, &now)? else {
            return Ok(());
        };
        if write.dry_run {
            return Ok(());
        }
        let draft = write::draft(&budgets, &mut taken)?;
        let op = Op {
            key: budgets.key(&write.namespace, &name),
            precondition: Precondition::Revision(revision),
            action: Action::Put {
                draft,
                expires_in: None,
            },
        };
        match write
            .core
            .store
            .commit(vec![op], store::Durability::Synced)
            .await
        {
            Ok(_) => return Ok(()),
            Err(store::Error::Conflict { .. }) => {}
            Err(error) => return Err(failure::of_store(error)),
        }
    }
    Err(write.modified(&write.name))
}

fn is_over(pod: &Object) -> bool {
    let phase = pod
        .get("status")
        .and_then(|status| status.get("phase"))
        .and_then(Value::as_str);
    matches!(phase, Some("Succeeded" | "Failed" | "Pending"))
}

fn selects(budget: &Object, pod: &Object) -> bool {
    let selector = budget.get("spec").and_then(|spec| spec.get("selector"));
    let labels = meta::of(pod)
        .and_then(|metadata| metadata.get("labels"))
        .and_then(Value::as_object);
    labels::Selector::from_label_selector(selector)
        .is_ok_and(|selector| selector.matches_map(labels))
}

/// The budget with one disruption less; `None` when the pod was let go before.
fn take(mut budget: Object, pod: &str, now: &str) -> Result<Option<Object>, Status> {
    let name = meta::text(&budget, "name").to_owned();
    let refuse = |why: String| {
        let mut status = Status::too_many_requests(
            "Cannot evict pod as it would violate the pod's disruption budget.",
            0,
        );
        let cause = machinery::status::Cause {
            reason: "DisruptionBudget".to_owned(),
            message: why,
            field: String::new(),
        };
        status.details.get_or_insert_default().causes.push(cause);
        Err(status)
    };
    let generation = meta::number(&budget, "generation").unwrap_or(0);
    let status = budget.entry("status").or_insert_with(|| json!({}));
    let number = |key: &str| status.get(key).and_then(Value::as_i64).unwrap_or(0);
    if number("observedGeneration") < generation {
        return refuse(format!(
            "The disruption budget {name} is still being processed by the server."
        ));
    }
    let (allowed, healthy, desired) = (
        number("disruptionsAllowed"),
        number("currentHealthy"),
        number("desiredHealthy"),
    );
    let noted = status.get("disruptedPods").and_then(Value::as_object);
    if noted.is_some_and(|noted| noted.contains_key(pod)) {
        return Ok(None);
    }
    if noted.is_some_and(|noted| noted.len() > MAX_NOTED) {
        return refuse(format!(
            "The disruption budget {name} has too many evictions not confirmed"
        ));
    }
    if allowed <= 0 {
        return refuse(format!(
            "The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
        ));
    }
    status["disruptionsAllowed"] = (allowed - 1).into();
    status["disruptedPods"][pod] = now.into();
    Ok(Some(budget))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_disruption_is_given_once() {
        let budget = json!({"metadata": {"name": "b"}, "status": {
            "disruptionsAllowed": 1, "currentHealthy": 3, "desiredHealthy": 2}});
        let budget = budget.as_object().unwrap().clone();
        let taken = take(budget, "p1", "now").unwrap().unwrap();
        assert_eq!(taken["status"]["disruptionsAllowed"], 0);
        assert!(take(taken.clone(), "p1", "now").unwrap().is_none());
        let refused = take(taken, "p2", "now").unwrap_err();
        assert_eq!(
            (
                refused.code,
                refused.details.unwrap().causes[0].reason.as_str()
            ),
            (429, "DisruptionBudget")
        );
    }
}
