//! The `AuthorizationConfiguration` in the file of `--authorization-config`: authorizers in the order in which they are
//! called. Node and RBAC are required, since the cluster's own components depend on them.

use std::{
    collections::BTreeSet,
    path::{Path as FilePath, PathBuf},
    time::Duration,
};

use machinery::field::{Error, Errors, Path};
use machinery::{duration, format};
use serde::Deserialize;

use super::conditions::Conditions;

const VERSIONS: &[&str] = &[
    "apiserver.config.k8s.io/v1",
    "apiserver.config.k8s.io/v1beta1",
    "apiserver.config.k8s.io/v1alpha1",
];
const TYPES: &[&str] = &["Node", "RBAC", "Webhook"];
const CONDITIONS_MAX: usize = 64;
const LONGEST_TIMEOUT: f64 = 30.0;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(in crate::authz) struct AuthorizationConfiguration {
    api_version: String,
    kind: String,
    pub(in crate::authz) authorizers: Vec<AuthorizerConfig>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(in crate::authz) struct AuthorizerConfig {
    #[serde(rename = "type")]
    pub(in crate::authz) kind: String,
    pub(in crate::authz) name: String,
    pub(in crate::authz) webhook: Option<WebhookConfig>,
}

/// The configuration of a webhook, as in the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(in crate::authz) struct WebhookConfig {
    #[serde(rename = "authorizedTTL")]
    authorized_ttl: String,
    #[serde(rename = "unauthorizedTTL")]
    unauthorized_ttl: String,
    cache_authorized_requests: bool,
    cache_unauthorized_requests: bool,
    timeout: String,
    subject_access_review_version: String,
    match_condition_subject_access_review_version: String,
    failure_policy: String,
    connection_info: ConnectionInfo,
    match_conditions: Vec<MatchCondition>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ConnectionInfo {
    #[serde(rename = "type")]
    kind: String,
    kube_config_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct MatchCondition {
    expression: String,
}

impl Default for WebhookConfig {
    fn default() -> Self {
        Self {
            authorized_ttl: "5m".to_owned(),
            unauthorized_ttl: "30s".to_owned(),
            cache_authorized_requests: true,
            cache_unauthorized_requests: true,
            timeout: String::new(),
            subject_access_review_version: String::new(),
            match_condition_subject_access_review_version: String::new(),
            failure_policy: String::new(),
            connection_info: ConnectionInfo::default(),
            match_conditions: Vec::new(),
        }
    }
}

impl AuthorizationConfiguration {
    pub(in crate::authz) fn parse(text: &str) -> Result<Self, String> {
        let config: Self = machinery::yaml::from_str(text)?;
        if config.kind != "AuthorizationConfiguration"
            || !VERSIONS.contains(&config.api_version.as_str())
        {
            return Err(format!(
                "expected an AuthorizationConfiguration of {}, not a {:?} of {:?}",
                VERSIONS[0], config.kind, config.api_version
            ));
        }
        let errors = config.validate();
        match errors.is_empty() {
            true => Ok(config),
            false => Err(machinery::field::aggregate(&errors)),
        }
    }

    fn validate(&self) -> Errors {
        let (mut errors, root) = (Errors::new(), Path::new("authorizers"));
        let (mut types, mut names) = (BTreeSet::new(), BTreeSet::new());
        for (i, one) in self.authorizers.iter().enumerate() {
            let path = root.index(i);
            let at = path.child("type");
            match one.kind.as_str() {
                "" => {
                    errors.push(Error::required(&at, ""));
                    continue;
                }
                kind if !TYPES.contains(&kind) => {
                    errors.push(Error::not_supported(&at, kind, TYPES));
                    continue;
                }
                kind if !types.insert(kind) && kind != "Webhook" => {
                    errors.push(Error::duplicate(&at, kind));
                    continue;
                }
                _ => {}
            }
            check_name(
                &one.name,
                !names.insert(&one.name),
                &path.child("name"),
                &mut errors,
            );
            let at = path.child("webhook");
            match (&one.webhook, one.kind == "Webhook") {
                (None, true) => errors.push(Error::required(&at, "required when type=Webhook")),
                (Some(webhook), true) => webhook.validate(&path, &mut errors),
                (Some(_), false) => {
                    let why = "may only be specified when type=Webhook";
                    errors.push(Error::invalid(&at, "non-null", why));
                }
                (None, false) => {}
            }
        }
        for kind in ["Node", "RBAC"] {
            if !types.contains(kind) {
                let why = format!("the components of the cluster need the type {kind}");
                errors.push(Error::required(&root, why));
            }
        }
        errors
    }
}

fn check_name(name: &str, again: bool, path: &Path, errors: &mut Errors) {
    if name.is_empty() {
        return errors.push(Error::required(path, ""));
    }
    if again {
        return errors.push(Error::duplicate(path, name));
    }
    let wrong = format::dns1123_subdomain(name);
    if !wrong.is_empty() {
        let why = format!("authorizer name is invalid: {}", wrong.join(", "));
        errors.push(Error::invalid(path, name, why));
    }
}

fn check_duration(text: &str, longest: Option<f64>, path: &Path, errors: &mut Errors) {
    let wrong = match longest {
        Some(_) => "must be > 0s and <= 30s",
        None => "must be > 0s",
    };
    match duration::parse(text) {
        _ if text.is_empty() => errors.push(Error::required(path, "")),
        Ok(0.0) => errors.push(Error::required(path, "")),
        Ok(seconds) if seconds < 0.0 || longest.is_some_and(|most| seconds > most) => {
            errors.push(Error::invalid(path, text, wrong));
        }
        Ok(_) => {}
        Err(why) => errors.push(Error::invalid(path, text, why)),
    }
}

impl WebhookConfig {
    /// The configuration of the webhook that flags describe.
    pub(in crate::authz) fn from_flags(
        kubeconfig: PathBuf,
        version: &str,
        ttls: (Duration, Duration),
    ) -> Self {
        let seconds = |time: Duration| format!("{}ms", time.as_millis());
        Self {
            authorized_ttl: seconds(ttls.0),
            unauthorized_ttl: seconds(ttls.1),
            timeout: "30s".to_owned(),
            subject_access_review_version: version.to_owned(),
            failure_policy: "NoOpinion".to_owned(),
            connection_info: ConnectionInfo {
                kind: "KubeConfigFile".to_owned(),
                kube_config_file: Some(kubeconfig),
            },
            ..Self::default()
        }
    }

    fn validate(&self, path: &Path, errors: &mut Errors) {
        let at = path.child("timeout");
        check_duration(&self.timeout, Some(LONGEST_TIMEOUT), &at, errors);
        let at = path.child("authorizedTTL");
        check_duration(&self.authorized_ttl, None, &at, errors);
        let at = path.child("unauthorizedTTL");
        check_duration(&self.unauthorized_ttl, None, &at, errors);
        let known = |value: &str, all: &[&str], at: &Path, errors: &mut Errors| match value {
            "" => errors.push(Error::required(at, "")),
            value if !all.contains(&value) => errors.push(Error::not_supported(at, value, all)),
            _ => {}
        };
        let at = path.child("subjectAccessReviewVersion");
        known(
            &self.subject_access_review_version,
            &["v1", "v1beta1"],
            &at,
            errors,
        );
        let at = path.child("matchConditionSubjectAccessReviewVersion");
        match self.match_condition_subject_access_review_version.as_str() {
            "" if !self.match_conditions.is_empty() => {
                let why = "required if match conditions are specified";
                errors.push(Error::required(&at, why));
            }
            "" | "v1" => {}
            other => errors.push(Error::not_supported(&at, other, &["v1"])),
        }
        let at = path.child("failurePolicy");
        known(&self.failure_policy, &["NoOpinion", "Deny"], &at, errors);
        self.connection_info
            .validate(&path.child("connectionInfo"), errors);
        self.validate_conditions(&path.child("matchConditions"), errors);
    }

    fn validate_conditions(&self, path: &Path, errors: &mut Errors) {
        if self.match_conditions.len() > CONDITIONS_MAX {
            let count = self.match_conditions.len();
            return errors.push(Error::too_many(path, count, CONDITIONS_MAX));
        }
        let mut seen = BTreeSet::new();
        for (i, condition) in self.match_conditions.iter().enumerate() {
            let path = path.index(i);
            let path = path.child("expression");
            let text = condition.expression.trim();
            if text.is_empty() {
                errors.push(Error::required(&path, ""));
            } else if !seen.insert(text) {
                errors.push(Error::duplicate(&path, text));
            } else if let Err(why) = Conditions::default().push(text) {
                errors.push(Error::invalid(&path, text, why));
            }
        }
    }

    pub(super) fn kubeconfig(&self) -> &FilePath {
        let path = self.connection_info.kube_config_file.as_deref();
        path.unwrap_or_else(|| FilePath::new(""))
    }

    pub(super) fn review_version(&self) -> &str {
        &self.subject_access_review_version
    }

    pub(super) fn timeout(&self) -> Duration {
        seconds(&self.timeout)
    }

    /// How long decisions are cached: those that allow, and all others. Zero disables the cache.
    pub(super) fn ttls(&self) -> (Duration, Duration) {
        let kept = |caches: bool, text: &str| match caches {
            true => seconds(text),
            false => Duration::ZERO,
        };
        (
            kept(self.cache_authorized_requests, &self.authorized_ttl),
            kept(self.cache_unauthorized_requests, &self.unauthorized_ttl),
        )
    }

    pub(super) fn denies_on_failure(&self) -> bool {
        self.failure_policy == "Deny"
    }

    pub(super) fn conditions(&self) -> Result<Conditions, String> {
        let mut conditions = Conditions::default();
        for condition in &self.match_conditions {
            conditions.push(condition.expression.trim())?;
        }
        Ok(conditions)
    }
}

fn seconds(text: &str) -> Duration {
    let seconds = duration::parse(text).unwrap_or_default();
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

impl ConnectionInfo {
    fn validate(&self, path: &Path, errors: &mut Errors) {
        let kind = path.child("type");
        match self.kind.as_str() {
            "" => return errors.push(Error::required(&kind, "")),
            "KubeConfigFile" => {}
            other => {
                return errors.push(Error::not_supported(&kind, other, &["KubeConfigFile"]));
            }
        }
        let path = path.child("kubeConfigFile");
        let Some(file) = self.kube_config_file.as_ref() else {
            return errors.push(Error::required(&path, ""));
        };
        let shown = file.display().to_string();
        if shown.is_empty() {
            errors.push(Error::required(&path, ""));
        } else if !file.is_absolute() {
            errors.push(Error::invalid(
                &path,
                shown.as_str(),
                "must be an absolute path",
            ));
        } else {
            match std::fs::metadata(file) {
                Err(error) => {
                    let why = format!("error loading file: {error}");
                    errors.push(Error::invalid(&path, shown.as_str(), why));
                }
                Ok(found) if !found.is_file() => {
                    errors.push(Error::invalid(
                        &path,
                        shown.as_str(),
                        "must be a regular file",
                    ));
                }
                Ok(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n- {type: Node, name: node}\n- {type: RBAC, name: rbac}\n";

    fn refused(text: &str) -> String {
        AuthorizationConfiguration::parse(text)
            .err()
            .unwrap_or_default()
    }

    #[test]
    fn authorizers_are_known_named_and_among_them_the_two_that_are_needed() {
        assert_eq!(refused(HEAD), "");
        for (from, to, why) in [
            ("type: Node", "type: ABAC", "Unsupported value: \"ABAC\""),
            ("type: Node", "type: RBAC", "Duplicate value: \"RBAC\""),
            ("- {type: Node, name: node}\n", "", "need the type Node"),
            (
                "name: node",
                "name: rbac",
                "authorizers[1].name: Duplicate value: \"rbac\"",
            ),
            (
                "name: node",
                "name: ''",
                "authorizers[0].name: Required value",
            ),
            ("name: node", "nom: node", "nom"),
        ] {
            let found = refused(&HEAD.replace(from, to));
            assert!(found.contains(why), "{found}");
        }
    }

    #[test]
    fn webhooks_say_how_they_are_called_and_what_holds_without_an_answer() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let hook = format!(
            "- type: Webhook\n  name: hook\n  webhook:\n    timeout: 3s\n    subjectAccessReviewVersion: v1\n    matchConditionSubjectAccessReviewVersion: v1\n    failurePolicy: Deny\n    connectionInfo: {{type: KubeConfigFile, kubeConfigFile: {}}}\n    matchConditions: [{{expression: 'true'}}]\n",
            file.path().display()
        );
        let good = format!("{HEAD}{hook}");
        let config = AuthorizationConfiguration::parse(&good).unwrap();
        let webhook = config.authorizers[2].webhook.as_ref().unwrap();
        assert_eq!(webhook.timeout(), Duration::from_secs(3));
        assert_eq!(
            webhook.ttls(),
            (Duration::from_secs(300), Duration::from_secs(30))
        );
        assert!(webhook.denies_on_failure());
        for (from, to, why) in [
            ("timeout: 3s", "timeout: 40s", "must be > 0s and <= 30s"),
            (
                "failurePolicy: Deny",
                "failurePolicy: Allow",
                "Unsupported value: \"Allow\"",
            ),
            (
                "expression: 'true'",
                "expression: '1'",
                "must evaluate to bool",
            ),
            (
                "kubeConfigFile: /",
                "kubeConfigFile: ",
                "must be an absolute path",
            ),
            (
                "type: KubeConfigFile",
                "type: InClusterConfig",
                "Unsupported value",
            ),
            (
                "    matchConditionSubjectAccessReviewVersion: v1\n",
                "",
                "required if match conditions are specified",
            ),
        ] {
            let found = refused(&good.replace(from, to));
            assert!(found.contains(why), "{found}");
        }
    }
}
