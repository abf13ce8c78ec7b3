//! Role and ClusterRole.

use crate::builtin::Builtin;
use crate::check;
use crate::columns::{NAME_CREATED, name_created};
use crate::metadata;
use crate::metadata::Check;
use crate::tree::{get, is_set, list};
use crate::{Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::labels::Selector;
use machinery::{Object, Value};

pub const ROLE: Builtin = Builtin {
    group: "rbac.authorization.k8s.io",
    kind: "Role",
    plural: "roles",
    schema: "rbac/v1.Role",
    allows_create_on_update: true,
    validate_name: metadata::path_segment,
    validate_create: |object| validate(object, true),
    validate_update: |object, _, _: Subresource<'_>| validate(object, true),
    columns: NAME_CREATED,
    row: name_created,
    metadata_checks: &[Check::Whole, Check::Change],
    ..Builtin::EMPTY
};

pub const CLUSTER_ROLE: Builtin = Builtin {
    kind: "ClusterRole",
    plural: "clusterroles",
    scope: Scope::Cluster,
    schema: "rbac/v1.ClusterRole",
    validate_create: |object| validate(object, false),
    validate_update: |object, _, _: Subresource<'_>| validate(object, false),
    ..ROLE
};

fn validate(object: &Object, namespaced: bool) -> Errors {
    let mut errors = Vec::new();
    for (i, rule) in list(get(object, "rules")).iter().enumerate() {
        let at = Path::new("rules");
        let at = at.index(i);
        let has = |name: &str| !list(&rule[name]).is_empty();
        if !has("verbs") {
            errors.push(Error::required(
                &at.child("verbs"),
                "verbs must contain at least one value",
            ));
        }
        if has("nonResourceURLs") {
            let urls = at.child("nonResourceURLs");
            if namespaced {
                let detail = "namespaced rules cannot apply to non-resource URLs";
                errors.push(Error::invalid(
                    &urls,
                    rule["nonResourceURLs"].clone(),
                    detail,
                ));
            }
            if has("apiGroups") || has("resources") || has("resourceNames") {
                let detail = "rules cannot apply to both regular resources and non-resource URLs";
                errors.push(Error::invalid(
                    &urls,
                    rule["nonResourceURLs"].clone(),
                    detail,
                ));
            }
            continue;
        }
        if !has("apiGroups") {
            let detail = "resource rules must supply at least one api group";
            errors.push(Error::required(&at.child("apiGroups"), detail));
        }
        if !has("resources") {
            let detail = "resource rules must supply at least one resource";
            errors.push(Error::required(&at.child("resources"), detail));
        }
    }
    let aggregation = get(object, "aggregationRule");
    if is_set(aggregation) {
        let at = Path::new("aggregationRule.clusterRoleSelectors");
        let selectors = list(&aggregation["clusterRoleSelectors"]);
        if selectors.is_empty() {
            let detail = "at least one clusterRoleSelector required if aggregationRule is non-nil";
            errors.push(Error::required(&at, detail));
        }
        for (i, selector) in selectors.iter().enumerate() {
            let at = at.index(i);
            check::label_selector(selector, &at, &mut errors);
            if Selector::from_label_selector(Some(selector)).is_err() {
                errors.push(Error::invalid(&at, Value::Null, "invalid label selector."));
            }
        }
    }
    errors
}
