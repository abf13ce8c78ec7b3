//! Values of mutations as JSON. As upstream, apply configurations and JSON patches take different values: those of the
//! first have the types of the object's schema, those of the latter only need a form in JSON. Values may contain others
//! many times: conversions charge every node to the meter under way. Pure.

use base64::{Engine, engine::general_purpose::STANDARD};
use cel::{
    JSON_PATCH, Library, Meter, Value as Cel,
    value::{List, Map},
};
use machinery::{Object, Value, text::quote};

/// Larger whole numbers are text in a JSON patch.
const SAFE: u64 = (1 << 53) - 1;

/// A constructed object as an apply configuration. Fields take booleans, signed and floating-point numbers, text, parts of
/// other objects, constructed objects, and lists and maps; elements of lists and maps no lists and maps that expressions
/// made. The error is upstream's where it does not depend on the schema.
pub(super) fn configuration(value: &Cel<'_>) -> Result<Value, String> {
    field(value, "")
}

/// `path` is where the value is.
fn field(value: &Cel<'_>, path: &str) -> Result<Value, String> {
    charge(path.len())?;
    match value {
        Cel::Optional(Some(inner)) => field(inner, path),
        Cel::List(list @ (List::Owned(_) | List::Joined(_))) => {
            let items = list.iter().enumerate().map(|(at, item)| {
                let item = item.map_err(|error| error.message)?;
                if is_made(&item) {
                    return Err(untyped(
                        path,
                        &format!(
                            "element {at}: associative list with keys may not have non-map elements"
                        ),
                    ));
                }
                element(&item, &format!("{path}[{at}]"))
            });
            Ok(Value::Array(items.collect::<Result<_, _>>()?))
        }
        Cel::Map(map @ Map::Owned(made)) if made.object().is_none() => {
            let mut object = Object::new();
            for entry in map.iter() {
                let (key, value) = entry.map_err(|error| error.message)?;
                let Cel::String(key) = key else {
                    let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
                    let why = keyed(name, &key);
                    return Err(untyped(parent, &format!("expected map, got &{{{why}}}")));
                };
                let path = format!("{path}.{}", &*key);
                let value = match is_made(&value) {
                    true => {
                        return Err(untyped(&path, "expected any scalar, got a new list or map"));
                    }
                    false => element(&value, &path)?,
                };
                object.insert(key.to_string(), value);
            }
            Ok(Value::Object(object))
        }
        value => element(value, path),
    }
}

/// A value that is no list or map of the expression.
fn element(value: &Cel<'_>, path: &str) -> Result<Value, String> {
    let unfit = |shown: &str| untyped(path, &format!("expected any scalar, got &{{{shown}}}"));
    charge(path.len())?;
    match value {
        Cel::Bool(_) | Cel::Int(_) | Cel::Double(_) | Cel::String(_) => plain(value),
        Cel::List(List::Json { .. }) | Cel::Map(Map::Json { .. }) => plain(value),
        Cel::Type(name) => Ok(name.to_string().as_str().into()),
        Cel::Optional(None) => Ok(Value::Null),
        Cel::Optional(Some(inner)) => element(inner, path),
        Cel::Map(map @ Map::Owned(made)) if made.object().is_some() => {
            let mut object = Object::new();
            for entry in map.iter() {
                let (name, value) = entry.map_err(|error| error.message)?;
                let name = name.display();
                let value = field(&value, &format!("{path}.{name}"))?;
                object.insert(name, value);
            }
            Ok(Value::Object(object))
        }
        Cel::Null => Err(unfit("NULL_VALUE")),
        Cel::Uint(_) => Err(untyped(path, "expected numeric (int or float), got uint64")),
        other => Err(unfit(&other.display())),
    }
}

/// Whether the expression made this list or map.
fn is_made(value: &Cel<'_>) -> bool {
    match value {
        Cel::List(list) => matches!(list, List::Owned(_)),
        Cel::Map(Map::Owned(map)) => map.object().is_none(),
        _ => false,
    }
}

fn untyped(path: &str, why: &str) -> String {
    let path = if path.is_empty() { "." } else { path };
    format!("error applying patch: failed to convert patch object to typed object: {path}: {why}")
}

/// The error for a map of a constructed object's field with a key that is no text.
fn keyed(field: &str, key: &Cel<'_>) -> String {
    format!(
        "fail to convert field {}: map key {} is of type {}, not string",
        quote(field),
        quote(&key.display()),
        key.type_of()
    )
}

/// A value of a JSON patch.
pub(super) fn patch_value(value: &Cel<'_>) -> Result<Value, String> {
    charge(0)?;
    let unfit = |name: &str| {
        Err(format!(
            "type conversion error from '{name}' to '*structpb.Value'"
        ))
    };
    match value {
        Cel::Int(number) if number.unsigned_abs() > SAFE => Ok(number.to_string().as_str().into()),
        Cel::Uint(number) if *number > SAFE => Ok(number.to_string().as_str().into()),
        Cel::Bytes(bytes) => encoded(bytes),
        Cel::Type(_) => Err("type conversion not supported for 'type'".to_owned()),
        Cel::Optional(None) => Err("optional.none() dereference".to_owned()),
        Cel::Optional(Some(inner)) => patch_value(inner),
        Cel::Library(Library::Quantity(_)) => unfit("Quantity"),
        Cel::Library(Library::Url(_)) => unfit("URL"),
        Cel::Library(Library::Ip(_)) => unfit("IP"),
        Cel::Library(Library::Cidr(_)) => unfit("CIDR"),
        Cel::Library(Library::Semver(_)) => unfit("Semver"),
        Cel::List(list @ (List::Owned(_) | List::Joined(_))) => {
            let items = list
                .iter()
                .map(|item| patch_value(&item.map_err(|error| error.message)?));
            Ok(Value::Array(items.collect::<Result<_, _>>()?))
        }
        Cel::Map(map @ Map::Owned(made)) if made.object().is_none() => {
            let mut object = Object::new();
            for entry in map.iter() {
                let (key, value) = entry.map_err(|error| error.message)?;
                let Cel::String(key) = key else {
                    let found = key.type_of();
                    return Err(format!(
                        "unsupported type conversion from '{found}' to string"
                    ));
                };
                charge(key.len())?;
                object.insert(key.to_string(), patch_value(&value)?);
            }
            Ok(Value::Object(object))
        }
        Cel::Map(map @ Map::Owned(made)) => {
            match made.object().is_some_and(|name| **name == *JSON_PATCH) {
                true => Err("cannot convert to native type: *structpb.Value".to_owned()),
                // Also in lists and maps, where upstream panics.
                false => constructed(map, true),
            }
        }
        value => plain(value),
    }
}

/// A constructed object in a JSON patch. Its fields are not converted as values outside of one: they are what Go's type
/// for any JSON takes. `is_outer` unless a field contains it.
fn constructed(map: &Map<'_>, is_outer: bool) -> Result<Value, String> {
    let mut object = Object::new();
    for entry in map.iter() {
        let (name, value) = entry.map_err(|error| error.message)?;
        let name = name.display();
        charge(name.len())?;
        let value = constructed_field(&value, &name, is_outer)?;
        object.insert(name, value);
    }
    Ok(Value::Object(object))
}

fn constructed_field(value: &Cel<'_>, name: &str, is_outer: bool) -> Result<Value, String> {
    charge(0)?;
    match value {
        Cel::Optional(Some(inner)) => constructed_field(inner, name, is_outer),
        Cel::List(list @ (List::Owned(_) | List::Joined(_))) => constructed_items(list),
        Cel::Map(map @ Map::Owned(made)) if made.object().is_none() => {
            let mut object = Object::new();
            for entry in map.iter() {
                let (key, value) = entry.map_err(|error| error.message)?;
                let Cel::String(key) = key else {
                    return match is_outer {
                        true => Err(keyed(name, &key)),
                        false => invalid("*types.Err"),
                    };
                };
                charge(key.len())?;
                object.insert(key.to_string(), constructed_part(&value)?);
            }
            Ok(Value::Object(object))
        }
        value => constructed_part(value),
    }
}

fn constructed_items(list: &List<'_>) -> Result<Value, String> {
    let items = list
        .iter()
        .map(|item| constructed_part(&item.map_err(|error| error.message)?));
    Ok(Value::Array(items.collect::<Result<_, _>>()?))
}

/// A value that is no list or map of the expression, or one in another.
fn constructed_part(value: &Cel<'_>) -> Result<Value, String> {
    charge(0)?;
    match value {
        Cel::Null => invalid("structpb.NullValue"),
        Cel::Int(whole) if whole.unsigned_abs() > SAFE => Ok(rounded(*whole as f64)),
        Cel::Uint(whole) if *whole > SAFE => Ok(rounded(*whole as f64)),
        Cel::Bytes(bytes) => encoded(bytes),
        Cel::Duration(_) => invalid("time.Duration"),
        Cel::Timestamp(_) => invalid("time.Time"),
        Cel::Type(name) => Ok(name.to_string().as_str().into()),
        Cel::Optional(Some(inner)) => constructed_part(inner),
        Cel::Library(Library::Quantity(_)) => invalid("*resource.Quantity"),
        Cel::Library(Library::Url(_)) => invalid("*url.URL"),
        Cel::Library(Library::Ip(_)) => invalid("netip.Addr"),
        Cel::Library(Library::Cidr(_)) => invalid("netip.Prefix"),
        Cel::Library(Library::Semver(_)) => invalid("semver.Version"),
        Cel::Library(Library::Format(_)) => invalid("cel.Format"),
        Cel::List(list @ List::Joined(_)) => constructed_items(list),
        Cel::List(List::Owned(_)) => invalid("[]ref.Val"),
        Cel::Map(map @ Map::Owned(made)) => match made.object() {
            Some(name) if **name == *JSON_PATCH => invalid("*mutation.JSONPatchVal"),
            Some(_) => constructed(map, false),
            None => invalid("map[ref.Val]ref.Val"),
        },
        value => plain(value),
    }
}

/// The error for a value of a constructed object, by its type in Go.
fn invalid<T>(name: &str) -> Result<T, String> {
    Err(format!("proto: invalid type: {name}"))
}

/// A large whole number that lost its last digits.
fn rounded(number: f64) -> Value {
    let text = number.to_string();
    let whole = text.parse::<i64>().map(Value::from);
    whole.unwrap_or_else(|_| {
        text.parse::<u64>()
            .map_or_else(|_| number.into(), Value::from)
    })
}

fn encoded(bytes: &[u8]) -> Result<Value, String> {
    charge(bytes.len().saturating_mul(2))?;
    Ok(STANDARD.encode(bytes).as_str().into())
}

/// Counts a node and what belongs to it.
pub(super) fn charge(bytes: usize) -> Result<(), String> {
    Meter::memory(size_of::<Cel<'_>>() + bytes).map_err(|error| error.message)
}

fn plain(value: &Cel<'_>) -> Result<Value, String> {
    value.to_json().map_err(|error| error.message)
}

#[cfg(test)]
mod tests {
    use super::{
        super::expression::{Compiler, Output},
        super::variables::{BUDGET, Limits, Run},
        *,
    };
    use machinery::json::json;

    /// The result of an expression, converted.
    fn converted(
        text: &str,
        output: Output,
        convert: fn(&Cel<'_>) -> Result<Value, String>,
    ) -> Result<String, String> {
        let mut compiler = Compiler::new(false, true);
        let expression = compiler.compile(text, output, true);
        let variables = compiler.into_variables();
        let object = json!({"list": [{"a": 1}], "map": {"n": null}});
        let values = vec![Cel::from_json(&object, None).unwrap()];
        let mut run = Run::new(values, &variables, Limits::Full, BUDGET);
        let value = run.evaluate(&expression).unwrap()?;
        convert(&value).map(|json| json.to_string())
    }

    #[test]
    fn configurations_take_values_of_schemas() {
        let prefix = "error applying patch: failed to convert patch object to typed object: ";
        for (field, expected) in [
            ("1", Ok("1")),
            ("1.5", Ok("1.5")),
            ("'x'", Ok(r#""x""#)),
            ("true", Ok("true")),
            ("[1, 2]", Ok("[1,2]")),
            ("{'k': 'v'}", Ok(r#"{"k":"v"}"#)),
            ("[Object.a{b: [1]}]", Ok(r#"[{"b":[1]}]"#)),
            ("{'k': Object.a{b: {'c': 1}}}", Ok(r#"{"k":{"b":{"c":1}}}"#)),
            ("object.list", Ok(r#"[{"a":1}]"#)),
            ("object.list.map(x, x)", Ok(r#"[{"a":1}]"#)),
            ("object.map", Ok(r#"{"n":null}"#)),
            ("type(1)", Ok(r#""int""#)),
            ("optional.of('x')", Ok(r#""x""#)),
            ("null", Err(".a: expected any scalar, got &{NULL_VALUE}")),
            (
                "object.map.n",
                Err(".a: expected any scalar, got &{NULL_VALUE}"),
            ),
            ("5u", Err(".a: expected numeric (int or float), got uint64")),
            ("quantity('2')", Err(".a: expected any scalar, got &{2}")),
            (
                "{'k': quantity('2')}",
                Err(".a.k: expected any scalar, got &{2}"),
            ),
            (
                "duration('1h')",
                Err(".a: expected any scalar, got &{3600s}"),
            ),
            ("b'x'", Err(".a: expected any scalar, got &{x}")),
            ("ip('::1')", Err(".a: expected any scalar, got &{::1}")),
            (
                "[{'k': 1}]",
                Err(".a: element 0: associative list with keys may not have non-map elements"),
            ),
            (
                "[[1]]",
                Err(".a: element 0: associative list with keys may not have non-map elements"),
            ),
            (
                "{'k': {'l': 1}}",
                Err(".a.k: expected any scalar, got a new list or map"),
            ),
            (
                "{1: 'b'}",
                Err(
                    ".: expected map, got &{fail to convert field \"a\": map key \"1\" is of type int, not string}",
                ),
            ),
        ] {
            let text = format!("Object{{a: {field}}}");
            let found = converted(&text, Output::ApplyConfiguration, configuration);
            let expected = expected
                .map(|value| format!(r#"{{"a":{value}}}"#))
                .map_err(|why| format!("{prefix}{why}"));
            assert_eq!(found, expected, "{field}");
        }
    }

    #[test]
    fn constructed_objects_in_patches_take_what_any_json_takes() {
        for (field, expected) in [
            ("1", Ok("1")),
            ("5u", Ok("5")),
            ("9007199254740993", Ok("9007199254740992")),
            ("-1234567890123456789", Ok("-1234567890123456800")),
            ("9223372036854775807", Ok("9223372036854776000")),
            ("1.5", Ok("1.5")),
            ("'x'", Ok(r#""x""#)),
            ("b'abc'", Ok(r#""YWJj""#)),
            ("type(1)", Ok(r#""int""#)),
            ("optional.of('x')", Ok(r#""x""#)),
            ("optional.none()", Ok("null")),
            ("object.map", Ok(r#"{"n":null}"#)),
            (
                "[dyn(Object.a{b: [1]}), dyn(object.map)]",
                Ok(r#"[{"b":[1]},{"n":null}]"#),
            ),
            ("{'k': Object.a{b: b'x'}}", Ok(r#"{"k":{"b":"eA=="}}"#)),
            ("null", Err("structpb.NullValue")),
            ("object.map.n", Err("structpb.NullValue")),
            ("duration('1h')", Err("time.Duration")),
            ("[timestamp('2020-01-01T00:00:00Z')]", Err("time.Time")),
            ("quantity('1')", Err("*resource.Quantity")),
            ("{'k': quantity('1')}", Err("*resource.Quantity")),
            ("Object.a{b: quantity('1')}", Err("*resource.Quantity")),
            ("url('http://a')", Err("*url.URL")),
            ("ip('::1')", Err("netip.Addr")),
            ("cidr('::/1')", Err("netip.Prefix")),
            ("semver('1.2.3')", Err("semver.Version")),
            ("[[1]]", Err("[]ref.Val")),
            ("[{'k': 1}]", Err("map[ref.Val]ref.Val")),
            ("{'k': {'l': 1}}", Err("map[ref.Val]ref.Val")),
            ("Object.a{b: {1: 2}}", Err("*types.Err")),
            ("JSONPatch{}", Err("*mutation.JSONPatchVal")),
        ] {
            let text = format!("[JSONPatch{{value: Object{{a: {field}}}}}]");
            let found = converted(&text, Output::JsonPatch, first_value);
            let expected = expected
                .map(|value| format!(r#"{{"a":{value}}}"#))
                .map_err(|name| format!("proto: invalid type: {name}"));
            assert_eq!(found, expected, "{field}");
        }
        for (value, expected) in [
            (
                "Object{a: {1: 2}}",
                Err("fail to convert field \"a\": map key \"1\" is of type int, not string"),
            ),
            ("[Object.a{b: b'x'}]", Ok(r#"[{"b":"eA=="}]"#)),
            (
                "JSONPatch{}",
                Err("cannot convert to native type: *structpb.Value"),
            ),
        ] {
            let text = format!("[JSONPatch{{value: {value}}}]");
            let found = converted(&text, Output::JsonPatch, first_value);
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{text}");
        }
    }

    /// The value of the first operation of a patch.
    fn first_value(patch: &Cel<'_>) -> Result<Value, String> {
        let Cel::List(list) = patch else {
            panic!("{patch:?}");
        };
        let operation = list.iter().next().unwrap().unwrap();
        let value = operation.lookup(&Cel::text("value")).unwrap();
        patch_value(&value.unwrap())
    }

    #[test]
    fn patches_take_values_with_a_form_in_json() {
        for (text, expected) in [
            ("null", Ok("null")),
            ("5u", Ok("5")),
            ("9007199254740991", Ok("9007199254740991")),
            ("9007199254740992", Ok(r#""9007199254740992""#)),
            ("-9007199254740992", Ok(r#""-9007199254740992""#)),
            ("9007199254740992u", Ok(r#""9007199254740992""#)),
            ("b'abc'", Ok(r#""YWJj""#)),
            ("duration('1h')", Ok(r#""3600s""#)),
            (
                "[dyn([1]), dyn({'k': {'l': b'x'}})]",
                Ok(r#"[[1],{"k":{"l":"eA=="}}]"#),
            ),
            ("optional.of('x')", Ok(r#""x""#)),
            ("object.map", Ok(r#"{"n":null}"#)),
            ("optional.none()", Err("optional.none() dereference")),
            ("type(1)", Err("type conversion not supported for 'type'")),
            (
                "[quantity('1')]",
                Err("type conversion error from 'Quantity' to '*structpb.Value'"),
            ),
            (
                "url('http://a')",
                Err("type conversion error from 'URL' to '*structpb.Value'"),
            ),
            (
                "ip('::1')",
                Err("type conversion error from 'IP' to '*structpb.Value'"),
            ),
            (
                "{1: 2}",
                Err("unsupported type conversion from 'int' to string"),
            ),
        ] {
            let found = converted(text, Output::Anything, patch_value);
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{text}");
        }
    }
}
