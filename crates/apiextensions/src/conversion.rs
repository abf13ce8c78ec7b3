//! Conversion webhooks: convert objects of a definition between versions. One review holds many
//! objects. A webhook may change what the schema describes, labels and annotations; the rest of the
//! metadata is restored.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use kinds::tree;
use machinery::{
    Object, Status, Value,
    decode::TypeMeta,
    field::{Path, aggregate},
    json::{from_slice, json},
    patch::json::go_kind,
    text::quote,
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, histogram::Histogram},
    registry::Registry,
};
use webhook::{Call, Client, ClientConfig};

const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum bytes of a response beyond the size of the request.
const ROOM: usize = 16 << 20;
/// Responses of this size and more are decoded outside of the runtime's threads.
const LARGE: usize = 64 * 1024;
const KIND: &str = "ConversionReview";
/// Upstream's buckets, in seconds.
const DURATIONS: [f64; 12] = [
    0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0,
];

/// How objects of one definition are converted.
pub struct Conversion {
    client: Arc<Client>,
    config: ClientConfig,
    /// The first review version that both sides support.
    review: Option<&'static str>,
    kind: String,
    metrics: Metrics,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    result: &'static str,
    failure_type: &'static str,
}

/// Durations of conversions.
#[derive(Clone)]
pub struct Metrics {
    durations: Family<Labels, Histogram, fn() -> Histogram>,
}

impl Metrics {
    pub fn registered(registry: &mut Registry) -> Self {
        let durations: Family<Labels, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(DURATIONS));
        registry.register(
            "apiserver_crd_conversion_webhook_duration_seconds",
            "Duration of conversion webhook calls in seconds",
            durations.clone(),
        );
        Self { durations }
    }

    fn observe(&self, began: Instant, failure: Option<FailureType>) {
        let labels = match failure {
            None => Labels {
                result: "success",
                failure_type: "",
            },
            Some(failure) => Labels {
                result: "failure",
                failure_type: match failure {
                    FailureType::Call => "webhook_call_failure",
                    FailureType::Malformed => "malformed_webhook_response",
                    FailureType::Partial => "partial_webhook_response",
                    FailureType::Object => "invalid_converted_object",
                },
            },
        };
        let durations = self.durations.get_or_create(&labels);
        durations.observe(began.elapsed().as_secs_f64());
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailureType {
    Call,
    Malformed,
    Partial,
    Object,
}

impl Conversion {
    /// The conversion of a definition; `None` if only apiVersion changes.
    pub fn read(spec: &Value, client: &Arc<Client>, metrics: &Metrics) -> Option<Self> {
        let conversion = &spec["conversion"];
        if conversion["strategy"] != "Webhook" {
            return None;
        }
        let webhook = &conversion["webhook"];
        let versions = tree::list(&webhook["conversionReviewVersions"]).iter();
        let mut known = versions.filter_map(|version| match version.as_str() {
            Some("v1") => Some("v1"),
            Some("v1beta1") => Some("v1beta1"),
            _ => None,
        });
        Some(Self {
            client: client.clone(),
            config: ClientConfig::read(&webhook["clientConfig"]),
            review: known.next(),
            kind: tree::text(&spec["names"]["kind"]).to_owned(),
            metrics: metrics.clone(),
        })
    }

    /// Converts objects, in order; all or none. `from` is the version in error messages.
    pub async fn convert(
        &self,
        objects: Vec<Object>,
        from: &str,
        desired: &str,
    ) -> Result<Vec<Object>, Status> {
        if objects.is_empty() {
            return Ok(objects);
        }
        let began = Instant::now();
        let converted = match self.ask(&objects, desired).await {
            Ok(review) => review.read(objects, desired).await,
            Err(failure) => Err(failure),
        };
        self.metrics
            .observe(began, converted.as_ref().err().map(|(failure, _)| *failure));
        converted.map_err(|(_, why)| {
            let kind = &self.kind;
            Status::unknown(format!("conversion webhook for {from}, Kind={kind} {why}"))
        })
    }

    async fn ask(&self, objects: &[Object], desired: &str) -> Result<Review, Failure> {
        let Some(version) = self.review else {
            let why = "no supported conversion review versions".to_owned();
            return Err(failed(FailureType::Call, why));
        };
        let uid = uuid::Uuid::new_v4().to_string();
        let body = request(version, &uid, desired, objects);
        let call = Call {
            timeout: TIMEOUT,
            limit: ROOM + 4 * body.len(),
            body,
        };
        let answer = self.client.post(&self.config, call).await;
        let answer = answer.map_err(|failure| {
            let late = match failure.timed_out {
                true => " (Client.Timeout exceeded while awaiting headers)",
                false => "",
            };
            failed(FailureType::Call, format!("{}{late}", failure.message))
        })?;
        if answer.body.is_empty() {
            let why = format!(
                "0-length response with status code: {} and content type: {}",
                answer.code, answer.content_type
            );
            return Err(failed(FailureType::Call, why));
        }
        Ok(Review {
            version,
            uid,
            body: answer.body,
        })
    }
}

/// Why a conversion failed.
type Failure = (FailureType, String);

fn failed(failure: FailureType, why: String) -> Failure {
    (failure, format!("failed: {why}"))
}

/// The response of a webhook, not decoded yet.
struct Review {
    version: &'static str,
    uid: String,
    body: Bytes,
}

impl Review {
    /// The converted objects.
    async fn read(self, originals: Vec<Object>, desired: &str) -> Result<Vec<Object>, Failure> {
        if self.body.len() < LARGE {
            return self.decode(originals, desired);
        }
        let desired = desired.to_owned();
        let decode = tokio::task::spawn_blocking(move || self.decode(originals, &desired));
        let decoded = decode.await;
        decoded.unwrap_or_else(|error| Err(failed(FailureType::Malformed, error.to_string())))
    }

    fn decode(&self, originals: Vec<Object>, desired: &str) -> Result<Vec<Object>, Failure> {
        let converted = response(self.version, &self.uid, &self.body);
        let converted = converted.map_err(|(failure, why)| failed(failure, why))?;
        if converted.len() != originals.len() {
            let (got, wanted) = (converted.len(), originals.len());
            let why = format!("returned {got} objects, expected {wanted}");
            return Err((FailureType::Partial, why));
        }
        check_converted(originals, converted, desired)
    }
}

fn request(version: &str, uid: &str, desired: &str, objects: &[Object]) -> Bytes {
    let objects: Vec<Value> = objects.iter().cloned().map(Value::Object).collect();
    let review = json!({
        "kind": KIND,
        "apiVersion": format!("apiextensions.k8s.io/{version}"),
        "request": {"uid": uid, "desiredAPIVersion": desired, "objects": objects},
    });
    review.to_string().into()
}

/// The objects of a response.
fn response(version: &str, uid: &str, bytes: &[u8]) -> Result<Vec<Value>, (FailureType, String)> {
    let call = |why: String| (FailureType::Call, why);
    let malformed = |why: String| Err((FailureType::Malformed, why));
    let TypeMeta { api_version, kind } = TypeMeta::from_json(bytes).map_err(call)?;
    let own = format!("apiextensions.k8s.io/{version}");
    let is_other = |given: &str, own: &str| !given.is_empty() && given != own;
    if is_other(&api_version, &own) || is_other(&kind, KIND) {
        let (kind, version) = (quote(&kind), quote(&api_version));
        return Err(call(format!(
            "no kind {kind} is registered for version {version}"
        )));
    }
    let mut review: Value = from_slice(bytes).map_err(|error| call(error.to_string()))?;
    if version == "v1" && (api_version != own || kind != KIND) {
        let got = if api_version.is_empty() {
            "/"
        } else {
            &api_version
        };
        return malformed(format!(
            "expected webhook response of {own}, Kind={KIND}, got {got}, Kind={kind}"
        ));
    }
    let response = &mut review["response"];
    if !response.is_object() {
        return malformed("no response provided".to_owned());
    }
    let given = response["uid"].as_str().unwrap_or_default();
    if version == "v1" && given != uid {
        let (uid, given) = (quote(uid), quote(given));
        return malformed(format!("expected response.uid={uid}, got {given}"));
    }
    let result = &response["result"];
    let status = result["status"].as_str().unwrap_or_default();
    if status != "Success" {
        return malformed(match result["message"].as_str() {
            Some(message) if !message.is_empty() => message.to_owned(),
            _ => format!("response.result.status was '{status}', not 'Success'"),
        });
    }
    match response["convertedObjects"].take() {
        Value::Array(objects) => Ok(objects),
        Value::Null => Ok(Vec::new()),
        other => Err(call(format!(
            "json: cannot unmarshal {} into Go struct field ConversionResponse.response.convertedObjects of type []runtime.RawExtension",
            go_kind(&other)
        ))),
    }
}

fn check_converted(
    originals: Vec<Object>,
    converted: Vec<Value>,
    desired: &str,
) -> Result<Vec<Object>, (FailureType, String)> {
    let is_list = originals.len() > 1;
    let pairs = originals.iter().zip(converted).enumerate();
    pairs
        .map(|(i, (original, converted))| {
            let what = match is_list {
                true => format!("returned invalid converted object at index {i}"),
                false => "returned invalid object".to_owned(),
            };
            let failed = |why: String| {
                // As upstream: only some checks have an index.
                let is_of_type = why.starts_with("invalid ");
                let at = if is_of_type && !is_list {
                    " at index 0"
                } else {
                    ""
                };
                (FailureType::Object, format!("{what}{at}: {why}"))
            };
            let Value::Object(mut converted) = converted else {
                return Err(failed("not an object".to_owned()));
            };
            check(original, &converted, desired).map_err(failed)?;
            restore_metadata(original, &mut converted).map_err(|why| {
                let at = match is_list {
                    true => format!(" in object at index {i}"),
                    false => String::new(),
                };
                (
                    FailureType::Object,
                    format!("returned invalid metadata{at}: {why}"),
                )
            })?;
            Ok(converted)
        })
        .collect()
}

/// Checks that the converted object is the same one, in the desired version.
fn check(original: &Object, converted: &Object, desired: &str) -> Result<(), String> {
    let text = |object: &Object, key: &str| tree::text(tree::get(object, key)).to_owned();
    let got = text(converted, "apiVersion");
    if got != desired {
        return Err(format!(
            "invalid groupVersion (expected {desired}, received {got})"
        ));
    }
    let (was, is) = (text(original, "kind"), text(converted, "kind"));
    if was != is {
        return Err(format!("invalid kind (expected {was}, received {is})"));
    }
    for (key, name) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let meta = |object: &Object| tree::text(&tree::get(object, "metadata")[key]).to_owned();
        let (was, is) = (meta(original), meta(converted));
        if was != is {
            return Err(format!("must have the same {name}: {was} != {is}"));
        }
    }
    Ok(())
}

/// Restores the metadata, except labels and annotations.
fn restore_metadata(original: &Object, converted: &mut Object) -> Result<(), String> {
    let given = match converted.get("metadata") {
        None => return Err("missing metadata in converted object".to_owned()),
        Some(Value::Object(given)) => given.clone(),
        Some(other) => {
            return Err(format!(
                "invalid metadata of type {} in converted object",
                go_kind(other)
            ));
        }
    };
    let mut metadata = tree::get(original, "metadata").clone();
    let Some(fields) = metadata.as_object_mut() else {
        return Err("invalid metadata in input object".to_owned());
    };
    for key in ["labels", "annotations"] {
        match given.get(key) {
            None | Some(Value::Null) => {
                fields.shift_remove(key);
            }
            Some(Value::Object(map)) => {
                if let Some((name, other)) = map.iter().find(|(_, value)| !value.is_string()) {
                    return Err(format!(
                        "metadata.{key}[{name}] must be a string, but is {} in converted object",
                        go_kind(other)
                    ));
                }
                if fields.get(key).and_then(Value::as_object) != Some(map) {
                    check_map(key, map)?;
                    fields.insert(key.to_owned(), Value::Object(map.clone()));
                }
            }
            Some(other) => {
                return Err(format!(
                    "invalid metadata.{key} of type {} in converted object",
                    go_kind(other)
                ));
            }
        }
    }
    converted.insert("metadata".to_owned(), metadata);
    Ok(())
}

fn check_map(key: &str, map: &Object) -> Result<(), String> {
    let mut errors = Vec::new();
    let path = Path::new("metadata");
    let value = Value::Object(map.clone());
    match key {
        "labels" => kinds::check::labels(&value, &path.child("labels"), &mut errors),
        _ => kinds::check::annotations(&value, &path.child("annotation"), &mut errors),
    }
    match errors.is_empty() {
        true => Ok(()),
        false => Err(aggregate(&errors)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Object {
        value.as_object().unwrap().clone()
    }

    fn original() -> Object {
        object(json!({"apiVersion": "g/v1", "kind": "K",
            "metadata": {"name": "a", "uid": "u", "labels": {"x": "y"}, "generation": 3}}))
    }

    fn judged(converted: Value) -> Result<Vec<Object>, String> {
        check_converted(vec![original()], vec![converted], "g/v2").map_err(|(_, why)| why)
    }

    #[test]
    fn only_labels_and_annotations_of_the_metadata_change() {
        let made = judged(json!({"apiVersion": "g/v2", "kind": "K", "spec": {"a": 1},
            "metadata": {"name": "a", "uid": "u", "labels": {"new": "one"}, "generation": 9}}));
        let made = made.unwrap().remove(0);
        assert_eq!(
            made["metadata"],
            json!({"name": "a", "uid": "u", "labels": {"new": "one"}, "generation": 3})
        );
        assert_eq!(made["spec"]["a"], 1);
    }

    #[test]
    fn another_object_is_refused() {
        let meta = json!({"name": "a", "uid": "u"});
        for (converted, why) in [
            (
                json!({"apiVersion": "g/v1", "kind": "K", "metadata": meta}),
                "returned invalid object at index 0: invalid groupVersion (expected g/v2, received g/v1)",
            ),
            (
                json!({"apiVersion": "g/v2", "kind": "L", "metadata": meta}),
                "returned invalid object at index 0: invalid kind (expected K, received L)",
            ),
            (
                json!({"apiVersion": "g/v2", "kind": "K", "metadata": {"name": "b", "uid": "u"}}),
                "returned invalid object: must have the same name: a != b",
            ),
            (
                json!({"apiVersion": "g/v2", "kind": "K", "metadata": {"name": "a", "uid": "u", "labels": {"x": 1}}}),
                "returned invalid metadata: metadata.labels[x] must be a string, but is number in converted object",
            ),
        ] {
            assert_eq!(judged(converted).unwrap_err(), why);
        }
    }

    #[test]
    fn a_conversion_response_must_succeed_and_match_the_request() {
        let said = |review: Value| {
            let read = response("v1", "u", review.to_string().as_bytes());
            read.map(|objects| objects.len()).map_err(|(_, why)| why)
        };
        let review = |response: Value| json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": KIND, "response": response});
        let success =
            json!({"uid": "u", "result": {"status": "Success"}, "convertedObjects": [{}]});
        assert_eq!(said(review(success)), Ok(1));
        let failure = json!({"uid": "u", "result": {"status": "Failed", "message": "no"}});
        assert_eq!(said(review(failure)), Err("no".to_owned()));
        let silent = json!({"uid": "u", "result": {}});
        let why = "response.result.status was '', not 'Success'";
        assert_eq!(said(review(silent)), Err(why.to_owned()));
        assert_eq!(
            said(review(Value::Null)),
            Err("no response provided".to_owned())
        );
        let other = json!({"uid": "w", "result": {"status": "Success"}});
        let why = "expected response.uid=\"u\", got \"w\"";
        assert_eq!(said(review(other)), Err(why.to_owned()));
    }
}
