//! The minimum and maximum cost of an expression, by the declared sizes of its inputs.

use std::{collections::HashMap, sync::Arc};

pub use super::range::Range;
use super::{REGEX_LENGTH, STRING_TRAVERSAL};
use crate::{
    ast::{Comprehension, Element, Expr, Id, Kind, Literal, MapEntry, op},
    check::{Checked, Reference},
    decl::DeclKind,
    env::Env,
    types::Type,
};

/// Sizes of the entries of a list or map.
#[derive(Debug, Clone, Copy)]
struct EntrySize {
    key: Range,
    value: Range,
}

impl EntrySize {
    fn union(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        let (a, b) = (a?, b?);
        Some(Self {
            key: a.key.union(b.key),
            value: a.value.union(b.value),
        })
    }
}

#[derive(Debug, Clone)]
struct Local {
    path: Vec<Arc<str>>,
    size: Option<Range>,
    entry: Option<EntrySize>,
}

/// The estimated cost of a checked expression.
pub fn estimate(env: &Env, checked: &Checked) -> Range {
    let mut estimator = Estimator {
        env,
        checked,
        paths: HashMap::new(),
        sizes: HashMap::new(),
        entries: HashMap::new(),
        locals: Vec::new(),
    };
    estimator.cost(&checked.parsed.root)
}

struct Estimator<'e> {
    env: &'e Env,
    checked: &'e Checked,
    /// The field path of a node, from a variable.
    paths: HashMap<Id, Vec<Arc<str>>>,
    sizes: HashMap<Id, Range>,
    entries: HashMap<Id, EntrySize>,
    locals: Vec<(Arc<str>, Local)>,
}

/// An argument of a call, with its size.
struct Argument<'e> {
    expr: &'e Expr,
    cost: Range,
}

impl<'e> Estimator<'e> {
    fn cost(&mut self, expr: &'e Expr) -> Range {
        if self.is_name(expr) {
            return Range::fixed(1);
        }
        match &expr.kind {
            Kind::Literal(_) => Range::ZERO,
            Kind::Ident(_) => Range::fixed(1),
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
            Kind::List { elements } => self.list(expr, elements),
            Kind::Map { entries } => self.map(expr, entries),
            Kind::Struct { fields, .. } => fields
                .iter()
                .map(|field| self.cost(&field.value))
                .fold(Range::fixed(40), Range::add),
            Kind::Comprehension(fold) => match is_bind(fold) {
                true => self.bind(expr, fold),
                false => self.fold(expr, fold),
            },
        }
    }

    /// Whether an expression is the name of a variable or type; if so, its path is known.
    fn is_name(&mut self, expr: &Expr) -> bool {
        let path = match self.checked.references.get(&expr.id) {
            Some(Reference::Variable(name)) => match self.local(name) {
                Some(local) => local.path.clone(),
                None => vec![name.clone()],
            },
            Some(Reference::Type(_)) if !matches!(expr.kind, Kind::Struct { .. }) => {
                vec!["type".into()]
            }
            _ => return false,
        };
        self.paths.insert(expr.id, path);
        true
    }

    fn local(&self, name: &str) -> Option<&Local> {
        let found = self.locals.iter().rev().find(|(n, _)| &**n == name);
        found.map(|(_, local)| local)
    }

    fn path(&self, expr: &Expr) -> Vec<Arc<str>> {
        if let Kind::Ident(name) = &expr.kind
            && let Some(local) = self.local(name)
        {
            return local.path.clone();
        }
        self.paths.get(&expr.id).cloned().unwrap_or_default()
    }

    fn extend(&mut self, expr: &Expr, from: &Expr, step: &str) {
        let mut path = self.path(from);
        path.push(step.into());
        self.paths.insert(expr.id, path);
    }

    fn select(&mut self, expr: &Expr, operand: &'e Expr, field: &str, test: bool) -> Range {
        let mut sum = self.cost(operand);
        if test {
            return sum;
        }
        if matches!(
            self.checked.type_of(operand),
            Type::Map(..) | Type::Struct(_) | Type::Param(_)
        ) {
            sum = sum.add(Range::fixed(1));
        }
        self.extend(expr, operand, field);
        sum
    }

    fn list(&mut self, expr: &Expr, elements: &'e [Element]) -> Range {
        let (mut sum, mut item) = (Range::fixed(10), None);
        for element in elements {
            sum = sum.add(self.cost(&element.value));
            let size = self.size_or_unknown(&element.value);
            item = Some(item.map_or(size, |item: Range| item.union(size)));
        }
        let entry = EntrySize {
            key: Range::fixed(1),
            value: item.unwrap_or(Range::ZERO),
        };
        self.entries.insert(expr.id, entry);
        sum
    }

    fn map(&mut self, expr: &Expr, entries: &'e [MapEntry]) -> Range {
        let (mut sum, mut sizes) = (Range::fixed(30), None);
        for entry in entries {
            sum = sum.add(self.cost(&entry.key)).add(self.cost(&entry.value));
            let size = EntrySize {
                key: self.size_or_unknown(&entry.key),
                value: self.size_or_unknown(&entry.value),
            };
            sizes = EntrySize::union(sizes, Some(size)).or(Some(size));
        }
        let empty = EntrySize {
            key: Range::ZERO,
            value: Range::ZERO,
        };
        self.entries.insert(expr.id, sizes.unwrap_or(empty));
        sum
    }

    fn fold(&mut self, expr: &Expr, fold: &'e Comprehension) -> Range {
        let mut sum = self.cost(&fold.range).add(self.cost(&fold.init));
        let outside = self.locals.len();
        let accumulator = Local {
            path: self.path(&fold.init),
            size: self.size(&fold.init),
            entry: self.entry(&fold.init),
        };
        self.locals.push((fold.accumulator.clone(), accumulator));
        let block = self.locals.len();
        let entry = self.entry(&fold.range);
        let is_list = match self.checked.type_of(&fold.range) {
            Type::List(_) => true,
            Type::Map(..) => false,
            // A `dyn` value counts as a map, unless its elements are known.
            _ => entry.is_some(),
        };
        match &fold.variable2 {
            None => {
                let (step, size) = match is_list {
                    true => ("@items", entry.map(|entry| entry.value)),
                    false => ("@keys", entry.map(|entry| entry.key)),
                };
                self.push(&fold.variable, &fold.range, step, size);
            }
            Some(second) => {
                let (key, value) = match is_list {
                    true => ("@indices", "@items"),
                    false => ("@keys", "@values"),
                };
                self.push(&fold.variable, &fold.range, key, entry.map(|e| e.key));
                self.push(second, &fold.range, value, entry.map(|e| e.value));
            }
        }
        let each = self.cost(&fold.condition).add(self.cost(&fold.step));
        self.locals.truncate(block);
        sum = sum.add(self.cost(&fold.result));
        self.locals.truncate(outside);
        let count = self.size_or_unknown(&fold.range);
        sum = sum.add(count.multiply(each));
        match &fold.init.kind {
            Kind::Literal(_) => {
                if let Some(size) = self.size(&fold.init) {
                    self.sizes.insert(expr.id, size);
                }
            }
            Kind::List { .. } | Kind::Map { .. } => {
                self.sizes.insert(expr.id, count);
                if let Some(entry) = self.entry(&fold.step) {
                    self.entries.insert(expr.id, entry);
                }
            }
            _ => {}
        }
        sum
    }

    fn push(&mut self, name: &Arc<str>, range: &Expr, step: &str, size: Option<Range>) {
        let mut path = self.path(range);
        path.push(step.into());
        let local = Local {
            path,
            size,
            entry: None,
        };
        self.locals.push((name.clone(), local));
    }

    fn bind(&mut self, expr: &Expr, fold: &'e Comprehension) -> Range {
        let sum = self.cost(&fold.range).add(self.cost(&fold.init));
        let outside = self.locals.len();
        let local = Local {
            path: self.path(&fold.init),
            size: self.size(&fold.init),
            entry: self.entry(&fold.init),
        };
        self.locals.push((fold.accumulator.clone(), local));
        let result = self.cost(&fold.result);
        self.locals.truncate(outside);
        self.copy_sizes(expr, &fold.result);
        sum.add(result)
    }

    fn copy_sizes(&mut self, to: &Expr, from: &Expr) {
        if let Some(size) = self.size(from) {
            self.sizes.insert(to.id, size);
        }
        if let Some(entry) = self.entry(from) {
            self.entries.insert(to.id, entry);
        }
    }

    fn call(
        &mut self,
        expr: &'e Expr,
        function: &str,
        target: Option<&'e Expr>,
        args: &'e [Expr],
    ) -> Range {
        if function == "dyn"
            && let [arg] = args
        {
            let cost = self.cost(arg);
            self.copy_sizes(expr, arg);
            return cost.add(Range::fixed(1));
        }
        let (name, overloads) = match self.checked.references.get(&expr.id) {
            Some(Reference::Overloads(name, overloads)) => (*name, overloads.as_slice()),
            _ => return Range::ZERO,
        };
        let arguments: Vec<Argument<'e>> = args
            .iter()
            .map(|expr| Argument {
                expr,
                cost: self.cost(expr),
            })
            .collect();
        // A namespaced function is not a member of its prefix.
        let target = target.filter(|_| name == function);
        let target_cost = target.map_or(Range::ZERO, |target| self.cost(target));
        let mut total: Option<Range> = None;
        let mut result: Option<Range> = None;
        for overload in overloads {
            let (cost, size) = self.overload(expr, name, overload, target, &arguments);
            total = Some(total.map_or(cost, |total| total.union(cost)));
            result = match (result, size) {
                (Some(a), Some(b)) => Some(a.union(b)),
                (a, b) => a.or(b),
            };
            if let ("index_list" | "index_map", [container, ..]) = (*overload, args) {
                let step = if *overload == "index_list" {
                    "@items"
                } else {
                    "@values"
                };
                result = self.entry(container).map(|entry| entry.value);
                self.extend(expr, container, step);
            }
            result = result.or_else(|| self.size(expr));
        }
        if let Some(size) = result {
            self.sizes.insert(expr.id, size);
        }
        target_cost.add(total.unwrap_or(Range::ZERO))
    }

    /// The cost and result size of one overload.
    fn overload(
        &mut self,
        expr: &Expr,
        name: &str,
        overload: &str,
        target: Option<&'e Expr>,
        args: &[Argument<'e>],
    ) -> (Range, Option<Range>) {
        let sum = args.iter().fold(Range::ZERO, |sum, arg| sum.add(arg.cost));
        if let Some((cost, size)) = self.library(name, overload, target, args) {
            return (cost.add(sum), size);
        }
        let size = |this: &mut Self, at: usize| match args.get(at) {
            Some(arg) => this.size_or_unknown(arg.expr),
            None => Range::UNKNOWN,
        };
        match overload {
            "logical_or" | "logical_and" => {
                let (left, right) = (args[0].cost, args[1].cost);
                let cost = Range {
                    min: left.min,
                    max: left.add(right).max,
                };
                (cost, None)
            }
            "conditional" => {
                let sizes = size(self, 1).union(size(self, 2));
                let entry = EntrySize::union(self.entry(args[1].expr), self.entry(args[2].expr));
                if let Some(entry) = entry {
                    self.entries.insert(expr.id, entry);
                }
                let branches = args[1].cost.union(args[2].cost);
                (args[0].cost.add(branches), Some(sizes))
            }
            "string_format" => {
                let text = target.map_or(Range::UNKNOWN, |target| self.size_or_unknown(target));
                (text.scale(STRING_TRAVERSAL).add(sum), None)
            }
            "string_to_bytes" => {
                let text = size(self, 0);
                let result = Range {
                    min: text.min,
                    max: text.max.saturating_mul(4),
                };
                (text.scale(STRING_TRAVERSAL).add(sum), Some(result))
            }
            "bytes_to_string" => {
                let bytes = size(self, 0);
                let result = Range {
                    min: bytes.min / 4,
                    max: bytes.max,
                };
                (bytes.scale(STRING_TRAVERSAL).add(sum), Some(result))
            }
            "strings_quote" => {
                let text = size(self, 0);
                let result = Range {
                    min: text.min.saturating_add(2),
                    // As upstream: this wraps around for a string of unknown length.
                    max: text.max.wrapping_mul(2).wrapping_add(2),
                };
                (text.scale(STRING_TRAVERSAL).add(sum), Some(result))
            }
            "starts_with_string" | "ends_with_string" => {
                (size(self, 0).scale(STRING_TRAVERSAL).add(sum), None)
            }
            "in_list" => (size(self, 1).scale(1.0).add(sum), None),
            "matches_string" => {
                let text = target.map_or(Range::UNKNOWN, |target| self.size_or_unknown(target));
                (regex(text, size(self, 0)).add(sum), None)
            }
            "contains_string" => {
                let text = target.map_or(Range::UNKNOWN, |target| self.size_or_unknown(target));
                let part = size(self, 0).scale(STRING_TRAVERSAL);
                (text.scale(STRING_TRAVERSAL).multiply(part).add(sum), None)
            }
            "add_string" | "add_bytes" | "add_list" => {
                let result = size(self, 0).add(size(self, 1));
                let entry = EntrySize::union(self.entry(args[0].expr), self.entry(args[1].expr));
                if let Some(entry) = entry {
                    self.entries.insert(expr.id, entry);
                }
                let cost = match overload {
                    "add_list" => Range::fixed(1),
                    _ => result.scale(STRING_TRAVERSAL),
                };
                (cost.add(sum), Some(result))
            }
            "equals" | "not_equals" => (self.compared(args).add(sum), None),
            _ if compares_text(overload) => (self.compared(args).add(sum), None),
            _ => (Range::fixed(1).add(sum), None),
        }
    }

    fn compared(&mut self, args: &[Argument<'e>]) -> Range {
        let left = self.size_or_unknown(args[0].expr);
        let right = self.size_or_unknown(args[1].expr);
        let max = left.max.min(right.max);
        let range = Range {
            min: u64::from(max > 0),
            max,
        };
        range.scale(STRING_TRAVERSAL)
    }

    /// The cost and result size of a call of Kubernetes' libraries.
    fn library(
        &mut self,
        name: &str,
        overload: &str,
        target: Option<&'e Expr>,
        args: &[Argument<'e>],
    ) -> Option<(Range, Option<Range>)> {
        let one = Range::fixed(1);
        let arg = |this: &mut Self, at: usize| {
            let arg = args.get(at)?;
            Some(this.size_or_unknown(arg.expr))
        };
        Some(match name {
            "check" => (Range::fixed(350_000), None),
            "serviceAccount" | "path" | "group" | "resource" | "subresource" | "namespace"
            | "name" | "allowed" | "reason" | "error" | "errored" => (one, None),
            "fieldSelector" | "labelSelector" => {
                let length = arg(self, 0)?;
                let parse = length.scale(STRING_TRAVERSAL);
                let requirements = length.scale(0.5).scale(50.0);
                (Range::fixed(10).add(parse).add(requirements), None)
            }
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
                let target = target?;
                let size = self.size_or_unknown(target);
                let element = match self.checked.type_of(target) {
                    Type::List(element) => element.clone(),
                    _ => return Some((size.scale(STRING_TRAVERSAL), None)),
                };
                let mut each = one;
                if matches!(*element, Type::String | Type::Bytes) {
                    let text = self.element_size(target);
                    each = each.add(text.scale(STRING_TRAVERSAL));
                }
                (size.multiply(each), None)
            }
            "url" | "jsonpatch.escapeKey" => {
                let size = arg(self, 0)?;
                (size.scale(STRING_TRAVERSAL), Some(size))
            }
            "lowerAscii" | "upperAscii" | "substring" | "trim" => {
                let size = self.size_or_unknown(target?);
                (size.scale(STRING_TRAVERSAL), Some(size))
            }
            "replace" => {
                let size = self.size_or_unknown(target?);
                let result = replaced(size, arg(self, 0)?, arg(self, 1)?);
                (size.scale(2.0 * STRING_TRAVERSAL), Some(result))
            }
            "split" => {
                let size = self.size_or_unknown(target?);
                let limit = args.get(1).and_then(|arg| match &arg.expr.kind {
                    Kind::Literal(Literal::Int(limit)) => Some(*limit as u64),
                    _ => None,
                });
                let parts = Range {
                    min: 0,
                    max: limit.unwrap_or(size.max),
                };
                (size.scale(2.0 * STRING_TRAVERSAL), Some(parts))
            }
            "join" => {
                let target = target?;
                let count = self.size_or_unknown(target);
                let mut size = match self.checked.type_of(target) {
                    Type::List(_) => count.multiply(self.element_size(target)),
                    _ => Range::ZERO,
                };
                if let Some(separator) = arg(self, 0) {
                    let separators = Range {
                        min: count.min.saturating_sub(1),
                        max: count.max.saturating_sub(1),
                    };
                    size = size.add(separator.multiply(separators));
                }
                (size.scale(STRING_TRAVERSAL), Some(size))
            }
            "find" | "findAll" => {
                let size = self.size_or_unknown(target?);
                let found = Range {
                    min: 0,
                    max: size.max,
                };
                (regex(size, arg(self, 0)?), Some(found))
            }
            "ip" if overload == "cidr_ip" => (one, None),
            "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver"
            | "isSemver" => (arg(self, 0)?.scale(STRING_TRAVERSAL), None),
            "ip.isCanonical" => (arg(self, 0)?.scale(2.0 * STRING_TRAVERSAL), None),
            "containsIP" | "containsCIDR" => {
                let bytes = Range { min: 4, max: 16 };
                let mut cost = bytes.add(bytes).scale(STRING_TRAVERSAL);
                if name == "containsCIDR" {
                    cost = cost.add(bytes.scale(STRING_TRAVERSAL)).add(one);
                }
                if overload.ends_with("_string") {
                    cost = cost.add(arg(self, 0)?.scale(STRING_TRAVERSAL));
                }
                (cost, None)
            }
            "validate" => {
                let text = arg(self, 0)?.scale(STRING_TRAVERSAL);
                (text.scale(128.0 * REGEX_LENGTH), None)
            }
            "masked"
            | "prefixLength"
            | "family"
            | "isUnspecified"
            | "isLoopback"
            | "isLinkLocalMulticast"
            | "isLinkLocalUnicast"
            | "isGlobalUnicast"
            | "format.named"
            | "sign"
            | "asInteger"
            | "isInteger"
            | "asApproximateFloat"
            | "isGreaterThan"
            | "isLessThan"
            | "compareTo"
            | "add"
            | "sub"
            | "major"
            | "minor"
            | "patch"
            | "getScheme"
            | "getHostname"
            | "getHost"
            | "getPort"
            | "getEscapedPath"
            | "getQuery" => (one, None),
            "sets.contains" | "sets.intersects" | "sets.equivalent" => {
                let product = arg(self, 0)?.multiply(arg(self, 1)?);
                let factor = if name == "sets.equivalent" { 2.0 } else { 1.0 };
                (product.scale(factor).add(one), None)
            }
            "slice" => {
                let size = self.size_or_unknown(target?);
                let (start, end) = (whole(args.first(), 0), whole(args.get(1), size.max));
                allocating(1.0, Range::fixed(end.wrapping_sub(start)))
            }
            "lists.range" => allocating(1.0, Range::fixed(whole(args.first(), u64::MAX))),
            "reverse" => allocating(1.0, self.size_or_unknown(target?)),
            "flatten" => {
                let depth = match args {
                    [] => 1,
                    [depth, ..] => whole(Some(depth), u64::MAX),
                };
                allocating(depth as f64, self.size_or_unknown(target?))
            }
            // Compares every element with every other; the result is assumed as large.
            "distinct" => {
                let size = self.size_or_unknown(target?);
                allocating(2.0, size.multiply(size))
            }
            "sort" | "@sortByAssociatedKeys" => {
                let size = match args {
                    [] => self.size_or_unknown(target?),
                    [keys, ..] => self.size_or_unknown(keys.expr),
                };
                let is_text = ["list_string_", "list_bytes_"]
                    .iter()
                    .any(|prefix| overload.starts_with(prefix));
                let factor = if is_text { 2.0 + STRING_TRAVERSAL } else { 2.0 };
                allocating(factor, size.multiply(size))
            }
            op::EQUALS => return self.library_equality(args),
            _ => return None,
        })
    }

    /// Equality of two values of a library type.
    fn library_equality(&mut self, args: &[Argument<'e>]) -> Option<(Range, Option<Range>)> {
        let [left, right] = args else {
            return None;
        };
        let t = self.checked.type_of(left.expr);
        if t != self.checked.type_of(right.expr) {
            return None;
        }
        let most = match t {
            Type::Opaque(_) => return Some((Range::fixed(1), None)),
            Type::Struct(name) if &**name == "kubernetes.NamedFormat" => LONGEST_FORMAT,
            Type::Struct(name) if &**name == "kubernetes.URL" => {
                self.size(right.expr).map_or(1, |size| size.max)
            }
            Type::Struct(name) if name.starts_with("kubernetes.") => {
                return Some((Range::fixed(1), None));
            }
            _ => return None,
        };
        let range = Range { min: 1, max: most };
        Some((range.scale(STRING_TRAVERSAL), None))
    }

    // --- sizes

    fn size_or_unknown(&mut self, expr: &Expr) -> Range {
        self.size(expr).unwrap_or(Range::UNKNOWN)
    }

    fn size(&self, expr: &Expr) -> Option<Range> {
        if let Some(size) = self.sizes.get(&expr.id) {
            return Some(*size);
        }
        let literal = match &expr.kind {
            Kind::Literal(Literal::String(text)) => Some(text.chars().count()),
            Kind::Literal(Literal::Bytes(bytes)) => Some(bytes.len()),
            Kind::Literal(_) => Some(1),
            Kind::List { elements } => Some(elements.len()),
            Kind::Map { entries } => Some(entries.len()),
            _ => None,
        };
        if let Some(size) = literal {
            return Some(Range::fixed(size as u64));
        }
        if let Some(size) = self.declared_size(&self.path(expr)) {
            return Some(size);
        }
        if is_scalar(self.checked.type_of(expr)) {
            return Some(Range::fixed(1));
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|local| local.size),
            _ => None,
        }
    }

    fn entry(&self, expr: &Expr) -> Option<EntrySize> {
        if let Some(entry) = self.entries.get(&expr.id) {
            return Some(*entry);
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|local| local.entry),
            _ => None,
        }
    }

    /// The size that the schema declares for a path.
    fn declared_size(&self, path: &[Arc<str>]) -> Option<Range> {
        let (variable, rest) = path.split_first()?;
        let decl = match self.env.size_root() {
            Some(root) => root,
            None => self.env.find(variable)?.decl.as_ref()?,
        };
        if let Some((last, parents)) = rest.split_last()
            && &**last == "@keys"
        {
            let DeclKind::Map { longest_key, .. } = decl.resolve(parents)?.kind else {
                return None;
            };
            return Some(Range {
                min: 0,
                max: longest_key,
            });
        }
        let max = match decl.resolve(rest)?.max_elements {
            u64::MAX => 0,
            max => max,
        };
        Some(Range { min: 0, max })
    }

    fn element_size(&mut self, list: &Expr) -> Range {
        let mut path = self.path(list);
        if !path.is_empty() {
            path.push("@items".into());
            if let Some(size) = self.declared_size(&path) {
                return size;
            }
        }
        Range::UNKNOWN
    }
}

/// The longest name of a format.
const LONGEST_FORMAT: u64 = 64;

/// An integer literal.
fn whole(arg: Option<&Argument<'_>>, otherwise: u64) -> u64 {
    match arg.map(|arg| &arg.expr.kind) {
        Some(Kind::Literal(Literal::Int(number))) => u64::try_from(*number).unwrap_or(0),
        _ => otherwise,
    }
}

/// Traversing a list and making another of the same size.
fn allocating(factor: f64, size: Range) -> (Range, Option<Range>) {
    (size.scale(factor).add(Range::fixed(11)), Some(size))
}

fn is_bind(fold: &Comprehension) -> bool {
    matches!(&fold.range.kind, Kind::List { elements } if elements.is_empty())
        && matches!(fold.condition.kind, Kind::Literal(Literal::Bool(false)))
}

fn is_scalar(t: &Type) -> bool {
    match t {
        Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => {
            true
        }
        Type::Optional(inner) => is_scalar(inner),
        _ => false,
    }
}

fn compares_text(overload: &str) -> bool {
    let order = ["less_", "greater_"];
    order.iter().any(|order| overload.starts_with(order))
        && (overload.ends_with("_string") || overload.ends_with("_bytes"))
}

fn regex(text: Range, pattern: Range) -> Range {
    text.add(Range::fixed(1))
        .scale(STRING_TRAVERSAL)
        .multiply(pattern.scale(REGEX_LENGTH))
}

/// The size of a string after `replace`.
fn replaced(text: Range, from: Range, to: Range) -> Range {
    let most = if from.min == 0 {
        // The replacement is inserted around every character.
        let count = text.max.saturating_add(1);
        count.saturating_mul(to.max).saturating_add(text.max)
    } else if to.max <= from.min {
        text.max
    } else {
        let count = (text.max as f64 / from.min as f64).ceil() as u64;
        count.saturating_mul(to.max)
    };
    let least = if from.max == 0 {
        let count = text.min.saturating_add(1);
        count.saturating_mul(to.min).saturating_add(text.min)
    } else if from.max <= to.min {
        text.min
    } else {
        let count = (text.min as f64 / from.max as f64).ceil() as u64;
        count.saturating_mul(to.min)
    };
    Range {
        min: least,
        max: most,
    }
}
