//! DaemonSet: one pod on every matching node.

use super::{
    Words, check_collisions, check_endless, check_not_empty, check_same_selector, check_status,
    mismatch, shown_strategy,
};
use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, containers, labels, name_cell, selector, wide};
use crate::equal::equal;
use crate::pod::{default_template, validate_template};
use crate::tree::{child, child_or_new, default_empty, default_to, get, int, is_set, text};
use crate::{Column, Context, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::labels::Selector;
use machinery::{Object, Value};

/// The annotation that counts changes of the template.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

pub const KIND: Builtin = Builtin {
    group: "apps",
    kind: "DaemonSet",
    plural: "daemonsets",
    pod_spec: "spec.template.spec",
    short_names: &["ds"],
    categories: &["all"],
    schema: "apps/v1.DaemonSet",
    subresources: &[STATUS],
    has_status: true,
    has_generation: true,
    default,
    prepare_create: |object, _: &Context<'_>| {
        let number = template_generation(object).max(1);
        set_template_generation(object, number);
    },
    prepare_update,
    validate_create: validate,
    validate_update,
    warnings: crate::pod::warn_changed_template,
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Desired", "integer", "Nodes that should run the pod."),
    column("Current", "integer", "Nodes that run it."),
    column("Ready", "integer", "Pods that are ready."),
    column(
        "Up-to-date",
        "integer",
        "Pods made from the newest template.",
    ),
    column("Available", "integer", "Pods ready for long enough."),
    column("Node Selector", "string", "Labels of the nodes."),
    AGE,
    wide("Containers", "string", "Names of the containers."),
    wide("Images", "string", "Images of the containers."),
    wide("Selector", "string", "Labels of the pods."),
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    let pod = &spec["template"]["spec"];
    let (names, images) = containers(pod);
    vec![
        name_cell(object),
        int(&status["desiredNumberScheduled"]).into(),
        int(&status["currentNumberScheduled"]).into(),
        int(&status["numberReady"]).into(),
        int(&status["updatedNumberScheduled"]).into(),
        int(&status["numberAvailable"]).into(),
        Value::from(labels(&pod["nodeSelector"])),
        age(object, now),
        Value::from(names),
        Value::from(images),
        Value::from(selector(&spec["selector"])),
    ]
}

fn default(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    default_template(child_or_new(spec, "template"));
    let strategy = child_or_new(spec, "updateStrategy");
    default_empty(strategy, "type", "RollingUpdate");
    if get(strategy, "type") == "RollingUpdate" {
        let rolling = child_or_new(strategy, "rollingUpdate");
        default_to(rolling, "maxUnavailable", 1);
        default_to(rolling, "maxSurge", 0);
    }
    if let Some(rolling) = child(strategy, "rollingUpdate") {
        default_to(rolling, "maxUnavailable", 0);
        default_to(rolling, "maxSurge", 0);
    }
    default_to(spec, "revisionHistoryLimit", 10);
    let annotations = child_or_new(child_or_new(object, "metadata"), "annotations");
    default_to(annotations, TEMPLATE_GENERATION, "0");
}

fn template_generation(object: &Object) -> i64 {
    let annotations = &get(object, "metadata")["annotations"];
    text(&annotations[TEMPLATE_GENERATION])
        .parse()
        .unwrap_or_default()
}

fn set_template_generation(object: &mut Object, number: i64) {
    let annotations = child_or_new(child_or_new(object, "metadata"), "annotations");
    annotations.insert(
        TEMPLATE_GENERATION.to_owned(),
        Value::from(number.to_string()),
    );
}

fn prepare_update(
    object: &mut Object,
    old: &Object,
    subresource: Subresource<'_>,
    _: &Context<'_>,
) {
    let mut number = template_generation(old);
    if subresource.is_none()
        && !equal(
            "core/v1.PodTemplateSpec",
            &get(object, "spec")["template"],
            &get(old, "spec")["template"],
        )
    {
        number += 1;
    }
    set_template_generation(object, number);
}

const WORDS: Words = Words {
    selector: "daemonset",
    unreadable: "",
    template: "DaemonSet",
};

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    let (chosen, at) = (&spec["selector"], path.child("selector"));
    check::label_selector(chosen, &at, &mut errors);
    let labels = &spec["template"]["metadata"]["labels"];
    let parsed = Selector::from_label_selector(Some(chosen).filter(|s| is_set(s)));
    if parsed.is_ok_and(|s| !s.matches_map(labels.as_object())) {
        errors.push(mismatch(labels, &path));
    }
    if is_set(chosen) {
        check_not_empty(chosen, &WORDS, &at, &mut errors);
    }
    validate_template(&spec["template"], &path.child("template"), &mut errors);
    check_endless(&spec["template"], &WORDS, &path, &mut errors);
    let at = path.child("minReadySeconds");
    check::non_negative(&spec["minReadySeconds"], &at, &mut errors);
    let at = path.child("updateStrategy");
    check_strategy(&spec["updateStrategy"], &at, &mut errors);
    let at = path.child("revisionHistoryLimit");
    check::non_negative(&spec["revisionHistoryLimit"], &at, &mut errors);
    errors
}

fn check_strategy(strategy: &Value, path: &Path, errors: &mut Errors) {
    let rolling = &strategy["rollingUpdate"];
    let at = path.child("rollingUpdate");
    match text(&strategy["type"]) {
        "OnDelete" => {}
        "RollingUpdate" if !is_set(rolling) => errors.push(Error::required(&at, "")),
        "RollingUpdate" => {
            for name in ["maxUnavailable", "maxSurge"] {
                check::count_or_percent(&rolling[name], &at.child(name), errors);
            }
            for name in ["maxUnavailable", "maxSurge"] {
                check::at_most_whole(&rolling[name], &at.child(name), errors);
            }
            let zero = |v: &Value| check::amount_of(v) == 0;
            let (unavailable, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
            if zero(unavailable) && zero(surge) {
                let detail = "cannot be 0 when maxSurge is 0";
                errors.push(Error::required(&at.child("maxUnavailable"), detail));
            } else if !zero(unavailable) && !zero(surge) {
                let detail = "may not be set when maxUnavailable is non-zero";
                errors.push(Error::invalid(&at.child("maxSurge"), surge.clone(), detail));
            }
        }
        _ => {
            let shown = shown_strategy(strategy);
            let types = ["RollingUpdate", "OnDelete"];
            errors.push(Error::not_supported(path, shown, &types));
        }
    }
}

fn validate_update(object: &Object, old: &Object, subresource: Subresource<'_>) -> Errors {
    let mut errors = Vec::new();
    match subresource {
        None => {
            check_same_selector(object, old, &mut errors);
            errors.extend(validate(object));
        }
        Some("status") => {
            let counts = [
                "currentNumberScheduled",
                "numberMisscheduled",
                "desiredNumberScheduled",
                "numberReady",
                "observedGeneration",
                "updatedNumberScheduled",
                "numberAvailable",
                "numberUnavailable",
                "collisionCount",
            ];
            check_status(get(object, "status"), &counts, &[], "", &mut errors);
            check_collisions(object, old, &mut errors);
        }
        Some(_) => {}
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    #[test]
    fn the_template_generation_grows_when_templates_differ_as_in_go() {
        let set = |fields: &str| {
            object(&format!(
                r#"{{"metadata": {{"annotations": {{"{TEMPLATE_GENERATION}": "4"}}}}, "spec": {{"template": {{"spec": {{{fields}}}}}}}}}"#
            ))
        };
        for (fields, expected) in [
            ("", 4),
            (r#""tolerations": []"#, 4),
            (r#""affinity": {}"#, 5),
            (r#""hostname": "h""#, 5),
        ] {
            let mut new = set(fields);
            prepare_update(&mut new, &set(""), None, &Context { now: "", user: "" });
            assert_eq!(template_generation(&new), expected, "{fields}");
        }
    }
}
