//! `matchConditions`: expressions that must all be true. A false one excludes the request, whatever
//! the others give; an error is left to the failure policy.

use std::{collections::BTreeSet, sync::Arc};

use cel::{Env, Meter, PER_CALL_LIMIT, Program, SMALL_COST, Type, Value as Cel, compile};
use kinds::tree;
use machinery::{
    Value,
    field::{Error, Errors, Path},
};

use super::{
    Activation, Attributes,
    environment::{Variables, environment},
};
use crate::authz;
use request::heavy;

/// The cost budget of all conditions of a webhook or a policy.
const LIMIT: u64 = 2_500_000;
const EXHAUSTED: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// The conditions in their order, compiled.
#[derive(Debug, Default)]
pub struct MatchConditions {
    conditions: Vec<Condition>,
}

/// A named condition.
#[derive(Debug)]
pub struct Condition {
    name: String,
    expression: String,
    compiled: Result<Program, String>,
}

/// The result of the conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Match,
    /// This condition is false.
    Excluded(String),
    /// None is false, and this error occurred; with the number of failed expressions.
    Failed(String, usize),
}

impl MatchConditions {
    /// Compiles `matchConditions`.
    pub fn read(conditions: &Value, variables: Variables) -> Self {
        let conditions = tree::list(conditions);
        if conditions.is_empty() {
            return Self::default();
        }
        let env = environment(variables);
        let read = |condition: &Value| {
            let expression = tree::text(&condition["expression"]);
            Condition {
                name: tree::text(&condition["name"]).to_owned(),
                expression: expression.to_owned(),
                compiled: compile_condition(&env, expression),
            }
        };
        Self {
            conditions: conditions.iter().map(read).collect(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }

    /// Evaluates all conditions, with authorization checks.
    pub async fn evaluate(
        &self,
        attributes: &Attributes<'_>,
        activation: &Activation<'_>,
        authorizers: &[Arc<dyn authz::Authorizer>],
    ) -> Outcome {
        // First within limits that do not take long, which most conditions hold.
        let mut is_small = true;
        loop {
            let Some(outcome) = self.evaluate_now(attributes, activation, is_small) else {
                heavy::mark().await;
                is_small = false;
                continue;
            };
            let asked = match &activation.authorizer {
                Some(checks) => checks.answer_pending(authorizers, attributes.user).await,
                None => false,
            };
            if !asked {
                return outcome;
            }
        }
    }

    /// `None` if the small limits are exceeded.
    fn evaluate_now(
        &self,
        attributes: &Attributes<'_>,
        activation: &Activation<'_>,
        is_small: bool,
    ) -> Option<Outcome> {
        let values = match activation.values(attributes) {
            Ok(values) => values,
            Err(error) => return Some(Outcome::Failed(error.to_string(), 1)),
        };
        let (mut left, mut errors) = (if is_small { SMALL_COST } else { LIMIT }, Vec::new());
        let mut excluded = None;
        for condition in &self.conditions {
            let program = match &condition.compiled {
                Ok(program) => program,
                Err(why) => {
                    errors.push(format!("compilation error: {why}"));
                    continue;
                }
            };
            let (evaluation, is_spent) = match is_small {
                true => {
                    let mut meter = Meter::small();
                    let evaluation = meter.count(|| program.evaluate(&values, left));
                    (evaluation, meter.is_spent())
                }
                false => (program.evaluate(&values, PER_CALL_LIMIT), false),
            };
            left = match left.checked_sub(evaluation.cost) {
                Some(rest) if !is_spent => rest,
                _ if is_small => return None,
                _ => return Some(Outcome::Failed(EXHAUSTED.to_owned(), 1)),
            };
            match evaluation.result {
                Ok(Cel::Bool(false)) => {
                    excluded.get_or_insert(&condition.name);
                }
                Ok(_) => {}
                Err(error) => errors.push(format!(
                    "expression '{}' resulted in error: {error}",
                    condition.expression
                )),
            }
        }
        Some(match (excluded, errors.len()) {
            (Some(name), _) => Outcome::Excluded(name.clone()),
            (None, 0) => Outcome::Match,
            (None, failed) => Outcome::Failed(aggregate(errors), failed),
        })
    }
}

/// Several errors on one line, deduplicated.
fn aggregate(errors: Vec<String>) -> String {
    let mut seen = BTreeSet::new();
    let mut lines = errors;
    lines.retain(|line| seen.insert(line.clone()));
    match lines.as_slice() {
        [one] => one.clone(),
        lines => format!("[{}]", lines.join(", ")),
    }
}

fn compile_condition(env: &Env, expression: &str) -> Result<Program, String> {
    let checked =
        compile(env, expression).map_err(|issues| format!("compilation failed: {issues}"))?;
    if *checked.output() != Type::Bool {
        return Err(format!(
            "must evaluate to bool but got {}",
            checked.output()
        ));
    }
    Program::new(env, &checked)
        .map_err(|error| format!("program instantiation failed: {}", error.message))
}

/// The compilation errors of `matchConditions`.
pub fn check_conditions(conditions: &Value, variables: Variables, path: &Path) -> Errors {
    let conditions = tree::list(conditions);
    if conditions.is_empty() {
        return Errors::new();
    }
    let env = environment(variables);
    let errors = conditions.iter().enumerate().filter_map(|(i, condition)| {
        let expression = tree::text(&condition["expression"]).trim();
        let why = compile_condition(&env, expression).err()?;
        let at = path.index(i);
        let at = at.child("expression");
        Some(Error::invalid(&at, expression, why))
    });
    errors.collect()
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::{
        Operation,
        matching::Checks,
        testing::{Case, object},
    };

    async fn outcome(expressions: &[&str]) -> Outcome {
        let conditions: Vec<Value> = expressions
            .iter()
            .enumerate()
            .map(|(i, expression)| json!({"name": format!("c{i}"), "expression": expression}))
            .collect();
        let variables = Variables {
            params: false,
            authorizer: true,
        };
        let conditions = MatchConditions::read(&conditions.into(), variables);
        let case = Case::new(Operation::Create, "", "pods").named("here", "web");
        let given = case.attributes();
        let pod = object(json!({"metadata": {"name": "web"}, "spec": {"replicas": 3}}));
        let attributes = Attributes::new(&given, Some(&pod));
        let request = attributes.request(&attributes.own());
        let activation = Activation {
            object: attributes.object,
            old: None,
            namespace: None,
            request: &request,
            params: None,
            authorizer: Some(Arc::new(Checks::default())),
        };
        let authorizers: Vec<Arc<dyn authz::Authorizer>> = vec![Arc::new(authz::Masters)];
        conditions
            .evaluate(&attributes, &activation, &authorizers)
            .await
    }

    #[tokio::test]
    async fn all_conditions_hold_or_one_excludes() {
        let matched = outcome(&[
            "object.spec.replicas == 3",
            "request.operation == 'CREATE' && request.namespace == 'here'",
            "oldObject == null",
            "!authorizer.group('').resource('pods').check('create').allowed()",
            "!authorizer.requestResource.check('create').allowed()",
            "request.options.kind == 'CreateOptions'",
        ]);
        assert_eq!(matched.await, Outcome::Match);
        let excluded = outcome(&["object.spec.nothing == 1", "false", "true"]);
        assert_eq!(excluded.await, Outcome::Excluded("c1".to_owned()));
    }

    #[tokio::test]
    async fn conditions_beyond_the_small_limits_are_evaluated_too() {
        let many = "[0,1,2,3,4,5,6,7,8,9]";
        let many = format!("{many}.map(a, {many}.map(b, {many}.map(c, {many}.map(d, d)))).size()");
        let matched = outcome(&[&format!("{many} == 10"), "true"]).await;
        assert_eq!(matched, Outcome::Match);
        let excluded = outcome(&["true", &format!("{many} == 1")]).await;
        assert_eq!(excluded, Outcome::Excluded("c1".to_owned()));
    }

    #[tokio::test]
    async fn failed_match_conditions_report_the_expression() {
        let failed = outcome(&["object.spec.nothing == 1", "true"]).await;
        let expected =
            "expression 'object.spec.nothing == 1' resulted in error: no such key: nothing";
        assert_eq!(failed, Outcome::Failed(expected.to_owned(), 1));
    }

    #[test]
    fn conditions_that_do_not_compile_are_refused() {
        let said = |expression: &str| {
            let conditions = json!([{"name": "a", "expression": expression}]);
            let variables = Variables::default();
            let errors = check_conditions(&conditions, variables, &Path::new("c"));
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(said("object.a == 1").is_empty());
        assert_eq!(
            said("1"),
            ["c[0].expression: Invalid value: \"1\": must evaluate to bool but got int"]
        );
        let undeclared = said("nothing == 1");
        assert!(
            undeclared[0].contains("undeclared reference to 'nothing'"),
            "{undeclared:?}"
        );
        assert_eq!(said("authorizer.path('/').check('get').allowed()").len(), 1);
    }
}
