//! `componentstatuses`: the health of the scheduler, the controllers and the store, computed for
//! each request and never stored.

use std::sync::Arc;

use lifecycle::State;
use machinery::{Object, Status, encode, json::json};

use super::read::{self, ListPage};
use crate::{
    Draft, Resource, Stored, health::HealthChecks, media, pieces, pipeline::Request,
    respond::Answer, selection::Selection,
};
use http::StatusCode;
use stdx::Clock;

/// Components that are services of this process: the name in the API, and the service.
const SERVICES: [(&str, &str); 2] = [
    ("controller-manager", "controllers"),
    ("scheduler", "scheduler"),
];
const STORE: &str = "etcd-0";

/// One component or all.
pub(super) async fn serve(
    health: &HealthChecks,
    clock: &Arc<dyn Clock>,
    request: Request,
    resource: Arc<Resource>,
) -> Answer {
    let output = read::output(clock, &request, &resource)?;
    let (_, name) = request.info.place();
    let mut components = components(health).await;
    if !name.is_empty() {
        let found = components.into_iter().find(|one| one.0 == name);
        let (name, health) = found.ok_or_else(|| Status::not_found("", "componentstatus", name))?;
        return Ok(output.respond(StatusCode::OK, &*object(&resource, name, health)?));
    }
    media::check_list(output.wanted, true, &resource)?;
    let selection = Selection::from_request(&resource, &request)?;
    components.sort_by_key(|one| one.0);
    let objects = components
        .into_iter()
        .map(|(name, health)| object(&resource, name, health));
    let mut objects = objects.collect::<Result<Vec<_>, _>>()?;
    objects.retain(|object| selection.matches(object));
    let metadata = json!({});
    Ok(pieces::respond(output, ListPage { objects, metadata }))
}

/// Every component, with its error if unhealthy.
async fn components(health: &HealthChecks) -> Vec<(&'static str, Result<(), String>)> {
    let services = health.services.all();
    let mut all: Vec<_> = SERVICES
        .iter()
        .map(|(name, service)| {
            let found = services.iter().find(|one| one.name == *service);
            let health = match found.map(|one| &one.state) {
                Some(State::Ready) => Ok(()),
                Some(State::Failed(why)) => Err(why.clone()),
                Some(_) => Err(format!("{service} is not ready")),
                None => Err(format!("{service} does not run in this process")),
            };
            (*name, health)
        })
        .collect();
    let store = health.store.revision().await;
    all.push((STORE, store.map(drop).map_err(|error| error.to_string())));
    all
}

fn object(
    resource: &Resource,
    name: &str,
    health: Result<(), String>,
) -> Result<Arc<Stored>, Status> {
    let (status, message) = match health {
        Ok(()) => ("True", "ok".to_owned()),
        Err(why) => ("False", why),
    };
    let object = json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind.names().kind,
        "metadata": {"name": name},
        "conditions": [{"type": "Healthy", "status": status, "message": message}],
    });
    let object: Object = object.as_object().cloned().unwrap_or_default();
    let encoded = encode::object(resource.schema, &object);
    let draft = Draft::encoded(&object, encoded, Vec::new()).map_err(Status::internal)?;
    Ok(Arc::new(Stored::stamp(draft, 0)))
}
