//! Compiles a checked expression to nodes: resolves variables and functions, folds constants.

use std::{collections::BTreeSet, sync::Arc};

use super::node::{Attribute, Base, Call, Fold, Key, Node, Qualifier, Step};
use crate::{
    ast::{Comprehension, Expr, Kind, Literal, MapEntry, StructField, op},
    check::{Checked, Reference},
    cost::runtime::Rule,
    env::Env,
    functions::{self, Function, overload},
    meter,
    types::Type,
    value::{Error, Map, OwnedMap, Result, Text, Value, invalid_qualifier},
};

pub(super) struct Planner<'p> {
    env: &'p Env,
    checked: &'p Checked,
    scopes: Vec<(Arc<str>, usize)>,
    pub(super) locals: usize,
    /// The depth of the current node, and the maximum.
    depth: u32,
    pub(super) height: u32,
    pub(super) lazy_fields: BTreeSet<Arc<str>>,
}

impl<'p> Planner<'p> {
    pub(super) fn new(env: &'p Env, checked: &'p Checked) -> Self {
        Self {
            env,
            checked,
            scopes: Vec::new(),
            locals: 0,
            depth: 0,
            height: 0,
            lazy_fields: BTreeSet::new(),
        }
    }

    pub(super) fn node(&mut self, expr: &Expr) -> Result<Node> {
        self.depth += 1;
        self.height = self.height.max(self.depth);
        let node = self.planned(expr);
        self.depth -= 1;
        node
    }

    fn planned(&mut self, expr: &Expr) -> Result<Node> {
        match self.checked.references.get(&expr.id) {
            Some(Reference::Variable(name)) => return Ok(self.variable(name)),
            Some(Reference::Type(Type::Struct(name)))
                if !matches!(expr.kind, Kind::Struct { .. }) =>
            {
                // Known to the checker, but not to the evaluator.
                return Err(Error::new(format!("reference to undefined type: {name}")));
            }
            Some(Reference::Type(t)) if !matches!(expr.kind, Kind::Struct { .. }) => {
                return Ok(Node::Constant(Value::Type(t.clone())));
            }
            _ => {}
        }
        Ok(match &expr.kind {
            Kind::Literal(literal) => Node::Constant(constant(literal)),
            // The checker guarantees that every name has a reference.
            Kind::Ident(_) => Node::Constant(Value::Null),
            Kind::Select {
                operand,
                field,
                test,
            } => self.select(operand, field, *test)?,
            Kind::Call { target, args, .. } => self.call(expr, target.as_deref(), args)?,
            Kind::List { elements } => {
                let elements = elements.iter();
                let nodes = elements.map(|e| Ok((self.node(&e.value)?, e.optional)));
                folded_list(nodes.collect::<Result<_>>()?)
            }
            Kind::Map { entries } => {
                let entry =
                    |e: &MapEntry| Ok((self.node(&e.key)?, self.node(&e.value)?, e.optional));
                folded_map(entries.iter().map(entry).collect::<Result<_>>()?)?
            }
            Kind::Struct { name, fields } => {
                let field = |f: &StructField| {
                    let name = Node::Constant(Value::text(f.name.clone()));
                    Ok((name, self.node(&f.value)?, f.optional))
                };
                Node::Object {
                    name: name.strip_prefix('.').unwrap_or(name).into(),
                    fields: fields.iter().map(field).collect::<Result<_>>()?,
                }
            }
            Kind::Comprehension(fold) => self.fold(fold)?,
        })
    }

    fn select(&mut self, operand: &Expr, field: &Arc<str>, test: bool) -> Result<Node> {
        if self.is_lazy(operand) {
            return Ok(self.lazy_field(field, false, test));
        }
        let key = Key::Constant(Value::text(field.clone()));
        let mut attribute = self.node(operand)?.into_attribute();
        attribute.qualifiers.push(Qualifier {
            key,
            optional: false,
            is_field: match self.checked.type_of(operand) {
                Type::Struct(name) => self.env.is_object(name),
                _ => false,
            },
        });
        attribute.test = test;
        Ok(Node::Attribute(Box::new(attribute)))
    }

    /// `operand[key]`, `operand[?key]` and `operand.?field`.
    fn index(&mut self, operand: &Expr, key: &Expr, optional: bool) -> Result<Node> {
        if let Kind::Literal(Literal::String(field)) = &key.kind
            && self.is_lazy(operand)
        {
            return Ok(self.lazy_field(field, optional, false));
        }
        let mut attribute = self.node(operand)?.into_attribute();
        let key = match self.node(key)? {
            Node::Constant(value) => {
                invalid_qualifier(&value)?;
                Key::Constant(value)
            }
            node => Key::Attribute(node.into_attribute()),
        };
        attribute.qualifiers.push(Qualifier {
            key,
            optional,
            is_field: false,
        });
        Ok(Node::Attribute(Box::new(attribute)))
    }

    /// Whether an expression is the lazily evaluated variable.
    fn is_lazy(&self, expr: &Expr) -> bool {
        match self.checked.references.get(&expr.id) {
            Some(Reference::Variable(name)) => {
                self.env.is_lazy(name) && !self.scopes.iter().any(|(local, _)| local == name)
            }
            _ => false,
        }
    }

    /// A field of it, or a test for it: declared fields exist, unless they fail.
    fn lazy_field(&mut self, field: &Arc<str>, optional: bool, test: bool) -> Node {
        self.lazy_fields.insert(field.clone());
        let mut attribute = Attribute::from_base(Base::Lazy {
            field: field.clone(),
            optional,
            test,
        });
        attribute.test = test;
        Node::Attribute(Box::new(attribute))
    }

    fn variable(&self, name: &str) -> Node {
        let local = self.scopes.iter().rev().find(|(n, _)| &**n == name);
        let base = match (local, self.env.slot(name)) {
            (Some((_, slot)), _) => Base::Local(*slot),
            (None, Some(slot)) => Base::Variable {
                slot,
                name: name.into(),
            },
            (None, None) => return Node::Constant(Value::Null),
        };
        Node::Attribute(Box::new(Attribute::from_base(base)))
    }

    fn call(&mut self, expr: &Expr, target: Option<&Expr>, args: &[Expr]) -> Result<Node> {
        let (name, overloads) = match self.checked.references.get(&expr.id) {
            Some(Reference::Overloads(name, overloads)) => (*name, overloads.as_slice()),
            _ => ("", [].as_slice()),
        };
        let Some(function) = functions::lookup(name) else {
            return Ok(Node::Constant(Value::Null));
        };
        match (name, args) {
            (op::INDEX, [operand, key]) => return self.index(operand, key, false),
            (op::OPTIONAL_INDEX | op::OPTIONAL_SELECT, [operand, key]) => {
                return self.index(operand, key, true);
            }
            _ => {}
        }
        // A namespaced function has no receiver.
        let member = function.overloads.iter().any(|overload| overload.member);
        let target = target.filter(|_| member);
        let nodes = target.into_iter().chain(args);
        let nodes = nodes.map(|arg| self.node(arg)).collect::<Result<_>>()?;
        let overload = match overloads {
            [one] => one,
            _ => "",
        };
        combined(function, overload, nodes)
    }

    fn slot(&mut self, name: &Arc<str>) -> usize {
        self.scopes.push((name.clone(), self.locals));
        self.locals += 1;
        self.locals - 1
    }

    fn fold(&mut self, fold: &Comprehension) -> Result<Node> {
        let range = self.node(&fold.range)?;
        let mut init = self.node(&fold.init)?;
        let outside = self.scopes.len();
        let accumulator = self.slot(&fold.accumulator);
        let block = self.scopes.len();
        let variable = self.slot(&fold.variable);
        let variable2 = fold.variable2.as_ref().map(|name| self.slot(name));
        let condition = self.node(&fold.condition)?;
        let step = self.step(fold)?;
        if let (Step::Insert { .. }, Node::Constant(Value::Map(Map::Owned(map)))) =
            (&step, &mut init)
        {
            let made = Arc::unwrap_or_clone(std::mem::take(map));
            *map = Arc::new(made.of_comprehension());
        }
        self.scopes.truncate(block);
        let result = self.node(&fold.result)?;
        self.scopes.truncate(outside);
        Ok(Node::Fold(Box::new(Fold {
            range,
            variable,
            variable2,
            accumulator,
            init,
            condition,
            step,
            result,
        })))
    }

    fn step(&mut self, fold: &Comprehension) -> Result<Step> {
        let (filter, then) = match &fold.step.kind {
            Kind::Call { function, args, .. } if &**function == op::CONDITIONAL => {
                match args.as_slice() {
                    [filter, then, otherwise] if is_accumulator(otherwise) => (Some(filter), then),
                    _ => (None, &fold.step),
                }
            }
            _ => (None, &fold.step),
        };
        let mut filter = || filter.map(|filter| self.node(filter)).transpose();
        Ok(match (appended(then), inserted(then)) {
            (Some(element), _) => Step::Append {
                filter: filter()?,
                element: self.node(element)?,
            },
            (None, Some(entry)) => Step::Insert {
                filter: filter()?,
                entry: entry.iter().map(|e| self.node(e)).collect::<Result<_>>()?,
            },
            (None, None) => Step::Any(self.node(&fold.step)?),
        })
    }
}

/// A call of a function, or its replacement.
fn combined(
    function: &'static Function,
    overload: &'static str,
    mut nodes: Vec<Node>,
) -> Result<Node> {
    match (function.name, nodes.len()) {
        (op::CONDITIONAL, 3) => {
            let otherwise = nodes.remove(2).into_attribute();
            let then = nodes.remove(1).into_attribute();
            let parts = (nodes.remove(0), then, otherwise);
            let attribute = Attribute::from_base(Base::Conditional(Box::new(parts)));
            return Ok(Node::Attribute(Box::new(attribute)));
        }
        (op::AND | op::OR | "or" | "orValue", 2) => {
            let second = nodes.remove(1);
            let args = Box::new([nodes.remove(0), second]);
            return Ok(match function.name {
                op::AND => Node::And(args),
                op::OR => Node::Or(args),
                name => Node::OptionalOr {
                    unwrap: name == "orValue",
                    args,
                },
            });
        }
        (op::NOT_STRICTLY_FALSE, 1) => {
            return Ok(Node::NotStrictlyFalse(Box::new(nodes.remove(0))));
        }
        (op::IN, 2) if overload == "in_list" => {
            if let Some(list) = nodes[1].constant().and_then(hashed) {
                if list.is_empty() {
                    return Ok(Node::Constant(Value::Bool(false)));
                }
                let element = Box::new(nodes.remove(0));
                return Ok(Node::Member { element, list });
            }
        }
        (
            "bool" | "bytes" | "double" | "duration" | "dyn" | "int" | "string" | "timestamp"
            | "type" | "uint",
            1,
        ) => {
            if let Some(value) = nodes[0].constant() {
                let args = std::slice::from_ref(value);
                let value = meter::counted(|| (function.call)(args))
                    .map_err(|error| overload::named(error, function, args))?;
                return Ok(Node::Constant(value));
            }
        }
        _ => {}
    }
    let mut is_eager = is_eager(function, overload, nodes.len());
    if let Some(Node::Constant(value)) = nodes.get_mut(1)
        && let Value::String(text) = value
        && let Some(pattern) = functions::regex::constant(function.name, text)?
    {
        *value = Value::Library(pattern);
        is_eager = false;
    }
    Ok(Node::Call(Box::new(Call {
        function: functions::dispatched(function, overload),
        rule: Rule::new(function.name, overload),
        args: nodes,
        is_eager,
        first: resolved(function, overload),
    })))
}

/// The first argument of a function that upstream calls only by the overload that the checker resolved, also where the
/// type of the argument is not known: lists that are ordered or summed, and conversions.
fn resolved(function: &'static Function, overload: &str) -> Option<&'static Type> {
    if !matches!(
        function.name,
        "isSorted" | "max" | "min" | "sum" | "string" | "int" | "uint" | "double" | "bytes"
    ) {
        return None;
    }
    let mut overloads = function.overloads.iter();
    overloads
        .find(|known| known.id == overload)
        .and_then(|known| known.args.first())
}

/// Calls of two arguments are eager where upstream binds a binary function: operators, and other
/// functions if the checker resolved the overload.
fn is_eager(function: &Function, overload: &str, args: usize) -> bool {
    let is_operator = function.name.contains('_') || function.name.starts_with('@');
    let is_known = !overload.is_empty() || function.overloads.len() == 1;
    args < 3 && function.name != "format" && (is_operator || function.name == "matches" || is_known)
}

/// The elements of a constant list, if all can be keys of a hash map.
fn hashed(list: &Value<'static>) -> Option<Vec<Value<'static>>> {
    let Value::List(list) = list else {
        return None;
    };
    let is_plain = |value: &Value<'_>| {
        matches!(
            value,
            Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::String(_)
        )
    };
    let elements: Vec<Value<'static>> = list.iter().collect::<Result<_>>().ok()?;
    elements.iter().all(is_plain).then_some(elements)
}

fn folded_list(elements: Vec<(Node, bool)>) -> Node {
    let constants = elements.iter().map(|(node, _)| node.constant().cloned());
    match constants.collect::<Option<Vec<_>>>() {
        Some(items) => Node::Constant(Value::list(items)),
        None => Node::List(elements),
    }
}

fn folded_map(entries: Vec<(Node, Node, bool)>) -> Result<Node> {
    let constant = |(key, value, _): &(Node, Node, bool)| {
        Some((key.constant()?.clone(), value.constant()?.clone()))
    };
    let Some(constants) = entries.iter().map(constant).collect::<Option<Vec<_>>>() else {
        return Ok(Node::Map(entries));
    };
    let mut map = OwnedMap::default();
    for (key, value) in constants {
        map.set(key, value)?;
    }
    Ok(Node::Constant(Value::Map(Map::Owned(Arc::new(map)))))
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
    match &list.kind {
        Kind::List { elements }
            if &**function == op::ADD
                && is_accumulator(accumulator)
                && elements.len() == 1
                && !elements[0].optional =>
        {
            Some(&elements[0].value)
        }
        _ => None,
    }
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
