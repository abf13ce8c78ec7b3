//! Values with a schema: equality of objects, and lists of the types set and map. As upstream's
//! `valuesunstructured.go`.

use std::sync::Arc;

use cel::{Decl, DeclKind, Env, Field, ListSemantics, PER_CALL_LIMIT, Program, Value, compile};
use machinery::json;

/// A field of a schema, by its name in JSON.
fn field(json: &str, kind: DeclKind) -> (Arc<str>, Field) {
    let field = Field {
        json: json.into(),
        decl: Arc::new(Decl::new(kind, u64::MAX)),
    };
    (cel::escape(json).expect("a name").into(), field)
}

fn fields_of(name: &str, fields: impl IntoIterator<Item = (Arc<str>, Field)>) -> DeclKind {
    let fields = fields.into_iter().collect();
    DeclKind::Object {
        name: name.into(),
        fields,
    }
}

fn listed(element: DeclKind, semantics: ListSemantics) -> DeclKind {
    DeclKind::List {
        element: Arc::new(Decl::new(element, u64::MAX)),
        semantics,
    }
}

/// Evaluates an expression about `self` and `oldSelf`, which have a schema.
fn transition(
    kind: &DeclKind,
    text: &str,
    new: &json::Value,
    old: &json::Value,
) -> Result<bool, String> {
    let decl = Arc::new(Decl::new(kind.clone(), u64::MAX));
    let env = Env::new().declared("self", decl.clone());
    let env = env.declared("oldSelf", decl.clone());
    let checked = compile(&env, text).unwrap_or_else(|issues| panic!("{text}: {issues}"));
    let program = Program::new(&env, &checked).expect("planned");
    let variables = [new, old].map(|value| Value::from_json(value, Some(&decl)).expect("typed"));
    match program.evaluate(&variables, PER_CALL_LIMIT).result {
        Ok(Value::Bool(holds)) => Ok(holds),
        Ok(other) => panic!("{text}: {}", other.display()),
        Err(error) => Err(error.message),
    }
}

#[test]
fn reserved_words_are_selected_with_and_without_escape() {
    let kind = fields_of(
        "selfType",
        [
            field("namespace", DeclKind::String),
            field("a__b", DeclKind::String),
        ],
    );
    let object = json::json!({"namespace": "n", "a__b": "x"});
    for text in [
        "self.namespace == 'n'",
        "self.__namespace__ == 'n'",
        "has(self.namespace) && self.?namespace.hasValue()",
        "self.a__underscores__b == 'x'",
    ] {
        assert_eq!(
            transition(&kind, text, &object, &object),
            Ok(true),
            "{text}"
        );
    }
    let decl = Arc::new(Decl::new(kind, u64::MAX));
    let env = Env::new().declared("self", decl);
    assert!(compile(&env, "self.a__b == 'x'").is_err());
}

/// As upstream's `unstructuredMap.Equal`.
#[test]
fn objects_with_a_schema_are_equal_if_their_fields_are() {
    let inner = fields_of(
        "selfType.ref",
        [
            field("name", DeclKind::String),
            field("namespace", DeclKind::String),
        ],
    );
    let fields = [
        field("ref", inner.clone()),
        field("x-y", DeclKind::Int),
        field("a.b/c", DeclKind::String),
        field("at", DeclKind::Timestamp),
        field("for", DeclKind::Duration),
        field("key", DeclKind::Bytes),
        field("share", DeclKind::Double),
        field("refs", listed(inner.clone(), ListSemantics::Atomic)),
        field(
            "keyed",
            listed(inner, ListSemantics::Map(vec!["name".into()])),
        ),
        field("redact__d", DeclKind::Int),
    ];
    let schema = fields_of("selfType", fields);
    let one = json::json!({"ref": {"name": "a", "namespace": "b"}, "x-y": 1, "a.b/c": "d",
        "at": "2026-11-16T00:00:00Z", "for": "1h", "key": "aGVsbG8=", "share": 2, "redact__d": 1,
        "refs": [{"name": "a", "namespace": "b"}], "keyed": [{"name": "a", "namespace": "b"}, {"name": "c"}],
        "undeclared": {"any": [1, "x", null]}, "nothing": null});
    let equal = |new: &json::Value| transition(&schema, "self == oldSelf", new, &one);
    assert_eq!(equal(&one), Ok(true));
    for (path, value, expected) in [
        ("/ref/namespace", json::json!("c"), false),
        ("/x-y", json::json!(2), false),
        ("/a.b~1c", json::json!("e"), false),
        ("/at", json::json!("2026-11-16T01:00:00+01:00"), true),
        ("/at", json::json!("2026-11-16T01:00:00Z"), false),
        ("/for", json::json!("60m"), true),
        ("/for", json::json!("61m"), false),
        ("/key", json::json!("aGVsbA=="), false),
        ("/share", json::json!(2.0), true),
        ("/refs/0/namespace", json::json!("c"), false),
        (
            "/keyed",
            json::json!([{"name": "c"}, {"name": "a", "namespace": "b"}]),
            true,
        ),
        (
            "/keyed",
            json::json!([{"name": "c"}, {"name": "a", "namespace": "x"}]),
            false,
        ),
        ("/undeclared/any/1", json::json!("y"), false),
        ("/redact__d", json::json!(2), false),
    ] {
        let mut new = one.clone();
        *new.pointer_mut(path).expect(path) = value;
        assert_eq!(equal(&new), Ok(expected), "{path} {new}");
    }
    let mut less = one.clone();
    less.as_object_mut().expect("an object").shift_remove("x-y");
    assert_eq!(equal(&less), Ok(false));
    let within = |text: &str| transition(&schema, text, &one, &one);
    for text in [
        "self.ref in oldSelf.refs",
        "self.refs == oldSelf.refs",
        "self.ref == oldSelf.refs[0]",
        "dyn(self)['for'] == duration('1h')",
    ] {
        assert_eq!(within(text), Ok(true), "{text}");
    }
    assert_eq!(within("self.ref != oldSelf.ref"), Ok(false));
}

#[test]
fn sets_and_map_lists_keep_their_semantics_and_may_be_long() {
    let item = fields_of(
        "selfType.items.@idx",
        [
            field("key", DeclKind::String),
            field("value", DeclKind::Int),
        ],
    );
    let fields = [
        field("set", listed(DeclKind::String, ListSemantics::Set)),
        field("more", listed(DeclKind::String, ListSemantics::Set)),
        field("plain", listed(DeclKind::String, ListSemantics::Atomic)),
        field("bytes", listed(DeclKind::Bytes, ListSemantics::Set)),
        field(
            "items",
            listed(item, ListSemantics::Map(vec!["key".into()])),
        ),
    ];
    let schema = fields_of("selfType", fields);
    let new = json::json!({"set": ["a", "b"], "more": ["c", "b"], "plain": ["b", "a"], "bytes": ["YQ==", "Yg=="],
        "items": [{"key": "a", "value": 1}, {"key": "b", "value": 2}]});
    let old = json::json!({"set": ["b", "a"], "more": ["d"], "plain": ["a", "b"], "bytes": ["Yw==", "YQ=="],
        "items": [{"key": "b", "value": 3}, {"key": "a", "value": 1}]});
    for (text, expected) in [
        ("self.set == oldSelf.set", true),
        ("self.set == self.plain", true),
        // The list on the left decides.
        ("self.plain == self.set", false),
        ("['b', 'a'] == self.set", false),
        ("self.bytes == oldSelf.bytes", false),
        ("self.items == oldSelf.items", false),
        ("(self.set + self.more).size() == 3", true),
        (
            "(self.set + self.more + oldSelf.more + self.set).size() == 4",
            true,
        ),
        ("self.set + self.more == self.more + self.set", true),
        ("oldSelf.set + self.set == self.set", true),
        (
            "(self.items + oldSelf.items).map(i, i.value) == [1, 3]",
            true,
        ),
        ("self.items + oldSelf.items == oldSelf.items", true),
    ] {
        assert_eq!(
            transition(&schema, text, &new, &old),
            Ok(expected),
            "{text}"
        );
    }
    let names = (0..20_000).map(|number| json::Value::from(format!("{number}")));
    let names: json::Value = names.collect::<Vec<_>>().into();
    let keyed =
        (0..20_000).map(|number| json::json!({"key": format!("{number}"), "value": number}));
    let keyed: json::Value = keyed.collect::<Vec<_>>().into();
    let long = json::json!({"set": names, "items": keyed});
    for text in [
        "self.set == oldSelf.set && self.items == oldSelf.items",
        "(self.set + self.set).size() == 20000",
    ] {
        assert_eq!(transition(&schema, text, &long, &long), Ok(true), "{text}");
    }
}
