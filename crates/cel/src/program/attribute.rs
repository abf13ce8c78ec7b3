//! Attributes: a variable or another value, and its qualifiers.
//!
//! Every applied qualifier costs one, also if it fails, and the attribute itself costs one more.
//! After an optional qualifier, a qualifier that finds nothing costs nothing.

use machinery::json;

use super::{
    evaluate::Evaluator,
    node::{Attribute, Base, Key, Qualifier},
};
use crate::{
    cost::runtime,
    value::{Error, Map, Result, Value},
};

impl<'a> Evaluator<'_, 'a> {
    pub(super) fn attribute(&mut self, attribute: &'a Attribute) -> Result<Value<'a>> {
        let result = self.resolve(attribute);
        if let Err(error) = &result
            && error.fatal
        {
            return result;
        }
        match (&attribute.base, attribute.test) {
            // A conditional costs the sum of its parts, and a test is one cheaper than an
            // attribute.
            (Base::Conditional(_), true) => self.cost = self.cost.saturating_sub(1),
            (Base::Conditional(_), false) | (_, true) => {}
            (_, false) => self.charge(runtime::SELECT)?,
        }
        match result {
            Ok(Value::Optional(found)) if attribute.test => Ok(Value::Bool(found.is_some())),
            result => result,
        }
    }

    /// The value of an attribute, without the cost of the attribute itself.
    pub(super) fn resolve(&mut self, attribute: &'a Attribute) -> Result<Value<'a>> {
        let mut optional = false;
        let base = match &attribute.base {
            Base::Variable { slot, name } => match self.variables.get(*slot) {
                Some(value) => value.clone(),
                None => return Err(Error::new(format!("no such attribute(s): {name}"))),
            },
            Base::Local(slot) => self.local(*slot)?,
            Base::Operand(node) => self.node(node)?,
            Base::Conditional(parts) => match self.node(&parts.0)? {
                Value::Bool(true) => self.resolve(&parts.1)?,
                Value::Bool(false) => self.resolve(&parts.2)?,
                _ => return Err(Error::no_such_overload()),
            },
            Base::Lazy {
                field,
                optional: is_optional,
                test,
            } => {
                optional = *is_optional;
                self.charge(runtime::SELECT)?;
                let value = self.lazy_field(field)?;
                if *test { Value::Bool(true) } else { value }
            }
        };
        match base {
            Value::Map(Map::Json { map, decl: None }) if !optional => {
                self.apply_to_json(map, attribute)
            }
            base => self.apply(base, optional, attribute, 0),
        }
    }

    /// The same for an object without a schema: constant names are followed without a value for each of them.
    fn apply_to_json(
        &mut self,
        object: &'a json::Map,
        attribute: &'a Attribute,
    ) -> Result<Value<'a>> {
        let mut map = object;
        let qualifiers = &attribute.qualifiers;
        let followed = qualifiers.len() - usize::from(attribute.test && !qualifiers.is_empty());
        for (at, qualifier) in qualifiers[..followed].iter().enumerate() {
            let (Key::Constant(Value::String(name)), false) = (&qualifier.key, qualifier.optional)
            else {
                let base = Value::Map(Map::Json { map, decl: None });
                return self.apply(base, false, attribute, at);
            };
            self.charge(runtime::SELECT)?;
            match map.get(name) {
                Some(json::Value::Object(inner)) => map = inner,
                Some(other) => {
                    let base = Value::from_json(other, None)?;
                    return self.apply(base, false, attribute, at + 1);
                }
                None => return Err(Error::no_such_key(&**name)),
            }
        }
        let base = Value::Map(Map::Json { map, decl: None });
        self.apply(base, false, attribute, followed)
    }

    /// Applies the qualifiers from a position on.
    fn apply(
        &mut self,
        base: Value<'a>,
        mut optional: bool,
        attribute: &'a Attribute,
        from: usize,
    ) -> Result<Value<'a>> {
        let mut value = match base {
            Value::Optional(None) => return Ok(Value::NONE),
            Value::Optional(Some(inner)) => {
                optional = true;
                inner.converted()?
            }
            value => value,
        };
        for (at, qualifier) in attribute.qualifiers.iter().enumerate().skip(from) {
            optional = optional || qualifier.optional;
            let test = attribute.test && at + 1 == attribute.qualifiers.len();
            value = match optional {
                true => match self.find(&value, qualifier)? {
                    Some(found) => found,
                    None => return Ok(Value::NONE),
                },
                false => self.qualify(&value, qualifier, test)?,
            };
        }
        match optional {
            true => Value::some(value).shallow(),
            false => Ok(value),
        }
    }

    fn qualify(
        &mut self,
        value: &Value<'a>,
        qualifier: &'a Qualifier,
        test: bool,
    ) -> Result<Value<'a>> {
        let attribute = match &qualifier.key {
            Key::Constant(key) => {
                self.charge(runtime::SELECT)?;
                return match qualifier.is_field {
                    true => field(value, key, test),
                    false => select(value, key, test),
                };
            }
            Key::Attribute(attribute) => attribute,
        };
        let key = self.key(attribute);
        self.charge(runtime::SELECT)?;
        select(value, &key?, test)
    }

    fn find(&mut self, value: &Value<'a>, qualifier: &'a Qualifier) -> Result<Option<Value<'a>>> {
        let found = match &qualifier.key {
            Key::Constant(key) => value.lookup(key)?,
            Key::Attribute(attribute) => value.lookup(&self.key(attribute)?)?,
        };
        if found.is_some() {
            self.charge(runtime::SELECT)?;
        }
        Ok(found)
    }

    fn key(&mut self, attribute: &'a Attribute) -> Result<Value<'a>> {
        let value = self.resolve(attribute)?;
        crate::value::invalid_qualifier(&value)?;
        Ok(value)
    }
}

/// A field of a constructed object, or whether it is set.
fn field<'a>(value: &Value<'a>, name: &Value<'a>, test: bool) -> Result<Value<'a>> {
    let found = value.field(name);
    match (test, found) {
        // A field that cannot be converted is not set.
        (true, Err(error)) if !error.fatal => Ok(Value::Bool(false)),
        (true, found) => Ok(Value::Bool(found?.is_some())),
        (false, found) => found?.unwrap_or(Value::Null).found(),
    }
}

/// The value of a key, or whether there is one.
fn select<'a>(value: &Value<'a>, key: &Value<'a>, test: bool) -> Result<Value<'a>> {
    match test {
        true => Ok(Value::Bool(value.lookup(key)?.is_some())),
        false => value.get(key),
    }
}
