//! Authorizes with a webhook: posts a SubjectAccessReview to the server in a kubeconfig file, and caches the decision.

mod conditions;
pub(super) mod config;

use std::time::{Duration, Instant};

use async_trait::async_trait;
use machinery::json::{Key, Map, Value, from_slice, json};
use machinery::labels::Operator;
use webhook::{Call, Remote};

use super::{Attributes, Authorizer, Decision};
use crate::answers::Answers;
use conditions::Conditions;
use config::WebhookConfig;

const LARGEST_ANSWER: usize = 1 << 20;

pub(super) struct Webhook {
    name: String,
    remote: Remote,
    api_version: String,
    timeout: Duration,
    /// How long decisions are cached: those that allow, and all others.
    ttl: (Duration, Duration),
    /// Whether a request is denied when the webhook or a match condition fails; otherwise the next authorizer is
    /// called.
    denies_on_failure: bool,
    conditions: Conditions,
    answers: Answers<Decision>,
}

impl Webhook {
    /// Builds the webhook of a validated configuration.
    pub(super) fn new(name: &str, config: &WebhookConfig) -> Result<Self, String> {
        let path = config.kubeconfig();
        let remote = Remote::from_kubeconfig(path)
            .map_err(|why| format!("authorization webhook {name}: {why}"))?;
        Ok(Self {
            name: name.to_owned(),
            remote,
            api_version: format!("authorization.k8s.io/{}", config.review_version()),
            timeout: config.timeout(),
            ttl: config.ttls(),
            denies_on_failure: config.denies_on_failure(),
            conditions: config.conditions()?,
            answers: Answers::new(),
        })
    }

    fn failed(&self, why: &str) -> Decision {
        tracing::error!(
            webhook = self.name,
            error = why,
            "authorization webhook failed"
        );
        match self.denies_on_failure {
            true => Decision::Deny(String::new()),
            false => Decision::NoOpinion(String::new()),
        }
    }

    async fn send_review(&self, spec: &Value) -> Result<Decision, String> {
        let review = json!({"kind": "SubjectAccessReview", "apiVersion": self.api_version.as_str(),
            "metadata": {}, "spec": self.sent(spec), "status": {"allowed": false}});
        let call = Call {
            body: review.to_string().into(),
            timeout: self.timeout,
            limit: LARGEST_ANSWER,
        };
        let answer = self.remote.post(call).await;
        let answer = answer.map_err(|failure| failure.message)?;
        let answer: Value = from_slice(&answer.body).map_err(|error| error.to_string())?;
        Ok(decision_from_status(&answer["status"]))
    }

    /// Converts the spec to the webhook's API version: in v1beta1 the field `groups` is named `group`.
    fn sent(&self, spec: &Value) -> Value {
        let mut spec = spec.clone();
        if self.api_version.ends_with("/v1beta1")
            && let Some(fields) = spec.as_object_mut()
            && let Some(groups) = fields.shift_remove("groups")
        {
            fields.insert(Key::new("group"), groups);
        }
        spec
    }
}

fn decision_from_status(status: &Value) -> Decision {
    let reason = status["reason"].as_str().unwrap_or_default().to_owned();
    match (status["denied"] == true, status["allowed"] == true) {
        (true, _) => Decision::Deny(reason),
        (false, true) => Decision::Allow,
        (false, false) => Decision::NoOpinion(reason),
    }
}

#[async_trait]
impl Authorizer for Webhook {
    fn name(&self) -> &'static str {
        "webhook"
    }

    async fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        let spec = review_spec(attributes);
        match self.conditions.are_true(&spec) {
            Ok(true) => {}
            Ok(false) => return Decision::NoOpinion(String::new()),
            Err(why) => return self.failed(&why),
        }
        let question = spec.to_string();
        if let Some(decision) = self.answers.get(&question, Instant::now()) {
            return decision;
        }
        match self.send_review(&spec).await {
            Ok(decision) => {
                let time = match decision {
                    Decision::Allow => self.ttl.0,
                    Decision::Deny(_) | Decision::NoOpinion(_) => self.ttl.1,
                };
                let (kept, now) = (decision.clone(), Instant::now());
                self.answers.insert(&question, kept, now, time);
                decision
            }
            Err(why) => self.failed(&why),
        }
    }
}

/// The SubjectAccessReview spec of a request, without empty fields.
fn review_spec(attributes: &Attributes<'_>) -> Value {
    let mut spec = Map::default();
    let set = |to: &mut Map, key: &str, value: Value| {
        to.insert(Key::new(key), value);
    };
    if attributes.is_resource {
        let mut resource = Map::default();
        for (key, value) in [
            ("namespace", attributes.namespace),
            ("verb", attributes.verb),
            ("group", attributes.group),
            ("version", attributes.version),
            ("resource", attributes.resource),
            ("subresource", attributes.subresource),
            ("name", attributes.name),
        ] {
            if !value.is_empty() {
                set(&mut resource, key, value.into());
            }
        }
        for (key, requirements) in [
            ("fieldSelector", field_requirements(attributes)),
            ("labelSelector", label_requirements(attributes)),
        ] {
            if !requirements.is_empty() {
                let requirements = Value::Array(requirements);
                set(&mut resource, key, json!({"requirements": requirements}));
            }
        }
        set(&mut spec, "resourceAttributes", Value::Object(resource));
    } else {
        let path = json!({"path": attributes.path, "verb": attributes.verb});
        set(&mut spec, "nonResourceAttributes", path);
    }
    let user = attributes.user;
    set(&mut spec, "user", user.name.as_str().into());
    let texts = |all: &[String]| all.iter().map(String::as_str).collect::<Value>();
    if !user.groups.is_empty() {
        set(&mut spec, "groups", texts(&user.groups));
    }
    if !user.extra.is_empty() {
        let mut extra = Map::default();
        for (key, values) in &user.extra {
            set(&mut extra, key, texts(values));
        }
        set(&mut spec, "extra", Value::Object(extra));
    }
    if !user.uid.is_empty() {
        set(&mut spec, "uid", user.uid.as_str().into());
    }
    Value::Object(spec)
}

fn field_requirements(attributes: &Attributes<'_>) -> Vec<Value> {
    let Ok(selector) = machinery::fields::Selector::parse(attributes.field_selector) else {
        return Vec::new();
    };
    let terms = selector.terms().iter();
    terms
        .map(|term| {
            let operator = if term.equal { "In" } else { "NotIn" };
            json!({"key": term.field.as_str(), "operator": operator, "values": [term.value.as_str()]})
        })
        .collect()
}

fn label_requirements(attributes: &Attributes<'_>) -> Vec<Value> {
    let Ok(selector) = machinery::labels::Selector::parse(attributes.label_selector) else {
        return Vec::new();
    };
    let requirements = selector.requirements().iter();
    requirements
        .filter_map(|one| {
            let operator = match one.operator {
                Operator::Equals | Operator::DoubleEquals | Operator::In => "In",
                Operator::NotEquals | Operator::NotIn => "NotIn",
                Operator::Exists => "Exists",
                Operator::DoesNotExist => "DoesNotExist",
                // A review cannot express this requirement. Without it the review covers more objects, so a
                // webhook that allows it would also allow the request.
                _ => return None,
            };
            let mut shown = json!({"key": one.key.as_str(), "operator": operator});
            if !one.values.is_empty() {
                shown["values"] = one.values.iter().map(String::as_str).collect();
            }
            Some(shown)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use request::User;

    #[test]
    fn a_review_says_what_is_asked_for() {
        let user = User::new("eve", ["a"]);
        let mut attributes = Attributes {
            user: &user,
            verb: "list",
            is_resource: true,
            group: "apps",
            version: "v1",
            resource: "deployments",
            subresource: "",
            namespace: "default",
            name: "",
            path: "/apis/apps/v1/namespaces/default/deployments",
            field_selector: "metadata.name=x",
            label_selector: "app in (a,b),!gone",
        };
        assert_eq!(
            review_spec(&attributes).to_string(),
            r#"{"resourceAttributes":{"namespace":"default","verb":"list","group":"apps","version":"v1","resource":"deployments","fieldSelector":{"requirements":[{"key":"metadata.name","operator":"In","values":["x"]}]},"labelSelector":{"requirements":[{"key":"app","operator":"In","values":["a","b"]},{"key":"gone","operator":"DoesNotExist"}]}},"user":"eve","groups":["a","system:authenticated"]}"#
        );
        attributes.is_resource = false;
        attributes.path = "/healthz";
        attributes.verb = "get";
        assert_eq!(
            review_spec(&attributes).to_string(),
            r#"{"nonResourceAttributes":{"path":"/healthz","verb":"get"},"user":"eve","groups":["a","system:authenticated"]}"#
        );
    }

    #[test]
    fn denied_counts_more_than_allowed() {
        for (status, expected) in [
            (json!({"allowed": true}), Decision::Allow),
            (
                json!({"allowed": true, "denied": true, "reason": "r"}),
                Decision::Deny("r".to_owned()),
            ),
            (
                json!({"allowed": false, "reason": "r"}),
                Decision::NoOpinion("r".to_owned()),
            ),
            (json!(null), Decision::NoOpinion(String::new())),
        ] {
            assert_eq!(decision_from_status(&status), expected);
        }
    }
}
