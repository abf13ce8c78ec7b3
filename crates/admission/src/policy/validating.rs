//! Evaluates a ValidatingAdmissionPolicy for one request with one parameter. Pure.

use cel::Value as Cel;
use kinds::tree;
use machinery::Value;

use super::{
    super::matching::{Activation, Attributes},
    expression::{Compiler, Expression, Output, Uses, uses},
    spec::FailurePolicy,
    variables::{EXHAUSTED, Exhausted, Limits, Run, Variables},
};

/// The maximum length of a message from an expression.
const LONGEST_MESSAGE: usize = 5 * 1024;

/// The compiled part of a policy.
#[derive(Debug)]
pub(super) struct Validating {
    variables: Variables,
    validations: Vec<Validation>,
    annotations: Vec<AuditAnnotation>,
    pub(super) uses: Uses,
}

#[derive(Debug)]
struct Validation {
    expression: Expression,
    message: String,
    message_expression: Option<Expression>,
    reason: Option<String>,
}

#[derive(Debug)]
struct AuditAnnotation {
    key: String,
    value: Expression,
}

/// The result of a policy.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// One per validation, unless a single failure replaces all.
    pub(super) decisions: Vec<Decision>,
    pub(super) annotations: Vec<Annotation>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    Admit,
    /// Evaluation failed, and the failure policy is Ignore.
    Ignored(String),
    Deny(Denial),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Denial {
    pub(super) message: String,
    /// `Invalid` if empty.
    pub(super) reason: String,
    /// Whether evaluation failed, as opposed to giving false.
    pub(super) is_failure: bool,
}

impl Denial {
    /// The denial by a policy that could not be evaluated.
    pub(super) fn failure(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            reason: String::new(),
            is_failure: true,
        }
    }
}

/// An audit annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Annotation {
    Publish {
        key: String,
        value: String,
    },
    Exclude,
    /// Denies the request.
    Error(String),
}

impl FailurePolicy {
    fn decision(self, message: impl Into<String>) -> Decision {
        match self {
            Self::Ignore => Decision::Ignored(message.into()),
            Self::Fail => Decision::Deny(Denial::failure(message)),
        }
    }
}

impl Outcome {
    /// A single failure instead of all decisions.
    pub(super) fn failed(failure: FailurePolicy, message: impl Into<String>) -> Self {
        Self {
            decisions: vec![failure.decision(message)],
            annotations: Vec::new(),
        }
    }
}

/// Why there are no results.
enum Halt {
    Exhausted,
    Failed(String),
}

impl From<Exhausted> for Halt {
    fn from(Exhausted: Exhausted) -> Self {
        Self::Exhausted
    }
}

impl Validating {
    pub(super) fn compile(spec: &Value) -> Self {
        let mut compiler = Compiler::new(tree::is_set(&spec["paramKind"]), true);
        for variable in tree::list(&spec["variables"]) {
            let text = |key: &str| tree::text(&variable[key]);
            // The error is reported where the variable is used.
            let _ = compiler.compose(text("name"), text("expression"));
        }
        let validations: Vec<Validation> = tree::list(&spec["validations"])
            .iter()
            .map(|validation| Validation::compile(validation, &mut compiler))
            .collect();
        let annotations: Vec<AuditAnnotation> = tree::list(&spec["auditAnnotations"])
            .iter()
            .map(|annotation| AuditAnnotation {
                key: tree::text(&annotation["key"]).to_owned(),
                value: compiler.compile(
                    tree::text(&annotation["valueExpression"]),
                    Output::TextOrNull,
                    true,
                ),
            })
            .collect();
        let variables = compiler.into_variables();
        let all = validations
            .iter()
            .flat_map(|v| std::iter::once(&v.expression).chain(&v.message_expression))
            .chain(annotations.iter().map(|annotation| &annotation.value));
        Self {
            uses: uses(all, &variables),
            variables,
            validations,
            annotations,
        }
    }

    /// Evaluates everything; `None` if that needs more than the small limits.
    pub(super) fn evaluate<'a>(
        &'a self,
        attributes: &Attributes<'_>,
        activation: &Activation<'a>,
        failure: FailurePolicy,
        limits: Limits,
    ) -> Option<Outcome> {
        let unauthorized = Activation {
            authorizer: None,
            ..activation.clone()
        };
        let evaluated = self
            .validate(attributes, activation, &unauthorized, failure, limits)
            .and_then(|decisions| {
                let annotations = self.annotate(attributes, &unauthorized, failure, limits)?;
                Ok(Outcome {
                    decisions,
                    annotations,
                })
            });
        match evaluated {
            Ok(outcome) => Some(outcome),
            Err(Halt::Exhausted) if limits == Limits::Small => None,
            Err(Halt::Exhausted) => Some(Outcome::failed(failure, EXHAUSTED)),
            Err(Halt::Failed(why)) => Some(Outcome::failed(failure, why)),
        }
    }

    fn run<'a>(
        &'a self,
        attributes: &Attributes<'_>,
        activation: &Activation<'a>,
        limits: Limits,
        budget: u64,
    ) -> Result<Run<'a>, Halt> {
        let values = activation
            .values(attributes)
            .map_err(|error| Halt::Failed(error.message))?;
        Ok(Run::new(values, &self.variables, limits, budget))
    }

    fn validate<'a>(
        &'a self,
        attributes: &Attributes<'_>,
        activation: &Activation<'a>,
        unauthorized: &Activation<'a>,
        failure: FailurePolicy,
        limits: Limits,
    ) -> Result<Vec<Decision>, Halt> {
        let mut run = self.run(attributes, activation, limits, limits.budget())?;
        let mut results = Vec::with_capacity(self.validations.len());
        for validation in &self.validations {
            results.push(run.evaluate(&validation.expression)?);
        }
        let holds = |result: &Result<Cel<'_>, String>| matches!(result, Ok(Cel::Bool(true)));
        if results.iter().all(holds) {
            return Ok(vec![Decision::Admit; results.len()]);
        }
        let messages = self.messages(self.run(attributes, unauthorized, limits, run.budget)?);
        if limits == Limits::Small && messages.is_err() {
            return Err(Halt::Exhausted);
        }
        let decisions = self.validations.iter().zip(results).enumerate();
        let decisions = decisions.map(|(at, (validation, result))| match (result, &messages) {
            (Err(why), _) => failure.decision(why),
            (Ok(_), Err(Exhausted)) => {
                failure.decision(format!("failed messageExpression: {EXHAUSTED}"))
            }
            (Ok(Cel::Bool(true)), _) => Decision::Admit,
            (Ok(_), Ok(messages)) => {
                let made = messages.get(at).cloned().flatten();
                Decision::Deny(validation.denial(made))
            }
        });
        Ok(decisions.collect())
    }

    /// The results of the message expressions that can be shown.
    fn messages<'a>(&'a self, mut run: Run<'a>) -> Result<Vec<Option<String>>, Exhausted> {
        let mut messages = Vec::with_capacity(self.validations.len());
        for validation in &self.validations {
            let message = match &validation.message_expression {
                Some(expression) => match run.evaluate(expression)? {
                    Ok(Cel::String(text)) => Some(text.trim().to_owned()),
                    _ => None,
                },
                None => None,
            };
            messages.push(message.filter(|text| {
                !text.is_empty() && text.len() <= LONGEST_MESSAGE && !text.contains('\n')
            }));
        }
        Ok(messages)
    }

    fn annotate<'a>(
        &'a self,
        attributes: &Attributes<'_>,
        unauthorized: &Activation<'a>,
        failure: FailurePolicy,
        limits: Limits,
    ) -> Result<Vec<Annotation>, Halt> {
        if self.annotations.is_empty() {
            return Ok(Vec::new());
        }
        let mut run = self.run(attributes, unauthorized, limits, limits.budget())?;
        let mut annotations = Vec::with_capacity(self.annotations.len());
        for annotation in &self.annotations {
            annotations.push(match run.evaluate(&annotation.value)? {
                Ok(Cel::String(text)) if !text.trim().is_empty() => Annotation::Publish {
                    key: annotation.key.clone(),
                    value: text.trim().to_owned(),
                },
                Ok(Cel::String(_) | Cel::Null) => Annotation::Exclude,
                Ok(other) => Annotation::Error(format!(
                    "valueExpression '{}' resulted in unsupported return type: {}. Return type must be either string or null.",
                    annotation.value.text,
                    other.type_of().declared_name(),
                )),
                Err(why) => match failure {
                    FailurePolicy::Ignore => Annotation::Exclude,
                    FailurePolicy::Fail => Annotation::Error(why),
                },
            });
        }
        Ok(annotations)
    }
}

impl Validation {
    fn compile(validation: &Value, compiler: &mut Compiler) -> Self {
        let text = |key: &str| tree::text(&validation[key]);
        let message_expression = Some(text("messageExpression")).filter(|text| !text.is_empty());
        Self {
            expression: compiler.compile(text("expression"), Output::Bool, true),
            message: text("message").trim().to_owned(),
            message_expression: message_expression
                .map(|text| compiler.compile(text, Output::Text, false)),
            reason: Some(text("reason").to_owned()).filter(|text| !text.is_empty()),
        }
    }

    /// The denial of a validation that is false.
    fn denial(&self, made: Option<String>) -> Denial {
        let given = || Some(self.message.clone()).filter(|text| !text.is_empty());
        let fallback = || format!("failed expression: {}", self.expression.text.trim());
        Denial {
            message: made.or_else(given).unwrap_or_else(fallback),
            reason: self.reason.clone().unwrap_or_default(),
            is_failure: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::{
        Operation,
        testing::{Case, object},
    };

    fn outcome(spec: Value, failure: FailurePolicy) -> Outcome {
        let (small, full) = outcomes(&spec, failure);
        assert!(small.is_none_or(|small| small == full));
        full
    }

    /// Within the small limits and within the full ones.
    fn outcomes(spec: &Value, failure: FailurePolicy) -> (Option<Outcome>, Outcome) {
        let case = Case::new(Operation::Create, "", "pods").named("here", "web");
        let given = case.attributes();
        let pod = object(json!({"metadata": {"name": "web"}, "spec": {"replicas": 3}}));
        let attributes = Attributes::new(&given, Some(&pod));
        let request = attributes.request(&attributes.own());
        let params = object(json!({"data": {"max": 2}}));
        let activation = Activation {
            object: attributes.object,
            old: None,
            namespace: None,
            request: &request,
            params: tree::is_set(&spec["paramKind"]).then_some(Some(&params)),
            authorizer: None,
        };
        let policy = Validating::compile(spec);
        let within = |limits| policy.evaluate(&attributes, &activation, failure, limits);
        (within(Limits::Small), within(Limits::Full).unwrap())
    }

    fn denied(message: &str, reason: &str) -> Decision {
        Decision::Deny(Denial {
            message: message.to_owned(),
            reason: reason.to_owned(),
            is_failure: false,
        })
    }

    #[test]
    fn messages_come_from_the_expression_then_the_message_then_the_rule() {
        for (validation, wanted) in [
            (
                json!({"expression": "object.spec.replicas > 2"}),
                Decision::Admit,
            ),
            (
                json!({"expression": " object.spec.replicas > 5 "}),
                denied("failed expression: object.spec.replicas > 5", ""),
            ),
            (
                json!({"expression": "false", "message": " too many ", "reason": "Forbidden"}),
                denied("too many", "Forbidden"),
            ),
            (
                json!({"expression": "false", "message": "plain",
                       "messageExpression": "' has ' + string(object.spec.replicas)"}),
                denied("has 3", ""),
            ),
            (
                json!({"expression": "false", "message": "plain", "messageExpression": "'a\\nb'"}),
                denied("plain", ""),
            ),
            (
                json!({"expression": "false", "message": "plain", "messageExpression": "object.spec.nothing"}),
                denied("plain", ""),
            ),
            (
                json!({"expression": "false", "messageExpression": "' '"}),
                denied("failed expression: false", ""),
            ),
        ] {
            let spec = json!({"validations": [validation]});
            let found = outcome(spec, FailurePolicy::Fail);
            assert_eq!(found.decisions, [wanted], "{validation}");
        }
    }

    #[test]
    fn a_failure_is_left_to_the_failure_policy() {
        let spec = json!({"validations": [{"expression": "object.spec.nothing > 1"}, {"expression": "true"}]});
        let why = "expression 'object.spec.nothing > 1' resulted in error: no such key: nothing";
        assert_eq!(
            outcome(spec.clone(), FailurePolicy::Fail).decisions,
            [Decision::Deny(Denial::failure(why)), Decision::Admit]
        );
        assert_eq!(
            outcome(spec, FailurePolicy::Ignore).decisions,
            [Decision::Ignored(why.to_owned()), Decision::Admit]
        );
        let broken = json!({"validations": [{"expression": "object."}]});
        let found = outcome(broken, FailurePolicy::Fail);
        let [Decision::Deny(denial)] = found.decisions.as_slice() else {
            panic!("{found:?}")
        };
        assert!(
            denial
                .message
                .starts_with("compilation error: compilation failed: ERROR: <input>:1:")
        );
    }

    #[test]
    fn parameters_and_variables_are_at_hand() {
        let spec = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "variables": [{"name": "max", "expression": "params.data.max"}],
            "validations": [{"expression": "object.spec.replicas <= variables.max",
                             "messageExpression": "'at most ' + string(variables.max)"}]});
        assert_eq!(
            outcome(spec, FailurePolicy::Fail).decisions,
            [denied("at most 2", "")]
        );
    }

    #[test]
    fn audit_annotations_are_published_left_out_or_refuse() {
        let spec = json!({"auditAnnotations": [
            {"key": "a", "valueExpression": "' replicas ' + string(object.spec.replicas)"},
            {"key": "b", "valueExpression": "null"},
            {"key": "c", "valueExpression": "''"},
            {"key": "d", "valueExpression": "object.spec.nothing + ''"}]});
        let published = Annotation::Publish {
            key: "a".to_owned(),
            value: "replicas 3".to_owned(),
        };
        let why = "expression 'object.spec.nothing + ''' resulted in error: no such key: nothing";
        use Annotation::{Error, Exclude};
        assert_eq!(
            outcome(spec.clone(), FailurePolicy::Fail).annotations,
            [published.clone(), Exclude, Exclude, Error(why.to_owned())]
        );
        assert_eq!(
            outcome(spec, FailurePolicy::Ignore).annotations,
            [published, Exclude, Exclude, Exclude]
        );
    }

    #[test]
    fn what_exceeds_the_small_limits_has_no_result_within_them() {
        let many = "[0,1,2,3,4,5,6,7,8,9]";
        let many = format!("{many}.map(a, {many}.map(b, {many}.map(c, {many}.map(d, d))))");
        for costly in [
            json!({"validations": [{"expression": format!("{many}.size() == 10")}]}),
            json!({"variables": [{"name": "many", "expression": many}],
                   "validations": [{"expression": "variables.many.size() == 10"}]}),
            json!({"validations": [{"expression": "false", "messageExpression": format!("string({many}.size())")}]}),
            json!({"auditAnnotations": [{"key": "a", "valueExpression": format!("string({many}.size())")}]}),
        ] {
            let (small, full) = outcomes(&costly, FailurePolicy::Fail);
            assert_eq!(small, None, "{costly}");
            assert_ne!(full, Outcome::failed(FailurePolicy::Fail, EXHAUSTED));
        }
        let cheap = json!({"validations": [{"expression": "object.spec.replicas == 3"}]});
        let (small, full) = outcomes(&cheap, FailurePolicy::Fail);
        assert_eq!(small, Some(full));
    }

    #[test]
    fn a_policy_that_costs_too_much_fails_as_a_whole() {
        let list = "[0,1,2,3,4,5,6,7,8,9]";
        let nested = |depth: usize| {
            let mut text = "true".to_owned();
            for level in 0..depth {
                text = format!("{list}.all(x{level}, {text})");
            }
            text
        };
        // Each is below the limit of one expression; together they exceed the budget.
        let validations: Vec<Value> = (0..60).map(|_| json!({"expression": nested(5)})).collect();
        let found = outcome(json!({"validations": validations}), FailurePolicy::Fail);
        assert_eq!(
            found.decisions,
            [Decision::Deny(Denial::failure(EXHAUSTED))]
        );
    }
}
