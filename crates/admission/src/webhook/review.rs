//! AdmissionReviews: requests, and validation of responses.

use std::collections::BTreeMap;

use base64::{DecodeError, Engine, engine::general_purpose::STANDARD};
use machinery::{
    Object, Status, Value,
    decode::{Format, TypeMeta, tree},
    json::{from_value, json},
    patch::json::go_kind,
    text::quote,
};

use super::{
    super::matching::{Attributes, Matched},
    hooks::Version,
};

const KIND: &str = "AdmissionReview";
/// Larger bodies are not tried as YAML, which takes much longer than JSON.
const LARGEST_YAML: usize = 1 << 20;

impl Version {
    fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "admission.k8s.io/v1",
            Self::V1beta1 => "admission.k8s.io/v1beta1",
        }
    }
}

/// A webhook's response.
#[derive(Debug, Default)]
pub(super) struct Response {
    pub(super) allowed: bool,
    /// The operations of a JSON patch, if any.
    pub(super) patch: Option<Value>,
    pub(super) warnings: Vec<String>,
    pub(super) audit: BTreeMap<String, String>,
    result: Value,
}

/// Why a response is invalid.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Invalid {
    /// It cannot be decoded.
    Undecodable(String),
    /// It is not a response to the request.
    Unexpected(String),
    /// Its patch cannot be decoded.
    Patch(String),
    /// Its patch type is unknown.
    PatchType(String),
}

/// The serialized review of a request in the matched version.
pub(super) fn request(
    version: Version,
    uid: &str,
    attributes: &Attributes<'_>,
    matched: &Matched<'_>,
    object: Option<&Object>,
    old: Option<&Object>,
) -> Vec<u8> {
    let mut request = attributes.request(matched);
    request["uid"] = uid.into();
    let shown = |object: Option<&Object>| object.cloned().map_or(Value::Null, Value::Object);
    request["object"] = shown(object);
    request["oldObject"] = shown(old);
    let review = json!({"kind": KIND, "apiVersion": version.api_version(), "request": request});
    review.to_string().into_bytes()
}

/// Decodes and validates a response.
pub(super) fn response(
    version: Version,
    uid: &str,
    mutating: bool,
    bytes: &[u8],
) -> Result<Response, Invalid> {
    let review = parse(bytes).map_err(Invalid::Undecodable)?;
    let TypeMeta { api_version, kind } =
        TypeMeta::from_value(review.clone()).map_err(Invalid::Undecodable)?;
    let own = version.api_version();
    let is_other = |given: &str, own: &str| !given.is_empty() && given != own;
    if is_other(&api_version, own) || is_other(&kind, KIND) {
        return Err(Invalid::Undecodable(not_decodable_into(
            version,
            &api_version,
            &kind,
        )));
    }
    let response = &review["response"];
    let unexpected = |why: String| Err(Invalid::Unexpected(why));
    if response.is_null() {
        return unexpected("webhook response was absent".to_owned());
    }
    let fields = Fields { response };
    let (patch, patch_type) = (fields.text("patch")?, fields.text("patchType")?);
    let given = fields.text("uid")?.unwrap_or_default();
    let has_patch = patch.is_some_and(|patch| !patch.is_empty());
    if version == Version::V1 {
        if given != uid {
            let (uid, given) = (quote(uid), quote(given));
            return unexpected(format!("expected response.uid={uid}, got {given}"));
        }
        if api_version != own || kind != KIND {
            return unexpected(format!(
                "expected webhook response of {own}, Kind={KIND}, got {}, Kind={kind}",
                if api_version.is_empty() {
                    "/"
                } else {
                    &api_version
                }
            ));
        }
        check_patch(mutating, has_patch, patch_type)?;
    }
    let patch = patch.filter(|_| mutating && has_patch);
    let result = match &response["status"] {
        Value::Null => Value::Null,
        result @ Value::Object(_) => result.clone(),
        other => return Err(mistyped(other, "status", "v1.Status")),
    };
    Ok(Response {
        allowed: fields.truth("allowed")?,
        patch: match patch {
            None => None,
            Some(patch) => Some(decode_patch(patch, patch_type, version)?),
        },
        warnings: fields.warnings()?,
        audit: fields.text_map("auditAnnotations")?,
        result,
    })
}

/// The parsed body. Upstream reads a body that is not JSON as YAML.
fn parse(bytes: &[u8]) -> Result<Value, String> {
    let why = match tree(Format::Json, bytes) {
        Ok((value, _)) => return Ok(value),
        Err(why) => why,
    };
    match bytes.len() <= LARGEST_YAML {
        true => tree(Format::Yaml, bytes).map(|(value, _)| value),
        false => Err(String::new()),
    }
    .map_err(|_| format!("couldn't get version/kind; json parse error: {why}"))
}

/// The error of a body of another kind.
fn not_decodable_into(version: Version, api_version: &str, kind: &str) -> String {
    let short = |version: Version| match version {
        Version::V1 => "v1",
        Version::V1beta1 => "v1beta1",
    };
    let other = [Version::V1, Version::V1beta1]
        .into_iter()
        .find(|other| other.api_version() == api_version);
    match other {
        Some(other) if kind == KIND => format!(
            "converting ({}.{KIND}) to ({}.{KIND}): unknown conversion",
            short(other),
            short(version)
        ),
        _ => format!(
            "no kind {} is registered for version {}",
            quote(kind),
            quote(api_version)
        ),
    }
}

/// A patch requires a type, and only mutating webhooks may return one.
fn check_patch(mutating: bool, has_patch: bool, patch_type: Option<&str>) -> Result<(), Invalid> {
    let why = match (mutating, has_patch, patch_type) {
        (true, true, None) => "webhook returned response.patch but not response.patchType",
        (true, false, Some(_)) => "webhook returned response.patchType but not response.patch",
        (true, _, Some("")) => "webhook returned invalid response.patchType of \"\"",
        (false, true, _) => "validating webhook may not return response.patch",
        (false, _, Some(_)) => "validating webhook may not return response.patchType",
        _ => return Ok(()),
    };
    Err(Invalid::Unexpected(why.to_owned()))
}

fn decode_patch(text: &str, patch_type: Option<&str>, version: Version) -> Result<Value, Invalid> {
    let bytes = STANDARD.decode(text).map_err(|error| {
        let at = match error {
            DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) => at,
            DecodeError::InvalidLength(_) | DecodeError::InvalidPadding => text.len(),
        };
        Invalid::Undecodable(format!("illegal base64 data at input byte {at}"))
    })?;
    let (patch, _) = tree(Format::Json, &bytes).map_err(Invalid::Patch)?;
    machinery::patch::json::check(&patch, false).map_err(Invalid::Patch)?;
    match patch_type {
        Some("JSONPatch") => Ok(patch),
        _ if version == Version::V1beta1 => Ok(patch),
        other => {
            let other = quote(other.unwrap_or_default());
            Err(Invalid::PatchType(format!(
                "unsupported patch type {other}"
            )))
        }
    }
}

/// The fields of a response; wrong types are errors.
struct Fields<'a> {
    response: &'a Value,
}

fn mistyped(value: &Value, name: &str, wanted: &str) -> Invalid {
    let given = go_kind(value);
    Invalid::Undecodable(format!(
        "json: cannot unmarshal {given} into Go struct field AdmissionResponse.response.{name} of type {wanted}"
    ))
}

impl<'a> Fields<'a> {
    fn text(&self, name: &str) -> Result<Option<&'a str>, Invalid> {
        match &self.response[name] {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(text.as_str())),
            other => Err(mistyped(other, name, "string")),
        }
    }

    fn truth(&self, name: &str) -> Result<bool, Invalid> {
        match &self.response[name] {
            Value::Null => Ok(false),
            Value::Bool(truth) => Ok(*truth),
            other => Err(mistyped(other, name, "bool")),
        }
    }

    fn texts(&self, name: &str) -> Result<Vec<String>, Invalid> {
        let list = match &self.response[name] {
            Value::Null => return Ok(Vec::new()),
            Value::Array(list) => list.iter(),
            other => return Err(mistyped(other, name, "[]string")),
        };
        list.map(|item| match item {
            Value::String(text) => Ok(text.to_string()),
            other => Err(mistyped(other, name, "string")),
        })
        .collect()
    }

    /// Warnings that a header can have.
    fn warnings(&self) -> Result<Vec<String>, Invalid> {
        let mut warnings = self.texts("warnings")?;
        warnings.retain(|warning| !warning.contains(char::is_control));
        Ok(warnings)
    }

    fn text_map(&self, name: &str) -> Result<BTreeMap<String, String>, Invalid> {
        let map = match &self.response[name] {
            Value::Null => return Ok(BTreeMap::new()),
            Value::Object(map) => map.iter(),
            other => return Err(mistyped(other, name, "map[string]string")),
        };
        map.map(|(key, item)| match item {
            Value::String(text) => Ok((key.to_string(), text.to_string())),
            other => Err(mistyped(other, name, "string")),
        })
        .collect()
    }
}

impl Response {
    /// The denial: the webhook's status, with a failure code.
    pub(super) fn denial(&self, webhook: &str) -> Status {
        let denied = format!("admission webhook {} denied the request", quote(webhook));
        let text = |key: &str| self.result[key].as_str().unwrap_or_default();
        let message = match (text("message"), text("reason")) {
            ("", "") => format!("{denied} without explanation"),
            ("", reason) => format!("{denied}: {reason}"),
            (message, _) => format!("{denied}: {message}"),
        };
        let code = self.result["code"].as_u64().unwrap_or_default();
        let code = u16::try_from(code).unwrap_or_default().max(400);
        let mut status = Status::failure(code, text("reason"), message);
        status.details = from_value(self.result["details"].clone()).ok();
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "u";

    fn judged(version: Version, mutating: bool, review: Value) -> Result<Response, Invalid> {
        response(version, UID, mutating, review.to_string().as_bytes())
    }

    fn review(version: Version, response: Value) -> Value {
        json!({"kind": KIND, "apiVersion": version.api_version(), "response": response})
    }

    #[test]
    fn review_responses_are_validated() {
        let v1 = |mutating, response| {
            let judged = judged(Version::V1, mutating, review(Version::V1, response));
            judged.map(|response| response.allowed)
        };
        let unexpected = |why: &str| Err(Invalid::Unexpected(why.to_owned()));
        assert_eq!(v1(false, json!({"uid": UID, "allowed": true})), Ok(true));
        assert_eq!(v1(false, json!({"uid": UID})), Ok(false));
        assert_eq!(
            v1(false, Value::Null),
            unexpected("webhook response was absent")
        );
        assert_eq!(
            v1(false, json!({"uid": "x", "allowed": true})),
            unexpected("expected response.uid=\"u\", got \"x\"")
        );
        assert_eq!(
            v1(true, json!({"uid": UID, "allowed": true, "patch": "W10="})),
            unexpected("webhook returned response.patch but not response.patchType")
        );
        assert_eq!(
            v1(
                false,
                json!({"uid": UID, "allowed": true, "patchType": "JSONPatch"})
            ),
            unexpected("validating webhook may not return response.patchType")
        );
        let nameless = json!({"response": {"uid": UID, "allowed": true}});
        let said = judged(Version::V1, false, nameless).map(|response| response.allowed);
        assert_eq!(
            said,
            unexpected(
                "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind="
            )
        );
    }

    #[test]
    fn the_older_version_is_not_as_strict() {
        let older = json!({"response": {"allowed": true, "patch": "W10="}});
        let response = judged(Version::V1beta1, true, older).unwrap();
        assert_eq!(response.patch, Some(json!([])));
    }

    #[test]
    fn undecodable_responses_are_reported() {
        let struct_of = "Go value of type struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }";
        let unmarshal = |given: &str| {
            format!(
                "couldn't get version/kind; json parse error: json: cannot unmarshal {given} into {struct_of}"
            )
        };
        for (bytes, expected) in [
            ("garbage", unmarshal("string")),
            ("<html></html>", unmarshal("string")),
            ("[]", unmarshal("array")),
            (
                r#"{"apiVersion": "v1", "kind": "Pod"}"#,
                "no kind \"Pod\" is registered for version \"v1\"".to_owned(),
            ),
            (
                r#"{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview"}"#,
                "converting (v1beta1.AdmissionReview) to (v1.AdmissionReview): unknown conversion"
                    .to_owned(),
            ),
        ] {
            let said = response(Version::V1, UID, false, bytes.as_bytes()).unwrap_err();
            assert_eq!(said, Invalid::Undecodable(expected));
        }
        let typed = review(Version::V1, json!({"uid": UID, "allowed": "yes"}));
        let said = judged(Version::V1, false, typed).unwrap_err();
        let why = "json: cannot unmarshal string into Go struct field AdmissionResponse.response.allowed of type bool";
        assert_eq!(said, Invalid::Undecodable(why.to_owned()));
    }

    #[test]
    fn only_small_bodies_are_read_as_yaml() {
        let body = |entries: usize| format!("a: [{}1]", "1,".repeat(entries));
        assert!(parse(body(3).as_bytes()).is_ok());
        assert!(parse(body(LARGEST_YAML).as_bytes()).is_err());
    }

    #[test]
    fn undecodable_patches_are_reported() {
        let patched = |patch: &str| {
            let answer =
                json!({"uid": UID, "allowed": true, "patchType": "JSONPatch", "patch": patch});
            judged(Version::V1, true, review(Version::V1, answer)).unwrap_err()
        };
        assert_eq!(
            patched("!!!"),
            Invalid::Undecodable("illegal base64 data at input byte 0".to_owned())
        );
        assert_eq!(
            patched(&STANDARD.encode("garbage")),
            Invalid::Patch("invalid character 'g' looking for beginning of value".to_owned())
        );
    }

    #[test]
    fn warnings_with_control_characters_are_dropped() {
        let answer = json!({"uid": UID, "allowed": true, "warnings": ["careful", "a\nb"]});
        let response = judged(Version::V1, false, review(Version::V1, answer)).unwrap();
        assert_eq!(response.warnings, ["careful"]);
    }

    #[test]
    fn a_denial_has_the_code_and_the_words_of_the_webhook() {
        for (status, code, message) in [
            (Value::Null, 400, "denied the request without explanation"),
            (json!({"reason": "NoWay"}), 400, "denied the request: NoWay"),
            (
                json!({"message": "no", "code": 200}),
                400,
                "denied the request: no",
            ),
            (
                json!({"message": "no", "code": 418}),
                418,
                "denied the request: no",
            ),
        ] {
            let answer = json!({"uid": UID, "allowed": false, "status": status});
            let response = judged(Version::V1, false, review(Version::V1, answer)).unwrap();
            let denial = response.denial("a.b.c");
            assert_eq!(denial.code, code);
            assert_eq!(
                denial.message,
                format!("admission webhook \"a.b.c\" {message}")
            );
        }
    }
}
