//! JSONPath as Kubernetes writes it: text with `{…}` parts, fields, indexes, slices, unions,
//! filters, recursive descent, `range` and `end`. It works on any JSON tree; `$` and `@` are the
//! current value.

mod parse;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use parse::Step;

/// A JSON tree.
pub trait Tree: Clone + From<String> + From<i64> + From<f64> + From<bool> {
    fn view(&self) -> View<'_, Self>;
    /// The value of a field, if this is an object that has it.
    fn field(&self, name: &str) -> Option<&Self>;
    /// The values of all fields, if this is an object.
    fn fields(&self) -> Vec<&Self>;
}

/// The type and content of a value.
pub enum View<'a, T> {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'a str),
    List(&'a [T]),
    Map,
}

macro_rules! tree {
    ($value:ty) => {
        impl Tree for $value {
            fn view(&self) -> View<'_, Self> {
                match self {
                    Self::Null => View::Null,
                    Self::Bool(b) => View::Bool(*b),
                    Self::Number(n) => match n.as_i64() {
                        Some(i) => View::Int(i),
                        None => View::Float(n.as_f64().unwrap_or_default()),
                    },
                    Self::String(text) => View::Text(text),
                    Self::Array(items) => View::List(items),
                    Self::Object(_) => View::Map,
                }
            }

            fn field(&self, name: &str) -> Option<&Self> {
                self.as_object()?.get(name)
            }

            fn fields(&self) -> Vec<&Self> {
                let fields = self.as_object().into_iter();
                fields.flat_map(|fields| fields.values()).collect()
            }
        }
    };
}

/// A result: a part of the tree, or a literal of the template.
#[derive(Debug, Clone, PartialEq)]
pub enum Found<'a, T> {
    Part(&'a T),
    Text(String),
    Int(i64),
    Float(f64),
    Bool(bool),
}

impl<T: Tree> Found<'_, T> {
    pub fn into_value(self) -> T {
        match self {
            Self::Part(part) => part.clone(),
            Self::Text(text) => text.into(),
            Self::Int(i) => i.into(),
            Self::Float(f) => f.into(),
            Self::Bool(b) => b.into(),
        }
    }

    fn view(&self) -> View<'_, T> {
        match self {
            Self::Part(part) => part.view(),
            Self::Text(text) => View::Text(text),
            Self::Int(i) => View::Int(*i),
            Self::Float(f) => View::Float(*f),
            Self::Bool(b) => View::Bool(*b),
        }
    }
}

tree!(crate::Value);
tree!(serde_json::Value);

/// Why a template cannot be parsed, or fails on a tree.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

fn wrong<T>(why: impl Into<String>) -> Result<T, Error> {
    Err(Error(why.into()))
}

/// A parsed template.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    parts: Vec<Part>,
    needs_all: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(String),
    Steps(Vec<Step>),
}

/// How far a run of parts got, and whether a range begins or ends there.
struct Walk {
    begins: bool,
    ends: bool,
}

impl Template {
    pub fn parse(text: &str) -> Result<Self, Error> {
        Ok(Self {
            parts: parse::template(text)?,
            needs_all: false,
        })
    }

    /// As [`Template::parse`], for one path without braces around it.
    pub fn path(text: &str) -> Result<Self, Error> {
        Self::parse(&format!("{{{text}}}"))
    }

    /// Makes missing fields an error.
    pub fn needs_all(mut self) -> Self {
        self.needs_all = true;
        self
    }

    /// The results of each part of the template, in order.
    pub fn find<'a, T: Tree>(&self, tree: &'a T) -> Result<Vec<Vec<Found<'a, T>>>, Error> {
        let mut out = Vec::new();
        self.run(0, &[Found::Part(tree)], 0, &mut out)?;
        Ok(out)
    }

    /// The first result of the first part.
    pub fn first<'a, T: Tree>(&self, tree: &'a T) -> Option<Found<'a, T>> {
        let found = self.find(tree).ok()?;
        found.into_iter().next()?.into_iter().next()
    }

    /// Runs parts from an index on; returns the index of the first part not run.
    fn run<'a, T: Tree>(
        &self,
        from: usize,
        at: &[Found<'a, T>],
        depth: usize,
        out: &mut Vec<Vec<Found<'a, T>>>,
    ) -> Result<usize, Error> {
        let mut next = from;
        while let Some(part) = self.parts.get(next) {
            next += 1;
            let steps = match part {
                Part::Text(text) => {
                    out.push(vec![Found::Text(text.clone())]);
                    continue;
                }
                Part::Steps(steps) => steps,
            };
            let mut found = at.to_vec();
            let mut walk = Walk {
                begins: false,
                ends: false,
            };
            self.walk(steps, &mut found, depth, &mut walk)?;
            if walk.ends {
                return Ok(next);
            }
            if !walk.begins {
                out.push(found);
                continue;
            }
            let body = next;
            if found.is_empty() {
                // Run without output, only to find the end of the range.
                next = self.run::<T>(body, &[], depth + 1, &mut Vec::new())?;
            }
            for one in found {
                next = self.run(body, &[one], depth + 1, out)?;
            }
        }
        Ok(next)
    }

    /// Applies the steps to all results so far. If a step fails, `found` tells whether there was
    /// anything to fail.
    fn walk<T: Tree>(
        &self,
        steps: &[Step],
        found: &mut Vec<Found<'_, T>>,
        depth: usize,
        walk: &mut Walk,
    ) -> Result<(), Error> {
        for step in steps {
            match step {
                Step::Text(text) => *found = vec![Found::Text(text.clone())],
                Step::Int(i) => found.iter_mut().for_each(|one| *one = Found::Int(*i)),
                Step::Float(f) => found.iter_mut().for_each(|one| *one = Found::Float(*f)),
                Step::Bool(b) => found.iter_mut().for_each(|one| *one = Found::Bool(*b)),
                Step::Word(word) => match word.as_str() {
                    "range" => walk.begins = true,
                    "end" if depth > 0 => walk.ends = true,
                    "end" => return wrong("not in range, nothing to end"),
                    other => return wrong(format!("unrecognized identifier {other}")),
                },
                Step::Field(name) => self.field(name, found)?,
                Step::All => *found = found.iter().flat_map(children).collect(),
                Step::Descend => {
                    let mut all = Vec::new();
                    found.iter().for_each(|one| descend(one, &mut all));
                    *found = all;
                }
                Step::Slice(slice) => {
                    let mut all = Vec::new();
                    for one in found.iter() {
                        if !slice.take(one, &mut all)? {
                            break;
                        }
                    }
                    *found = all;
                }
                Step::Union(parts) => {
                    let mut all = Vec::new();
                    for part in parts {
                        let mut own = found.clone();
                        self.walk(part, &mut own, depth, walk)?;
                        all.extend(own);
                    }
                    *found = all;
                }
                Step::Filter(filter) => self.filter(filter, found)?,
            }
        }
        Ok(())
    }

    fn field<T: Tree>(&self, name: &str, found: &mut Vec<Found<'_, T>>) -> Result<(), Error> {
        let some = !found.is_empty();
        let below = found.iter().filter_map(|one| match one {
            Found::Part(part) => part.field(name).map(Found::Part),
            _ => None,
        });
        *found = below.collect();
        if some && found.is_empty() && self.needs_all {
            return wrong(format!("{name} is not found"));
        }
        Ok(())
    }

    fn filter<T: Tree>(
        &self,
        filter: &parse::Filter,
        found: &mut Vec<Found<'_, T>>,
    ) -> Result<(), Error> {
        let mut kept = Vec::new();
        for one in found.iter() {
            let Some(items) = items(one) else {
                return wrong("what is no array or slice cannot be filtered");
            };
            for item in items {
                if self.passes(filter, item)? {
                    kept.push(Found::Part(item));
                }
            }
        }
        *found = kept;
        Ok(())
    }

    fn passes<T: Tree>(&self, filter: &parse::Filter, item: &T) -> Result<bool, Error> {
        let side = |steps: &[Step]| {
            let mut found = vec![Found::Part(item)];
            let mut walk = Walk {
                begins: false,
                ends: false,
            };
            let result = self.walk(steps, &mut found, 0, &mut walk);
            (found, result)
        };
        let (left, result) = side(&filter.left);
        let Some((operator, right)) = &filter.compare else {
            return Ok(!left.is_empty());
        };
        result?;
        let one = |mut found: Vec<Found<'_, T>>| match found.len() {
            0 | 1 => Ok(found.pop().map(|found| Scalar::from_view(found.view()))),
            _ => wrong("can only compare one element at a time"),
        };
        let Some(left) = one(left)? else {
            return Ok(false);
        };
        let (right, result) = side(right);
        result?;
        let Some(right) = one(right)? else {
            return Ok(false);
        };
        compare(operator, left, right)
    }
}

/// The children of a value.
fn children<'a, T: Tree>(found: &Found<'a, T>) -> Vec<Found<'a, T>> {
    let bytes = |text: &str| text.bytes().map(|b| Found::Int(b.into())).collect();
    match found {
        Found::Part(part) => match part.view() {
            View::List(items) => items.iter().map(Found::Part).collect(),
            View::Map => part.fields().into_iter().map(Found::Part).collect(),
            View::Text(text) => bytes(text),
            _ => Vec::new(),
        },
        Found::Text(text) => bytes(text),
        _ => Vec::new(),
    }
}

/// Every value with children, from the value itself down.
fn descend<'a, T: Tree>(found: &Found<'a, T>, all: &mut Vec<Found<'a, T>>) {
    let below = children(found);
    if !below.is_empty() {
        all.push(found.clone());
        below.iter().for_each(|one| descend(one, all));
    }
}

fn items<'a, T: Tree>(found: &Found<'a, T>) -> Option<&'a [T]> {
    match found {
        Found::Part(part) => match part.view() {
            View::List(items) => Some(items),
            _ => None,
        },
        _ => None,
    }
}

impl parse::Slice {
    /// Adds the selected items of a list. Returns false if there are none, which ends the search.
    fn take<'a, T: Tree>(
        &self,
        found: &Found<'a, T>,
        all: &mut Vec<Found<'a, T>>,
    ) -> Result<bool, Error> {
        if matches!(found.view(), View::Null) {
            return Ok(true);
        }
        let Some(items) = items(found) else {
            return wrong(format!("{} is not array or slice", go_type(&found.view())));
        };
        let count = items.len() as i64;
        let from_end = |at: i64| if at < 0 { at + count } else { at };
        let start = from_end(self.start.unwrap_or(0));
        let end = match self.end {
            parse::End::Open => count,
            parse::End::At(end) => from_end(end),
            parse::End::After(end) if end <= 0 => end + count,
            parse::End::After(end) => end,
        };
        if start == end {
            return Ok(false);
        }
        let outside = |at: i64| {
            wrong(format!(
                "array index out of bounds: index {at}, length {count}"
            ))
        };
        if start >= count || start < 0 {
            return outside(start);
        }
        if end > count || end < 0 {
            return outside(end - 1);
        }
        if start > end {
            return wrong(format!(
                "starting index {start} is greater than ending index {end}"
            ));
        }
        let step = match self.step {
            Some(step) if step <= 0 => return wrong("step must be > 0"),
            Some(step) => step,
            None => 1,
        };
        let range = &items[start as usize..end as usize];
        let step = usize::try_from(step).unwrap_or(usize::MAX);
        all.extend(range.iter().step_by(step).map(Found::Part));
        Ok(true)
    }
}

fn go_type<T>(view: &View<'_, T>) -> &'static str {
    match view {
        View::Null => "<nil>",
        View::Bool(_) => "bool",
        View::Int(_) => "int64",
        View::Float(_) => "float64",
        View::Text(_) => "string",
        View::List(_) => "[]interface {}",
        View::Map => "map[string]interface {}",
    }
}

/// A comparable value.
#[derive(Debug, Clone, PartialEq)]
enum Scalar {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Other,
}

impl Scalar {
    fn from_view<T>(view: View<'_, T>) -> Self {
        match view {
            View::Bool(b) => Self::Bool(b),
            View::Int(i) => Self::Int(i),
            View::Float(f) => Self::Float(f),
            View::Text(text) => Self::Text(text.to_owned()),
            View::Null | View::List(_) | View::Map => Self::Other,
        }
    }
}

fn compare(operator: &str, left: Scalar, right: Scalar) -> Result<bool, Error> {
    if !matches!(operator, "==" | "!=" | "<" | "<=" | ">" | ">=") {
        return wrong(format!("unrecognized filter operator {operator}"));
    }
    let equality = matches!(operator, "==" | "!=");
    let order = match (left, right) {
        (Scalar::Bool(left), Scalar::Bool(right)) if equality => Some(left.cmp(&right)),
        (Scalar::Other, _) | (_, Scalar::Other) | (Scalar::Bool(_), Scalar::Bool(_)) => {
            return wrong("invalid type for comparison");
        }
        (Scalar::Int(left), Scalar::Int(right)) => Some(left.cmp(&right)),
        (Scalar::Float(left), Scalar::Float(right)) => left.partial_cmp(&right),
        (Scalar::Text(left), Scalar::Text(right)) => Some(left.cmp(&right)),
        _ => return wrong("incompatible types for comparison"),
    };
    Ok(match operator {
        "==" => order == Some(Ordering::Equal),
        "!=" => order != Some(Ordering::Equal),
        "<" => order == Some(Ordering::Less),
        "<=" => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        ">" => order == Some(Ordering::Greater),
        _ => order != Some(Ordering::Less),
    })
}
