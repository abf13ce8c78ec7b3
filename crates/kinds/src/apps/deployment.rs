//! Deployment: replicas of a pod, replaced gradually when their template changes.

use super::{
    Words, check_collisions, check_endless, check_pods, check_same_selector, check_status,
    shown_strategy,
};
use crate::builtin::{Builtin, SCALE, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, containers, name_cell, wide};
use crate::pod::default_template;
use crate::tree::{child_or_new, default_empty, default_to, get, int, is_set, text};
use crate::{Column, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, labels};

pub const KIND: Builtin = Builtin {
    group: "apps",
    kind: "Deployment",
    plural: "deployments",
    pod_spec: "spec.template.spec",
    short_names: &["deploy"],
    categories: &["all"],
    schema: "apps/v1.Deployment",
    subresources: &[SCALE, STATUS],
    has_status: true,
    has_generation: true,
    counts_annotations: true,
    default,
    validate_create: validate,
    validate_update,
    warnings: super::warnings,
    columns: COLUMNS,
    row,
    status_resets: &[&["spec"], &["metadata", "labels"]],
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Ready", "string", "Pods that are ready, of those wanted."),
    column(
        "Up-to-date",
        "string",
        "Pods made from the newest template.",
    ),
    column("Available", "string", "Pods ready for long enough."),
    AGE,
    wide("Containers", "string", "Names of the containers."),
    wide("Images", "string", "Images of the containers."),
    wide("Selector", "string", "Labels of the pods."),
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    let (names, images) = containers(&spec["template"]["spec"]);
    let ready = format!(
        "{}/{}",
        int(&status["readyReplicas"]),
        int(&spec["replicas"])
    );
    let selector = labels::Selector::from_label_selector(Some(&spec["selector"]));
    vec![
        name_cell(object),
        Value::from(ready),
        int(&status["updatedReplicas"]).into(),
        int(&status["availableReplicas"]).into(),
        age(object, now),
        Value::from(names),
        Value::from(images),
        Value::from(selector.map_or_else(|_| "<invalid>".to_owned(), |s| s.to_string())),
    ]
}

fn default(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    default_to(spec, "replicas", 1);
    default_template(child_or_new(spec, "template"));
    let strategy = child_or_new(spec, "strategy");
    default_empty(strategy, "type", "RollingUpdate");
    if get(strategy, "type") == "RollingUpdate" {
        let rolling = child_or_new(strategy, "rollingUpdate");
        default_to(rolling, "maxUnavailable", "25%");
        default_to(rolling, "maxSurge", "25%");
    }
    default_to(spec, "revisionHistoryLimit", 10);
    default_to(spec, "progressDeadlineSeconds", 600);
}

const WORDS: Words = Words {
    selector: "deployment",
    unreadable: "invalid label selector",
    template: "ReplicaSet",
};

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    let count = |name: &str, errors: &mut Errors| {
        check::non_negative(&spec[name], &path.child(name), errors);
    };
    count("replicas", &mut errors);
    check_pods(spec, &spec["template"], &WORDS, &path, &mut errors);
    check_endless(&spec["template"], &WORDS, &path, &mut errors);
    check_strategy(&spec["strategy"], &path.child("strategy"), &mut errors);
    count("minReadySeconds", &mut errors);
    count("revisionHistoryLimit", &mut errors);
    let deadline = &spec["progressDeadlineSeconds"];
    if is_set(deadline) {
        count("progressDeadlineSeconds", &mut errors);
        if int(deadline) <= int(&spec["minReadySeconds"]) {
            let at = path.child("progressDeadlineSeconds");
            let detail = "must be greater than minReadySeconds";
            errors.push(Error::invalid(&at, int(deadline), detail));
        }
    }
    errors
}

fn check_strategy(strategy: &Value, path: &Path, errors: &mut Errors) {
    let rolling = &strategy["rollingUpdate"];
    let at = path.child("rollingUpdate");
    match text(&strategy["type"]) {
        "Recreate" => {
            if is_set(rolling) {
                let detail = "may not be specified when strategy `type` is 'Recreate'";
                errors.push(Error::forbidden(&at, detail));
            }
        }
        "RollingUpdate" => {
            for name in ["maxUnavailable", "maxSurge"] {
                check::count_or_percent(&rolling[name], &at.child(name), errors);
            }
            let zero = |v: &Value| check::amount_of(v) == 0;
            if zero(&rolling["maxUnavailable"]) && zero(&rolling["maxSurge"]) {
                let detail = "may not be 0 when `maxSurge` is 0";
                let at = at.child("maxUnavailable");
                errors.push(Error::invalid(
                    &at,
                    rolling["maxUnavailable"].clone(),
                    detail,
                ));
            }
            check::at_most_whole(
                &rolling["maxUnavailable"],
                &at.child("maxUnavailable"),
                errors,
            );
        }
        _ => {
            let shown = shown_strategy(strategy);
            let types = ["Recreate", "RollingUpdate"];
            errors.push(Error::not_supported(path, shown, &types));
        }
    }
}

fn validate_update(object: &Object, old: &Object, subresource: Subresource<'_>) -> Errors {
    let mut errors = Vec::new();
    match subresource {
        None => {
            errors.extend(validate(object));
            check_same_selector(object, old, &mut errors);
        }
        Some("status") => {
            let counts = [
                "observedGeneration",
                "replicas",
                "updatedReplicas",
                "readyReplicas",
                "availableReplicas",
                "unavailableReplicas",
                "terminatingReplicas",
                "collisionCount",
            ];
            let parts = ["updatedReplicas", "readyReplicas", "availableReplicas"];
            let status = get(object, "status");
            check_status(status, &counts, &parts, "readyReplicas", &mut errors);
            check_collisions(object, old, &mut errors);
        }
        Some(_) => {}
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    const WEB: &str = r#"{"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
        "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}}"#;

    fn web() -> Object {
        let mut deployment = object(WEB);
        default(&mut deployment);
        deployment
    }

    #[test]
    fn a_deployment_as_kubectl_makes_it_is_complete_and_valid() {
        let deployment = web();
        assert_eq!(
            get(&deployment, "spec")["strategy"]["rollingUpdate"]["maxSurge"],
            "25%"
        );
        assert_eq!(lines(validate(&deployment)), Vec::<String>::new());
        let mut twice = deployment.clone();
        default(&mut twice);
        assert_eq!(twice, deployment);
    }

    #[test]
    fn the_selector_must_fit_and_stay() {
        let mut other = web();
        child_or_new(&mut other, "spec").insert(
            "selector".to_owned(),
            machinery::json::json!({"matchLabels": {"x": "y"}}),
        );
        assert_eq!(
            lines(validate(&other)),
            [
                "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`"
            ]
        );
        let found = lines(validate_update(&other, &web(), None));
        assert!(
            found[1].starts_with("spec.selector: Invalid value"),
            "{found:?}"
        );
        assert!(found[1].ends_with("field is immutable"));
    }

    #[test]
    fn missing_required_fields_are_reported() {
        let mut empty = object("{}");
        default(&mut empty);
        let found = lines(validate(&empty));
        assert_eq!(
            found,
            [
                "spec.selector: Required value",
                "spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`",
                "spec.template.spec.containers: Required value"
            ]
        );
    }
}
