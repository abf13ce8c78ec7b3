//! MutatingAdmissionPolicy: applies policies' mutations one after the other.

use std::{sync::Arc, time::Instant};

use async_trait::async_trait;
use kinds::tree;
use machinery::{
    Object, Status, Value,
    apply::Root,
    decode::Findings,
    normalise,
    schema::{self, Type},
    status::Cause,
    text::quote,
};

use super::{
    super::{
        Attributes as Given, Plugin,
        matching::{Activation, GroupVersionKind, Matched},
        signers::Authorizers,
    },
    Figures,
    dispatch::{Invocation, Misconfigured, Pace, Request, is_exempt},
    forms::Forms,
    mutating::{Mutated, Mutating},
    source::Source,
    spec::{FailurePolicy, Policy},
};
use crate::{Reader, Resource};
use request::heavy;

pub(crate) const NAME: &str = "MutatingAdmissionPolicy";

pub(crate) struct MutatingAdmissionPolicy {
    source: Arc<Source<Mutating>>,
    authorizers: Authorizers,
    figures: Figures,
}

impl MutatingAdmissionPolicy {
    pub(crate) fn new(reader: &Reader, authorizers: Authorizers, figures: &Figures) -> Self {
        Self {
            source: Source::new(
                reader.clone(),
                "mutatingadmissionpolicies",
                "mutatingadmissionpolicybindings",
                Mutating::compile,
            ),
            authorizers,
            figures: figures.clone(),
        }
    }
}

#[async_trait]
impl Plugin for MutatingAdmissionPolicy {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Given<'_>) -> bool {
        self.source.concerns(attributes.resource) && !is_exempt(attributes)
    }

    fn handles_connect(&self) -> bool {
        true
    }

    fn validates(&self) -> bool {
        false
    }

    async fn mutate(&self, given: &Given<'_>, object: &mut Object) -> Result<(), Status> {
        let not_ready = |_| given.forbidden("not yet ready to handle request");
        let index = self.source.index().await.map_err(not_ready)?;
        let forms = Forms::new(given);
        let reinvocation = &given.effects.reinvocation;
        reinvocation.enter(NAME, object);
        // Matching uses the object as received here; each mutation sees the result of the previous
        // ones.
        let before = object.clone();
        let request = Request::new(given, Some(&before), &forms, &self.authorizers);
        let steps = request.steps(index.about(given.resource)).await;
        if !steps.is_empty() {
            heavy::mark().await;
        }
        let mut errors = Errors::new(&self.figures);
        let mut pace = Pace::new();
        for step in steps {
            pace.rest(given.effects).await?;
            match step {
                Ok(invocation) => invoke(&request, &invocation, object, &mut errors).await?,
                Err(misconfigured) => errors.misconfigured(misconfigured),
            }
        }
        reinvocation.leave(NAME, object);
        errors.end(given)
    }

    fn start(&self, context: &lifecycle::Context) {
        self.source.start(context);
    }
}

/// Applies the mutations of one policy with one binding and parameter.
async fn invoke(
    request: &Request<'_>,
    invocation: &Invocation<'_, Mutating>,
    object: &mut Object,
    errors: &mut Errors<'_>,
) -> Result<(), Status> {
    let Invocation {
        policy,
        binding,
        matched,
        param,
    } = invocation;
    let (program, uses) = (&policy.program, policy.program.uses);
    let old = request.attributes.old;
    let (mut form, old_form) = match converted(request, object, old, matched).await {
        Ok(forms) => forms,
        Err(why) => {
            errors.add(policy, Some(&binding.name), why, "Invalid");
            return Ok(());
        }
    };
    let variable = request.request_object(matched, uses.request || !policy.conditions.is_empty());
    let namespace = match uses.namespace {
        true => request.namespace_object().await?,
        false => None,
    };
    let params = match param {
        Some(param) => Some(param.object().await),
        None => None,
    };
    let surroundings = Activation {
        object: None,
        old: old_form.as_ref().or(old),
        namespace: namespace.as_ref(),
        request: &variable,
        params: policy.param_kind.is_some().then_some(params.as_deref()),
        authorizer: request.checks(uses),
    };
    let activation = Activation {
        object: Some(&form),
        ..surroundings.clone()
    };
    match request.meets_conditions(policy, &activation).await {
        Ok(true) => {}
        Ok(false) => return Ok(()),
        Err(_) if policy.failure == FailurePolicy::Ignore => return Ok(()),
        Err(why) => {
            errors.add(policy, Some(&binding.name), why, "Invalid");
            return Ok(());
        }
    }
    let id = invocation_id(invocation);
    let reinvocation = &request.effects().reinvocation;
    if !reinvocation.runs(NAME, &id) {
        return Ok(());
    }
    let typed = Typed::find(request, &matched.kind, matched)?;
    let changed = mutate(
        request,
        invocation,
        &typed,
        &surroundings,
        &mut form,
        errors,
    )
    .await?;
    reinvocation.ran(NAME, &id, changed, program.is_reinvocable);
    if changed {
        match request.forms.convert_back(&form, matched).await {
            Ok(own) => *object = own.unwrap_or(form),
            Err(why) => errors.add(policy, Some(&binding.name), why, "Invalid"),
        }
    }
    Ok(())
}

/// Applies one mutation after the other, each to the result of the last. Whether any changed the object.
async fn mutate(
    request: &Request<'_>,
    invocation: &Invocation<'_, Mutating>,
    typed: &Typed<'_>,
    surroundings: &Activation<'_>,
    form: &mut Object,
    errors: &mut Errors<'_>,
) -> Result<bool, Status> {
    let (policy, binding) = (&invocation.policy, &invocation.binding);
    let (program, uses) = (&policy.program, policy.program.uses);
    let mut changed = false;
    for at in 0..program.len() {
        let begun = Instant::now();
        let mutated = loop {
            let activation = Activation {
                object: Some(&*form),
                ..surroundings.clone()
            };
            let mutated = program.mutate(at, &request.attributes, &activation, typed.root());
            if !request.answer_pending(uses).await {
                break mutated;
            }
        };
        let is_merged = matches!(mutated, Ok(Mutated::Merged(_)));
        let names = (policy.name.as_str(), binding.name.as_str());
        match read(typed, mutated, errors.figures, names, begun) {
            Ok(Ok(next)) => {
                if let Some(next) = next {
                    changed |= next != *form;
                    *form = next;
                }
            }
            // A configuration with a value that its field cannot hold.
            Ok(Err(status)) if is_merged => {
                errors.add(
                    policy,
                    Some(&binding.name),
                    inconvertible(form, &status),
                    "Invalid",
                );
            }
            Ok(Err(status)) => return Err(status),
            Err(why) => errors.add(policy, Some(&binding.name), why, "Invalid"),
        }
    }
    Ok(changed)
}

/// Decodes the result of a mutation and counts the mutation: one whose result cannot be decoded failed.
fn read(
    typed: &Typed<'_>,
    mutated: Result<Mutated, String>,
    figures: &Figures,
    names: (&str, &str),
    begun: Instant,
) -> Result<Result<Option<Object>, Status>, String> {
    let read = mutated.map(|mutated| typed.read(mutated));
    let failure = match &read {
        Ok(Ok(_)) => None,
        Ok(Err(status)) => Some(status.message.as_str()),
        Err(why) => Some(why.as_str()),
    };
    figures.mutated(names, failure, begun.elapsed());
    read
}

/// Why a merged object cannot be decoded.
fn inconvertible(object: &Object, status: &Status) -> String {
    let text = |key: &str| tree::text(tree::get(object, key));
    let why = status.message.strip_prefix("Internal error occurred: ");
    format!(
        "unable to convert unstructured object to {}, Kind={}: {}",
        text("apiVersion"),
        text("kind"),
        why.unwrap_or(&status.message)
    )
}

/// The object in the matched version, and the old one if it had to be converted.
async fn converted(
    request: &Request<'_>,
    object: &Object,
    old: Option<&Object>,
    matched: &Matched<'_>,
) -> Result<(Object, Option<Object>), String> {
    let form = request.forms.convert(object, matched).await?;
    let old = match old {
        Some(old) => request.forms.convert(old, matched).await?,
        None => None,
    };
    Ok((form.unwrap_or_else(|| object.clone()), old))
}

/// The identity of a policy with a binding and a parameter.
fn invocation_id(invocation: &Invocation<'_, Mutating>) -> String {
    let param = invocation.param.as_ref().map(|param| param.id());
    let (policy, binding) = (&invocation.policy.name, &invocation.binding.name);
    format!("{policy}/{binding}/{}", param.unwrap_or_default())
}

/// How objects of a kind are decoded after a mutation.
enum Typed<'a> {
    Resource(&'a Resource),
    /// The body of a subresource.
    Part(&'static Type),
}

impl<'a> Typed<'a> {
    fn find(
        request: &'a Request<'_>,
        kind: &GroupVersionKind<'_>,
        matched: &Matched<'_>,
    ) -> Result<Self, Status> {
        let GroupVersionKind {
            group,
            version,
            kind,
        } = kind;
        let resource = request
            .forms
            .matched(matched)
            .filter(|_| request.forms.is_whole);
        let part = || schema::lookup_kind(group, version, kind).map(Self::Part);
        let found = resource
            .map(|resource| Self::Resource(resource))
            .or_else(part);
        found.ok_or_else(|| {
            Status::service_unavailable(format!(
                "Resource kind {group}/{version}, Kind={kind} not found. There can be a delay between when CustomResourceDefinitions are created and when they are available."
            ))
        })
    }

    fn root(&self) -> Root<'_> {
        match self {
            Self::Resource(resource) => resource.root(),
            Self::Part(schema) => Root::Typed(schema),
        }
    }

    /// Decodes the object as its type, with defaults; `None` if unchanged.
    fn read(&self, mutated: Mutated) -> Result<Option<Object>, Status> {
        let (object, strict) = match mutated {
            Mutated::Same => return Ok(None),
            Mutated::Patched(object) => (object, true),
            Mutated::Merged(object) => (object, false),
            Mutated::OfOtherKind(why) => return Err(Status::internal(why)),
        };
        let (mut object, findings) = match self {
            Self::Resource(resource) => {
                let decoded = resource.normalise(object).map_err(Status::internal)?;
                (decoded.object, decoded.findings)
            }
            Self::Part(schema) => {
                let mut findings = Findings::default();
                let object = normalise::object(schema, Value::Object(object), &mut findings);
                (object.map_err(Status::internal)?, findings)
            }
        };
        if strict && !findings.is_empty() {
            return Err(Status::internal(findings.strict_error()));
        }
        if let Self::Resource(resource) = self {
            resource.kind.default(&mut object);
        }
        Ok(Some(object))
    }
}

/// The errors of policies whose failure policy is Fail.
struct Errors<'a> {
    figures: &'a Figures,
    messages: Vec<String>,
    /// The reason of the first error.
    reason: String,
}

impl<'a> Errors<'a> {
    fn new(figures: &'a Figures) -> Self {
        Self {
            figures,
            messages: Vec::new(),
            reason: String::new(),
        }
    }

    fn misconfigured(&mut self, misconfigured: Misconfigured<'_, Mutating>) {
        let Misconfigured {
            policy,
            binding,
            why,
        } = misconfigured;
        let binding = binding.map(|binding| binding.name.as_str());
        self.add(policy, binding, why, "");
    }

    fn add(&mut self, policy: &Policy<Mutating>, binding: Option<&str>, why: String, reason: &str) {
        if policy.failure == FailurePolicy::Ignore {
            return;
        }
        if self.messages.is_empty() {
            self.reason = reason.to_owned();
        }
        let policy = &policy.name;
        self.messages.push(match binding {
            Some(binding) => {
                format!("policy '{policy}' with binding '{binding}' denied request: {why}")
            }
            None => format!("policy {} denied request: {why}", quote(policy)),
        });
    }

    fn end(self, given: &Given<'_>) -> Result<(), Status> {
        let Some(first) = self.messages.first() else {
            return Ok(());
        };
        let mut status = given.forbidden("admission request denied by policy");
        status.message.clone_from(first);
        if !self.reason.is_empty() {
            status.reason = self.reason;
        }
        let causes = self.messages.into_iter().map(|message| Cause {
            message,
            ..Cause::default()
        });
        status.details.get_or_insert_default().causes.extend(causes);
        Err(status)
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;
    use prometheus_client::{encoding::text, registry::Registry};

    use super::*;
    use crate::testing::object;

    #[test]
    fn a_merged_object_that_cannot_be_decoded_is_named() {
        let merged = object(json!({"apiVersion": "apps/v1", "kind": "Deployment"}));
        let why = inconvertible(&merged, &Status::internal("cannot unmarshal number 5.5"));
        assert_eq!(
            why,
            "unable to convert unstructured object to apps/v1, Kind=Deployment: cannot unmarshal number 5.5"
        );
    }

    #[test]
    fn mutations_whose_result_is_refused_are_counted_as_failures() {
        let typed = Typed::Part(schema::lookup_kind("", "v1", "ConfigMap").unwrap());
        let map =
            |extra: Value| object(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": extra}));
        let mut registry = Registry::default();
        let figures = Figures::new(&mut registry);
        for (binding, mutated, label) in [
            ("same", Ok(Mutated::Same), "no_error"),
            (
                "good",
                Ok(Mutated::Patched(map(json!({"a": "b"})))),
                "no_error",
            ),
            (
                "patched",
                Ok(Mutated::Patched(map(json!({"a": 1})))),
                "invalid_error",
            ),
            (
                "merged",
                Ok(Mutated::Merged(map(json!({"a": 1})))),
                "invalid_error",
            ),
            (
                "kind",
                Ok(Mutated::OfOtherKind("why".to_owned())),
                "invalid_error",
            ),
            (
                "failed",
                Err("compilation failed".to_owned()),
                "compile_error",
            ),
        ] {
            let is_good = label == "no_error";
            let read = read(&typed, mutated, &figures, ("p", binding), Instant::now());
            assert_eq!(matches!(read, Ok(Ok(_))), is_good, "{binding}: {read:?}");
            let mut shown = String::new();
            text::encode(&mut shown, &registry).unwrap();
            let labels = format!(r#"policy="p",policy_binding="{binding}",error_type="{label}""#);
            let line = format!("apiserver_mutating_admission_policy_check_total{{{labels}}} 1");
            assert!(shown.contains(&line), "{line}\n{shown}");
        }
    }
}
