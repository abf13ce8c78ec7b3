//! Attributes: a variable or another value, and its qualifiers.
//!
//! Every applied qualifier costs one, also if it fails, and the attribute itself costs one more.
//! After an optional qualifier, a qualifier that finds nothing costs nothing.

use super::{
    evaluate::Evaluator,
    node::{Attribute, Base, Key, Qualifier},
};
use crate::{
    cost::runtime,
    value::{Error, Result, Value},
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
        self.apply(base, optional, attribute)
    }

    fn apply(
        &mut self,
        base: Value<'a>,
        mut optional: bool,
        attribute: &'a Attribute,
    ) -> Result<Value<'a>> {
        let mut value = match base {
            Value::Optional(None) => return Ok(Value::NONE),
            Value::Optional(Some(inner)) => {
                optional = true;
                flattened(&inner)
            }
            value => value,
        };
        for (at, qualifier) in attribute.qualifiers.iter().enumerate() {
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
        let key = self.key(&qualifier.key);
        self.charge(runtime::SELECT)?;
        match test {
            true => Ok(Value::Bool(value.lookup(&key?)?.is_some())),
            false => value.get(&key?),
        }
    }

    fn find(&mut self, value: &Value<'a>, qualifier: &'a Qualifier) -> Result<Option<Value<'a>>> {
        let key = self.key(&qualifier.key)?;
        let found = value.lookup(&key)?;
        if found.is_some() {
            self.charge(runtime::SELECT)?;
        }
        Ok(found)
    }

    fn key(&mut self, key: &'a Key) -> Result<Value<'a>> {
        match key {
            Key::Constant(value) => Ok(value.clone()),
            Key::Attribute(attribute) => {
                let value = self.resolve(attribute)?;
                crate::value::invalid_qualifier(&value)?;
                Ok(value)
            }
        }
    }
}

/// The value of an optional, as upstream converts it: without further optionals, null for one without a value.
fn flattened<'a>(value: &Value<'a>) -> Value<'a> {
    let mut value = value;
    loop {
        match value {
            Value::Optional(Some(inner)) => value = inner,
            Value::Optional(None) => return Value::Null,
            value => return value.clone(),
        }
    }
}
