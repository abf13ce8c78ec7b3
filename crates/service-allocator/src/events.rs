//! Events of the repair loop, on a Service or an IPAddress.

use machinery::{Object, Status, encode, json::json, schema, time};
use store::{Action, Op, Precondition};

use registry::{Draft, meta, object_key};
use stdx::Clock;

/// One warning.
pub(super) struct Warning<'a> {
    pub(super) by: &'a str,
    pub(super) about: &'a Object,
    pub(super) reason: &'a str,
    pub(super) action: &'a str,
    pub(super) note: String,
}

/// The write of a warning's Event, in the transaction of the repair.
pub(super) fn event(clock: &dyn Clock, warning: Warning<'_>) -> Result<Op<Draft>, Status> {
    let now = clock.now();
    let moment = time::Moment {
        seconds: now.as_second(),
        nanos: now.subsec_nanosecond().unsigned_abs(),
    };
    let about = |key: &str| meta::text(warning.about, key);
    let kind = |key: &str| warning.about.get(key).cloned().unwrap_or_default();
    // Events of cluster-scoped objects are in the default namespace.
    let namespace = match about("namespace") {
        "" => "default",
        namespace => namespace,
    };
    let name = format!("{}.{:x}", about("name"), now.as_nanosecond());
    let key = object_key("", "events", namespace, &name);
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
        key,
        precondition: Precondition::Absent,
        action: Action::Put {
            draft: draft.map_err(Status::internal)?,
            expires_in: kind.and_then(|kind| kind.lifetime()),
        },
    })
}
