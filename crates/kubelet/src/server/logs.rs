//! `GET /containerLogs/{namespace}/{pod}/{container}`.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::stream;
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use k8s_openapi::api::core::v1::ContainerStatus;
use tokio::sync::mpsc;
use tracing::debug;

use super::{Body, KubeletRequest, containers, text};
use crate::{
    core::Core,
    logs::{
        LogFile, follow,
        parse::{Options, Stream},
    },
    registry::PublishedPod,
};

/// The number of buffered chunks for a slow client.
const CHANNEL_CAPACITY: usize = 16;

/// Streams a container's log.
pub(super) async fn serve(
    core: Arc<Core>,
    namespace: &str,
    pod: &str,
    container: &str,
    ask: &KubeletRequest,
) -> Response<Body> {
    match find(&core, namespace, pod, container, ask).await {
        Ok((options, path, id, uid)) => answer(core, options, path, id, uid),
        Err(response) => *response,
    }
}

type Found = (Options, String, String, String);

async fn find(
    core: &Core,
    namespace: &str,
    pod: &str,
    container: &str,
    ask: &KubeletRequest,
) -> Result<Found, Box<Response<Body>>> {
    let bad = |message: String| Box::new(text(StatusCode::BAD_REQUEST, message));
    let options = options(ask, core).map_err(bad)?;
    let seen = containers::pod(core, namespace, pod)?;
    let status = containers::status(&seen, container)?;
    let id = choose(status.as_ref(), container, pod, ask.is_on(&["previous"])).map_err(bad)?;
    let status = core.runtime.container_status(&id).await.map_err(|status| {
        bad(format!(
            "failed to get container status {id:?}: {}",
            status.message()
        ))
    })?;
    let uid = seen.pod.metadata.uid.clone().unwrap_or_default();
    Ok((options, status.log_path, id, uid))
}

/// The id of the container whose log is requested.
fn choose(
    status: Option<&ContainerStatus>,
    container: &str,
    pod: &str,
    previous: bool,
) -> Result<String, String> {
    let unavailable = || format!("container \"{container}\" in pod \"{pod}\" is not available");
    let status = status.ok_or_else(unavailable)?;
    let state = status.state.clone().unwrap_or_default();
    let last = status
        .last_state
        .as_ref()
        .and_then(|last| last.terminated.as_ref());
    if previous {
        return last
            .and_then(|last| last.container_id.clone())
            .map(|id| containers::bare_id(&id).to_owned())
            .ok_or_else(|| {
                format!("previous terminated container \"{container}\" in pod \"{pod}\" not found")
            });
    }
    let waiting = state.waiting.as_ref();
    let id = match (&state.running, &state.terminated, last) {
        (Some(_), ..) => status.container_id.clone(),
        (_, Some(ended), _) => ended.container_id.clone(),
        (_, _, Some(last)) => last.container_id.clone(),
        _ => None,
    };
    id.map(|id| containers::bare_id(&id).to_owned())
        .ok_or_else(|| match waiting {
            Some(waiting) => {
                let reason = waiting.reason.as_deref().unwrap_or_default();
                let why = match reason {
                    "ErrImagePull" => "image can't be pulled",
                    "ImagePullBackOff" => "trying and failing to pull image",
                    other => other,
                };
                format!("container \"{container}\" in pod \"{pod}\" is waiting to start: {why}")
            }
            None => unavailable(),
        })
}

fn options(ask: &KubeletRequest, core: &Core) -> Result<Options, String> {
    let number = |key: &str| -> Result<Option<u64>, String> {
        let parsed = ask
            .get(key)
            .filter(|text| !text.is_empty())
            .map(str::parse)
            .transpose();
        parsed.map_err(|_| format!("invalid {key}"))
    };
    let since = match (
        number("sinceSeconds")?,
        ask.get("sinceTime").filter(|t| !t.is_empty()),
    ) {
        // Before the first representable timestamp: everything.
        (Some(seconds), _) => core.now().checked_sub(Duration::from_secs(seconds)).ok(),
        (None, Some(time)) => Some(time.parse().map_err(|_| "invalid sinceTime".to_owned())?),
        (None, None) => None,
    };
    let stream = match ask.get("stream") {
        Some("Stdout") => Some(Stream::Stdout),
        Some("Stderr") => Some(Stream::Stderr),
        _ => None,
    };
    let bounded = |number: Option<u64>| number.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    Ok(Options {
        follow: ask.is_on(&["follow"]),
        tail_lines: bounded(number("tailLines")?),
        since,
        timestamps: ask.is_on(&["timestamps"]),
        limit_bytes: bounded(number("limitBytes")?),
        stream,
    })
}

fn answer(
    core: Arc<Core>,
    options: Options,
    path: String,
    id: String,
    uid: String,
) -> Response<Body> {
    let (sender, receiver) = mpsc::channel::<Bytes>(CHANNEL_CAPACITY);
    let owner = core.clone();
    core.context.spawn("logs", async move {
        let running = || {
            let (core, id, uid) = (owner.clone(), id.clone(), uid.clone());
            async move { wait_for_end(&core, &uid, &id).await }
        };
        let log = LogFile::new(&owner.config.pod_logs_dir, std::path::Path::new(&path));
        if let Err(error) = follow::send(log, options, sender, running).await {
            debug!(path, %error, "cannot read log");
        }
    });
    let frames = stream::unfold(receiver, |mut receiver| async {
        let chunk = receiver.recv().await?;
        Some((Ok(Frame::data(chunk)), receiver))
    });
    let mut response = Response::new(BodyExt::boxed(StreamBody::new(frames)));
    let kind = header::HeaderValue::from_static("text/plain");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Waits until the container has ended; then returns false.
async fn wait_for_end(core: &Core, uid: &str, id: &str) -> bool {
    let Some(mut pod) = core.registry.follow(uid) else {
        return false;
    };
    // An error means that the worker has ended, and so have the pod's containers.
    let _ = pod.wait_for(|seen| !is_running(seen, id)).await;
    false
}

fn is_running(seen: &PublishedPod, id: &str) -> bool {
    let status = &seen.status;
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    lists
        .into_iter()
        .flat_map(|list| list.iter().flatten())
        .any(|status| {
            let this = status.container_id.as_deref().map(containers::bare_id) == Some(id);
            this && status
                .state
                .as_ref()
                .is_some_and(|state| state.running.is_some())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(json: serde_json::Value) -> ContainerStatus {
        let mut full = serde_json::json!({"name": "c", "image": "", "imageID": "", "ready": false,
            "restartCount": 0});
        full.as_object_mut()
            .unwrap()
            .extend(json.as_object().unwrap().clone());
        serde_json::from_value(full).unwrap()
    }

    #[test]
    fn the_container_of_a_log_request_is_chosen_or_an_error_is_returned() {
        let choose = |json, previous| choose(Some(&status(json)), "c", "p", previous);
        let running = serde_json::json!({"containerID": "x://2", "state": {"running": {}},
            "lastState": {"terminated": {"exitCode": 1, "containerID": "x://1"}}});
        assert_eq!(choose(running.clone(), false).unwrap(), "2");
        assert_eq!(choose(running, true).unwrap(), "1");
        let waiting = serde_json::json!({"state": {"waiting": {"reason": "ContainerCreating"}}});
        assert_eq!(
            choose(waiting.clone(), false).unwrap_err(),
            "container \"c\" in pod \"p\" is waiting to start: ContainerCreating"
        );
        assert_eq!(
            choose(waiting, true).unwrap_err(),
            "previous terminated container \"c\" in pod \"p\" not found"
        );
    }
}
