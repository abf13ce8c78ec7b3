//! MutatingAdmissionWebhook: webhooks are called one after the other, each with the changes of the
//! previous ones.

use std::{sync::Arc, time::Instant};

use async_trait::async_trait;
use lifecycle::Context;
use machinery::{Object, Status, Value, json::json, text::quote};
use webhook::Client;

use super::{
    Shared,
    call::{self, Refusal},
    client,
    dispatch::{Dispatch, api_version},
    hooks::Hook,
    patch,
    review::Response,
    source::Source,
};
use crate::{
    Attributes as Given, Plugin, Resource,
    matching::{Attributes, Matched},
};

pub(super) const NAME: &str = "MutatingAdmissionWebhook";
const MUTATION: &str = "mutation.webhook.admission.k8s.io/";
const PATCH: &str = "patch.webhook.admission.k8s.io/";

pub(crate) struct MutatingAdmissionWebhook {
    shared: Shared,
    source: Source,
    client: Arc<Client>,
}

impl MutatingAdmissionWebhook {
    pub(crate) fn new(shared: Shared, configuration: &Value) -> Result<Self, String> {
        Ok(Self {
            source: Source::new(shared.reader.clone(), "mutatingwebhookconfigurations"),
            client: Arc::new(client(&shared.reader, configuration)?),
            shared,
        })
    }

    /// Calls all matching webhooks.
    async fn dispatch(
        &self,
        given: &Given<'_>,
        mut object: Option<&mut Object>,
    ) -> Result<(), Status> {
        if Attributes::new(given, None).is_admission_configuration() {
            return Ok(());
        }
        let Some(index) = self.source.hooks().await else {
            return Err(given.forbidden("not yet ready to handle request"));
        };
        let hooks = index.find(given.resource);
        if hooks.is_empty() {
            return Ok(());
        }
        let dispatch = Dispatch::new(&self.shared, given, "admit");
        let reinvocation = &given.effects.reinvocation;
        if let Some(object) = &object {
            reinvocation.enter(NAME, object);
        }
        for (place, hook) in hooks {
            let attributes = Attributes::new(given, object.as_deref());
            let Some(matched) = dispatch.find(hook, &attributes).await? else {
                continue;
            };
            if !reinvocation.runs(NAME, &hook.id) {
                continue;
            }
            let changed = self
                .ask(&dispatch, *place, hook, &attributes, &matched)
                .await?;
            let is_changed = changed.is_some();
            reinvocation.ran(NAME, &hook.id, is_changed, hook.is_reinvocable);
            if let (Some(object), Some(changed)) = (&mut object, changed) {
                **object = changed;
            }
        }
        if let Some(object) = &object {
            reinvocation.leave(NAME, object);
        }
        Ok(())
    }

    /// Calls one webhook; returns the object if changed.
    async fn ask(
        &self,
        dispatch: &Dispatch<'_>,
        place: usize,
        hook: &Hook,
        attributes: &Attributes<'_>,
        matched: &Matched<'_>,
    ) -> Result<Option<Object>, Status> {
        let begun = Instant::now();
        let effects = dispatch.given.effects;
        let result = self
            .review(dispatch, place, hook, attributes, matched)
            .await;
        let what = dispatch.observed(hook);
        call::observe(&self.shared.metrics, &what, hook, begun.elapsed(), &result);
        let is_changed = matches!(&result, Ok(Some(_)));
        let round = format!(
            "round_{}_index_{place}",
            u8::from(effects.reinvocation.is_reinvoke())
        );
        let noted = json!({"configuration": hook.configuration, "webhook": hook.name, "mutated": is_changed});
        effects.annotate(&format!("{MUTATION}{round}"), &noted.to_string());
        match result {
            Ok(changed) => Ok(changed),
            Err(Refusal::Denied(status) | Refusal::Internal(status)) => Err(status),
            Err(Refusal::Failed { why, .. }) if hook.ignores_failures => {
                tracing::warn!(webhook = hook.name, why, "webhook failed open");
                self.shared.metrics.failed_open(&what);
                effects.annotate(&format!("failed-open.{MUTATION}{round}"), &hook.name);
                match call::time_left(effects.deadline) {
                    Some(left) if left.is_zero() => Err(crate::timed_out()),
                    _ => Ok(None),
                }
            }
            Err(Refusal::Failed { why, .. }) => {
                tracing::warn!(webhook = hook.name, why, "webhook failed closed");
                Err(call::failed_closed(hook, &why))
            }
        }
    }

    async fn review(
        &self,
        dispatch: &Dispatch<'_>,
        place: usize,
        hook: &Hook,
        attributes: &Attributes<'_>,
        matched: &Matched<'_>,
    ) -> Result<Option<Object>, Refusal> {
        let effects = dispatch.given.effects;
        let versioned = dispatch.versioned(attributes, matched.kind).await;
        let versioned = versioned.map_err(internal)?;
        let objects = (versioned.object.as_ref(), versioned.old.as_ref());
        let deadline = effects.deadline;
        let response = call::call(
            &self.client,
            hook,
            attributes,
            matched,
            objects,
            true,
            deadline,
        )
        .await?;
        note(dispatch, hook, &response);
        if !response.allowed {
            return Err(Refusal::Denied(response.denial(&hook.name)));
        }
        let operations = response.patch.filter(|patch| {
            patch
                .as_array()
                .is_some_and(|operations| !operations.is_empty())
        });
        let Some(operations) = operations else {
            return Ok(None);
        };
        let Some(object) = versioned.object else {
            let name = quote(&hook.name);
            return Err(Refusal::Internal(Status::internal(format!(
                "admission webhook {name} attempted to modify the object, which is not supported for this operation"
            ))));
        };
        let resource = served(dispatch, matched);
        let patched = patch::apply(&object, &operations, matched.kind, resource);
        let patched = patched.map_err(Refusal::Internal)?;
        let is_changed = patched != object;
        note_patch(dispatch, place, hook, &operations);
        if !is_changed {
            return Ok(None);
        }
        if matched.kind == attributes.kind {
            return Ok(Some(patched));
        }
        let version = api_version(attributes.kind);
        let back = dispatch.convert(attributes, patched, &version).await;
        back.map(Some).map_err(internal)
    }
}

fn internal(status: Status) -> Refusal {
    Refusal::Internal(Status::internal(status.message))
}

/// The resource of the matched version, if the body is an object of it.
fn served<'d>(dispatch: &'d Dispatch<'_>, matched: &Matched<'_>) -> Option<&'d Resource> {
    let resource = &matched.resource;
    let table = &dispatch.table;
    let found = table.get(resource.group, resource.version, resource.resource);
    found.map(|found| &**found)
}

/// Records a webhook's warnings and audit annotations.
pub(super) fn note(dispatch: &Dispatch<'_>, hook: &Hook, response: &Response) {
    let effects = dispatch.given.effects;
    for (key, value) in &response.audit {
        effects.annotate(&format!("{}/{key}", hook.name), value);
    }
    for warning in &response.warnings {
        effects.warn(warning.clone());
    }
}

fn note_patch(dispatch: &Dispatch<'_>, place: usize, hook: &Hook, operations: &Value) {
    let effects = dispatch.given.effects;
    if !effects.is_request_audited() {
        return;
    }
    let round = u8::from(effects.reinvocation.is_reinvoke());
    let key = format!("{PATCH}round_{round}_index_{place}");
    let value = json!({"configuration": hook.configuration, "webhook": hook.name,
        "patch": operations, "patchType": "JSONPatch"});
    effects.annotate(&key, &value.to_string());
}

#[async_trait]
impl Plugin for MutatingAdmissionWebhook {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Given<'_>) -> bool {
        self.source.may_match(attributes.resource)
    }

    fn handles_connect(&self) -> bool {
        true
    }

    fn validates(&self) -> bool {
        false
    }

    async fn mutate(&self, attributes: &Given<'_>, object: &mut Object) -> Result<(), Status> {
        self.dispatch(attributes, Some(object)).await
    }

    async fn mutate_delete(&self, attributes: &Given<'_>) -> Result<(), Status> {
        self.dispatch(attributes, None).await
    }

    fn start(&self, context: &Context) {
        self.source.start(context);
    }
}
