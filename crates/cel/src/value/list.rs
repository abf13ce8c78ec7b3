//! Lists: of an object in place, new ones, and concatenations.

use std::sync::Arc;

use machinery::json;

use super::{Result, Value};
use crate::{
    decl::{Decl, DeclKind, ListSemantics},
    meter,
};

/// Maximum length of a concatenation: traversing a longer one exceeds the cost limit anyway.
const LONGEST: usize = 1_000_000;
/// Longer lists are concatenated without a copy,
const COPIED: usize = 64;
/// up to this many.
const JOINTS: u32 = 32;

const ATOMIC: &ListSemantics = &ListSemantics::Atomic;

#[derive(Debug, Clone)]
pub enum List<'a> {
    Json {
        items: &'a [json::Value],
        element: Option<&'a Decl>,
        semantics: &'a ListSemantics,
    },
    Owned(Arc<Items<'a>>),
    /// Two concatenated lists, without a copy.
    Joined(Arc<Joined<'a>>),
}

/// New elements.
#[derive(Debug, Clone, Default)]
pub struct Items<'a> {
    values: Vec<Value<'a>>,
    /// The maximum depth of an element.
    pub(super) depth: u32,
}

#[derive(Debug)]
pub struct Joined<'a> {
    parts: [List<'a>; 2],
    len: usize,
    pub(super) depth: u32,
    /// The maximum number of concatenations on the way to an element.
    joints: u32,
}

impl<'a> Items<'a> {
    pub(super) fn new(values: Vec<Value<'a>>) -> Self {
        let depth = values.iter().map(Value::depth).max().unwrap_or(0);
        Self { values, depth }
    }

    pub(crate) fn push(&mut self, value: Value<'a>) {
        self.depth = self.depth.max(value.depth());
        self.values.push(value);
    }
}

impl<'a> List<'a> {
    /// A JSON list as its schema reads it.
    pub fn json(items: &'a [json::Value], decl: Option<&'a Decl>) -> Self {
        let (element, semantics) = match decl.map(|decl| &decl.kind) {
            Some(DeclKind::List { element, semantics }) => (Some(&**element), semantics),
            _ => (None, ATOMIC),
        };
        Self::Json {
            items,
            element,
            semantics,
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Json { items, .. } => items.len(),
            Self::Owned(items) => items.values.len(),
            Self::Joined(joined) => joined.len,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, at: usize) -> Option<Result<Value<'a>>> {
        match self {
            Self::Json { items, element, .. } => Some(Value::from_json(items.get(at)?, *element)),
            Self::Owned(items) => items.values.get(at).cloned().map(Ok),
            Self::Joined(joined) => {
                let [first, second] = &joined.parts;
                match at.checked_sub(first.len()) {
                    None => first.get(at),
                    Some(at) => second.get(at),
                }
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Result<Value<'a>>> + '_ {
        (0..self.len()).filter_map(|at| self.get(at))
    }

    /// Whether it has a schema.
    pub(super) fn is_described(&self) -> bool {
        matches!(self, Self::Json { element, .. } if element.is_some())
    }

    /// Whether an element equals the value. In a list with a schema, an element that cannot be
    /// compared with the value is an error if no other one equals it.
    pub fn contains(&self, wanted: &Value<'a>) -> Result<bool> {
        if !self.is_described() {
            return self.has_equal(wanted);
        }
        let mut failure = None;
        for item in self.iter() {
            match item?.equals(wanted) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) if error.fatal => return Err(error),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(false), Err)
    }

    fn has_equal(&self, wanted: &Value<'a>) -> Result<bool> {
        for item in self.iter() {
            if wanted.is_equal(&item?)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn semantics(&self) -> &ListSemantics {
        match self {
            Self::Json { semantics, .. } => semantics,
            Self::Owned(_) | Self::Joined(_) => ATOMIC,
        }
    }

    pub(super) fn equals(&self, other: &List<'a>) -> Result<bool> {
        if self.len() != other.len() {
            return Ok(false);
        }
        match self.semantics() {
            ListSemantics::Atomic if other.semantics() != ATOMIC => other.equals(self),
            ListSemantics::Atomic => {
                for (a, b) in self.iter().zip(other.iter()) {
                    if !self.same_part(a?.equals(&b?))? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            // Sets and maps are compared regardless of order.
            ListSemantics::Set | ListSemantics::Map(_) => {
                for item in self.iter() {
                    if !other.has_equal(&item?)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    /// Whether two elements are equal. As upstream: in new lists, incomparable elements are
    /// ignored.
    fn same_part(&self, equal: Result<bool>) -> Result<bool> {
        match equal {
            Err(error) if !error.fatal && !self.is_described() => Ok(true),
            equal => equal,
        }
    }

    /// `a + b`: sets are deduplicated, map lists overwrite by key.
    pub fn concat(&self, other: &List<'a>) -> Result<List<'a>> {
        let len = self.len() + other.len();
        if len > LONGEST {
            return Err(meter::exceeded());
        }
        let joints = self.joints().max(other.joints()) + 1;
        if self.semantics() == ATOMIC && len > COPIED && joints <= JOINTS {
            let depth = |list: &Self| Value::List(list.clone()).depth();
            return Ok(List::Joined(Arc::new(Joined {
                parts: [self.clone(), other.clone()],
                len,
                depth: depth(self).max(depth(other)),
                joints,
            })));
        }
        meter::memory(len * size_of::<Value<'a>>())?;
        let mut items: Vec<Value<'a>> = self.iter().collect::<Result<_>>()?;
        for item in other.iter() {
            let item = item?;
            let place = match self.semantics() {
                ListSemantics::Atomic => None,
                ListSemantics::Set => position(&items, |old| old.equals(&item))?,
                ListSemantics::Map(keys) => position(&items, |old| same_keys(old, &item, keys))?,
            };
            match place {
                Some(at) => items[at] = item,
                None => items.push(item),
            }
        }
        Ok(List::Owned(Arc::new(Items::new(items))))
    }

    fn joints(&self) -> u32 {
        match self {
            Self::Joined(joined) => joined.joints,
            _ => 0,
        }
    }
}

fn position<'a>(
    items: &[Value<'a>],
    same: impl Fn(&Value<'a>) -> Result<bool>,
) -> Result<Option<usize>> {
    for (at, item) in items.iter().enumerate() {
        if same(item)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Whether two elements of a map list have the same keys.
fn same_keys<'a>(a: &Value<'a>, b: &Value<'a>, keys: &[Arc<str>]) -> Result<bool> {
    for key in keys {
        let key = Value::text(key.clone());
        let same = match (a.lookup(&key)?, b.lookup(&key)?) {
            (Some(a), Some(b)) => a.equals(&b)?,
            (None, None) => true,
            _ => false,
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}
