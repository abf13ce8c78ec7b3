//! Questions to the server: who am I, whose token is this, may somebody do that. Answered at once,
//! never stored.

use std::{collections::BTreeMap, sync::Arc};

use http::{HeaderMap, StatusCode, header};
use machinery::{Object, Status, Value};
use serde_json::{Map, json};

use super::body::{self, WriteOptions};
use crate::{
    Resource, User,
    authn::Credentials,
    authz::{self, Attributes, Decision},
    meta,
    pipeline::Request,
    respond::{self, Answer},
};

/// Answers a question.
pub(crate) async fn serve(request: Request, resource: Arc<Resource>) -> Answer {
    let options = WriteOptions::parse(&request)?;
    let decoded = body::object(&request, &resource, options.validation).await?;
    let mut review = decoded.object;
    let status = match resource.kind.names().kind.as_str() {
        "SelfSubjectReview" => json!({"userInfo": user_info(&request.user)}),
        "TokenReview" => token(&request, &review).await,
        "SelfSubjectAccessReview" => access(&request, &request.user, &review["spec"]).await,
        "SubjectAccessReview" => {
            access(&request, &subject(&review["spec"])?, &review["spec"]).await
        }
        "LocalSubjectAccessReview" => local(&request, &review).await?,
        _ => return Err(Status::method_not_allowed()),
    };
    review.insert("status".to_owned(), status);
    let now = meta::time(request.core.config.clock.now());
    meta::set(&mut review, "creationTimestamp", now);
    let bytes = machinery::encode::object(resource.schema, &review).bytes;
    Ok(respond::bytes(StatusCode::CREATED, respond::JSON, bytes))
}

fn user_info(user: &User) -> Value {
    let mut info = Map::new();
    info.insert("username".to_owned(), user.name.clone().into());
    if !user.uid.is_empty() {
        info.insert("uid".to_owned(), user.uid.clone().into());
    }
    info.insert("groups".to_owned(), user.groups.clone().into());
    if !user.extra.is_empty() {
        info.insert("extra".to_owned(), json!(user.extra));
    }
    Value::Object(info)
}

/// Whose token it is, asked of the same authenticators that requests meet.
async fn token(request: &Request, review: &Object) -> Value {
    let spec = review.get("spec").cloned().unwrap_or_default();
    let token = spec["token"].as_str().unwrap_or_default();
    let mut headers = HeaderMap::new();
    let Ok(value) = format!("Bearer {token}").parse() else {
        return json!({"authenticated": false, "error": "the token is no header value"});
    };
    headers.insert(header::AUTHORIZATION, value);
    let credentials = Credentials {
        headers: &headers,
        certificates: &[],
        remote: None,
    };
    let mut failure = None;
    for authenticator in &request.core.authenticators {
        match authenticator.authenticate(&credentials).await {
            Ok(Some(user)) => {
                return json!({"authenticated": true, "user": user_info(&user)});
            }
            Ok(None) => {}
            Err(refused) => failure = Some(refused.to_string()),
        }
    }
    match failure {
        Some(why) => json!({"authenticated": false, "error": why}),
        None => json!({"authenticated": false}),
    }
}

/// The user that a review asks about.
fn subject(spec: &Value) -> Result<User, Status> {
    let text = |key: &str| spec[key].as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| -> Vec<String> {
        let list = value.as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let extra = spec["extra"].as_object().into_iter().flatten();
    let extra: BTreeMap<_, _> = extra
        .map(|(key, value)| (key.to_lowercase(), list(value)))
        .collect();
    let user = User {
        name: text("user"),
        uid: text("uid"),
        groups: list(&spec["groups"]),
        extra,
    };
    if user.name.is_empty() && user.groups.is_empty() {
        use machinery::field::{Error, Path};
        let path = Path::new("spec").child("user");
        let error = Error::invalid(&path, "", "at least one of user or group must be specified");
        return Err(Status::invalid(
            "authorization.k8s.io",
            "SubjectAccessReview",
            "",
            &[error],
        ));
    }
    Ok(user)
}

async fn local(request: &Request, review: &Object) -> Result<Value, Status> {
    let namespace = request
        .info
        .resource
        .as_ref()
        .map(|r| r.namespace.as_str())
        .unwrap_or_default();
    let spec = review.get("spec").cloned().unwrap_or_default();
    if spec["resourceAttributes"]["namespace"]
        .as_str()
        .unwrap_or_default()
        != namespace
    {
        use machinery::field::{Error, Path};
        let path = Path::new("spec")
            .child("resourceAttributes")
            .child("namespace");
        let error = Error::invalid(
            &path,
            spec["resourceAttributes"]["namespace"].clone(),
            "must match metadata.namespace",
        );
        return Err(Status::invalid(
            "authorization.k8s.io",
            "LocalSubjectAccessReview",
            "",
            &[error],
        ));
    }
    Ok(access(request, &subject(&spec)?, &spec).await)
}

/// May they?
async fn access(request: &Request, user: &User, spec: &Value) -> Value {
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let is_resource = resource.is_object();
    let about = if is_resource { resource } else { path };
    let [
        verb,
        group,
        version,
        plural,
        subresource,
        namespace,
        name,
        path,
    ] = [
        "verb",
        "group",
        "version",
        "resource",
        "subresource",
        "namespace",
        "name",
        "path",
    ]
    .map(|key| about[key].as_str().unwrap_or_default());
    let attributes = Attributes {
        user,
        verb,
        is_resource,
        group,
        version,
        resource: plural,
        subresource,
        namespace,
        name,
        path,
        field_selector: "",
        label_selector: "",
    };
    match authz::decide(&request.core.authorizers, &attributes).await {
        Decision::Allow => json!({"allowed": true}),
        Decision::Deny(reason) => json!({"allowed": false, "denied": true, "reason": reason}),
        Decision::NoOpinion(reason) if reason.is_empty() => json!({"allowed": false}),
        Decision::NoOpinion(reason) => json!({"allowed": false, "reason": reason}),
    }
}
