//! `Status`: the API's errors.

use crate::field;
use crate::text::quote;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// A `v1` Status with `status: Failure`, or a success without an object. It serializes as the
/// complete object.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// HTTP code.
    #[serde(default)]
    pub code: u16,
    /// Machine-readable reason such as `NotFound`.
    #[serde(default)]
    pub reason: String,
    /// For people.
    #[serde(default)]
    pub message: String,
    /// The object it is about.
    #[serde(default)]
    pub details: Option<Details>,
    /// The token with which a list may continue after its continue token expired; often empty.
    #[serde(skip)]
    pub continue_token: String,
    /// Warnings sent with the error.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

/// Which object, and which of its fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Details {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// One field and its error.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cause {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Empty {}
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", "Status")?;
        map.serialize_entry("apiVersion", "v1")?;
        if self.continue_token.is_empty() {
            map.serialize_entry("metadata", &Empty {})?;
        } else {
            let metadata = std::collections::BTreeMap::from([("continue", &self.continue_token)]);
            map.serialize_entry("metadata", &metadata)?;
        }
        map.serialize_entry(
            "status",
            if self.is_success() {
                "Success"
            } else {
                "Failure"
            },
        )?;
        if !self.message.is_empty() {
            map.serialize_entry("message", &self.message)?;
        }
        if !self.reason.is_empty() {
            map.serialize_entry("reason", &self.reason)?;
        }
        if let Some(details) = &self.details {
            map.serialize_entry("details", details)?;
        }
        // A success has no code.
        if self.code != 0 && self.code != 200 {
            map.serialize_entry("code", &self.code)?;
        }
        map.end()
    }
}

/// `pods` or `deployments.apps`: a name with its group after a dot.
fn qualified(group: &str, name: &str) -> String {
    if group.is_empty() {
        name.to_owned()
    } else {
        format!("{name}.{group}")
    }
}

impl Status {
    pub fn failure(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: reason.to_owned(),
            message: message.into(),
            details: None,
            continue_token: String::new(),
            warnings: Vec::new(),
        }
    }

    fn about(mut self, group: &str, kind: &str, name: &str) -> Self {
        let details = self.details.get_or_insert_default();
        details.group = group.to_owned();
        details.kind = kind.to_owned();
        details.name = name.to_owned();
        self
    }

    fn retry_after(mut self, seconds: u32) -> Self {
        self.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }

    /// The same with warnings added before the existing ones.
    #[must_use]
    pub fn warned(mut self, warnings: impl IntoIterator<Item = String>) -> Self {
        self.warnings.splice(0..0, warnings);
        self
    }

    /// Whether this is a success.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// The serialized JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Strings and integers only: serializing cannot fail.
        crate::json::to_vec(self).unwrap_or_default()
    }

    /// Success without an object, such as of a delete; `uid` is that of the deleted object.
    pub fn success(group: &str, resource: &str, name: &str, uid: &str) -> Self {
        let mut status = Self::failure(200, "", "").about(group, resource, name);
        status.details.get_or_insert_default().uid = uid.to_owned();
        status
    }

    /// 404 for an object.
    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} {} not found", qualified(group, resource), quote(name));
        Self::failure(404, "NotFound", message).about(group, resource, name)
    }

    /// 404 for a path that is not served.
    pub fn path_not_found() -> Self {
        let mut status = Self::failure(
            404,
            "NotFound",
            "the server could not find the requested resource",
        );
        status.details = Some(Details::default());
        status
    }

    /// 409: the name is taken.
    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        let message = format!(
            "{} {} already exists",
            qualified(group, resource),
            quote(name)
        );
        Self::failure(409, "AlreadyExists", message).about(group, resource, name)
    }

    /// 409: every generated name was taken.
    pub fn generate_name_conflict(group: &str, resource: &str, name: &str) -> Self {
        let message = format!(
            "{} {} already exists, the server was not able to generate a unique name for the object",
            qualified(group, resource),
            quote(name)
        );
        Self::failure(409, "AlreadyExists", message)
            .about(group, resource, name)
            .retry_after(1)
    }

    /// 409: the object changed concurrently, or a precondition failed.
    pub fn conflict(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {}: {why}",
            qualified(group, resource),
            quote(name)
        );
        Self::failure(409, "Conflict", message).about(group, resource, name)
    }

    /// 409 with the message for a stale resourceVersion.
    pub fn modified(group: &str, resource: &str, name: &str) -> Self {
        Self::conflict(
            group,
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 409 of an apply that conflicts with other managers.
    pub fn apply_conflict(causes: Vec<Cause>, message: impl Into<String>) -> Self {
        let mut status = Self::failure(409, "Conflict", message);
        status.details = Some(Details {
            causes,
            ..Details::default()
        });
        status
    }

    /// 422 with one cause per invalid field.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[field::Error]) -> Self {
        let mut message = format!("{} {} is invalid", qualified(group, kind), quote(name));
        if !errors.is_empty() {
            message.push_str(": ");
            message.push_str(&field::aggregate(errors));
        }
        let causes = errors
            .iter()
            .map(|e| Cause {
                reason: e.kind.reason().to_owned(),
                message: e.body(),
                field: e.path.to_string(),
            })
            .collect();
        let mut status = Self::failure(422, "Invalid", message).about(group, kind, name);
        status.details.get_or_insert_default().causes = causes;
        status
    }

    /// 403; `name` and `resource` may be empty.
    pub fn forbidden(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let message = if resource.is_empty() {
            format!("forbidden: {why}")
        } else if name.is_empty() {
            format!("{} is forbidden: {why}", qualified(group, resource))
        } else {
            format!(
                "{} {} is forbidden: {why}",
                qualified(group, resource),
                quote(name)
            )
        };
        Self::failure(403, "Forbidden", message).about(group, resource, name)
    }

    /// 401; an empty reason becomes `not authorized`.
    pub fn unauthorized(why: &str) -> Self {
        Self::failure(
            401,
            "Unauthorized",
            if why.is_empty() {
                "not authorized"
            } else {
                why
            },
        )
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::failure(400, "BadRequest", message)
    }

    /// 405.
    pub fn method_not_supported(group: &str, resource: &str, action: &str) -> Self {
        let message = format!(
            "{action} is not supported on resources of kind {}",
            quote(&qualified(group, resource))
        );
        Self::failure(405, "MethodNotAllowed", message).about(group, resource, "")
    }

    /// 405 for a path that serves other methods.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        let mut status = Self::failure(405, "MethodNotAllowed", message);
        status.details = Some(Details::default());
        status
    }

    /// 406; `accepted` are the media types that could be served.
    pub fn not_acceptable(accepted: &[&str]) -> Self {
        let message = if accepted.is_empty() {
            "none of the requested media types can be served".to_owned()
        } else {
            format!(
                "only the following media types are accepted: {}",
                accepted.join(", ")
            )
        };
        Self::not_acceptable_as(message)
    }

    /// 406 for another reason.
    pub fn not_acceptable_as(message: impl Into<String>) -> Self {
        Self::failure(406, "NotAcceptable", message)
    }

    /// 415; `accepted` are the supported media types.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        Self::failure(
            415,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {}",
                accepted.join(", ")
            ),
        )
    }

    /// 406 and 415 as upstream's router reports them, before the resource is known.
    pub fn refused_by_router(code: u16, more: &str) -> Self {
        let (reason, words) = match code {
            406 => ("NotAcceptable", "Not Acceptable"),
            _ => ("UnsupportedMediaType", "Unsupported Media Type"),
        };
        let mut status = Self::failure(code, reason, format!("{code}: {words}{more}"));
        status.details = Some(Details::default());
        status
    }

    /// 410: the requested data is gone.
    pub fn gone(message: impl Into<String>) -> Self {
        Self::failure(410, "Gone", message)
    }

    /// 410: the revision or the continue token is too old.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::failure(410, "Expired", message)
    }

    /// 413.
    pub fn request_entity_too_large(why: &str) -> Self {
        Self::failure(
            413,
            "RequestEntityTooLarge",
            format!("Request entity too large: {why}"),
        )
    }

    /// 429.
    pub fn too_many_requests(message: impl Into<String>, retry_after: u32) -> Self {
        Self::failure(429, "TooManyRequests", message).retry_after(retry_after)
    }

    /// 500 for an error without a reason.
    pub fn unknown(why: impl Into<String>) -> Self {
        Self::failure(500, "", why.into())
    }

    /// 500 with a cause.
    pub fn internal(why: impl fmt::Display) -> Self {
        let why = why.to_string();
        let message = format!("Internal error occurred: {why}");
        let mut status = Self::failure(500, "InternalError", message);
        let causes = vec![Cause {
            message: why,
            ..Cause::default()
        }];
        status.details = Some(Details {
            causes,
            ..Details::default()
        });
        status
    }

    /// 503.
    pub fn service_unavailable(message: impl Into<String>) -> Self {
        Self::failure(503, "ServiceUnavailable", message)
    }

    /// 500: the operation could not complete now and may be retried.
    pub fn server_timeout(group: &str, resource: &str, operation: &str, retry_after: u32) -> Self {
        let message = format!(
            "The {operation} operation against {} could not be completed at this time, please try again.",
            qualified(group, resource)
        );
        Self::failure(500, "ServerTimeout", message)
            .about(group, resource, operation)
            .retry_after(retry_after)
    }

    /// 504.
    pub fn timeout(why: &str, retry_after: u32) -> Self {
        Self::failure(504, "Timeout", format!("Timeout: {why}")).retry_after(retry_after)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::{Error, Path};

    #[test]
    fn messages_are_those_kubernetes_sends() {
        let cases = [
            (
                Status::not_found("", "pods", "x"),
                404,
                "pods \"x\" not found",
            ),
            (
                Status::already_exists("apps", "deployments", "x"),
                409,
                "deployments.apps \"x\" already exists",
            ),
            (
                Status::conflict("", "pods", "x", "why"),
                409,
                "Operation cannot be fulfilled on pods \"x\": why",
            ),
            (
                Status::forbidden("", "pods", "", "no"),
                403,
                "pods is forbidden: no",
            ),
            (
                Status::method_not_supported("", "pods", "delete"),
                405,
                "delete is not supported on resources of kind \"pods\"",
            ),
            (Status::timeout("late", 0), 504, "Timeout: late"),
        ];
        for (status, code, message) in cases {
            assert_eq!((status.code, status.message.as_str()), (code, message));
        }
    }

    #[test]
    fn an_invalid_object_names_all_its_fields() {
        let errors = [
            Error::required(&Path::new("spec.containers"), ""),
            Error::invalid(&Path::new("metadata.name"), "X", "bad"),
        ];
        let status = Status::invalid("", "Pod", "x", &errors);
        assert_eq!(
            status.message,
            "Pod \"x\" is invalid: [spec.containers: Required value, metadata.name: Invalid value: \"X\": bad]"
        );
        assert_eq!(
            status.details.unwrap().causes[0].reason,
            "FieldValueRequired"
        );
    }

    #[test]
    fn the_wire_form_is_a_whole_object() {
        let text = String::from_utf8(Status::not_found("", "pods", "x").to_bytes()).unwrap();
        assert_eq!(
            text,
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"pods \"x\" not found","reason":"NotFound","details":{"name":"x","kind":"pods"},"code":404}"#
        );
    }
}
