//! Namespaces, quotas, limit ranges, disruption budgets and priority classes.

use anyhow::Result;
use machinery::quantity::Quantity;
use serde_json::Value;

use crate::{
    json::{entries, list, str_of},
    session::Session,
};

use super::text::{Text, format_labels, number, plain, selector};

/// What a scope of a quota selects.
const SCOPES: &[(&str, &str)] = &[
    (
        "Terminating",
        "Matches all pods that have an active deadline. These pods have a limited lifespan on a node before being actively terminated by the system.",
    ),
    (
        "NotTerminating",
        "Matches all pods that do not have an active deadline. These pods usually include long running pods whose container command is not expected to terminate.",
    ),
    (
        "BestEffort",
        "Matches all pods that do not have resource requirements set. These pods have a best effort quality of service.",
    ),
    (
        "NotBestEffort",
        "Matches all pods that have at least one resource requirement set. These pods have a burstable or guaranteed quality of service.",
    ),
];

pub(super) async fn namespace(session: &Session, text: &mut Text, object: &Value) -> Result<()> {
    let name = str_of(&object["metadata"]["name"]);
    text.field(0, "Name", name);
    text.maps(object);
    text.field(0, "Status", str_of(&object["status"]["phase"]));
    let columns = [
        ("Type", "type"),
        ("Status", "status"),
        ("LastTransitionTime", "lastTransitionTime"),
        ("Reason", "reason"),
        ("Message", "message"),
    ];
    text.conditions(&object["status"]["conditions"], &columns, "");
    text.line(0, "");
    let quotas = session
        .api
        .items(&format!("/api/v1/namespaces/{name}/resourcequotas"))
        .await?;
    if quotas.is_empty() {
        text.line(0, "No resource quota.");
    } else {
        text.line(0, "Resource Quotas");
    }
    for quota in &quotas {
        text.field(1, "Name", str_of(&quota["metadata"]["name"]));
        scopes(text, quota, 1);
        text.line(1, "Resource\tUsed\tHard");
        text.line(1, "--------\t---\t---");
        amounts(text, quota, 1, false);
    }
    text.line(0, "");
    let ranges = session
        .api
        .items(&format!("/api/v1/namespaces/{name}/limitranges"))
        .await?;
    if ranges.is_empty() {
        text.line(0, "No LimitRange resource.");
        return Ok(());
    }
    text.line(0, "Resource Limits\n Type\tResource\tMin\tMax\tDefault Request\tDefault Limit\tMax Limit/Request Ratio");
    text.line(
        0,
        " ----\t--------\t---\t---\t---------------\t-------------\t-----------------------",
    );
    ranges.iter().for_each(|range| limits(text, range, " "));
    Ok(())
}

fn scopes(text: &mut Text, quota: &Value, level: usize) {
    let mut scopes: Vec<&str> = list(&quota["spec"]["scopes"]).map(str_of).collect();
    scopes.sort_unstable();
    if !scopes.is_empty() {
        text.field(level, "Scopes", &scopes.join(", "));
    }
    let meanings = scopes.iter().filter_map(|scope| {
        let known = SCOPES.iter().find(|(name, _)| name == scope);
        known.map(|(_, meaning)| *meaning)
    });
    // In a namespace's description the level indents them.
    let indent = if level == 0 { " " } else { "" };
    meanings.for_each(|meaning| text.line(level, &format!("{indent}* {meaning}")));
}

fn amounts(text: &mut Text, quota: &Value, level: usize, in_format_of_hard: bool) {
    for (name, hard) in entries(&quota["status"]["hard"]) {
        let used = match &quota["status"]["used"][name] {
            Value::Null => "0".to_owned(),
            used if in_format_of_hard => in_format_of(used, hard),
            used => plain(used),
        };
        text.line(level, &format!("{name}\t{used}\t{}", plain(hard)));
    }
}

/// An amount with the units of another, rounded up to a whole one if they differ.
fn in_format_of(amount: &Value, other: &Value) -> String {
    let parse = |value: &Value| plain(value).parse::<Quantity>().ok();
    match (parse(amount), parse(other)) {
        (Some(amount), Some(other)) if amount.format() != other.format() => {
            Quantity::from_value(amount.value(), other.format()).to_string()
        }
        _ => plain(amount),
    }
}

pub(super) fn quota(text: &mut Text, object: &Value) {
    text.head(object);
    scopes(text, object, 0);
    text.line(0, "Resource\tUsed\tHard");
    text.line(0, "--------\t----\t----");
    amounts(text, object, 0, true);
}

pub(super) fn limit_range(text: &mut Text, object: &Value) {
    text.head(object);
    text.line(
        0,
        "Type\tResource\tMin\tMax\tDefault Request\tDefault Limit\tMax Limit/Request Ratio",
    );
    text.line(
        0,
        "----\t--------\t---\t---\t---------------\t-------------\t-----------------------",
    );
    limits(text, object, "");
}

fn limits(text: &mut Text, range: &Value, prefix: &str) {
    const FIELDS: &[&str] = &[
        "min",
        "max",
        "defaultRequest",
        "default",
        "maxLimitRequestRatio",
    ];
    for item in list(&range["spec"]["limits"]) {
        let mut resources: Vec<&str> = FIELDS
            .iter()
            .flat_map(|field| entries(&item[*field]))
            .map(|(name, _)| name)
            .collect();
        resources.sort_unstable();
        resources.dedup();
        for resource in resources {
            let cell = |field: &&str| match &item[*field][resource] {
                Value::Null => "-".to_owned(),
                value => plain(value),
            };
            let cells: Vec<String> = FIELDS.iter().map(cell).collect();
            text.line(
                0,
                &format!(
                    "{prefix}{}\t{resource}\t{}",
                    str_of(&item["type"]),
                    cells.join("\t")
                ),
            );
        }
    }
}

pub(super) fn disruption_budget(text: &mut Text, object: &Value) {
    let (spec, status) = (&object["spec"], &object["status"]);
    text.head(object);
    match spec["minAvailable"].is_null() {
        false => text.field(0, "Min available", &plain(&spec["minAvailable"])),
        true => text.optional(0, "Max unavailable", &spec["maxUnavailable"]),
    }
    let selects = if spec["selector"].is_null() {
        "<unset>".to_owned()
    } else {
        selector(&spec["selector"])
    };
    text.field(0, "Selector", &selects);
    text.line(0, "Status:");
    for (name, field) in [
        ("Allowed disruptions", "disruptionsAllowed"),
        ("Current", "currentHealthy"),
        ("Desired", "desiredHealthy"),
        ("Total", "expectedPods"),
    ] {
        text.field(2, name, &number(&status[field]).to_string());
    }
}

pub(super) fn priority_class(text: &mut Text, object: &Value) {
    text.field(0, "Name", str_of(&object["metadata"]["name"]));
    text.field(0, "Value", &number(&object["value"]).to_string());
    text.field(
        0,
        "GlobalDefault",
        if object["globalDefault"] == true {
            "true"
        } else {
            "false"
        },
    );
    text.field(0, "PreemptionPolicy", str_of(&object["preemptionPolicy"]));
    text.field(0, "Description", str_of(&object["description"]));
    text.field(
        0,
        "Annotations",
        &format_labels(&object["metadata"]["annotations"]),
    );
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_quota_explains_its_scopes_and_has_one_unit_for_a_resource() {
        let object = json!({"metadata": {"name": "q", "namespace": "n"},
            "spec": {"scopes": ["NotBestEffort", "PriorityClass"]},
            "status": {"hard": {"memory": "1G", "cpu": "2"}, "used": {"memory": "64Mi", "cpu": "100m"}}});
        let mut text = Text::default();
        quota(&mut text, &object);
        let text = text.with_tabs();
        assert!(
            text.contains(
                "Scopes:\tNotBestEffort, PriorityClass\n * Matches all pods that have at least one"
            ),
            "{text}"
        );
        assert!(
            text.ends_with("cpu\t100m\t2\nmemory\t67108864\t1G\n"),
            "{text}"
        );
    }
}
