//! Every keyword with upstream's messages for invalid values.

use machinery::json::json;

use super::*;

/// The errors of a value of the field `spec.x`.
fn said(schema: Value, given: Value) -> Vec<String> {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"x": schema}}}});
    let value = json!({"spec": {"x": given}});
    let errors = object(
        &Schema::read(&schema),
        None,
        None,
        value.as_object().unwrap(),
    );
    errors.iter().map(ToString::to_string).collect()
}

fn check_all(cases: &[(Value, Value, &[&str])]) {
    for (schema, given, lines) in cases {
        assert_eq!(
            said(schema.clone(), given.clone()),
            *lines,
            "{schema} {given}"
        );
    }
}

#[test]
fn types_and_formats() {
    let text = json!({"type": "string"});
    let time = json!({"type": "string", "format": "date-time"});
    let either = json!({"x-kubernetes-int-or-string": true});
    check_all(&[
        (text.clone(), json!("a"), &[]),
        (
            text.clone(),
            json!(1),
            &[
                "spec.x: Invalid value: \"integer\": spec.x in body must be of type string: \"integer\"",
            ],
        ),
        (
            json!({"type": "integer"}),
            json!(2.5),
            &[
                "spec.x: Invalid value: \"number\": spec.x in body must be of type integer: \"number\"",
                "<nil>: Invalid value: \"\": Checked value must be of type integer (default format) in spec.x",
            ],
        ),
        (json!({"type": "integer"}), json!(2.0), &[]),
        (json!({"type": "number"}), json!(2), &[]),
        (
            json!({"type": "integer", "format": "int32"}),
            json!(4_294_967_296_i64),
            &[
                "<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in spec.x",
            ],
        ),
        (
            time.clone(),
            json!("x"),
            &["spec.x: Invalid value: \"x\": spec.x in body must be of type date-time: \"x\""],
        ),
        (
            time.clone(),
            json!(5),
            &[
                "spec.x: Invalid value: \"int64\": spec.x in body must be of type date-time: \"int64\"",
            ],
        ),
        (time, json!(["x"]), &[]),
        (either.clone(), json!("a"), &[]),
        (
            either,
            json!(true),
            &[
                "spec.x: Invalid value: \"boolean\": spec.x in body must be of type integer,string: \"boolean\"",
            ],
        ),
        (
            json!({"type": "string", "nullable": true}),
            json!(null),
            &[],
        ),
    ]);
}

#[test]
fn limits_of_texts_and_numbers() {
    let text = json!({"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^a"});
    let number = json!({"type": "number", "minimum": 1.5, "maximum": 5, "exclusiveMaximum": true, "multipleOf": 0.5});
    check_all(&[
        (
            text.clone(),
            json!("abcd"),
            &["spec.x: Too long: may not be more than 3 bytes"],
        ),
        (
            text.clone(),
            json!("b"),
            &["spec.x: Invalid value: \"b\": spec.x in body should be at least 2 chars long"],
        ),
        (
            text,
            json!("bb"),
            &["spec.x: Invalid value: \"bb\": spec.x in body should match '^a'"],
        ),
        (
            number.clone(),
            json!(5.0),
            &["spec.x: Invalid value: 5: spec.x in body should be less than 5"],
        ),
        (
            number.clone(),
            json!(1.25),
            &[
                "spec.x: Invalid value: 1.25: spec.x in body should be a multiple of 0.5",
                "spec.x: Invalid value: 1.25: spec.x in body should be greater than or equal to 1.5",
            ],
        ),
        // For an integer the limit is truncated to one: one half becomes zero.
        (
            number,
            json!(1),
            &[
                "spec.x: Invalid value: 0: factor MultipleOf declared for spec.x must be positive: 0",
            ],
        ),
        (
            json!({"type": "integer", "maximum": 1e30}),
            json!(3),
            &[
                "<nil>: Invalid value: \"\": Maximum boundary value must be of type integer (default format) in spec.x",
            ],
        ),
        (
            json!({"type": "string", "enum": ["a", "b"]}),
            json!(1),
            &[
                "spec.x: Invalid value: \"integer\": spec.x in body must be of type string: \"integer\"",
                "spec.x: Unsupported value: 1: supported values: \"a\", \"b\"",
            ],
        ),
        (json!({"type": "integer", "enum": [1, 2]}), json!(2.0), &[]),
    ]);
}

#[test]
fn limits_of_lists_and_objects() {
    let list = json!({"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "integer"}});
    let object = json!({"type": "object", "minProperties": 1, "maxProperties": 2, "required": ["a", "b"],
        "properties": {"a": {"type": "string"}}, "x-kubernetes-preserve-unknown-fields": true});
    check_all(&[
        (
            list.clone(),
            json!([]),
            &["spec.x: Invalid value: 0: spec.x in body should have at least 1 items"],
        ),
        (
            list,
            json!([1, "a", 3]),
            &[
                "spec.x[1]: Invalid value: \"string\": spec.x[1] in body must be of type integer: \"string\"",
                "spec.x: Too many: 3: must have at most 2 items",
            ],
        ),
        (
            object.clone(),
            json!({}),
            &[
                "spec.x: Invalid value: 0: spec.x in body should have at least 1 properties",
                "spec.x.a: Required value",
                "spec.x.b: Required value",
            ],
        ),
        (
            object,
            json!({"a": 1, "b": 2, "c": 3}),
            &[
                "spec.x: Too many: 3: must have at most 2 items",
                "spec.x.a: Invalid value: \"integer\": spec.x.a in body must be of type string: \"integer\"",
            ],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            json!({"k": 1}),
            &[
                "spec.x.k: Invalid value: \"integer\": spec.x.k in body must be of type string: \"integer\"",
            ],
        ),
        (
            json!({"type": "object", "additionalProperties": false}),
            json!({"k": 1}),
            &["spec.x: Invalid value: \"k\": spec.x.k in body is a forbidden property"],
        ),
    ]);
}

#[test]
fn errors_of_combinations_are_those_of_the_closest_schema() {
    let fields = json!({"a": {"type": "string"}, "b": {"type": "string"}});
    let with = |key: &str, parts: Value| {
        let mut schema = json!({"type": "object", "properties": fields});
        schema[key] = parts;
        schema
    };
    let parts =
        || json!([{"required": ["a"]}, {"required": ["b"], "properties": {"b": {"maxLength": 1}}}]);
    check_all(&[
        (
            with("oneOf", parts()),
            json!({"a": "x", "b": "x"}),
            &[
                "<nil>: Invalid value: \"\": \"spec.x\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
            ],
        ),
        (
            with("oneOf", parts()),
            json!({}),
            &[
                "<nil>: Invalid value: \"\": \"spec.x\" must validate one and only one schema (oneOf). Found none valid",
                "spec.x.a: Required value",
            ],
        ),
        (
            with("anyOf", parts()),
            json!({"b": "xx"}),
            &[
                "<nil>: Invalid value: \"\": \"spec.x\" must validate at least one schema (anyOf)",
                "spec.x.b: Too long: may not be more than 1 byte",
            ],
        ),
        (with("anyOf", parts()), json!({"b": "x"}), &[]),
        (
            with("allOf", parts()),
            json!({"a": "x"}),
            &[
                "spec.x.b: Required value",
                "<nil>: Invalid value: \"\": \"spec.x\" must validate all the schemas (allOf)",
            ],
        ),
        (
            with("allOf", parts()),
            json!({}),
            &[
                "spec.x.a: Required value",
                "spec.x.b: Required value",
                "<nil>: Invalid value: \"\": \"spec.x\" must validate all the schemas (allOf). None validated",
            ],
        ),
        (
            with("not", json!({"required": ["a"]})),
            json!({"a": "x"}),
            &["<nil>: Invalid value: \"\": \"spec.x\" must not validate the schema (not)"],
        ),
    ]);
}

#[test]
fn sets_and_maps_have_nothing_twice() {
    let set =
        json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
    let map = |keys: Value| {
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys,
            "items": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}})
    };
    check_all(&[
        (
            set,
            json!(["a", "b", "a", "a"]),
            &["spec.x[2]: Duplicate value: \"a\""],
        ),
        (
            map(json!(["a"])),
            json!([{"a": "1"}, {"a": "1", "b": "2"}, {}, {"b": "1"}]),
            &[
                "spec.x[1]: Duplicate value: {\"a\":\"1\"}",
                "spec.x[3]: Duplicate value: {}",
            ],
        ),
        (
            map(json!(["a", "b"])),
            json!([{"a": "1"}, {"a": "1", "b": "2"}]),
            &[],
        ),
        (
            map(json!(["a"])),
            json!(["x"]),
            &[
                "spec.x[0]: Invalid value: \"string\": spec.x[0] in body must be of type object: \"string\"",
                "spec.x[0]: Invalid value: \"x\": must be an object for an array of list-type map",
            ],
        ),
    ]);
}

#[test]
fn a_status_is_checked_by_itself() {
    let schema = json!({"type": "object", "required": ["spec"], "properties": {
        "spec": {"type": "object"},
        "status": {"type": "object", "properties": {"phase": {"type": "string", "maxLength": 3}, "n": {"type": "integer"}}}}});
    let schema = Schema::read(&schema);
    let reported = |status_now: Value, was: Value| -> Vec<String> {
        let object = |status: Value| Object::from_iter([("status".to_owned(), status)]);
        let (errors, _) = status(&schema, None, None, &object(status_now), &object(was));
        errors.iter().map(ToString::to_string).collect()
    };
    let line = "status.n: Invalid value: \"string\": n in body must be of type integer: \"string\"";
    assert_eq!(reported(json!({"n": "x"}), json!({})), [line]);
    assert!(reported(json!({"phase": "long", "n": 1}), json!({"phase": "long"})).is_empty());
}

#[test]
fn an_object_with_many_errors_has_a_thousand_of_them() {
    let names = json!({"type": "array", "items": {"type": "string", "enum": ["a", "b"]}});
    let wrong: Value = vec![Value::from(1); 200_000].into();
    assert_eq!(said(names.clone(), wrong).len(), MAX_ERRORS);
    let map =
        json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "integer"}});
    let twice: Value = (0..200_000)
        .map(|n| Value::from(n / 2))
        .collect::<Vec<_>>()
        .into();
    assert_eq!(said(map, twice).len(), MAX_ERRORS);
    let pods = json!({"type": "array", "items": {"type": "object", "x-kubernetes-embedded-resource": true}});
    let empty: Value = vec![json!({}); 100_000].into();
    let found = said(pods, empty).len();
    assert!((MAX_ERRORS..MAX_ERRORS + 10).contains(&found), "{found}");
}

/// The errors of a new object whose `spec` has a rule.
fn with_rule(spec: Value) -> Vec<String> {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "required": ["name"],
        "x-kubernetes-validations": [{"rule": "self.name != 'bad'", "message": "is bad"}],
        "properties": {"name": {"type": "string", "maxLength": 5}, "more": {"type": "string", "pattern": "^b"},
            "size": {"type": "integer", "minimum": 3},
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "kind": {"type": "string", "enum": ["a"]}}}}});
    let rules = Rules::read(&schema).unwrap();
    let object = json!({"spec": spec});
    let errors = super::object(
        &Schema::read(&schema),
        Some(&rules),
        None,
        object.as_object().unwrap(),
    );
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn rules_are_evaluated_beside_errors_that_leave_types_and_sizes_intact() {
    const UNCHECKED: &str = "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
    let bad = "spec: Invalid value: is bad";
    for (spec, second) in [
        (json!({"name": "bad", "more": "a"}), bad),
        (json!({"name": "bad", "size": 1}), bad),
        (json!({"name": "bad", "set": ["a", "a"]}), bad),
        (json!({"size": 3}), UNCHECKED),
        (json!({"name": 5}), UNCHECKED),
        (json!({"name": "too long"}), UNCHECKED),
        (json!({"name": "bad", "kind": "b"}), UNCHECKED),
    ] {
        let found = with_rule(spec.clone());
        assert_eq!(
            (found.len(), found[1].as_str()),
            (2, second),
            "{spec} {found:?}"
        );
    }
    assert_eq!(with_rule(json!({"name": "good", "size": 1})).len(), 1);
}

#[test]
fn rules_that_many_items_violate_have_a_thousand_errors() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "array", "items": {"type": "integer",
        "x-kubernetes-validations": [{"rule": "self > 5"}]}}}});
    let rules = Rules::read(&schema).unwrap();
    let schema = Schema::read(&schema);
    let old = json!({"spec": vec![1; 20_000]});
    let mut new = old.clone();
    let (old, unchanged) = (old.as_object().unwrap(), new.clone());
    assert!(
        update(
            &schema,
            Some(&rules),
            None,
            unchanged.as_object().unwrap(),
            old
        )
        .0
        .is_empty()
    );
    new["spec"][19_999] = json!(2);
    let (found, _) = update(&schema, Some(&rules), None, new.as_object().unwrap(), old);
    assert_eq!(found.len(), MAX_ERRORS);
}
