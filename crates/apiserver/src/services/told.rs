//! What the repair of addresses tells about: Events of the Service or of the IPAddress.

use bytes::Bytes;
use machinery::{Object, Status, encode, json::json, schema, time};
use store::{Action, Op, Precondition};

use crate::{Draft, hooks::EVENT_LIFE, meta, pipeline::Core};

/// One warning.
pub(super) struct Warning<'a> {
    pub(super) by: &'a str,
    pub(super) about: &'a Object,
    pub(super) reason: &'a str,
    pub(super) action: &'a str,
    pub(super) note: String,
}

/// The write of a warning's Event, to go with the repair itself.
pub(super) fn event(core: &Core, warning: Warning<'_>) -> Result<Op<Draft>, Status> {
    let now = core.config.clock.now();
    let moment = time::Moment {
        seconds: now.as_second(),
        nanos: now.subsec_nanosecond().unsigned_abs(),
    };
    let about = |key: &str| meta::text(warning.about, key);
    let kind = |key: &str| warning.about.get(key).cloned().unwrap_or_default();
    // What is in no namespace is told in the default one.
    let namespace = match about("namespace") {
        "" => "default",
        namespace => namespace,
    };
    let name = format!("{}.{:x}", about("name"), now.as_nanosecond());
    let key = format!("/registry/core/events/{namespace}/{name}");
    let event = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uuid::Uuid::new_v4().to_string(),
            "creationTimestamp": meta::time(now),
        },
        "involvedObject": {
            "kind": (kind("kind")),
            "namespace": (about("namespace")),
            "name": (about("name")),
            "uid": (about("uid")),
            "apiVersion": (kind("apiVersion")),
            "resourceVersion": (about("resourceVersion")),
        },
        "reason": (warning.reason),
        "message": (warning.note),
        "source": {},
        "firstTimestamp": null,
        "lastTimestamp": null,
        "type": "Warning",
        "eventTime": (time::format_micro(moment)),
        "action": (warning.action),
        "reportingComponent": (warning.by),
        "reportingInstance": (warning.by),
    });
    let event = event.as_object().cloned().unwrap_or_default();
    let kind = kinds::find("", "v1", "events");
    let fields = kind.map(|kind| kind.selectable_fields(&event));
    let schema = kind.and_then(|kind| schema::lookup(kind.schema()?));
    let encoded = encode::object(schema, &event);
    let draft = Draft::encoded(&event, encoded, fields.unwrap_or_default());
    Ok(Op {
        key: Bytes::from(key),
        precondition: Precondition::Absent,
        action: Action::Put {
            draft: draft.map_err(Status::internal)?,
            expires_in: Some(EVENT_LIFE),
        },
    })
}
