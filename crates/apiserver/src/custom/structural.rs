//! A structural schema: what of a custom object is kept, what is filled in, and what is right.

use std::collections::BTreeMap;

use machinery::{Object, Value, decode::Findings, json::Key};
use regex::Regex;

/// One node of a schema, read once when its definition is registered.
#[derive(Debug, Default)]
pub(crate) struct Schema {
    /// `object`, `array`, `string`, `integer`, `number`, `boolean`, or empty for anything.
    pub(crate) kind: String,
    pub(crate) nullable: bool,
    pub(crate) int_or_string: bool,
    pub(crate) keeps_unknown: bool,
    pub(crate) embedded: bool,
    pub(crate) properties: BTreeMap<String, Schema>,
    pub(crate) others: Others,
    pub(crate) items: Option<Box<Schema>>,
    pub(crate) default: Option<Value>,
    pub(crate) pattern: Option<Regex>,
    /// The keywords that only validate, as they were written.
    pub(crate) rules: Object,
    pub(crate) all_of: Vec<Schema>,
    pub(crate) any_of: Vec<Schema>,
    pub(crate) one_of: Vec<Schema>,
    pub(crate) not: Option<Box<Schema>>,
}

/// What an object may hold beside its named properties.
#[derive(Debug, Default)]
pub(crate) enum Others {
    #[default]
    None,
    Any,
    Of(Box<Schema>),
}

impl Schema {
    /// Reads `openAPIV3Schema`.
    pub(crate) fn read(value: &Value) -> Self {
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let flag = |key: &str| value[key].as_bool().unwrap_or(false);
        let list = |key: &str| -> Vec<Self> {
            value[key]
                .as_array()
                .into_iter()
                .flatten()
                .map(Self::read)
                .collect()
        };
        let properties = value["properties"].as_object().into_iter().flatten();
        let properties = properties.map(|(name, schema)| (name.to_string(), Self::read(schema)));
        Self {
            kind: text("type"),
            nullable: flag("nullable"),
            int_or_string: flag("x-kubernetes-int-or-string"),
            keeps_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            properties: properties.collect(),
            others: match &value["additionalProperties"] {
                Value::Bool(true) => Others::Any,
                Value::Object(_) => {
                    Others::Of(Box::new(Self::read(&value["additionalProperties"])))
                }
                _ => Others::None,
            },
            items: value.get("items").map(|items| Box::new(Self::read(items))),
            default: value.get("default").cloned(),
            // A pattern of another dialect that cannot be read is told to nobody, and matches.
            pattern: value["pattern"]
                .as_str()
                .and_then(|pattern| Regex::new(pattern).ok()),
            rules: value.as_object().cloned().unwrap_or_default(),
            all_of: list("allOf"),
            any_of: list("anyOf"),
            one_of: list("oneOf"),
            not: value.get("not").map(|not| Box::new(Self::read(not))),
        }
    }

    /// Drops fields that the schema does not know, and notes them.
    pub(crate) fn prune(&self, object: &mut Object, findings: &mut Findings) {
        self.prune_object(object, true, "", findings);
    }

    fn prune_object(&self, object: &mut Object, whole: bool, path: &str, findings: &mut Findings) {
        let own = |key: &str| whole && matches!(key, "apiVersion" | "kind" | "metadata");
        let unknown: Vec<Key> = object
            .keys()
            .filter(|key| !own(key) && !self.properties.contains_key(key.as_str()))
            .filter(|_| matches!(self.others, Others::None) && !self.keeps_unknown)
            .cloned()
            .collect();
        for key in unknown {
            object.shift_remove(&key);
            findings.unknown(&below(path, &key));
        }
        if let Some(metadata) = object.get_mut("metadata").filter(|_| self.embedded) {
            settle_metadata(metadata, &below(path, "metadata"), findings);
        }
        for (key, value) in object.iter_mut().filter(|(key, _)| !own(key)) {
            match (self.properties.get(key.as_str()), &self.others) {
                (Some(schema), _) => schema.prune_value(value, &below(path, key), findings),
                (None, Others::Of(schema)) => {
                    schema.prune_value(value, &below(path, key), findings)
                }
                (None, _) => {}
            }
        }
    }

    pub(super) fn prune_value(&self, value: &mut Value, path: &str, findings: &mut Findings) {
        match value {
            Value::Object(object) if self.kind == "object" || !self.properties.is_empty() => {
                self.prune_object(object, self.embedded, path, findings);
            }
            Value::Array(items) => {
                let Some(schema) = &self.items else { return };
                for (index, item) in items.iter_mut().enumerate() {
                    schema.prune_value(item, &format!("{path}[{index}]"), findings);
                }
            }
            _ => {}
        }
    }

    /// Drops nulls where the schema allows none and has nothing to put there.
    pub(crate) fn drop_nulls(&self, object: &mut Object) {
        object.retain(|name, value| {
            let Some(schema) = self.below(name) else {
                return true;
            };
            if value.is_null() && !schema.nullable && schema.default.is_none() {
                return false;
            }
            schema.drop_nulls_of(value);
            true
        });
    }

    fn drop_nulls_of(&self, value: &mut Value) {
        match value {
            Value::Object(object) => self.drop_nulls(object),
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    items.iter_mut().for_each(|item| schema.drop_nulls_of(item));
                }
            }
            _ => {}
        }
    }

    /// What is known about a field.
    fn below(&self, name: &str) -> Option<&Self> {
        match (self.properties.get(name), &self.others) {
            (Some(schema), _) => Some(schema),
            (None, Others::Of(schema)) => Some(schema),
            (None, _) => None,
        }
    }

    /// Fills in what was left out.
    pub(crate) fn fill(&self, object: &mut Object) {
        for (name, schema) in &self.properties {
            let missing = match object.get(name) {
                None => true,
                Some(Value::Null) => !schema.nullable,
                Some(_) => false,
            };
            if let (true, Some(default)) = (missing, &schema.default) {
                object.insert(Key::new(name), default.clone());
            }
        }
        for (key, value) in object.iter_mut() {
            match (self.properties.get(key.as_str()), &self.others) {
                (Some(schema), _) => schema.fill_value(value),
                (None, Others::Of(schema)) => schema.fill_value(value),
                (None, _) => {}
            }
        }
    }

    fn fill_value(&self, value: &mut Value) {
        match value {
            Value::Object(object) => self.fill(object),
            Value::Array(items) => {
                for item in items {
                    if let Some(schema) = &self.items {
                        schema.fill_value(item);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Metadata of an object within another is that of all objects; what is none stays for validation.
fn settle_metadata(metadata: &mut Value, path: &str, findings: &mut Findings) {
    let Some(schema) = machinery::schema::lookup("meta/v1.ObjectMeta") else {
        return;
    };
    let mut found = Findings::default();
    if let Ok(mut settled) = machinery::normalise::object(schema, metadata.clone(), &mut found) {
        settled.retain(|_, value| !value.is_null());
        *metadata = Value::Object(settled);
        let names = found.sentences().iter().filter_map(|sentence| {
            let name = sentence.strip_prefix("unknown field \"")?;
            name.strip_suffix('"')
        });
        for name in names {
            findings.unknown(&below(path, name));
        }
    }
}

fn below(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
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
        schema().prune(&mut object, &mut findings);
        let expected = json!({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "n"},
            "spec": {"size": 1, "parts": [{"name": "a"}], "free": {"any": 1}, "map": {"k": "v"}}});
        assert_eq!(Value::Object(object), expected);
        let mut sentences = findings.sentences().to_vec();
        sentences.sort();
        assert_eq!(
            sentences,
            [
                "unknown field \"other\"",
                "unknown field \"spec.junk\"",
                "unknown field \"spec.parts[0].junk\""
            ]
        );
    }

    #[test]
    fn nulls_go_where_nothing_may_be_null_and_nothing_stands_in_for_them() {
        let schema = Schema::read(&json!({"type": "object", "properties": {
            "plain": {"type": "string"}, "free": {"type": "string", "nullable": true},
            "filled": {"type": "string", "default": "x"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "string"}}}}));
        let mut object = json!({"plain": null, "free": null, "filled": null, "unknown": null,
            "list": [{"a": null}], "map": {"k": null}})
        .as_object()
        .unwrap()
        .clone();
        schema.drop_nulls(&mut object);
        let left = json!({"free": null, "filled": null, "unknown": null, "list": [{}], "map": {}});
        assert_eq!(Value::Object(object), left);
    }

    #[test]
    fn metadata_of_an_embedded_object_is_that_of_all_objects() {
        let schema = Schema::read(&json!({"type": "object", "properties": {"pod": {
            "type": "object", "x-kubernetes-embedded-resource": true,
            "x-kubernetes-preserve-unknown-fields": true}}}));
        let mut object = json!({"pod": {"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "labels": {}, "odd": 1}, "spec": {}}})
        .as_object()
        .unwrap()
        .clone();
        let mut findings = Findings::default();
        schema.prune(&mut object, &mut findings);
        assert_eq!(object["pod"]["metadata"], json!({"name": "p"}));
        assert_eq!(findings.sentences(), ["unknown field \"pod.metadata.odd\""]);
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
}
