//! CSIDriver: capabilities of a storage driver.

use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::tree::{
    child_or_new, default_empty, default_to, get, int, is_set, list, same, text, truth,
};
use crate::unenforced::{Unenforced, is_true};
use crate::{Column, Context, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    group: "storage.k8s.io",
    kind: "CSIDriver",
    plural: "csidrivers",
    unenforced: &[Unenforced {
        path: "spec.seLinuxMount",
        asks: is_true,
        warning: "volumes are mounted without SELinux labels",
    }],
    returns_deleted: true,
    scope: Scope::Cluster,
    schema: "storage/v1.CSIDriver",
    // The generation is counted from the first change on.
    prepare_update: |object, old, _, _: &Context<'_>| {
        if !same(get(object, "spec"), get(old, "spec")) {
            let number = int(&get(old, "metadata")["generation"]) + 1;
            child_or_new(object, "metadata").insert("generation".to_owned(), number.into());
        }
    },
    allows_unconditional_update: false,
    default,
    validate_create: validate,
    validate_update: |object, old, _: Subresource<'_>| {
        let mut errors = validate(object);
        let at = Path::new("spec.attachedRequired");
        let attach = |o: &Object| get(o, "spec")["attachRequired"].clone();
        check::immutable(&attach(object), &attach(old), &at, &mut errors);
        let at = Path::new("spec.volumeLifecycleModes");
        let modes = |o: &Object| get(o, "spec")["volumeLifecycleModes"].clone();
        check::immutable(&modes(object), &modes(old), &at, &mut errors);
        errors
    },
    warnings,
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

fn warnings(object: &Object, old: Option<&Object>) -> Vec<String> {
    let (spec, tokens) = (get(object, "spec"), "tokenRequests");
    let changed = old.is_none_or(|old| !same(&spec[tokens], &get(old, "spec")[tokens]));
    let in_secrets = is_set(&spec["serviceAccountTokenInSecrets"]);
    if list(&spec[tokens]).is_empty() || !changed || in_secrets {
        return Vec::new();
    }
    let why = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes";
    vec![why.to_owned()]
}

const COLUMNS: &[Column] = &[
    NAME,
    column(
        "AttachRequired",
        "boolean",
        "Whether volumes are attached first.",
    ),
    column(
        "PodInfoOnMount",
        "boolean",
        "Whether it hears about the pod.",
    ),
    column(
        "StorageCapacity",
        "boolean",
        "Whether it tells its capacity.",
    ),
    column(
        "TokenRequests",
        "string",
        "Audiences of the tokens it gets.",
    ),
    column(
        "RequiresRepublish",
        "boolean",
        "Whether NodePublishVolume is called periodically.",
    ),
    column("Modes", "string", "Lifecycles of volumes it supports."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let spec = get(object, "spec");
    let join = |items: Vec<&str>, none: &str| {
        if items.is_empty() {
            none.to_owned()
        } else {
            items.join(",")
        }
    };
    let tokens = list(&spec["tokenRequests"])
        .iter()
        .map(|t| text(&t["audience"]))
        .collect();
    let modes = list(&spec["volumeLifecycleModes"])
        .iter()
        .map(text)
        .collect();
    vec![
        name_cell(object),
        spec["attachRequired"].as_bool().unwrap_or(true).into(),
        truth(&spec["podInfoOnMount"]).into(),
        truth(&spec["storageCapacity"]).into(),
        Value::from(join(tokens, "<unset>")),
        truth(&spec["requiresRepublish"]).into(),
        Value::from(join(modes, "<none>")),
        age(object, now),
    ]
}

fn default(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    default_to(spec, "attachRequired", true);
    default_to(spec, "podInfoOnMount", false);
    default_to(spec, "storageCapacity", false);
    default_to(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    default_empty(spec, "volumeLifecycleModes", json!(["Persistent"]));
    default_to(spec, "requiresRepublish", false);
    default_to(spec, "seLinuxMount", false);
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    if is_set(&spec["fsGroupPolicy"]) {
        let policies = ["File", "None", "ReadWriteOnceWithFSType"];
        let at = path.child("fsGroupPolicy");
        check::one_of(&spec["fsGroupPolicy"], &policies, &at, &mut errors);
    }
    let requests = list(&spec["tokenRequests"]);
    check_tokens(requests, &path.child("tokenRequests"), &mut errors);
    for mode in list(&spec["volumeLifecycleModes"]) {
        let at = path.child("volumeLifecycleModes");
        check::one_of(mode, &["Persistent", "Ephemeral"], &at, &mut errors);
    }
    let period = &spec["nodeAllocatableUpdatePeriodSeconds"];
    if is_set(period) && int(period) < 10 {
        let at = path.child("nodeAllocatableUpdatePeriodSeconds");
        let detail = "must be greater than or equal to 10 seconds";
        errors.push(Error::invalid(&at, int(period), detail));
    }
    let in_secrets = &spec["serviceAccountTokenInSecrets"];
    if is_set(in_secrets) && requests.is_empty() {
        let at = path.child("serviceAccountTokenInSecrets");
        let detail = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        errors.push(Error::invalid(&at, in_secrets.clone(), detail));
    }
    errors
}

fn check_tokens(requests: &[Value], path: &Path, errors: &mut Errors) {
    for (i, request) in requests.iter().enumerate() {
        let (at, audience) = (path.index(i), text(&request["audience"]));
        if requests[..i]
            .iter()
            .any(|r| text(&r["audience"]) == audience)
        {
            errors.push(Error::duplicate(&at.child("audience"), audience));
            continue;
        }
        let (seconds, at) = (&request["expirationSeconds"], at.child("expirationSeconds"));
        if is_set(seconds) && int(seconds) < 600 {
            let detail = "may not specify a duration less than 10 minutes";
            errors.push(Error::invalid(&at, int(seconds), detail));
        }
        if int(seconds) > 1 << 32 {
            let detail = "may not specify a duration larger than 2^32 seconds";
            errors.push(Error::invalid(&at, int(seconds), detail));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn tokens_live_for_ten_minutes_at_least() {
        let driver = object(
            r#"{"spec": {"tokenRequests": [{"audience": "a", "expirationSeconds": 1}, {"audience": "a"}], "nodeAllocatableUpdatePeriodSeconds": 9}}"#,
        );
        assert_eq!(
            lines(validate(&driver)),
            [
                "spec.tokenRequests[0].expirationSeconds: Invalid value: 1: may not specify a duration less than 10 minutes",
                "spec.tokenRequests[1].audience: Duplicate value: \"a\"",
                "spec.nodeAllocatableUpdatePeriodSeconds: Invalid value: 9: must be greater than or equal to 10 seconds",
            ]
        );
    }

    #[test]
    fn tokens_in_plain_attributes_are_warned_about_when_they_change() {
        let plain = object(r#"{"spec": {"tokenRequests": [{"audience": "a"}]}}"#);
        let other = object(r#"{"spec": {"tokenRequests": [{"audience": "b"}]}}"#);
        let secret = object(
            r#"{"spec": {"tokenRequests": [{"audience": "a"}], "serviceAccountTokenInSecrets": false}}"#,
        );
        for (given, old, count) in [
            (&plain, None, 1),
            (&plain, Some(&plain), 0),
            (&plain, Some(&other), 1),
            (&secret, None, 0),
        ] {
            assert_eq!(warnings(given, old).len(), count);
        }
    }
}
