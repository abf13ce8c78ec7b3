//! ValidatingAdmissionWebhook: webhooks are called concurrently; the first rejection in their order
//! counts.

use std::{sync::Arc, time::Instant};

use async_trait::async_trait;
use futures::future;
use lifecycle::Context;
use machinery::{Object, Status, Value};
use webhook::Client;

use super::{
    Shared,
    call::{self, Refusal},
    client,
    dispatch::{Dispatch, Versioned},
    hooks::Hook,
    mutating::note,
    source::Source,
};
use crate::{
    Attributes as Given, Plugin,
    matching::{Attributes, GroupVersionKind, Matched},
};

pub(super) const NAME: &str = "ValidatingAdmissionWebhook";
const FAILED_OPEN: &str = "failed-open.validating.webhook.admission.k8s.io/";

pub(crate) struct ValidatingAdmissionWebhook {
    shared: Shared,
    source: Source,
    client: Arc<Client>,
}

/// A webhook to call, with the index of its version.
struct Invocation<'t> {
    hook: Arc<Hook>,
    matched: Matched<'t>,
    version: usize,
}

impl ValidatingAdmissionWebhook {
    pub(crate) fn new(shared: Shared, configuration: &Value) -> Result<Self, String> {
        Ok(Self {
            source: Source::new(shared.reader.clone(), "validatingwebhookconfigurations"),
            client: Arc::new(client(&shared.reader, configuration)?),
            shared,
        })
    }

    async fn dispatch(&self, given: &Given<'_>, object: Option<&Object>) -> Result<(), Status> {
        let attributes = Attributes::new(given, object);
        if attributes.is_admission_configuration() {
            return Ok(());
        }
        let Some(index) = self.source.hooks().await else {
            return Err(given.forbidden("not yet ready to handle request"));
        };
        let hooks = index.find(given.resource);
        if hooks.is_empty() {
            return Ok(());
        }
        let dispatch = Dispatch::new(&self.shared, given, "validating");
        let mut versions: Vec<(GroupVersionKind<'_>, Versioned)> = Vec::new();
        let mut asked = Vec::new();
        for (_, hook) in hooks {
            let Some(matched) = dispatch.find(hook, &attributes).await? else {
                continue;
            };
            let known = versions.iter().position(|(kind, _)| *kind == matched.kind);
            let version = match known {
                Some(version) => version,
                None => {
                    let versioned = dispatch.versioned(&attributes, matched.kind).await;
                    let versioned = versioned.map_err(|status| Status::internal(status.message))?;
                    versions.push((matched.kind, versioned));
                    versions.len() - 1
                }
            };
            asked.push(Invocation {
                hook: hook.clone(),
                matched,
                version,
            });
        }
        if asked.is_empty() {
            return Ok(());
        }
        if call::time_left(given.effects.deadline).is_some_and(|left| left.is_zero()) {
            return Err(crate::timed_out());
        }
        let calls = asked.iter().enumerate().map(|(place, invocation)| {
            let versioned = &versions[invocation.version].1;
            self.ask(&dispatch, &attributes, place, invocation, versioned)
        });
        let refused = future::join_all(calls).await;
        match refused.into_iter().find_map(Result::err) {
            Some(status) => Err(status),
            None => Ok(()),
        }
    }

    async fn ask(
        &self,
        dispatch: &Dispatch<'_>,
        attributes: &Attributes<'_>,
        place: usize,
        invocation: &Invocation<'_>,
        versioned: &Versioned,
    ) -> Result<(), Status> {
        let Invocation { hook, matched, .. } = invocation;
        let begun = Instant::now();
        let effects = dispatch.given.effects;
        let objects = (versioned.object.as_ref(), versioned.old.as_ref());
        let deadline = effects.deadline;
        let called = call::call(
            &self.client,
            hook,
            attributes,
            matched,
            objects,
            false,
            deadline,
        )
        .await;
        let result = called.and_then(|response| {
            note(dispatch, hook, &response);
            match response.allowed {
                true => Ok(()),
                false => Err(Refusal::Denied(response.denial(&hook.name))),
            }
        });
        let what = dispatch.observed(hook);
        call::observe(&self.shared.metrics, &what, hook, begun.elapsed(), &result);
        match result {
            Ok(()) => Ok(()),
            Err(Refusal::Denied(status) | Refusal::Internal(status)) => Err(status),
            Err(Refusal::Failed { why, .. }) if hook.ignores_failures => {
                tracing::warn!(webhook = hook.name, why, "webhook failed open");
                self.shared.metrics.failed_open(&what);
                let key = format!("{FAILED_OPEN}round_0_index_{place}");
                effects.annotate(&key, &hook.name);
                Ok(())
            }
            Err(Refusal::Failed { why, .. }) => {
                tracing::warn!(webhook = hook.name, why, "webhook failed closed");
                Err(call::failed_closed(hook, &why))
            }
        }
    }
}

#[async_trait]
impl Plugin for ValidatingAdmissionWebhook {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Given<'_>) -> bool {
        self.source.may_match(attributes.resource)
    }

    fn handles_connect(&self) -> bool {
        true
    }

    fn mutates(&self) -> bool {
        false
    }

    async fn validate(
        &self,
        attributes: &Given<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        self.dispatch(attributes, object).await
    }

    fn start(&self, context: &Context) {
        self.source.start(context);
    }
}
