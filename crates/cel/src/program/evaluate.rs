//! Evaluation of nodes. Costs are counted where upstream's interpreter counts them, also after
//! errors: both operands of an operator are evaluated, even if the first fails.

use std::sync::Arc;

use super::{
    Lazy,
    node::{Call, Node},
};
use crate::{
    cost::runtime,
    env::JSON_PATCH,
    functions::overload,
    meter,
    value::{Error, Map, OwnedMap, Result, Value},
};

pub(super) struct Evaluator<'e, 'a> {
    pub(super) variables: &'e [Value<'a>],
    lazy: Option<&'e dyn Lazy<'a>>,
    pub(super) locals: Vec<Local<'a>>,
    pub(super) cost: u64,
    limit: u64,
}

/// A variable of a comprehension.
#[derive(Debug, Clone)]
pub(super) enum Local<'a> {
    /// An accumulator not used yet.
    Pending(&'a Node),
    /// An accumulator may hold an error that a later element overrides.
    Value(Result<Value<'a>>),
}

impl<'e, 'a> Evaluator<'e, 'a> {
    pub(super) fn new(
        variables: &'e [Value<'a>],
        lazy: Option<&'e dyn Lazy<'a>>,
        locals: usize,
        limit: u64,
    ) -> Self {
        Self {
            variables,
            lazy,
            locals: match locals {
                0 => Vec::new(),
                locals => vec![Local::Value(Ok(Value::Null)); locals],
            },
            cost: 0,
            limit,
        }
    }

    pub(super) fn charge(&mut self, cost: u64) -> Result<()> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limit {
            return Err(meter::exceeded());
        }
        Ok(())
    }

    pub(super) fn local(&mut self, slot: usize) -> Result<Value<'a>> {
        match &self.locals[slot] {
            Local::Value(value) => value.clone(),
            Local::Pending(init) => {
                let value = self.node(init);
                self.locals[slot] = Local::Value(value.clone());
                value
            }
        }
    }

    pub(super) fn lazy_field(&self, field: &str) -> Result<Value<'a>> {
        match self.lazy {
            Some(lazy) => lazy.field(field),
            None => Err(Error::no_such_key(field)),
        }
    }

    pub(super) fn node(&mut self, node: &'a Node) -> Result<Value<'a>> {
        match node {
            Node::Constant(value) => Ok(value.clone()),
            Node::Attribute(attribute) => self.attribute(attribute),
            Node::And(args) => self.logical(args, false),
            Node::Or(args) => self.logical(args, true),
            Node::NotStrictlyFalse(arg) => {
                let value = self.node(arg);
                self.charge(1)?;
                match value {
                    Err(error) if error.fatal => Err(error),
                    Ok(Value::Bool(false)) => Ok(Value::Bool(false)),
                    _ => Ok(Value::Bool(true)),
                }
            }
            Node::OptionalOr { unwrap, args } => match self.node(&args[0])? {
                Value::Optional(Some(value)) if *unwrap => (*value).clone().found(),
                Value::Optional(None) => self.node(&args[1]),
                value => Ok(value),
            },
            Node::Member { element, list } => {
                let value = self.node(element)?;
                for known in list {
                    if known.is_equal(&value)? {
                        return Ok(Value::Bool(true));
                    }
                }
                Ok(Value::Bool(false))
            }
            Node::Call(call) => self.call(call),
            Node::List(elements) => {
                let items = self.elements(elements);
                self.charged(items, runtime::LIST)
                    .and_then(|items| Value::list(items).shallow())
            }
            Node::Map(entries) => {
                let map = self.entries(entries);
                let map = self.charged(map, runtime::MAP)?;
                Value::Map(Map::Owned(Arc::new(map))).shallow()
            }
            Node::Object { name, fields } => {
                let object = self.entries(fields);
                self.charged(object, runtime::OBJECT)
                    .and_then(|object| construct(object, name))
            }
            Node::Fold(fold) => self.fold(fold),
        }
    }

    /// Charges a cost also after an error.
    pub(super) fn charged<T>(&mut self, result: Result<T>, cost: u64) -> Result<T> {
        match result {
            Err(error) if error.fatal => Err(error),
            result => self.charge(cost).and(result),
        }
    }

    /// `&&` and `||`: a decisive operand overrides an error of the other.
    fn logical(&mut self, args: &'a [Node; 2], decisive: bool) -> Result<Value<'a>> {
        let mut failure = None;
        for arg in args {
            match self.node(arg) {
                Ok(Value::Bool(value)) if value == decisive => return Ok(Value::Bool(decisive)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => failure = failure.or(Some(Error::no_such_overload())),
                Err(error) if error.fatal => return Err(error),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(Value::Bool(!decisive)),
        }
    }

    fn call(&mut self, call: &'a Call) -> Result<Value<'a>> {
        // Nearly all calls have few arguments: no allocation for those.
        const NULL: Value<'static> = Value::Null;
        match call.args.len() {
            1 => self.call_in(call, &mut [NULL]),
            2 => self.call_in(call, &mut [NULL; 2]),
            3 => self.call_in(call, &mut [NULL; 3]),
            count => self.call_in(call, &mut vec![NULL; count]),
        }
    }

    /// `args` has a place for each argument.
    fn call_in(&mut self, call: &'a Call, args: &mut [Value<'a>]) -> Result<Value<'a>> {
        let nodes = &call.args;
        let mut failure = None;
        for (at, node) in nodes.iter().enumerate() {
            match self.node(node) {
                Ok(value) => args[at] = value,
                Err(error) if error.fatal => return Err(error),
                Err(_) if call.rule.compares(at) => return runtime::not_a_list("*types.Err"),
                Err(error) if !call.is_eager && at + 1 < nodes.len() => return Err(error),
                Err(error) => failure = failure.or(Some(error)),
            }
            if call.rule.compares(at) && !matches!(args[at], Value::List(_)) {
                return runtime::not_a_list(args[at].go_type());
            }
        }
        // The cost depends on the arguments, sometimes on the result: charged before the work if
        // possible.
        let before = call.rule.before(args);
        if let Some(cost) = before {
            self.charge(cost)?;
        }
        let result = match failure {
            Some(error) => Err(error),
            None if !call.takes(args) => Err(overload::missing(call.function, args)),
            None => (call.function.call)(args)
                .and_then(Value::shallow)
                .map_err(|error| overload::named(error, call.function, args)),
        };
        if before.is_none() {
            let cost = call.rule.after(result.as_ref().ok());
            return self.charged(result, cost);
        }
        result
    }

    fn elements(&mut self, elements: &'a [(Node, bool)]) -> Result<Vec<Value<'a>>> {
        let mut items = Vec::with_capacity(elements.len());
        for (node, optional) in elements {
            let value = self.node(node)?;
            match value {
                Value::Optional(None) if *optional => {}
                Value::Optional(Some(value)) if *optional => items.push((*value).clone().found()?),
                value if *optional => {
                    return Err(Error::new(format!(
                        "cannot initialize optional list element from non-optional value {}",
                        value.display()
                    )));
                }
                value => items.push(value),
            }
        }
        Ok(items)
    }

    fn entries(&mut self, entries: &'a [(Node, Node, bool)]) -> Result<OwnedMap<'a>> {
        let mut map = OwnedMap::default();
        for (key, value, optional) in entries {
            let key = self.node(key)?;
            let value = self.node(value)?;
            match value {
                Value::Optional(None) if *optional => {}
                Value::Optional(Some(value)) if *optional => {
                    map.set(key, (*value).clone().found()?)?;
                }
                value if *optional => {
                    return Err(Error::new(format!(
                        "cannot initialize optional entry '{}' from non-optional value {}",
                        key.display(),
                        value.display()
                    )));
                }
                value => map.set(key, value)?,
            }
        }
        Ok(map)
    }
}

/// An object that the expression constructs.
fn construct<'a>(fields: OwnedMap<'a>, name: &Arc<str>) -> Result<Value<'a>> {
    let object = fields.named(name.clone());
    let object = match &**name {
        JSON_PATCH => object.patch()?,
        _ => object,
    };
    Value::Map(Map::Owned(Arc::new(object))).shallow()
}
