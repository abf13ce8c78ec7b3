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
    api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuota, ResourceQuotaStatus},
    apimachinery::pkg::api::resource::Quantity as Written,
};
use kube::{
    api::{ApiResource, DynamicObject, ListParams},
    core::PartialObjectMeta,
};
use lifecycle::Context;
use machinery::{Value, quantity::Quantity};
use parking_lot::Mutex;
use quota::{
    amounts::{self, Amounts},
    counted, scopes, usage,
};
use reconcile::{Action, Controller, Error, Key, Queue, Writer};
use tokio_util::sync::DropGuard;

use crate::{discovery, shared::Shared};

/// The name in [`crate::ALL`].
pub const NAME: &str = "resourcequota";
const ACCOUNT: &str = "resourcequota-controller";

/// How often everything is recounted.
const RESYNC: Duration = Duration::from_secs(300);
/// How soon a quota is recounted at the latest if a kind that it counts is not served or failed.
const DISCOVERY: Duration = Duration::from_secs(30);
/// The minimum pause between two counts of a quota: many deletions cause one more list, not one
/// each.
const PAUSE: Duration = Duration::from_secs(1);
/// The same in durations of the count: the more objects there are, the more deletions are counted together.
const PAUSE_OF_COUNT: u32 = 10;
/// The number of objects that are in memory at once.
const PAGE: u32 = 500;

type Meta = PartialObjectMeta<DynamicObject>;
/// Group and plural.
type Identity = (String, String);

/// A kind whose deletions are watched until this is dropped.
struct Watched {
    api: ApiResource,
    _stop: DropGuard,
}

struct Counter {
    shared: Arc<Shared>,
    quotas: Writer<ResourceQuota>,
    queue: Queue<Key>,
    /// Guards when each quota may be counted next.
    next: Mutex<HashMap<Key, Instant>>,
    /// Guards the kinds whose deletions are watched.
    kinds: Mutex<HashMap<Identity, Watched>>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let pods: Informer<Pod> = shared.informer();
    let claims: Informer<PersistentVolumeClaim> = shared.informer();
    let controller = Arc::new(Counter {
        shared: shared.clone(),
        quotas: shared.writer(ACCOUNT),
        queue: Queue::with_retry_cap(DISCOVERY),
        next: Mutex::default(),
        kinds: Mutex::default(),
    });
    let quotas = controller.quotas.cache().clone();
    let quotas_of_claims = quotas.clone();
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
        .watches_with(&claims, move |event| {
            let namespace = event.object().metadata.namespace.as_deref();
            match (event, namespace) {
                (Event::Modified { old, new }, Some(namespace)) if counts_otherwise(old, new) => {
                    quotas_in(&quotas_of_claims, namespace)
                }
                _ => Vec::new(),
            }
        })
        .workers(2)
        .start();
}

/// Whether a change of a claim changes what quotas count: its size, or the classes that scopes select.
fn counts_otherwise(old: &PersistentVolumeClaim, new: &PersistentVolumeClaim) -> bool {
    let of_spec = |claim: &PersistentVolumeClaim| {
        let spec = claim.spec.clone().unwrap_or_default();
        let requests = spec.resources.and_then(|resources| resources.requests);
        (requests, spec.volume_attributes_class_name)
    };
    let of_status = |claim: &PersistentVolumeClaim| {
        let status = claim.status.clone().unwrap_or_default();
        let target = status.modify_volume_status;
        let target = target.and_then(|target| target.target_volume_attributes_class_name);
        let current = status.current_volume_attributes_class_name;
        (status.allocated_resources, current, target)
    };
    of_spec(old) != of_spec(new) || of_status(old) != of_status(new)
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

/// Whether this spec was never counted.
fn is_new(quota: &ResourceQuota) -> bool {
    let hard = quota.spec.as_ref().and_then(|spec| spec.hard.as_ref());
    let status = quota.status.as_ref();
    status.and_then(|status| status.hard.as_ref()) != hard
        || status.is_none_or(|status| status.used.is_none())
}

/// Whether the status does not have the usage of everything in the spec.
fn is_behind(quota: &ResourceQuota) -> bool {
    let hard = quota.spec.as_ref().and_then(|spec| spec.hard.as_ref());
    let used = quota
        .status
        .as_ref()
        .and_then(|status| status.used.as_ref());
    let counted = |name: &String| used.is_some_and(|used| used.contains_key(name));
    is_new(quota) || !hard.is_none_or(|hard| hard.keys().all(counted))
}

impl Counter {
    /// The API of a kind, whose deletions are watched from now on. `None` if the kind is not
    /// served.
    async fn kind(self: &Counter, group: &str, plural: &str) -> Result<Option<ApiResource>, Error> {
        let identity = (group.to_owned(), plural.to_owned());
        if let Some(known) = self.kinds.lock().get(&identity) {
            return Ok(Some(known.api.clone()));
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
        let api = found.api.clone();
        let kinds = &mut self.kinds.lock();
        let new = kinds.entry(identity);
        new.or_insert_with(|| self.watch_deletions(found.api));
        Ok(Some(api))
    }

    /// Counts the quotas of a namespace when an object of this kind was deleted in it.
    fn watch_deletions(&self, api: ApiResource) -> Watched {
        let stop = self.shared.context.token().child_token();
        // Pods are always watched, since their end counts, too.
        if (api.group.as_str(), api.plural.as_str()) != ("", "pods") {
            // A kind may disappear with its definition: that must not fail the controllers.
            let context = Context::standalone(NAME, stop.clone());
            let informer = Informer::<Meta>::dynamic(self.shared.reader(), &api).start(&context);
            let quotas = self.quotas.cache().clone();
            reconcile::follow(&context, &informer, &self.queue, move |event| {
                let namespace = event.object().metadata.namespace.clone();
                match (event, namespace) {
                    (Event::Deleted(_), Some(namespace)) => quotas_in(&quotas, &namespace),
                    _ => Vec::new(),
                }
            });
            let (ended, queue) = (stop.clone(), self.queue.clone());
            let quotas = self.quotas.cache().clone();
            context.spawn("count after sync", async move {
                // An object that was deleted after a count and before the first list causes no event.
                tokio::select! {
                    () = informer.synced() => {}
                    () = ended.cancelled() => return,
                }
                for quota in quotas.list() {
                    queue.add(Key::from_object(&*quota));
                }
            });
        }
        let _stop = stop.drop_guard();
        Watched { api, _stop }
    }

    /// The usage by the objects of a kind, page by page.
    async fn usage(
        &self,
        api: &ApiResource,
        namespace: &str,
        spec: &Value,
    ) -> Result<Amounts, Error> {
        let (group, plural) = (api.group.as_str(), api.plural.as_str());
        let api: Api<DynamicObject> = Api::namespaced_with(self.shared.reader(), namespace, api);
        let mut params = ListParams::default().limit(PAGE);
        let mut used = Amounts::new();
        loop {
            let (objects, next) = api.page(&params).await?;
            for object in objects {
                if let Ok(Value::Object(object)) = machinery::json::to_value(object)
                    && scopes::matches(spec, plural, &object)
                {
                    amounts::add(&mut used, &usage(group, plural, &object));
                }
            }
            match next {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(used),
            }
        }
    }

    /// How long the quota must wait for its next count.
    fn pause(&self, key: &Key) -> Option<Duration> {
        let next = self.next.lock().get(key).copied()?;
        let left = next.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Counts all kinds. One that cannot be counted, such as that of an aggregated API server that
    /// does not respond, keeps its known usage and does not prevent the counts of others.
    async fn count(&self, namespace: &str, spec: &Value, known: &Amounts) -> Count {
        let hard = amounts::from_json(&spec["hard"]);
        let mut by_kind: BTreeMap<(&str, &str), Vec<&String>> = BTreeMap::new();
        for name in hard.keys() {
            if let Some(kind) = counted(name) {
                by_kind.entry(kind).or_default().push(name);
            }
        }
        let mut count = Count {
            used: hard
                .keys()
                .map(|name| (name.clone(), Quantity::ZERO))
                .collect(),
            is_complete: true,
            failure: None,
        };
        for ((group, plural), names) in by_kind {
            match self.count_kind(namespace, spec, group, plural).await {
                Ok(None) => count.is_complete = false,
                Ok(Some(mut more)) => {
                    more.retain(|name, _| names.contains(&name));
                    amounts::add(&mut count.used, &more);
                }
                Err(error) => {
                    count.keep(&names, known);
                    count.failure.get_or_insert(error);
                }
            }
        }
        count
    }

    /// The usage by all objects of one kind; `None` if it is not served.
    async fn count_kind(
        &self,
        namespace: &str,
        spec: &Value,
        group: &str,
        plural: &str,
    ) -> Result<Option<Amounts>, Error> {
        let Some(api) = self.kind(group, plural).await? else {
            return Ok(None);
        };
        match self.usage(&api, namespace, spec).await {
            Err(error) if error.code() == Some(404) => {
                // Not served anymore, or in another version.
                let identity = (group.to_owned(), plural.to_owned());
                self.kinds.lock().remove(&identity);
                let Some(api) = self.kind(group, plural).await? else {
                    return Ok(None);
                };
                self.usage(&api, namespace, spec).await.map(Some)
            }
            other => other.map(Some),
        }
    }
}

/// The counted usage.
struct Count {
    used: Amounts,
    /// Whether all counted kinds are served.
    is_complete: bool,
    /// The first reason why some kinds were not counted.
    failure: Option<Error>,
}

impl Count {
    /// Keeps the known usage of names that could not be counted. Without a known usage they have
    /// none, which is not zero: admission waits for the first count.
    fn keep(&mut self, names: &[&String], known: &Amounts) {
        for name in names {
            match known.get(*name) {
                Some(amount) => self.used.insert((*name).clone(), *amount),
                None => self.used.remove(*name),
            };
        }
    }
}

/// The pause after a count that took this long.
fn pause_after(count: Duration) -> Duration {
    PAUSE.max(count.saturating_mul(PAUSE_OF_COUNT)).min(RESYNC)
}

/// The usage in the status.
fn known_usage(quota: &ResourceQuota) -> Amounts {
    let used = quota.status.as_ref().map(|status| &status.used);
    amounts::from_json(&machinery::json::to_value(used).unwrap_or_default())
}

/// The status for the counted usage; `None` if it has it.
fn decide(quota: &ResourceQuota, used: &Amounts) -> Option<ResourceQuotaStatus> {
    let status = quota.status.clone().unwrap_or_default();
    let hard = quota.spec.as_ref().and_then(|spec| spec.hard.clone());
    if status.hard == hard && known_usage(quota) == *used {
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
        if !is_new(&quota)
            && let Some(left) = self.pause(key)
        {
            return Ok(Action::After(left));
        }
        let spec = machinery::json::to_value(&quota.spec).unwrap_or_default();
        let known = known_usage(&quota);
        let begun = Instant::now();
        let count = self.count(&key.namespace, &spec, &known).await;
        let pause = pause_after(begun.elapsed());
        if let Some(status) = decide(&quota, &count.used) {
            let mut quota = (*quota).clone();
            quota.status = Some(status);
            self.quotas.update_status(&key.namespace, &quota).await?;
        }
        self.next.lock().insert(key.clone(), Instant::now() + pause);
        match count.failure {
            Some(failure) => Err(failure),
            None if !count.is_complete => Ok(Action::After(DISCOVERY)),
            None => Ok(Action::After(RESYNC)),
        }
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    #[test]
    fn a_claim_is_recounted_when_its_size_or_a_class_changes() {
        let claim = |size: &str, status: Value| -> PersistentVolumeClaim {
            machinery::json::from_value(json!({
                "spec": {"resources": {"requests": {"storage": size}}}, "status": status}))
            .unwrap()
        };
        let old = claim("2Gi", json!({"phase": "Pending"}));
        for (new, expected) in [
            (claim("2Gi", json!({"phase": "Bound"})), false),
            (claim("1Gi", json!({"phase": "Pending"})), true),
            (
                claim("2Gi", json!({"allocatedResources": {"storage": "2Gi"}})),
                true,
            ),
            (
                claim("2Gi", json!({"currentVolumeAttributesClassName": "gold"})),
                true,
            ),
            (
                claim(
                    "2Gi",
                    json!({"modifyVolumeStatus": {"status": "Pending", "targetVolumeAttributesClassName": "gold"}}),
                ),
                true,
            ),
        ] {
            assert_eq!(counts_otherwise(&old, &new), expected, "{new:?}");
        }
    }

    #[test]
    fn a_quota_over_many_objects_is_counted_less_often() {
        for (count, expected) in [(0, 1_000), (99, 1_000), (300, 3_000), (60_000, 300_000)] {
            let pause = pause_after(Duration::from_millis(count));
            assert_eq!(pause, Duration::from_millis(expected), "{count}");
        }
    }

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
