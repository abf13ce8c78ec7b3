//! Ratcheting: correlates new values with old ones, and decides whether they are unchanged, as far
//! as the schema allows.

use std::{collections::HashMap, slice};

use machinery::Value;

use super::{
    structural::{ListType, Schema},
    view::View,
};

/// A value with its old value.
#[derive(Clone, Copy)]
pub(super) struct CorrelatedValue<'a> {
    schema: &'a Schema,
    new: View<'a>,
    old: View<'a>,
}

impl<'a> CorrelatedValue<'a> {
    pub(super) fn new(schema: &'a Schema, new: View<'a>, old: View<'a>) -> Self {
        Self { schema, new, old }
    }

    /// The new value.
    pub(super) fn new_value(&self) -> View<'a> {
        self.new
    }

    /// The old value.
    pub(super) fn old_value(&self) -> View<'a> {
        self.old
    }

    /// The same for a field, if both values have it and the schema declares it.
    pub(super) fn key(&self, name: &str) -> Option<Self> {
        let (View::Map(new), View::Map(old)) = (self.new, self.old) else {
            return None;
        };
        let (new, old) = (new.get(name)?, old.get(name)?);
        let schema = self.schema.field(name)?;
        Some(Self::new(schema, new.into(), old.into()))
    }

    /// The old items of a list. Only lists of type map can be correlated.
    pub(super) fn items(&self) -> Option<CorrelatedItems<'a>> {
        let (View::List(new), View::List(old)) = (self.new, self.old) else {
            return None;
        };
        let ListType::Map(keys) = &self.schema.list_type else {
            return None;
        };
        Some(CorrelatedItems {
            schema: self.schema.items.as_deref()?,
            keys,
            new,
            known: HashMap::new(),
            unread: old.iter(),
        })
    }

    /// Whether nothing has changed. Fields outside of the schema cannot be compared, so an object
    /// with such fields counts as changed; items of a map list may be reordered.
    pub(super) fn is_same(&self) -> bool {
        let same = |was: Option<Self>| was.is_some_and(|was| was.is_same());
        match (self.new, self.old) {
            (View::Null, View::Null) => true,
            (View::Bool(new), View::Bool(old)) => new == old,
            (View::Number(new), View::Number(old)) => new == old,
            (View::Text(new), View::Text(old)) => new == old,
            (View::Map(new), View::Map(old)) => {
                new.len() == old.len() && new.keys().all(|key| same(self.key(key)))
            }
            (View::List(new), View::List(old)) => match self.schema.list_type {
                ListType::Map(_) if new.len() == old.len() => {
                    let items = self.items();
                    items.is_some_and(|mut items| (0..new.len()).all(|i| same(items.get(i))))
                }
                ListType::Map(_) => false,
                _ => new == old,
            },
            _ => false,
        }
    }
}

/// The items of a list with their old ones: the first old item with the same keys.
pub(super) struct CorrelatedItems<'a> {
    schema: &'a Schema,
    keys: &'a [String],
    new: &'a [Value],
    /// Old items by their keys. The others are read when they are needed, so that a list in the same order needs only
    /// one of them for each item.
    known: HashMap<ItemKeys<'a>, &'a Value>,
    unread: slice::Iter<'a, Value>,
}

/// The values of an item's keys, or their defaults.
type ItemKeys<'a> = Vec<Option<&'a Value>>;

impl<'a> CorrelatedItems<'a> {
    /// The new item at this position with its old one.
    pub(super) fn get(&mut self, index: usize) -> Option<CorrelatedValue<'a>> {
        let new = self.new.get(index)?;
        let wanted = self.keys_of(new);
        let old = match self.known.get(&wanted) {
            Some(old) => *old,
            None => self.read_until(&wanted)?,
        };
        Some(CorrelatedValue::new(self.schema, new.into(), old.into()))
    }

    fn read_until(&mut self, wanted: &ItemKeys<'a>) -> Option<&'a Value> {
        while let Some(old) = self.unread.next() {
            if !old.is_object() {
                continue;
            }
            let keys = self.keys_of(old);
            let is_it = keys == *wanted;
            self.known.entry(keys).or_insert(old);
            if is_it {
                return Some(old);
            }
        }
        None
    }

    fn keys_of(&self, item: &'a Value) -> ItemKeys<'a> {
        let schema = self.schema;
        let value = |key: &'a String| {
            let default = || schema.properties.get(key)?.default.as_ref();
            item.get(key).or_else(default)
        };
        self.keys.iter().map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::{super::validate, *};

    /// The errors of an update of `spec`.
    fn wrong(spec: Value, old: Value, new: Value) -> Vec<String> {
        let schema = json!({"type": "object", "properties": {"spec": spec}});
        let schema = Schema::read(&schema);
        let object = |spec: Value| json!({"metadata": {"name": "x"}, "spec": spec});
        let (old, new) = (object(old), object(new));
        let (errors, _) = validate::update(
            &schema,
            None,
            None,
            new.as_object().unwrap(),
            old.as_object().unwrap(),
        );
        errors.iter().map(|error| error.path.to_string()).collect()
    }

    #[test]
    fn fields_that_were_wrong_before_may_stay_as_they_are() {
        let spec = || {
            json!({"type": "object", "required": ["must"], "properties": {
            "must": {"type": "string"},
            "small": {"type": "integer", "maximum": 3},
            "deep": {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}, "b": {"type": "integer", "maximum": 1}}},
            "map": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 2}}}})
        };
        let old = json!({"small": 9, "deep": {"b": 5}, "map": {"k": "long", "l": "ok"}});
        let mut new = old.clone();
        assert!(
            wrong(spec(), old.clone(), new.clone()).is_empty(),
            "nothing changed"
        );
        new["map"]["l"] = json!("no");
        assert_eq!(wrong(spec(), old.clone(), new.clone()), ["spec.must"]);
        new["must"] = json!("x");
        assert!(wrong(spec(), old.clone(), new.clone()).is_empty());
        new["map"]["k"] = json!("longer");
        assert_eq!(wrong(spec(), old.clone(), new.clone()), ["spec.map.k"]);
        new["map"] = old["map"].clone();
        new["deep"]["b"] = json!(6);
        assert_eq!(
            wrong(spec(), old.clone(), new.clone()),
            ["spec.deep.b", "spec.deep.a"]
        );
        new["deep"] = old["deep"].clone();
        new["small"] = json!(10);
        assert_eq!(wrong(spec(), old, new), ["spec.small"]);
    }

    #[test]
    fn items_are_found_again_by_their_keys_and_only_by_them() {
        let items = json!({"type": "object", "properties": {
            "n": {"type": "string"}, "v": {"type": "integer", "maximum": 1}}});
        let plain = json!({"type": "array", "items": items});
        let mut map = plain.clone();
        map["x-kubernetes-list-type"] = json!("map");
        map["x-kubernetes-list-map-keys"] = json!(["n"]);
        let old = json!([{"n": "a", "v": 5}, {"n": "b", "v": 0}]);
        let turned = json!([{"n": "b", "v": 1}, {"n": "a", "v": 5}]);
        assert!(wrong(map.clone(), old.clone(), turned.clone()).is_empty());
        assert_eq!(wrong(plain.clone(), old.clone(), turned), ["spec[1].v"]);
        assert!(
            wrong(plain, old.clone(), old.clone()).is_empty(),
            "the whole is the same"
        );
        let other = json!([{"n": "a", "v": 6}]);
        assert_eq!(wrong(map, old, other), ["spec[0].v"]);
    }

    #[test]
    fn items_of_a_long_list_are_found_in_any_order_and_the_first_of_the_same_keys_counts() {
        let field = |kind: &str| json!({"type": kind});
        let items = json!({"type": "object", "properties": {
            "n": field("integer"), "p": {"type": "string", "default": "x"},
            "v": {"type": "integer", "maximum": 1}}});
        let map = json!({"type": "array", "items": items, "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["n", "p"]});
        let item = |n: i32| json!({"n": n, "p": "y", "v": 5});
        let list = |numbers: &mut dyn Iterator<Item = i32>| -> Value {
            numbers.map(item).collect::<Vec<_>>().into()
        };
        let count = 50_000;
        let old = list(&mut (0..count));
        assert!(wrong(map.clone(), old.clone(), list(&mut (0..count).rev())).is_empty());
        let shifted = list(&mut (1..=count));
        assert_eq!(wrong(map.clone(), old, shifted), ["spec[49999].v"]);
        let twice = json!([{"n": 1, "p": "x", "v": 5}, {"n": 1, "v": 6}]);
        let new = |v: i32| json!([{"n": 1, "p": "x", "v": v}]);
        assert!(wrong(map.clone(), twice.clone(), new(5)).is_empty());
        assert_eq!(wrong(map, twice, new(6)), ["spec[0].v"]);
    }

    #[test]
    fn unknown_fields_always_count_as_changed() {
        let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "required": ["a"]});
        let old = json!({"b": 1});
        assert_eq!(wrong(open, old.clone(), old), ["spec.a"]);
    }

    #[test]
    fn duplicates_are_accepted_if_the_old_list_had_some() {
        let set = || json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
        let twice = json!(["a", "a"]);
        assert!(wrong(set(), twice.clone(), json!(["b", "b"])).is_empty());
        assert_eq!(wrong(set(), json!(["a"]), twice), ["spec[1]"]);
    }

    #[test]
    fn combinations_are_ratcheted_field_by_field() {
        let spec = json!({"type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "allOf": [{"properties": {"a": {"maxLength": 1}}, "required": ["b"]}]});
        let old = json!({"a": "long"});
        assert_eq!(
            wrong(spec.clone(), old.clone(), json!({"a": "long", "b": "x"})),
            Vec::<String>::new()
        );
        assert_eq!(
            wrong(spec, old, json!({"a": "longer", "b": "x"})),
            ["spec.a", "<nil>"]
        );
    }
}
