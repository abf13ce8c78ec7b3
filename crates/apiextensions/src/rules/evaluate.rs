//! Evaluation of rules on objects, within a cost limit per rule and per object.

use std::cell::OnceCell;

use cel::{
    Decl, Error as Failure, PER_CALL_LIMIT, Value as Cel,
    value::{List, Map},
};
use machinery::field::{Error, ErrorKind, Errors, Path, PathBuf};

use super::{
    super::{ratchet::CorrelatedValue, validate::MAX_ERRORS, view::View},
    compile::{Compiled, Rule, Rules, Step},
};

/// The cost budget of all rules of an object.
const OBJECT_LIMIT: u64 = 10_000_000;
/// The maximum length of a message from an expression.
const LONGEST_MESSAGE: usize = 5 * 1024;

/// A value with its old one, compared at most once: each item of a list may ask for its list.
struct Compared<'a> {
    value: CorrelatedValue<'a>,
    is_same: OnceCell<bool>,
}

impl<'a> Compared<'a> {
    fn new(value: CorrelatedValue<'a>) -> Self {
        Self {
            value,
            is_same: OnceCell::new(),
        }
    }
}

/// The old value of a value, and whether its errors existed before.
#[derive(Clone, Copy)]
struct Correlation<'c, 'a> {
    current: Option<&'c Compared<'a>>,
    /// The closest enclosing value that has an old one.
    parent: Option<&'c Compared<'a>>,
}

impl<'c, 'a> Correlation<'c, 'a> {
    /// The same for a field or an item, of which this is the old value if it has one.
    fn below(self, next: Option<&'c Compared<'a>>) -> Self {
        match self.current {
            None => self,
            parent => Self {
                current: next,
                parent,
            },
        }
    }

    /// Unchanged values may violate newer rules.
    fn is_unchanged(self) -> bool {
        let was = self.current.or(self.parent);
        was.is_some_and(|was| *was.is_same.get_or_init(|| was.value.is_same()))
    }
}

/// The budget is exhausted, or there are enough errors: no more rules are evaluated.
struct Exhausted;

struct Run<'e> {
    budget: u64,
    errors: &'e mut Errors,
    /// Errors of unchanged values.
    ratcheted: Errors,
}

impl Rules {
    /// Adds the errors of a new object.
    pub(crate) fn check(&self, object: View<'_>, path: &Path, errors: &mut Errors) {
        let _ = self.run(object, None, path, errors);
    }

    /// The same for an update; returns warnings about unchanged values that violate rules.
    pub(crate) fn check_update(
        &self,
        was: CorrelatedValue<'_>,
        path: &Path,
        errors: &mut Errors,
    ) -> Vec<String> {
        let found = self.run(was.new_value(), Some(was), path, errors);
        found.iter().map(ToString::to_string).collect()
    }

    /// Evaluates all rules; returns the errors of unchanged values.
    fn run(
        &self,
        object: View<'_>,
        was: Option<CorrelatedValue<'_>>,
        path: &Path,
        errors: &mut Errors,
    ) -> Errors {
        let mut run = Run {
            budget: OBJECT_LIMIT,
            errors,
            ratcheted: Errors::new(),
        };
        let was = was.map(Compared::new);
        let correlation = Correlation {
            current: was.as_ref(),
            parent: None,
        };
        // Exhaustion is reported among the errors.
        let _ = run.node(self, object, correlation, path);
        run.ratcheted
    }
}

impl Run<'_> {
    fn node(
        &mut self,
        rules: &Rules,
        value: View<'_>,
        correlation: Correlation<'_, '_>,
        path: &Path,
    ) -> Result<(), Exhausted> {
        if matches!(value, View::Null) {
            return Ok(());
        }
        for rule in &rules.rules {
            self.rule(rules, rule, value, correlation, path)?;
        }
        for branch in &rules.all_of {
            let outside = Correlation {
                current: None,
                parent: correlation.parent,
            };
            self.node(branch, value, outside, path)?;
        }
        let was = correlation.current.map(|was| &was.value);
        match value {
            View::List(items) => {
                let Some(below) = &rules.items else {
                    return Ok(());
                };
                let mut old = was.and_then(CorrelatedValue::items);
                for (i, item) in items.iter().enumerate() {
                    let old = old.as_mut().and_then(|old| old.get(i));
                    let old = old.map(Compared::new);
                    let next = correlation.below(old.as_ref());
                    self.node(below, item.into(), next, &path.index(i))?;
                }
            }
            View::Map(map) => {
                for (key, item) in map.iter() {
                    let old = was.and_then(|was| was.key(key)).map(Compared::new);
                    let next = correlation.below(old.as_ref());
                    if let Some(below) = rules.properties.get(key.as_str()) {
                        self.node(below, item.into(), next, &path.child(key))?;
                    } else if let Some(below) = &rules.others {
                        self.node(below, item.into(), next, &path.key(key))?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn rule(
        &mut self,
        rules: &Rules,
        rule: &Rule,
        value: View<'_>,
        correlation: Correlation<'_, '_>,
        path: &Path,
    ) -> Result<(), Exhausted> {
        if self.errors.len() >= MAX_ERRORS {
            return Err(Exhausted);
        }
        let kind = rules.schema_type.as_str();
        let compiled = match &rule.compiled {
            Ok(compiled) => compiled,
            Err(why) => {
                let detail = format!("rule compile error: {why}");
                self.errors.push(Error::invalid(path, kind, detail));
                return Ok(());
            }
        };
        let old = correlation.current.map(|was| was.value.old_value());
        let old = old.filter(|old| !matches!(old, View::Null));
        if compiled.uses_old_self && old.is_none() && !rule.optional_old_self {
            return Ok(());
        }
        let decl = rules.decl.as_deref();
        let variables = match variables(value, old, decl, rule.optional_old_self) {
            Ok(variables) => variables,
            Err(failure) => {
                self.failed(&failure, rule, kind, path);
                return Ok(());
            }
        };
        match self.evaluate(compiled, &variables, rule, kind, path)? {
            None | Some(true) => return Ok(()),
            Some(false) => {}
        }
        let is_ratcheted = !compiled.uses_old_self && correlation.is_unchanged();
        let at = field_path(path, &rule.field_path);
        let detail = match &rule.message_expression {
            Some(Ok(message)) => match self.message(message, &rule.message_text, &variables) {
                Ok(detail) => detail,
                Err(why) => {
                    self.add(Error::invalid(&at.as_path(), kind, why), is_ratcheted);
                    return Err(Exhausted);
                }
            },
            _ => None,
        };
        let is_duplicate = rule.reason.as_deref() == Some("FieldValueDuplicate");
        // As upstream: duplicates have no message.
        let detail = detail.filter(|_| !is_duplicate);
        let detail = detail.unwrap_or_else(|| match rule.message.is_empty() {
            _ if is_duplicate => String::new(),
            true => format!("failed rule: {}", rule.rule),
            false => rule.message.clone(),
        });
        let shown = (!matches!(kind, "object" | "array")).then(|| value.to_value());
        let error = Error {
            kind: match rule.reason.as_deref() {
                Some("FieldValueForbidden") => ErrorKind::Forbidden,
                Some("FieldValueRequired") => ErrorKind::Required,
                Some("FieldValueDuplicate") => ErrorKind::Duplicate,
                _ => ErrorKind::Invalid,
            },
            path: at,
            value: shown,
            detail,
        };
        self.add(error, is_ratcheted);
        Ok(())
    }

    fn add(&mut self, error: Error, is_ratcheted: bool) {
        match is_ratcheted {
            true if self.ratcheted.len() >= MAX_ERRORS => {}
            true => self.ratcheted.push(error),
            false => self.errors.push(error),
        }
    }

    /// Whether the rule holds; `None` if evaluation failed, which is an error itself.
    fn evaluate(
        &mut self,
        compiled: &Compiled,
        variables: &[Cel<'_>; 2],
        rule: &Rule,
        kind: &str,
        path: &Path,
    ) -> Result<Option<bool>, Exhausted> {
        let evaluation = compiled.program.evaluate(variables, PER_CALL_LIMIT);
        self.pay(evaluation.cost, kind, path)?;
        match evaluation.result {
            Ok(Cel::Bool(holds)) => Ok(Some(holds)),
            Ok(_) => Ok(Some(false)),
            Err(failure) => {
                self.failed(&failure, rule, kind, path);
                match failure.fatal {
                    true => Err(Exhausted),
                    false => Ok(None),
                }
            }
        }
    }

    fn pay(&mut self, cost: u64, kind: &str, path: &Path) -> Result<(), Exhausted> {
        match self.budget.checked_sub(cost) {
            Some(rest) => {
                self.budget = rest;
                Ok(())
            }
            None => {
                let detail = "validation failed due to running out of cost budget, no further validation rules will be run";
                self.errors.push(Error::invalid(path, kind, detail));
                Err(Exhausted)
            }
        }
    }

    fn failed(&mut self, failure: &Failure, rule: &Rule, kind: &str, path: &Path) {
        let (message, shown) = (&failure.message, rule.shown());
        let detail = if failure.fatal {
            format!(
                "'{message}': no further validation rules will be run due to call cost exceeds limit for rule: {shown}"
            )
        } else if message.starts_with("no such overload") {
            format!(
                "'{message}': call arguments did not match a supported operator, function or macro signature for rule: {shown}"
            )
        } else {
            format!("{message} evaluating rule: {shown}")
        };
        self.errors.push(Error::invalid(path, kind, detail));
    }

    /// The result of a message expression, `None` if it is unusable; or why no further rules can be evaluated.
    fn message(
        &mut self,
        message: &Compiled,
        text: &str,
        variables: &[Cel<'_>; 2],
    ) -> Result<Option<String>, String> {
        let evaluation = message.program.evaluate(variables, PER_CALL_LIMIT);
        let Some(rest) = self.budget.checked_sub(evaluation.cost) else {
            let why = "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run";
            return Err(why.to_owned());
        };
        self.budget = rest;
        Ok(match evaluation.result {
            Err(failure) if failure.fatal => {
                let text = machinery::text::quote(text);
                return Err(format!(
                    "no further validation rules will be run due to call cost exceeds limit for messageExpression: {text}"
                ));
            }
            Ok(Cel::String(text)) => Some(text.trim().to_owned()).filter(|text| {
                !text.is_empty() && text.len() <= LONGEST_MESSAGE && !text.contains('\n')
            }),
            _ => None,
        })
    }
}

/// The values of `self` and `oldSelf`.
pub(super) fn variables<'a>(
    new: View<'a>,
    old: Option<View<'a>>,
    decl: Option<&'a Decl>,
    optional: bool,
) -> Result<[Cel<'a>; 2], Failure> {
    let old = old.map(|old| read(old, decl)).transpose()?;
    let old = match (old, optional) {
        (Some(old), true) => Cel::some(old),
        (Some(old), false) => old,
        (None, true) => Cel::NONE,
        (None, false) => Cel::Null,
    };
    Ok([read(new, decl)?, old])
}

fn read<'a>(view: View<'a>, decl: Option<&'a Decl>) -> Result<Cel<'a>, Failure> {
    match view {
        View::Map(map) => Ok(Cel::Map(Map::Json { map, decl })),
        View::List(items) => Ok(Cel::List(List::json(items, decl))),
        View::Null => Ok(Cel::Null),
        View::Bool(value) => Ok(Cel::Bool(value)),
        View::Number(number) => Cel::from_number(number, decl),
        View::Text(text) => Cel::from_text(text, decl),
    }
}

/// The path of the field that a rule reports, below the rule's own.
fn field_path(path: &Path, steps: &[Step]) -> PathBuf {
    steps
        .iter()
        .fold(path.to_path_buf(), |path, step| match step {
            Step::Property(name) => path.as_path().child(name).to_path_buf(),
            Step::Key(key) => path.as_path().key(key).to_path_buf(),
        })
}
