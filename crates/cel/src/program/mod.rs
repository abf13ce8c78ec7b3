//! Evaluation of a checked expression: compiled once into a tree of nodes with resolved variables
//! and functions, evaluated over borrowed values, within a cost limit.

mod attribute;
mod evaluate;
mod fold;
mod node;
mod plan;

use std::{collections::BTreeSet, sync::Arc};

use evaluate::Evaluator;
use node::Node;
use plan::Planner;

use crate::{
    check::Checked,
    env::Env,
    meter,
    value::{Result, Value},
};

/// A compiled expression.
#[derive(Debug)]
pub struct Program {
    root: Node,
    /// Slots for variables of comprehensions, in addition to those of the environment.
    locals: usize,
    height: u32,
    lazy_fields: BTreeSet<Arc<str>>,
}

/// The variable whose fields are evaluated lazily.
pub trait Lazy<'a> {
    /// A field that the environment declares.
    fn field(&self, name: &str) -> Result<Value<'a>>;
}

/// The result of an evaluation, and its cost.
#[derive(Debug)]
pub struct Evaluation<'a> {
    pub result: Result<Value<'a>>,
    pub cost: u64,
}

impl Program {
    /// Fails if a constant part of the expression fails: `int('x')`.
    pub fn new(env: &Env, checked: &Checked) -> Result<Self> {
        let mut planner = Planner::new(env, checked);
        let root = planner.node(&checked.parsed.root)?;
        Ok(Self {
            root,
            locals: planner.locals,
            height: planner.height,
            lazy_fields: planner.lazy_fields,
        })
    }

    /// The recursion depth of an evaluation, in nodes.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// The fields of the lazy variable that an evaluation may use.
    pub fn lazy_fields(&self) -> impl Iterator<Item = &Arc<str>> {
        self.lazy_fields.iter()
    }

    /// Evaluates with the variables of the environment in order; stops when `limit` is exceeded. A
    /// variable beyond the end of `variables` is an error if used.
    pub fn evaluate<'a>(&'a self, variables: &[Value<'a>], limit: u64) -> Evaluation<'a> {
        self.run(variables, None, limit)
    }

    /// The same, with the fields of the lazy variable.
    pub fn evaluate_with<'a>(
        &'a self,
        variables: &[Value<'a>],
        lazy: &dyn Lazy<'a>,
        limit: u64,
    ) -> Evaluation<'a> {
        self.run(variables, Some(lazy), limit)
    }

    fn run<'a>(
        &'a self,
        variables: &[Value<'a>],
        lazy: Option<&dyn Lazy<'a>>,
        limit: u64,
    ) -> Evaluation<'a> {
        let mut evaluator = Evaluator::new(variables, lazy, self.locals, limit);
        let result = meter::counted(|| evaluator.node(&self.root));
        Evaluation {
            result,
            cost: evaluator.cost,
        }
    }
}
