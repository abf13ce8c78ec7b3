//! StatefulSet: pods with stable names, an order and volumes of their own.

use super::{Words, check_collisions, check_endless, check_pods, check_status};
use crate::builtin::{Builtin, SCALE, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, containers, name_cell, wide};
use crate::core::persistent_volume_claim::validate_spec as validate_claim;
use crate::equal::equal;
use crate::pod::default_template;
use crate::tree::{
    child, child_or_new, default_empty, default_to, each, get, int, is_empty, is_set, list, text,
};
use crate::{Column, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::labels::Selector;
use machinery::quantity::Quantity;
use machinery::text::quote;
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    group: "apps",
    kind: "StatefulSet",
    plural: "statefulsets",
    pod_spec: "spec.template.spec",
    short_names: &["sts"],
    categories: &["all"],
    schema: "apps/v1.StatefulSet",
    subresources: &[SCALE, STATUS],
    validate_name: crate::metadata::label,
    has_status: true,
    has_generation: true,
    default,
    validate_create: validate,
    validate_update,
    warnings,
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Ready", "string", "Pods that are ready, of those wanted."),
    AGE,
    wide("Containers", "string", "Names of the containers."),
    wide("Images", "string", "Images of the containers."),
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    let (names, images) = containers(&spec["template"]["spec"]);
    let ready = format!(
        "{}/{}",
        int(&status["readyReplicas"]),
        int(&spec["replicas"])
    );
    vec![
        name_cell(object),
        ready.into(),
        age(object, now),
        names.into(),
        images.into(),
    ]
}

fn default(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    default_empty(spec, "podManagementPolicy", "OrderedReady");
    default_template(child_or_new(spec, "template"));
    let strategy = child_or_new(spec, "updateStrategy");
    if is_empty(get(strategy, "type")) {
        strategy.insert("type".to_owned(), "RollingUpdate".into());
        child_or_new(strategy, "rollingUpdate");
    }
    if get(strategy, "type") == "RollingUpdate"
        && let Some(rolling) = child(strategy, "rollingUpdate")
    {
        default_to(rolling, "partition", 0);
    }
    let retention = child_or_new(spec, "persistentVolumeClaimRetentionPolicy");
    default_empty(retention, "whenDeleted", "Retain");
    default_empty(retention, "whenScaled", "Retain");
    default_to(spec, "replicas", 1);
    default_to(spec, "revisionHistoryLimit", 10);
    for claim in each(spec, "volumeClaimTemplates") {
        // apiVersion and kind are always those of a claim.
        claim.insert("apiVersion".to_owned(), "v1".into());
        claim.insert("kind".to_owned(), "PersistentVolumeClaim".into());
        if let Some(spec) = child(claim, "spec") {
            default_to(spec, "volumeMode", "Filesystem");
        }
        default_empty(child_or_new(claim, "status"), "phase", "Pending");
    }
}

const WORDS: Words = Words {
    selector: "statefulset",
    unreadable: "",
    template: "StatefulSet",
};

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    validate_spec(get(object, "spec"), true, &mut errors);
    errors
}

/// `is_new`: fields that are immutable later are validated too.
fn validate_spec(spec: &Value, is_new: bool, errors: &mut Errors) {
    let path = Path::new("spec");
    let at = path.child("podManagementPolicy");
    match text(&spec["podManagementPolicy"]) {
        "OrderedReady" | "Parallel" => {}
        "" => errors.push(Error::required(&at, "")),
        other => {
            let detail = "must be 'OrderedReady' or 'Parallel'";
            errors.push(Error::invalid(&at, other, detail));
        }
    }
    check_strategy(
        &spec["updateStrategy"],
        &path.child("updateStrategy"),
        errors,
    );
    let retention = &spec["persistentVolumeClaimRetentionPolicy"];
    for name in ["whenDeleted", "whenScaled"] {
        let at = path.child("persistentVolumeClaimRetentionPolicy");
        if is_set(retention) {
            let policies = ["Retain", "Delete"];
            check::one_of(&retention[name], &policies, &at.child(name), errors);
        }
    }
    if is_new {
        for (i, claim) in list(&spec["volumeClaimTemplates"]).iter().enumerate() {
            let at = path.child("volumeClaimTemplates");
            let at = at.index(i);
            let at = at.child("spec");
            validate_claim(&claim["spec"], false, &at, errors);
        }
    }
    for name in ["replicas", "minReadySeconds"] {
        check::non_negative(&spec[name], &path.child(name), errors);
    }
    let at = path.child("ordinals.start");
    check::non_negative(&spec["ordinals"]["start"], &at, errors);
    if is_new {
        let at = path.child("serviceName");
        check::optional(format::dns1123_label, &spec["serviceName"], &at, errors);
    }
    let template = whole_template(spec);
    check_pods(spec, &template, &WORDS, &path, errors);
    if Selector::from_label_selector(Some(&spec["selector"]).filter(|s| is_set(s))).is_ok() {
        let (metadata, at) = (&template["metadata"], path.child("template"));
        check::labels(&metadata["labels"], &at.child("labels"), errors);
        let at = at.child("annotations");
        check::annotations(&metadata["annotations"], &at, errors);
    }
    check_endless(&spec["template"], &WORDS, &path, errors);
}

/// The template with a volume for every claim, under the claim's name, and without hostname and
/// subdomain.
fn whole_template(spec: &Value) -> Value {
    let mut template = spec["template"].clone();
    let claims = list(&spec["volumeClaimTemplates"]);
    if let Some(Value::Object(pod)) = template.get_mut("spec") {
        pod.shift_remove("subdomain");
        pod.shift_remove("hostname");
        let named = |name: &Value| claims.iter().any(|c| c["metadata"]["name"] == *name);
        let own = pod.get("volumes").cloned().unwrap_or_default();
        let mut volumes: Vec<Value> = Vec::new();
        for claim in claims {
            let name = &claim["metadata"]["name"];
            // Claims with the same name are one volume.
            if volumes.iter().all(|volume| volume["name"] != *name) {
                volumes.push(json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
            }
        }
        volumes.extend(list(&own).iter().filter(|v| !named(&v["name"])).cloned());
        if !volumes.is_empty() {
            pod.insert("volumes".to_owned(), Value::Array(volumes));
        }
    }
    template
}

/// As Kubernetes prints it in errors.
fn shown_rolling(rolling: &Value) -> Value {
    if !is_set(rolling) {
        return Value::Null;
    }
    json!({"Partition": int(&rolling["partition"]), "MaxUnavailable": rolling["maxUnavailable"]})
}

/// Warns of fractional bytes.
fn warn_claim(spec: &Value, path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for kind in ["requests", "limits"] {
        let value = text(&spec["resources"][kind]["storage"]);
        if value.parse::<Quantity>().is_ok_and(|q| !q.is_integer()) {
            let at = path.child("resources");
            let at = at.child(kind);
            let at = at.key("storage");
            let value = quote(value);
            found.push(format!(
                "{at}: fractional byte value {value} is invalid, must be an integer"
            ));
        }
    }
    found
}

fn warnings(object: &Object, old: Option<&Object>) -> Vec<String> {
    let mut found = crate::pod::warn_template(object, old);
    let spec = get(object, "spec");
    let path = Path::new("spec.volumeClaimTemplates");
    for (i, claim) in list(&spec["volumeClaimTemplates"]).iter().enumerate() {
        let at = path.index(i);
        let at = match old {
            Some(_) => at.child("Spec"),
            None => at,
        };
        found.extend(warn_claim(&claim["spec"], &at));
    }
    if int(&spec["revisionHistoryLimit"]) < 0 {
        found.push("spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended".to_owned());
    }
    found
}

fn check_strategy(strategy: &Value, path: &Path, errors: &mut Errors) {
    let rolling = &strategy["rollingUpdate"];
    let at = path.child("rollingUpdate");
    match text(&strategy["type"]) {
        "" => errors.push(Error::required(path, "")),
        "OnDelete" => {
            if is_set(rolling) {
                let detail = "only allowed for updateStrategy 'RollingUpdate'";
                let shown = shown_rolling(rolling);
                errors.push(Error::invalid(&at, shown, detail));
            }
        }
        "RollingUpdate" => {
            let at = at.child("partition");
            check::non_negative(&rolling["partition"], &at, errors);
        }
        other => {
            let shown = json!({"Type": other, "RollingUpdate": shown_rolling(rolling)});
            let detail = "must be 'RollingUpdate' or 'OnDelete'";
            errors.push(Error::invalid(path, shown, detail));
        }
    }
}

const MUTABLE: &[&str] = &[
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

fn validate_update(object: &Object, old: &Object, subresource: Subresource<'_>) -> Errors {
    let mut errors = Vec::new();
    match subresource {
        None => validate_spec(get(object, "spec"), false, &mut errors),
        Some("status") => {
            let counts = [
                "replicas",
                "readyReplicas",
                "currentReplicas",
                "updatedReplicas",
                "availableReplicas",
                "observedGeneration",
                "collisionCount",
            ];
            let parts = [
                "readyReplicas",
                "currentReplicas",
                "updatedReplicas",
                "availableReplicas",
            ];
            let status = get(object, "status");
            check_status(status, &counts, &parts, "status.readyReplicas", &mut errors);
            check_collisions(object, old, &mut errors);
            return errors;
        }
        Some(_) => return errors,
    }
    let strip = |o: &Object| {
        let mut spec = get(o, "spec").clone();
        if let Value::Object(map) = &mut spec {
            map.retain(|key, _| !MUTABLE.contains(&key.as_str()));
        }
        spec
    };
    if !equal("apps/v1.StatefulSetSpec", &strip(object), &strip(old)) {
        let detail = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        errors.push(Error::forbidden(&Path::new("spec"), detail));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn immutable_fields_are_compared_as_in_go() {
        let set = |selector: &str| {
            object(&format!(
                r#"{{"spec": {{"selector": {{"matchLabels": {{"a": "b"}}}}, "podManagementPolicy": "Parallel",
                    "updateStrategy": {{"type": "OnDelete"}}, "serviceName": "s", "template": {{"metadata": {{"labels": {{"a": "b"}}}},
                    "spec": {{"containers": [{{"name": "c", "image": "i", "imagePullPolicy": "Always",
                        "terminationMessagePolicy": "File"}}], "restartPolicy": "Always", "dnsPolicy": "Default", "terminationGracePeriodSeconds": 1}}}},
                    "volumeClaimTemplates": [{{"metadata": {{"name": "v"}}, "spec": {{{selector}}}}}]}}}}"#
            ))
        };
        let reported = |new: &str, old: &str| lines(validate_update(&set(new), &set(old), None));
        assert_eq!(reported(r#""accessModes": []"#, ""), [""; 0]);
        let refused = reported(r#""selector": {}"#, "");
        assert!(refused[0].starts_with("spec: Forbidden: updates to statefulset spec"));
    }

    #[test]
    fn claims_of_one_name_are_one_volume() {
        let spec = json!({"template": {"spec": {"volumes": [{"name": "v"}, {"name": "w"}]}},
            "volumeClaimTemplates": [{"metadata": {"name": "v"}}, {"metadata": {"name": "v"}}]});
        assert_eq!(
            whole_template(&spec)["spec"]["volumes"],
            json!([{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}, {"name": "w"}])
        );
    }
}
