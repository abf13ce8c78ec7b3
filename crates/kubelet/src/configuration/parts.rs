//! The nested objects of a KubeletConfiguration.

use serde::{Deserialize, Serialize};

use super::GoDuration;

/// How requests to the kubelet are authenticated.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Authentication {
    pub anonymous: Anonymous,
    pub webhook: AuthenticationWebhook,
    pub x509: X509,
}

/// Client certificate authentication.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct X509 {
    /// The CA bundle whose client certificates are accepted beside those of the cluster's CA;
    /// empty: none.
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: String,
}

/// Anonymous requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Anonymous {
    pub enabled: bool,
}

/// Bearer token authentication by the API server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AuthenticationWebhook {
    pub enabled: bool,
    #[serde(rename = "cacheTTL")]
    pub cache_ttl: GoDuration,
}

impl Default for AuthenticationWebhook {
    fn default() -> Self {
        Self {
            enabled: true,
            cache_ttl: GoDuration::from_secs(120),
        }
    }
}

/// The restart backoff of crashing containers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CrashLoopBackOff {
    /// The maximum delay between two restarts.
    pub max_container_restart_period: GoDuration,
}

impl Default for CrashLoopBackOff {
    fn default() -> Self {
        Self {
            max_container_restart_period: GoDuration::from_secs(300),
        }
    }
}

/// How requests to the kubelet are authorized.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Authorization {
    pub mode: String,
    pub webhook: AuthorizationWebhook,
}

impl Default for Authorization {
    fn default() -> Self {
        Self {
            mode: "Webhook".into(),
            webhook: AuthorizationWebhook::default(),
        }
    }
}

/// How long decisions of the API server are cached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AuthorizationWebhook {
    #[serde(rename = "cacheAuthorizedTTL")]
    pub cache_authorized_ttl: GoDuration,
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub cache_unauthorized_ttl: GoDuration,
}

impl Default for AuthorizationWebhook {
    fn default() -> Self {
        Self {
            cache_authorized_ttl: GoDuration::from_secs(300),
            cache_unauthorized_ttl: GoDuration::from_secs(30),
        }
    }
}

/// The shutdown grace period of pods from a priority on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ShutdownGracePeriodByPodPriority {
    /// The lowest priority of these pods.
    pub priority: i32,
    pub shutdown_grace_period_seconds: i64,
}
