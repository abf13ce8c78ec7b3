//! `serviceaccounts/token`, and the OIDC discovery documents for verifying such tokens.

use std::{sync::Arc, time::Duration};

use http::{HeaderValue, header};
use kinds::tree;
use machinery::json::json;
use machinery::{
    Object, Status, Value, apply,
    field::{Error, Path},
};

use super::{
    body::{self, Verb, WriteOptions},
    objects,
};
use crate::{
    Reader, Resource, TokenIssuer, TokenRequest, convert, failure, media, meta,
    pipeline::Request,
    respond::{self, Answer},
    write::{Write, WritePath},
};

const VERSION: &str = "authentication.k8s.io/v1";
const KIND: &str = "TokenRequest";
const SHORTEST: i64 = 600;
const USUAL: i64 = 3600;

/// Serves `/.well-known/openid-configuration` and `/openid/v1/jwks`. Both may be cached.
pub(crate) fn openid(
    issuer: Option<&Arc<dyn TokenIssuer>>,
    request: &Request,
    path: &str,
) -> Option<Answer> {
    let issuer = issuer?;
    let (media, body) = match path {
        "/.well-known/openid-configuration" => {
            (respond::JSON, issuer.openid_configuration().to_string())
        }
        "/openid/v1/jwks" => ("application/jwk-set+json", issuer.jwks().to_string()),
        _ => return None,
    };
    let accepted = media::takes(&request.parts.headers, media);
    Some(accepted.map(|()| {
        let mut response = respond::bytes(http::StatusCode::OK, media, body);
        let hour = HeaderValue::from_static("public, max-age=3600");
        response.headers_mut().insert(header::CACHE_CONTROL, hour);
        response
    }))
}

/// A uid in the TokenRequest is a precondition on the account.
fn check_uid(asked: &Value, account: &Object, name: &str) -> Result<(), Status> {
    let wanted = asked["metadata"]["uid"].as_str().unwrap_or_default();
    let uid = meta::text(account, "uid");
    if wanted.is_empty() || wanted == uid {
        return Ok(());
    }
    let why = format!(
        "the UID in the token request ({wanted}) does not match the UID of the service account ({uid})"
    );
    Err(Status::conflict(
        "authentication.k8s.io",
        "TokenRequest",
        name,
        &why,
    ))
}

/// Issues a token for a service account.
pub(crate) async fn request(
    issuer: Option<&Arc<dyn TokenIssuer>>,
    writes: &Arc<WritePath>,
    request: Request,
    resource: Arc<Resource>,
) -> Answer {
    let options = WriteOptions::parse(&request, Verb::Create)?;
    let media = media::Body::from_headers(&request.parts.headers)?;
    let bytes = body::read(&request).await?;
    let part = &convert::TOKEN_REQUEST;
    let asked = convert::decode_part(part, media, &bytes, options.validation)?;
    let (asked, warnings) = (asked.object, asked.warnings);
    let write = objects::requested_write(writes, &request, &resource, &options);
    let issued = issue(issuer, &write, &resource, asked).await;
    let answer = issued.map_err(|status| status.warned(warnings.clone()))?;
    let answer = answer.to_string();
    let response = respond::line(http::StatusCode::CREATED, answer.as_bytes());
    Ok(respond::warn(response, &warnings))
}

/// The account named in the body must be the one of the path.
fn check_place(write: &Write, asked: &mut Object) -> Result<(), Status> {
    write.ensure_namespace_matches(asked)?;
    let name = meta::text(asked, "name");
    if name.is_empty() || name == write.name {
        return Ok(());
    }
    let at = Path::new("metadata.name");
    let error = Error::invalid(
        &at,
        name,
        "must match the service account name if specified",
    );
    Err(refuse(&write.name, error))
}

fn refuse(name: &str, error: Error) -> Status {
    Status::invalid("authentication.k8s.io", "TokenRequest", name, &[error])
}

async fn issue(
    issuer: Option<&Arc<dyn TokenIssuer>>,
    write: &Write,
    resource: &Resource,
    mut asked: Object,
) -> Result<Value, Status> {
    // Plugins may shorten a token's life or restrict its audiences.
    default_expiration(&mut asked);
    write.mutate_part(VERSION, KIND, &mut asked).await?;
    check_place(write, &mut asked)?;
    let key = resource.key(&write.namespace, &write.name);
    let read = write.path.store.get(&key, store::Freshness::Newest).await;
    let (_, account) = read.map_err(failure::of_store)?;
    let account = account
        .ok_or_else(|| write.not_found(&write.name))?
        .object
        .parse();
    let issuer = issuer.ok_or_else(|| Status::internal("this server signs no tokens"))?;
    let sent = Value::Object(asked.clone());
    check_uid(&sent, &account, &write.name)?;
    complete(
        &mut asked,
        write,
        meta::text(&account, "uid"),
        issuer.audiences(),
    );
    let seconds = seconds(tree::get(&asked, "spec"))?;
    write.validate_part(VERSION, KIND, &asked).await?;
    let asked = Value::Object(asked);
    let bound = bound(&write.path.reader, &write.namespace, &write.name, &asked).await?;
    let audiences = asked["spec"]["audiences"].as_array().into_iter().flatten();
    let audiences = audiences
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let issued = issuer.issue(&TokenRequest {
        namespace: &write.namespace,
        service_account: &write.name,
        uid: meta::text(&account, "uid"),
        audiences,
        expires_in: Duration::from_secs(seconds as u64),
        bound: bound
            .as_ref()
            .map(|bound| (bound.kind.as_str(), bound.name.as_str(), bound.uid.as_str())),
        node: bound
            .as_ref()
            .and_then(|bound| bound.node.as_ref())
            .map(|(n, u)| (n.as_str(), u.as_str())),
    });
    let issued = issued.map_err(Status::internal)?;
    let mut spec = json!({"audiences": issued.audiences, "expirationSeconds": seconds});
    spec["boundObjectRef"] = asked["spec"]["boundObjectRef"].clone();
    let answer = json!({
        "kind": KIND,
        "apiVersion": VERSION,
        "metadata": metadata(write, sent, meta::text(&account, "uid"), seconds),
        "spec": spec,
        "status": {"token": issued.token, "expirationTimestamp": meta::time(issued.expires)},
    });
    Ok(answer)
}

/// The metadata of the response: as sent, with the account's name and namespace, and managed
/// fields.
fn metadata(write: &Write, asked: Value, uid: &str, seconds: i64) -> Value {
    let now = meta::time(write.path.clock.now());
    let mut asked = asked.as_object().cloned().unwrap_or_default();
    tree::child_or_new(&mut asked, "spec").insert("expirationSeconds", seconds.into());
    meta::forget_system(&mut asked);
    meta::set(&mut asked, "name", write.name.clone());
    meta::set(&mut asked, "namespace", write.namespace.clone());
    meta::set(&mut asked, "uid", uid.to_owned());
    meta::set(&mut asked, "creationTimestamp", now.clone());
    let api_version = VERSION;
    let root = apply::typed("authentication/v1.TokenRequest").unwrap_or(apply::Root::Unknown);
    let writer = apply::Writer {
        manager: &write.field_manager,
        api_version,
        subresource: "token",
        now: &now,
        versions: &apply::OneVersion { api_version, root },
        reset: &[],
    };
    apply::track(None, &mut asked, &writer);
    asked.shift_remove("metadata").unwrap_or_default()
}

/// The default of decoding.
fn default_expiration(asked: &mut Object) {
    let spec = tree::child_or_new(asked, "spec");
    if !spec.get("expirationSeconds").is_some_and(tree::is_set) {
        spec.insert("expirationSeconds", USUAL.into());
    }
}

/// What validating plugins see and no client needs to send: the account and this server's
/// audiences.
fn complete(asked: &mut Object, write: &Write, uid: &str, audiences: &[String]) {
    meta::set(asked, "name", write.name.clone());
    meta::set(asked, "namespace", write.namespace.clone());
    meta::set(asked, "uid", uid.to_owned());
    asked.shift_remove("status");
    let spec = tree::child_or_new(asked, "spec");
    if spec
        .get("audiences")
        .is_none_or(|known| tree::list(known).is_empty())
    {
        spec.insert("audiences", audiences.to_vec().into());
    }
}

fn seconds(spec: &Value) -> Result<i64, Status> {
    let seconds = spec["expirationSeconds"].as_i64().unwrap_or(USUAL);
    let path = Path::new("spec.expirationSeconds");
    let why = match seconds {
        short if short < SHORTEST => "may not specify a duration less than 10 minutes",
        long if long > 1 << 32 => "may not specify a duration larger than 2^32 seconds",
        _ => return Ok(seconds),
    };
    Err(refuse("", Error::invalid(&path, seconds, why)))
}

/// The object that a token is bound to.
struct Bound {
    kind: String,
    name: String,
    uid: String,
    node: Option<(String, String)>,
}

async fn bound(
    reader: &Reader,
    namespace: &str,
    account: &str,
    asked: &Value,
) -> Result<Option<Bound>, Status> {
    let reference = &asked["spec"]["boundObjectRef"];
    if reference.is_null() {
        return Ok(None);
    }
    let [kind, name, uid] =
        ["kind", "name", "uid"].map(|key| reference[key].as_str().unwrap_or_default().to_owned());
    let version = reference["apiVersion"].as_str().unwrap_or_default();
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let (plural, place) = match (group, kind.as_str()) {
        ("", "Pod") => ("pods", namespace),
        ("", "Secret") => ("secrets", namespace),
        ("", "Node") => ("nodes", ""),
        _ => {
            let why = format!("cannot bind token to object of type {group}/{version}, Kind={kind}");
            return Err(Status::bad_request(why));
        }
    };
    if name.is_empty() {
        return Err(Status::bad_request("Name parameter required."));
    }
    let found = reader.get("", plural, place, &name).await?;
    let object = found
        .ok_or_else(|| Status::not_found("", plural, &name))?
        .parse();
    if kind == "Pod" && meta::spec_text(&object, "serviceAccountName") != account {
        let why = format!(
            "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
        );
        return Err(Status::bad_request(why));
    }
    let own = meta::text(&object, "uid");
    if !uid.is_empty() && uid != own {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return Err(Status::conflict("", &kind, &name, &why));
    }
    let node = meta::spec_text(&object, "nodeName");
    let node = if kind == "Pod" && !node.is_empty() {
        let found = reader.get("", "nodes", "", node).await?;
        let uid = found.map(|found| meta::text(&found.parse(), "uid").to_owned());
        Some((node.to_owned(), uid.unwrap_or_default()))
    } else {
        None
    };
    Ok(Some(Bound {
        kind,
        uid: own.to_owned(),
        name,
        node,
    }))
}
