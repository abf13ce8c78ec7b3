//! CustomResourceDefinition: a kind defined by users. Its objects use the same interface as
//! built-in kinds, with the schema from the definition.

use super::schema::{self, Rules};
use super::versions::{Versions, crowded};
use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{NAME_CREATED, name_created};
use crate::pem;
use crate::tree::{child, child_or_new, default_empty, default_to, get, is_set, list, text, truth};
use crate::webhook_client::{check_review_versions, check_service, check_url, is_known_review};
use crate::{Context, Expressions, Scope, ServerSide, Subresource};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::text::quote;
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    group: "apiextensions.k8s.io",
    kind: "CustomResourceDefinition",
    plural: "customresourcedefinitions",
    server_side: ServerSide {
        expressions: Expressions::CustomResource,
        defines_kind: true,
        upstream_key: "apiextensions.k8s.io/customresourcedefinitions",
        ..ServerSide::NONE
    },
    short_names: &["crd", "crds"],
    categories: &["api-extensions"],
    scope: Scope::Cluster,
    schema: "apiextensions/v1.CustomResourceDefinition",
    subresources: &[STATUS],
    has_status: true,
    has_generation: true,
    default,
    allows_unconditional_update: false,
    prepare_create: |object, _| default_stored(object),
    prepare_update,
    validate_create: validate,
    validate_update,
    warnings,
    columns: NAME_CREATED,
    row: name_created,
    ..Builtin::EMPTY
};

fn default(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    let names = child_or_new(spec, "names");
    let kind = text(get(names, "kind")).to_owned();
    default_empty(names, "singular", kind.to_lowercase());
    if !kind.is_empty() {
        default_empty(names, "listKind", format!("{kind}List"));
    }
    default_to(spec, "conversion", json!({"strategy": "None"}));
    let service = child(spec, "conversion")
        .and_then(|c| child(c, "webhook"))
        .and_then(|w| child(w, "clientConfig"))
        .and_then(|c| child(c, "service"));
    if let Some(service) = service {
        default_to(service, "port", 443);
    }
    default_stored(object);
}

/// Adds the storage version to `status.storedVersions`.
fn prepare_update(object: &mut Object, _: &Object, subresource: Subresource<'_>, _: &Context<'_>) {
    if subresource.is_some() {
        return;
    }
    let versions = list(&get(object, "spec")["versions"]);
    let Some(stored) = versions.iter().find(|v| truth(&v["storage"])) else {
        return;
    };
    let stored = stored["name"].clone();
    let slot = child_or_new(object, "status")
        .entry("storedVersions")
        .or_insert(Value::Null);
    let mut all = list(slot).to_vec();
    if !all.contains(&stored) {
        all.push(stored);
        *slot = Value::Array(all);
    }
}

/// The storage version is the initial `status.storedVersions`.
fn default_stored(object: &mut Object) {
    let stored = list(&get(object, "spec")["versions"])
        .iter()
        .find(|v| truth(&v["storage"]))
        .map(|v| v["name"].clone());
    if let Some(stored) = stored {
        default_empty(
            child_or_new(object, "status"),
            "storedVersions",
            json!([stored]),
        );
    }
}

/// Which rules apply to a spec beside its schemas.
struct SpecRules<'a> {
    rules: Rules,
    schemas: bool,
    review_versions: bool,
    any_authorities: bool,
    crowded: Vec<&'a str>,
}

/// Every version is a complete API: served, discovered and documented separately. Upstream has no
/// limit.
const MOST_VERSIONS: usize = 256;

/// The error for too many versions; nothing else of the definition is then validated.
fn too_many_versions(object: &Object) -> Option<Error> {
    let count = list(&get(object, "spec")["versions"]).len();
    let at = Path::new("spec.versions");
    (count > MOST_VERSIONS).then(|| Error::too_many(&at, count, MOST_VERSIONS))
}

fn validate(object: &Object) -> Errors {
    if let Some(error) = too_many_versions(object) {
        return vec![error];
    }
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    let metadata = get(object, "metadata");
    for field in ["generateName", "name"] {
        let given = text(&metadata[field]);
        if !given.is_empty() && given != format!("{plural}.{group}") {
            let detail = "must be spec.names.plural+\".\"+spec.group";
            let at = Path::new("metadata");
            let at = at.child(field);
            errors.push(Error::invalid(&at, given, detail));
        }
    }
    let terms = SpecRules {
        rules: Rules::ALL,
        schemas: true,
        review_versions: true,
        any_authorities: true,
        crowded: Vec::new(),
    };
    check_spec(spec, &terms, &mut errors);
    check_status(object, &mut errors);
    check_approval(object, None, &mut errors);
    check_preserving(spec, None, &mut errors);
    errors
}

fn check_spec(spec: &Value, terms: &SpecRules<'_>, errors: &mut Errors) {
    let path = Path::new("spec");
    let (group, at) = (text(&spec["group"]), path.child("group"));
    let complaints = format::dns1123_subdomain(group);
    if group.is_empty() {
        errors.push(Error::required(&at, ""));
    } else if !complaints.is_empty() {
        errors.push(Error::invalid(&at, group, complaints.join(",")));
    } else if !group.contains('.') {
        let detail = "should be a domain with at least one dot";
        errors.push(Error::invalid(&at, group, detail));
    }
    let scopes = ["Cluster", "Namespaced"];
    check::known(&spec["scope"], &scopes, &path.child("scope"), errors);
    let preserves = truth(&spec["preserveUnknownFields"]);
    let versions = Versions::from_spec(spec);
    if terms.schemas {
        versions.check_schemas_there(&path, errors);
    }
    let any = |is: &dyn Fn(&Value) -> bool| {
        let schemas = versions.all.iter().map(|v| &v["schema"]["openAPIV3Schema"]);
        schemas.into_iter().any(|s| schema::has(s, is))
    };
    let defaults = any(&|s| s.get("default").is_some());
    if defaults && preserves {
        let detail = "must be false in order to use defaults in the schema";
        let at = path.child("preserveUnknownFields");
        errors.push(Error::invalid(&at, true, detail));
    }
    let mut rules = terms.rules;
    rules.structural |= !preserves || defaults || any(&has_extension);
    versions.check(rules, &terms.crowded, &path, errors);
    let at = path.child("names");
    for field in ["plural", "singular", "kind", "listKind"] {
        check::required(&spec["names"][field], &at.child(field), errors);
    }
    check_names(&spec["names"], &at, errors);
    versions.check_shared(rules, !terms.crowded.is_empty(), &path, errors);
    let strategy = text(&spec["conversion"]["strategy"]);
    let at = path.child("conversion");
    if preserves && strategy != "None" {
        let detail = "must be None if spec.preserveUnknownFields is true";
        errors.push(Error::invalid(&at.child("strategy"), strategy, detail));
    }
    check_conversion(&spec["conversion"], terms, &at, errors);
}

fn has_extension(schema: &Value) -> bool {
    let some = |name: &str| !list(&schema[name]).is_empty();
    truth(&schema["x-kubernetes-embedded-resource"])
        || is_set(&schema["x-kubernetes-preserve-unknown-fields"])
        || truth(&schema["x-kubernetes-int-or-string"])
        || some("x-kubernetes-list-map-keys")
        || is_set(&schema["x-kubernetes-list-type"])
        || some("x-kubernetes-validations")
}

fn check_names(names: &Value, path: &Path, errors: &mut Errors) {
    let mut check = |value: &str, mixed: bool, at: Path| {
        // Kinds may have upper case; all other names must be DNS labels.
        let (checked, prefix) = if mixed {
            let prefix = "may have mixed case, but should otherwise match: ";
            (value.to_lowercase(), prefix)
        } else {
            (value.to_owned(), "")
        };
        let complaints = format::dns1035_label(&checked);
        if !complaints.is_empty() {
            let detail = format!("{prefix}{}", complaints.join(","));
            errors.push(Error::invalid(&at, value, detail));
        }
    };
    for (field, mixed) in [
        ("plural", false),
        ("singular", false),
        ("kind", true),
        ("listKind", true),
    ] {
        let value = text(&names[field]);
        if !value.is_empty() {
            check(value, mixed, path.child(field));
        }
    }
    for (i, value) in list(&names["shortNames"]).iter().enumerate() {
        check(text(value), false, path.child("shortNames").index(i));
    }
    let (kind, list_kind) = (text(&names["kind"]), text(&names["listKind"]));
    let same = !kind.is_empty() && kind == list_kind;
    let categories = list(&names["categories"]);
    let mut late = Vec::new();
    for (i, value) in categories.iter().enumerate() {
        let complaints = format::dns1035_label(text(value));
        if !complaints.is_empty() {
            let at = path.child("categories");
            let at = at.index(i);
            late.push(Error::invalid(&at, text(value), complaints.join(",")));
        }
    }
    if same {
        let detail = "kind and listKind may not be the same";
        errors.push(Error::invalid(&path.child("listKind"), list_kind, detail));
    }
    errors.append(&mut late);
}

fn check_conversion(conversion: &Value, terms: &SpecRules<'_>, path: &Path, errors: &mut Errors) {
    let strategies = ["None", "Webhook"];
    check::known(
        &conversion["strategy"],
        &strategies,
        &path.child("strategy"),
        errors,
    );
    // Validated at the paths of upstream's internal type, which resembles v1beta1.
    let (client, versions) = (
        &conversion["webhook"]["clientConfig"],
        &conversion["webhook"]["conversionReviewVersions"],
    );
    let (at, at_versions) = (
        path.child("webhookClientConfig"),
        path.child("conversionReviewVersions"),
    );
    if conversion["strategy"] != "Webhook" {
        let detail = "should not be set when strategy is not set to Webhook";
        if is_set(client) {
            errors.push(Error::forbidden(&at, detail));
        }
        if !list(versions).is_empty() {
            errors.push(Error::forbidden(&at_versions, detail));
        }
        return;
    }
    if is_set(client) {
        match (is_set(&client["url"]), is_set(&client["service"])) {
            (true, false) => check_url(text(&client["url"]), &at.child("url"), errors),
            (false, true) => check_service(&client["service"], true, &at.child("service"), errors),
            _ => {
                let detail = "exactly one of url or service is required";
                errors.push(Error::required(&at, detail));
            }
        }
        let bundle = &client["caBundle"];
        if !text(bundle).is_empty() && !terms.any_authorities && !is_bundle(bundle) {
            let detail = "unable to load root certificates: unable to parse bytes as PEM block";
            let at = at.child("caBundle");
            errors.push(Error::invalid(&at, bundle.clone(), detail));
        }
    } else {
        let detail = "required when strategy is set to Webhook";
        errors.push(Error::required(&at, detail));
    }
    check_review_versions(versions, terms.review_versions, "", &at_versions, errors);
}

fn is_bundle(bundle: &Value) -> bool {
    let bytes = STANDARD.decode(text(bundle)).unwrap_or_default();
    pem::check_certificates(&String::from_utf8_lossy(&bytes)).is_ok()
}

/// Validates the accepted names and the stored versions.
fn check_status(object: &Object, errors: &mut Errors) {
    let (status, path) = (get(object, "status"), Path::new("status"));
    check_names(
        &status["acceptedNames"],
        &path.child("acceptedNames"),
        errors,
    );
    let (stored, at) = (
        list(&status["storedVersions"]),
        path.child("storedVersions"),
    );
    if stored.is_empty() {
        let detail = "must have at least one stored version";
        let printed = status["storedVersions"].clone();
        errors.push(Error::invalid(&at, printed, detail));
        return;
    }
    let versions = list(&get(object, "spec")["versions"]);
    for version in versions {
        if truth(&version["storage"]) && !stored.contains(&version["name"]) {
            let detail = format!("must have the storage version {}", text(&version["name"]));
            let printed = status["storedVersions"].clone();
            errors.push(Error::invalid(&at, printed, detail));
        }
    }
    for (i, version) in stored.iter().enumerate() {
        if !versions.iter().any(|v| v["name"] == *version) {
            let detail = format!(
                "missing from spec.versions; {} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {0} and removes {0} from status.storedVersions",
                text(version)
            );
            errors.push(Error::invalid(&at.index(i), text(version), detail));
        }
    }
}

const APPROVED: &str = "api-approved.kubernetes.io";
const REVIEW: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

/// Whether the annotation approves a definition in a protected Kubernetes group.
fn approval(object: &Object) -> Result<&'static str, String> {
    let approved = text(&get(object, "metadata")["annotations"][APPROVED]);
    let is_url = approved.split_once("://").is_some_and(|(scheme, rest)| {
        !scheme.is_empty() && !rest.is_empty() && !rest.starts_with('/')
    });
    if approved.is_empty() {
        Err(format!(
            "protected groups must have approval annotation \"{APPROVED}\", {REVIEW}"
        ))
    } else if approved.starts_with("unapproved") {
        Ok("bypassed")
    } else if is_url {
        Ok("approved")
    } else {
        Err(format!(
            "protected groups must have approval annotation \"{APPROVED}\" with either a URL or a reason starting with \"unapproved\", {REVIEW}"
        ))
    }
}

fn is_protected(object: &Object) -> bool {
    let group = text(&get(object, "spec")["group"]);
    let own = |domain: &str| group == domain || group.ends_with(&format!(".{domain}"));
    own("k8s.io") || own("kubernetes.io")
}

/// The KubernetesAPIApprovalPolicyConformant condition of a definition in a protected group:
/// status, reason and message.
pub fn approval_condition(object: &Object) -> Option<(bool, &'static str, String)> {
    if !is_protected(object) {
        return None;
    }
    let annotation = text(&get(object, "metadata")["annotations"][APPROVED]);
    Some(match approval(object) {
        Ok("bypassed") => {
            let message = format!("not approved: {}", quote(annotation));
            (false, "UnapprovedAnnotation", message)
        }
        Ok(_) => (
            true,
            "ApprovedAnnotation",
            format!("approved in {annotation}"),
        ),
        Err(why) if annotation.is_empty() => (false, "MissingAnnotation", why),
        Err(why) => (false, "InvalidAnnotation", why),
    })
}

fn check_approval(object: &Object, old: Option<&Object>, errors: &mut Errors) {
    if !is_protected(object) || old.is_some_and(|old| approval(old) == approval(object)) {
        return;
    }
    if let Err(why) = approval(object) {
        let at = Path::new("metadata.annotations");
        let at = at.key(APPROVED);
        let given = text(&get(object, "metadata")["annotations"][APPROVED]);
        errors.push(match given {
            "" => Error::required(&at, why),
            given => Error::invalid(&at, given, why),
        });
    }
}

fn check_preserving(spec: &Value, was: Option<&Value>, errors: &mut Errors) {
    let preserves = |spec: &Value| truth(&spec["preserveUnknownFields"]);
    if preserves(spec) && !was.is_some_and(preserves) {
        let at = Path::new("spec.preserveUnknownFields");
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(Error::invalid(&at, true, detail));
    }
}

fn is_established(object: &Object) -> bool {
    list(&get(object, "status")["conditions"])
        .iter()
        .any(|c| c["type"] == "Established" && c["status"] == "True")
}

/// The rules for an update: values that were invalid before are kept.
fn terms_of_update<'a>(spec: &'a Value, old: &Object) -> SpecRules<'a> {
    let was = get(old, "spec");
    let schemas = || {
        let versions = list(&was["versions"]).iter();
        versions
            .map(|v| &v["schema"]["openAPIV3Schema"])
            .filter(|s| is_set(s))
    };
    let conversion = &was["conversion"]["webhook"];
    let reviews = list(&conversion["conversionReviewVersions"]);
    let bundle = &conversion["clientConfig"]["caBundle"];
    SpecRules {
        rules: Rules {
            known_types: !schemas().any(schema::has_unknown_type),
            structural: schemas().all(schema::is_structural),
            atomic_sets: !schemas().any(schema::has_loose_set),
            keys_present: !schemas().any(schema::has_absent_keys),
        },
        schemas: schemas().count() == list(&was["versions"]).len(),
        review_versions: reviews.is_empty() || reviews.iter().any(is_known_review),
        any_authorities: !is_established(old) || (!text(bundle).is_empty() && !is_bundle(bundle)),
        crowded: crowded(spec, was),
    }
}

fn validate_update(object: &Object, old: &Object, subresource: Subresource<'_>) -> Errors {
    let mut errors = Vec::new();
    if subresource.is_some() {
        let path = Path::new("status.acceptedNames");
        check_names(&get(object, "status")["acceptedNames"], &path, &mut errors);
        return errors;
    }
    if let Some(error) = too_many_versions(object) {
        return vec![error];
    }
    let (new, was) = (get(object, "spec"), get(old, "spec"));
    let path = Path::new("spec");
    check_spec(new, &terms_of_update(new, old), &mut errors);
    let names = path.child("names");
    if is_established(old) {
        check::immutable(
            &new["scope"],
            &was["scope"],
            &path.child("scope"),
            &mut errors,
        );
        let kind = |spec: &Value| spec["names"]["kind"].clone();
        check::immutable(&kind(new), &kind(was), &names.child("kind"), &mut errors);
    }
    check::immutable(
        &new["group"],
        &was["group"],
        &path.child("group"),
        &mut errors,
    );
    let plural = |spec: &Value| spec["names"]["plural"].clone();
    check::immutable(
        &plural(new),
        &plural(was),
        &names.child("plural"),
        &mut errors,
    );
    check_status(object, &mut errors);
    check_approval(object, Some(old), &mut errors);
    check_preserving(new, Some(was), &mut errors);
    errors
}

/// Warns of formats that are not validated.
fn warnings(object: &Object, old: Option<&Object>) -> Vec<String> {
    let formats = |object: &Object| -> Vec<String> {
        let versions = list(&get(object, "spec")["versions"]).iter();
        versions
            .flat_map(|v| schema::unknown_formats(&v["schema"]["openAPIV3Schema"]))
            .collect()
    };
    let before = old.map(formats).unwrap_or_default();
    let new = formats(object).into_iter().filter(|f| !before.contains(f));
    new.map(|f| format!("unrecognized format {}", quote(&f)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};
    use crate::tree::keep;

    fn widgets(change: &dyn Fn(&mut Value)) -> Object {
        let mut crd = json!({"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Cluster",
            "names": {"plural": "widgets", "kind": "Widget"}, "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
        change(&mut crd);
        let mut crd = object(&crd.to_string());
        default(&mut crd);
        crd
    }

    #[test]
    fn a_definition_names_its_kind() {
        let none: [&str; 0] = [];
        assert_eq!(lines(validate(&widgets(&|_| {}))), none);
        type Change<'a> = &'a dyn Fn(&mut Value);
        let cases: &[(Change<'_>, &str)] = &[
            (
                &|crd| crd["metadata"]["name"] = json!("x"),
                "metadata.name: Invalid value: \"x\": must be spec.names.plural+\".\"+spec.group",
            ),
            (
                &|crd| crd["metadata"]["generateName"] = json!("x"),
                "metadata.generateName: Invalid value: \"x\": must be spec.names.plural+\".\"+spec.group",
            ),
            (
                &|crd| {
                    let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
                    schema["properties"] = json!({"a": {"type": "x"}});
                },
                "spec.validation.openAPIV3Schema.properties[a].type: Unsupported value: \"x\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
            ),
            (
                &|crd| {
                    let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
                    schema["properties"] = json!({"a": {"type": "string", "pattern": "a**"}});
                },
                "spec.validation.openAPIV3Schema.properties[a].pattern: Invalid value: \"a**\": must be a valid regular expression, but isn't: error parsing regexp: invalid nested repetition operator: `**`",
            ),
            (
                &|crd| crd["spec"]["scope"] = json!("x"),
                "spec.scope: Unsupported value: \"x\": supported values: \"Cluster\", \"Namespaced\"",
            ),
            (
                &|crd| crd["spec"]["names"]["listKind"] = json!("Widget"),
                "spec.names.listKind: Invalid value: \"Widget\": kind and listKind may not be the same",
            ),
            (
                &|crd| crd["spec"]["conversion"] = json!({"strategy": "Webhook"}),
                "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
            ),
            (
                &|crd| crd["spec"]["preserveUnknownFields"] = json!(true),
                "spec.preserveUnknownFields: Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
            ),
        ];
        for (change, line) in cases {
            let found = lines(validate(&widgets(change)));
            assert_eq!(found[0], *line, "{found:?}");
        }
    }

    #[test]
    fn versions_are_counted_before_anything_is_checked_of_them() {
        let with = |count: usize| {
            widgets(&|crd| {
                let one = crd["spec"]["versions"][0].clone();
                let versions = (1..=count).map(|n| {
                    let mut version = one.clone();
                    version["name"] = format!("v{n}").into();
                    version["storage"] = (n == 1).into();
                    version
                });
                crd["spec"]["versions"] = versions.collect();
            })
        };
        let none: Vec<String> = Vec::new();
        assert_eq!(lines(validate(&with(256))), none);
        let refused = ["spec.versions: Too many: 30000: must have at most 256 items"];
        let many = with(30_000);
        assert_eq!(lines(validate(&many)), refused);
        assert_eq!(lines(validate_update(&many, &with(1), None)), refused);
    }

    #[test]
    fn groups_of_kubernetes_need_approval() {
        let own = |approved: &str| {
            lines(validate(&widgets(&|crd| {
                crd["metadata"] =
                    json!({"name": "widgets.x.k8s.io", "annotations": {APPROVED: approved}});
                crd["spec"]["group"] = json!("x.k8s.io");
            })))
        };
        let none: [&str; 0] = [];
        assert_eq!(own("unapproved, a test"), none);
        assert_eq!(own("https://github.com/x"), none);
        assert!(
            own("")[0]
                .starts_with("metadata.annotations[api-approved.kubernetes.io]: Required value: ")
        );
        assert!(
            own("x")[0]
                .starts_with("metadata.annotations[api-approved.kubernetes.io]: Invalid value: ")
        );
    }

    #[test]
    fn stored_versions_and_names_cannot_be_removed_from_a_definition() {
        let mut old = widgets(&|_| {});
        child_or_new(&mut old, "status").insert(
            "conditions".to_owned(),
            json!([{"type": "Established", "status": "True"}]),
        );
        let mut new = widgets(&|crd| {
            crd["spec"]["versions"][0]["name"] = json!("v2");
            crd["spec"]["names"]["kind"] = json!("Gadget");
        });
        let context = Context { now: "", user: "" };
        keep(&mut new, &old, "status");
        prepare_update(&mut new, &old, None, &context);
        let found = lines(validate_update(&new, &old, None));
        assert_eq!(
            found[0],
            "spec.names.kind: Invalid value: \"Gadget\": field is immutable"
        );
        assert!(found[1].starts_with(
            "status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions;"
        ));
    }

    #[test]
    fn a_schema_that_was_not_structural_may_stay_so() {
        let loose = widgets(&|crd| {
            crd["spec"]["preserveUnknownFields"] = json!(true);
            crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] =
                json!({"properties": {"a": {}}});
        });
        let none: [&str; 0] = [];
        assert_eq!(lines(validate_update(&loose, &loose, None)), none);
    }
}
