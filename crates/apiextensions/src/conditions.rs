//! The conditions of a definition.

use kinds::apiextensions::custom_resource_definition::approval_condition;
use machinery::json::json;
use machinery::{Object, Value};

pub fn find<'a>(definition: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = definition["status"]["conditions"].as_array()?;
    conditions.iter().find(|known| known["type"] == kind)
}

pub fn holds(definition: &Value, kind: &str) -> bool {
    find(definition, kind).is_some_and(|found| found["status"] == "True")
}

pub fn condition(kind: &str, holds: bool, reason: &str, message: &str) -> Value {
    let status = if holds { "True" } else { "False" };
    json!({"type": kind, "status": status, "reason": reason, "message": message})
}

/// Sets a condition; its transition time changes only with its status.
pub fn set_condition(status: &mut Value, mut condition: Value, now: &str) {
    let conditions = &mut status["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(list) = conditions.as_array_mut() else {
        return;
    };
    let old = list.iter().position(|old| old["type"] == condition["type"]);
    condition["lastTransitionTime"] = match old {
        Some(at) if list[at]["status"] == condition["status"] => {
            list[at]["lastTransitionTime"].clone()
        }
        _ => now.into(),
    };
    match old {
        Some(at) => list[at] = condition,
        None => list.push(condition),
    }
}

/// The approval condition of a definition in a protected Kubernetes group; `None` for others.
pub fn approval(definition: &Object) -> Option<Value> {
    let (approved, reason, message) = approval_condition(definition)?;
    let kind = "KubernetesAPIApprovalPolicyConformant";
    Some(condition(kind, approved, reason, &message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_its_time_while_its_status_stays() {
        let mut status = json!({});
        set_condition(&mut status, condition("A", true, "R", "m"), "1");
        set_condition(&mut status, condition("A", true, "S", "n"), "2");
        let expected = json!([{"type": "A", "status": "True", "reason": "S", "message": "n",
            "lastTransitionTime": "1"}]);
        assert_eq!(status["conditions"], expected);
        set_condition(&mut status, condition("A", false, "S", "n"), "3");
        assert_eq!(status["conditions"][0]["lastTransitionTime"], "3");
    }

    #[test]
    fn groups_of_kubernetes_want_approval() {
        let definition = |group: &str, said: &str| {
            let definition = json!({"spec": {"group": group},
                "metadata": {"annotations": {"api-approved.kubernetes.io": said}}});
            approval(definition.as_object().unwrap())
        };
        assert_eq!(definition("example.com", "x"), None);
        let reported = |said: &str| definition("a.k8s.io", said).unwrap();
        assert_eq!(
            reported("unapproved, a trial")["reason"],
            "UnapprovedAnnotation"
        );
        assert_eq!(
            reported("unapproved, a trial")["message"],
            "not approved: \"unapproved, a trial\""
        );
        assert_eq!(reported("https://a.b/c")["status"], "True");
        assert_eq!(
            reported("https://a.b/c")["message"],
            "approved in https://a.b/c"
        );
        assert_eq!(reported("nonsense")["reason"], "InvalidAnnotation");
        assert_eq!(reported("")["reason"], "MissingAnnotation");
    }
}
