//! The type checker: resolves names and overloads, and finds every error that does not depend on
//! values. Messages are upstream's, since users see them in responses and statuses.

use std::{collections::HashMap, sync::Arc};

use crate::{
    ast::{Comprehension, Element, Expr, Id, Kind, Literal, MapEntry, StructField, op},
    env::{Env, named_type},
    functions::Function,
    literals,
    parser::{Parsed, parse_in},
    source::{Issue, Issues},
    types::{Param, Type},
    unify::{Mapping, most_general},
};

/// The resolution of a name or a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Reference {
    /// A variable of the environment or of a comprehension.
    Variable(Arc<str>),
    /// A type as a value.
    Type(Type),
    /// A function with its possible overloads.
    Overloads(&'static str, Vec<&'static str>),
}

/// A checked expression.
#[derive(Debug, Clone)]
pub struct Checked {
    pub parsed: Parsed,
    /// Type by node id.
    pub types: Vec<Type>,
    pub references: HashMap<Id, Reference>,
}

impl Checked {
    pub fn output(&self) -> &Type {
        self.type_of(&self.parsed.root)
    }

    pub fn type_of(&self, expr: &Expr) -> &Type {
        &self.types[expr.id as usize]
    }

    /// Whether a field of a variable is selected by its name.
    pub fn selects(&self, variable: &str, field: &str) -> bool {
        selects(&self.parsed.root, variable, field)
    }

    /// Whether a variable is used.
    pub fn refers_to(&self, name: &str) -> bool {
        let mut references = self.references.values();
        references.any(|reference| matches!(reference, Reference::Variable(n) if &**n == name))
    }
}

/// Parses and checks an expression.
pub fn compile(env: &Env, text: &str) -> Result<Checked, Issues> {
    check(env, parse_in(env, text)?)
}

/// Checks a parsed expression.
pub fn check(env: &Env, parsed: Parsed) -> Result<Checked, Issues> {
    let mut checker = Checker {
        env,
        positions: &parsed.positions,
        mapping: Mapping::default(),
        variables: 0,
        types: vec![None; parsed.positions.len()],
        references: HashMap::new(),
        scopes: Vec::new(),
        issues: Vec::new(),
        refused: None,
    };
    checker.expr(&parsed.root);
    let Checker {
        mapping,
        types,
        references,
        issues,
        refused,
        ..
    } = checker;
    if let Some(offset) = refused {
        return Err(Issues::new(parsed.source, vec![too_large(offset)]));
    }
    if !issues.is_empty() {
        return Err(Issues::new(parsed.source, issues));
    }
    let resolve = |t: Option<Type>| t.map_or(Type::Dyn, |t| mapping.substitute(&t, true));
    let types = types.into_iter().map(resolve).collect();
    if mapping.exceeded() {
        return Err(Issues::new(parsed.source, vec![too_large(0)]));
    }
    let checked = Checked {
        types,
        references,
        parsed,
    };
    let issues = literals::check(&checked);
    match issues.is_empty() {
        true => Ok(checked),
        false => Err(Issues::new(checked.parsed.source, issues)),
    }
}

struct Checker<'a> {
    env: &'a Env,
    positions: &'a [u32],
    mapping: Mapping,
    /// The number of type variables created.
    variables: u32,
    types: Vec<Option<Type>>,
    references: HashMap<Id, Reference>,
    /// Variables of the enclosing comprehensions, innermost last.
    scopes: Vec<(Arc<str>, Type)>,
    issues: Vec<Issue>,
    /// Where types became too deep or too large: later errors are consequences.
    refused: Option<u32>,
}

impl Checker<'_> {
    fn issue(&mut self, id: Id, message: String) {
        self.issues.push(Issue {
            offset: self.positions[id as usize],
            message,
        });
    }

    fn set(&mut self, id: Id, t: Type) -> Type {
        let t = match self.mapping.admits(&t) {
            true => t,
            false => Type::Error,
        };
        if self.mapping.exceeded() {
            self.refused.get_or_insert(self.positions[id as usize]);
        }
        self.types[id as usize] = Some(t.clone());
        t
    }

    fn new_variable(&mut self) -> Type {
        self.variables += 1;
        Type::Param(Param::Variable(self.variables - 1))
    }

    fn mismatch(&mut self, id: Id, expected: &Type, found: &Type) {
        self.issue(
            id,
            format!("expected type '{expected}' but found '{found}'"),
        );
    }

    fn undeclared(&mut self, id: Id, name: &str) -> Type {
        self.issue(
            id,
            format!("undeclared reference to '{name}' (in container '')"),
        );
        self.set(id, Type::Error)
    }

    fn expr(&mut self, expr: &Expr) -> Type {
        match &expr.kind {
            Kind::Literal(literal) => self.set(expr.id, literal_type(literal)),
            Kind::Ident(name) => match self.lookup(expr.id, name) {
                Some(t) => t,
                None => self.undeclared(expr.id, name),
            },
            Kind::Select {
                operand,
                field,
                test,
            } => self.select(expr, operand, field, *test),
            Kind::Call {
                function,
                target,
                args,
            } => self.call(expr, function, target.as_deref(), args),
            Kind::List { elements } => self.list(expr.id, elements),
            Kind::Map { entries } => self.map(expr.id, entries),
            Kind::Struct { name, fields } => self.construct(expr.id, name, fields),
            Kind::Comprehension(comprehension) => self.comprehension(expr.id, comprehension),
        }
    }

    /// Resolves a name as a variable or a type.
    fn lookup(&mut self, id: Id, name: &str) -> Option<Type> {
        // As upstream: a leading dot does not skip the variables of comprehensions.
        let name = name.strip_prefix('.').unwrap_or(name);
        let scoped = self.scopes.iter().rev().find(|(n, _)| &**n == name);
        let variable = scoped
            .map(|(name, t)| (name.clone(), t.clone()))
            .or_else(|| {
                let variable = self.env.find(name)?;
                Some((variable.name.clone(), variable.cel_type.clone()))
            });
        if let Some((name, t)) = variable {
            self.references.insert(id, Reference::Variable(name));
            return Some(self.set(id, t));
        }
        let named = named_type(name).or_else(|| self.env.object_type(name))?;
        self.references.insert(id, Reference::Type(named.clone()));
        Some(self.set(id, Type::Type(Arc::new(named))))
    }

    fn select(&mut self, expr: &Expr, operand: &Expr, field: &str, test: bool) -> Type {
        if !test
            && let Some(name) = expr.qualified_name()
            && let Some(t) = self.lookup(expr.id, &name)
        {
            return t;
        }
        let mut result = self.select_field(expr.id, operand, field, false);
        if test {
            result = Type::Bool;
        }
        let result = self.mapping.substitute(&result, false);
        self.set(expr.id, result)
    }

    fn select_field(&mut self, id: Id, operand: &Expr, field: &str, optional: bool) -> Type {
        let operand_type = self.expr(operand);
        let operand_type = self.mapping.substitute(&operand_type, false);
        let (target, was_optional) = operand_type.unwrap_optional();
        let result = match target {
            Type::Map(_, value) => (**value).clone(),
            Type::Struct(name) if !name.is_empty() => self.field_type(id, name, field),
            Type::Param(_) => {
                self.mapping.assign(&Type::Dyn, target);
                Type::Dyn
            }
            other => {
                if !other.is_dyn_or_error() {
                    self.issue(
                        id,
                        format!("type '{other}' does not support field selection"),
                    );
                }
                Type::Dyn
            }
        };
        if was_optional || optional {
            Type::optional(result)
        } else {
            result
        }
    }

    fn field_type(&mut self, id: Id, object: &str, field: &str) -> Type {
        match self.env.field_type(object, field) {
            Some(declared) => declared,
            None => {
                self.issue(
                    id,
                    match self.env.has_object(object) {
                        true => format!("undefined field '{field}'"),
                        false => format!("unexpected failed resolution of '{object}'"),
                    },
                );
                Type::Error
            }
        }
    }

    fn call(&mut self, expr: &Expr, name: &str, target: Option<&Expr>, args: &[Expr]) -> Type {
        if name == op::OPTIONAL_SELECT
            && let [operand, field] = args
            && let Kind::Literal(Literal::String(name)) = &field.kind
        {
            let result = self.select_field(expr.id, operand, name, true);
            let result = self.mapping.substitute(&result, false);
            self.set(field.id, Type::String);
            let overloads =
                Reference::Overloads(op::OPTIONAL_SELECT, vec!["select_optional_field"]);
            self.references.insert(expr.id, overloads);
            return self.set(expr.id, result);
        }
        let mut types: Vec<Type> = args.iter().map(|arg| self.expr(arg)).collect();
        let Some(target) = target else {
            return match self.env.function(name.strip_prefix('.').unwrap_or(name)) {
                Some(function) => self.overload(expr, function, None, args, types),
                None => self.undeclared(expr.id, name),
            };
        };
        // `a.b.c()` is the function `a.b.c`, or `c` of `a.b`.
        if let Some(prefix) = target.qualified_name()
            && let prefix = prefix.strip_prefix('.').unwrap_or(&prefix)
            && let Some(function) = self.env.function(&format!("{prefix}.{name}"))
        {
            return self.overload(expr, function, None, args, types);
        }
        types.insert(0, self.expr(target));
        match self.env.function(name) {
            Some(function) => self.overload(expr, function, Some(target), args, types),
            None => self.undeclared(expr.id, name),
        }
    }

    fn overload(
        &mut self,
        expr: &Expr,
        function: &'static Function,
        target: Option<&Expr>,
        args: &[Expr],
        types: Vec<Type>,
    ) -> Type {
        if matches!(function.name, op::AND | op::OR) {
            return self.logical(expr.id, function, args, &types);
        }
        let mut result: Option<Type> = None;
        let mut matching = Vec::new();
        let candidates = function.overloads.iter();
        for overload in candidates.filter(|overload| overload.member == target.is_some()) {
            let fresh: HashMap<char, Type> = overload
                .params
                .iter()
                .map(|param| (*param, self.new_variable()))
                .collect();
            let instance = |t: &Type| instantiate(t, &fresh);
            let wanted: Vec<Type> = overload.args.iter().map(instance).collect();
            if !self.mapping.assign_all(&types, &wanted) {
                continue;
            }
            matching.push(overload.id);
            let returns = self.mapping.substitute(&instance(&overload.result), false);
            result = Some(match result {
                None => returns,
                Some(earlier) if earlier.is_dyn() || earlier == returns => earlier,
                Some(_) => Type::Dyn,
            });
        }
        let Some(result) = result else {
            return self.no_overload(expr.id, function.name, &types, target.is_some());
        };
        let reference = Reference::Overloads(function.name, matching);
        self.references.insert(expr.id, reference);
        self.set(expr.id, result)
    }

    fn logical(
        &mut self,
        id: Id,
        function: &'static Function,
        args: &[Expr],
        types: &[Type],
    ) -> Type {
        let mut fine = true;
        for (arg, t) in args.iter().zip(types) {
            if !self.mapping.assign(t, &Type::Bool) {
                self.mismatch(arg.id, &Type::Bool, t);
                fine = false;
            }
        }
        let overload = function.overloads[0].id;
        let reference = Reference::Overloads(function.name, vec![overload]);
        self.references.insert(id, reference);
        self.set(id, if fine { Type::Bool } else { Type::Error })
    }

    fn no_overload(&mut self, id: Id, name: &str, types: &[Type], member: bool) -> Type {
        let types = types.iter().map(|t| self.mapping.substitute(t, true));
        let mut types: Vec<String> = types.map(|t| t.to_string()).collect();
        let receiver = match member {
            true => format!("{}.", types.remove(0)),
            false => String::new(),
        };
        let signature = format!("{receiver}({})", types.join(", "));
        self.issue(
            id,
            format!("found no matching overload for '{name}' applied to '{signature}'"),
        );
        self.set(id, Type::Error)
    }

    fn list(&mut self, id: Id, elements: &[Element]) -> Type {
        let mut joined = None;
        for element in elements {
            let mut t = self.expr(&element.value);
            if element.optional {
                t = self.unwrap(element.value.id, t);
            }
            joined = Some(self.join(joined, t));
        }
        let element = joined.unwrap_or_else(|| self.new_variable());
        self.set(id, Type::list(element))
    }

    /// The type inside of an expected optional.
    fn unwrap(&mut self, id: Id, t: Type) -> Type {
        let (inner, optional) = t.unwrap_optional();
        if !optional && !inner.is_dyn() {
            let expected = Type::optional(inner.clone());
            self.mismatch(id, &expected, inner);
        }
        inner.clone()
    }

    fn join(&mut self, previous: Option<Type>, current: Type) -> Type {
        let Some(previous) = previous else {
            return current;
        };
        match self.mapping.assign(&previous, &current) {
            true => most_general(&previous, &current),
            false => Type::Dyn,
        }
    }

    fn map(&mut self, id: Id, entries: &[MapEntry]) -> Type {
        let (mut keys, mut values) = (None, None);
        for entry in entries {
            let key = self.expr(&entry.key);
            keys = Some(self.join(keys, key));
            let mut value = self.expr(&entry.value);
            if entry.optional {
                value = self.unwrap(entry.value.id, value);
            }
            values = Some(self.join(values, value));
        }
        let key = keys.unwrap_or_else(|| self.new_variable());
        let value = values.unwrap_or_else(|| self.new_variable());
        self.set(id, Type::map(key, value))
    }

    fn construct(&mut self, id: Id, name: &str, fields: &[StructField]) -> Type {
        let Some(Type::Type(inner)) = self.lookup(id, name) else {
            return self.undeclared(id, name);
        };
        let Type::Struct(object) = &*inner else {
            self.issue(id, format!("'{inner}' is not a message type"));
            return self.set(id, Type::Error);
        };
        for field in fields {
            let mut value = self.expr(&field.value);
            let wanted = self.field_type(field.id, object, &field.name);
            if field.optional {
                value = self.unwrap(field.value.id, value);
            }
            if !self.mapping.assign(&wanted, &value) {
                self.issue(
                    field.id,
                    format!(
                        "expected type of field '{}' is '{wanted}' but provided type is '{value}'",
                        field.name
                    ),
                );
            }
        }
        self.set(id, (*inner).clone())
    }

    fn comprehension(&mut self, id: Id, fold: &Comprehension) -> Type {
        let range = self.expr(&fold.range);
        let init = self.expr(&fold.init);
        let range = self.mapping.substitute(&range, false);
        let two = fold.variable2.is_some();
        let (first, second) = match &range {
            Type::List(element) if two => (Type::Int, (**element).clone()),
            Type::List(element) => ((**element).clone(), Type::Dyn),
            Type::Map(key, value) => ((**key).clone(), (**value).clone()),
            Type::Dyn | Type::Error | Type::Param(_) => {
                self.mapping.assign(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.issue(fold.range.id, message);
                (Type::Error, Type::Error)
            }
        };
        let outside = self.scopes.len();
        self.scopes.push((fold.accumulator.clone(), init.clone()));
        let block = self.scopes.len();
        self.scopes.push((fold.variable.clone(), first));
        if let Some(variable) = &fold.variable2 {
            self.scopes.push((variable.clone(), second));
        }
        let condition = self.expr(&fold.condition);
        self.assert(fold.condition.id, &Type::Bool, &condition);
        let step = self.expr(&fold.step);
        self.assert(fold.step.id, &init, &step);
        self.scopes.truncate(block);
        let result = self.expr(&fold.result);
        self.scopes.truncate(outside);
        let result = self.mapping.substitute(&result, false);
        self.set(id, result)
    }

    fn assert(&mut self, id: Id, wanted: &Type, found: &Type) {
        if !self.mapping.assign(wanted, found) {
            self.mismatch(id, wanted, found);
        }
    }
}

fn selects(expr: &Expr, variable: &str, field: &str) -> bool {
    let is_variable = |expr: &Expr| matches!(&expr.kind, Kind::Ident(name) if &**name == variable);
    let found = match &expr.kind {
        Kind::Select {
            operand,
            field: name,
            ..
        } => is_variable(operand) && &**name == field,
        Kind::Call { function, args, .. } => match args.as_slice() {
            [operand, name] if &**function == op::OPTIONAL_SELECT => {
                let named =
                    matches!(&name.kind, Kind::Literal(Literal::String(text)) if &**text == field);
                is_variable(operand) && named
            }
            _ => false,
        },
        _ => false,
    };
    let mut below = false;
    expr.kind
        .for_each_child(&mut |child| below = below || selects(child, variable, field));
    found || below
}

/// Upstream has no such limit: it ends by running out of stack or memory.
fn too_large(offset: u32) -> Issue {
    Issue {
        offset,
        message: "type nesting or size limit exceeded".to_owned(),
    }
}

fn literal_type(literal: &Literal) -> Type {
    match literal {
        Literal::Null => Type::Null,
        Literal::Bool(_) => Type::Bool,
        Literal::Int(_) => Type::Int,
        Literal::Uint(_) => Type::Uint,
        Literal::Double(_) => Type::Double,
        Literal::String(_) => Type::String,
        Literal::Bytes(_) => Type::Bytes,
    }
}

/// A type of a signature with its parameters replaced by fresh variables.
fn instantiate(t: &Type, fresh: &HashMap<char, Type>) -> Type {
    match t {
        Type::Param(Param::Named(name)) => fresh.get(name).cloned().unwrap_or(Type::Dyn),
        Type::List(element) => Type::list(instantiate(element, fresh)),
        Type::Map(key, value) => Type::map(instantiate(key, fresh), instantiate(value, fresh)),
        Type::Optional(value) => Type::optional(instantiate(value, fresh)),
        Type::Type(value) => Type::Type(Arc::new(instantiate(value, fresh))),
        other => other.clone(),
    }
}
