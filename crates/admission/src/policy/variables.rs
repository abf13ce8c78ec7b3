//! Composed variables of a policy: evaluated lazily, once per run, within its cost budget.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    sync::Arc,
};

use cel::{Error, Lazy, Meter, PER_CALL_LIMIT, Program, SMALL_COST, Value as Cel};

use super::expression::Expression;

/// The cost budget of all expressions of one kind for one binding and parameter.
pub(super) const BUDGET: u64 = 10_000_000;

/// What the expressions of one policy may spend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limits {
    /// For a first attempt, which must not take long. Most policies need no more.
    Small,
    Full,
}

impl Limits {
    pub(super) fn budget(self) -> u64 {
        match self {
            Self::Small => SMALL_COST,
            Self::Full => BUDGET,
        }
    }

    fn meter(self) -> Meter {
        match self {
            Self::Small => Meter::small(),
            Self::Full => Meter::default(),
        }
    }
}

/// The message when it is exhausted.
pub(super) const EXHAUSTED: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";
/// The maximum recursion depth through variables, in nodes: the same as of one expression.
const DEEPEST: u32 = 250;
/// Longer errors are not wrapped again for each variable they pass through.
const LONGEST_FAILURE: usize = 4096;

/// The variables of a policy in order. A later one of the same name shadows an earlier one for the
/// expressions after it.
#[derive(Debug, Default)]
pub(super) struct Variables {
    all: Vec<Variable>,
    /// The last one of each name.
    places: HashMap<Arc<str>, usize>,
}

#[derive(Debug)]
struct Variable {
    name: Arc<str>,
    expression: Expression,
}

/// The variables that an expression uses. They precede it, so there are no cycles.
#[derive(Debug, Default)]
pub(super) struct Composes {
    places: HashMap<Arc<str>, usize>,
    /// Variables evaluated before it, because evaluating them within it would recurse too deep.
    first: Vec<usize>,
    /// The recursion depth of its evaluation, including variables.
    depth: u32,
}

impl Variables {
    pub(super) fn push(&mut self, name: Arc<str>, expression: Expression) {
        self.places.insert(name.clone(), self.all.len());
        self.all.push(Variable { name, expression });
    }

    pub(super) fn expressions(&self) -> impl Iterator<Item = &Expression> {
        self.all.iter().map(|variable| &variable.expression)
    }

    /// The known variables that a program uses.
    pub(super) fn used_by(&self, program: Option<&Program>) -> Composes {
        let Some(program) = program else {
            return Composes::default();
        };
        let place = |name: &Arc<str>| Some((name.clone(), *self.places.get(name)?));
        let places: HashMap<Arc<str>, usize> = program.lazy_fields().filter_map(place).collect();
        let (mut first, mut below) = (Vec::new(), 0);
        for place in places.values() {
            let used = &self.all[*place].expression.composes;
            if used.first.is_empty() && program.height() + used.depth <= DEEPEST {
                below = below.max(used.depth);
            } else {
                first.push(*place);
            }
        }
        Composes {
            places,
            first,
            depth: program.height() + below,
        }
    }
}

/// The budget is exhausted, or any of the small limits: no more expressions are evaluated.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Exhausted;

/// Evaluates expressions over one set of values within one budget. Each variable is evaluated once.
pub(super) struct Run<'a> {
    composed: Composed<'a>,
    /// Bounds the memory of all evaluations together, since variables are kept.
    meter: Meter,
    limits: Limits,
    pub(super) budget: u64,
}

/// The values of a run, and the evaluated variables.
struct Composed<'a> {
    values: Vec<Cel<'a>>,
    variables: &'a [Variable],
    known: RefCell<Vec<Option<Result<Cel<'a>, Error>>>>,
    /// The budget of the current expression, and the cost of its variables.
    budget: Cell<u64>,
    cost: Cell<u64>,
}

/// The variables visible to one expression.
struct Scope<'s, 'a> {
    composed: &'s Composed<'a>,
    places: &'s HashMap<Arc<str>, usize>,
}

impl<'a> Lazy<'a> for Scope<'_, 'a> {
    fn field(&self, name: &str) -> Result<Cel<'a>, Error> {
        let place = self.places.get(name);
        let place = place.ok_or_else(|| Error::no_such_key(name))?;
        self.composed.value(*place)
    }
}

impl<'a> Composed<'a> {
    fn value(&self, place: usize) -> Result<Cel<'a>, Error> {
        if let Some(known) = &self.known.borrow()[place] {
            return known.clone();
        }
        let value = self.evaluate(&self.variables[place]);
        self.known.borrow_mut()[place] = Some(value.clone());
        value
    }

    fn evaluate(&self, variable: &'a Variable) -> Result<Cel<'a>, Error> {
        let failed = |how: &str, why: &str| {
            if why.len() > LONGEST_FAILURE {
                return Error::new(why);
            }
            Error::new(format!(
                "composited variable {} fails to {how}: {why}",
                machinery::text::quote(&variable.name)
            ))
        };
        let program = match &variable.expression.compiled {
            Ok(program) => program,
            Err(why) => return Err(failed("compile", why)),
        };
        let evaluation = self.run(program, &variable.expression.composes);
        self.cost
            .set(self.cost.get().saturating_add(evaluation.cost));
        evaluation
            .result
            .map_err(|error| failed("evaluate", &error.message))
    }

    /// Evaluates with the remaining budget: exceeding it ends the run anyway.
    fn run(&self, program: &'a Program, composes: &'a Composes) -> cel::Evaluation<'a> {
        let places = &composes.places;
        let scope = Scope {
            composed: self,
            places,
        };
        let left = self.budget.get().saturating_sub(self.cost.get());
        program.evaluate_with(&self.values, &scope, left.min(PER_CALL_LIMIT))
    }

    /// Evaluates the variables needed before an expression, one after the other.
    fn prepare(&self, composes: &Composes) {
        if composes.first.is_empty() {
            return;
        }
        let mut needed = vec![false; self.variables.len()];
        composes
            .first
            .iter()
            .for_each(|place| needed[*place] = true);
        for place in (0..needed.len()).rev() {
            if needed[place] {
                let first = &self.variables[place].expression.composes.first;
                first.iter().for_each(|place| needed[*place] = true);
            }
        }
        for place in (0..needed.len()).filter(|place| needed[*place]) {
            // The error is reported by the expression that uses the variable.
            let _ = self.value(place);
        }
    }
}

impl<'a> Run<'a> {
    /// `budget` is what is left of that of `limits`.
    pub(super) fn new(
        values: Vec<Cel<'a>>,
        variables: &'a Variables,
        limits: Limits,
        budget: u64,
    ) -> Self {
        let variables = &*variables.all;
        let composed = Composed {
            values,
            variables,
            known: RefCell::new(vec![None; variables.len()]),
            budget: Cell::new(budget),
            cost: Cell::new(0),
        };
        Self {
            composed,
            meter: limits.meter(),
            limits,
            budget,
        }
    }

    /// The result of an expression, or its error.
    pub(super) fn evaluate(
        &mut self,
        expression: &'a Expression,
    ) -> Result<Result<Cel<'a>, String>, Exhausted> {
        let program = match &expression.compiled {
            Ok(program) => program,
            Err(why) => return Ok(Err(format!("compilation error: {why}"))),
        };
        let composed = &self.composed;
        composed.budget.set(self.budget);
        let evaluation = self.meter.count(|| {
            composed.prepare(&expression.composes);
            composed.run(program, &expression.composes)
        });
        let cost = composed.cost.take().saturating_add(evaluation.cost);
        self.budget = self.budget.checked_sub(cost).ok_or(Exhausted)?;
        if self.limits == Limits::Small && self.meter.is_spent() {
            return Err(Exhausted);
        }
        Ok(evaluation.result.map_err(|error| {
            format!(
                "expression '{}' resulted in error: {error}",
                expression.text
            )
        }))
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::{Value, json};

    use super::{
        super::expression::{Compiler, Output},
        *,
    };

    fn compiler(variables: &[(&str, &str)]) -> Compiler {
        let mut compiler = Compiler::new(false, true);
        for (name, text) in variables {
            compiler.compose(name, text).unwrap();
        }
        compiler
    }

    /// Evaluates with `object`; the result as JSON, or the error.
    fn evaluated(variables: &[(&str, &str)], text: &str, budget: u64) -> (String, u64) {
        let mut compiler = compiler(variables);
        let expression = compiler.compile(text, Output::Anything, true);
        let variables = compiler.into_variables();
        let object = json!({"spec": {"replicas": 3, "names": ["a", "b"]}});
        let values = vec![Cel::from_json(&object, None).unwrap()];
        let mut run = Run::new(values, &variables, Limits::Full, budget);
        let shown = match run.evaluate(&expression) {
            Err(Exhausted) => "exhausted".to_owned(),
            Ok(Err(why)) => why,
            Ok(Ok(value)) => value.to_json().unwrap_or(Value::Null).to_string(),
        };
        (shown, run.budget)
    }

    #[test]
    fn variables_are_typed_lazy_and_know_those_before_them() {
        let variables = [
            ("replicas", "object.spec.replicas"),
            ("double", "variables.replicas * 2"),
            ("text", "'a'"),
            ("broken", "object.spec.nothing"),
        ];
        for (text, wanted) in [
            ("variables.double == 6", "true"),
            (
                "has(variables.text) && variables.?text.orValue('') == 'a'",
                "true",
            ),
            ("true || variables.broken == 1", "true"),
            (
                "variables.broken",
                "expression 'variables.broken' resulted in error: composited variable \"broken\" fails to evaluate: no such key: nothing",
            ),
        ] {
            assert_eq!(evaluated(&variables, text, BUDGET).0, wanted, "{text}");
        }
        let said = |text: &str| {
            let expression = compiler(&variables).compile(text, Output::Bool, true);
            expression.compiled.unwrap_err()
        };
        assert!(said("variables.text == 1").contains("found no matching overload for '_==_'"));
        assert!(said("variables.other").contains("undefined field 'other'"));
    }

    #[test]
    fn variables_are_worked_out_once_and_paid_from_the_budget() {
        let variables = [("many", "object.spec.names.map(n, n + n)")];
        let (_, once) = evaluated(&variables, "variables.many.size() == 2", BUDGET);
        let (_, twice) = evaluated(
            &variables,
            "variables.many.size() == 2 && variables.many.size() == 2",
            BUDGET,
        );
        let (first, second) = (BUDGET - once, BUDGET - twice);
        assert!(first > 20 && second < 2 * first, "{first} {second}");
        assert_eq!(
            evaluated(&variables, "variables.many.size() == 2", first - 1).0,
            "exhausted"
        );
    }

    #[test]
    fn an_expression_stops_at_its_limit_and_the_rest_of_the_budget_stays() {
        let endless = "[0,1,2,3,4,5,6,7,8,9].all(a, [0,1,2,3,4,5,6,7,8,9].all(b, \
            [0,1,2,3,4,5,6,7,8,9].all(c, [0,1,2,3,4,5,6,7,8,9].all(d, [0,1,2,3,4,5,6,7,8,9].all(e, \
            [0,1,2,3,4,5,6,7,8,9].all(f, a + b + c + d + e + f >= 0))))))";
        let (shown, left) = evaluated(&[], endless, BUDGET);
        assert!(
            shown.ends_with("resulted in error: operation cancelled: actual cost limit exceeded"),
            "{shown}"
        );
        assert!(left > BUDGET / 2);
    }

    /// On a stack as small as a worker thread's.
    fn on_small_stack(variables: &[(&str, &str)], text: &str) -> String {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(2 << 20);
            let work = || evaluated(variables, text, BUDGET).0;
            thread.spawn_scoped(scope, work).unwrap().join().unwrap()
        })
    }

    #[test]
    fn chains_of_variables_take_no_stack() {
        let names: Vec<String> = (0..3000).map(|at| format!("v{at}")).collect();
        // Each uses the previous one at the bottom of a deep expression, or of a flat one.
        for deep in [0, 200] {
            let text = |at: usize| match at {
                0 => "1".to_owned(),
                at => format!("variables.v{}{}+1", at - 1, "+0".repeat(deep)),
            };
            let count = if deep == 0 { 3000 } else { 300 };
            let texts: Vec<String> = (0..count).map(text).collect();
            let names = names.iter().map(String::as_str);
            let variables: Vec<_> = names.zip(texts.iter().map(String::as_str)).collect();
            let last = format!("variables.v{}", count - 1);
            let found = on_small_stack(&variables, &last);
            assert_eq!(found, count.to_string());
        }
    }

    #[test]
    fn an_error_passed_through_a_chain_does_not_grow() {
        let names: Vec<String> = (0..2000).map(|at| format!("v{at}")).collect();
        let text = |at: usize| match at {
            0 => "object.spec.nothing".to_owned(),
            at => format!("variables.v{} + 1", at - 1),
        };
        let texts: Vec<String> = (0..names.len()).map(text).collect();
        let texts = texts.iter().map(String::as_str);
        let variables: Vec<_> = names.iter().map(String::as_str).zip(texts).collect();
        let found = on_small_stack(&variables, "variables.v1999");
        assert!(
            found.ends_with("fails to evaluate: no such key: nothing"),
            "{found}"
        );
        assert!(found.len() < 5000, "{}", found.len());
    }

    #[test]
    fn a_variable_of_the_same_name_is_no_circle() {
        let variables = [
            ("a", "1"),
            ("b", "variables.a + 1"),
            ("a", "variables.b + 10"),
        ];
        assert_eq!(on_small_stack(&variables, "variables.a"), "12");
        assert_eq!(on_small_stack(&variables, "variables.b"), "2");
    }

    #[test]
    fn types_that_variables_wrap_are_refused_before_they_are_too_deep() {
        let brackets = |at: usize| {
            let inner = format!("variables.v{}", at - 1);
            format!("{}{inner}{}", "[".repeat(100), "]".repeat(100))
        };
        let answers = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(2 << 20);
            let work = || {
                let mut compiler = compiler(&[("v0", "[1]")]);
                let compose = |at: usize| compiler.compose(&format!("v{at}"), &brackets(at));
                (1..80).map(compose).collect::<Vec<_>>()
            };
            thread.spawn_scoped(scope, work).unwrap().join().unwrap()
        });
        assert_eq!(answers[..2], [Ok(()), Ok(())]);
        let refused = answers[2].as_ref().unwrap_err();
        assert!(
            refused.contains("type nesting or size limit exceeded"),
            "{refused}"
        );
    }
}
