//! Lists: of an object in place, new ones, and concatenations.

use std::{collections::HashMap, sync::Arc};

use machinery::json;

use super::{Result, Value, map::Key};
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
#[derive(Debug, Clone)]
pub struct Items<'a> {
    values: Vec<Value<'a>>,
    /// The maximum depth of an element.
    pub(super) depth: u32,
    /// Those of the list that others were added to.
    semantics: &'a ListSemantics,
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
        Self {
            values,
            depth,
            semantics: ATOMIC,
        }
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

    fn semantics(&self) -> &'a ListSemantics {
        match self {
            Self::Json { semantics, .. } => semantics,
            Self::Owned(items) => items.semantics,
            Self::Joined(_) => ATOMIC,
        }
    }

    pub(super) fn equals(&self, other: &List<'a>) -> Result<bool> {
        if self.len() != other.len() {
            return Ok(false);
        }
        if self.semantics() == ATOMIC {
            for (a, b) in self.iter().zip(other.iter()) {
                if !self.same_part(a?.equals(&b?))? {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        // Sets and maps are compared regardless of order, by the semantics of the list on the left.
        let known = self.identities()?;
        for item in other.iter() {
            let item = item?;
            let is_equal = match known.find(&item)? {
                None => false,
                Some(_) if *self.semantics() == ListSemantics::Set => true,
                Some(at) => known.items[at].equals(&item)?,
            };
            if !is_equal {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The elements with an index by their identities.
    fn identities(&self) -> Result<Identities<'a>> {
        let mut known = Identities {
            semantics: self.semantics(),
            items: Vec::with_capacity(self.len()),
            places: HashMap::with_capacity(self.len()),
        };
        for item in self.iter() {
            known.push(item?)?;
        }
        Ok(known)
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
        let semantics = self.semantics();
        let items = match semantics {
            ListSemantics::Atomic => self.iter().chain(other.iter()).collect::<Result<_>>()?,
            ListSemantics::Set | ListSemantics::Map(_) => {
                let mut known = self.identities()?;
                for item in other.iter() {
                    let item = item?;
                    match known.find(&item)? {
                        Some(at) => known.items[at] = item,
                        None => known.push(item)?,
                    }
                }
                known.items
            }
        };
        let items = Items {
            semantics,
            ..Items::new(items)
        };
        Ok(List::Owned(Arc::new(items)))
    }

    fn joints(&self) -> u32 {
        match self {
            Self::Joined(joined) => joined.joints,
            _ => 0,
        }
    }
}

/// The elements of a set or a map list by their identities: the element itself, or its keys.
struct Identities<'a> {
    semantics: &'a ListSemantics,
    items: Vec<Value<'a>>,
    places: HashMap<Vec<Option<Key>>, usize>,
}

impl<'a> Identities<'a> {
    /// Adds an element. Of several ones with the same keys, the last is found.
    fn push(&mut self, item: Value<'a>) -> Result<()> {
        if let Some(identity) = self.identity(&item)? {
            self.places.insert(identity, self.items.len());
        }
        self.items.push(item);
        Ok(())
    }

    fn find(&self, item: &Value<'a>) -> Result<Option<usize>> {
        if let Some(identity) = self.identity(item)? {
            return Ok(self.places.get(&identity).copied());
        }
        for (at, known) in self.items.iter().enumerate() {
            if known.equals(item)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// `None` for lists and objects in a set, which have no identity.
    fn identity(&self, item: &Value<'a>) -> Result<Option<Vec<Option<Key>>>> {
        meter::work(1)?;
        let ListSemantics::Map(keys) = self.semantics else {
            return Ok(Key::new(item).map(|key| vec![Some(key)]));
        };
        let key = |name: &Arc<str>| {
            let value = item.lookup(&Value::text(name.clone()))?;
            Ok(value.as_ref().and_then(Key::new))
        };
        keys.iter().map(key).collect::<Result<_>>().map(Some)
    }
}
