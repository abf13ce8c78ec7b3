//! Finds the container that a request names.

use http::{Response, StatusCode};
use k8s_openapi::api::core::v1::ContainerStatus;

use super::{Body, text};
use crate::{core::Core, pod::spec, registry::PublishedPod};

/// The pod, or a 404 response.
pub(super) fn pod(
    core: &Core,
    namespace: &str,
    name: &str,
) -> Result<PublishedPod, Box<Response<Body>>> {
    core.registry.find(namespace, name).ok_or_else(|| {
        let message = format!("pod \"{name}\" does not exist\n");
        Box::new(text(StatusCode::NOT_FOUND, message))
    })
}

/// The container's status, or a response that the pod has no such container.
pub(super) fn status(
    seen: &PublishedPod,
    container: &str,
) -> Result<Option<ContainerStatus>, Box<Response<Body>>> {
    if spec::find(&seen.pod, container).is_none() {
        let name = spec::name(&seen.pod);
        let message = format!("container \"{container}\" not found in pod \"{name}\"\n");
        return Err(Box::new(text(StatusCode::NOT_FOUND, message)));
    }
    let status = &seen.status;
    let mut all = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ]
    .into_iter()
    .flat_map(|list| list.iter().flatten());
    Ok(all.find(|status| status.name == container).cloned())
}

/// The runtime's container id, without the prefix of the API's format.
pub(crate) fn bare_id(id: &str) -> &str {
    id.split_once("://").map_or(id, |(_, bare)| bare)
}

/// The id of a running container of a pod.
pub(super) fn running_id(
    seen: &PublishedPod,
    container: &str,
) -> Result<String, Box<Response<Body>>> {
    let status = status(seen, container)?;
    let running = status.filter(|status| {
        status
            .state
            .as_ref()
            .is_some_and(|state| state.running.is_some())
    });
    running
        .and_then(|status| status.container_id)
        .map(|id| bare_id(&id).to_owned())
        .ok_or_else(|| {
            Box::new(text(
                StatusCode::NOT_FOUND,
                format!("container not found (\"{container}\")"),
            ))
        })
}
