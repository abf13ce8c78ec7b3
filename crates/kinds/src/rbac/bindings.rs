//! RoleBinding and ClusterRoleBinding.

use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell, wide};
use crate::metadata;
use crate::metadata::Check;
use crate::shown::{GoField, GoType, shown};
use crate::tree::{child_or_new, default_empty, each, get, list, text};
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};

const GROUP: &str = "rbac.authorization.k8s.io";

pub const ROLE_BINDING: Builtin = Builtin {
    group: GROUP,
    kind: "RoleBinding",
    plural: "rolebindings",
    schema: "rbac/v1.RoleBinding",
    allows_create_on_update: true,
    validate_name: metadata::path_segment,
    default,
    validate_create: |object| validate(object, &["Role", "ClusterRole"]),
    validate_update: |object, old, _: Subresource<'_>| {
        validate_update(object, old, &["Role", "ClusterRole"])
    },
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Whole, Check::Change],
    ..Builtin::EMPTY
};

pub const CLUSTER_ROLE_BINDING: Builtin = Builtin {
    kind: "ClusterRoleBinding",
    plural: "clusterrolebindings",
    scope: Scope::Cluster,
    schema: "rbac/v1.ClusterRoleBinding",
    validate_create: |object| validate(object, &["ClusterRole"]),
    validate_update: |object, old, _: Subresource<'_>| {
        validate_update(object, old, &["ClusterRole"])
    },
    ..ROLE_BINDING
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Role", "string", "Role that is granted."),
    AGE,
    wide("Users", "string", "Users bound to the role."),
    wide("Groups", "string", "Groups bound to the role."),
    wide(
        "ServiceAccounts",
        "string",
        "Service accounts that have them.",
    ),
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let role = get(object, "roleRef");
    let subjects = |kind: &str| {
        let names = list(get(object, "subjects"))
            .iter()
            .filter(|s| s["kind"] == kind)
            .map(|s| match (kind, text(&s["namespace"])) {
                ("ServiceAccount", namespace) if !namespace.is_empty() => {
                    format!("{namespace}/{}", text(&s["name"]))
                }
                _ => text(&s["name"]).to_owned(),
            });
        Value::from(names.collect::<Vec<_>>().join(", "))
    };
    vec![
        name_cell(object),
        Value::from(format!("{}/{}", text(&role["kind"]), text(&role["name"]))),
        age(object, now),
        subjects("User"),
        subjects("Group"),
        subjects("ServiceAccount"),
    ]
}

fn default(object: &mut Object) {
    default_empty(child_or_new(object, "roleRef"), "apiGroup", GROUP);
    for subject in each(object, "subjects") {
        if matches!(text(get(subject, "kind")), "User" | "Group") {
            default_empty(subject, "apiGroup", GROUP);
        }
    }
}

fn validate(object: &Object, kinds: &[&str]) -> Errors {
    let mut errors = Vec::new();
    let role = get(object, "roleRef");
    let at = Path::new("roleRef");
    if text(&role["apiGroup"]) != GROUP {
        let group = text(&role["apiGroup"]);
        errors.push(Error::not_supported(&at.child("apiGroup"), group, &[GROUP]));
    }
    check::one_of(&role["kind"], kinds, &at.child("kind"), &mut errors);
    let name = text(&role["name"]);
    if name.is_empty() {
        errors.push(Error::required(&at.child("name"), ""));
    } else {
        check::form(
            format::path_segment(name),
            name,
            &at.child("name"),
            &mut errors,
        );
    }
    for (i, subject) in list(get(object, "subjects")).iter().enumerate() {
        check_subject(
            subject,
            kinds.len() > 1,
            &Path::new("subjects").index(i),
            &mut errors,
        );
    }
    errors
}

fn check_subject(subject: &Value, namespaced: bool, path: &Path, errors: &mut Errors) {
    let (name, group) = (text(&subject["name"]), text(&subject["apiGroup"]));
    if name.is_empty() {
        errors.push(Error::required(&path.child("name"), ""));
    }
    let at = path.child("apiGroup");
    match text(&subject["kind"]) {
        "ServiceAccount" => {
            let at_name = path.child("name");
            check::optional(
                format::dns1123_subdomain,
                &subject["name"],
                &at_name,
                errors,
            );
            if !group.is_empty() {
                errors.push(Error::not_supported(&at, group, &[""]));
            }
            if !namespaced {
                check::required(&subject["namespace"], &path.child("namespace"), errors);
            }
        }
        "User" | "Group" => {
            if group != GROUP {
                errors.push(Error::not_supported(&at, group, &[GROUP]));
            }
        }
        other => errors.push(Error::not_supported(
            &path.child("kind"),
            other,
            &["ServiceAccount", "User", "Group"],
        )),
    }
}

const ROLE_REF: &[GoField] = &[
    GoField("apiGroup", "APIGroup", GoType::Text),
    GoField("kind", "Kind", GoType::Text),
    GoField("name", "Name", GoType::Text),
];

fn validate_update(object: &Object, old: &Object, kinds: &[&str]) -> Errors {
    let mut errors = validate(object, kinds);
    if get(object, "roleRef") != get(old, "roleRef") {
        let detail = "cannot change roleRef";
        let printed = shown(get(object, "roleRef"), ROLE_REF);
        errors.push(Error::invalid(&Path::new("roleRef"), printed, detail));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn a_binding_keeps_its_role() {
        let to = |name: &str| {
            let mut binding = object(&format!(
                r#"{{"roleRef": {{"kind": "Role", "name": "{name}"}}, "subjects": [{{"kind": "ServiceAccount", "name": "s"}}]}}"#
            ));
            default(&mut binding);
            binding
        };
        let kinds = ["Role", "ClusterRole"];
        assert_eq!(
            lines(validate_update(&to("b"), &to("a"), &kinds)),
            [
                "roleRef: Invalid value: {\"APIGroup\":\"rbac.authorization.k8s.io\",\"Kind\":\"Role\",\"Name\":\"b\"}: cannot change roleRef"
            ]
        );
        assert_eq!(
            lines(validate(&to("a"), &["ClusterRole"])),
            [
                "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"",
                "subjects[0].namespace: Required value",
            ]
        );
    }
}
