//! One call of one webhook.

use std::time::{Duration, Instant};

use bytes::Bytes;
use machinery::{Object, Status, text::quote};
use request::heavy;
use webhook::{Call, Client};

use super::{
    super::matching::{Attributes, Matched},
    hooks::Hook,
    metrics::{ErrorType, Metrics, Observed},
    review::{self, Invalid, Response},
};

/// Maximum bytes of a response: a patch is not much larger than the largest request.
const LARGEST_ANSWER: usize = 16 << 20;

/// Why a webhook did not allow a request.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The call failed: the failure policy decides.
    Failed { why: String, code: u16 },
    /// It denied the request.
    Denied(Status),
    /// It does not support dry run, or its patch is invalid: an error whatever the failure policy.
    Internal(Status),
}

/// The remaining time of a request, if bounded.
pub(super) fn time_left(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
}

/// Calls a webhook.
pub(super) async fn call(
    client: &Client,
    hook: &Hook,
    attributes: &Attributes<'_>,
    matched: &Matched<'_>,
    (object, old): (Option<&Object>, Option<&Object>),
    mutating: bool,
    deadline: Option<Instant>,
) -> Result<Response, Refusal> {
    let failed = |why: String, code: u16| Refusal::Failed { why, code };
    if attributes.dry_run {
        match hook.is_pure_in_dry_run {
            None => return Err(failed("Webhook SideEffects is nil".to_owned(), 400)),
            Some(true) => {}
            Some(false) => {
                return Err(Refusal::Internal(Status::bad_request(format!(
                    "admission webhook {} does not support dry run",
                    quote(&hook.name)
                ))));
            }
        }
    }
    let Some(version) = hook.review else {
        let why = "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)";
        return Err(failed(why.to_owned(), 400));
    };
    let uid = uuid::Uuid::new_v4().to_string();
    let body = review::request(version, &uid, attributes, matched, object, old);
    let call = Call {
        body: Bytes::from(body),
        timeout: time_left(deadline).map_or(hook.timeout, |left| left.min(hook.timeout)),
        limit: LARGEST_ANSWER,
    };
    let answer = client.post(&hook.client, call).await.map_err(|failure| {
        failed(
            format!("failed to call webhook: {}", failure.message),
            failure.code,
        )
    })?;
    if answer.body.is_empty() {
        let why = format!(
            "failed to call webhook: 0-length response with status code: {} and content type: {}",
            answer.code, answer.content_type
        );
        return Err(failed(why, 503));
    }
    heavy::mark_large(answer.body.len()).await;
    let response = review::response(version, &uid, mutating, &answer.body);
    response.map_err(|invalid| match invalid {
        Invalid::Undecodable(why) => failed(format!("failed to call webhook: {why}"), 503),
        Invalid::Unexpected(why) => {
            failed(format!("received invalid webhook response: {why}"), 503)
        }
        Invalid::Patch(why) => failed(
            format!("received undecodable patch in webhook response: {why}"),
            503,
        ),
        Invalid::PatchType(why) => failed(why, 400),
    })
}

/// Records a call in metrics.
pub(super) fn observe<T>(
    metrics: &Metrics,
    what: &Observed<'_>,
    hook: &Hook,
    took: Duration,
    result: &Result<T, Refusal>,
) {
    let (rejection, code) = match result {
        Ok(_) => (None, 200),
        Err(Refusal::Failed { code, .. }) => {
            let why = (!hook.ignores_failures).then_some(ErrorType::CallingWebhook);
            (why, *code)
        }
        Err(Refusal::Denied(status)) => (Some(ErrorType::None), status.code),
        Err(Refusal::Internal(_)) => (Some(ErrorType::ServerInternal), 0),
    };
    if let Some(why) = rejection {
        metrics.rejected(what, why, code);
    }
    metrics.called(what, took, rejection.is_some(), code);
}

/// The error if a call failed with failure policy Fail.
pub(super) fn failed_closed(hook: &Hook, why: &str) -> Status {
    let name = quote(&hook.name);
    Status::internal(format!("failed calling webhook {name}: {why}"))
}
