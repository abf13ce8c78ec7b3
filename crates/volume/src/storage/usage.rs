//! Statistics and expansion of volumes in use.

use std::time::Duration;

use tracing::debug;

use super::{Expand, Expanded, Key, Manager, Measure, Spec, Step, StepError, state::Progress};

/// How long statistics are cached, and how long a call may take.
const STATS_AGE: Duration = Duration::from_secs(60);
const STATS_PATIENCE: Duration = Duration::from_secs(1);

/// The last statistics of a pod's volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// Its name in the pod.
    pub name: String,
    /// The statistics.
    pub measure: Measure,
    /// Whether they are new.
    pub is_new: bool,
}

impl Manager {
    /// Expands a pod's volume to its new size.
    pub async fn expand(&self, pod: &str, key: &Key, spec: &Spec, bytes: i64) -> Step<Expanded> {
        let found = self.with(key, |entry| {
            let user = entry.users.get(pod)?;
            Some((entry.plugin, user.mount.clone(), entry.steps.clone()))
        });
        let Some((plugin, mount, steps)) = found.flatten() else {
            return Err(StepError::NotTried("the pod does not have it".to_owned()));
        };
        let _guard = steps.lock_owned().await;
        if self.with(key, |entry| entry.users.contains_key(pod)) != Some(true) {
            return Err(StepError::NotTried("the pod has ended".to_owned()));
        }
        let request = Expand {
            spec,
            mount: &mount,
            bytes,
        };
        plugin.expand(&request, &*self.host).await
    }

    /// The statistics of a pod's volumes, by their names in the pod. Each is measured once a
    /// minute; if its driver does not answer, the old ones are returned.
    pub async fn stats(&self, pod: &str) -> Vec<Measured> {
        let now = self.clock.now();
        let due: Vec<_> = {
            let mut volumes = self.volumes.lock();
            let due = volumes.iter_mut().filter_map(|(key, entry)| {
                let user = entry.users.get_mut(pod)?;
                let old = user.measured.is_none_or(|at| at + STATS_AGE <= now);
                if !old || user.published != Progress::Yes {
                    return None;
                }
                let measuring = user.measuring.clone().try_lock_owned().ok()?;
                user.measured = Some(now);
                Some((key.clone(), entry.plugin, user.mount.clone(), measuring))
            });
            due.collect()
        };
        let measures = due
            .into_iter()
            .map(|(key, plugin, mount, measuring)| async move {
                let measure = plugin.stats(&mount, &*self.host, measuring);
                let measure = match tokio::time::timeout(STATS_PATIENCE, measure).await {
                    Ok(Ok(measure)) => measure,
                    Ok(Err(error)) => {
                        debug!(volume = %key, %error, "cannot get volume stats");
                        return None;
                    }
                    Err(_) => return None,
                };
                self.with(&key, |entry| {
                    if let Some(user) = entry.users.get_mut(pod) {
                        user.measure = measure;
                    }
                });
                Some(key)
            });
        let new: Vec<Option<Key>> = futures::future::join_all(measures).await;
        let volumes = self.volumes.lock();
        let users = volumes.iter();
        let users = users.filter_map(|(key, entry)| Some((key, entry.users.get(pod)?)));
        let known = users.filter_map(|(key, user)| Some((key, user, user.measure.as_ref()?)));
        let by_name = known.flat_map(|(key, user, measure)| {
            let is_new = new.iter().flatten().any(|new| new == key);
            user.names.iter().map(move |name| Measured {
                name: name.clone(),
                measure: measure.clone(),
                is_new,
            })
        });
        by_name.collect()
    }
}
