//! Authenticates tokens with a webhook: posts a TokenReview to the server in a kubeconfig file, and caches the result.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use machinery::json::{Value, from_slice, json};
use webhook::{Call, Remote};

use super::{Authenticator, Credentials, Refused, bearer};
use crate::answers::Answers;
use request::User;

const TIMEOUT: Duration = Duration::from_secs(30);
const LARGEST_ANSWER: usize = 1 << 20;

/// The options `--authentication-token-webhook-*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenWebhook {
    /// A kubeconfig file.
    pub config_file: PathBuf,
    /// `v1` or `v1beta1`.
    pub version: String,
    pub cache_ttl: Duration,
}

pub(super) struct Webhook {
    remote: Remote,
    api_version: String,
    ttl: Duration,
    /// The audiences of this server. They apply to a token when the webhook's response has no audiences.
    own: Vec<String>,
    answers: Answers<Result<Option<User>, Refused>>,
}

impl Webhook {
    pub(super) fn new(options: &TokenWebhook, own: &[String]) -> Result<Self, String> {
        if !matches!(options.version.as_str(), "v1" | "v1beta1") {
            let version = &options.version;
            return Err(format!(
                "token webhook: version {version:?} is neither v1 nor v1beta1"
            ));
        }
        let path: &Path = &options.config_file;
        Ok(Self {
            remote: Remote::from_kubeconfig(path).map_err(|why| format!("token webhook: {why}"))?,
            api_version: format!("authentication.k8s.io/{}", options.version),
            ttl: options.cache_ttl,
            own: own.to_vec(),
            answers: Answers::new(),
        })
    }

    async fn review(&self, token: &str, audiences: &[String]) -> Result<Option<User>, Refused> {
        let wanted: Value = audiences.iter().map(String::as_str).collect();
        let mut spec = json!({"token": token});
        if !audiences.is_empty() {
            spec["audiences"] = wanted;
        }
        let review = json!({"kind": "TokenReview", "apiVersion": self.api_version.as_str(),
            "metadata": {}, "spec": spec, "status": {"user": {}}});
        let call = Call {
            body: review.to_string().into(),
            timeout: TIMEOUT,
            limit: LARGEST_ANSWER,
        };
        let answer = self.remote.post(call).await.map_err(|failure| {
            tracing::error!(error = failure.message, "token webhook failed");
            Refused(failure.message)
        })?;
        let answer: Value =
            from_slice(&answer.body).map_err(|error| Refused(format!("token webhook: {error}")))?;
        user_from_status(&answer["status"], audiences, &self.own)
    }
}

/// Converts the status of a TokenReview to a user. `Ok(None)` lets the next authenticator try.
fn user_from_status(
    status: &Value,
    wanted: &[String],
    own: &[String],
) -> Result<Option<User>, Refused> {
    let texts = |value: &Value| -> Vec<String> {
        let all = value.as_array().into_iter().flatten();
        all.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if status["authenticated"] != true {
        let error = text(&status["error"]);
        return if error.is_empty() {
            Ok(None)
        } else {
            Err(Refused(error))
        };
    }
    let meant = texts(&status["audiences"]);
    let meant = if meant.is_empty() { own } else { &meant };
    if !wanted.is_empty() && !wanted.iter().any(|one| meant.contains(one)) {
        return Ok(None);
    }
    let user = &status["user"];
    let extra = user["extra"].as_object().into_iter().flatten();
    let known = User::new(text(&user["username"]), texts(&user["groups"]));
    Ok(Some(User {
        uid: text(&user["uid"]),
        extra: extra
            .map(|(key, values)| (key.to_string(), texts(values)))
            .collect(),
        ..known
    }))
}

#[async_trait]
impl Authenticator for Webhook {
    fn name(&self) -> &'static str {
        "token-webhook"
    }

    async fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Option<User>, Refused> {
        match bearer::token(credentials.headers) {
            Some(token) => self.token(&token, None).await,
            None => Ok(None),
        }
    }

    async fn token(
        &self,
        token: &str,
        audiences: Option<&[String]>,
    ) -> Result<Option<User>, Refused> {
        let audiences = audiences.unwrap_or(&self.own);
        let question = format!("{token} {audiences:?}");
        if let Some(answer) = self.answers.get(&question, Instant::now()) {
            return answer;
        }
        let answer = self.review(token, audiences).await;
        if answer.is_ok() {
            let (answer, now) = (answer.clone(), Instant::now());
            self.answers.insert(&question, answer, now, self.ttl);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_a_user_or_none() {
        let own = ["api".to_owned()];
        let known = json!({"authenticated": true, "user": {"username": "eve", "uid": "7",
            "groups": ["a"], "extra": {"k": ["v"]}}});
        let user = user_from_status(&known, &own, &own).unwrap().unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("eve", "7"));
        assert_eq!(user.groups, ["a", "system:authenticated"]);
        assert_eq!(user.extra["k"], ["v"]);
        let mut elsewhere = known.clone();
        elsewhere["audiences"] = json!(["other"]);
        assert!(user_from_status(&elsewhere, &own, &own).unwrap().is_none());
        assert!(user_from_status(&json!({}), &own, &own).unwrap().is_none());
        let refused = user_from_status(&json!({"error": "expired"}), &own, &own);
        assert_eq!(refused.unwrap_err().0, "expired");
    }
}
