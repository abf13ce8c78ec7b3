//! A kubeconfig as upstream's types serialize it: known fields only, in the order of their declaration, empty ones
//! left out unless the type always has them.

use serde_json::{Map, Value, json};

use crate::json::{is_empty, list, sorted, str_of};

/// What a field has if it is empty.
#[derive(Clone, Copy)]
enum Absent {
    Omitted,
    Text,
    Null,
    False,
}

/// The content of a field.
#[derive(Clone, Copy)]
enum Shape {
    /// Any value; keys of maps are sorted.
    Plain,
    Struct(&'static [Field]),
    List(&'static [Field]),
    /// Structs with a name, sorted by it.
    Named(&'static [Field]),
}

type Field = (&'static str, Absent, Shape);

const fn text(name: &'static str) -> Field {
    (name, Absent::Omitted, Shape::Plain)
}

const EXTENSION: &[Field] = &[
    ("name", Absent::Text, Shape::Plain),
    ("extension", Absent::Null, Shape::Plain),
];
const EXTENSIONS: Field = ("extensions", Absent::Omitted, Shape::Named(EXTENSION));

const CLUSTER: &[Field] = &[
    ("server", Absent::Text, Shape::Plain),
    text("tls-server-name"),
    text("insecure-skip-tls-verify"),
    text("certificate-authority"),
    text("certificate-authority-data"),
    text("proxy-url"),
    text("disable-compression"),
    EXTENSIONS,
];
const CONTEXT: &[Field] = &[
    ("cluster", Absent::Text, Shape::Plain),
    ("user", Absent::Text, Shape::Plain),
    text("namespace"),
    EXTENSIONS,
];
const USER: &[Field] = &[
    text("client-certificate"),
    text("client-certificate-data"),
    text("client-key"),
    text("client-key-data"),
    text("token"),
    text("tokenFile"),
    text("as"),
    text("as-uid"),
    text("as-groups"),
    text("as-user-extra"),
    text("username"),
    text("password"),
    (
        "auth-provider",
        Absent::Omitted,
        Shape::Struct(&[
            ("name", Absent::Text, Shape::Plain),
            ("config", Absent::Null, Shape::Plain),
        ]),
    ),
    ("exec", Absent::Omitted, Shape::Struct(EXEC)),
    EXTENSIONS,
];
const EXEC: &[Field] = &[
    ("command", Absent::Text, Shape::Plain),
    ("args", Absent::Null, Shape::Plain),
    ("env", Absent::Null, Shape::List(VARIABLE)),
    text("apiVersion"),
    text("installHint"),
    ("provideClusterInfo", Absent::False, Shape::Plain),
    text("interactiveMode"),
];
const VARIABLE: &[Field] = &[
    ("name", Absent::Text, Shape::Plain),
    ("value", Absent::Text, Shape::Plain),
];

const CONFIG: &[Field] = &[
    text("kind"),
    text("apiVersion"),
    (
        "preferences",
        Absent::Omitted,
        Shape::Struct(&[text("colors"), EXTENSIONS]),
    ),
    (
        "clusters",
        Absent::Null,
        Shape::Named(&[
            ("name", Absent::Text, Shape::Plain),
            ("cluster", Absent::Omitted, Shape::Struct(CLUSTER)),
        ]),
    ),
    (
        "users",
        Absent::Null,
        Shape::Named(&[
            ("name", Absent::Text, Shape::Plain),
            ("user", Absent::Omitted, Shape::Struct(USER)),
        ]),
    ),
    (
        "contexts",
        Absent::Null,
        Shape::Named(&[
            ("name", Absent::Text, Shape::Plain),
            ("context", Absent::Omitted, Shape::Struct(CONTEXT)),
        ]),
    ),
    ("current-context", Absent::Text, Shape::Plain),
    EXTENSIONS,
];

/// The whole kubeconfig.
pub(crate) fn typed(config: &Value) -> Value {
    let mut config = config.clone();
    config["kind"] = json!("Config");
    config["apiVersion"] = json!("v1");
    fields(CONFIG, &config)
}

fn fields(known: &[Field], value: &Value) -> Value {
    let mut out = Map::new();
    for (name, absent, shape) in known {
        let given = &value[*name];
        // Entries always have their content, and a list that is given stays.
        let is_content = matches!(*name, "cluster" | "user" | "context") && given.is_object();
        let is_list = matches!(*name, "args" | "env") && given.is_array();
        let content = match is_empty(given) && !is_content && !is_list {
            false => shaped(*shape, given),
            true => match absent {
                Absent::Omitted if is_entry(known, name) => shaped(*shape, &json!({})),
                Absent::Omitted => continue,
                Absent::Text => json!(""),
                Absent::Null => Value::Null,
                Absent::False => json!(false),
            },
        };
        if *name == "preferences" && is_empty(&content) {
            continue;
        }
        out.insert((*name).to_owned(), content);
    }
    Value::Object(out)
}

/// Whether a field is the content of an entry, which is there even if it is empty.
fn is_entry(known: &[Field], name: &str) -> bool {
    known.len() == 2 && matches!(name, "cluster" | "user" | "context")
}

fn shaped(shape: Shape, value: &Value) -> Value {
    match shape {
        Shape::Plain => sorted(value),
        Shape::Struct(known) => fields(known, value),
        Shape::List(known) => list(value).map(|one| fields(known, one)).collect(),
        Shape::Named(known) => {
            let mut entries: Vec<Value> = list(value).map(|one| fields(known, one)).collect();
            entries.sort_by_key(|entry| str_of(&entry["name"]).to_owned());
            Value::Array(entries)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_in_the_order_of_upstreams_types_and_empty_ones_as_it_writes_them() {
        let config = json!({
            "users": [
                {"name": "b", "user": {"exec": {"apiVersion": "v1", "command": "c", "env": []}, "unknown": 1}},
                {"name": "a", "user": {"tokenFile": "t", "token": ""}}],
            "clusters": [{"name": "c", "cluster": {"insecure-skip-tls-verify": false, "extensions": [
                {"extension": {"b": 1, "a": 2}, "name": "e"}]}}],
            "contexts": [{"name": "x", "context": {}}, {"name": "y"}],
            "preferences": {"colors": false},
        });
        assert_eq!(
            typed(&config).to_string(),
            r#"{"kind":"Config","apiVersion":"v1","clusters":[{"name":"c","cluster":{"server":"","extensions":[{"name":"e","extension":{"a":2,"b":1}}]}}],"users":[{"name":"a","user":{"tokenFile":"t"}},{"name":"b","user":{"exec":{"command":"c","args":null,"env":[],"apiVersion":"v1","provideClusterInfo":false}}}],"contexts":[{"name":"x","context":{"cluster":"","user":""}},{"name":"y","context":{"cluster":"","user":""}}],"current-context":""}"#
        );
    }
}
