//! `diagnostics.mainstay.dev`: why a pod is not scheduled, as the scheduler of this process sees it
//! now. A diagnosis has the name and the namespace of its pod; it is computed for each request and
//! never stored, and discovery does not list it.

use std::sync::{Arc, OnceLock};

use http::StatusCode;
use machinery::{Object, Status, json};

use crate::{
    Diagnose, Reader, meta,
    pipeline::Request,
    respond::{self, Answer},
};

/// The group. Reading a pod's diagnosis requires permission for `pods` in this group.
pub(crate) const GROUP: &str = "diagnostics.mainstay.dev";
const VERSION: &str = "v1";

/// Where diagnoses come from.
pub(crate) struct Diagnoses {
    pub(crate) reader: Reader,
    /// Set once a scheduler is connected.
    pub(crate) source: OnceLock<Arc<dyn Diagnose>>,
}

pub(super) async fn serve(diagnoses: &Diagnoses, request: Request) -> Answer {
    let subject = request.info.resource.clone().unwrap_or_default();
    let of_pods = subject.version == VERSION && subject.resource == "pods";
    if !of_pods || subject.namespace.is_empty() || !subject.subresource.is_empty() {
        return Err(Status::path_not_found());
    }
    if request.info.verb != "get" {
        return Err(Status::method_not_allowed());
    }
    let (namespace, name) = request.info.place();
    let none = || Status::not_found(GROUP, "pods", name);
    let pod = diagnoses.reader.get("", "pods", namespace, name).await?;
    let pod = pod.ok_or_else(none)?.parse();
    let uid = meta::text(&pod, "uid");
    let scheduler = diagnoses.source.get().ok_or_else(none)?;
    let diagnosis = scheduler.diagnose(uid).await.ok_or_else(none)?;
    let diagnosis: Object = json::from_slice(&diagnosis).map_err(Status::internal)?;
    let mut answer = Object::default();
    answer.insert("kind", "PodDiagnosis".into());
    answer.insert("apiVersion", format!("{GROUP}/{VERSION}").into());
    let metadata = json::json!({"name": name, "namespace": namespace, "uid": uid});
    answer.insert("metadata", metadata);
    answer.extend(diagnosis);
    let answer = machinery::Value::from(answer).to_string();
    Ok(respond::line(StatusCode::OK, answer.as_bytes()))
}
