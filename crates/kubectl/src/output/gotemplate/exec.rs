//! Execution of a template on a document.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{
    funcs,
    parse::{Command, Node, Operand, Pipeline, Set},
};

const MAX_DEPTH: usize = 200;

/// The output of a template.
pub(super) fn run(set: &Set, document: &Value, allow_missing_keys: bool) -> Result<String> {
    let mut run = Run {
        set,
        out: String::new(),
        variables: vec![(String::new(), document.clone())],
        allow_missing_keys,
        depth: 0,
    };
    run.nodes(&set.main, document)?;
    Ok(run.out)
}

enum Flow {
    Next,
    Break,
    Continue,
}

struct Run<'a> {
    set: &'a Set,
    out: String,
    variables: Vec<(String, Value)>,
    allow_missing_keys: bool,
    depth: usize,
}

impl Run<'_> {
    fn nodes(&mut self, nodes: &[Node], dot: &Value) -> Result<Flow> {
        for node in nodes {
            match self.node(node, dot)? {
                Flow::Next => {}
                flow => return Ok(flow),
            }
        }
        Ok(Flow::Next)
    }

    fn node(&mut self, node: &Node, dot: &Value) -> Result<Flow> {
        let known = self.variables.len();
        let flow = match node {
            Node::Text(text) => {
                self.out.push_str(text);
                return Ok(Flow::Next);
            }
            Node::Print(pipeline) => {
                let value = self.pipeline(pipeline, dot)?;
                if pipeline.variables.is_empty() {
                    let text = value.as_ref().map_or("<no value>".into(), funcs::text);
                    self.out.push_str(&text);
                }
                return Ok(Flow::Next);
            }
            Node::If(pipeline, body, otherwise) => {
                let holds = self
                    .pipeline(pipeline, dot)?
                    .is_some_and(|value| funcs::truth(&value));
                self.nodes(if holds { body } else { otherwise }, dot)?
            }
            Node::With(pipeline, body, otherwise) => {
                match self.pipeline(pipeline, dot)?.filter(funcs::truth) {
                    Some(value) => self.nodes(body, &value)?,
                    None => self.nodes(otherwise, dot)?,
                }
            }
            Node::Range(pipeline, body, otherwise) => self.range(pipeline, body, otherwise, dot)?,
            Node::Template(name, argument) => {
                self.template(name, argument.as_ref(), dot)?;
                Flow::Next
            }
            Node::Break => Flow::Break,
            Node::Continue => Flow::Continue,
        };
        self.variables.truncate(known);
        Ok(flow)
    }

    fn template(&mut self, name: &str, argument: Option<&Pipeline>, dot: &Value) -> Result<()> {
        let set = self.set;
        let body = set
            .named
            .get(name)
            .with_context(|| format!("template {name:?} not defined"))?;
        let argument = match argument {
            Some(argument) => self.pipeline(argument, dot)?.unwrap_or_default(),
            None => Value::Null,
        };
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            bail!("exceeded maximum template depth ({MAX_DEPTH})");
        }
        let outer = std::mem::replace(&mut self.variables, vec![(String::new(), argument.clone())]);
        self.nodes(body, &argument)?;
        self.variables = outer;
        self.depth -= 1;
        Ok(())
    }

    fn range(
        &mut self,
        pipeline: &Pipeline,
        body: &[Node],
        otherwise: &[Node],
        dot: &Value,
    ) -> Result<Flow> {
        let commands_only = Pipeline {
            variables: Vec::new(),
            declares: false,
            commands: pipeline.commands.clone(),
        };
        let over = self.pipeline(&commands_only, dot)?.unwrap_or_default();
        let pairs: Vec<(Value, Value)> = match over {
            Value::Array(items) => items
                .into_iter()
                .enumerate()
                .map(|(at, item)| (at.into(), item))
                .collect(),
            Value::Object(map) => {
                let mut pairs: Vec<_> = map.into_iter().collect();
                pairs.sort_by(|a, b| a.0.cmp(&b.0));
                pairs
                    .into_iter()
                    .map(|(key, value)| (key.into(), value))
                    .collect()
            }
            Value::Number(number) if number.as_u64().is_some_and(|n| n < 1 << 20) => {
                (0..number.as_u64().unwrap_or(0))
                    .map(|n| (n.into(), n.into()))
                    .collect()
            }
            Value::Null => Vec::new(),
            other => bail!("range can't iterate over {}", funcs::text(&other)),
        };
        if pairs.is_empty() {
            return self.nodes(otherwise, dot);
        }
        let known = self.variables.len();
        for (key, value) in pairs {
            match pipeline.variables.as_slice() {
                [one] => self.set_variable(one, value.clone(), pipeline.declares)?,
                [first, second] => {
                    self.set_variable(first, key, pipeline.declares)?;
                    self.set_variable(second, value.clone(), pipeline.declares)?;
                }
                _ => {}
            }
            let flow = self.nodes(body, &value)?;
            self.variables.truncate(known);
            if matches!(flow, Flow::Break) {
                break;
            }
        }
        Ok(Flow::Next)
    }

    fn set_variable(&mut self, name: &str, value: Value, declares: bool) -> Result<()> {
        if declares {
            self.variables.push((name.to_owned(), value));
            return Ok(());
        }
        let known = self
            .variables
            .iter_mut()
            .rev()
            .find(|(known, _)| known == name);
        known
            .with_context(|| format!("undefined variable: ${name}"))?
            .1 = value;
        Ok(())
    }

    /// `None` for a missing key.
    fn pipeline(&mut self, pipeline: &Pipeline, dot: &Value) -> Result<Option<Value>> {
        let mut value: Option<Option<Value>> = None;
        for command in &pipeline.commands {
            value = Some(self.command(command, dot, value)?);
        }
        let value = value.flatten();
        for name in &pipeline.variables {
            self.set_variable(name, value.clone().unwrap_or_default(), pipeline.declares)?;
        }
        Ok(value)
    }

    fn command(
        &mut self,
        command: &Command,
        dot: &Value,
        last: Option<Option<Value>>,
    ) -> Result<Option<Value>> {
        let Some(first) = command.first() else {
            bail!("empty command");
        };
        let Operand::Function(name) = first else {
            if command.len() > 1 || last.is_some() {
                match first {
                    Operand::Literal(value) => {
                        bail!("can't give argument to non-function {}", funcs::text(value))
                    }
                    _ => bail!("can't give argument to non-function"),
                }
            }
            if matches!(first, Operand::Literal(Value::Null)) {
                bail!("nil is not a command");
            }
            return self.operand(first, dot);
        };
        let mut arguments = Vec::new();
        for (at, operand) in command[1..].iter().enumerate() {
            let value = self.operand(operand, dot)?;
            // `and` and `or` evaluate no more than they need.
            let truth = value.as_ref().is_some_and(funcs::truth);
            let is_last = at + 2 == command.len() && last.is_none();
            if !is_last && ((name == "and" && !truth) || (name == "or" && truth)) {
                return Ok(value);
            }
            arguments.push(value);
        }
        arguments.extend(last);
        funcs::call(name, arguments)
            .map(Some)
            .with_context(|| format!("error calling {name}"))
    }

    fn operand(&mut self, operand: &Operand, dot: &Value) -> Result<Option<Value>> {
        match operand {
            Operand::Dot(names) => self.fields(dot, names),
            Operand::Variable(name, fields) => {
                let known = self.variables.iter().rev().find(|(known, _)| known == name);
                let value = known
                    .with_context(|| format!("undefined variable: ${name}"))?
                    .1
                    .clone();
                self.fields(&value, fields)
            }
            Operand::Literal(value) => Ok(Some(value.clone())),
            Operand::Function(name) => funcs::call(name, Vec::new()).map(Some),
            Operand::Group(pipeline, fields) => {
                let value = self.pipeline(pipeline, dot)?;
                match value {
                    Some(value) => self.fields(&value, fields),
                    None if fields.is_empty() => Ok(None),
                    None => bail!("nil data; no entry for key {:?}", fields[0]),
                }
            }
        }
    }

    fn fields(&self, value: &Value, names: &[String]) -> Result<Option<Value>> {
        let mut value = value;
        for name in names {
            let next = match value {
                Value::Object(map) => map.get(name),
                Value::Null => bail!("nil data; no entry for key {name:?}"),
                other => bail!(
                    "can't evaluate field {name} in type {}",
                    funcs::type_name(other)
                ),
            };
            match next {
                Some(next) => value = next,
                None if !self.allow_missing_keys => bail!("map has no entry for key {name:?}"),
                // A field of a missing value is missing too.
                None => return Ok(None),
            }
        }
        Ok(Some(value.clone()))
    }
}
