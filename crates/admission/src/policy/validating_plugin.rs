//! ValidatingAdmissionPolicy: denies, warns about or audits what fails a policy.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use async_trait::async_trait;
use machinery::{Object, Status, Value, json::json, status::Cause};

use super::{
    super::{Attributes as Given, Plugin, matching::Activation, signers::Authorizers},
    Figures,
    dispatch::{Invocation, Misconfigured, Pace, Request, is_exempt},
    forms::Forms,
    source::Source,
    spec::{Action, Binding, FailurePolicy, Policy},
    validating::{Annotation, Decision, Denial, Outcome, Validating},
    variables::Limits,
};
use crate::Reader;
use request::heavy;

pub(crate) const NAME: &str = "ValidatingAdmissionPolicy";

/// The longest value of an audit annotation.
const LONGEST_ANNOTATION: usize = 10 * 1024;
/// The longest audit annotation with the values of all parameters; further values are left out.
const LONGEST_LIST: usize = 256 * 1024;
const FAILURES: &str = "validation.policy.admission.k8s.io/validation_failure";

pub(crate) struct ValidatingAdmissionPolicy {
    source: Arc<Source<Validating>>,
    authorizers: Authorizers,
    figures: Figures,
}

impl ValidatingAdmissionPolicy {
    pub(crate) fn new(reader: &Reader, authorizers: Authorizers, figures: &Figures) -> Self {
        Self {
            source: Source::new(
                reader.clone(),
                "validatingadmissionpolicies",
                "validatingadmissionpolicybindings",
                Validating::compile,
            ),
            authorizers,
            figures: figures.clone(),
        }
    }
}

#[async_trait]
impl Plugin for ValidatingAdmissionPolicy {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Given<'_>) -> bool {
        self.source.concerns(attributes.resource) && !is_exempt(attributes)
    }

    fn handles_connect(&self) -> bool {
        true
    }

    fn mutates(&self) -> bool {
        false
    }

    async fn validate(&self, given: &Given<'_>, object: Option<&Object>) -> Result<(), Status> {
        let not_ready = |_| given.forbidden("not yet ready to handle request");
        let index = self.source.index().await.map_err(not_ready)?;
        let forms = Forms::new(given);
        let request = Request::new(given, object, &forms, &self.authorizers);
        let steps = request.steps(index.about(given.resource)).await;
        let mut verdict = Verdict::new(given, &self.figures);
        let mut pace = Pace::new();
        for step in steps {
            verdict.begun = pace.rest(given.effects).await?;
            match step {
                Ok(invocation) => {
                    let outcome = evaluate(&request, &invocation).await?;
                    verdict.add(invocation.policy, invocation.binding, outcome);
                }
                Err(misconfigured) => verdict.misconfigured(misconfigured),
            }
        }
        verdict.end()
    }

    fn start(&self, context: &lifecycle::Context) {
        self.source.start(context);
    }
}

/// Evaluates one policy with one binding and parameter.
async fn evaluate(
    request: &Request<'_>,
    invocation: &Invocation<'_, Validating>,
) -> Result<Outcome, Status> {
    let policy = invocation.policy;
    let (matched, uses) = (&invocation.matched, policy.program.uses);
    let (object, old) = (request.attributes.object, request.attributes.old);
    let (mut new_form, mut old_form) = (None, None);
    for (object, form) in [(object, &mut new_form), (old, &mut old_form)] {
        let Some(object) = object else { continue };
        match request.forms.convert(object, matched).await {
            Ok(converted) => *form = converted,
            Err(why) => return Ok(Outcome::failed(policy.failure, why)),
        }
    }
    let variable = request.request_object(matched, uses.request || !policy.conditions.is_empty());
    let namespace = match uses.namespace {
        true => request.namespace_object().await?,
        false => None,
    };
    let param = match &invocation.param {
        Some(param) => Some(param.object().await),
        None => None,
    };
    let activation = Activation {
        object: new_form.as_ref().or(object),
        old: old_form.as_ref().or(old),
        namespace: namespace.as_ref(),
        request: &variable,
        params: policy.param_kind.is_some().then_some(param.as_deref()),
        authorizer: request.checks(uses),
    };
    match request.meets_conditions(policy, &activation).await {
        Ok(true) => {}
        Ok(false) => return Ok(Outcome::default()),
        // Match conditions that fail with failure policy Ignore exclude the request.
        Err(_) if policy.failure == FailurePolicy::Ignore => return Ok(Outcome::default()),
        Err(why) => return Ok(Outcome::failed(policy.failure, why)),
    }
    let mut limits = Limits::Small;
    loop {
        let (program, failure) = (&policy.program, policy.failure);
        let Some(outcome) = program.evaluate(&request.attributes, &activation, failure, limits)
        else {
            heavy::mark().await;
            limits = Limits::Full;
            continue;
        };
        if !request.answer_pending(uses).await {
            return Ok(outcome);
        }
    }
}

/// The combined result of all policies.
struct Verdict<'a> {
    given: &'a Given<'a>,
    figures: &'a Figures,
    /// When the evaluation of the current policy began.
    begun: Instant,
    /// The first denial: policy, binding, and reason.
    denied: Option<(String, Option<String>, Denial)>,
    /// Audit annotations by key, with the values of all parameters.
    annotations: BTreeMap<String, Published>,
}

/// The distinct values of an audit annotation.
#[derive(Default)]
struct Published {
    values: Vec<String>,
    bytes: usize,
}

impl Published {
    fn add(&mut self, value: &str) {
        let value = &value[..value.floor_char_boundary(LONGEST_ANNOTATION)];
        if self.bytes + value.len() <= LONGEST_LIST && !self.values.iter().any(|one| one == value) {
            self.bytes += value.len();
            self.values.push(value.to_owned());
        }
    }
}

impl<'a> Verdict<'a> {
    fn new(given: &'a Given<'a>, figures: &'a Figures) -> Self {
        Self {
            given,
            figures,
            begun: Instant::now(),
            denied: None,
            annotations: BTreeMap::new(),
        }
    }

    fn deny(&mut self, policy: &str, binding: Option<&Binding>, denial: Denial) {
        let binding = || binding.map(|binding| binding.name.clone());
        self.denied
            .get_or_insert_with(|| (policy.to_owned(), binding(), denial));
    }

    fn misconfigured(&mut self, misconfigured: Misconfigured<'_, Validating>) {
        let Misconfigured {
            policy,
            binding,
            why,
        } = misconfigured;
        if policy.failure == FailurePolicy::Fail {
            self.deny(&policy.name, binding, Denial::failure(why));
        }
    }

    fn add(&mut self, policy: &Policy<Validating>, binding: &Binding, outcome: Outcome) {
        for (at, decision) in outcome.decisions.into_iter().enumerate() {
            match decision {
                Decision::Admit => {}
                Decision::Ignored(why) => {
                    let names = (policy.name.as_str(), binding.name.as_str());
                    self.figures
                        .validated(names, &why, "allow", self.begun.elapsed());
                }
                Decision::Deny(denial) => self.act(&policy.name, binding, at, denial),
            }
        }
        for annotation in outcome.annotations {
            match annotation {
                Annotation::Publish { key, value } => {
                    let key = format!("{}/{key}", policy.name);
                    self.annotations.entry(key).or_default().add(&value);
                }
                Annotation::Exclude => {}
                Annotation::Error(why) => {
                    let names = (policy.name.as_str(), binding.name.as_str());
                    self.figures
                        .validated(names, &why, "deny", self.begun.elapsed());
                    self.deny(&policy.name, Some(binding), Denial::failure(why));
                }
            }
        }
    }

    /// Applies the binding's actions for a failed validation.
    fn act(&mut self, policy: &str, binding: &Binding, at: usize, denial: Denial) {
        for action in &binding.actions {
            let names = (policy, binding.name.as_str());
            let done = action.name_of_figure();
            self.figures
                .validated(names, &denial.message, done, self.begun.elapsed());
            match action {
                Action::Deny => self.deny(policy, Some(binding), denial.clone()),
                Action::Warn => self.given.effects.warn(format!(
                    "Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{}': {}",
                    binding.name, denial.message
                )),
                Action::Audit => {
                    let value = failure_annotation(policy, binding, at, &denial.message);
                    self.given.effects.annotate(FAILURES, &value.to_string());
                }
            }
        }
    }

    fn end(self) -> Result<(), Status> {
        for (key, published) in &self.annotations {
            let effects = self.given.effects;
            effects.annotate(key, &published.values.join(", "));
        }
        let Some((policy, binding, denial)) = self.denied else {
            return Ok(());
        };
        let with = binding.map(|binding| format!(" with binding '{binding}'"));
        let message = format!(
            "ValidatingAdmissionPolicy '{policy}'{} denied request: {}",
            with.unwrap_or_default(),
            denial.message
        );
        let mut status = self.given.forbidden(&message);
        status.reason = match denial.reason.as_str() {
            "" => "Invalid".to_owned(),
            reason => reason.to_owned(),
        };
        status.code = code(&status.reason);
        let details = status.details.get_or_insert_default();
        details.causes.push(Cause {
            message,
            ..Cause::default()
        });
        Err(status)
    }
}

fn failure_annotation(policy: &str, binding: &Binding, at: usize, message: &str) -> Value {
    let actions: Vec<&str> = binding.actions.iter().map(|action| action.name()).collect();
    json!([{"message": message, "policy": policy, "binding": binding.name, "expressionIndex": at,
            "validationActions": actions}])
}

/// The HTTP code of a validation's reason.
fn code(reason: &str) -> u16 {
    match reason {
        "Forbidden" => 403,
        "Unauthorized" => 401,
        "RequestEntityTooLarge" => 413,
        _ => 422,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_an_annotation_are_distinct_and_limited() {
        let mut published = Published::default();
        for value in ["a", "b", "a"] {
            published.add(value);
        }
        assert_eq!(published.values, ["a", "b"]);
        for number in 0..100 {
            published.add(&format!("{number:0>20000}"));
        }
        // All are cut to the same text.
        assert_eq!(published.values.len(), 3);
        assert_eq!(published.values[2].len(), LONGEST_ANNOTATION);
        for number in 0..100 {
            published.add(&format!("{number:0<20000}"));
        }
        assert!(published.bytes <= LONGEST_LIST && published.values.len() > 20);
    }
}
