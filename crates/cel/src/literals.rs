//! Checks of literals in a typed expression: durations, timestamps, patterns and formats must
//! parse, and lists and maps must have elements of one type.

use machinery::pattern::Pattern;

use crate::{
    ast::{Element, Expr, Kind, Literal},
    check::Checked,
    functions::{convert, printf, timestamp},
    source::Issue,
    types::Type,
    value::Error,
};

pub(crate) fn check(checked: &Checked) -> Vec<Issue> {
    let mut literals = Literals {
        checked,
        issues: Vec::new(),
    };
    literals.visit(&checked.parsed.root, true);
    literals.issues
}

struct Literals<'c> {
    checked: &'c Checked,
    issues: Vec<Issue>,
}

impl Literals<'_> {
    fn issue(&mut self, at: &Expr, message: impl Into<String>) {
        self.issues.push(Issue {
            offset: self.checked.parsed.positions[at.id as usize],
            message: message.into(),
        });
    }

    /// `uniform`: whether lists and maps must have elements of one type. The arguments of `format`
    /// need not.
    fn visit(&mut self, expr: &Expr, mut uniform: bool) {
        match &expr.kind {
            Kind::Call {
                function,
                target,
                args,
            } => {
                self.readable(function, target.is_some(), args);
                if &**function == "format" {
                    uniform = false;
                    self.format(expr, target.as_deref(), args);
                }
            }
            Kind::List { elements } if uniform => {
                if let Some((first, rest)) = elements.split_first() {
                    let optional = |e: &Element| e.optional;
                    let _ = rest.iter().any(|next| {
                        let optional = [optional(first), optional(next)];
                        self.same_type(&first.value, &next.value, optional)
                    });
                }
            }
            Kind::Map { entries } if uniform => {
                if let Some((first, rest)) = entries.split_first() {
                    for next in rest {
                        self.same_type(&first.key, &next.key, [false; 2]);
                        let optional = [first.optional, next.optional];
                        self.same_type(&first.value, &next.value, optional);
                    }
                }
            }
            _ => {}
        }
        expr.kind
            .for_each_child(&mut |child| self.visit(child, uniform));
    }

    /// Whether two elements have the same type; reports an issue if not.
    fn same_type(&mut self, first: &Expr, next: &Expr, optional: [bool; 2]) -> bool {
        let inner = |expr: &Expr, optional: bool| match (self.checked.type_of(expr), optional) {
            (Type::Optional(inner), true) => (**inner).clone(),
            (t, _) => t.clone(),
        };
        let (wanted, found) = (inner(first, optional[0]), inner(next, optional[1]));
        let mismatch = wanted != found;
        if mismatch {
            self.issue(
                next,
                format!("expected type '{wanted}' but found '{found}'"),
            );
        }
        mismatch
    }

    fn readable(&mut self, name: &str, member: bool, args: &[Expr]) {
        let [arg] = args else {
            return;
        };
        let Kind::Literal(literal) = &arg.kind else {
            return;
        };
        let readable = match (name, member, literal) {
            ("duration", false, Literal::String(text)) => convert::duration(text).is_ok(),
            ("duration", false, Literal::Int(_) | Literal::Null) => false,
            ("timestamp", false, Literal::Null) => false,
            ("timestamp", false, Literal::Int(seconds)) => timestamp::is_in_range(*seconds),
            ("timestamp", false, Literal::String(text)) => timestamp::parse(text).is_ok(),
            ("matches", true, Literal::String(text)) => Pattern::weight(text).is_ok(),
            _ => true,
        };
        if !readable {
            self.issue(arg, format!("invalid {name} argument"));
        }
    }

    /// A constant format with a list of arguments: each must match its clause, and none may be left
    /// over.
    fn format(&mut self, call: &Expr, target: Option<&Expr>, args: &[Expr]) {
        let (Some(target), [args]) = (target, args) else {
            return;
        };
        let (Kind::Literal(Literal::String(pattern)), Kind::List { elements }) =
            (&target.kind, &args.kind)
        else {
            return;
        };
        let mut at = None;
        let used = printf::interpolate(
            pattern,
            |index| match elements.get(index) {
                Some(element) => Ok(&element.value),
                None => Err(Error::new(format!("index {index} out of range"))),
            },
            |clause, arg| match self.refused(clause, arg) {
                Some((bad, words)) => {
                    at = Some(bad);
                    Err(Error::new(words))
                }
                None => Ok(String::new()),
            },
            &mut String::new(),
        );
        match used {
            Err(error) => self.issue(at.unwrap_or(call), error.message),
            Ok(used) if elements.len() > used => {
                let words = format!(
                    "too many arguments supplied to string.format (expected {used}, got {})",
                    elements.len()
                );
                self.issue(call, words);
            }
            Ok(_) => {}
        }
    }

    /// The argument, or a part of it, that a clause does not accept.
    fn refused<'e>(&self, clause: printf::Clause, arg: &'e Expr) -> Option<(&'e Expr, String)> {
        let found = self.checked.type_of(arg);
        let text_passes = clause.takes_number_names() && *found == Type::String;
        if !matches!(found, Type::Dyn | Type::Param(_))
            && !text_passes
            && let Some(words) = clause.refuses(found.runtime_name())
        {
            return Some((arg, words));
        }
        if !clause.shows_anything() {
            return None;
        }
        match &arg.kind {
            Kind::List { elements } => {
                let mut parts = elements.iter();
                parts.find_map(|part| self.refused(clause, &part.value))
            }
            Kind::Map { entries } => {
                let mut parts = entries.iter().flat_map(|e| [&e.key, &e.value]);
                parts.find_map(|part| self.refused(clause, part))
            }
            _ => None,
        }
    }
}
