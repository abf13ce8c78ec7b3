//! JSONPath in kubectl's dialect: text with `{…}` parts, `range`/`end`, filters, recursive descent.

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// A parsed template.
#[derive(Debug, Clone, PartialEq)]
pub struct Template(Vec<Node>);

#[derive(Debug, Clone, PartialEq)]
enum Node {
    Text(String),
    Path(Vec<Step>),
    Range(Vec<Step>, Vec<Node>),
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    /// Back to the whole document.
    Root,
    Field(String),
    /// `[*]` or `.*`
    All,
    /// `..`
    Descend,
    /// `[1,-2]`
    Indexes(Vec<i64>),
    /// `['a','b']`
    Fields(Vec<String>),
    /// `[start:end:step]`
    Slice(Option<i64>, Option<i64>, i64),
    /// `[?(@.a == "b")]`
    Filter(Vec<Step>, Option<(Compare, Operand)>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

#[derive(Debug, Clone, PartialEq)]
enum Operand {
    Literal(Value),
    Path(Vec<Step>),
}

impl Template {
    /// Reads a template; a bare path may leave the braces out.
    pub fn parse(text: &str) -> Result<Self> {
        let bare = !text.contains('{') && (text.starts_with('.') || text.starts_with('$'));
        let text = if bare {
            format!("{{{text}}}")
        } else {
            text.to_owned()
        };
        let mut parser = Parser { rest: &text };
        let nodes = parser.nodes(false)?;
        Ok(Self(nodes))
    }

    /// The text it gives for a document.
    pub fn render(&self, document: &Value) -> Result<String> {
        let mut out = String::new();
        render(&self.0, document, document, &mut out);
        Ok(out)
    }

    /// The values that its paths find.
    pub fn values<'a>(&self, document: &'a Value) -> Vec<&'a Value> {
        let path = |node: &Node| match node {
            Node::Path(steps) => walk(steps, document, document),
            _ => Vec::new(),
        };
        self.0.iter().flat_map(path).collect()
    }
}

/// A value as it is printed.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn render(nodes: &[Node], root: &Value, at: &Value, out: &mut String) {
    for node in nodes {
        match node {
            Node::Text(text) => out.push_str(text),
            Node::Path(steps) => {
                let found: Vec<String> = walk(steps, root, at).into_iter().map(text).collect();
                out.push_str(&found.join(" "));
            }
            Node::Range(steps, body) => {
                for value in walk(steps, root, at) {
                    render(body, root, value, out);
                }
            }
        }
    }
}

fn walk<'a>(steps: &[Step], root: &'a Value, at: &'a Value) -> Vec<&'a Value> {
    let mut found = vec![at];
    for step in steps {
        found = found
            .into_iter()
            .flat_map(|value| take(step, root, value))
            .collect();
    }
    found
}

fn take<'a>(step: &Step, root: &'a Value, value: &'a Value) -> Vec<&'a Value> {
    match step {
        Step::Root => vec![root],
        Step::Field(name) => value.get(name).into_iter().collect(),
        Step::Fields(names) => names.iter().filter_map(|name| value.get(name)).collect(),
        Step::All => children(value),
        Step::Descend => {
            let below = children(value)
                .into_iter()
                .flat_map(|child| take(step, root, child));
            std::iter::once(value).chain(below).collect()
        }
        Step::Indexes(indexes) => {
            let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
            indexes
                .iter()
                .filter_map(|index| items.get(position(*index, items.len())?))
                .collect()
        }
        Step::Slice(start, end, step) => slice(value, *start, *end, *step),
        Step::Filter(path, comparison) => children(value)
            .into_iter()
            .filter(|item| passes(path, comparison, root, item))
            .collect(),
    }
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(map) => map.values().collect(),
        _ => Vec::new(),
    }
}

fn position(index: i64, len: usize) -> Option<usize> {
    let len = i64::try_from(len).ok()?;
    usize::try_from(if index < 0 { index + len } else { index }).ok()
}

fn slice(value: &Value, start: Option<i64>, end: Option<i64>, step: i64) -> Vec<&Value> {
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let start = position(start.unwrap_or(0), items.len()).unwrap_or(0);
    let end = end
        .map_or(Some(items.len()), |end| position(end, items.len()))
        .unwrap_or(0);
    let range = items
        .get(start..end.min(items.len()).max(start))
        .unwrap_or_default();
    range
        .iter()
        .step_by(usize::try_from(step).unwrap_or(1).max(1))
        .collect()
}

fn passes(
    path: &[Step],
    comparison: &Option<(Compare, Operand)>,
    root: &Value,
    item: &Value,
) -> bool {
    let left = walk(path, root, item);
    let Some((compare, operand)) = comparison else {
        return !left.is_empty();
    };
    let right = match operand {
        Operand::Literal(value) => vec![value],
        Operand::Path(steps) => walk(steps, root, item),
    };
    let (Some(left), Some(right)) = (left.first(), right.first()) else {
        return false;
    };
    let order = match (left.as_f64(), right.as_f64()) {
        (Some(left), Some(right)) => left.partial_cmp(&right),
        _ if left.is_string() == right.is_string() => Some(text(left).cmp(&text(right))),
        _ => None,
    };
    order.is_some_and(|order| match compare {
        Compare::Eq => order.is_eq(),
        Compare::Ne => order.is_ne(),
        Compare::Lt => order.is_lt(),
        Compare::Le => order.is_le(),
        Compare::Gt => order.is_gt(),
        Compare::Ge => order.is_ge(),
    })
}

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn eat(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) {
            return Ok(());
        }
        bail!(
            "error parsing jsonpath: expected {token:?} before {:?}",
            self.rest
        )
    }

    fn blanks(&mut self) {
        self.rest = self.rest.trim_start_matches(' ');
    }

    fn until(&mut self, stop: impl Fn(char) -> bool) -> String {
        let end = self.rest.find(stop).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken.to_owned()
    }

    /// Text and `{…}` parts, up to the end, or up to `{end}` inside a range.
    fn nodes(&mut self, in_range: bool) -> Result<Vec<Node>> {
        let mut nodes = Vec::new();
        loop {
            let text = self.until(|c| c == '{');
            if !text.is_empty() {
                nodes.push(Node::Text(unescape(&text)));
            }
            if self.rest.is_empty() {
                if in_range {
                    bail!("error parsing jsonpath: range without end");
                }
                return Ok(nodes);
            }
            self.expect("{")?;
            self.blanks();
            if self.eat("end") {
                self.expect("}")?;
                if in_range {
                    return Ok(nodes);
                }
                bail!("error parsing jsonpath: end without range");
            }
            nodes.push(self.part()?);
        }
    }

    fn part(&mut self) -> Result<Node> {
        if self.eat("range ") {
            self.blanks();
            let steps = self.steps()?;
            self.blanks();
            self.expect("}")?;
            return Ok(Node::Range(steps, self.nodes(true)?));
        }
        if self.rest.starts_with(['"', '\'']) {
            let text = self.quoted()?;
            self.blanks();
            self.expect("}")?;
            return Ok(Node::Text(text));
        }
        let steps = self.steps()?;
        self.blanks();
        self.expect("}")?;
        Ok(Node::Path(steps))
    }

    fn quoted(&mut self) -> Result<String> {
        let quote = self
            .rest
            .chars()
            .next()
            .context("error parsing jsonpath: unfinished")?;
        self.rest = &self.rest[1..];
        let mut out = String::new();
        let mut chars = self.rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => out.extend(chars.next().map(|(_, escaped)| match escaped {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    other => other,
                })),
                c if c == quote => {
                    self.rest = &self.rest[at + 1..];
                    return Ok(out);
                }
                c => out.push(c),
            }
        }
        bail!("error parsing jsonpath: unterminated quoted string")
    }

    fn steps(&mut self) -> Result<Vec<Step>> {
        let mut steps = Vec::new();
        loop {
            if self.eat("$") {
                steps.push(Step::Root);
            } else if self.eat("@") {
            } else if self.eat("..") {
                steps.push(Step::Descend);
                if !self.rest.starts_with('[') {
                    steps.push(self.field()?);
                }
            } else if self.eat(".") {
                if !self.rest.starts_with('[') && !self.at_end() {
                    steps.push(self.field()?);
                }
            } else if self.eat("[") {
                steps.push(self.bracket()?);
            } else if steps.is_empty() && !self.at_end() {
                steps.push(self.field()?);
            } else {
                return Ok(steps);
            }
        }
    }

    fn at_end(&self) -> bool {
        self.rest.is_empty() || self.rest.starts_with(['}', ' ', ')', '=', '!', '<', '>'])
    }

    fn field(&mut self) -> Result<Step> {
        if self.eat("*") {
            return Ok(Step::All);
        }
        let mut name = String::new();
        loop {
            name += &self.until(|c| ".[]{} ()=!<>,\\".contains(c));
            // A backslash takes the next character as it is: .metadata.labels.app\.kubernetes\.io/name
            if !self.eat("\\") {
                break;
            }
            let Some(c) = self.rest.chars().next() else {
                break;
            };
            name.push(c);
            self.rest = &self.rest[c.len_utf8()..];
        }
        if name.is_empty() {
            bail!(
                "error parsing jsonpath: a field name is missing before {:?}",
                self.rest
            );
        }
        Ok(Step::Field(name))
    }

    fn bracket(&mut self) -> Result<Step> {
        self.blanks();
        if self.eat("*") {
            self.expect("]")?;
            return Ok(Step::All);
        }
        if self.eat("?(") {
            let step = self.filter()?;
            self.expect("]")?;
            return Ok(step);
        }
        if self.rest.starts_with(['"', '\'']) {
            let mut names = vec![self.quoted()?];
            while self.eat(",") {
                self.blanks();
                names.push(self.quoted()?);
            }
            self.expect("]")?;
            return Ok(Step::Fields(names));
        }
        let inner = self.until(|c| c == ']');
        self.expect("]")?;
        numbers(&inner)
    }

    fn filter(&mut self) -> Result<Step> {
        self.blanks();
        let path = self.steps()?;
        self.blanks();
        if self.eat(")") {
            return Ok(Step::Filter(path, None));
        }
        let operators = [
            ("==", Compare::Eq),
            ("!=", Compare::Ne),
            ("<=", Compare::Le),
            (">=", Compare::Ge),
            ("<", Compare::Lt),
            (">", Compare::Gt),
        ];
        let found = operators.into_iter().find(|(token, _)| self.eat(token));
        let Some((_, compare)) = found else {
            bail!(
                "error parsing jsonpath: no comparison before {:?}",
                self.rest
            )
        };
        self.blanks();
        let operand = if self.rest.starts_with(['"', '\'']) {
            Operand::Literal(Value::String(self.quoted()?))
        } else if self.rest.starts_with(['@', '$', '.']) {
            Operand::Path(self.steps()?)
        } else {
            let word = self.until(|c| c == ')');
            Operand::Literal(serde_json::from_str(word.trim()).unwrap_or(Value::String(word)))
        };
        self.blanks();
        self.expect(")")?;
        Ok(Step::Filter(path, Some((compare, operand))))
    }
}

/// `0`, `-1`, `0,2`, `1:3`, `::2`
fn numbers(inner: &str) -> Result<Step> {
    let number = |text: &str| -> Result<Option<i64>> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        let parsed = text.parse();
        Ok(Some(parsed.with_context(|| {
            format!("error parsing jsonpath: bad index {text:?}")
        })?))
    };
    if inner.contains(':') {
        let mut parts = inner.split(':');
        let mut next = || number(parts.next().unwrap_or_default());
        return Ok(Step::Slice(next()?, next()?, next()?.unwrap_or(1)));
    }
    let indexes = inner
        .split(',')
        .map(number)
        .collect::<Result<Option<Vec<_>>>>()?;
    Ok(Step::Indexes(
        indexes.context("error parsing jsonpath: empty index")?,
    ))
}

fn unescape(text: &str) -> String {
    text.replace("\\n", "\n").replace("\\t", "\t")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn templates_give_what_kubectl_gives() {
        let document = json!({
            "kind": "List",
            "items": [
                {"metadata": {"name": "a", "labels": {"app.kubernetes.io/name": "x"}}, "n": 1, "ip": ["1", "2"]},
                {"metadata": {"name": "b"}, "n": 5, "ip": ["3"]}]});
        for (template, expected) in [
            ("{.kind}", "List"),
            (".kind", "List"),
            ("{.items[*].metadata.name}", "a b"),
            ("{.items[0].metadata.name}", "a"),
            ("{.items[-1].metadata.name}", "b"),
            ("{.items[0,1].n}", "1 5"),
            ("{.items[0:1].n}", "1"),
            (
                "{range .items[*]}{.metadata.name}{\"\\t\"}{.n}{\"\\n\"}{end}",
                "a\t1\nb\t5\n",
            ),
            ("{.items[?(@.n>2)].metadata.name}", "b"),
            ("{.items[?(@.metadata.name==\"a\")].ip[*]}", "1 2"),
            ("{.items[?(@.metadata.labels)].n}", "1"),
            (
                "{.items[0].metadata.labels.app\\.kubernetes\\.io/name}",
                "x",
            ),
            ("{.items[0]['metadata']['name']}", "a"),
            ("{..name}", "a b"),
            ("name={$.items[1].metadata.name};", "name=b;"),
            ("{.missing}", ""),
            ("{.items[1].ip}", "[\"3\"]"),
        ] {
            let rendered = Template::parse(template)
                .unwrap()
                .render(&document)
                .unwrap();
            assert_eq!(rendered, expected, "{template}");
        }
    }

    #[test]
    fn broken_templates_are_refused() {
        for template in [
            "{.a",
            "{range .a}",
            "{end}",
            "{.a[?(@.b=1)]}",
            "{.a[x]}",
            "{\"a}",
        ] {
            assert!(Template::parse(template).is_err(), "{template}");
        }
    }
}
