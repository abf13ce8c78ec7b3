//! Comprehensions. Every element is visited unless the condition ends the loop: a later element may
//! override an error, and costs continue.

use std::sync::Arc;

use super::{
    evaluate::{Evaluator, Local},
    node::{Fold, Node, Step},
};
use crate::{
    cost::runtime,
    value::{Error, List, Map, Result, Text, Value},
};

impl<'a> Evaluator<'_, 'a> {
    pub(super) fn fold(&mut self, fold: &'a Fold) -> Result<Value<'a>> {
        let range = self.node(&fold.range)?;
        self.locals[fold.accumulator] = Local::Pending(&fold.init);
        match range {
            Value::List(list) => {
                for at in 0..list.len() {
                    let Some(item) = list.get(at) else { break };
                    let index = Value::Int(at as i64);
                    if !self.iterate(fold, index, item?, true)? {
                        break;
                    }
                }
            }
            Value::Map(Map::Json { map, decl: None }) => {
                for (key, value) in map.iter() {
                    let key = Value::String(Text::Borrowed(key.as_str()));
                    let value = match fold.variable2 {
                        Some(_) => Value::from_json(value, None)?,
                        None => Value::Null,
                    };
                    if !self.iterate(fold, key, value, false)? {
                        break;
                    }
                }
            }
            Value::Map(map) if map.object().is_none() => {
                let entries: Vec<_> = map.iter().collect::<Result<_>>()?;
                for (key, value) in entries {
                    if !self.iterate(fold, key, value, false)? {
                        break;
                    }
                }
            }
            other => {
                let name = other.go_type();
                return Err(Error::new(match fold.variable2 {
                    None => format!("got '{name}', expected iterable type"),
                    Some(_) => format!("unsupported comprehension range type: {name}"),
                }));
            }
        }
        let result = self.node(&fold.result);
        self.locals[fold.accumulator] = Local::Value(Ok(Value::Null));
        result
    }

    /// One iteration; returns false when the loop is done.
    fn iterate(
        &mut self,
        fold: &'a Fold,
        key: Value<'a>,
        value: Value<'a>,
        is_list: bool,
    ) -> Result<bool> {
        match fold.variable2 {
            Some(second) => {
                self.locals[fold.variable] = Local::Value(Ok(key));
                self.locals[second] = Local::Value(Ok(value));
            }
            None => {
                let value = if is_list { value } else { key };
                self.locals[fold.variable] = Local::Value(Ok(value));
            }
        }
        match self.node(&fold.condition) {
            Ok(Value::Bool(false)) => return Ok(false),
            Err(error) if error.fatal => return Err(error),
            _ => {}
        }
        let slot = fold.accumulator;
        let step = match &fold.step {
            Step::Any(node) => self.node(node).map(Some),
            Step::Append { filter, element } => match self.passes(slot, filter.as_ref()) {
                Ok(true) => self.append(slot, element).map(|()| None),
                Ok(false) => return Ok(true),
                Err(error) => Err(error),
            },
            Step::Insert { filter, entry } => match self.passes(slot, filter.as_ref()) {
                Ok(true) => self.insert(slot, entry).map(|()| None),
                Ok(false) => return Ok(true),
                Err(error) => Err(error),
            },
        };
        match step {
            Err(error) if error.fatal => return Err(error),
            Err(error) => self.locals[slot] = Local::Value(Err(error)),
            Ok(Some(value)) => self.locals[slot] = Local::Value(Ok(value)),
            Ok(None) => {}
        }
        Ok(true)
    }

    /// Whether an element passes the filter; if not, the accumulator stays.
    fn passes(&mut self, accumulator: usize, filter: Option<&'a Node>) -> Result<bool> {
        match filter.map(|filter| self.node(filter)).transpose()? {
            None | Some(Value::Bool(true)) => Ok(true),
            Some(Value::Bool(false)) => self.local(accumulator).map(|_| false),
            Some(_) => Err(Error::no_such_overload()),
        }
    }

    /// Evaluates `accumulator + [element]` in place.
    fn append(&mut self, accumulator: usize, element: &'a Node) -> Result<()> {
        let before = self.local(accumulator).map(|_| ());
        let before = self.charged(before, runtime::SELECT);
        let value = self.node(element);
        // A list of a constant is a constant.
        let list = match element {
            Node::Constant(_) => 0,
            _ => runtime::LIST,
        };
        let value = self.charged(value, list + 1);
        if let Err(error) = &value
            && error.fatal
        {
            return value.map(|_| ());
        }
        before?;
        match &mut self.locals[accumulator] {
            Local::Value(Ok(Value::List(List::Owned(items)))) => {
                Arc::make_mut(items).push(value?.shallow()?);
                Ok(())
            }
            _ => Err(Error::no_such_overload()),
        }
    }

    /// Evaluates `cel.@mapInsert(accumulator, entry...)` in place.
    fn insert(&mut self, accumulator: usize, entry: &'a [Node]) -> Result<()> {
        let before = self.local(accumulator).map(|_| ());
        let before = self.charged(before, runtime::SELECT);
        match (&before, entry) {
            (Err(error), [_]) if !error.fatal => {
                // Both operands are evaluated.
                let other = self.node(&entry[0]).map(|_| ());
                self.charged(other, 1).or_else(non_fatal)?;
            }
            _ => {}
        }
        before?;
        let mut values = Vec::with_capacity(entry.len());
        for (at, node) in entry.iter().enumerate() {
            let value = self.node(node).and_then(Value::shallow);
            values.push(match at + 1 == entry.len() {
                true => self.charged(value, 1)?,
                false => value?,
            });
        }
        let Local::Value(Ok(Value::Map(Map::Owned(map)))) = &mut self.locals[accumulator] else {
            return Err(Error::no_such_overload());
        };
        let map = Arc::make_mut(map);
        match <[Value<'a>; 2]>::try_from(values) {
            Ok([key, value]) => map.insert(key, value),
            Err(values) => match values.as_slice() {
                [Value::Map(entries)] => {
                    let mut entries = entries.iter();
                    entries.try_for_each(|entry| {
                        let (key, value) = entry?;
                        map.insert(key, value)
                    })
                }
                _ => Err(Error::no_such_overload()),
            },
        }
    }
}

fn non_fatal(error: Error) -> Result<()> {
    if error.fatal { Err(error) } else { Ok(()) }
}
