//! Recounts the usage of ResourceQuotas. Admission only adds usage; deleted and ended objects are
//! subtracted here, and everything is recounted every five minutes.
//!
//! A count starts from the cached quota and lists objects afterwards, so that the list is never
//! older than the quota. Admission of an object in between makes the write conflict, and it is
//! counted again.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use client::{Api, Event, Informer};
use k8s_openapi::{
    api::core::v1::{Pod, ResourceQuota, ResourceQuotaStatus},
    apimachinery::pkg::api::resource::Quantity as Written,
};
use kube::{
    api::{ApiResource, DynamicObject, ListParams},
    core::PartialObjectMeta,
};
use lifecycle::Context;
use machinery::{Object, Value, quantity::Quantity};
use parking_lot::Mutex;
use quota::{
    amounts::{self, Amounts},
    counted, scopes, usage,
};
use reconcile::{Action, Controller, Error, Key, Queue, Writer};

use crate::{discovery, shared::Shared};

/// The name in [`crate::ALL`].
pub const NAME: &str = "resourcequota";
const ACCOUNT: &str = "resourcequota-controller";

/// How often everything is recounted.
const RESYNC: Duration = Duration::from_secs(300);
/// The minimum interval between two counts of a quota: many deletions cause one more list, not one
/// each.
const PAUSE: Duration = Duration::from_secs(1);

type Meta = PartialObjectMeta<DynamicObject>;
/// Group and plural.
type Identity = (String, String);

struct Counter {
    shared: Arc<Shared>,
    quotas: Writer<ResourceQuota>,
    queue: Queue<Key>,
    /// Guards when each quota may be counted next.
    next: Mutex<HashMap<Key, Instant>>,
    /// Guards the kinds whose deletions are watched, with their API.
    kinds: Mutex<HashMap<Identity, ApiResource>>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let pods: Informer<Pod> = shared.informer();
    let controller = Arc::new(Counter {
        shared: shared.clone(),
        quotas: shared.writer(ACCOUNT),
        queue: Queue::default(),
        next: Mutex::default(),
        kinds: Mutex::default(),
    });
    let quotas = controller.quotas.cache().clone();
    shared
        .controller(&controller)
        .queue(&controller.queue)
        .watches_with(controller.quotas.cache(), |event| {
            // Admission changes the status constantly; only changes of the spec count.
            let news = match event {
                Event::Modified { old, new } => old.spec != new.spec || is_behind(new),
                Event::Added(_) => true,
                Event::Deleted(_) => false,
            };
            if news {
                vec![Key::from_object(&**event.object())]
            } else {
                Vec::new()
            }
        })
        .watches_with(&pods, move |event| {
            let frees = match event {
                Event::Modified { old, new } => has_ended(new) && !has_ended(old),
                Event::Added(_) => false,
                Event::Deleted(_) => true,
            };
            let namespace = event.object().metadata.namespace.clone();
            match namespace.filter(|_| frees) {
                Some(namespace) => quotas_in(&quotas, &namespace),
                None => Vec::new(),
            }
        })
        .workers(2)
        .start();
}

fn quotas_in(quotas: &Informer<ResourceQuota>, namespace: &str) -> Vec<Key> {
    let there = quotas.list_in(namespace);
    there
        .iter()
        .map(|quota| Key::from_object(&**quota))
        .collect()
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Whether the status does not match the spec.
fn is_behind(quota: &ResourceQuota) -> bool {
    let hard = quota.spec.as_ref().and_then(|spec| spec.hard.as_ref());
    let status = quota.status.as_ref();
    let used = status.and_then(|status| status.used.as_ref());
    let counted = |name: &String| used.is_some_and(|used| used.contains_key(name));
    status.and_then(|status| status.hard.as_ref()) != hard
        || !hard.is_none_or(|hard| hard.keys().all(counted))
}

impl Counter {
    /// The API of a kind, whose deletions are watched from now on. `None` if the kind is not
    /// served.
    async fn kind(self: &Counter, group: &str, plural: &str) -> Result<Option<ApiResource>, Error> {
        let identity = (group.to_owned(), plural.to_owned());
        if let Some(known) = self.kinds.lock().get(&identity) {
            return Ok(Some(known.clone()));
        }
        let (all, failed) = discovery::discover(&self.shared.reader()).await?;
        if discovery::has_failed(&failed, group) {
            // Discovery failed: do not count it as zero.
            let why = format!("cannot discover what serves {plural}.{group}");
            return Err(Error::Invalid(why));
        }
        let found = all.into_iter().find(|resource| {
            resource.identity() == identity
                && resource.namespaced
                && resource.can(&["list", "watch"])
        });
        let Some(found) = found else { return Ok(None) };
        let first = self
            .kinds
            .lock()
            .insert(identity, found.api.clone())
            .is_none();
        // Pods are always watched, since their end counts, too.
        if first && (group, plural) != ("", "pods") {
            let informer = Informer::<Meta>::dynamic(self.shared.reader(), &found.api);
            // A kind may disappear with its CRD: that must not fail the controllers.
            let context = Context::standalone(NAME, self.shared.context.token());
            let informer = informer.start(&context);
            let quotas = self.quotas.cache().clone();
            reconcile::follow(&context, &informer, &self.queue, move |event| {
                let namespace = event.object().metadata.namespace.clone();
                match (event, namespace) {
                    (Event::Deleted(_), Some(namespace)) => quotas_in(&quotas, &namespace),
                    _ => Vec::new(),
                }
            });
        }
        Ok(Some(found.api))
    }

    async fn objects(&self, api: &ApiResource, namespace: &str) -> Result<Vec<Object>, Error> {
        let api: Api<DynamicObject> = Api::namespaced_with(self.shared.reader(), namespace, api);
        let list = api.list(&ListParams::default()).await?;
        let objects = list
            .into_iter()
            .filter_map(|item| match machinery::json::to_value(item) {
                Ok(Value::Object(object)) => Some(object),
                _ => None,
            });
        Ok(objects.collect())
    }

    /// How long the quota must wait for its next count.
    fn pause(&self, key: &Key) -> Option<Duration> {
        let next = self.next.lock().get(key).copied()?;
        let left = next.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    async fn count(&self, namespace: &str, spec: &Value) -> Result<Amounts, Error> {
        let hard = amounts::from_json(&spec["hard"]);
        let mut by_kind: BTreeMap<(&str, &str), Vec<&String>> = BTreeMap::new();
        for name in hard.keys() {
            if let Some(kind) = counted(name) {
                by_kind.entry(kind).or_default().push(name);
            }
        }
        let mut used: Amounts = hard
            .keys()
            .map(|name| (name.clone(), Quantity::ZERO))
            .collect();
        for ((group, plural), names) in by_kind {
            let Some(api) = self.kind(group, plural).await? else {
                continue;
            };
            for object in self.objects(&api, namespace).await? {
                if !scopes::matches(spec, plural, &object) {
                    continue;
                }
                let mut more = usage(group, plural, &object);
                more.retain(|name, _| names.contains(&name));
                amounts::add(&mut used, &more);
            }
        }
        Ok(used)
    }
}

/// The status for the counted usage; `None` if it has it.
fn decide(quota: &ResourceQuota, used: &Amounts) -> Option<ResourceQuotaStatus> {
    let status = quota.status.clone().unwrap_or_default();
    let hard = quota.spec.as_ref().and_then(|spec| spec.hard.clone());
    let known = amounts::from_json(&machinery::json::to_value(&status.used).unwrap_or_default());
    if status.hard == hard && known == *used {
        return None;
    }
    let written = used
        .iter()
        .map(|(name, amount)| (name.clone(), Written(amount.to_string())));
    Some(ResourceQuotaStatus {
        hard,
        used: Some(written.collect()),
    })
}

impl Controller for Counter {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(quota) = self.quotas.cache().get(&key.namespace, &key.name) else {
            self.next.lock().remove(key);
            return Ok(Action::Done);
        };
        // A new quota or a changed spec is counted at once.
        if !is_behind(&quota)
            && let Some(left) = self.pause(key)
        {
            return Ok(Action::After(left));
        }
        let spec = machinery::json::to_value(&quota.spec).unwrap_or_default();
        let used = self.count(&key.namespace, &spec).await?;
        if let Some(status) = decide(&quota, &used) {
            let mut quota = (*quota).clone();
            quota.status = Some(status);
            self.quotas.update_status(&key.namespace, &quota).await?;
        }
        self.next.lock().insert(key.clone(), Instant::now() + PAUSE);
        Ok(Action::After(RESYNC))
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    #[test]
    fn an_unchanged_quota_status_is_not_written() {
        let quota = |used: Value| -> ResourceQuota {
            let hard = json!({"pods": "5", "cpu": "2"});
            let status = json!({"hard": hard, "used": used});
            machinery::json::from_value(json!({"spec": {"hard": hard}, "status": status})).unwrap()
        };
        let used = amounts::from_json(&json!({"pods": "1", "cpu": "500m"}));
        assert_eq!(
            decide(&quota(json!({"pods": "1", "cpu": "0.5"})), &used),
            None
        );
        let less = decide(&quota(json!({"pods": "3", "cpu": "1500m"})), &used).unwrap();
        let less = machinery::json::to_value(less.used).unwrap();
        assert_eq!(less, json!({"pods": "1", "cpu": "500m"}));
        assert!(is_behind(&quota(json!({"pods": "1"}))));
        assert!(!is_behind(&quota(json!({"pods": "1", "cpu": "0"}))));
    }
}
