//! Evaluation of a checked expression: compiled once into a tree of nodes with resolved variables
//! and functions, evaluated over borrowed values, counted and bounded by cost.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    ast::{Comprehension, Expr, Kind, Literal, op},
    check::{Checked, Reference},
    cost::runtime,
    env::Env,
    functions::{self, Function},
    meter,
    value::{Error, Map, OwnedMap, Result, Text, Value},
};

/// A compiled expression.
#[derive(Debug)]
pub struct Program {
    root: Node,
    /// Places for variables of comprehensions, beside those of the environment.
    locals: usize,
    height: u32,
    lazy_fields: BTreeSet<Arc<str>>,
}

#[derive(Debug)]
enum Node {
    Constant(Value<'static>),
    /// A variable of the environment.
    Variable {
        slot: usize,
        name: Arc<str>,
    },
    /// A variable of a comprehension.
    Local(usize),
    /// A field of the variable whose fields are worked out when they are used.
    Lazy(Arc<str>),
    LazyHas(Arc<str>),
    Select {
        operand: Box<Node>,
        field: Value<'static>,
    },
    Has {
        operand: Box<Node>,
        field: Value<'static>,
    },
    Conditional(Box<[Node; 3]>),
    And(Box<[Node; 2]>),
    Or(Box<[Node; 2]>),
    NotStrictlyFalse(Box<Node>),
    /// `optional.or(x)` and `optional.orValue(x)`: `x` only where it is needed.
    OptionalOr {
        function: &'static Function,
        args: Box<[Node; 2]>,
    },
    Call {
        function: &'static Function,
        args: Vec<Node>,
    },
    List(Vec<(Node, bool)>),
    Map(Vec<(Node, Node, bool)>),
    /// An object that the expression constructs.
    Object {
        name: Arc<str>,
        fields: Vec<(Node, Node, bool)>,
    },
    Fold(Box<Fold>),
}

#[derive(Debug)]
struct Fold {
    range: Node,
    variable: usize,
    variable2: Option<usize>,
    accumulator: usize,
    init: Node,
    condition: Node,
    step: Step,
    result: Node,
}

#[derive(Debug)]
enum Step {
    Any(Node),
    /// `accumulator + [element]`, for those that pass the filter: appended in place.
    Append {
        filter: Option<Node>,
        element: Node,
    },
    /// `cel.@mapInsert(accumulator, entry...)`, likewise.
    Insert {
        filter: Option<Node>,
        entry: Vec<Node>,
    },
}

/// The variable whose fields are worked out when they are used.
pub trait Lazy<'a> {
    /// A field that the environment declares.
    fn field(&self, name: &str) -> Result<Value<'a>>;
}

/// What an evaluation came to, and what it cost.
#[derive(Debug)]
pub struct Evaluation<'a> {
    pub result: Result<Value<'a>>,
    pub cost: u64,
}

impl Program {
    pub fn new(env: &Env, checked: &Checked) -> Self {
        let mut planner = Planner {
            env,
            checked,
            scopes: Vec::new(),
            locals: 0,
            depth: 0,
            height: 0,
            lazy_fields: BTreeSet::new(),
        };
        let root = planner.node(&checked.parsed.root);
        Self {
            root,
            locals: planner.locals,
            height: planner.height,
            lazy_fields: planner.lazy_fields,
        }
    }

    /// How deep an evaluation recurses, in nodes.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// The fields of the lazy variable that an evaluation may ask for.
    pub fn lazy_fields(&self) -> impl Iterator<Item = &Arc<str>> {
        self.lazy_fields.iter()
    }

    /// Evaluates with the variables of the environment in their order; stops when `limit` is
    /// passed. A variable beyond the end of `variables` is an error where it is used.
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
        let mut evaluator = Evaluator {
            variables,
            lazy,
            locals: (0..self.locals).map(|_| Ok(Value::Null)).collect(),
            cost: 0,
            limit,
        };
        let result = meter::counted(|| evaluator.node(&self.root));
        Evaluation {
            result,
            cost: evaluator.cost,
        }
    }
}

struct Planner<'p> {
    env: &'p Env,
    checked: &'p Checked,
    scopes: Vec<(Arc<str>, usize)>,
    locals: usize,
    /// Nodes around the one that is being planned, and the most there were.
    depth: u32,
    height: u32,
    lazy_fields: BTreeSet<Arc<str>>,
}

impl Planner<'_> {
    fn node(&mut self, expr: &Expr) -> Node {
        self.depth += 1;
        self.height = self.height.max(self.depth);
        let node = self.planned(expr);
        self.depth -= 1;
        node
    }

    fn planned(&mut self, expr: &Expr) -> Node {
        match self.checked.references.get(&expr.id) {
            Some(Reference::Variable(name)) => return self.variable(name),
            Some(Reference::Type(t)) if !matches!(expr.kind, Kind::Struct { .. }) => {
                return Node::Constant(Value::Type(t.clone()));
            }
            _ => {}
        }
        match &expr.kind {
            Kind::Literal(literal) => Node::Constant(constant(literal)),
            // Checked: a name without a reference does not get here.
            Kind::Ident(_) => Node::Constant(Value::Null),
            Kind::Select {
                operand,
                field,
                test,
            } => {
                if self.is_lazy(operand) {
                    return self.lazy_field(field, *test);
                }
                let operand = Box::new(self.node(operand));
                let field = Value::text(field.clone());
                match test {
                    true => Node::Has { operand, field },
                    false => Node::Select { operand, field },
                }
            }
            Kind::Call { target, args, .. } => self.call(expr, target.as_deref(), args),
            Kind::List { elements } => {
                let elements = elements.iter().map(|e| (self.node(&e.value), e.optional));
                Node::List(elements.collect()).folded()
            }
            Kind::Map { entries } => {
                let entry =
                    |e: &crate::ast::MapEntry| (self.node(&e.key), self.node(&e.value), e.optional);
                Node::Map(entries.iter().map(entry).collect())
            }
            Kind::Struct { name, fields } => {
                let field = |f: &crate::ast::StructField| {
                    let name = Node::Constant(Value::text(f.name.clone()));
                    (name, self.node(&f.value), f.optional)
                };
                Node::Object {
                    name: name.strip_prefix('.').unwrap_or(name).into(),
                    fields: fields.iter().map(field).collect(),
                }
            }
            Kind::Comprehension(fold) => self.fold(fold),
        }
    }

    /// Whether an expression is the variable whose fields are worked out when they are used.
    fn is_lazy(&self, expr: &Expr) -> bool {
        match self.checked.references.get(&expr.id) {
            Some(Reference::Variable(name)) => {
                self.env.is_lazy(name) && !self.scopes.iter().any(|(local, _)| local == name)
            }
            _ => false,
        }
    }

    /// A field of it, or whether it is there: those that are declared are, unless they fail.
    fn lazy_field(&mut self, field: &Arc<str>, test: bool) -> Node {
        self.lazy_fields.insert(field.clone());
        match test {
            true => Node::LazyHas(field.clone()),
            false => Node::Lazy(field.clone()),
        }
    }

    fn variable(&self, name: &str) -> Node {
        let local = self.scopes.iter().rev().find(|(n, _)| &**n == name);
        match local {
            Some((_, slot)) => Node::Local(*slot),
            None => match self.env.slot(name) {
                Some(slot) => Node::Variable {
                    slot,
                    name: name.into(),
                },
                None => Node::Constant(Value::Null),
            },
        }
    }

    fn call(&mut self, expr: &Expr, target: Option<&Expr>, args: &[Expr]) -> Node {
        let name = match self.checked.references.get(&expr.id) {
            Some(Reference::Overloads(name, _)) => *name,
            _ => "",
        };
        let Some(function) = functions::lookup(name) else {
            return Node::Constant(Value::Null);
        };
        if let (op::OPTIONAL_SELECT, [operand, field]) = (name, args)
            && let Kind::Literal(Literal::String(field)) = &field.kind
            && self.is_lazy(operand)
            && let Some(function) = functions::lookup("optional.of")
        {
            return Node::Call {
                function,
                args: vec![self.lazy_field(field, false)],
            };
        }
        // A namespaced function has no receiver, whatever its spelling.
        let member = function.overloads.iter().any(|overload| overload.member);
        let target = target.filter(|_| member);
        let mut nodes: Vec<Node> = target
            .into_iter()
            .chain(args)
            .map(|arg| self.node(arg))
            .collect();
        match (name, nodes.len()) {
            (op::CONDITIONAL, 3) => three(nodes).map_or(Node::Constant(Value::Null), |args| {
                Node::Conditional(Box::new(args))
            }),
            (op::AND | op::OR | "or" | "orValue", 2) => {
                let Some(args) = two(nodes) else {
                    return Node::Constant(Value::Null);
                };
                let args = Box::new(args);
                match name {
                    op::AND => Node::And(args),
                    op::OR => Node::Or(args),
                    _ => Node::OptionalOr { function, args },
                }
            }
            (op::NOT_STRICTLY_FALSE, 1) => Node::NotStrictlyFalse(Box::new(nodes.remove(0))),
            _ => {
                if let Some(Node::Constant(value)) = nodes.get_mut(1)
                    && let Value::String(text) = value
                    && let Some(pattern) = functions::regex::constant(name, text)
                {
                    *value = Value::Library(pattern);
                }
                Node::Call {
                    function,
                    args: nodes,
                }
            }
        }
    }

    fn slot(&mut self, name: &Arc<str>) -> usize {
        self.scopes.push((name.clone(), self.locals));
        self.locals += 1;
        self.locals - 1
    }

    fn fold(&mut self, fold: &Comprehension) -> Node {
        let range = self.node(&fold.range);
        let init = self.node(&fold.init);
        let outside = self.scopes.len();
        let accumulator = self.slot(&fold.accumulator);
        let block = self.scopes.len();
        let variable = self.slot(&fold.variable);
        let variable2 = fold.variable2.as_ref().map(|name| self.slot(name));
        let condition = self.node(&fold.condition);
        let step = self.step(fold);
        self.scopes.truncate(block);
        let result = self.node(&fold.result);
        self.scopes.truncate(outside);
        Node::Fold(Box::new(Fold {
            range,
            variable,
            variable2,
            accumulator,
            init,
            condition,
            step,
            result,
        }))
    }

    fn step(&mut self, fold: &Comprehension) -> Step {
        let (filter, then) = match &fold.step.kind {
            Kind::Call { function, args, .. } if &**function == op::CONDITIONAL => {
                match args.as_slice() {
                    [filter, then, otherwise] if is_accumulator(otherwise) => (Some(filter), then),
                    _ => (None, &fold.step),
                }
            }
            _ => (None, &fold.step),
        };
        if let Some(element) = appended(then) {
            return Step::Append {
                filter: filter.map(|filter| self.node(filter)),
                element: self.node(element),
            };
        }
        if let Some(entry) = inserted(then) {
            return Step::Insert {
                filter: filter.map(|filter| self.node(filter)),
                entry: entry.iter().map(|part| self.node(part)).collect(),
            };
        }
        Step::Any(self.node(&fold.step))
    }
}

fn is_accumulator(expr: &Expr) -> bool {
    matches!(&expr.kind, Kind::Ident(name) if &**name == crate::ast::ACCUMULATOR)
}

/// The key and value, or the map, of `cel.@mapInsert(@result, ...)`.
fn inserted(expr: &Expr) -> Option<&[Expr]> {
    match &expr.kind {
        Kind::Call { function, args, .. } if &**function == op::MAP_INSERT => {
            let (accumulator, entry) = args.split_first()?;
            is_accumulator(accumulator).then_some(entry)
        }
        _ => None,
    }
}

/// `x` of `@result + [x]`.
fn appended(expr: &Expr) -> Option<&Expr> {
    let Kind::Call { function, args, .. } = &expr.kind else {
        return None;
    };
    let [accumulator, list] = args.as_slice() else {
        return None;
    };
    match (&accumulator.kind, &list.kind) {
        (Kind::Ident(name), Kind::List { elements })
            if &**function == op::ADD
                && &**name == crate::ast::ACCUMULATOR
                && elements.len() == 1
                && !elements[0].optional =>
        {
            Some(&elements[0].value)
        }
        _ => None,
    }
}

fn two(nodes: Vec<Node>) -> Option<[Node; 2]> {
    nodes.try_into().ok()
}

fn three(nodes: Vec<Node>) -> Option<[Node; 3]> {
    nodes.try_into().ok()
}

fn constant(literal: &Literal) -> Value<'static> {
    match literal {
        Literal::Null => Value::Null,
        Literal::Bool(value) => Value::Bool(*value),
        Literal::Int(value) => Value::Int(*value),
        Literal::Uint(value) => Value::Uint(*value),
        Literal::Double(value) => Value::Double(*value),
        Literal::String(text) => Value::String(Text::Shared(text.clone())),
        Literal::Bytes(bytes) => Value::Bytes(bytes.clone()),
    }
}

impl Node {
    /// A list of constants is a constant.
    fn folded(self) -> Self {
        let Self::List(elements) = &self else {
            return self;
        };
        let constants: Option<Vec<Value<'static>>> = elements
            .iter()
            .map(|element| match element {
                (Node::Constant(value), false) => Some(value.clone()),
                _ => None,
            })
            .collect();
        match constants {
            Some(items) if !items.is_empty() => Self::Constant(Value::list(items)),
            _ => self,
        }
    }
}

struct Evaluator<'e, 'a> {
    variables: &'e [Value<'a>],
    lazy: Option<&'e dyn Lazy<'a>>,
    /// An accumulator may hold an error that a later element overrules.
    locals: Vec<Result<Value<'a>>>,
    cost: u64,
    limit: u64,
}

impl<'a> Evaluator<'_, 'a> {
    fn charge(&mut self, cost: u64) -> Result<()> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limit {
            return Err(meter::exceeded());
        }
        Ok(())
    }

    fn node(&mut self, node: &'a Node) -> Result<Value<'a>> {
        match node {
            Node::Constant(value) => Ok(value.clone()),
            Node::Variable { slot, name } => {
                self.charge(runtime::SELECT)?;
                let value = self.variables.get(*slot).cloned();
                value.ok_or_else(|| Error::new(format!("no such attribute(s): {name}")))
            }
            // The variable and the selection; what the field costs is counted by whoever works it out.
            Node::Lazy(field) => {
                self.charge(2 * runtime::SELECT)?;
                self.lazy_field(field)
            }
            Node::LazyHas(field) => {
                self.charge(runtime::SELECT)?;
                self.lazy_field(field).map(|_| Value::Bool(true))
            }
            Node::Local(slot) => {
                self.charge(runtime::SELECT)?;
                self.locals[*slot].clone()
            }
            Node::Select { operand, field } => {
                let value = self.node(operand)?;
                self.charge(runtime::SELECT)?;
                value.get(field)
            }
            Node::Has { operand, field } => {
                let value = self.node(operand)?;
                value.has(field).map(Value::Bool)
            }
            Node::Conditional(args) => match self.node(&args[0])? {
                Value::Bool(true) => self.node(&args[1]),
                Value::Bool(false) => self.node(&args[2]),
                _ => Err(Error::no_such_overload()),
            },
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
            Node::OptionalOr { function, args } => {
                let first = self.node(&args[0])?;
                let second = match &first {
                    Value::Optional(Some(_)) => Value::Null,
                    _ => self.node(&args[1])?,
                };
                self.charge(1)?;
                (function.call)(&[first, second])
            }
            Node::Call { function, args } => self.call(function, args),
            Node::List(elements) => self.list(elements),
            Node::Map(entries) => {
                let map = self.entries(entries)?;
                self.charge(runtime::MAP)?;
                Value::Map(Map::Owned(Arc::new(map))).shallow()
            }
            Node::Object { name, fields } => {
                let object = self.entries(fields)?.named(name.clone());
                self.charge(runtime::OBJECT)?;
                Value::Map(Map::Owned(Arc::new(object))).shallow()
            }
            Node::Fold(fold) => self.fold(fold),
        }
    }

    fn lazy_field(&self, field: &str) -> Result<Value<'a>> {
        match self.lazy {
            Some(lazy) => lazy.field(field),
            None => Err(Error::no_such_key(field)),
        }
    }

    /// `&&` and `||`: an error loses against a side that decides.
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

    fn call(&mut self, function: &'static Function, nodes: &'a [Node]) -> Result<Value<'a>> {
        // Nearly all calls have few arguments: no allocation for those.
        let mut few = [const { Value::Null }; 3];
        let mut many = Vec::new();
        let args: &[Value<'a>] = if nodes.len() <= few.len() {
            for (place, node) in few.iter_mut().zip(nodes) {
                *place = self.node(node)?;
            }
            &few[..nodes.len()]
        } else {
            for node in nodes {
                many.push(self.node(node)?);
            }
            &many
        };
        // What a call costs hangs on its arguments, sometimes on its result: charged before the
        // work where that is possible.
        let before = runtime::before(function.name, args);
        if let Some(cost) = before {
            self.charge(cost)?;
        }
        let result = (function.call)(args);
        if before.is_none() {
            self.charge(runtime::after(function.name, result.as_ref().ok()))?;
        }
        result.and_then(Value::shallow)
    }

    fn list(&mut self, elements: &'a [(Node, bool)]) -> Result<Value<'a>> {
        let mut items = Vec::with_capacity(elements.len());
        for (node, optional) in elements {
            let value = self.node(node)?;
            match value {
                Value::Optional(None) if *optional => {}
                Value::Optional(Some(value)) if *optional => items.push((*value).clone()),
                _ if *optional => return Err(Error::no_such_overload()),
                value => items.push(value),
            }
        }
        self.charge(runtime::LIST)?;
        Value::list(items).shallow()
    }

    fn entries(&mut self, entries: &'a [(Node, Node, bool)]) -> Result<OwnedMap<'a>> {
        let mut map = OwnedMap::default();
        for (key, value, optional) in entries {
            let key = self.node(key)?;
            let value = self.node(value)?;
            match value {
                Value::Optional(None) if *optional => {}
                Value::Optional(Some(value)) if *optional => map.insert(key, (*value).clone())?,
                _ if *optional => return Err(Error::no_such_overload()),
                value => map.insert(key, value)?,
            }
        }
        Ok(map)
    }

    fn fold(&mut self, fold: &'a Fold) -> Result<Value<'a>> {
        let range = self.node(&fold.range)?;
        self.locals[fold.accumulator] = Ok(self.node(&fold.init)?);
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
            Value::Map(map) => {
                let entries: Vec<_> = map.iter().collect::<Result<_>>()?;
                for (key, value) in entries {
                    if !self.iterate(fold, key, value, false)? {
                        break;
                    }
                }
            }
            _ => return Err(Error::no_such_overload()),
        }
        let result = self.node(&fold.result);
        self.locals[fold.accumulator] = Ok(Value::Null);
        result
    }

    /// One step; false when the loop is done.
    fn iterate(
        &mut self,
        fold: &'a Fold,
        key: Value<'a>,
        value: Value<'a>,
        is_list: bool,
    ) -> Result<bool> {
        match fold.variable2 {
            Some(second) => {
                self.locals[fold.variable] = Ok(key);
                self.locals[second] = Ok(value);
            }
            None => self.locals[fold.variable] = Ok(if is_list { value } else { key }),
        }
        match self.node(&fold.condition) {
            Ok(Value::Bool(false)) => return Ok(false),
            Err(error) if error.fatal => return Err(error),
            _ => {}
        }
        match &fold.step {
            Step::Any(node) => {
                // `all` and `exists` go on after an error: a later element may decide.
                match self.node(node) {
                    Err(error) if error.fatal => return Err(error),
                    step => self.locals[fold.accumulator] = step,
                }
            }
            Step::Append { filter, element } => {
                if let Some(filter) = filter {
                    match self.node(filter)? {
                        Value::Bool(true) => {}
                        Value::Bool(false) => {
                            self.charge(runtime::SELECT)?;
                            return Ok(true);
                        }
                        _ => return Err(Error::no_such_overload()),
                    }
                }
                let element = self.node(element)?;
                // As if `accumulator + [element]` were evaluated.
                self.charge(runtime::SELECT + runtime::LIST + 1)?;
                self.append(fold.accumulator, element)?;
            }
            Step::Insert { filter, entry } => {
                if self.locals[fold.accumulator].is_err() {
                    return Ok(true);
                }
                match self.insert(fold.accumulator, filter.as_ref(), entry) {
                    Err(error) if error.fatal => return Err(error),
                    Err(error) => self.locals[fold.accumulator] = Err(error),
                    Ok(()) => {}
                }
            }
        }
        Ok(true)
    }

    fn append(&mut self, accumulator: usize, element: Value<'a>) -> Result<()> {
        match &mut self.locals[accumulator] {
            Ok(Value::List(crate::value::List::Owned(items))) => {
                Arc::make_mut(items).push(element.shallow()?);
                Ok(())
            }
            _ => Err(Error::no_such_overload()),
        }
    }

    /// As if `cel.@mapInsert(accumulator, entry...)` were evaluated.
    fn insert(
        &mut self,
        accumulator: usize,
        filter: Option<&'a Node>,
        entry: &'a [Node],
    ) -> Result<()> {
        if let Some(filter) = filter {
            match self.node(filter)? {
                Value::Bool(true) => {}
                Value::Bool(false) => return self.charge(runtime::SELECT),
                _ => return Err(Error::no_such_overload()),
            }
        }
        self.charge(runtime::SELECT)?;
        let mut values = Vec::with_capacity(entry.len());
        for node in entry {
            values.push(self.node(node)?.shallow()?);
        }
        self.charge(1)?;
        let Ok(Value::Map(map)) = &mut self.locals[accumulator] else {
            return Err(Error::no_such_overload());
        };
        match (map, <[Value<'a>; 2]>::try_from(values)) {
            (Map::Owned(map), Ok([key, value])) => Arc::make_mut(map).insert(key, value),
            (Map::Owned(map), Err(values)) => match values.as_slice() {
                [Value::Map(entries)] => {
                    let mut entries = entries.iter();
                    entries.try_for_each(|entry| {
                        let (key, value) = entry?;
                        Arc::make_mut(map).insert(key, value)
                    })
                }
                _ => Err(Error::no_such_overload()),
            },
            _ => Err(Error::no_such_overload()),
        }
    }
}
