//! Finds the policies of a request, with their bindings and parameters. Reads from the store happen
//! here, when a policy needs them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use machinery::{Object, Status, Value};
use request::heavy;
use tokio::sync::OnceCell;

use super::{
    super::{
        Attributes as Given, Effects,
        matching::{
            Activation, Attributes, Checks, Matched, Outcome as Conditions, namespace_object,
        },
        timed_out,
    },
    expression::Uses,
    forms::Forms,
    index::Bound,
    params::{self, Param},
    spec::{Binding, Constraints, Policy},
};
use crate::{Stored, authz::Authorizer};

/// Objects exempt from policies: a policy could lock out those who would change it.
const OWN: [&str; 4] = [
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
];

/// Whether a request is exempt from policies.
pub(super) fn is_exempt(given: &Given<'_>) -> bool {
    match given.group {
        "admissionregistration.k8s.io" => OWN.contains(&given.resource),
        // Reviews are not stored, and clusters do not work without them.
        "authentication.k8s.io" => matches!(given.resource, "selfsubjectreviews" | "tokenreviews"),
        "authorization.k8s.io" => matches!(
            given.resource,
            "localsubjectaccessreviews"
                | "selfsubjectaccessreviews"
                | "selfsubjectrulesreviews"
                | "subjectaccessreviews"
        ),
        _ => false,
    }
}

/// A request evaluated by policies.
pub(super) struct Request<'a> {
    given: &'a Given<'a>,
    pub(super) attributes: Attributes<'a>,
    pub(super) forms: &'a Forms,
    authorizers: &'a [Arc<dyn Authorizer>],
    /// Authorization decisions for expressions of this request.
    checks: Arc<Checks>,
    /// Its Namespace, once a policy needs it.
    namespace: OnceCell<Option<Arc<Stored>>>,
}

/// A policy with a binding and a parameter.
pub(super) struct Invocation<'a, P> {
    pub(super) policy: &'a Policy<P>,
    pub(super) binding: &'a Binding,
    pub(super) matched: Matched<'a>,
    pub(super) param: Param,
}

/// A policy that cannot be evaluated because of its configuration.
pub(super) struct Misconfigured<'a, P> {
    pub(super) policy: &'a Policy<P>,
    /// The binding at fault, `None` if it is the policy.
    pub(super) binding: Option<&'a Binding>,
    pub(super) why: String,
}

/// How long policies of one request are evaluated before others have their turn, and before the
/// request counts as heavy.
const TURN: Duration = Duration::from_millis(2);

/// Lets other requests run between evaluations: parameters that a binding selects can be many.
pub(super) struct Pace {
    since: Instant,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
        }
    }

    /// Called between evaluations; returns the time, or an error once the request's deadline has passed.
    pub(super) async fn rest(&mut self, effects: &Effects) -> Result<Instant, Status> {
        let now = Instant::now();
        if now.duration_since(self.since) < TURN {
            return Ok(now);
        }
        heavy::mark().await;
        tokio::task::yield_now().await;
        self.since = Instant::now();
        match effects.deadline {
            Some(deadline) if deadline <= self.since => Err(timed_out()),
            _ => Ok(self.since),
        }
    }
}

/// The evaluations for a request, in order.
pub(super) type Steps<'a, P> = Vec<Result<Invocation<'a, P>, Misconfigured<'a, P>>>;

impl<'a> Request<'a> {
    pub(super) fn new(
        given: &'a Given<'a>,
        object: Option<&'a Object>,
        forms: &'a Forms,
        authorizers: &'a [Arc<dyn Authorizer>],
    ) -> Self {
        Self {
            given,
            attributes: Attributes::new(given, object),
            forms,
            authorizers,
            checks: Arc::default(),
            namespace: OnceCell::new(),
        }
    }

    /// All matching policies, by each binding with each parameter.
    pub(super) async fn steps<P: 'a>(
        &self,
        policies: impl Iterator<Item = &'a Bound<P>>,
    ) -> Steps<'a, P> {
        let mut steps = Vec::new();
        for bound in policies {
            self.add_steps(bound, &mut steps).await;
        }
        steps
    }

    async fn add_steps<P: 'a>(&self, bound: &'a Bound<P>, steps: &mut Steps<'a, P>) {
        let policy = &*bound.policy;
        let misconfigured = |binding: Option<&'a Binding>, why: String| {
            let what = if binding.is_some() {
                "binding"
            } else {
                "policy"
            };
            Err(Misconfigured {
                policy,
                binding,
                why: format!("failed to configure {what}: {why}"),
            })
        };
        let matched = match self.matches(&policy.constraints).await {
            Ok(Some(matched)) => matched,
            Ok(None) => return,
            Err(why) => return steps.push(misconfigured(None, why)),
        };
        let reader = self.given.reader;
        let kind = policy.param_kind.as_ref();
        let resource = match kind
            .map(|kind| params::resource_of(reader, kind))
            .transpose()
        {
            Ok(resource) => resource,
            Err(why) => return steps.push(misconfigured(None, why)),
        };
        for binding in &bound.bindings {
            let matches = match &binding.resources {
                Some(constraints) => self.matches(constraints).await,
                None => Ok(Some(matched)),
            };
            match matches {
                Ok(Some(_)) => {}
                Ok(None) => continue,
                Err(why) => {
                    steps.push(misconfigured(Some(binding), why));
                    continue;
                }
            }
            let (reference, namespace) = (binding.params.as_ref(), self.attributes.namespace);
            match params::collect(reader, resource.as_ref(), reference, namespace).await {
                Err(why) => steps.push(misconfigured(Some(binding), why)),
                Ok(params) => steps.extend(params.into_iter().map(|param| {
                    Ok(Invocation {
                        policy,
                        binding,
                        matched,
                        param,
                    })
                })),
            }
        }
    }

    /// The matched version of the request, if it matches.
    async fn matches(&self, constraints: &Constraints) -> Result<Option<Matched<'a>>, String> {
        let own = self.attributes.own();
        let equivalents = || self.forms.equivalents(&own);
        let Some(matched) = constraints.match_rules(&self.attributes, equivalents) else {
            return Ok(None);
        };
        let namespace = match constraints.reads_namespace(&self.attributes) {
            true => {
                let stored = self.stored_namespace().await;
                Some(stored.map_err(|status| status.message)?)
            }
            false => None,
        };
        let namespace = namespace.as_ref().map(|stored| stored.parsed());
        let selected = constraints.match_selectors(&self.attributes, namespace)?;
        Ok(selected.then_some(matched))
    }

    /// The request's Namespace; 404 if it does not exist.
    async fn stored_namespace(&self) -> Result<Arc<Stored>, Status> {
        let name = self.attributes.namespace;
        let read = || self.given.reader.get("", "namespaces", "", name);
        let stored = self.namespace.get_or_try_init(read).await?;
        stored
            .clone()
            .ok_or_else(|| Status::not_found("", "namespaces", name))
    }

    /// The variable `namespaceObject`; `None` for Namespaces and cluster-scoped objects.
    pub(super) async fn namespace_object(&self) -> Result<Option<Object>, Status> {
        let is_namespace = self.given.group.is_empty() && self.given.resource == "namespaces";
        if is_namespace || self.attributes.namespace.is_empty() {
            return Ok(None);
        }
        let stored = self.stored_namespace().await?;
        Ok(Some(namespace_object(stored.parsed())))
    }

    /// Receives warnings, audit annotations and reinvocation.
    pub(super) fn effects(&self) -> &'a Effects {
        self.given.effects
    }

    /// The variable `request`, if it is used.
    pub(super) fn request_object(&self, matched: &Matched<'_>, needed: bool) -> Value {
        match needed {
            true => self.attributes.request(matched),
            false => Value::Null,
        }
    }

    /// The authorization decisions, if the authorizer is used.
    pub(super) fn checks(&self, uses: Uses) -> Option<Arc<Checks>> {
        uses.authorizer.then(|| self.checks.clone())
    }

    /// Decides pending authorization checks. Returns whether expressions must be evaluated again.
    pub(super) async fn answer_pending(&self, uses: Uses) -> bool {
        uses.authorizer
            && self
                .checks
                .answer_pending(self.authorizers, self.given.user)
                .await
    }

    /// Whether the match conditions hold; the error is that of expressions that failed.
    pub(super) async fn meets_conditions<P>(
        &self,
        policy: &Policy<P>,
        activation: &Activation<'_>,
    ) -> Result<bool, String> {
        if policy.conditions.is_empty() {
            return Ok(true);
        }
        let activation = Activation {
            namespace: None,
            authorizer: Some(self.checks.clone()),
            ..activation.clone()
        };
        let conditions = &policy.conditions;
        match conditions
            .evaluate(&self.attributes, &activation, self.authorizers)
            .await
        {
            Conditions::Match => Ok(true),
            Conditions::Excluded(_) => Ok(false),
            Conditions::Failed(why, _) => Err(why),
        }
    }
}
