//! `POST /checkpoint/NAMESPACE/POD/CONTAINER`: has the runtime checkpoint a container to a file, if
//! it can.

use cri::v1;
use http::{Response, StatusCode};

use super::{Body, KubeletRequest, containers, json, text};
use crate::{Error, core::Core, pod::spec, registry::PublishedPod};

/// Checkpoints the container and returns the file's name.
pub(super) async fn serve(
    core: &Core,
    namespace: &str,
    pod: &str,
    container: &str,
    ask: &KubeletRequest,
) -> Response<Body> {
    let not_found = |message: String| text(StatusCode::NOT_FOUND, message);
    let Some(seen) = core.registry.find(namespace, pod) else {
        return not_found("pod does not exist".into());
    };
    if spec::find(&seen.pod, container).is_none() {
        return not_found(format!("container {container} does not exist"));
    }
    let timeouts = ask.all("timeout");
    let timeout = match timeouts.last().map(|text| text.parse::<i64>()) {
        None => 0,
        Some(Ok(seconds)) => seconds,
        Some(Err(_)) => return not_found("cannot parse value of timeout parameter".into()),
    };
    match write(core, &seen, container, timeout).await {
        Ok(location) => json(&serde_json::json!({ "items": [location] })),
        Err(error) => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("checkpointing of {namespace}/{pod}/{container} failed ({error})"),
        ),
    }
}

async fn write(
    core: &Core,
    seen: &PublishedPod,
    container: &str,
    timeout: i64,
) -> crate::Result<String> {
    let id = containers::running_id(seen, container)
        .map_err(|_| Error::Other(format!("container {container} not found")))?;
    // Checkpoints contain memory of containers: only root may read them.
    use std::os::unix::fs::DirBuilderExt;
    let dir = core.config.root_dir.join("checkpoints");
    let mut builder = std::fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(&dir);
    made.map_err(Error::io(&dir))?;
    let (namespace, name) = (spec::namespace(&seen.pod), spec::name(&seen.pod));
    let now = core.now().strftime("%Y-%m-%dT%H:%M:%SZ");
    let file = format!("checkpoint-{name}_{namespace}-{container}-{now}.tar");
    let location = dir.join(file).display().to_string();
    let request = v1::CheckpointContainerRequest {
        container_id: id,
        location: location.clone(),
        timeout,
    };
    let mut runtime = core.runtime.client.clone().runtime;
    runtime.checkpoint_container(request).await?;
    Ok(location)
}
