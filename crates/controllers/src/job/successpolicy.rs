//! Whether the succeeded indexes satisfy a Job's successPolicy. Pure.

use k8s_openapi::api::batch::v1::SuccessPolicy;

use super::indexes::Indexes;

/// The message about the first satisfied rule.
pub(super) fn satisfied(
    policy: Option<&SuccessPolicy>,
    completions: i32,
    succeeded: &Indexes,
) -> Option<String> {
    if succeeded.is_empty() {
        return None;
    }
    let at = policy?.rules.iter().position(|rule| {
        let Some(required) = &rule.succeeded_indexes else {
            let count = rule.succeeded_count;
            return count.is_some_and(|count| succeeded.len() >= count);
        };
        let required = Indexes::parse(required, completions);
        let common = required.overlap(succeeded);
        let enough = rule.succeeded_count.is_some_and(|count| common >= count);
        !required.is_empty() && (common == required.len() || enough)
    })?;
    Some(format!("Matched rules at index {at}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_success_rule_needs_indexes_a_count_or_both() {
        let indexes = |text: &str| json!({ "succeededIndexes": text });
        let count = |count: i32| json!({ "succeededCount": count });
        let both =
            |text: &str, count: i32| json!({"succeededIndexes": text, "succeededCount": count});
        let table = [
            (vec![indexes("0-2")], "0-2", Some(0)),
            (vec![indexes("0-2")], "0-1", None),
            (vec![indexes("0-2")], "0-9", Some(0)),
            (vec![indexes("0,5")], "0,5", Some(0)),
            (vec![count(2)], "3,7", Some(0)),
            (vec![count(2)], "3", None),
            (vec![both("0-4", 2)], "1,3", Some(0)),
            (vec![both("0-4", 2)], "1,7", None),
            (vec![indexes("9"), count(1)], "3", Some(1)),
            // Out of range, as after completions were lowered: never satisfied.
            (vec![indexes("20-30")], "0-9", None),
            (vec![indexes("x")], "0-9", None),
            (vec![count(0)], "", None),
        ];
        for (rules, succeeded, expected) in table {
            let policy = serde_json::from_value(json!({ "rules": rules })).unwrap();
            let seen = satisfied(Some(&policy), 10, &Indexes::parse(succeeded, 10));
            let expected = expected.map(|at| format!("Matched rules at index {at}"));
            assert_eq!(seen, expected, "{rules:?} {succeeded}");
        }
        assert_eq!(satisfied(None, 10, &Indexes::parse("0-9", 10)), None);
    }
}
