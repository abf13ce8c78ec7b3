//! CertificateSigningRequest: a certificate, asked for, approved and issued in steps.

use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell, or_none};
use crate::tree::{child_or_new, get, int, is_set, keep, list, text};
use crate::{Column, Context, Scope, Subresource, SubresourceInfo};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, time};

pub const KIND: Builtin = Builtin {
    group: "certificates.k8s.io",
    kind: "CertificateSigningRequest",
    plural: "certificatesigningrequests",
    short_names: &["csr"],
    scope: Scope::Cluster,
    schema: "certificates/v1.CertificateSigningRequest",
    subresources: &[
        SubresourceInfo {
            name: "approval",
            ..STATUS
        },
        STATUS,
    ],
    has_status: true,
    prepare_create: |object, context: &Context<'_>| {
        // Who asks is for the server to say.
        let spec = child_or_new(object, "spec");
        spec.insert("username".to_owned(), Value::from(context.user));
        for name in ["uid", "groups", "extra"] {
            spec.shift_remove(name);
        }
    },
    prepare_update,
    validate_create: validate,
    validate_update,
    selectable: &["spec.signerName"],
    selectable_fields: |o| {
        vec![(
            "spec.signerName",
            text(&get(o, "spec")["signerName"]).to_owned(),
        )]
    },
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    AGE,
    column("SignerName", "string", "Who should sign."),
    column("Requestor", "string", "Who asks."),
    column("RequestedDuration", "string", "How long it should be good."),
    column("Condition", "string", "How far it is."),
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    let has = |kind: &str| {
        list(&status["conditions"])
            .iter()
            .any(|c| c["type"] == kind)
    };
    let mut state = if has("Denied") {
        "Denied".to_owned()
    } else if has("Approved") {
        "Approved".to_owned()
    } else {
        "Pending".to_owned()
    };
    if has("Failed") {
        state.push_str(",Failed");
    }
    if !text(&status["certificate"]).is_empty() {
        state.push_str(",Issued");
    }
    let duration = &spec["expirationSeconds"];
    let duration = if is_set(duration) {
        time::human_duration(int(duration))
    } else {
        "<none>".to_owned()
    };
    vec![
        name_cell(object),
        age(object, now),
        Value::from(or_none(text(&spec["signerName"]))),
        text(&spec["username"]).into(),
        Value::from(duration),
        Value::from(state),
    ]
}

fn prepare_update(
    object: &mut Object,
    old: &Object,
    subresource: Subresource<'_>,
    _: &Context<'_>,
) {
    keep(object, old, "spec");
    let before = get(old, "status");
    match subresource {
        // Approval changes conditions alone, status everything but approval.
        Some("approval") => {
            let conditions = get(object, "status")["conditions"].clone();
            keep(object, old, "status");
            child_or_new(object, "status").insert("conditions".to_owned(), conditions);
        }
        Some("status") => {
            let is_decision = |c: &Value| c["type"] == "Approved" || c["type"] == "Denied";
            let mut conditions: Vec<Value> = list(&before["conditions"])
                .iter()
                .filter(|c| is_decision(c))
                .cloned()
                .collect();
            let new = list(&get(object, "status")["conditions"]).to_vec();
            conditions.extend(new.into_iter().filter(|c| !is_decision(c)));
            let status = child_or_new(object, "status");
            if conditions.is_empty() {
                status.shift_remove("conditions");
            } else {
                status.insert("conditions".to_owned(), Value::Array(conditions));
            }
        }
        _ => {}
    }
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    if text(&spec["request"]).is_empty() {
        let detail = "PEM block type must be CERTIFICATE REQUEST";
        errors.push(Error::invalid(&path.child("request"), "", detail));
    }
    let signer = text(&spec["signerName"]);
    let at = path.child("signerName");
    match signer.split_once('/') {
        _ if signer.is_empty() => errors.push(Error::required(&at, "")),
        Some((domain, name)) if domain.contains('.') && !name.is_empty() => {}
        _ => {
            let detail =
                "must be a fully qualified domain and path of the form 'example.com/signer-name'";
            errors.push(Error::invalid(&at, signer, detail));
        }
    }
    if list(&spec["usages"]).is_empty() {
        errors.push(Error::required(&path.child("usages"), ""));
    }
    let seconds = &spec["expirationSeconds"];
    if is_set(seconds) && int(seconds) < 600 {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(Error::invalid(
            &path.child("expirationSeconds"),
            int(seconds),
            detail,
        ));
    }
    errors
}

fn validate_update(object: &Object, old: &Object, _: Subresource<'_>) -> Errors {
    let mut errors = Vec::new();
    let status = get(object, "status");
    let has = |kind: &str| {
        list(&status["conditions"])
            .iter()
            .any(|c| c["type"] == kind)
    };
    let at = Path::new("status").child("conditions");
    if has("Approved") && has("Denied") {
        let detail = "Approved and Denied conditions are mutually exclusive";
        errors.push(Error::invalid(&at, "Denied", detail));
    }
    let was = &get(old, "status")["certificate"];
    if is_set(was) {
        let at = Path::new("status").child("certificate");
        check::immutable(&status["certificate"], was, &at, &mut errors);
    }
    for kind in ["Approved", "Denied", "Failed"] {
        let gone = list(&get(old, "status")["conditions"])
            .iter()
            .any(|c| c["type"] == kind)
            && !has(kind);
        if gone {
            let detail = format!("updates may not remove a condition of type \"{kind}\"");
            errors.push(Error::forbidden(&at, detail));
        }
    }
    errors
}
