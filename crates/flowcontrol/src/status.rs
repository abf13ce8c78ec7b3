//! The `Dangling` condition of FlowSchemas: whether their priority level exists.

use kinds::tree;
use machinery::{Object, Value, json::json, text};

const DANGLING: &str = "Dangling";

/// The schemas with an outdated status, with the new one.
pub(super) fn wrong(levels: &[Object], schemas: &[Object], now: &str) -> Vec<(String, Value)> {
    let wrong = |schema: &Object| {
        let status = wanted(levels, schema, now)?;
        Some((tree::name(schema).to_owned(), status))
    };
    schemas.iter().filter_map(wrong).collect()
}

fn wanted(levels: &[Object], schema: &Object, now: &str) -> Option<Value> {
    let name = tree::text(&tree::get(schema, "spec")["priorityLevelConfiguration"]["name"]);
    let good = |level: &&Object| super::spec::LevelSpec::new(level).is_some();
    let is_there = levels
        .iter()
        .filter(good)
        .any(|level| tree::name(level) == name);
    let (status, reason, but) = if is_there {
        ("False", "Found", "and it exists")
    } else {
        ("True", "NotFound", "but there is no such object")
    };
    let name = text::quote(name);
    let message = format!(
        "This FlowSchema references the PriorityLevelConfiguration object named {name} {but}"
    );
    let reported = tree::list(&tree::get(schema, "status")["conditions"]).iter();
    let is_right = |reported: &Value| {
        reported["type"] == DANGLING
            && reported["status"] == status
            && reported["reason"] == reason
            && reported["message"] == message.as_str()
    };
    if reported.clone().any(is_right) {
        return None;
    }
    Some(json!({"conditions": [{
        "type": DANGLING,
        "status": status,
        "lastTransitionTime": now,
        "reason": reason,
        "message": message,
    }]}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::defaults;
    use registry_testing::object;

    #[test]
    fn a_schema_says_whether_its_level_exists() {
        let levels: Vec<Object> = defaults::levels().into_iter().map(|d| d.object).collect();
        let leads = json!({"priorityLevelConfiguration": {"name": "system"}});
        let schema = |status: &Value| {
            let schema = json!({"metadata": {"name": "s"}, "spec": leads, "status": status});
            [object(schema)]
        };
        let now = "2026-01-01T00:00:00Z";
        let found = &wrong(&levels, &schema(&Value::Null), now)[0];
        assert_eq!(found.0, "s");
        assert_eq!(
            found.1["conditions"][0],
            json!({"type": "Dangling", "status": "False", "lastTransitionTime": now, "reason": "Found",
                   "message": "This FlowSchema references the PriorityLevelConfiguration object named \"system\" and it exists"})
        );
        assert!(
            wrong(&levels, &schema(&found.1), now).is_empty(),
            "once is enough"
        );
        let lost = &wrong(&levels[..2], &schema(&found.1), now)[0].1["conditions"][0];
        let expected = "This FlowSchema references the PriorityLevelConfiguration object named \"system\" but there is no such object";
        assert_eq!(
            (&lost["status"], &lost["reason"]),
            (&json!("True"), &json!("NotFound"))
        );
        assert_eq!(lost["message"], expected);
    }
}
