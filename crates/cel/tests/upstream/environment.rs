//! The environment of the tables' expressions: `self` with a schema, `oldSelf` without a value,
//! `object` without a schema, and an `authorizer`.

use std::sync::Arc;

use cel::{
    Authorizer, Check, Decision, Decl, DeclKind, Env, Field, Library, ListSemantics, Type, Value,
};
use machinery::json;

/// The maximum length of a string without `maxLength`.
const UNBOUNDED: u64 = 3 * 1024 * 1024 - 2;

pub(crate) struct Environment {
    plain: Env,
    patches: Env,
    decl: Arc<Decl>,
    object: json::Value,
    authorizer: Arc<Check>,
}

impl Environment {
    pub(crate) fn new() -> Self {
        let decl = Arc::new(schema());
        let plain = Env::new()
            .declared("self", decl.clone())
            .sized_by(decl.clone())
            .declared_optional("oldSelf", decl.clone())
            .variable("object", Type::Dyn)
            .variable(
                "authorizer",
                Type::Struct("kubernetes.authorization.Authorizer".into()),
            );
        Self {
            patches: plain.clone().with_patches(),
            plain,
            decl,
            object: object(),
            authorizer: Arc::new(Check::authorizer(Arc::new(Echo))),
        }
    }

    pub(crate) fn env(&self, patches: bool) -> &Env {
        match patches {
            true => &self.patches,
            false => &self.plain,
        }
    }

    pub(crate) fn values(&self) -> [Value<'_>; 4] {
        let value =
            |decl| Value::from_json(&self.object, decl).expect("the object fits its schema");
        [
            value(Some(&*self.decl)),
            Value::Optional(None),
            value(None),
            Value::Library(Library::Check(self.authorizer.clone())),
        ]
    }
}

fn object() -> json::Value {
    json::json!({
        "apiVersion": "example.com/v1",
        "kind": "Thing",
        "metadata": {
            "name": "web",
            "namespace": "default",
            "labels": {"app": "web", "tier": "front"}
        },
        "s": "hello wörld",
        "name": "tacocat",
        "names": ["b", "a", "c"],
        "set": ["x", "y"],
        "ints": [3, 1, 2],
        "items": [{"key": "a", "value": 1, "more": ["p"]}, {"key": "b", "value": 2}],
        "m": {"app": "web", "tier": "front"},
        "mi": {"one": 1, "two": 2},
        "i": 7,
        "d": 2.5,
        "b": true,
        "ios": "80%",
        "bytes": "aGVsbG8=",
        "dur": "1h30m",
        "ts": "2026-11-16T12:34:56Z",
        "date": "2026-11-16",
        "nested": {"x": {"y": "deep"}},
        "x-y": 5,
        "in": "i",
        "nul": null,
        "e": "one",
        "free": {"k": "v", "other": 1}
    })
}

fn plain(kind: DeclKind) -> Decl {
    Decl::new(kind, u64::MAX)
}

/// A string of at most this many bytes; a character of a schema counts as four.
fn text(bytes: u64) -> Decl {
    Decl::new(DeclKind::String, bytes)
}

fn list(element: Decl, most: u64, semantics: ListSemantics) -> Decl {
    let element = Arc::new(element);
    Decl::new(DeclKind::List { element, semantics }, most)
}

fn map(value: Decl, most: u64) -> Decl {
    Decl::new(DeclKind::map(Arc::new(value)), most)
}

fn fields<const N: usize>(name: &str, fields: [(&str, Decl); N]) -> Decl {
    let fields = fields.map(|(json, decl)| {
        let escaped = cel::escape(json).expect("a name that expressions can use");
        let (json, decl) = (json.into(), Arc::new(decl));
        (escaped.into(), Field { json, decl })
    });
    plain(DeclKind::Object {
        name: name.into(),
        fields: fields.into(),
    })
}

fn schema() -> Decl {
    let atomic = || ListSemantics::Atomic;
    let item = fields(
        "selfType.items.@idx",
        [
            ("key", text(20)),
            ("value", plain(DeclKind::Int)),
            ("more", list(text(16), 3, atomic())),
        ],
    );
    let y = fields("selfType.nested.x", [("y", text(24))]);
    let metadata = [("name", text(UNBOUNDED)), ("generateName", text(UNBOUNDED))];
    fields(
        "selfType",
        [
            ("apiVersion", text(UNBOUNDED)),
            ("kind", text(UNBOUNDED)),
            ("metadata", fields("selfType.metadata", metadata)),
            ("s", text(80)),
            ("name", text(UNBOUNDED)),
            ("names", list(text(40), 5, atomic())),
            ("set", list(text(32), 4, ListSemantics::Set)),
            ("ints", list(plain(DeclKind::Int), UNBOUNDED / 2, atomic())),
            (
                "items",
                list(item, 6, ListSemantics::Map(vec!["key".into()])),
            ),
            ("m", map(text(48), 10)),
            ("mi", map(plain(DeclKind::Int), UNBOUNDED / 7)),
            ("i", plain(DeclKind::Int)),
            ("d", plain(DeclKind::Double)),
            ("b", plain(DeclKind::Bool)),
            ("ios", Decl::new(DeclKind::Dyn, UNBOUNDED)),
            ("bytes", Decl::new(DeclKind::Bytes, 16)),
            ("dur", Decl::new(DeclKind::Duration, 32)),
            ("ts", Decl::new(DeclKind::Timestamp, 32)),
            ("date", Decl::new(DeclKind::Timestamp, 12)),
            ("nested", fields("selfType.nested", [("x", y)])),
            ("x-y", plain(DeclKind::Int)),
            ("in", text(12)),
            ("nul", text(28)),
            ("e", text(5)),
            ("unset", text(36)),
            ("free", fields("selfType.free", [("k", text(8))])),
        ],
    )
}

/// Allows `get`, except for some names; the reason is the check itself.
#[derive(Debug)]
struct Echo;

impl Authorizer for Echo {
    fn decide(&self, check: &Check, verb: &str) -> Decision {
        let user = match &check.service_account {
            Some((namespace, name)) => format!("system:serviceaccount:{namespace}:{name}"),
            None => "alice".to_owned(),
        };
        let given = |selector: &Option<String>| selector.as_ref().is_some_and(|s| !s.is_empty());
        let asked = match check.is_path() {
            true => format!("{user} {verb} path={}", check.path),
            false => format!(
                "{user} {verb} {}/*/{} ns={} name={} sub={} f={} l={}",
                check.group,
                check.resource,
                check.namespace,
                check.name,
                check.subresource,
                given(&check.field_selector),
                given(&check.label_selector)
            ),
        };
        let is = |word: &str| check.name == word || check.path == format!("/{word}");
        Decision {
            allowed: verb == "get" && !is("broken") && !is("denied"),
            reason: asked,
            error: is("broken").then(|| "it is broken".to_owned()),
        }
    }
}
