//! Rules by examples, with upstream's results.

use machinery::{
    Object, Value,
    field::{Errors, Path},
    json::json,
};

use super::{
    super::{ratchet::CorrelatedValue, structural::Schema},
    Rules, check_rules,
};

/// The errors of rules, as lines.
fn errors_of(rules: &Rules, object: &Value, old: Option<(&Schema, &Value)>) -> Vec<String> {
    let mut errors = Errors::new();
    let path = Path::new("");
    match old {
        None => rules.check(object.into(), &path, &mut errors),
        Some((schema, old)) => {
            let was = CorrelatedValue::new(schema, object.into(), old.into());
            rules.check_update(was, &path, &mut errors);
        }
    }
    errors.iter().map(ToString::to_string).collect()
}

fn schema(spec: Value) -> Value {
    json!({"type": "object", "properties": {"spec": spec}})
}

#[track_caller]
fn rules(schema: &Value) -> Rules {
    Rules::read(schema).expect("there are rules")
}

#[test]
fn rules_are_evaluated_at_their_schema_level() {
    let schema = schema(json!({
        "type": "object",
        "properties": {
            "min": {"type": "integer"},
            "max": {"type": "integer"},
            "names": {"type": "array", "maxItems": 10, "items": {
                "type": "string", "maxLength": 10,
                "x-kubernetes-validations": [{"rule": "self.startsWith('a')", "message": "must begin with a"}]
            }},
            "labels": {"type": "object", "maxProperties": 3, "additionalProperties": {
                "type": "string",
                "x-kubernetes-validations": [{"rule": "self != 'bad'", "reason": "FieldValueForbidden"}]
            }}
        },
        "x-kubernetes-validations": [
            {"rule": "self.min <= self.max", "messageExpression": "'min ' + string(self.min) + ' is over max'", "fieldPath": ".min"}
        ]
    }));
    let rules = rules(&schema);
    let errors = |object: Value| errors_of(&rules, &object, None);
    assert_eq!(
        errors(json!({"spec": {"min": 1, "max": 2, "names": ["a"], "labels": {"x": "fine"}}})),
        Vec::<String>::new()
    );
    let mut found =
        errors(json!({"spec": {"min": 3, "max": 2, "names": ["ab", "b"], "labels": {"x": "bad"}}}));
    found.sort();
    assert_eq!(
        found,
        [
            "spec.labels[x]: Forbidden: failed rule: self != 'bad'",
            "spec.min: Invalid value: min 3 is over max",
            "spec.names[1]: Invalid value: \"b\": must begin with a",
        ]
    );
    assert_eq!(
        errors(json!({"spec": {"max": 2}})),
        ["spec: Invalid value: \"object\": no such key: min evaluating rule: self.min <= self.max"]
    );
}

#[test]
fn transition_rules_need_an_old_value_unless_it_is_optional() {
    let schema = schema(json!({
        "type": "object",
        "properties": {
            "fixed": {"type": "string", "x-kubernetes-validations": [
                {"rule": "self == oldSelf", "message": "is immutable"}]},
            "grows": {"type": "integer", "x-kubernetes-validations": [
                {"rule": "!oldSelf.hasValue() || self >= oldSelf.value()", "optionalOldSelf": true}]}
        }
    }));
    let rules = rules(&schema);
    let structural = Schema::read(&schema);
    let new = json!({"spec": {"fixed": "b", "grows": 1}});
    assert_eq!(errors_of(&rules, &new, None), Vec::<String>::new());
    let old = json!({"spec": {"fixed": "a", "grows": 2}});
    let mut found = errors_of(&rules, &new, Some((&structural, &old)));
    found.sort();
    assert_eq!(
        found,
        [
            "spec.fixed: Invalid value: \"b\": is immutable",
            "spec.grows: Invalid value: 1: failed rule: !oldSelf.hasValue() || self >= oldSelf.value()",
        ]
    );
}

#[test]
fn unchanged_values_may_violate_rules_added_later() {
    let schema = schema(json!({
        "type": "object",
        "properties": {"size": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 5"}]}, "x": {"type": "string"}}
    }));
    let rules = rules(&schema);
    let structural = Schema::read(&schema);
    let old = json!({"spec": {"size": 1, "x": "a"}});
    let same = json!({"spec": {"size": 1, "x": "b"}});
    assert!(errors_of(&rules, &same, Some((&structural, &old))).is_empty());
    let was = CorrelatedValue::new(&structural, (&same).into(), (&old).into());
    assert_eq!(
        rules.check_update(was, &Path::new(""), &mut Vec::new()),
        ["spec.size: Invalid value: 1: failed rule: self > 5"],
        "the client is warned of it"
    );
    let changed = json!({"spec": {"size": 2, "x": "a"}});
    assert_eq!(
        errors_of(&rules, &changed, Some((&structural, &old))).len(),
        1
    );
}

#[test]
fn the_name_of_a_resource_is_always_known() {
    let schema = json!({"type": "object", "x-kubernetes-validations": [
        {"rule": "self.metadata.name.startsWith('a') && self.kind != ''"}]});
    let rules = rules(&schema);
    let object = json!({"apiVersion": "a/v1", "kind": "A", "metadata": {"name": "abc"}});
    assert!(errors_of(&rules, &object, None).is_empty());
}

fn definition(schema: Value) -> Object {
    let definition =
        json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]}});
    match definition {
        Value::Object(object) => object,
        _ => Object::default(),
    }
}

fn complaints(schema: Value) -> Vec<String> {
    let errors = check_rules(&definition(schema), None);
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn rules_that_do_not_compile_or_cost_too_much_are_refused() {
    let rule = |rule: &str| {
        json!({"type": "object", "properties": {
        "s": {"type": "string"}, "l": {"type": "array", "items": {"type": "string"}}},
        "x-kubernetes-validations": [{"rule": rule}]})
    };
    assert!(complaints(rule("has(self.s)")).is_empty());
    let at = "spec.validation.openAPIV3Schema.x-kubernetes-validations[0].rule";
    assert_eq!(
        complaints(rule("self.t == 'x'")),
        [format!(
            "{at}: Invalid value: {{\"Rule\":\"self.t == 'x'\",\"Message\":\"\",\"MessageExpression\":\"\",\"Reason\":null,\"FieldPath\":\"\",\"OptionalOldSelf\":null}}: compilation failed: ERROR: <input>:1:5: undefined field 't'\n | self.t == 'x'\n | ....^"
        )]
    );
    assert_eq!(
        complaints(rule("self.s")),
        [format!(
            "{at}: Invalid value: {{\"Rule\":\"self.s\",\"Message\":\"\",\"MessageExpression\":\"\",\"Reason\":null,\"FieldPath\":\"\",\"OptionalOldSelf\":null}}: cel expression must evaluate to a bool"
        )]
    );
    assert_eq!(
        complaints(rule("self.l.all(x, self.l.all(y, x == y))")),
        [
            format!("{at}: Forbidden: estimated rule cost exceeds budget by factor of more than 100x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"),
            format!("{at}: Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"),
            "spec.validation.openAPIV3Schema: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of more than 100x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)".to_owned(),
        ]
    );
    let list = json!({"type": "object", "properties": {"l": {"type": "array", "maxItems": 10,
        "items": {"type": "string", "maxLength": 10,
        "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}}});
    assert_eq!(
        complaints(list),
        [
            "spec.validation.openAPIV3Schema.properties[l].items.x-kubernetes-validations[0].rule: Invalid value: \"self == oldSelf\": oldSelf cannot be used on the uncorrelatable portion of the schema within spec.validation.openAPIV3Schema.properties[l]"
        ]
    );
}

#[test]
fn comparing_types_and_literals_costs_little() {
    for rule in [
        "type(self.port) == int || type(self.port) == string",
        "['a', 'b'].exists(x, x == self.s)",
        "self.l.all(x, ['a', 'b'].exists(y, y == x))",
    ] {
        let schema = json!({"type": "object", "properties": {
            "s": {"type": "string"},
            "l": {"type": "array", "maxItems": 10, "items": {"type": "string"}},
            "port": {"x-kubernetes-int-or-string": true}},
            "x-kubernetes-validations": [{"rule": rule}]});
        assert_eq!(complaints(schema), Vec::<String>::new(), "{rule}");
    }
}
