//! Features only for policies: constructed objects, and lazily evaluated variables.

use std::{cell::Cell, collections::HashMap, sync::Arc};

use cel::{Decl, DeclKind, Env, Error, Field, Lazy, PER_CALL_LIMIT, Program, Type, Value, compile};

fn evaluated(env: &Env, text: &str) -> Result<String, String> {
    let checked = compile(env, text).map_err(|issues| issues.issues[0].message.clone())?;
    let program = Program::new(env, &checked).map_err(|error| error.message)?;
    let value = program.evaluate(&[], PER_CALL_LIMIT).result;
    let value = value.map_err(|error| error.message)?;
    let json = value.to_json().map_err(|error| error.message)?;
    Ok(json.to_string())
}

fn assert_evaluated(cases: &[(&str, &str)]) {
    let env = Env::new().with_patches();
    for (text, wanted) in cases {
        assert_eq!(evaluated(&env, text).as_deref(), Ok(*wanted), "{text}");
    }
}

#[test]
fn objects_are_constructed_and_their_fields_selected() {
    assert_evaluated(&[
        ("Object{}", "{}"),
        (
            "Object{spec: Object.spec{replicas: 3}}",
            r#"{"spec":{"replicas":3}}"#,
        ),
        ("Object{list: [1, 2, 3]}.list.sum()", "6"),
        ("Object{?spec: optional.none()}", "{}"),
        ("Object{}.?spec.hasValue()", "false"),
        // Only the type tells the fields of an object.
        ("Object{a: 1}.a", "1"),
        ("has(Object{a: 1}.a) && !has(Object{}.a)", "true"),
        ("Object{a: 1}.?a.hasValue()", "false"),
        ("has(dyn(Object{a: 1}).a)", "false"),
        ("{'k': Object{a: 1}}.?k.a.hasValue()", "false"),
        ("{'k': Object{a: 1}}.k.a", "1"),
        ("[Object{a: 1}].map(o, o.a)", "[1]"),
        ("optional.of(Object{a: 1}).a.value()", "1"),
        // A selected field is converted to Go's types and back.
        ("type(Object{a: Object.a{x: 1}}.a) == map", "true"),
        ("Object{a: Object.a{x: 1}}.a.?x.value()", "1"),
        ("Object{a: optional.of(1)}.a", "1"),
        ("Object{a: [Object.a{x: 1}]}.a[0].x", "1"),
        ("Object{a: type(1)}.a", r#""int""#),
        (
            "type(Object{}) == type && type(JSONPatch{}) == type",
            "true",
        ),
        ("type(dyn(Object.a{})) == type(dyn(Object.b{}))", "true"),
    ]);
}

#[test]
fn fields_of_constructed_objects_are_compared_as_go_values() {
    assert_evaluated(&[
        // Fields are compared deeply as Go values, of which new lists are never equal.
        ("Object{a: [1]} == Object{a: [1]}", "false"),
        ("Object{a: {'k': [1]}} == Object{a: {'k': [1]}}", "false"),
        ("Object{a: {'k': 1}} == Object{a: {'k': 1}}", "true"),
        ("Object{a: {'x': 1}} == Object{a: {'x': 1u}}", "false"),
        // Quantities are compared by their digits and their text, if that was canonical.
        (
            "Object{a: quantity('1')} == Object{a: quantity('1')}",
            "true",
        ),
        (
            "Object{a: quantity('1k')} == Object{a: quantity('1000')}",
            "false",
        ),
        (
            "Object{a: quantity('1')} == Object{a: quantity('1000m')}",
            "false",
        ),
        (
            "Object{a: quantity('1')} == Object{a: quantity('+1')}",
            "false",
        ),
        (
            "Object{a: quantity('1.50')} == Object{a: quantity('+1.50')}",
            "true",
        ),
        (
            "Object{a: quantity('1')} == Object{a: quantity('0').add(1)}",
            "false",
        ),
        (
            "Object{a: quantity('2').sub(1)} == Object{a: quantity('0').add(quantity('1'))}",
            "true",
        ),
    ]);
}

#[test]
fn quantities_urls_and_made_maps_are_equal_to_themselves_only() {
    assert_evaluated(&[
        // As keys, quantities and URLs are equal to themselves only.
        ("{quantity('1'): 1}.size()", "1"),
        ("quantity('1') in {quantity('1'): 1}", "false"),
        (
            "[quantity('1')].all(q, q in {q: 1} && {q: 1, q: 2}.size() == 1)",
            "true",
        ),
        ("[url('http://a')].all(u, u in {u: 1})", "true"),
        // Maps that comprehensions made are equal to each other only.
        (
            "Object{a: [1].transformMap(i, v, v)} == Object{a: {0: 1}}",
            "false",
        ),
        (
            "Object{a: [1].transformMap(i, v, v)} == Object{a: [1].transformMap(i, v, 1)}",
            "true",
        ),
        (
            "Object{a: [].transformMap(i, v, v)} == Object{a: {}}",
            "false",
        ),
        ("[1].transformMap(i, v, v) == {0: 1}", "true"),
    ]);
}

#[test]
fn constructed_objects_and_patches_are_values() {
    assert_evaluated(&[
        ("[Object{a: 1}, Object{a: 1}].distinct().size()", "1"),
        ("JSONPatch{value: [1]} == JSONPatch{value: [1]}", "true"),
        ("optional.ofNonZeroValue(Object{}).hasValue()", "false"),
        ("optional.ofNonZeroValue(JSONPatch{}).hasValue()", "true"),
        ("has(Object{a: {1: 2}}.a)", "false"),
        ("Object{}.spec == null", "true"),
        ("Object{a: 1} == Object{a: 1}", "true"),
        ("dyn(Object{a: 1}) == dyn(Object.a{a: 1})", "false"),
        (
            "JSONPatch{op: 'add', path: '/a', value: {'b': 1}}",
            r#"{"op":"add","path":"/a","value":{"b":1}}"#,
        ),
        (
            "jsonpatch.escapeKey('k8s.io/my~label')",
            r#""k8s.io~1my~0label""#,
        ),
    ]);
}

#[test]
fn invalid_constructions_are_refused_as_upstream() {
    let env = Env::new().with_patches();
    for (text, wanted) in [
        (
            "Invalid{}",
            "undeclared reference to 'Invalid' (in container '')",
        ),
        (
            "JSONPatch{op: 1}",
            "expected type of field 'op' is 'string' but provided type is 'int'",
        ),
        (
            "JSONPatch{other: 1}",
            "expected type of field 'other' is '' but provided type is 'int'",
        ),
        (
            "JSONPatch{other: dyn(1)}",
            "unexpected JSONPatchType field: other",
        ),
        (
            "Objects{}",
            "undeclared reference to 'Objects' (in container '')",
        ),
        ("dyn(Object{a: 1}).a", "no such key: a"),
        ("Object{a: 1}.?a.value()", "optional.none() dereference"),
        (
            "Object{a: quantity('1')}.a",
            "unsupported conversion to ref.Val: (*resource.Quantity)1",
        ),
        ("Object{a: {1: 2}}.a", "cannot get field \"a\""),
        ("'a' in dyn(Object{a: 1})", "no such overload"),
        ("size(dyn(Object{a: 1}))", "no such overload: size"),
    ] {
        assert_eq!(evaluated(&env, text).unwrap_err(), wanted, "{text}");
    }
}

#[test]
fn objects_and_patches_are_constructed_only_where_there_are_patches() {
    let without = Env::new();
    for text in ["Object{}", "JSONPatch{}", "jsonpatch.escapeKey('a')"] {
        let issue = evaluated(&without, text).unwrap_err();
        assert!(
            issue.starts_with("undeclared reference to "),
            "{text}: {issue}"
        );
    }
}

#[test]
fn parts_of_a_stored_object_in_constructed_ones_are_equal_if_their_json_is() {
    let env = Env::new().with_patches().variable("object", Type::Dyn);
    let stored = machinery::json::json!({"m": {"a": "x"}, "l": [1]});
    for (text, wanted) in [
        ("Object{a: object} == Object{a: object}", true),
        ("Object{a: object.m} == Object{a: object.m}", true),
        (
            "Object{a: {'k': object.m}} == Object{a: {'k': object.m}}",
            true,
        ),
        ("Object{a: object.l} == Object{a: object.l}", false),
        ("Object{a: object.m} == Object{a: {'a': 'x'}}", false),
    ] {
        let checked = compile(&env, text).expect(text);
        let program = Program::new(&env, &checked).expect("planned");
        let variables = [Value::from_json(&stored, None).expect("plain JSON")];
        let found = program.evaluate(&variables, PER_CALL_LIMIT).result;
        assert!(
            matches!(found, Ok(Value::Bool(found)) if found == wanted),
            "{text}"
        );
    }
}

#[test]
fn constructing_an_object_costs_forty() {
    let env = Env::new().with_patches();
    let cost = |text: &str| {
        let checked = compile(&env, text).expect(text);
        let program = Program::new(&env, &checked).expect("planned");
        program.evaluate(&[], PER_CALL_LIMIT).cost
    };
    assert_eq!(cost("Object{a: 1}"), 40);
    assert_eq!(cost("{'a': Object{}}"), 70);
    assert_eq!(cost("{'a': 1}"), 0, "a constant");
}

#[test]
fn sort_by_sorts_lists_by_the_result_of_an_expression() {
    let env = Env::new();
    for (text, wanted) in [
        (
            "['ccc', 'a', 'bb'].sortBy(e, e.size())",
            r#"["a","bb","ccc"]"#,
        ),
        ("[{'n': 2}, {'n': 1}].sortBy(e, e.n).map(e, e.n)", "[1,2]"),
        ("[].sortBy(e, 1)", "[]"),
    ] {
        assert_eq!(evaluated(&env, text).as_deref(), Ok(wanted), "{text}");
    }
    assert_eq!(
        evaluated(&env, "{'a': 1}.sortBy(e, e)").unwrap_err(),
        "sortBy can only be applied to a list, identifier, comprehension, call or select expression"
    );
}

struct Counting {
    asked: Cell<usize>,
}

impl<'a> Lazy<'a> for Counting {
    fn field(&self, name: &str) -> Result<Value<'a>, Error> {
        self.asked.set(self.asked.get() + 1);
        match name {
            "one" => Ok(Value::Int(1)),
            _ => Err(Error::new("it fails")),
        }
    }
}

#[test]
fn fields_of_the_lazy_variable_are_asked_for_when_they_are_used() {
    let field = |name: &str, t: Type| {
        let decl = Arc::new(Decl::new(DeclKind::Plain(t), u64::MAX));
        let json: Arc<str> = name.into();
        (json.clone(), Field { json, decl })
    };
    let kind = DeclKind::Object {
        name: "vars".into(),
        fields: HashMap::from([field("one", Type::Int), field("bad", Type::Bool)]),
    };
    let env = Env::new().lazy("variables", Arc::new(Decl::new(kind, u64::MAX)));
    for (text, asked, wanted) in [
        ("true", 0, Ok(true)),
        ("variables.one == 1", 1, Ok(true)),
        ("false && variables.bad", 0, Ok(false)),
        ("variables.bad || true", 1, Ok(true)),
        (
            "has(variables.one) && variables.?one.hasValue()",
            2,
            Ok(true),
        ),
        ("variables.bad", 1, Err("it fails")),
    ] {
        let checked = compile(&env, text).expect(text);
        let program = Program::new(&env, &checked).expect("planned");
        let lazy = Counting {
            asked: Cell::new(0),
        };
        let found = program.evaluate_with(&[], &lazy, PER_CALL_LIMIT).result;
        let found = found.map(|value| matches!(value, Value::Bool(true)));
        let found = found.map_err(|error| error.message);
        assert_eq!(
            (lazy.asked.get(), found),
            (asked, wanted.map_err(str::to_owned)),
            "{text}"
        );
    }
    let issues = compile(&env, "variables.two").expect_err("undeclared");
    assert_eq!(issues.issues[0].message, "undefined field 'two'");
}

#[test]
fn a_variable_without_a_value_is_an_error_where_it_is_used() {
    let env = Env::new()
        .variable("here", Type::Int)
        .variable("absent", Type::Int);
    for (text, wanted) in [
        ("here == 1 || absent == 2", Ok(true)),
        ("absent == 2", Err("no such attribute(s): absent")),
    ] {
        let checked = compile(&env, text).expect(text);
        let program = Program::new(&env, &checked).expect("planned");
        let found = program.evaluate(&[Value::Int(1)], PER_CALL_LIMIT).result;
        let found = found.map(|value| matches!(value, Value::Bool(true)));
        assert_eq!(
            found.map_err(|error| error.message),
            wanted.map_err(str::to_owned),
            "{text}"
        );
    }
}
