//! The spec of a Job: counts, failure and success policies, pods. A CronJob's template is validated
//! the same way.

use super::indexes;
use crate::check;
use crate::equal::equal;
use crate::pod::{printed_spec, printed_template, validate_template, warn_pods};
use crate::shown::{GoField, GoType, shown};
use crate::tree::{get, int, is_set, keep, list, same, text, truth};
use machinery::field::{Error, ErrorKind, Errors, Path};
use machinery::labels::Selector;
use machinery::text::quote;
use machinery::{Object, Value, format};

/// Maximum parallelism of an Indexed Job, and maximum of its maxFailedIndexes.
const INDEXED_MAX: i64 = 100_000;
/// Above this many completions, HIGH_COMPLETIONS_MAX limits parallelism and maxFailedIndexes.
const COMPLETIONS_SOFT: i64 = 100_000;
const HIGH_COMPLETIONS_MAX: i64 = 10_000;
const RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;
const PATTERNS_MAX: usize = 20;
const MANAGED_BY_MAX: usize = 63;
const SUCCEEDED_INDEXES_MAX: usize = 64 * 1024;

const SUCCESS_POLICY: &[GoField] = &[GoField(
    "rules",
    "Rules",
    GoType::List(&[
        GoField("succeededIndexes", "SucceededIndexes", GoType::Plain),
        GoField("succeededCount", "SucceededCount", GoType::Plain),
    ]),
)];

const FAILURE_POLICY: &[GoField] = &[GoField(
    "rules",
    "Rules",
    GoType::List(&[
        GoField("action", "Action", GoType::Text),
        GoField(
            "onExitCodes",
            "OnExitCodes",
            GoType::Pointer(&[
                GoField("containerName", "ContainerName", GoType::Plain),
                GoField("operator", "Operator", GoType::Text),
                GoField("values", "Values", GoType::Plain),
            ]),
        ),
        GoField(
            "onPodConditions",
            "OnPodConditions",
            GoType::List(&[
                GoField("type", "Type", GoType::Text),
                GoField("status", "Status", GoType::Text),
            ]),
        ),
    ]),
)];

/// Validates a Job's spec, including its selector.
pub(super) fn check_whole_spec(spec: &Value, path: &Path, errors: &mut Errors) {
    check_spec(spec, path, errors);
    let (selector, at) = (&spec["selector"], path.child("selector"));
    if is_set(selector) {
        check::label_selector(selector, &at, errors);
    } else {
        errors.push(Error::required(&at, ""));
    }
    let labels = &spec["template"]["metadata"]["labels"];
    let parsed = Selector::from_label_selector(Some(selector).filter(|s| is_set(s)));
    if parsed.is_ok_and(|s| !s.matches_map(labels.as_object())) {
        let at = path.child("template.metadata.labels");
        let detail = "`selector` does not match template `labels`";
        errors.push(Error::invalid(&at, labels.clone(), detail));
    }
}

/// Validates the spec of a Job or of a CronJob's template.
pub(super) fn check_spec(spec: &Value, path: &Path, errors: &mut Errors) {
    for name in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        check::non_negative(&spec[name], &path.child(name), errors);
    }
    if is_set(&spec["maxFailedIndexes"]) && !is_set(&spec["backoffLimitPerIndex"]) {
        let detail = "when maxFailedIndexes is specified";
        errors.push(Error::required(&path.child("backoffLimitPerIndex"), detail));
    }
    if is_set(&spec["managedBy"]) {
        let at = path.child("managedBy");
        check::domain_prefixed_path(text(&spec["managedBy"]), &at, errors);
        if text(&spec["managedBy"]).len() > MANAGED_BY_MAX {
            errors.push(Error::too_long(&at, MANAGED_BY_MAX));
        }
    }
    check_mode(spec, path, errors);
    if is_set(&spec["podFailurePolicy"]) {
        check_failure_policy(spec, &path.child("podFailurePolicy"), errors);
    }
    let success = &spec["successPolicy"];
    if is_set(success) {
        let at = path.child("successPolicy");
        if spec["completionMode"] == "Indexed" {
            check_success_policy(spec, &at, errors);
        } else {
            let printed = shown(success, SUCCESS_POLICY);
            errors.push(Error::invalid(
                &at,
                printed,
                "requires indexed completion mode",
            ));
        }
    }
    check_replacement(spec, &path.child("podReplacementPolicy"), errors);
    let at = path.child("template");
    validate_template(&spec["template"], &at, errors);
    check_restart(spec, &at.child("spec").child("restartPolicy"), errors);
}

fn check_mode(spec: &Value, path: &Path, errors: &mut Errors) {
    let mode = &spec["completionMode"];
    if is_set(mode) {
        let modes = ["NonIndexed", "Indexed"];
        check::one_of(mode, &modes, &path.child("completionMode"), errors);
    }
    if mode == "Indexed" {
        check_indexed(spec, path, errors);
    } else if !is_set(mode) || mode == "NonIndexed" {
        for name in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if is_set(&spec[name]) {
                let detail = "requires indexed completion mode";
                errors.push(Error::invalid(&path.child(name), int(&spec[name]), detail));
            }
        }
    }
}

fn check_indexed(spec: &Value, path: &Path, errors: &mut Errors) {
    let too_much =
        |name: &str, detail: String| Error::invalid(&path.child(name), int(&spec[name]), detail);
    let completions = spec["completions"].as_i64();
    let failed = spec["maxFailedIndexes"].as_i64();
    let parallel = int(&spec["parallelism"]);
    if completions.is_none() {
        let detail = "when completion mode is Indexed";
        errors.push(Error::required(&path.child("completions"), detail));
    }
    if parallel > INDEXED_MAX {
        let detail =
            format!("must be less than or equal to {INDEXED_MAX} when completion mode is Indexed");
        errors.push(too_much("parallelism", detail));
    }
    if failed
        .zip(completions)
        .is_some_and(|(failed, all)| failed > all)
    {
        let detail = "must be less than or equal to completions".to_owned();
        errors.push(too_much("maxFailedIndexes", detail));
    }
    if failed.is_some_and(|failed| failed > INDEXED_MAX) {
        let detail = format!("must be less than or equal to {INDEXED_MAX}");
        errors.push(too_much("maxFailedIndexes", detail));
    }
    if completions.unwrap_or_default() <= COMPLETIONS_SOFT || !is_set(&spec["backoffLimitPerIndex"])
    {
        return;
    }
    let detail = format!(
        "must be less than or equal to {HIGH_COMPLETIONS_MAX} when completions are above {COMPLETIONS_SOFT} and used with backoff limit per index"
    );
    if failed.is_none() {
        let detail = format!("must be specified when completions is above {COMPLETIONS_SOFT}");
        errors.push(Error::required(&path.child("maxFailedIndexes"), detail));
    }
    if parallel > HIGH_COMPLETIONS_MAX {
        errors.push(too_much("parallelism", detail.clone()));
    }
    if failed.is_some_and(|failed| failed > HIGH_COMPLETIONS_MAX) {
        errors.push(too_much("maxFailedIndexes", detail));
    }
}

fn check_replacement(spec: &Value, path: &Path, errors: &mut Errors) {
    if is_set(&spec["podReplacementPolicy"]) {
        // With a failure policy, pods are replaced only when they have failed.
        let policies: &[&str] = if is_set(&spec["podFailurePolicy"]) {
            &["Failed"]
        } else {
            &["Failed", "TerminatingOrFailed"]
        };
        check::one_of(&spec["podReplacementPolicy"], policies, path, errors);
    }
}

fn check_restart(spec: &Value, path: &Path, errors: &mut Errors) {
    let policy = text(&spec["template"]["spec"]["restartPolicy"]);
    if policy == "Always" || policy.is_empty() {
        let detail = "valid values: \"OnFailure\", \"Never\"";
        errors.push(Error::required(path, detail));
    } else if !matches!(policy, "OnFailure" | "Never") {
        errors.push(Error::not_supported(path, policy, &["OnFailure", "Never"]));
    } else if is_set(&spec["podFailurePolicy"]) && policy != "Never" {
        let detail = "only \"Never\" is supported when podFailurePolicy is specified";
        errors.push(Error::invalid(path, policy, detail));
    }
}

fn check_failure_policy(spec: &Value, path: &Path, errors: &mut Errors) {
    let (rules, at) = (
        list(&spec["podFailurePolicy"]["rules"]),
        path.child("rules"),
    );
    if rules.len() > RULES_MAX {
        errors.push(Error::too_many(&at, rules.len(), RULES_MAX));
    }
    for (i, rule) in rules.iter().enumerate() {
        check_failure_rule(spec, rule, &at.index(i), errors);
    }
}

/// One of these values; an empty value's error lists them.
fn check_choice(value: &Value, choices: &[&str], path: &Path, errors: &mut Errors) {
    if text(value).is_empty() {
        let quoted: Vec<String> = choices.iter().map(|c| quote(c)).collect();
        let detail = format!("valid values: [{}]", quoted.join(" "));
        errors.push(Error::required(path, detail));
    } else {
        check::one_of(value, choices, path, errors);
    }
}

fn check_failure_rule(spec: &Value, rule: &Value, path: &Path, errors: &mut Errors) {
    let at = path.child("action");
    if rule["action"] == "FailIndex" {
        if !is_set(&spec["backoffLimitPerIndex"]) {
            let detail = "requires the backoffLimitPerIndex to be set";
            errors.push(Error::invalid(&at, "FailIndex", detail));
        }
    } else {
        let actions = ["Count", "FailIndex", "FailJob", "Ignore"];
        check_choice(&rule["action"], &actions, &at, errors);
    }
    let (codes, conditions) = (&rule["onExitCodes"], list(&rule["onPodConditions"]));
    if is_set(codes) {
        check_exit_codes(spec, codes, &path.child("onExitCodes"), errors);
    }
    let at = path.child("onPodConditions");
    if conditions.len() > PATTERNS_MAX {
        errors.push(Error::too_many(&at, conditions.len(), PATTERNS_MAX));
    }
    for (i, pattern) in conditions.iter().enumerate() {
        let (at, kind) = (at.index(i), text(&pattern["type"]));
        check::form(
            format::qualified_name(kind),
            kind,
            &at.child("type"),
            errors,
        );
        let states = ["False", "True", "Unknown"];
        check_choice(&pattern["status"], &states, &at.child("status"), errors);
    }
    let detail = match (is_set(codes), conditions.is_empty()) {
        (true, false) => "specifying both OnExitCodes and OnPodConditions is not supported",
        (false, true) => "specifying one of OnExitCodes and OnPodConditions is required",
        _ => return,
    };
    errors.push(without_value(path, detail));
}

/// An error that does not show the value.
pub(super) fn without_value(path: &Path, detail: impl Into<String>) -> Error {
    Error {
        kind: ErrorKind::Invalid,
        path: path.to_path_buf(),
        value: None,
        detail: detail.into(),
    }
}

fn check_exit_codes(spec: &Value, codes: &Value, path: &Path, errors: &mut Errors) {
    check_choice(
        &codes["operator"],
        &["In", "NotIn"],
        &path.child("operator"),
        errors,
    );
    let container = &codes["containerName"];
    let pod = &spec["template"]["spec"];
    let known = ["containers", "initContainers"]
        .iter()
        .flat_map(|name| list(&pod[*name]))
        .any(|c| text(&c["name"]) == text(container));
    if is_set(container) && !known {
        let detail = "must be one of the container or initContainer names in the pod template";
        errors.push(Error::invalid(
            &path.child("containerName"),
            text(container),
            detail,
        ));
    }
    let (values, at) = (list(&codes["values"]), path.child("values"));
    if values.is_empty() {
        errors.push(Error::invalid(
            &at,
            codes["values"].clone(),
            "at least one value is required",
        ));
    } else if values.len() > EXIT_CODES_MAX {
        errors.push(Error::too_many(&at, values.len(), EXIT_CODES_MAX));
    }
    let numbers: Vec<i64> = values.iter().map(int).collect();
    for (i, code) in numbers.iter().enumerate() {
        if codes["operator"] == "In" && *code == 0 {
            let detail = "must not be 0 for the In operator";
            errors.push(Error::invalid(&at.index(i), 0, detail));
        }
        if numbers[..i].contains(code) {
            errors.push(Error::duplicate(&at.index(i), *code));
        }
    }
    if !numbers.is_sorted() {
        errors.push(Error::invalid(
            &at,
            codes["values"].clone(),
            "must be ordered",
        ));
    }
}

fn check_success_policy(spec: &Value, path: &Path, errors: &mut Errors) {
    let (rules, at) = (list(&spec["successPolicy"]["rules"]), path.child("rules"));
    if rules.is_empty() {
        let detail = "at least one rules must be specified when the successPolicy is specified";
        errors.push(Error::required(&at, detail));
    }
    if rules.len() > RULES_MAX {
        errors.push(Error::too_many(&at, rules.len(), RULES_MAX));
    }
    for (i, rule) in rules.iter().enumerate() {
        check_success_rule(int(&spec["completions"]), rule, &at.index(i), errors);
    }
}

fn check_success_rule(completions: i64, rule: &Value, path: &Path, errors: &mut Errors) {
    let (indexes, count) = (&rule["succeededIndexes"], &rule["succeededCount"]);
    if !is_set(indexes) && !is_set(count) {
        let detail = "at least one of succeededCount or succeededIndexes must be specified";
        errors.push(Error::required(path, detail));
    }
    let mut total = 0;
    if is_set(indexes) {
        let at = path.child("succeededIndexes");
        if text(indexes).len() > SUCCEEDED_INDEXES_MAX {
            errors.push(Error::too_long(&at, SUCCEEDED_INDEXES_MAX));
        }
        match indexes::count(text(indexes), completions) {
            Ok(found) => total = found,
            Err(why) => {
                let detail = format!("error parsing succeededIndexes: {why}");
                errors.push(Error::invalid(&at, text(indexes), detail));
            }
        }
    }
    if is_set(count) {
        let at = path.child("succeededCount");
        check::non_negative(count, &at, errors);
        let mut at_most = |most: i64, what: &str| {
            if int(count) > most {
                let detail = format!("must be less than or equal to {most} ({what})");
                errors.push(Error::invalid(&at, int(count), detail));
            }
        };
        at_most(completions, "the number of specified completions");
        if is_set(indexes) {
            at_most(
                total,
                "the number of indexes in the specified succeededIndexes field",
            );
        }
    }
}

/// Validates changes to a Job's spec.
pub(super) fn check_spec_update(object: &Object, old: &Object, errors: &mut Errors) {
    let (new, was) = (get(object, "spec"), get(old, "spec"));
    let path = Path::new("spec");
    check_whole_spec(new, &path, errors);
    let (completions, at) = (&new["completions"], path.child("completions"));
    if new["completionMode"] != "Indexed" {
        check::immutable(completions, &was["completions"], &at, errors);
    } else if is_set(completions)
        && *completions != was["completions"]
        && *completions != new["parallelism"]
    {
        let detail = "can only be modified in tandem with spec.parallelism";
        errors.push(Error::invalid(&at, completions.clone(), detail));
    }
    check::immutable(
        &new["selector"],
        &was["selector"],
        &path.child("selector"),
        errors,
    );
    check_template_update(&new["template"], old, &path.child("template"), errors);
    let mut stays = |name: &str, policy: Option<&[GoField]>| {
        if is_set(&new[name]) != is_set(&was[name]) || !same(&new[name], &was[name]) {
            let printed = match policy {
                Some(fields) if is_set(&new[name]) => shown(&new[name], fields),
                _ => new[name].clone(),
            };
            errors.push(Error::invalid(&path.child(name), printed, check::IMMUTABLE));
        }
    };
    stays("completionMode", None);
    stays("podFailurePolicy", Some(FAILURE_POLICY));
    stays("backoffLimitPerIndex", None);
    stays("managedBy", None);
    stays("successPolicy", Some(SUCCESS_POLICY));
}

/// A suspended job without pods may change its scheduling directives, labels and resources.
fn check_template_update(new: &Value, old: &Object, path: &Path, errors: &mut Errors) {
    let (spec, status) = (get(old, "spec"), get(old, "status"));
    let suspended = list(&status["conditions"])
        .iter()
        .any(|c| c["type"] == "Suspended" && c["status"] == "True");
    let free = truth(&spec["suspend"])
        && (!is_set(&status["startTime"]) || suspended)
        && int(&status["active"]) == 0;
    if !free {
        if !equal("core/v1.PodTemplateSpec", new, &spec["template"]) {
            let printed = printed_template(new);
            errors.push(Error::invalid(path, printed, check::IMMUTABLE));
        }
        return;
    }
    let mut was = spec["template"]["spec"].clone();
    if let (Value::Object(was), Value::Object(new)) = (&mut was, &new["spec"]) {
        for name in ["nodeSelector", "tolerations", "schedulingGates"] {
            keep(was, new, name);
        }
        let affinity = placed_anew(get(was, "affinity"), get(new, "affinity"));
        was.insert("affinity".to_owned(), affinity);
        for name in ["containers", "initContainers"] {
            keep_resources(was, new, name);
        }
    }
    if !equal("core/v1.PodSpec", &new["spec"], &was) {
        let printed = printed_spec(&new["spec"]);
        errors.push(Error::invalid(
            &path.child("spec"),
            printed,
            check::IMMUTABLE,
        ));
    }
}

/// The old affinity with the new node affinity. An affinity without other terms may be removed.
fn placed_anew(was: &Value, new: &Value) -> Value {
    let mut placed = match was {
        Value::Object(was) => was.clone(),
        _ if is_set(new) => Object::new(),
        _ => return Value::Null,
    };
    placed.shift_remove("nodeAffinity");
    match &new["nodeAffinity"] {
        Value::Null if placed.is_empty() && !is_set(new) => return Value::Null,
        Value::Null => {}
        given => {
            placed.insert("nodeAffinity".to_owned(), given.clone());
        }
    }
    Value::Object(placed)
}

fn keep_resources(was: &mut Object, new: &Object, name: &str) {
    let given = list(get(new, name));
    if let Some(Value::Array(containers)) = was.get_mut(name)
        && containers.len() == given.len()
    {
        for (container, given) in containers.iter_mut().zip(given) {
            if let (Value::Object(container), Value::Object(given)) = (container, given)
                && container.get("name") == given.get("name")
            {
                keep(container, given, "resources");
            }
        }
    }
}

pub(super) fn warn_spec(spec: &Value, path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let many = int(&spec["completions"]) > COMPLETIONS_SOFT
        && int(&spec["parallelism"]) > HIGH_COMPLETIONS_MAX;
    if spec["completionMode"] == "Indexed" && many {
        found.push(format!("{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail"));
    }
    found.extend(warn_pods(&spec["template"], &path.child("template")));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};
    use machinery::json::json;

    /// The errors of a spec with these fields, except those of its pods.
    fn errors_of(fields: Value) -> Vec<String> {
        let mut spec = object(
            r#"{"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}"#,
        );
        if let Value::Object(map) = fields {
            spec.extend(map);
        }
        crate::batch::job::default_pods(&mut spec);
        let mut errors = Vec::new();
        check_spec(&Value::Object(spec), &Path::new("s"), &mut errors);
        lines(errors)
    }

    #[test]
    fn completions_and_limits_match_the_completion_mode() {
        let none: [&str; 0] = [];
        assert_eq!(errors_of(json!({})), none);
        for (fields, line) in [
            (
                json!({"completionMode": "x"}),
                "s.completionMode: Unsupported value: \"x\": supported values: \"NonIndexed\", \"Indexed\"",
            ),
            (
                json!({"completionMode": "Indexed"}),
                "s.completions: Required value: when completion mode is Indexed",
            ),
            (
                json!({"backoffLimitPerIndex": 1}),
                "s.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode",
            ),
            (
                json!({"completionMode": "Indexed", "completions": 1, "parallelism": 100001}),
                "s.parallelism: Invalid value: 100001: must be less than or equal to 100000 when completion mode is Indexed",
            ),
            (
                json!({"completionMode": "Indexed", "completions": 1, "backoffLimitPerIndex": 1, "maxFailedIndexes": 2}),
                "s.maxFailedIndexes: Invalid value: 2: must be less than or equal to completions",
            ),
            (
                json!({"managedBy": "x"}),
                "s.managedBy: Invalid value: \"x\": must be a domain-prefixed path (such as \"acme.io/foo\")",
            ),
            (
                json!({"podFailurePolicy": {"rules": []}, "podReplacementPolicy": "TerminatingOrFailed"}),
                "s.podReplacementPolicy: Unsupported value: \"TerminatingOrFailed\": supported values: \"Failed\"",
            ),
        ] {
            assert_eq!(errors_of(fields), [line]);
        }
    }

    #[test]
    fn failure_rules_look_at_codes_or_conditions() {
        let rule = |rule: Value| errors_of(json!({"podFailurePolicy": {"rules": [rule]}}));
        for (given, line) in [
            (
                json!({"action": "Ignore"}),
                "s.podFailurePolicy.rules[0]: Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
            ),
            (
                json!({"action": "FailIndex", "onPodConditions": [{"type": "X"}]}),
                "s.podFailurePolicy.rules[0].action: Invalid value: \"FailIndex\": requires the backoffLimitPerIndex to be set",
            ),
            (
                json!({"action": "Count", "onExitCodes": {"operator": "In", "values": [0]}}),
                "s.podFailurePolicy.rules[0].onExitCodes.values[0]: Invalid value: 0: must not be 0 for the In operator",
            ),
            (
                json!({"action": "Count", "onExitCodes": {"values": [1]}}),
                "s.podFailurePolicy.rules[0].onExitCodes.operator: Required value: valid values: [\"In\" \"NotIn\"]",
            ),
            (
                json!({"action": "Count", "onExitCodes": {"operator": "In", "values": [2, 1]}}),
                "s.podFailurePolicy.rules[0].onExitCodes.values: Invalid value: [2,1]: must be ordered",
            ),
            (
                json!({"action": "Count", "onExitCodes": {"operator": "In", "values": [1], "containerName": "x"}}),
                "s.podFailurePolicy.rules[0].onExitCodes.containerName: Invalid value: \"x\": must be one of the container or initContainer names in the pod template",
            ),
        ] {
            assert_eq!(rule(given), [line]);
        }
    }

    #[test]
    fn success_rules_count_indexes() {
        let rule = |rule: Value| {
            errors_of(
                json!({"completionMode": "Indexed", "completions": 3, "successPolicy": {"rules": [rule]}}),
            )
        };
        for (given, line) in [
            (
                json!({}),
                "s.successPolicy.rules[0]: Required value: at least one of succeededCount or succeededIndexes must be specified",
            ),
            (
                json!({"succeededIndexes": "5"}),
                "s.successPolicy.rules[0].succeededIndexes: Invalid value: \"5\": error parsing succeededIndexes: too large index: \"5\"",
            ),
            (
                json!({"succeededIndexes": "0-1", "succeededCount": 3}),
                "s.successPolicy.rules[0].succeededCount: Invalid value: 3: must be less than or equal to 2 (the number of indexes in the specified succeededIndexes field)",
            ),
        ] {
            assert_eq!(rule(given), [line]);
        }
        assert_eq!(
            errors_of(json!({"successPolicy": {"rules": [{"succeededCount": 1}]}})),
            [
                "s.successPolicy: Invalid value: {\"Rules\":[{\"SucceededIndexes\":null,\"SucceededCount\":1}]}: requires indexed completion mode"
            ]
        );
    }

    #[test]
    fn a_suspended_job_may_move_its_pods() {
        let job = |suspend: bool, node: &str, cpu: &str, image: &str| {
            let mut job = object(&format!(
                r#"{{"spec": {{"suspend": {suspend}, "manualSelector": true, "selector": {{"matchLabels": {{"a": "b"}}}}, "template": {{"metadata": {{"labels": {{"a": "b"}}}}, "spec": {{
                "restartPolicy": "Never", "nodeSelector": {{"n": "{node}"}},
                "containers": [{{"name": "c", "image": "{image}", "resources": {{"requests": {{"cpu": "{cpu}"}}}}}}]}}}}}}}}"#
            ));
            if let Some(Value::Object(spec)) = job.get_mut("spec") {
                crate::batch::job::default_pods(spec);
            }
            job
        };
        let errors_of = |new: &Object, old: &Object| {
            let mut errors = Vec::new();
            check_spec_update(new, old, &mut errors);
            errors
                .iter()
                .map(|e| e.path.to_string())
                .collect::<Vec<_>>()
        };
        let old = job(true, "1", "1", "i");
        let none: [&str; 0] = [];
        assert_eq!(errors_of(&job(true, "2", "2", "i"), &old), none);
        assert_eq!(
            errors_of(&job(true, "2", "2", "j"), &old),
            ["spec.template.spec"]
        );
        let running = job(false, "1", "1", "i");
        assert_eq!(
            errors_of(&job(false, "2", "1", "i"), &running),
            ["spec.template"]
        );
    }

    /// The errors of a job whose template changes.
    fn said_of_change(suspend: bool, old: &str, new: &str) -> Vec<String> {
        let job = |template: &str| {
            let mut job = object(&format!(
                r#"{{"spec": {{"suspend": {suspend}, "template": {template}}}}}"#
            ));
            crate::batch::job::default_pods(crate::tree::child_or_new(&mut job, "spec"));
            job
        };
        let mut errors = Vec::new();
        let (new, old) = (job(new), job(old));
        let template = &get(&new, "spec")["template"];
        check_template_update(template, &old, &Path::new("t"), &mut errors);
        lines(errors)
    }

    #[test]
    fn a_template_that_may_not_change_is_shown_whole() {
        let of = |fields: &str| {
            format!(
                r#"{{"metadata": {{"labels": {{"a": "b"}}}}, "spec": {{"containers": [{{"name": "c", "image": "i"}}]{fields}}}}}"#
            )
        };
        let reported = said_of_change(false, &of(""), &of(r#", "hostname": "h""#)).join(" ");
        assert!(
            reported.starts_with(
                r#"t: Invalid value: {"labels":{"a":"b"},"Spec":{"Volumes":null,"InitContainers":null,"Containers":[{"Name":"c","Image":"i","#
            ) && reported.ends_with(": field is immutable"),
            "{reported}"
        );
        // An empty struct differs from an absent one; an empty list does not.
        assert_eq!(
            said_of_change(false, &of(""), &of(r#", "affinity": {}"#)).len(),
            1
        );
        assert_eq!(
            said_of_change(false, &of(""), &of(r#", "tolerations": []"#)),
            [""; 0]
        );
    }

    #[test]
    fn a_suspended_job_sends_its_pods_elsewhere() {
        let of = |fields: &str| {
            format!(r#"{{"spec": {{"containers": [{{"name": "c", "image": "i"}}]{fields}}}}}"#)
        };
        let nodes = r#", "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}"#;
        let pods = r#", "affinity": {"podAffinity": {}}"#;
        let cases = [
            ("", nodes, 0),
            (nodes, "", 0),
            ("", r#", "affinity": {}"#, 0),
            ("", pods, 1),
            (pods, "", 1),
            ("", r#", "nodeSelector": {"a": "b"}"#, 0),
            ("", r#", "hostname": "h""#, 1),
        ];
        for (old, new, expected) in cases {
            let reported = said_of_change(true, &of(old), &of(new));
            assert_eq!(reported.len(), expected, "{old} → {new}: {reported:?}");
            assert!(
                reported
                    .iter()
                    .all(|line| line.starts_with("t.spec: Invalid value: {\"Volumes\":null"))
            );
        }
    }
}
