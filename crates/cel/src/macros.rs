//! Macros: calls that become other expressions while parsing.
//!
//! `has`, the iterating macros with one and with two variables, and those of optional values. A
//! call with a macro's name but another number of arguments is an ordinary call.

use std::sync::Arc;

use crate::{
    ast::{ACCUMULATOR, Comprehension, Element, Expr, Kind, Literal, MapEntry, SORTED, UNUSED, op},
    parser::Parser,
    source::Issue,
};

/// A call, or its macro expansion.
pub(crate) fn expand(
    parser: &mut Parser,
    at: u32,
    function: &str,
    target: Option<Expr>,
    args: Vec<Expr>,
) -> Expr {
    let mut expander = Expander { parser, at };
    let expanded = match (target, function, args.len()) {
        (None, "has", 1) => expander.has(args),
        (Some(target), "bind", 3) if expander.parser.bindings && is_cel(&target) => {
            expander.bind(args)
        }
        (Some(target), name, count) if is_macro(name, count) => expander.member(target, name, args),
        (target, _, _) => {
            let kind = Kind::Call {
                function: function.into(),
                target: target.map(Box::new),
                args,
            };
            return parser.node(at, kind);
        }
    };
    expanded.unwrap_or_else(|issue| {
        let at = issue.offset;
        parser.issues.push(issue);
        parser.node(at, Kind::Literal(Literal::Null))
    })
}

fn is_cel(target: &Expr) -> bool {
    matches!(&target.kind, Kind::Ident(name) if &**name == "cel")
}

fn is_macro(name: &str, count: usize) -> bool {
    match name {
        "all" | "exists" | "map" | "transformList" | "transformMap" | "transformMapEntry"
            if count == 3 =>
        {
            true
        }
        "existsOne" => count == 3,
        "exists_one" => count == 2 || count == 3,
        "transformList" | "transformMap" | "transformMapEntry" => count == 4,
        "all" | "exists" | "filter" | "map" | "optMap" | "optFlatMap" | "sortBy" => count == 2,
        _ => false,
    }
}

struct Expander<'a> {
    parser: &'a mut Parser,
    at: u32,
}

type Expanded = Result<Expr, Issue>;

const NOT_A_NAME: &str = "argument must be a simple name";

/// The variables of a loop.
struct Variables {
    first: Arc<str>,
    second: Option<Arc<str>>,
}

impl Expander<'_> {
    // --- small builders at the macro's position

    fn ident(&mut self, name: &str) -> Expr {
        self.parser.node(self.at, Kind::Ident(name.into()))
    }

    fn literal(&mut self, literal: Literal) -> Expr {
        self.parser.node(self.at, Kind::Literal(literal))
    }

    fn accumulator(&mut self) -> Expr {
        self.ident(ACCUMULATOR)
    }

    fn call(&mut self, function: &str, args: Vec<Expr>) -> Expr {
        self.parser.call(self.at, function, args)
    }

    fn member_call(&mut self, target: Expr, function: &str) -> Expr {
        let kind = Kind::Call {
            function: function.into(),
            target: Some(Box::new(target)),
            args: Vec::new(),
        };
        self.parser.node(self.at, kind)
    }

    fn list(&mut self, elements: Vec<Expr>) -> Expr {
        let elements = elements.into_iter().map(|value| Element {
            value,
            optional: false,
        });
        let elements = elements.collect();
        self.parser.node(self.at, Kind::List { elements })
    }

    fn issue(&self, expr: &Expr, message: &str) -> Issue {
        Issue {
            offset: self.parser.position(expr.id),
            message: message.to_owned(),
        }
    }

    /// The fold of most macros.
    fn fold(
        &mut self,
        range: Expr,
        variables: Variables,
        init: Expr,
        condition: Expr,
        step: Expr,
        result: Expr,
    ) -> Expr {
        let comprehension = Comprehension {
            range,
            variable: variables.first,
            variable2: variables.second,
            accumulator: ACCUMULATOR.into(),
            init,
            condition,
            step,
            result,
        };
        self.parser
            .node(self.at, Kind::Comprehension(Box::new(comprehension)))
    }

    // --- macros

    fn has(&mut self, mut args: Vec<Expr>) -> Expanded {
        let arg = args.remove(0);
        match arg.kind {
            // `has(has(a.b))` is `has(a.b)`.
            Kind::Select { operand, field, .. } => {
                let kind = Kind::Select {
                    operand,
                    field,
                    test: true,
                };
                Ok(self.parser.node(self.at, kind))
            }
            _ => Err(self.issue(&arg, "invalid argument to has() macro")),
        }
    }

    fn member(&mut self, target: Expr, name: &str, args: Vec<Expr>) -> Expanded {
        match (name, args.len()) {
            ("optMap", _) => self.opt_map(target, args, false),
            ("optFlatMap", _) => self.opt_map(target, args, true),
            ("sortBy", _) => self.sort_by(target, args),
            ("map", count) => self.map(target, args, count == 3),
            ("filter", _) => self.filter(target, args),
            ("transformList", count) => self.transform_list(target, args, count == 4),
            ("transformMap", count) => self.transform_map(target, args, count == 4, false),
            ("transformMapEntry", count) => self.transform_map(target, args, count == 4, true),
            ("all", _) => self.quantifier(target, args, true),
            ("exists", _) => self.quantifier(target, args, false),
            _ => self.exists_one(target, args),
        }
    }

    /// The one or two iteration variables at the start of the arguments.
    fn variables(&mut self, args: &mut Vec<Expr>, two: bool) -> Result<Variables, Issue> {
        let first = args.remove(0);
        let first_name = self.variable(&first, NOT_A_NAME)?;
        if !two {
            self.ensure_no_accumulator(&first, &first_name)?;
            return Ok(Variables {
                first: first_name,
                second: None,
            });
        }
        let second = args.remove(0);
        let second_name = self.variable(&second, NOT_A_NAME)?;
        if first_name == second_name {
            let message = format!("duplicate variable name: {first_name}");
            return Err(self.issue(&second, &message));
        }
        self.ensure_no_accumulator(&first, &first_name)?;
        self.ensure_no_accumulator(&second, &second_name)?;
        Ok(Variables {
            first: first_name,
            second: Some(second_name),
        })
    }

    /// The variable of `map` and `filter`.
    fn element_variable(&mut self, args: &mut Vec<Expr>) -> Result<Variables, Issue> {
        let arg = args.remove(0);
        let first = self.variable(&arg, "argument is not an identifier")?;
        self.ensure_no_accumulator(&arg, &first)?;
        Ok(Variables {
            first,
            second: None,
        })
    }

    fn variable(&self, arg: &Expr, otherwise: &str) -> Result<Arc<str>, Issue> {
        match &arg.kind {
            Kind::Ident(name) => Ok(name.clone()),
            _ => Err(self.issue(arg, otherwise)),
        }
    }

    fn ensure_no_accumulator(&self, arg: &Expr, name: &str) -> Result<(), Issue> {
        match name {
            ACCUMULATOR | "__result__" => {
                Err(self.issue(arg, "iteration variable overwrites accumulator variable"))
            }
            _ => Ok(()),
        }
    }

    /// `all` and `exists`: they stop as soon as the result is known.
    fn quantifier(&mut self, target: Expr, mut args: Vec<Expr>, all: bool) -> Expanded {
        let two = args.len() == 3;
        let variables = self.variables(&mut args, two)?;
        let predicate = args.remove(0);
        let init = self.literal(Literal::Bool(all));
        let so_far = self.accumulator();
        let undecided = if all {
            so_far
        } else {
            self.call(op::NOT, vec![so_far])
        };
        let condition = self.call(op::NOT_STRICTLY_FALSE, vec![undecided]);
        let so_far = self.accumulator();
        let function = if all { op::AND } else { op::OR };
        let step = self.call(function, vec![so_far, predicate]);
        let result = self.accumulator();
        Ok(self.fold(target, variables, init, condition, step, result))
    }

    fn exists_one(&mut self, target: Expr, mut args: Vec<Expr>) -> Expanded {
        let two = args.len() == 3;
        let variables = self.variables(&mut args, two)?;
        let predicate = args.remove(0);
        let init = self.literal(Literal::Int(0));
        let condition = self.literal(Literal::Bool(true));
        let so_far = self.accumulator();
        let one = self.literal(Literal::Int(1));
        let more = self.call(op::ADD, vec![so_far, one]);
        let same = self.accumulator();
        let step = self.call(op::CONDITIONAL, vec![predicate, more, same]);
        let count = self.accumulator();
        let one = self.literal(Literal::Int(1));
        let result = self.call(op::EQUALS, vec![count, one]);
        Ok(self.fold(target, variables, init, condition, step, result))
    }

    /// A loop that appends the elements that pass the filter to a list.
    fn collect(
        &mut self,
        target: Expr,
        variables: Variables,
        filter: Option<Expr>,
        element: Expr,
    ) -> Expanded {
        let init = self.list(Vec::new());
        let condition = self.literal(Literal::Bool(true));
        let so_far = self.accumulator();
        let one = self.list(vec![element]);
        let mut step = self.call(op::ADD, vec![so_far, one]);
        if let Some(filter) = filter {
            let same = self.accumulator();
            step = self.call(op::CONDITIONAL, vec![filter, step, same]);
        }
        let result = self.accumulator();
        Ok(self.fold(target, variables, init, condition, step, result))
    }

    fn map(&mut self, target: Expr, mut args: Vec<Expr>, filtered: bool) -> Expanded {
        let variables = self.element_variable(&mut args)?;
        let filter = filtered.then(|| args.remove(0));
        let element = args.remove(0);
        self.collect(target, variables, filter, element)
    }

    /// The list, bound once, sorted by the expression's value for each element.
    fn sort_by(&mut self, target: Expr, args: Vec<Expr>) -> Expanded {
        if matches!(
            target.kind,
            Kind::Literal(_) | Kind::Map { .. } | Kind::Struct { .. }
        ) {
            let message = "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
            return Err(self.issue(&target, message));
        }
        let bound = self.ident(SORTED);
        let keys = self.map(bound, args, false)?;
        let bound = self.ident(SORTED);
        let kind = Kind::Call {
            function: "@sortByAssociatedKeys".into(),
            target: Some(Box::new(bound)),
            args: vec![keys],
        };
        let result = self.parser.node(self.at, kind);
        Ok(self.bound(SORTED.into(), target, result))
    }

    /// An expression in which a name stands for a value.
    fn bound(&mut self, name: Arc<str>, value: Expr, result: Expr) -> Expr {
        let comprehension = Comprehension {
            range: self.list(Vec::new()),
            variable: UNUSED.into(),
            variable2: None,
            condition: self.literal(Literal::Bool(false)),
            step: self.ident(&name),
            accumulator: name,
            init: value,
            result,
        };
        let kind = Kind::Comprehension(Box::new(comprehension));
        self.parser.node(self.at, kind)
    }

    /// `cel.bind(name, value, expression)`.
    fn bind(&mut self, mut args: Vec<Expr>) -> Expanded {
        let Kind::Ident(name) = &args[0].kind else {
            let words = "cel.bind() variable names must be simple identifiers";
            return Err(self.issue(&args[0], words));
        };
        let name = name.clone();
        let (result, value) = (args.remove(2), args.remove(1));
        Ok(self.bound(name, value, result))
    }

    fn filter(&mut self, target: Expr, mut args: Vec<Expr>) -> Expanded {
        let variables = self.element_variable(&mut args)?;
        let filter = args.remove(0);
        let element = self.ident(&variables.first.clone());
        self.collect(target, variables, Some(filter), element)
    }

    fn transform_list(&mut self, target: Expr, mut args: Vec<Expr>, filtered: bool) -> Expanded {
        let variables = self.variables(&mut args, true)?;
        let filter = filtered.then(|| args.remove(0));
        let element = args.remove(0);
        self.collect(target, variables, filter, element)
    }

    /// `transformMap` keeps the keys; `transformMapEntry` takes a map of one entry for each.
    fn transform_map(
        &mut self,
        target: Expr,
        mut args: Vec<Expr>,
        filtered: bool,
        entries: bool,
    ) -> Expanded {
        let variables = self.variables(&mut args, true)?;
        let filter = filtered.then(|| args.remove(0));
        let value = args.remove(0);
        let init = self.map_literal();
        let condition = self.literal(Literal::Bool(true));
        let so_far = self.accumulator();
        let inserted = if entries {
            vec![so_far, value]
        } else {
            let key = self.ident(&variables.first.clone());
            vec![so_far, key, value]
        };
        let mut step = self.call(op::MAP_INSERT, inserted);
        if let Some(filter) = filter {
            let same = self.accumulator();
            step = self.call(op::CONDITIONAL, vec![filter, step, same]);
        }
        let result = self.accumulator();
        Ok(self.fold(target, variables, init, condition, step, result))
    }

    fn map_literal(&mut self) -> Expr {
        let entries: Vec<MapEntry> = Vec::new();
        self.parser.node(self.at, Kind::Map { entries })
    }

    /// `target.hasValue() ? optional.of(expr with the value bound) : optional.none()`.
    fn opt_map(&mut self, target: Expr, mut args: Vec<Expr>, flat: bool) -> Expanded {
        let Kind::Ident(name) = &args[0].kind else {
            let function = if flat { "optFlatMap" } else { "optMap" };
            let words = format!("{function}() variable name must be a simple identifier");
            return Err(self.issue(&args[0], &words));
        };
        let name = name.clone();
        let body = args.remove(1);
        let bound = self.member_call(target.clone(), "value");
        let mut then = self.bound(name, bound, body);
        if !flat {
            then = self.call("optional.of", vec![then]);
        }
        let otherwise = self.call("optional.none", Vec::new());
        let has = self.member_call(target, "hasValue");
        Ok(self.call(op::CONDITIONAL, vec![has, then, otherwise]))
    }
}
