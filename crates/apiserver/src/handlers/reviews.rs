//! Questions that are asked by creating an object and answered in its status, and never stored:
//! whether somebody may do something, what somebody may do, who a token names, who is asking.

use std::{collections::BTreeMap, sync::Arc};

use http::StatusCode;
use kinds::tree;
use machinery::json::json;
use machinery::{
    Object, Status, Value,
    field::{Error, Path},
};

use super::{
    body::{self, Verb, WriteOptions},
    read,
};
use crate::{
    Resource, User, authn,
    authz::{self, Attributes, Decision, Rule},
    media, meta,
    pipeline::Request,
    respond::Answer,
    user,
};

/// Answers a question.
pub(crate) async fn serve(request: Request, resource: Arc<Resource>) -> Answer {
    let options = WriteOptions::parse(&request, Verb::Create)?;
    media::as_object(&request.parts.headers, resource.schema.is_some())?;
    let output = read::output(&request, &resource)?;
    let body = body::Received::take(&request).await?;
    let decoded = body.audited_object(&request, &resource, options.validation)?;
    let mut review = decoded.object;
    let spec = tree::get(&review, "spec").clone();
    let status = match resource.plural.as_str() {
        "selfsubjectreviews" => json!({ "userInfo": info(&request.user) }),
        "tokenreviews" => token(&request, &spec).await?,
        "selfsubjectaccessreviews" => access(&request, &request.user, &spec).await?,
        "selfsubjectrulesreviews" => rules(&request, tree::text(&spec["namespace"])),
        "subjectaccessreviews" => access(&request, &subject(&resource, &spec)?, &spec).await?,
        "localsubjectaccessreviews" => {
            let here = request
                .info
                .resource
                .as_ref()
                .map_or("", |r| r.namespace.as_str());
            local(&resource, &spec, here)?;
            access(&request, &subject(&resource, &spec)?, &spec).await?
        }
        _ => return Err(Status::method_not_allowed()),
    };
    if matches!(resource.plural.as_str(), "selfsubjectreviews") {
        let now = meta::time(request.core.config.clock.now());
        meta::set(&mut review, "creationTimestamp", now);
    }
    review.insert("status".to_owned(), status);
    let body = Value::Object(review).to_string();
    Ok(output.encoded(StatusCode::CREATED, body.into()))
}

fn invalid(resource: &Resource, error: Error) -> Status {
    Status::invalid(&resource.group, &resource.kind.names().kind, "", &[error])
}

fn info(user: &User) -> Value {
    let mut info = Object::new();
    info.insert("username".to_owned(), user.name.clone().into());
    if !user.uid.is_empty() {
        info.insert("uid".to_owned(), user.uid.clone().into());
    }
    if !user.groups.is_empty() {
        info.insert("groups".to_owned(), user.groups.clone().into());
    }
    if !user.extra.is_empty() {
        info.insert("extra".to_owned(), json!(user.extra));
    }
    info.into()
}

fn texts(value: &Value) -> Vec<String> {
    tree::list(value)
        .iter()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

async fn token(request: &Request, spec: &Value) -> Result<Value, Status> {
    let token = tree::text(&spec["token"]);
    if token.is_empty() {
        return Err(Status::bad_request(
            "token is required for TokenReview in authentication",
        ));
    }
    let audiences = texts(&spec["audiences"]);
    let reviewed = authn::review(&request.core.authenticators, token, &audiences).await;
    Ok(match reviewed {
        Ok(user) => {
            let mut status = json!({"authenticated": true, "user": info(&user)});
            if !audiences.is_empty() {
                status["audiences"] = audiences.into();
            }
            status
        }
        Err(refused) => json!({"authenticated": false, "error": refused.to_string()}),
    })
}

/// The subject that a review names.
fn subject(resource: &Resource, spec: &Value) -> Result<User, Status> {
    let extra: BTreeMap<String, Vec<String>> = tree::entries(&spec["extra"])
        .map(|(key, values)| (key.to_string(), texts(values)))
        .collect();
    let user = User {
        name: tree::text(&spec["user"]).to_owned(),
        uid: tree::text(&spec["uid"]).to_owned(),
        groups: texts(&spec["groups"]),
        extra,
    };
    if user.name.is_empty() && user.groups.is_empty() {
        let path = Path::new("spec").child("user");
        let why = "at least one of user or group must be specified";
        return Err(invalid(resource, Error::invalid(&path, "", why)));
    }
    Ok(user)
}

fn local(resource: &Resource, spec: &Value, here: &str) -> Result<(), Status> {
    let asked = tree::text(&spec["resourceAttributes"]["namespace"]);
    if tree::is_set(&spec["nonResourceAttributes"]) {
        let path = Path::new("spec").child("nonResourceAttributes");
        let why = "disallowed on this kind of request";
        return Err(invalid(resource, Error::invalid(&path, "", why)));
    }
    if asked != here {
        return Err(Status::bad_request(format!(
            "spec.resourceAttributes.namespace must match namespace: {asked}"
        )));
    }
    Ok(())
}

async fn access(request: &Request, user: &User, spec: &Value) -> Result<Value, Status> {
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    if tree::is_set(resource) == tree::is_set(path) {
        let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        return Err(Status::bad_request(why));
    }
    let text = |key: &str| tree::text(&resource[key]);
    let is_resource = tree::is_set(resource);
    let attributes = Attributes {
        user,
        verb: if is_resource {
            text("verb")
        } else {
            tree::text(&path["verb"])
        },
        is_resource,
        group: text("group"),
        version: text("version"),
        resource: text("resource"),
        subresource: text("subresource"),
        namespace: text("namespace"),
        name: text("name"),
        path: tree::text(&path["path"]),
        field_selector: tree::text(&resource["fieldSelector"]["rawSelector"]),
        label_selector: tree::text(&resource["labelSelector"]["rawSelector"]),
    };
    let decision = authz::decide(&request.core.authorizers, &attributes).await;
    let (allowed, denied, reason) = match decision {
        Decision::Allow => {
            let reason = request.core.rbac.index().reason(&attributes);
            (
                true,
                false,
                reason
                    .filter(|_| !user.is_in(user::MASTERS))
                    .unwrap_or_default(),
            )
        }
        Decision::Deny(reason) => (false, true, reason),
        Decision::NoOpinion(reason) => (false, false, reason),
    };
    let mut status = Object::new();
    status.insert("allowed".to_owned(), allowed.into());
    if denied {
        status.insert("denied".to_owned(), true.into());
    }
    if !reason.is_empty() {
        status.insert("reason".to_owned(), reason.into());
    }
    Ok(status.into())
}

fn rules(request: &Request, namespace: &str) -> Value {
    let user = &request.user;
    let mut all = request.core.rbac.index().rules_for(user, namespace);
    if user.is_in(user::MASTERS) {
        let any = || vec!["*".to_owned()];
        all.push(Rule {
            verbs: any(),
            groups: any(),
            resources: any(),
            ..Rule::default()
        });
        all.push(Rule {
            verbs: any(),
            paths: any(),
            ..Rule::default()
        });
    }
    let (paths, resources): (Vec<Rule>, Vec<Rule>) =
        all.into_iter().partition(|rule| !rule.paths.is_empty());
    let resources: Vec<Value> = resources.iter().map(Rule::to_json).collect();
    let paths: Vec<Value> = paths.iter().map(Rule::to_json).collect();
    let is_node = authz::node_name(user).is_some();
    let mut status = json!({
        "resourceRules": resources,
        "nonResourceRules": paths,
        "incomplete": is_node,
    });
    if is_node {
        let why = "node authorizer does not support user rule resolution";
        status["evaluationError"] = why.into();
    }
    status
}
