//! Validation of schemas, rule by rule.

use super::*;
use crate::testing::lines;

fn errors_of(schema: Value) -> Vec<String> {
    let mut errors = Vec::new();
    check(&schema, false, Rules::ALL, &Path::new("s"), &mut errors);
    lines(errors)
}

fn field(field: Value) -> Vec<String> {
    errors_of(json!({"type": "object", "properties": {"a": field}}))
}

#[test]
fn keywords_that_cannot_be_kept_are_refused() {
    for (schema, line) in [
        (
            json!({"type": "string", "id": "x"}),
            "id: Forbidden: id is not supported",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
            "uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ),
        (
            json!({"type": "object", "properties": {"b": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
            "additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
        ),
        (
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": false}),
            "x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined",
        ),
    ] {
        assert_eq!(
            field(schema),
            [format!("s.openAPIV3Schema.properties[a].{line}")]
        );
    }
    assert_eq!(
        errors_of(
            json!({"type": "object", "properties": {"metadata": {"type": "object", "default": {}}}})
        ),
        [
            "s.openAPIV3Schema.properties[metadata].default: Forbidden: must not be set in top-level metadata"
        ]
    );
}

#[test]
fn lists_with_keys_have_objects_with_those_keys() {
    let list = |keys: Value, item: Value| {
        field(
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys, "items": item}),
        )
    };
    let item = json!({"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "string"}}});
    let none: [&str; 0] = [];
    assert_eq!(list(json!(["k"]), item.clone()), none);
    let at = "s.openAPIV3Schema.properties[a]";
    assert_eq!(
        list(json!(["v"]), item.clone()),
        [format!(
            "{at}.items.properties[v].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
        )]
    );
    assert_eq!(
        list(json!(["x"]), item),
        [format!(
            "{at}.x-kubernetes-list-map-keys: Invalid value: [\"x\"]: entries must all be names of item properties"
        )]
    );
    assert_eq!(
        list(json!(["x"]), json!({"type": "string"})),
        [format!(
            "{at}.items.type: Invalid value: \"string\": must be object if parent array's x-kubernetes-list-type is map"
        )]
    );
}

#[test]
fn rules_are_written_out() {
    let rule = |rule: Value| {
        field(
            json!({"type": "object", "properties": {"b": {"type": "string"}}, "x-kubernetes-validations": [rule]}),
        )
    };
    let none: [&str; 0] = [];
    assert_eq!(rule(json!({"rule": "true", "fieldPath": ".b"})), none);
    let at = "s.openAPIV3Schema.properties[a].x-kubernetes-validations[0]";
    assert_eq!(
        rule(json!({"rule": " "})),
        [format!("{at}.rule: Required value: rule is not specified")]
    );
    assert_eq!(
        rule(json!({"rule": "true", "fieldPath": ".c"})),
        [format!(
            "{at}.fieldPath: Invalid value: \".c\": must be a valid path"
        )]
    );
}

#[test]
fn formats_belong_to_types() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer", "format": "int31"},
        "b": {"type": "string", "format": "date-time"}}});
    assert_eq!(unknown_formats(&schema), ["int31"]);
}
