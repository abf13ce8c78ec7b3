//! The paths of printer columns, selectable fields and scales: `.spec.size`, `.a['b.c']`, `.list[0]`,
//! `.list[*].x`, `.conditions[?(@.type=="Ready")].status`.

use machinery::Value;

/// One step down.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    /// Negative ones count from the end.
    Index(i64),
    All,
    Where(Vec<Step>, Value),
}

/// A path, read once.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Path(Vec<Step>);

impl Path {
    /// Reads a path; `None` when it is written in a way that is not understood.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches('{').trim_end_matches('}');
        steps(text).map(Self)
    }

    /// All values at the path.
    pub(crate) fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        find(&self.0, value)
    }

    /// The first value at the path.
    pub(crate) fn first<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        self.find(value).into_iter().next()
    }

    /// The fields on the way.
    pub(crate) fn names(&self) -> Vec<String> {
        let names = self.0.iter().filter_map(|step| match step {
            Step::Field(name) => Some(name.clone()),
            _ => None,
        });
        names.collect()
    }

    /// Sets the value of a path of plain fields, making what is missing.
    pub(crate) fn set(&self, mut value: &mut Value, new: Value) {
        for step in &self.0 {
            let Step::Field(name) = step else { return };
            if !value.is_object() {
                *value = machinery::json::json!({});
            }
            value = &mut value[name.as_str()];
        }
        *value = new;
    }
}

fn steps(mut text: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    while !text.is_empty() {
        if let Some(rest) = text.strip_prefix('.') {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            if end > 0 {
                steps.push(Step::Field(rest[..end].replace('\\', "")));
            }
            text = &rest[end..];
        } else {
            let (inside, rest) = bracket(text)?;
            steps.push(inner(inside)?);
            text = rest;
        }
    }
    Some(steps)
}

/// What stands between a bracket and the one that closes it.
fn bracket(text: &str) -> Option<(&str, &str)> {
    let inside = text.strip_prefix('[')?;
    let (mut depth, mut quote) = (0, None);
    for (at, c) in inside.char_indices() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some((&inside[..at], &inside[at + 1..])),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn inner(text: &str) -> Option<Step> {
    let text = text.trim();
    if text == "*" {
        return Some(Step::All);
    }
    if let Some(filter) = text
        .strip_prefix("?(")
        .and_then(|rest| rest.strip_suffix(')'))
    {
        let (left, right) = filter.split_once("==")?;
        let path = steps(left.trim().strip_prefix('@')?)?;
        let right = right.trim();
        let value = unquoted(right)
            .map(Value::from)
            .or_else(|| machinery::json::from_str(right).ok())?;
        return Some(Step::Where(path, value));
    }
    match unquoted(text) {
        Some(name) => Some(Step::Field(name.to_owned())),
        None => text.parse().ok().map(Step::Index),
    }
}

fn unquoted(text: &str) -> Option<&str> {
    let strip = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    strip('"').or_else(|| strip('\''))
}

fn find<'a>(steps: &[Step], value: &'a Value) -> Vec<&'a Value> {
    let Some((step, rest)) = steps.split_first() else {
        return vec![value];
    };
    let below: Vec<&Value> = match step {
        Step::Field(name) => value.get(name).into_iter().collect(),
        Step::Index(index) => {
            let items = value.as_array().map_or(&[][..], Vec::as_slice);
            let from_end = if *index < 0 { items.len() as i64 } else { 0 };
            let at = usize::try_from(index + from_end).ok();
            at.and_then(|at| items.get(at)).into_iter().collect()
        }
        Step::All => match value {
            Value::Array(items) => items.iter().collect(),
            Value::Object(object) => object.values().collect(),
            _ => Vec::new(),
        },
        Step::Where(path, wanted) => {
            let items = value.as_array().into_iter().flatten();
            items
                .filter(|item| find(path, item).contains(&wanted))
                .collect()
        }
    };
    below
        .into_iter()
        .flat_map(|value| find(rest, value))
        .collect()
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    #[test]
    fn paths_find_what_they_name() {
        let value = json!({"spec": {"a.b": 1, "list": [{"n": "x", "v": 2}, {"n": "y", "v": 3}]}});
        let cases = [
            (".spec['a.b']", json!([1])),
            (".spec.list[1].v", json!([3])),
            (".spec.list[-2].v", json!([2])),
            (".spec.list[-3].v", json!([])),
            (".spec.list[*].v", json!([2, 3])),
            (".spec.list[?(@.n==\"y\")].v", json!([3])),
            ("{.spec.list[0].n}", json!(["x"])),
            (".spec.none", json!([])),
        ];
        for (text, expected) in cases {
            let found: Vec<Value> = Path::parse(text)
                .unwrap()
                .find(&value)
                .into_iter()
                .cloned()
                .collect();
            assert_eq!(Value::from(found), expected, "{text}");
        }
        assert!(Path::parse(".a[").is_none());
    }

    #[test]
    fn setting_makes_what_is_missing() {
        let mut value = json!({});
        Path::parse(".spec.replicas")
            .unwrap()
            .set(&mut value, 3.into());
        assert_eq!(value, json!({"spec": {"replicas": 3}}));
    }
}
