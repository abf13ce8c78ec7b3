//! Removes auto-generated ServiceAccount token Secrets that were unused for a year: marks them as
//! invalid first, and deletes them after another year. Manually created Secrets are left alone; no
//! ServiceAccount refers to them.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use client::{Api, Informer};
use jiff::{Timestamp, ToSpan, civil::Date, tz::TimeZone};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use reconcile::Error;
use serde_json::json;

use crate::{serviceaccounttokens::TYPE, shared::Shared};

/// The name in [`crate::ALL`].
pub const NAME: &str = "legacy-serviceaccount-token-cleaner";
const ACCOUNT: &str = "legacy-service-account-token-cleaner";
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
const EVERY: Duration = Duration::from_secs(24 * 3600);

struct Cleaner {
    shared: Arc<Shared>,
    secrets: Informer<Secret>,
    accounts: Informer<ServiceAccount>,
    pods: Informer<Pod>,
    client: kube::Client,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let cleaner = Cleaner {
        shared: shared.clone(),
        secrets: Informer::builder(shared.reader())
            .fields(format!("type={TYPE}"))
            .start(&shared.context),
        accounts: shared.informer(),
        pods: shared.informer(),
        client: shared.client(ACCOUNT),
    };
    shared.context.spawn(NAME, async move {
        cleaner.secrets.synced().await;
        cleaner.accounts.synced().await;
        cleaner.pods.synced().await;
        loop {
            if let Err(error) = cleaner.clean().await {
                tracing::debug!(%error, "cannot check legacy tokens");
            }
            cleaner.shared.clock().sleep(EVERY).await;
        }
    });
}

/// What happens to a token.
#[derive(Debug, PartialEq, Eq)]
enum TokenAction {
    Keep,
    Invalidate,
    Delete,
}

fn date(text: Option<&String>) -> Option<Date> {
    text?.parse().ok()
}

fn day(time: Timestamp) -> Date {
    time.to_zoned(TimeZone::UTC).date()
}

/// Decides about a Secret that its ServiceAccount refers to and that no pod uses. `limit` is a year
/// ago.
fn decide(secret: &Secret, limit: Timestamp) -> TokenAction {
    let metadata = &secret.metadata;
    let born = metadata.creation_timestamp.as_ref().map(|time| time.0);
    if born.is_none_or(|born| born >= limit) || metadata.deletion_timestamp.is_some() {
        return TokenAction::Keep;
    }
    let labels = secret.labels();
    match labels.get(LAST_USED).map(|text| date(Some(text))) {
        // An invalid date: keep it.
        Some(None) => return TokenAction::Keep,
        Some(Some(used)) if used >= day(limit) => return TokenAction::Keep,
        _ => {}
    }
    match date(labels.get(INVALID_SINCE)) {
        None => TokenAction::Invalidate,
        Some(since) if since >= day(limit) => TokenAction::Keep,
        Some(_) => TokenAction::Delete,
    }
}

impl Cleaner {
    async fn clean(&self) -> Result<(), Error> {
        let now = self.shared.now();
        let year = now.to_zoned(TimeZone::UTC).checked_sub(1.year());
        let limit = year.map_or(Timestamp::MIN, |year| year.timestamp());
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "kube-system");
        let tracking = maps.get(TRACKING).await?.data.unwrap_or_default();
        // Uses on the first day may not be recorded.
        let tracked = date(tracking.get("since")).and_then(|since| since.tomorrow().ok());
        if tracked.is_none_or(|tracked| day(limit) < tracked) {
            return Ok(());
        }
        let mut in_use = InUse::default();
        for secret in self.secrets.list() {
            let action = decide(&secret, limit);
            if action == TokenAction::Keep || !self.is_of_account(&secret) {
                continue;
            }
            let namespace = secret.namespace().unwrap_or_default();
            if in_use.contains(&namespace, &secret.name_any(), || {
                self.pods.list_in(&namespace)
            }) {
                continue;
            }
            let done = match action {
                TokenAction::Keep => Ok(()),
                TokenAction::Invalidate => self.invalidate(&secret, day(now)).await,
                TokenAction::Delete => self.delete(&secret).await,
            };
            if let Err(error) = done {
                tracing::debug!(%error, secret = secret.name_any(), "cannot update legacy token");
            }
        }
        Ok(())
    }

    /// Whether the ServiceAccount refers to the Secret, as to auto-generated ones.
    fn is_of_account(&self, secret: &Secret) -> bool {
        let annotation = |key: &str| secret.annotations().get(key).cloned().unwrap_or_default();
        let name = annotation("kubernetes.io/service-account.name");
        let uid = annotation("kubernetes.io/service-account.uid");
        let namespace = secret.namespace().unwrap_or_default();
        self.accounts.get(&namespace, &name).is_some_and(|account| {
            let mut references = account.secrets.iter().flatten();
            (uid.is_empty() || account.uid().unwrap_or_default() == uid)
                && references.any(|reference| reference.name.as_ref() == Some(&secret.name_any()))
        })
    }

    async fn invalidate(&self, secret: &Secret, today: Date) -> Result<(), Error> {
        let patch = json!({"metadata": {"uid": secret.uid(),
                                        "labels": {INVALID_SINCE: today.to_string()}}});
        let params = PatchParams::default();
        self.api(secret)
            .patch(&secret.name_any(), &params, &Patch::Merge(&patch))
            .await?;
        Ok(())
    }

    async fn delete(&self, secret: &Secret) -> Result<(), Error> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: None,
                resource_version: secret.resource_version(),
            }),
            ..DeleteParams::default()
        };
        self.api(secret).delete(&secret.name_any(), &params).await?;
        Ok(())
    }

    fn api(&self, secret: &Secret) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &secret.namespace().unwrap_or_default())
    }
}

/// The secrets that pods name, by namespace: the pods of a namespace are read once.
#[derive(Default)]
struct InUse(HashMap<String, BTreeSet<String>>);

impl InUse {
    fn contains(
        &mut self,
        namespace: &str,
        secret: &str,
        pods: impl FnOnce() -> Vec<Arc<Pod>>,
    ) -> bool {
        if !self.0.contains_key(namespace) {
            let named = pods().iter().flat_map(|pod| secrets_of(pod)).collect();
            self.0.insert(namespace.to_owned(), named);
        }
        self.0
            .get(namespace)
            .is_some_and(|named| named.contains(secret))
    }
}

/// The secrets that a pod names.
fn secrets_of(pod: &Pod) -> BTreeSet<String> {
    let Some(spec) = &pod.spec else {
        return BTreeSet::new();
    };
    let mut names = BTreeSet::new();
    for secret in spec.image_pull_secrets.iter().flatten() {
        names.insert(secret.name.clone());
    }
    for volume in spec.volumes.iter().flatten() {
        let secret = volume.secret.as_ref();
        names.extend(secret.and_then(|secret| secret.secret_name.clone()));
        let sources = volume
            .projected
            .iter()
            .flat_map(|volume| volume.sources.iter().flatten());
        let secrets = sources.filter_map(|source| source.secret.as_ref());
        names.extend(secrets.map(|secret| secret.name.clone()));
    }
    let containers = spec.containers.iter();
    let containers = containers
        .chain(spec.init_containers.iter().flatten())
        .map(|container| (&container.env, &container.env_from));
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let ephemeral = ephemeral.map(|container| (&container.env, &container.env_from));
    for (variables, sources) in containers.chain(ephemeral) {
        let variables = variables.iter().flatten();
        let keys = variables.filter_map(|v| v.value_from.as_ref()?.secret_key_ref.as_ref());
        names.extend(keys.map(|key| key.name.clone()));
        let sources = sources.iter().flatten();
        let secrets = sources.filter_map(|source| source.secret_ref.as_ref());
        names.extend(secrets.map(|secret| secret.name.clone()));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pods_of_a_namespace_are_read_once() {
        let pod = |secret: &str| -> Arc<Pod> {
            let volume = json!({"name": "v", "secret": {"secretName": secret}});
            let pod = json!({"spec": {"containers": [], "volumes": [volume]}});
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let mut in_use = InUse::default();
        assert!(in_use.contains("a", "one", || vec![pod("one"), pod("two")]));
        let again = || -> Vec<Arc<Pod>> { panic!("the pods were read before") };
        assert!(in_use.contains("a", "two", again));
        assert!(!in_use.contains("a", "three", again));
        assert!(!in_use.contains("b", "one", Vec::new));
    }

    #[test]
    fn a_token_unused_for_a_year_is_marked_invalid_and_deleted_a_year_later() {
        let limit: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (born, used, invalid, fate) in [
            ("2025-01-01", "", "", TokenAction::Invalidate),
            ("2025-01-01", "2025-06-01", "", TokenAction::Invalidate),
            ("2025-01-01", "2026-06-01", "", TokenAction::Keep),
            ("2025-01-01", "some day", "", TokenAction::Keep),
            ("2026-03-01", "", "", TokenAction::Keep),
            ("2024-01-01", "", "2026-03-01", TokenAction::Keep),
            ("2024-01-01", "", "2025-03-01", TokenAction::Delete),
            ("2024-01-01", "2026-06-01", "2025-03-01", TokenAction::Keep),
            ("2024-01-01", "", "some day", TokenAction::Invalidate),
        ] {
            let mut labels = std::collections::BTreeMap::new();
            for (key, value) in [(LAST_USED, used), (INVALID_SINCE, invalid)] {
                if !value.is_empty() {
                    labels.insert(key.to_owned(), value.to_owned());
                }
            }
            let json = json!({"metadata": {"name": "s", "labels": labels,
                                           "creationTimestamp": format!("{born}T00:00:00Z")}});
            let secret: Secret = serde_json::from_value(json).unwrap();
            assert_eq!(decide(&secret, limit), fate, "{born} {used} {invalid}");
        }
    }
}
