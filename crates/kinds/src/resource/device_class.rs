//! DeviceClass: a class of devices that claims can request.

use super::check_items;
use super::claim_spec::CONFIG_MAX;
use super::configuration::{check_configuration, check_selectors};
use crate::builtin::Builtin;
use crate::metadata::Check;
use crate::pod::is_extended;
use crate::tree::{get, list, same};
use crate::{Expressions, Scope, ServerSide, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    group: "resource.k8s.io",
    kind: "DeviceClass",
    plural: "deviceclasses",
    server_side: ServerSide {
        expressions: Expressions::DeviceSelectors(visit_selectors),
        ..ServerSide::NONE
    },
    returns_deleted: true,
    scope: Scope::Cluster,
    schema: "resource/v1.DeviceClass",
    has_generation: true,
    // A generateName is not validated further, and lengths are in bytes.
    validate_name: |name, prefix| match prefix {
        true => format::path_segment_prefix(name),
        false => format::dns1123_subdomain_bytes(name),
    },
    metadata_checks: &[Check::Whole, Check::Change],
    validate_create: |object| validate(object, &Value::Null),
    validate_update: |object, old, _: Subresource<'_>| validate(object, get(old, "spec")),
    ..Builtin::EMPTY
};

fn visit_selectors(object: &Object, _: Option<&Object>, visit: &mut dyn FnMut(&Path<'_>, &Value)) {
    let path = Path::new("spec");
    visit(&path.child("selectors"), &get(object, "spec")["selectors"]);
}

fn validate(object: &Object, was: &Value) -> Errors {
    let mut errors = Vec::new();
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    check_selectors(&spec["selectors"], &path.child("selectors"), &mut errors);
    let (config, at) = (&spec["config"], path.child("config"));
    let stored = was.is_object() && same(config, &was["config"]);
    check_items(
        list(config),
        CONFIG_MAX,
        &at,
        &mut errors,
        |config, path, errors| {
            check_configuration(config, stored, path, errors);
        },
    );
    if let Some(name) = spec["extendedResourceName"]
        .as_str()
        .filter(|name| !is_extended(name))
    {
        let at = path.child("extendedResourceName");
        errors.push(Error::invalid(
            &at,
            name,
            "must be a valid extended resource name",
        ));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn classes_select_configure_and_stand_for_an_extended_resource() {
        let cases = [
            (r#"{"spec": {}}"#, ""),
            (
                r#"{"spec": {"extendedResourceName": "example.com/gpu"}}"#,
                "",
            ),
            (
                r#"{"spec": {"extendedResourceName": "cpu"}}"#,
                "spec.extendedResourceName: Invalid value: \"cpu\": must be a valid extended resource name",
            ),
            (
                r#"{"spec": {"selectors": [{}]}}"#,
                "spec.selectors[0].cel: Required value",
            ),
            (
                r#"{"spec": {"config": [{}]}}"#,
                "spec.config[0].opaque: Required value",
            ),
        ];
        for (class, expected) in cases {
            let class = object(class);
            assert_eq!(lines((KIND.validate_create)(&class)).join(" "), expected);
            assert_eq!(
                lines((KIND.validate_update)(&class, &class, None)).join(" "),
                expected
            );
        }
    }
}
