//! What is asked of volumes while pods use them: how full they are, and to grow.

use std::time::Duration;

use tracing::debug;

use super::{Expand, Expanded, Key, Manager, Spec, Step, StepError, Usage, state::Progress};

/// How long a measure counts, and how long one may take.
const STATS_AGE: Duration = Duration::from_secs(60);
const STATS_PATIENCE: Duration = Duration::from_secs(1);

impl Manager {
    /// Makes a volume that a pod has as large as it is by now.
    pub async fn expand(&self, pod: &str, key: &Key, spec: &Spec, bytes: i64) -> Step<Expanded> {
        let found = self.with(key, |entry| {
            let user = entry.users.get(pod)?;
            Some((entry.plugin, user.mount.clone(), entry.steps.clone()))
        });
        let Some((plugin, mount, steps)) = found.flatten() else {
            return Err(StepError::NotTried("the pod does not have it".to_owned()));
        };
        let _guard = steps.lock_owned().await;
        let request = Expand {
            spec,
            mount: &mount,
            bytes,
        };
        plugin.expand(&request, &*self.host).await
    }

    /// How full the volumes of a pod are, by their names in the pod. Each is measured once a minute; one
    /// whose driver does not answer is as it was.
    pub async fn stats(&self, pod: &str) -> Vec<(String, Usage)> {
        let now = self.clock.now();
        let due: Vec<_> = {
            let mut volumes = self.volumes.lock();
            let due = volumes.iter_mut().filter_map(|(key, entry)| {
                let user = entry.users.get_mut(pod)?;
                let old = user.measured.is_none_or(|at| at + STATS_AGE <= now);
                (old && user.published == Progress::Yes).then(|| {
                    user.measured = Some(now);
                    (key.clone(), entry.plugin, user.mount.clone())
                })
            });
            due.collect()
        };
        let measures = due.into_iter().map(|(key, plugin, mount)| async move {
            let measure = plugin.stats(&mount, &*self.host);
            let usage = match tokio::time::timeout(STATS_PATIENCE, measure).await {
                Ok(Ok(usage)) => usage,
                Ok(Err(error)) => {
                    debug!(volume = %key, %error, "no stats");
                    return;
                }
                Err(_) => return,
            };
            self.with(&key, |entry| {
                if let Some(user) = entry.users.get_mut(pod) {
                    user.usage = usage;
                }
            });
        });
        futures::future::join_all(measures).await;
        let volumes = self.volumes.lock();
        let users = volumes.values().filter_map(|entry| entry.users.get(pod));
        let known = users.filter_map(|user| Some((user, user.usage?)));
        known
            .flat_map(|(user, usage)| user.names.iter().map(move |name| (name.clone(), usage)))
            .collect()
    }
}
