//! Reviews, answered in the status of the created object and never stored: SubjectAccessReview and
//! its variants, SelfSubjectRulesReview, TokenReview, SelfSubjectReview.

use std::{collections::BTreeMap, sync::Arc};

use http::StatusCode;
use kinds::reviews::access::{self, About};
use kinds::{Answers, tree};
use machinery::json::json;
use machinery::{Object, Status, Value, apply};
use stdx::Clock;

use super::{
    body::{self, Verb, WriteOptions},
    read,
};
use crate::{
    Reader, Registry, Resource, TokenIssuer, User,
    admission::{Attributes, Effects, Operation, RequestOptions},
    media, meta,
    pipeline::Request,
    respond::{self, Answer},
    user,
    write::{AdmissionChain, Versions, owners},
};
use auth::{
    authn::{self, Authenticator},
    authz::{self, Authorizer, Decision, Rbac, Rule},
};

/// What reviews are answered from.
pub(crate) struct Reviews {
    pub(crate) reader: Reader,
    pub(crate) registry: Arc<Registry>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) admission: Arc<AdmissionChain>,
    pub(crate) authenticators: Arc<[Arc<dyn Authenticator>]>,
    pub(crate) authorizers: Arc<[Arc<dyn Authorizer>]>,
    /// The authorizer that can also list what a user may do.
    pub(crate) rbac: Rbac,
    /// Whether authorizers beyond those of every cluster are configured.
    pub(crate) has_webhook_authorizers: bool,
    pub(crate) issuer: Option<Arc<dyn TokenIssuer>>,
}

/// Answers a review.
pub(crate) async fn serve(reviews: &Reviews, request: Request, resource: Arc<Resource>) -> Answer {
    let options = WriteOptions::parse(&request, Verb::Create)?;
    media::as_object(&request.parts.headers, resource.schema.is_some())?;
    let output = read::output(&reviews.clock, &request, &resource)?;
    let body = body::Received::from_request(&request).await?;
    let decoded = body.audited_object(&request, &resource, options.validation)?;
    let (mut review, mut warnings) = (decoded.object, decoded.warnings);
    warnings.extend(prepare_metadata(reviews, &resource, &options, &mut review));
    let effects = request.effects();
    let asked = ReviewRequest {
        reviews,
        request: &request,
        resource: &resource,
        options: &options.given,
        effects: &effects,
    };
    let answer = asked.status(&mut review).await;
    warnings.extend(effects.take_warnings());
    let status = answer.map_err(|status| status.warned(warnings.clone()))?;
    // Self reviews return only the answer.
    match resource.kind.server_side().answers {
        Answers::Requester => {
            let now = meta::time(reviews.clock.now());
            review.insert("metadata".to_owned(), json!({"creationTimestamp": now}));
        }
        Answers::Rules => {
            review.insert("metadata".to_owned(), json!({}));
            review.insert("spec".to_owned(), json!({}));
        }
        _ => {}
    }
    review.insert("status".to_owned(), status);
    let body = machinery::encode::object(resource.schema, &review).bytes;
    let response = output.encoded(StatusCode::CREATED, body.into());
    Ok(respond::warn(response, &warnings))
}

/// Prepares the metadata as for every created object: system fields are reset, owner references
/// deduplicated, managed fields recorded. Returns warnings.
fn prepare_metadata(
    reviews: &Reviews,
    resource: &Arc<Resource>,
    options: &WriteOptions,
    review: &mut Object,
) -> Vec<String> {
    meta::forget_system(review);
    let effects = Effects::default();
    owners::without_duplicates(review, owners::Stage::Request, &effects);
    let writer = apply::Writer {
        manager: &options.field_manager,
        api_version: &resource.api_version,
        subresource: "",
        now: &meta::time(reviews.clock.now()),
        versions: &Versions::new(resource, reviews.registry.kept_table()),
        reset: &[],
    };
    apply::track(None, review, &writer);
    effects.take_warnings()
}

/// A review, and what admission sees of it.
struct ReviewRequest<'a> {
    reviews: &'a Reviews,
    request: &'a Request,
    resource: &'a Resource,
    options: &'a RequestOptions,
    effects: &'a Effects,
}

impl ReviewRequest<'_> {
    fn namespace(&self) -> &str {
        let subject = self.request.info.resource.as_ref();
        let here = subject.map_or("", |subject| subject.namespace.as_str());
        if self.resource.namespaced() { here } else { "" }
    }

    /// A review is admitted as the object it is posted as.
    fn attributes<'a>(&'a self, name: &'a str) -> Attributes<'a> {
        Attributes {
            user: &self.request.user,
            peer: self.request.peer,
            operation: Operation::Create,
            group: &self.resource.group,
            version: &self.resource.version,
            api_version: &self.resource.api_version,
            kind: &self.resource.kind.names().kind,
            resource: &self.resource.plural,
            subresource: "",
            namespace: self.namespace(),
            name,
            generate_name: "",
            dry_run: self.options.dry_run,
            options: self.options,
            old: None,
            reader: &self.reviews.reader,
            effects: self.effects,
        }
    }

    async fn status(&self, review: &mut Object) -> Result<Value, Status> {
        meta::ensure_namespace_matches(review, self.namespace())?;
        let chain = &self.reviews.admission;
        let name = meta::text(review, "name").to_owned();
        chain.mutate(&self.attributes(&name), review).await?;
        meta::ensure_namespace_matches(review, self.namespace())?;
        validate(self.resource, review)?;
        chain
            .validate(&self.attributes(&name), Some(review))
            .await?;
        review_status(self.reviews, self.request, self.resource, review).await
    }
}

fn validate(resource: &Resource, review: &Object) -> Result<(), Status> {
    if let Answers::Access(about) = resource.kind.server_side().answers {
        let errors = access::validate(review, about);
        if !errors.is_empty() {
            // Without a kind, as upstream: its internal objects have none.
            return Err(Status::invalid(&resource.group, "", "", &errors));
        }
    }
    Ok(())
}

async fn review_status(
    reviews: &Reviews,
    request: &Request,
    resource: &Resource,
    review: &Object,
) -> Result<Value, Status> {
    let spec = tree::get(review, "spec").clone();
    Ok(match resource.kind.server_side().answers {
        Answers::Requester => json!({ "userInfo": user_info(&request.user) }),
        Answers::Token => {
            let sent = tree::get(review, "status").clone();
            merge_status(sent, token_status(reviews, &spec).await?)
        }
        Answers::Access(About::Requester) => access_status(reviews, &request.user, &spec).await,
        Answers::Rules => match tree::text(&spec["namespace"]) {
            "" => return Err(Status::bad_request("no namespace on request")),
            namespace => rules_status(reviews, &request.user, namespace),
        },
        Answers::Access(About::AnyUser | About::AnyUserInNamespace) => {
            access_status(reviews, &reviewed_user(&spec), &spec).await
        }
        _ => return Err(Status::method_not_allowed()),
    })
}

fn user_info(user: &User) -> Value {
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

async fn token_status(reviews: &Reviews, spec: &Value) -> Result<Value, Status> {
    let token = tree::text(&spec["token"]);
    if token.is_empty() {
        return Err(Status::bad_request(
            "token is required for TokenReview in authentication",
        ));
    }
    let asked = texts(&spec["audiences"]);
    let issuer = reviews.issuer.as_ref();
    let own = issuer.map_or(&[][..], |issuer| issuer.audiences());
    let wanted = if asked.is_empty() { own } else { &asked };
    let reviewed = authn::review(&reviews.authenticators, token, &asked).await;
    // Service account tokens state their audiences; all other tokens are for this server.
    let verified = issuer.and_then(|issuer| issuer.verify(token, Some(&asked))?.ok());
    let meant = verified.as_ref().map_or(own, |claims| &claims.aud);
    let audiences: Vec<String> = wanted
        .iter()
        .filter(|a| meant.contains(a))
        .cloned()
        .collect();
    Ok(match reviewed {
        Ok(_) if audiences.is_empty() && !asked.is_empty() => {
            refused_status("invalid bearer token")
        }
        Ok(user) => {
            let mut status = json!({"authenticated": true, "user": user_info(&user)});
            if !audiences.is_empty() {
                status["audiences"] = audiences.into();
            }
            status
        }
        Err(why) => refused_status(&why.to_string()),
    })
}

/// Merges the answer into the status that the client sent: upstream keeps fields it does not set.
fn merge_status(sent: Value, answer: Value) -> Value {
    let mut merged = sent.as_object().cloned().unwrap_or_default();
    let is_known = answer["authenticated"] == true;
    merged.shift_remove("authenticated");
    if is_known {
        merged.shift_remove("user");
        merged.shift_remove("audiences");
    }
    for (key, value) in tree::entries(&answer) {
        if is_known || key != "user" || !merged.contains_key("user") {
            merged.insert(key.clone(), value.clone());
        }
    }
    merged.into()
}

fn refused_status(why: &str) -> Value {
    json!({"user": {}, "error": why})
}

/// The user that a review names.
fn reviewed_user(spec: &Value) -> User {
    let extra: BTreeMap<String, Vec<String>> = tree::entries(&spec["extra"])
        .map(|(key, values)| (key.to_string(), texts(values)))
        .collect();
    User {
        name: tree::text(&spec["user"]).to_owned(),
        uid: tree::text(&spec["uid"]).to_owned(),
        groups: texts(&spec["groups"]),
        extra,
    }
}

/// The message about selectors of a review that were ignored.
fn ignored_selectors(resource: &Value) -> String {
    let mut out = Vec::new();
    let (fields, fields_cut) = access::field_selector(&resource["fieldSelector"]);
    let (labels, labels_cut) = access::label_selector(&resource["labelSelector"]);
    let fields_bad = machinery::fields::Selector::parse(&fields).is_err();
    let labels_bad = machinery::labels::Selector::parse(&labels).is_err();
    for (name, text, is_cut, is_bad) in [
        ("fieldSelector", fields, fields_cut, fields_bad),
        ("labelSelector", labels, labels_cut, labels_bad),
    ] {
        if is_cut || is_bad {
            let part = if is_bad || text.is_empty() {
                ""
            } else {
                "partially "
            };
            out.push(format!(
                "spec.resourceAttributes.{name} {part}ignored due to parse error"
            ));
        }
    }
    out.join("; ")
}

async fn access_status(reviews: &Reviews, user: &User, spec: &Value) -> Value {
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let (field_selector, _) = access::field_selector(&resource["fieldSelector"]);
    let (label_selector, _) = access::label_selector(&resource["labelSelector"]);
    let text = |key: &str| tree::text(&resource[key]);
    let is_resource = tree::is_set(resource);
    let attributes = authz::Attributes {
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
        field_selector: &field_selector,
        label_selector: &label_selector,
    };
    let decision = authz::decide(&reviews.authorizers, &attributes).await;
    let (allowed, denied, reason) = match decision {
        Decision::Allow => {
            let reason = reviews.rbac.index().reason(&attributes);
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
    let ignored = ignored_selectors(resource);
    if !ignored.is_empty() {
        status.insert("evaluationError".to_owned(), ignored.into());
    }
    status.into()
}

fn rules_status(reviews: &Reviews, user: &User, namespace: &str) -> Value {
    let all = reviews.rbac.index().rules_for(user, namespace);
    let (paths, resources): (Vec<Rule>, Vec<Rule>) =
        all.into_iter().partition(|rule| !rule.paths.is_empty());
    let resources: Vec<Value> = resources.iter().map(Rule::to_json).collect();
    let paths: Vec<Value> = paths.iter().map(Rule::to_json).collect();
    let mut incomplete = Vec::new();
    if authz::node_name(user).is_some() {
        incomplete.push("node authorizer does not support user rule resolution");
    }
    if reviews.has_webhook_authorizers {
        incomplete.push("webhook authorizer does not support user rule resolution");
    }
    let mut status = json!({
        "resourceRules": resources,
        "nonResourceRules": paths,
        "incomplete": !incomplete.is_empty(),
    });
    if !incomplete.is_empty() {
        status["evaluationError"] = incomplete.join(", ").into();
    }
    status
}
