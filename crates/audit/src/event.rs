//! One event, `audit.k8s.io/v1`, built from a request and its response. Bodies stay bytes until the
//! thread that writes the log parses them.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use jiff::Timestamp;
use machinery::{Object, Value};
use request::User;
use serde::{Serialize, Serializer};

use super::{Arrival, Level, Stage};

/// The body of a request or of a response.
#[derive(Debug, Clone)]
pub(crate) enum Payload {
    /// JSON or YAML as received.
    Bytes(Bytes),
    Object(Arc<Object>),
}

impl Payload {
    /// Approximate memory use in bytes.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Object(_) => 16 * 1024,
        }
    }

    /// The parsed body; `None` if it is neither JSON nor YAML.
    fn value(&self, omit_managed_fields: bool) -> Option<Value> {
        let mut value = match self {
            Self::Object(object) => Value::Object((**object).clone()),
            Self::Bytes(bytes) => machinery::json::from_slice(bytes)
                .ok()
                .or_else(|| serde_saphyr::from_slice(bytes).ok())?,
        };
        if omit_managed_fields {
            forget_managed_fields(&mut value);
        }
        Some(value)
    }
}

fn forget_managed_fields(value: &mut Value) {
    let forget = |object: &mut Value| {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.shift_remove("managedFields");
        }
    };
    forget(value);
    let items = value.get_mut("items").and_then(Value::as_array_mut);
    items.into_iter().flatten().for_each(forget);
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct UserInfo {
    username: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: BTreeMap<String, Vec<String>>,
}

impl From<&User> for UserInfo {
    fn from(user: &User) -> Self {
        Self {
            username: user.name.clone(),
            uid: user.uid.clone(),
            groups: user.groups.clone(),
            extra: user.extra.clone(),
        }
    }
}

/// How a request was authenticated.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuthenticationMetadata {
    impersonation_constraint: String,
}

impl AuthenticationMetadata {
    pub(super) fn new(impersonation_constraint: String) -> Self {
        Self {
            impersonation_constraint,
        }
    }
}

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObjectRef {
    #[serde(skip_serializing_if = "String::is_empty")]
    resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    api_group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    api_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) resource_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    subresource: String,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Event {
    kind: &'static str,
    api_version: &'static str,
    level: Level,
    #[serde(rename = "auditID")]
    audit_id: String,
    pub(super) stage: Stage,
    #[serde(rename = "requestURI")]
    request_uri: String,
    verb: &'static str,
    user: UserInfo,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) impersonated_user: Option<UserInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) authentication_metadata: Option<AuthenticationMetadata>,
    #[serde(rename = "sourceIPs", skip_serializing_if = "Vec::is_empty")]
    source_ips: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    user_agent: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) object_ref: Option<ObjectRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response_status: Option<Value>,
    #[serde(
        rename = "requestObject",
        serialize_with = "payload",
        skip_serializing_if = "Option::is_none"
    )]
    pub(super) request: Option<Payload>,
    #[serde(
        rename = "responseObject",
        serialize_with = "payload",
        skip_serializing_if = "Option::is_none"
    )]
    pub(super) response: Option<Payload>,
    request_received_timestamp: String,
    pub(super) stage_timestamp: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) annotations: BTreeMap<String, String>,
    #[serde(skip)]
    pub(super) omit_managed_fields: bool,
}

/// A time with microseconds.
pub(super) fn time(at: Timestamp) -> String {
    format!("{at:.6}")
}

fn payload<S: Serializer>(payload: &Option<Payload>, serializer: S) -> Result<S::Ok, S::Error> {
    payload
        .as_ref()
        .and_then(|payload| payload.value(false))
        .serialize(serializer)
}

impl Event {
    pub(super) fn new(level: Level, user: Option<&User>, arrival: &Arrival<'_>) -> Self {
        let no_user = User::default();
        let text = |name: &str| {
            let value = arrival.headers.get(name).map(http::HeaderValue::as_bytes);
            String::from_utf8_lossy(value.unwrap_or_default()).into_owned()
        };
        let object_ref = arrival.info.resource.as_ref().map(|subject| ObjectRef {
            resource: subject.resource.clone(),
            namespace: subject.namespace.clone(),
            name: subject.name.clone(),
            api_group: subject.group.clone(),
            api_version: subject.version.clone(),
            subresource: subject.subresource.clone(),
            ..ObjectRef::default()
        });
        let at = time(arrival.at);
        Self {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level,
            audit_id: arrival.id.to_owned(),
            stage: Stage::RequestReceived,
            request_uri: arrival
                .uri
                .path_and_query()
                .map_or_else(|| arrival.uri.path().to_owned(), ToString::to_string),
            verb: arrival.info.verb,
            user: user.unwrap_or(&no_user).into(),
            impersonated_user: None,
            authentication_metadata: None,
            source_ips: sources(arrival),
            user_agent: text("user-agent").chars().take(1024).collect(),
            object_ref,
            response_status: None,
            request: None,
            response: None,
            request_received_timestamp: at.clone(),
            stage_timestamp: at,
            annotations: BTreeMap::new(),
            omit_managed_fields: false,
        }
    }

    /// Approximate memory use of its bodies in bytes.
    pub(super) fn size(&self) -> usize {
        let bodies = [&self.request, &self.response];
        1024 + bodies
            .into_iter()
            .flatten()
            .map(Payload::size)
            .sum::<usize>()
    }

    /// The event as one line of the log.
    pub(super) fn line(&mut self) -> Result<Vec<u8>, machinery::json::Error> {
        for body in [&mut self.request, &mut self.response] {
            *body = body
                .take()
                .and_then(|body| body.value(self.omit_managed_fields))
                .map(|value| match value {
                    Value::Object(object) => Payload::Object(Arc::new(object)),
                    other => Payload::Bytes(other.to_string().into()),
                });
        }
        let mut line = machinery::json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }
}

/// Source addresses: those claimed by proxy headers first, then the peer's.
fn sources(arrival: &Arrival<'_>) -> Vec<String> {
    let said = ["x-forwarded-for", "x-real-ip"]
        .into_iter()
        .flat_map(|name| {
            let value = arrival.headers.get(name).and_then(|v| v.to_str().ok());
            value.unwrap_or_default().split(',').map(str::trim)
        });
    let said = said.filter_map(|address| address.parse::<std::net::IpAddr>().ok());
    let mut sources: Vec<String> = Vec::new();
    for address in said.chain(arrival.remote.map(|remote| remote.ip())) {
        let address = address.to_string();
        if !sources.contains(&address) {
            sources.push(address);
        }
    }
    sources
}
