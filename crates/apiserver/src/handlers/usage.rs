//! `metrics.k8s.io`: the usage of existing nodes and pods, computed from samples for each request.

use std::sync::Arc;

use http::StatusCode;
use machinery::{Object, Status, encode, json::json};
use metrics_api::Samples;
use stdx::Clock;

use super::read::{self, ListPage};
use crate::{
    Draft, Reader, Resource, Stored, media, pieces, pipeline::Request, respond::Answer,
    selection::Selection,
};

/// What usage is computed from.
pub(crate) struct Usage {
    pub(crate) reader: Reader,
    pub(crate) samples: Arc<Samples>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Usage of one node or pod, or of all selected ones. Objects without samples are left out.
pub(super) async fn serve(usage: &Usage, request: Request, resource: Arc<Resource>) -> Answer {
    let output = read::output(&usage.clock, &request, &resource)?;
    let (namespace, name) = request.info.place();
    // Nodes and pods have the same names in both groups.
    let plural = resource.plural.as_str();
    if request.info.verb == "get" {
        let found = usage.reader.get("", plural, namespace, name).await?;
        let found = found.ok_or_else(|| Status::not_found("", plural, name))?;
        let metrics =
            metrics(usage, &resource, &found)?.ok_or_else(|| unknown(&resource, &found))?;
        return Ok(output.respond(StatusCode::OK, &metrics));
    }
    media::check_list(output.wanted, true, &resource)?;
    let selection = Selection::from_request(&resource, &request)?;
    let (_, found) = usage.reader.list("", plural, namespace).await?;
    let selected = found.iter().filter(|one| selection.matches(one));
    let objects = selected.filter_map(|one| metrics(usage, &resource, one).transpose());
    let page = ListPage {
        objects: objects.collect::<Result<_, _>>()?,
        metadata: json!({}),
    };
    Ok(pieces::respond(output, page))
}

/// The error for a node or pod that exists but has no usage yet.
fn unknown(resource: &Resource, found: &Stored) -> Status {
    let header = &found.header;
    let name = match resource.namespaced() {
        true => format!("{}/{}", header.namespace(), header.name()),
        false => header.name().to_string(),
    };
    Status::not_found(&resource.group, &resource.plural, &name)
}

fn metrics(usage: &Usage, resource: &Resource, of: &Stored) -> Result<Option<Arc<Stored>>, Status> {
    let now = usage.clock.now();
    let object: Option<Object> = match resource.namespaced() {
        true => metrics_api::pod_metrics(&usage.samples, of, now),
        false => metrics_api::node_metrics(&usage.samples, of, now),
    };
    let Some(object) = object else {
        return Ok(None);
    };
    let encoded = encode::object(resource.schema, &object);
    let draft = Draft::encoded(&object, encoded, Vec::new()).map_err(Status::internal)?;
    Ok(Some(Arc::new(Stored::stamp(draft, 0))))
}
