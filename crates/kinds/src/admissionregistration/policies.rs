//! Admission policies and their bindings: validation of the objects; admission evaluates their CEL.

use super::rules::{FAILURE_POLICIES, check_conditions, check_match, check_mutating, check_set};
use super::{default_match, default_rules};
use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::metadata::Check;
use crate::shown::{GoField, GoType, each};
use crate::tree::{child, child_or_new, default_to, entries, get, is_set, list, name, same, text};
use crate::{Column, Expressions, Parameters, Scope, ServerSide, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};

pub const VALIDATING: Builtin = Builtin {
    group: "admissionregistration.k8s.io",
    kind: "ValidatingAdmissionPolicy",
    plural: "validatingadmissionpolicies",
    server_side: ServerSide {
        expressions: Expressions::ValidatingPolicy,
        parameters: Parameters::Kind,
        ..ServerSide::NONE
    },
    categories: &["api-extensions"],
    scope: Scope::Cluster,
    schema: "admissionregistration/v1.ValidatingAdmissionPolicy",
    subresources: &[STATUS],
    has_status: true,
    has_generation: true,
    allows_unconditional_update: false,
    default,
    validate_create: |object| validate(object, true),
    validate_update: |object, old, subresource: Subresource<'_>| match subresource {
        None => validate(object, conditions_change(object, old)),
        Some(_) => check_status(get(object, "status")),
    },
    columns: COLUMNS,
    row: |object, now| row(object, now, "validations"),
    metadata_checks: &[Check::Whole],
    status_metadata_checks: &[],
    status_resets: &[&["spec"], &["metadata"]],
    warnings: |object, _| super::warn_static(object),
    ..Builtin::EMPTY
};

pub const MUTATING: Builtin = Builtin {
    kind: "MutatingAdmissionPolicy",
    plural: "mutatingadmissionpolicies",
    server_side: ServerSide {
        expressions: Expressions::MutatingPolicy,
        parameters: Parameters::Kind,
        ..ServerSide::NONE
    },
    schema: "admissionregistration/v1.MutatingAdmissionPolicy",
    subresources: &[],
    has_status: false,
    validate_create: |object| validate_mutating(object, true),
    validate_update: |object, old, _: Subresource<'_>| {
        validate_mutating(object, conditions_change(object, old))
    },
    columns: &[
        NAME,
        column("Mutations", "integer", "Number of mutations."),
        column("ParamKind", "string", "Kind of its parameters."),
        AGE,
    ],
    row: |object, now| row(object, now, "mutations"),
    ..VALIDATING
};

pub const VALIDATING_BINDING: Builtin = Builtin {
    kind: "ValidatingAdmissionPolicyBinding",
    plural: "validatingadmissionpolicybindings",
    server_side: ServerSide {
        parameters: Parameters::Reference {
            policies: VALIDATING.plural,
        },
        ..ServerSide::NONE
    },
    schema: "admissionregistration/v1.ValidatingAdmissionPolicyBinding",
    subresources: &[],
    has_status: false,
    default: default_binding,
    validate_create: |object| validate_binding(object, true),
    validate_update: |object, _, _: Subresource<'_>| validate_binding(object, true),
    columns: BINDING_COLUMNS,
    row: binding_row,
    ..VALIDATING
};

pub const MUTATING_BINDING: Builtin = Builtin {
    kind: "MutatingAdmissionPolicyBinding",
    plural: "mutatingadmissionpolicybindings",
    server_side: ServerSide {
        parameters: Parameters::Reference {
            policies: MUTATING.plural,
        },
        ..ServerSide::NONE
    },
    schema: "admissionregistration/v1.MutatingAdmissionPolicyBinding",
    validate_create: |object| validate_binding(object, false),
    validate_update: |object, _, _: Subresource<'_>| validate_binding(object, false),
    ..VALIDATING_BINDING
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Validations", "integer", "Number of validations."),
    column("ParamKind", "string", "Kind of its parameters."),
    AGE,
];

fn row(object: &Object, now: i64, rules: &str) -> Vec<Value> {
    let spec = get(object, "spec");
    let kind = &spec["paramKind"];
    let kind = if is_set(kind) {
        format!("{}/{}", text(&kind["apiVersion"]), text(&kind["kind"]))
    } else {
        "<unset>".to_owned()
    };
    vec![
        name_cell(object),
        list(&spec[rules]).len().into(),
        kind.into(),
        age(object, now),
    ]
}

const BINDING_COLUMNS: &[Column] = &[
    NAME,
    column("PolicyName", "string", "The policy."),
    column("ParamRef", "string", "Its parameters."),
    AGE,
];

fn binding_row(object: &Object, now: i64) -> Vec<Value> {
    let spec = get(object, "spec");
    let reference = &spec["paramRef"];
    let shown = match (text(&reference["name"]), text(&reference["namespace"])) {
        ("", _) if is_set(&reference["selector"]) => printed_selector(&reference["selector"]),
        ("", _) => "<unset>".to_owned(),
        (name, "") => format!("*/{name}"),
        (name, namespace) => format!("{namespace}/{name}"),
    };
    vec![
        name_cell(object),
        text(&spec["policyName"]).into(),
        shown.into(),
        age(object, now),
    ]
}

/// A selector as Go prints the struct.
fn printed_selector(selector: &Value) -> String {
    let labels: String = entries(&selector["matchLabels"])
        .map(|(key, value)| format!("{}: {},", &**key, text(value)))
        .collect();
    let requirement = |r: &Value| {
        let values: Vec<&str> = list(&r["values"]).iter().map(text).collect();
        format!(
            "LabelSelectorRequirement{{Key:{},Operator:{},Values:[{}],}},",
            text(&r["key"]),
            text(&r["operator"]),
            values.join(" ")
        )
    };
    let expressions = list(&selector["matchExpressions"]).iter();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{}}},}}",
        expressions.map(requirement).collect::<String>()
    )
}

fn default(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    default_to(spec, "failurePolicy", "Fail");
    if let Some(constraints) = child(spec, "matchConstraints") {
        default_match(constraints);
        default_rules(constraints, "resourceRules");
        default_rules(constraints, "excludeResourceRules");
    }
}

fn default_binding(object: &mut Object) {
    if let Some(resources) = child(child_or_new(object, "spec"), "matchResources") {
        default_match(resources);
        default_rules(resources, "resourceRules");
        default_rules(resources, "excludeResourceRules");
    }
}

const AUDIT_ANNOTATIONS_MAX: usize = 20;
const AUDIT_EXPRESSION_MAX: usize = 5 * 1024;

/// `conditions`: whether matchConditions are validated.
fn check_common(spec: &Value, mutating: bool, conditions: bool, errors: &mut Errors) {
    let path = Path::new("spec");
    let at = path.child("failurePolicy");
    check::one_of(&spec["failurePolicy"], FAILURE_POLICIES, &at, errors);
    if is_set(&spec["paramKind"]) {
        check_param_kind(&spec["paramKind"], &path.child("paramKind"), errors);
    }
    let (constraints, at) = (&spec["matchConstraints"], path.child("matchConstraints"));
    if is_set(constraints) {
        check_match(constraints, &at, errors);
        if list(&constraints["resourceRules"]).is_empty() {
            errors.push(Error::required(&at.child("resourceRules"), ""));
        }
        if mutating {
            check_mutating(constraints, &at, errors);
        }
    } else {
        errors.push(Error::required(&at, ""));
    }
    if conditions {
        let at = path.child("matchConditions");
        check_conditions(&spec["matchConditions"], &at, errors);
    }
    for (i, variable) in list(&spec["variables"]).iter().enumerate() {
        let at = path.child("variables");
        let at = at.index(i);
        check_variable(variable, &at, errors);
    }
}

fn check_param_kind(kind: &Value, path: &Path, errors: &mut Errors) {
    let (version, at) = (text(&kind["apiVersion"]), path.child("apiVersion"));
    match version.split('/').collect::<Vec<_>>()[..] {
        _ if version.is_empty() => errors.push(Error::required(&at, "")),
        [number] => check_version("", number, version, &at, errors),
        [group, number] => check_version(group, number, version, &at, errors),
        _ => {
            let detail = format!("unexpected GroupVersion string: {version}");
            errors.push(Error::invalid(&at, version, detail));
        }
    }
    let (name, at) = (text(&kind["kind"]), path.child("kind"));
    let complaints = format::dns1035_label(&name.to_lowercase());
    if name.is_empty() {
        errors.push(Error::required(&at, ""));
    } else if !complaints.is_empty() {
        let detail = format!(
            "may have mixed case, but should otherwise match: {}",
            complaints.join(",")
        );
        errors.push(Error::invalid(&at, name, detail));
    }
}

fn check_version(group: &str, number: &str, whole: &str, path: &Path, errors: &mut Errors) {
    let complaints = format::dns1123_subdomain(group);
    if !group.is_empty() && !complaints.is_empty() {
        errors.push(Error::invalid(path, group, complaints.join(",")));
    }
    let complaints = format::dns1035_label(number);
    if number.is_empty() {
        errors.push(Error::invalid(path, whole, "version must be specified"));
    } else if !complaints.is_empty() {
        errors.push(Error::invalid(path, number, complaints.join(",")));
    }
}

fn is_identifier(name: &str) -> bool {
    const RESERVED: &[&str] = &[
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ];
    let first = |b: u8| b.is_ascii_alphabetic() || b == b'_';
    name.bytes().next().is_some_and(first)
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !RESERVED.contains(&name)
}

fn check_variable(variable: &Value, path: &Path, errors: &mut Errors) {
    let (name, at) = (text(&variable["name"]), path.child("name"));
    if name.trim().is_empty() {
        errors.push(Error::required(&at, "name is not specified"));
    } else if !is_identifier(name) {
        errors.push(Error::invalid(&at, name, "must be a valid CEL identifier"));
    }
    if text(&variable["expression"]).trim().is_empty() {
        let at = path.child("expression");
        errors.push(Error::required(&at, "expression is not specified"));
    }
}

/// Whether matchConditions must be validated: unchanged ones are not validated again.
fn conditions_change(object: &Object, old: &Object) -> bool {
    let (new, was) = (get(object, "spec"), get(old, "spec"));
    ["paramKind", "matchConditions"]
        .iter()
        .any(|name| !same(&new[*name], &was[*name]))
}

fn validate(object: &Object, conditions: bool) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    check_common(spec, false, conditions, &mut errors);
    let (rules, notes) = (list(&spec["validations"]), list(&spec["auditAnnotations"]));
    if rules.is_empty() && notes.is_empty() {
        let detail = "validations or auditAnnotations must contain at least one item";
        errors.push(Error::required(&path.child("validations"), detail));
        errors.push(Error::required(&path.child("auditAnnotations"), detail));
        return errors;
    }
    for (i, rule) in rules.iter().enumerate() {
        check_validation(rule, &path.child("validations").index(i), &mut errors);
    }
    let at = path.child("auditAnnotations");
    if notes.len() > AUDIT_ANNOTATIONS_MAX {
        let detail = format!("must not have more than {AUDIT_ANNOTATIONS_MAX} auditAnnotations");
        let printed = each(&spec["auditAnnotations"], AUDIT_ANNOTATION);
        errors.push(Error::invalid(&at, printed, detail));
    }
    for (i, note) in notes.iter().enumerate() {
        let (at, key) = (at.index(i), text(&note["key"]));
        check_audit(name(object), note, &at, &mut errors);
        if notes[..i].iter().any(|n| text(&n["key"]) == key) {
            errors.push(Error::duplicate(&at.child("key"), key));
        }
    }
    errors
}

const AUDIT_ANNOTATION: &[GoField] = &[
    GoField("key", "Key", GoType::Text),
    GoField("valueExpression", "ValueExpression", GoType::Text),
];

fn check_validation(rule: &Value, path: &Path, errors: &mut Errors) {
    if text(&rule["expression"]).trim().is_empty() {
        let at = path.child("expression");
        errors.push(Error::required(&at, "expression is not specified"));
    }
    for name in ["messageExpression", "message"] {
        let (given, at) = (text(&rule[name]), path.child(name));
        if !given.is_empty() && given.trim().is_empty() {
            errors.push(Error::invalid(&at, given, "must be non-empty if specified"));
        } else if name == "message" && given.trim().contains(['\n', '\r']) {
            errors.push(Error::invalid(&at, given, "must not contain line breaks"));
        }
    }
    let reasons = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
    check_set(&rule["reason"], &reasons, &path.child("reason"), errors);
}

fn check_audit(policy: &str, note: &Value, path: &Path, errors: &mut Errors) {
    let (key, at) = (text(&note["key"]), path.child("key"));
    if policy.is_empty() {
        errors.push(Error::invalid(
            &at,
            key,
            "requires metadata.name be non-empty",
        ));
    } else {
        let whole = format!("{policy}/{key}");
        check::form(format::qualified_name(&whole), &whole, &at, errors);
    }
    let (value, at) = (
        text(&note["valueExpression"]).trim(),
        path.child("valueExpression"),
    );
    if value.is_empty() {
        errors.push(Error::required(&at, "valueExpression is not specified"));
    } else if value.len() > AUDIT_EXPRESSION_MAX {
        let detail = format!("must not exceed {AUDIT_EXPRESSION_MAX} bytes in length");
        errors.push(Error::required(&at, detail));
    }
}

fn check_status(status: &Value) -> Errors {
    let mut errors = Vec::new();
    let path = Path::new("status");
    let warnings = list(&status["typeChecking"]["expressionWarnings"]);
    for (i, warning) in warnings.iter().enumerate() {
        let at = path.child("typeChecking.expressionWarnings");
        let at = at.index(i);
        check::required(&warning["warning"], &at.child("warning"), &mut errors);
        if text(&warning["fieldRef"]).trim().is_empty() {
            errors.push(Error::required(&at.child("fieldRef"), ""));
        }
    }
    check::conditions(
        &status["conditions"],
        &path.child("conditions"),
        &mut errors,
    );
    errors
}

fn validate_mutating(object: &Object, conditions: bool) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    check_common(spec, true, conditions, &mut errors);
    let mutations = list(&spec["mutations"]);
    if mutations.is_empty() {
        let detail = "mutations must contain at least one item";
        errors.push(Error::required(&path.child("mutations"), detail));
    }
    for (i, mutation) in mutations.iter().enumerate() {
        check_mutation(mutation, &path.child("mutations").index(i), &mut errors);
    }
    let (policies, at) = (["IfNeeded", "Never"], path.child("reinvocationPolicy"));
    check::known(&spec["reinvocationPolicy"], &policies, &at, &mut errors);
    errors
}

fn check_mutation(mutation: &Value, path: &Path, errors: &mut Errors) {
    let (wanted, other) = match text(&mutation["patchType"]) {
        "JSONPatch" => ("jsonPatch", "applyConfiguration"),
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch"),
        _ => {
            let types = ["ApplyConfiguration", "JSONPatch"];
            let at = path.child("patchType");
            check::known(&mutation["patchType"], &types, &at, errors);
            return;
        }
    };
    let kind = text(&mutation["patchType"]);
    let at = path.child(wanted);
    if !is_set(&mutation[wanted]) {
        let detail = format!("must be specified when patchType is {kind}");
        errors.push(Error::required(&at, detail));
    } else if text(&mutation[wanted]["expression"]).trim().is_empty() {
        errors.push(Error::required(&at.child("expression"), ""));
    }
    if is_set(&mutation[other]) {
        let detail = format!("must not be specified when patchType is {kind}");
        let printed = format!("{{{other}}}");
        errors.push(Error::invalid(&path.child(other), printed, detail));
    }
}

fn validate_binding(object: &Object, validating: bool) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    let (policy, at) = (text(&spec["policyName"]), path.child("policyName"));
    if policy.is_empty() {
        errors.push(Error::required(&at, ""));
    } else {
        check::form(format::dns1123_subdomain(policy), policy, &at, &mut errors);
    }
    if is_set(&spec["paramRef"]) {
        check_param_ref(&spec["paramRef"], &path.child("paramRef"), &mut errors);
    }
    let (resources, at) = (&spec["matchResources"], path.child("matchResources"));
    check_match(resources, &at, &mut errors);
    if validating {
        let at = path.child("validationActions");
        check_actions(&spec["validationActions"], &at, &mut errors);
    } else {
        check_mutating(resources, &at, &mut errors);
    }
    errors
}

fn check_param_ref(reference: &Value, path: &Path, errors: &mut Errors) {
    let (name, selector) = (text(&reference["name"]), &reference["selector"]);
    let both = !name.is_empty() && is_set(selector);
    let detail = "name and selector are mutually exclusive";
    if !name.is_empty() {
        check::form(
            format::path_segment(name),
            name,
            &path.child("name"),
            errors,
        );
    }
    if both {
        errors.push(Error::forbidden(&path.child("name"), detail));
    }
    check::label_selector(selector, &path.child("selector"), errors);
    if both {
        errors.push(Error::forbidden(&path.child("selector"), detail));
    }
    if name.is_empty() && !is_set(selector) {
        errors.push(Error::required(
            path,
            "one of name or selector must be specified",
        ));
    }
    let (actions, at) = (["Deny", "Allow"], path.child("parameterNotFoundAction"));
    check::known(&reference["parameterNotFoundAction"], &actions, &at, errors);
}

fn check_actions(actions: &Value, path: &Path, errors: &mut Errors) {
    let all = list(actions);
    for (i, action) in all.iter().enumerate() {
        check::one_of(action, &["Audit", "Deny", "Warn"], &path.index(i), errors);
        if all[..i].contains(action) {
            errors.push(Error::duplicate(&path.index(i), text(action)));
        }
    }
    let has = |name: &str| all.iter().any(|a| a == name);
    if has("Deny") && has("Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.push(Error::invalid(path, actions.clone(), detail));
    }
    if all.is_empty() {
        let detail = "at least one validation action is required";
        errors.push(Error::required(path, detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};
    use machinery::json::json;

    fn policy(change: Value) -> Object {
        let mut spec = json!({"matchConstraints": {"resourceRules": [{"operations": ["CREATE"], "apiGroups": [""],
            "apiVersions": ["v1"], "resources": ["pods"]}]}});
        if let (Value::Object(spec), Value::Object(change)) = (&mut spec, change) {
            spec.extend(change);
        }
        let mut policy = object(&json!({"metadata": {"name": "p"}, "spec": spec}).to_string());
        default(&mut policy);
        policy
    }

    #[test]
    fn a_policy_has_rules_with_expressions() {
        let rule = json!([{"expression": "true"}]);
        let none: [&str; 0] = [];
        assert_eq!(
            lines(validate(&policy(json!({"validations": rule})), true)),
            none
        );
        for (change, line) in [
            (
                json!({"validations": [{"expression": " "}]}),
                "spec.validations[0].expression: Required value: expression is not specified",
            ),
            (
                json!({"validations": rule, "paramKind": {"apiVersion": "v1", "kind": "9"}}),
                "spec.paramKind.kind: Invalid value: \"9\": may have mixed case",
            ),
            (
                json!({"validations": rule, "variables": [{"name": "in", "expression": "1"}]}),
                "spec.variables[0].name: Invalid value: \"in\": must be a valid CEL identifier",
            ),
            (
                json!({"auditAnnotations": [{"key": "a b", "valueExpression": "1"}]}),
                "spec.auditAnnotations[0].key: Invalid value: \"p/a b\"",
            ),
            (
                json!({"validations": [{"expression": "1", "reason": "x"}]}),
                "spec.validations[0].reason: Unsupported value: \"x\": supported values: \"Forbidden\", \"Invalid\", \"RequestEntityTooLarge\"",
            ),
        ] {
            let found = lines(validate(&policy(change), true));
            assert!(found[0].starts_with(line), "{found:?}");
        }
        assert_eq!(lines(validate(&policy(json!({})), true)).len(), 2);
    }

    #[test]
    fn a_mutation_is_of_one_kind() {
        let said = |mutation: Value| {
            lines(validate_mutating(
                &policy(json!({"reinvocationPolicy": "Never", "mutations": [mutation]})),
                true,
            ))
        };
        assert_eq!(
            said(json!({"patchType": "JSONPatch", "applyConfiguration": {"expression": "x"}})),
            [
                "spec.mutations[0].jsonPatch: Required value: must be specified when patchType is JSONPatch",
                "spec.mutations[0].applyConfiguration: Invalid value: \"{applyConfiguration}\": must not be specified when patchType is JSONPatch",
            ]
        );
    }

    #[test]
    fn invalid_policy_bindings_are_rejected() {
        let said = |spec: Value| {
            lines(validate_binding(
                &object(&json!({"spec": spec}).to_string()),
                true,
            ))
        };
        assert_eq!(
            said(json!({"policyName": "p", "validationActions": ["Deny", "Deny"], "paramRef": {}})),
            [
                "spec.paramRef: Required value: one of name or selector must be specified",
                "spec.paramRef.parameterNotFoundAction: Required value",
                "spec.validationActions[1]: Duplicate value: \"Deny\"",
            ]
        );
    }

    #[test]
    fn parameters_are_printed_by_name_or_selector() {
        let shown = |reference: &str| {
            let binding = object(&format!(r#"{{"spec": {{"paramRef": {reference}}}}}"#));
            binding_row(&binding, 0)[2].as_str().unwrap().to_owned()
        };
        assert_eq!(shown("null"), "<unset>");
        assert_eq!(shown(r#"{"name": "n"}"#), "*/n");
        assert_eq!(shown(r#"{"name": "n", "namespace": "s"}"#), "s/n");
        assert_eq!(
            shown(
                r#"{"selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "c"]}]}}"#
            ),
            "&LabelSelector{MatchLabels:map[string]string{a: b,},MatchExpressions:[]LabelSelectorRequirement{LabelSelectorRequirement{Key:a,Operator:In,Values:[b c],},},}"
        );
    }
}
