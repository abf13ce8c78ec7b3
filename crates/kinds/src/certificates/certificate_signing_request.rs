//! CertificateSigningRequest: a certificate is requested, approved and issued in steps.

use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell, or_none};
use crate::metadata::Check;
use crate::pem;
use crate::tree::{child_or_new, default_empty, each, get, int, is_set, keep, list, text};
use crate::{Column, Context, Scope, Subresource, SubresourceInfo};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::text::quote;
use machinery::{Object, Value, format, time};
use std::collections::BTreeSet;

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
        // The server sets the requester's identity.
        let spec = child_or_new(object, "spec");
        spec.insert("username".to_owned(), Value::from(context.user));
        for name in ["uid", "groups", "extra"] {
            spec.shift_remove(name);
        }
    },
    record_requester: |object, requester| {
        let spec = child_or_new(object, "spec");
        spec.insert("username".to_owned(), requester.name.into());
        if !requester.uid.is_empty() {
            spec.insert("uid".to_owned(), requester.uid.into());
        }
        if !requester.groups.is_empty() {
            spec.insert("groups".to_owned(), requester.groups.to_vec().into());
        }
        if !requester.extra.is_empty() {
            spec.insert("extra".to_owned(), json!(requester.extra));
        }
    },
    resets: &[&["spec"], &["status"]],
    // Anything valid in a path.
    validate_name: crate::metadata::path_segment,
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
    metadata_checks: &[Check::WholeButName, Check::Change],
    status_metadata_checks: &[Check::WholeButName, Check::Change],
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    AGE,
    column("SignerName", "string", "Name of the signer."),
    column("Requestor", "string", "User who created the request."),
    column(
        "RequestedDuration",
        "string",
        "Requested validity of the certificate.",
    ),
    column(
        "Condition",
        "string",
        "Approved, denied, issued or pending.",
    ),
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
    context: &Context<'_>,
) {
    keep(object, old, "spec");
    match subresource {
        // `approval` changes only conditions; `status` everything but approval conditions.
        Some("approval") => {
            fill_times(object, old, context.now);
            let conditions = get(object, "status")["conditions"].clone();
            keep(object, old, "status");
            child_or_new(object, "status").insert("conditions".to_owned(), conditions);
        }
        Some("status") => {
            for kind in ["Approved", "Denied"] {
                keep_conditions(object, old, kind);
            }
            fill_times(object, old, context.now);
        }
        _ => {}
    }
}

fn conditions_of<'a>(object: &'a Object, kind: &str) -> Vec<&'a Value> {
    let all = list(&get(object, "status")["conditions"]);
    all.iter().filter(|c| c["type"] == kind).collect()
}

/// Restores approval conditions, if their number is unchanged.
fn keep_conditions(object: &mut Object, old: &Object, kind: &str) {
    let was: Vec<Value> = conditions_of(old, kind).into_iter().cloned().collect();
    if was.len() != conditions_of(object, kind).len() {
        return;
    }
    let mut was = was.into_iter();
    for condition in each(child_or_new(object, "status"), "conditions") {
        if get(condition, "type") == kind
            && let Some(Value::Object(old)) = was.next()
        {
            *condition = old;
        }
    }
}

/// Sets absent lastUpdateTime and lastTransitionTime of conditions.
fn fill_times(object: &mut Object, old: &Object, now: &str) {
    let was = list(&get(old, "status")["conditions"]);
    if !get(object, "status").is_object() {
        return;
    }
    for condition in each(child_or_new(object, "status"), "conditions") {
        default_empty(condition, "lastUpdateTime", now);
        let same = was.iter().find(|c| {
            c["type"] == *get(condition, "type")
                && c["status"] == *get(condition, "status")
                && is_set(&c["lastTransitionTime"])
        });
        let since = same
            .map_or(now, |c| text(&c["lastTransitionTime"]))
            .to_owned();
        default_empty(condition, "lastTransitionTime", since);
    }
}

const USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];
const LEGACY_SIGNER: &str = "kubernetes.io/legacy-unknown";

/// A base64 field as text.
fn decoded(value: &Value) -> String {
    let bytes = STANDARD.decode(text(value)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn repeats<'a>(values: impl Iterator<Item = &'a Value>) -> bool {
    let mut seen = BTreeSet::new();
    values.map(text).any(|value| !seen.insert(value))
}

/// Rules that do not apply because the object violated them before.
#[derive(Default)]
struct Lenience {
    both_decisions: bool,
    legacy_signer: bool,
    repeated_conditions: bool,
    empty_conditions: bool,
    any_certificate: bool,
    repeated_usages: bool,
    unknown_usages: bool,
}

impl Lenience {
    fn towards(object: &Object, old: &Object) -> Self {
        let (spec, status) = (get(old, "spec"), get(old, "status"));
        let conditions = list(&status["conditions"]);
        let usages = list(&spec["usages"]);
        let certificate = &status["certificate"];
        let has = |kind: &str| !conditions_of(old, kind).is_empty();
        let odd = !text(certificate).is_empty()
            && pem::check_certificates(&decoded(certificate)).is_err();
        Self {
            both_decisions: has("Approved") && has("Denied"),
            legacy_signer: spec["signerName"] == LEGACY_SIGNER,
            repeated_conditions: repeats(conditions.iter().map(|c| &c["type"])),
            empty_conditions: conditions.iter().any(|c| text(&c["type"]).is_empty()),
            any_certificate: text(&get(object, "status")["certificate"]) == text(certificate)
                || odd,
            repeated_usages: repeats(usages.iter()),
            unknown_usages: usages.iter().any(|u| !USAGES.contains(&text(u))),
        }
    }
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    check_whole(object, &Lenience::default(), &mut errors);
    errors
}

fn check_whole(object: &Object, lenience: &Lenience, errors: &mut Errors) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    if let Err(why) = pem::check_request(&decoded(&spec["request"])) {
        let at = path.child("request");
        let shown = match &spec["request"] {
            Value::String(s) if s.is_empty() => Value::Null,
            other => other.clone(),
        };
        errors.push(Error::invalid(&at, shown, why));
    }
    check_usages(
        list(&spec["usages"]),
        lenience,
        &path.child("usages"),
        errors,
    );
    let (signer, at) = (text(&spec["signerName"]), path.child("signerName"));
    if signer == LEGACY_SIGNER && !lenience.legacy_signer {
        let detail = "the legacy signerName is not allowed via this API version";
        errors.push(Error::invalid(&at, signer, detail));
    } else {
        check_signer(signer, &at, errors);
    }
    let seconds = &spec["expirationSeconds"];
    if is_set(seconds) && int(seconds) < 600 {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        let at = path.child("expirationSeconds");
        errors.push(Error::invalid(&at, int(seconds), detail));
    }
    let status = get(object, "status");
    check_conditions(list(&status["conditions"]), lenience, errors);
    let certificate = &status["certificate"];
    if !lenience.any_certificate
        && !text(certificate).is_empty()
        && let Err(why) = pem::check_certificates(&decoded(certificate))
    {
        let at = Path::new("status.certificate");
        errors.push(Error::invalid(&at, "<certificate data>", why));
    }
}

fn check_usages(usages: &[Value], lenience: &Lenience, path: &Path, errors: &mut Errors) {
    if usages.is_empty() {
        errors.push(Error::required(path, ""));
    }
    if !lenience.unknown_usages {
        for (i, usage) in usages.iter().enumerate() {
            check::one_of(usage, USAGES, &path.index(i), errors);
        }
    }
    if !lenience.repeated_usages {
        for (i, usage) in usages.iter().enumerate() {
            if usages[..i].contains(usage) {
                errors.push(Error::duplicate(&path.index(i), text(usage)));
            }
        }
    }
}

/// A signer: a domain and a path, such as `example.com/signer-name`.
fn check_signer(signer: &str, path: &Path, errors: &mut Errors) {
    const DOMAIN_MAX: usize = 253;
    const NAME_MAX: usize = DOMAIN_MAX + 1 + DOMAIN_MAX + 63 + 1;
    if signer.is_empty() {
        errors.push(Error::required(path, ""));
        return;
    }
    let [domain, name] = signer.split('/').collect::<Vec<_>>()[..] else {
        let detail =
            "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.push(Error::invalid(path, signer, detail));
        return;
    };
    if domain.len() > DOMAIN_MAX {
        errors.push(Error::too_long(path, DOMAIN_MAX));
    }
    check_segment(domain, format::dns1123_label, path, errors);
    if !domain.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        errors.push(Error::invalid(path, domain, detail));
    }
    check_segment(name, format::dns1123_subdomain, path, errors);
    if signer.len() > NAME_MAX {
        errors.push(Error::too_long(path, NAME_MAX));
    }
}

/// Reports the first invalid label.
fn check_segment(value: &str, form: fn(&str) -> Vec<String>, path: &Path, errors: &mut Errors) {
    let Some(bad) = value.split('.').find(|label| !form(label).is_empty()) else {
        return;
    };
    for complaint in form(bad) {
        let detail = format!("validating label {}: {complaint}", quote(bad));
        errors.push(Error::invalid(path, value, detail));
    }
}

fn check_conditions(conditions: &[Value], lenience: &Lenience, errors: &mut Errors) {
    let path = Path::new("status.conditions");
    let mut decisions: Vec<&str> = Vec::new();
    for (i, condition) in conditions.iter().enumerate() {
        let (kind, at) = (text(&condition["type"]), path.index(i));
        if kind.is_empty() && !lenience.empty_conditions {
            errors.push(Error::required(&at.child("type"), ""));
        }
        let states: &[&str] = match kind {
            "Approved" | "Denied" | "Failed" => &["True"],
            _ => &["False", "True", "Unknown"],
        };
        check::known(&condition["status"], states, &at.child("status"), errors);
        if matches!(kind, "Approved" | "Denied") && !lenience.both_decisions {
            decisions.push(kind);
            if decisions.iter().any(|other| *other != kind) {
                let detail = "Approved and Denied conditions are mutually exclusive";
                errors.push(Error::invalid(&path, kind, detail));
            }
        }
        let repeated = conditions[..i].iter().any(|c| text(&c["type"]) == kind);
        if repeated && !lenience.repeated_conditions {
            errors.push(Error::duplicate(&at.child("type"), kind));
        }
    }
}

fn validate_update(object: &Object, old: &Object, subresource: Subresource<'_>) -> Errors {
    let mut errors = Vec::new();
    check_whole(object, &Lenience::towards(object, old), &mut errors);
    let path = Path::new("status");
    let at = path.child("conditions");
    let counts = |kind: &str| {
        (
            conditions_of(object, kind).len(),
            conditions_of(old, kind).len(),
        )
    };
    for kind in ["Approved", "Denied", "Failed"] {
        let (new, was) = counts(kind);
        if new < was {
            let detail = format!("updates may not remove a condition of type \"{kind}\"");
            errors.push(Error::forbidden(&at, detail));
        }
    }
    if subresource != Some("approval") {
        for kind in ["Approved", "Denied"] {
            let (new, was) = counts(kind);
            if new > was {
                let detail = format!("updates may not add a condition of type \"{kind}\"");
                errors.push(Error::forbidden(&at, detail));
            }
        }
    }
    let was = text(&get(old, "status")["certificate"]);
    if text(&get(object, "status")["certificate"]) != was {
        let at = path.child("certificate");
        if subresource != Some("status") {
            errors.push(Error::forbidden(
                &at,
                "updates may not set certificate content",
            ));
        } else if !was.is_empty() {
            let detail = "updates may not modify existing certificate content";
            errors.push(Error::forbidden(&at, detail));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pem::tests::{AUTHORITY, REQUEST};
    use crate::testing::{lines, object};
    use machinery::json::json;

    fn asked(signer: &str, usages: &Value, status: Value) -> Object {
        let mut csr = object("{}");
        let request = STANDARD.encode(REQUEST);
        let spec = json!({"request": request, "signerName": signer, "usages": usages});
        csr.insert("spec".to_owned(), spec);
        csr.insert("status".to_owned(), status);
        csr
    }

    #[test]
    fn signer_name_and_usages_are_required() {
        let none: [&str; 0] = [];
        let good = asked("example.com/x", &json!(["client auth"]), json!({}));
        assert_eq!(lines(validate(&good)), none);
        for (signer, usages, line) in [
            ("", json!(["any"]), "spec.signerName: Required value"),
            (
                "x",
                json!(["any"]),
                "spec.signerName: Invalid value: \"x\": must be a fully qualified domain and path of the form 'example.com/signer-name'",
            ),
            (
                "x/y",
                json!(["any"]),
                "spec.signerName: Invalid value: \"x\": should be a domain with at least two segments separated by dots",
            ),
            (
                "kubernetes.io/legacy-unknown",
                json!(["any"]),
                "spec.signerName: Invalid value: \"kubernetes.io/legacy-unknown\": the legacy signerName is not allowed via this API version",
            ),
            ("a.b/c", json!([]), "spec.usages: Required value"),
            (
                "a.b/c",
                json!(["any", "any"]),
                "spec.usages[1]: Duplicate value: \"any\"",
            ),
        ] {
            assert_eq!(lines(validate(&asked(signer, &usages, json!({})))), [line]);
        }
        let unknown = lines(validate(&asked("a.b/c", &json!(["x"]), json!({}))));
        assert!(
            unknown[0].starts_with(
                "spec.usages[0]: Unsupported value: \"x\": supported values: \"any\", "
            )
        );
        let mut other = good;
        child_or_new(&mut other, "spec").insert("request".to_owned(), json!("YQ=="));
        assert_eq!(
            lines(validate(&other)),
            ["spec.request: Invalid value: \"YQ==\": PEM block type must be CERTIFICATE REQUEST"]
        );
    }

    #[test]
    fn conditions_are_set_only_through_approval_and_are_kept() {
        let is = |kind: &str| json!({"type": kind, "status": "True"});
        let usages = json!(["any"]);
        let csr = |conditions: Value| asked("a.b/c", &usages, json!({"conditions": conditions}));
        let errors_of = |new: &Value, old: &Value, way: &str| {
            lines(validate_update(
                &csr(new.clone()),
                &csr(old.clone()),
                Some(way),
            ))
        };
        let none: [&str; 0] = [];
        let (nothing, approved) = (json!([]), json!([is("Approved")]));
        assert_eq!(errors_of(&approved, &nothing, "approval"), none);
        assert_eq!(
            errors_of(&approved, &nothing, "status"),
            ["status.conditions: Forbidden: updates may not add a condition of type \"Approved\""]
        );
        assert_eq!(
            errors_of(&nothing, &approved, "approval"),
            [
                "status.conditions: Forbidden: updates may not remove a condition of type \"Approved\""
            ]
        );
        assert_eq!(
            errors_of(
                &json!([is("Approved"), is("Denied")]),
                &approved,
                "approval"
            ),
            [
                "status.conditions: Invalid value: \"Denied\": Approved and Denied conditions are mutually exclusive"
            ]
        );
        let denied = json!([{"type": "Denied", "status": "False"}]);
        assert_eq!(
            errors_of(&denied, &nothing, "approval"),
            [
                "status.conditions[0].status: Unsupported value: \"False\": supported values: \"True\""
            ]
        );
    }

    #[test]
    fn a_certificate_is_issued_once() {
        let usages = json!(["any"]);
        let csr = |text: &str| {
            asked(
                "a.b/c",
                &usages,
                json!({"certificate": STANDARD.encode(text)}),
            )
        };
        let errors_of =
            |new: &str, old: &str| lines(validate_update(&csr(new), &csr(old), Some("status")));
        let none: [&str; 0] = [];
        assert_eq!(errors_of(AUTHORITY, ""), none);
        assert_eq!(
            errors_of("x", ""),
            [
                "status.certificate: Invalid value: \"<certificate data>\": must contain at least one CERTIFICATE PEM block"
            ]
        );
        let twice = format!("{AUTHORITY}{AUTHORITY}");
        assert_eq!(
            errors_of(&twice, AUTHORITY),
            ["status.certificate: Forbidden: updates may not modify existing certificate content"]
        );
    }

    #[test]
    fn the_time_of_a_decision_is_filled_in() {
        let old = object(r#"{"spec": {}}"#);
        let mut new =
            object(r#"{"status": {"conditions": [{"type": "Approved", "status": "True"}]}}"#);
        let context = Context {
            now: "2020-01-01T00:00:00Z",
            user: "",
        };
        prepare_update(&mut new, &old, Some("approval"), &context);
        let condition = &get(&new, "status")["conditions"][0];
        assert_eq!(condition["lastUpdateTime"], context.now);
        assert_eq!(condition["lastTransitionTime"], context.now);
    }

    #[test]
    fn an_invalid_generate_name_is_reported_once() {
        let kind = crate::find("certificates.k8s.io", "v1", "certificatesigningrequests").unwrap();
        let old = object(r#"{"metadata": {"name": "c"}}"#);
        let new = object(r#"{"metadata": {"name": "c", "generateName": "a/b"}}"#);
        for way in [None, Some("status"), Some("approval")] {
            assert_eq!(
                lines(crate::metadata::validate_update(kind, &new, &old, way)),
                ["metadata.generateName: Invalid value: \"a/b\": may not contain '/'"]
            );
        }
    }
}
