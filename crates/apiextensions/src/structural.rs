//! Structural schemas: pruning, defaulting, and the limits for validation.

use std::collections::BTreeMap;

use machinery::{Object, Value, decode::Findings, field::Path, json::Key, pattern::Pattern};

use super::{embedded, formats};

/// The most bytes of defaults that are set in one object: ten times what can be stored.
const MAX_DEFAULTED: usize = 16 << 20;

/// One node of a schema, parsed once.
#[derive(Debug, Default)]
pub(crate) struct Schema {
    /// `object`, `array`, `string`, `integer`, `number`, `boolean`; empty for any type.
    pub(crate) types: Vec<&'static str>,
    pub(crate) nullable: bool,
    pub(crate) keeps_unknown: bool,
    pub(crate) embedded: bool,
    pub(crate) properties: BTreeMap<String, Schema>,
    pub(crate) others: AdditionalProperties,
    pub(crate) items: Option<Box<Schema>>,
    pub(crate) default: Option<Value>,
    pub(crate) limits: Limits,
    pub(crate) list_type: ListType,
    pub(crate) all_of: Vec<Schema>,
    pub(crate) any_of: Vec<Schema>,
    pub(crate) one_of: Vec<Schema>,
    pub(crate) not: Option<Box<Schema>>,
}

/// The value validations.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// Empty if it does not apply to the type.
    pub(crate) format: String,
    pub(crate) pattern: Option<Pattern>,
    pub(crate) allowed: Vec<Value>,
    pub(crate) required: Vec<String>,
    pub(crate) minimum: Option<f64>,
    pub(crate) maximum: Option<f64>,
    pub(crate) exclusive_minimum: bool,
    pub(crate) exclusive_maximum: bool,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) length: Range,
    pub(crate) items: Range,
    pub(crate) properties: Range,
}

/// The minimum and maximum count.
#[derive(Debug, Default)]
pub(crate) struct Range {
    pub(crate) least: Option<i64>,
    pub(crate) most: Option<i64>,
}

/// What an object may hold beside its properties.
#[derive(Debug, Default)]
pub(crate) enum AdditionalProperties {
    #[default]
    Unsaid,
    Never,
    Any,
    Of(Box<Schema>),
}

impl AdditionalProperties {
    fn schema(&self) -> Option<&Schema> {
        match self {
            Self::Of(schema) => Some(schema),
            _ => None,
        }
    }
}

/// The list type.
#[derive(Debug, Default, PartialEq)]
pub(crate) enum ListType {
    #[default]
    Atomic,
    Set,
    /// Items are identified by these fields.
    Map(Vec<String>),
}

impl Schema {
    /// Parses `openAPIV3Schema`.
    pub(crate) fn read(value: &Value) -> Self {
        let flag = |key: &str| value[key].as_bool().unwrap_or(false);
        let list = |key: &str| -> Vec<Self> {
            let parts = value[key].as_array().into_iter().flatten();
            parts.map(Self::read).collect()
        };
        let properties = value["properties"].as_object().into_iter().flatten();
        let properties = properties.map(|(name, schema)| (name.to_string(), Self::read(schema)));
        let types = types(value);
        Self {
            limits: Limits::read(value, &types),
            types,
            nullable: flag("nullable"),
            keeps_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            properties: properties.collect(),
            others: match &value["additionalProperties"] {
                Value::Bool(true) => AdditionalProperties::Any,
                Value::Bool(false) => AdditionalProperties::Never,
                schema @ Value::Object(_) => AdditionalProperties::Of(Box::new(Self::read(schema))),
                _ => AdditionalProperties::Unsaid,
            },
            items: child(value, "items"),
            default: value.get("default").filter(|d| !d.is_null()).cloned(),
            list_type: match value["x-kubernetes-list-type"].as_str() {
                Some("set") => ListType::Set,
                Some("map") => ListType::Map(texts(&value["x-kubernetes-list-map-keys"])),
                _ => ListType::Atomic,
            },
            all_of: list("allOf"),
            any_of: list("anyOf"),
            one_of: list("oneOf"),
            not: child(value, "not"),
        }
    }

    /// The schema of a field: of its property or of additionalProperties.
    pub(crate) fn field(&self, name: &str) -> Option<&Self> {
        self.properties.get(name).or_else(|| self.others.schema())
    }

    /// Prunes an object: drops and records unknown fields, drops nulls of non-nullable fields, and
    /// decodes embedded objects.
    pub(crate) fn shape(&self, object: &mut Object, findings: &mut Findings) -> Result<(), String> {
        self.shape_but_nulls(object, findings)?;
        self.prune_nulls(object);
        Ok(())
    }

    /// As [`Schema::shape`], but keeps nulls.
    pub(crate) fn shape_but_nulls(
        &self,
        object: &mut Object,
        findings: &mut Findings,
    ) -> Result<(), String> {
        let mut unknown = Vec::new();
        self.prune_object(object, true, "", &mut unknown);
        unknown.sort_unstable();
        for path in unknown {
            findings.unknown(&path);
        }
        let read = embedded::read(self, object, &Path::new(""), findings);
        read.map_err(|error| error.to_string())
    }

    fn prune_object(&self, object: &mut Object, whole: bool, path: &str, unknown: &mut Unknown) {
        let own = |key: &str| whole && matches!(key, "apiVersion" | "kind" | "metadata");
        let lost = matches!(self.others, AdditionalProperties::Unsaid) && !self.keeps_unknown;
        object.retain(|key, value| {
            if own(key) {
                return true;
            }
            let at = below(path, key);
            match (self.properties.get(key.as_str()), &self.others) {
                (Some(schema), _) => schema.prune(value, &at, unknown),
                (None, AdditionalProperties::Of(schema)) => schema.prune(value, &at, unknown),
                (None, AdditionalProperties::Any | AdditionalProperties::Never)
                    if !self.keeps_unknown =>
                {
                    prune_all(value, &at, unknown);
                }
                (None, _) if lost => {
                    unknown.push(at);
                    return false;
                }
                (None, _) => {}
            }
            true
        });
    }

    fn prune(&self, value: &mut Value, path: &str, unknown: &mut Unknown) {
        match value {
            Value::Object(object) => self.prune_object(object, self.embedded, path, unknown),
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    let at = format!("{path}[{index}]");
                    match &self.items {
                        Some(schema) => schema.prune(item, &at, unknown),
                        None if self.keeps_unknown => {}
                        None => prune_all(item, &at, unknown),
                    }
                }
            }
            _ => {}
        }
    }

    /// Whether a value has no unknown fields.
    pub(super) fn knows_all(&self, value: &Value) -> bool {
        let mut unknown = Vec::new();
        self.prune(&mut value.clone(), "", &mut unknown);
        unknown.is_empty()
    }

    /// Drops nulls of non-nullable fields without a default.
    pub(super) fn prune_nulls(&self, object: &mut Object) {
        object.retain(|key, value| {
            let Some(schema) = self.field(key) else {
                return true;
            };
            schema.prune_nulls_below(value);
            !value.is_null() || schema.nullable || schema.default.is_some()
        });
    }

    fn prune_nulls_below(&self, value: &mut Value) {
        match value {
            Value::Object(object) => self.prune_nulls(object),
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    let items = items.iter_mut();
                    items.for_each(|item| schema.prune_nulls_below(item));
                }
            }
            _ => {}
        }
    }

    /// Sets defaults, of at most `MAX_DEFAULTED` bytes: a small list of empty items must not grow to
    /// gigabytes. An object with more of them is too large to be stored.
    pub(crate) fn fill(&self, object: &mut Object) {
        let mut left = MAX_DEFAULTED;
        self.fill_object(object, &mut left);
    }

    fn fill_object(&self, object: &mut Object, left: &mut usize) {
        for (name, schema) in &self.properties {
            if schema.default.is_some()
                && (!object.contains_key(name) || schema.lacks(&object[name.as_str()]))
                && let Some(default) = schema.copy_default(left)
            {
                object.insert(Key::new(name), default);
            }
        }
        for (key, value) in object.iter_mut() {
            match (self.properties.get(key.as_str()), self.others.schema()) {
                (Some(schema), _) => schema.fill_below(value, left),
                (None, Some(schema)) => schema.fill_value(value, left),
                (None, None) => {}
            }
        }
    }

    /// The default, unless it is larger than what is left.
    fn copy_default(&self, left: &mut usize) -> Option<Value> {
        let default = self.default.as_ref()?;
        *left = left.checked_sub(size(default))?;
        Some(default.clone())
    }

    /// Whether a value is null and not nullable.
    fn lacks(&self, value: &Value) -> bool {
        value.is_null() && !self.nullable
    }

    fn fill_value(&self, value: &mut Value, left: &mut usize) {
        if self.lacks(value) {
            *value = self.copy_default(left).unwrap_or_default();
        }
        self.fill_below(value, left);
    }

    fn fill_below(&self, value: &mut Value, left: &mut usize) {
        match value {
            Value::Object(object) => self.fill_object(object, left),
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    let items = items.iter_mut();
                    items.for_each(|item| schema.fill_value(item, left));
                }
            }
            _ => {}
        }
    }
}

impl Limits {
    fn read(value: &Value, types: &[&str]) -> Self {
        let number = |key: &str| value[key].as_f64();
        let flag = |key: &str| value[key].as_bool().unwrap_or(false);
        let range = |least: &str, most: &str| Range {
            least: value[least].as_i64(),
            most: value[most].as_i64(),
        };
        let format = value["format"].as_str().unwrap_or_default();
        Self {
            format: match types {
                [] | ["string"] | [_, _] if formats::is_known(format) => format.to_owned(),
                ["integer"] if matches!(format, "int32" | "int64") => format.to_owned(),
                ["number"] if matches!(format, "float" | "double") => format.to_owned(),
                _ => String::new(),
            },
            pattern: value["pattern"]
                .as_str()
                .filter(|p| !p.is_empty())
                .map(Pattern::stored),
            allowed: value["enum"].as_array().cloned().unwrap_or_default(),
            required: texts(&value["required"]),
            minimum: number("minimum"),
            maximum: number("maximum"),
            exclusive_minimum: flag("exclusiveMinimum"),
            exclusive_maximum: flag("exclusiveMaximum"),
            multiple_of: number("multipleOf"),
            length: range("minLength", "maxLength"),
            items: range("minItems", "maxItems"),
            properties: range("minProperties", "maxProperties"),
        }
    }
}

/// The paths of unknown fields.
type Unknown = Vec<String>;

/// Nothing is declared: drops all fields of the objects in a value.
fn prune_all(value: &mut Value, path: &str, unknown: &mut Unknown) {
    match value {
        Value::Object(object) => {
            unknown.extend(object.keys().map(|key| below(path, key)));
            object.clear();
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                prune_all(item, &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

fn types(value: &Value) -> Vec<&'static str> {
    if value["x-kubernetes-int-or-string"] == true {
        return vec!["integer", "string"];
    }
    let known = ["object", "array", "string", "integer", "number", "boolean"];
    let given = value["type"].as_str().unwrap_or_default();
    known.into_iter().filter(|known| *known == given).collect()
}

fn child(value: &Value, key: &str) -> Option<Box<Schema>> {
    let below = value.get(key).filter(|below| below.is_object())?;
    Some(Box::new(Schema::read(below)))
}

fn texts(value: &Value) -> Vec<String> {
    let texts = value.as_array().into_iter().flatten();
    texts.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn below(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// The approximate size of a default in memory.
fn size(value: &Value) -> usize {
    const EACH: usize = 32;
    EACH + match value {
        Value::Object(map) => map.iter().map(|(key, one)| key.len() + size(one)).sum(),
        Value::Array(list) => list.iter().map(size).sum(),
        Value::String(text) => text.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    fn schema() -> Schema {
        Schema::read(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "size": {"type": "integer", "default": 3},
            "parts": {"type": "array", "items": {"type": "object", "properties": {
                "name": {"type": "string"}, "kind": {"type": "string", "default": "x"}}}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
        }}}}))
    }

    #[test]
    fn unknown_fields_are_dropped_and_named() {
        let mut object = json!({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "n"},
            "spec": {"size": 1, "junk": 2, "parts": [{"name": "a", "junk": 1}],
                "free": {"any": 1}, "map": {"k": "v"}}, "other": 1})
        .as_object()
        .unwrap()
        .clone();
        let mut findings = Findings::default();
        schema().shape(&mut object, &mut findings).unwrap();
        let expected = json!({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "n"},
            "spec": {"size": 1, "parts": [{"name": "a"}], "free": {"any": 1}, "map": {"k": "v"}}});
        assert_eq!(Value::Object(object), expected);
        assert_eq!(
            findings.sentences(),
            [
                "unknown field \"other\"",
                "unknown field \"spec.junk\"",
                "unknown field \"spec.parts[0].junk\""
            ]
        );
    }

    #[test]
    fn defaults_fill_gaps_and_stay_the_second_time() {
        let mut object = json!({"spec": {"parts": [{"name": "a"}]}})
            .as_object()
            .unwrap()
            .clone();
        schema().fill(&mut object);
        let once = object.clone();
        assert_eq!(
            Value::Object(once.clone()),
            json!({"spec": {"parts": [{"name": "a", "kind": "x"}], "size": 3}})
        );
        schema().fill(&mut object);
        assert_eq!(object, once);
    }

    #[test]
    fn many_items_do_not_multiply_a_large_default() {
        let large = "x".repeat(100_000);
        let schema = Schema::read(&json!({"type": "object", "properties": {"list": {
            "type": "array", "items": {"type": "object", "properties": {
                "a": {"type": "string", "default": large}}}}}}));
        let mut object = Object::new();
        object.insert("list".to_owned(), Value::Array(vec![json!({}); 1_000]));
        schema.fill(&mut object);
        let items = object["list"].as_array().unwrap();
        let filled = items.iter().filter(|item| item["a"].is_string()).count();
        assert_eq!(filled, MAX_DEFAULTED / 100_032);
        assert!(filled > 15, "more than an object may have is set");
    }

    /// A spec after pruning and defaulting, and its unknown fields.
    fn kept(spec: Value, given: Value) -> (Value, Vec<String>) {
        let schema = Schema::read(&json!({"type": "object", "properties": {"spec": spec}}));
        let mut object = Object::from_iter([("spec".to_owned(), given)]);
        let mut findings = Findings::default();
        schema.shape(&mut object, &mut findings).unwrap();
        schema.fill(&mut object);
        (object["spec"].take(), findings.sentences().to_vec())
    }

    #[test]
    fn nulls_go_where_nothing_may_be_null() {
        let spec = json!({"type": "object", "properties": {
            "plain": {"type": "string"}, "nullable": {"type": "string", "nullable": true},
            "default": {"type": "string", "default": "x"},
            "both": {"type": "string", "nullable": true, "default": "x"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
            "filled": {"type": "array", "items": {"type": "string", "default": "y"}},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
            "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
        let given = json!({"plain": null, "nullable": null, "default": null, "both": null,
            "list": [null, {"a": null}], "filled": [null, "z"], "map": {"k": null, "l": "v"}, "open": {"k": null}});
        let expected = json!({"nullable": null, "default": "x", "both": null, "list": [null, {}],
            "filled": ["y", "z"], "map": {"l": "v"}, "open": {"k": null}});
        assert_eq!(kept(spec, given).0, expected);
    }

    #[test]
    fn additional_properties_true_keeps_fields_but_prunes_their_contents() {
        let unknown = |paths: &[&str]| -> Vec<String> {
            let sentence = |path: &&str| format!("unknown field \"spec.{path}\"");
            paths.iter().map(sentence).collect()
        };
        let any = json!({"type": "object", "additionalProperties": true});
        let given = json!({"a": {"b": 1}, "c": [{"d": 1}], "e": 1});
        assert_eq!(
            kept(any.clone(), given.clone()),
            (
                json!({"a": {}, "c": [{}], "e": 1}),
                unknown(&["a.b", "c[0].d"])
            )
        );
        let text = json!({"type": "string"});
        assert_eq!(
            kept(text, json!({"z": 1, "a": 1})),
            (json!({}), unknown(&["a", "z"])),
            "a value of the wrong type is pruned all the same"
        );
        let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"a": {"type": "object", "properties": {"b": {"type": "integer"}}}}});
        let given = json!({"a": {"b": 1, "z": 2}, "other": {"x": [{"y": 1}]}});
        let expected = json!({"a": {"b": 1}, "other": {"x": [{"y": 1}]}});
        assert_eq!(kept(open, given), (expected, unknown(&["a.z"])));
    }
}
