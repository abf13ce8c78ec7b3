//! Telling the API: the status when it changed, one write at a time, and the end of a deleted pod.

use std::time::Duration;

use futures::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::{Map, Value, json};
use tracing::{debug, warn};

use super::{Worker, actions::Done, is_newer};
use crate::{
    pod::{memory::Volumes, spec},
    volumes,
};

/// What the API shows after a write, and whether it took it.
pub struct Answer {
    pod: Box<Pod>,
    taken: bool,
}

/// What a container was before this worker began.
pub(super) struct Before {
    pub started: bool,
    pub ready: bool,
}

/// Whether the last status said that this very container had started and was ready.
pub(super) fn was_started(status: &PodStatus, id: &str) -> Before {
    let init = status.init_container_statuses.iter().flatten();
    let mut all = status.container_statuses.iter().flatten().chain(init);
    let this = all.find(|c| {
        c.container_id
            .as_deref()
            .is_some_and(|full| full.ends_with(id))
    });
    Before {
        started: this.is_some_and(|status| status.started == Some(true)),
        ready: this.is_some_and(|status| status.ready),
    }
}

impl Worker {
    /// Brings volume content up to date when a source changed or a token is old.
    pub(super) fn refresh_volumes(&mut self, now: Timestamp) {
        let due = self.refresh_again || self.refresh_at.is_some_and(|at| at <= now);
        if !due || self.refreshing || self.memory.volumes != Volumes::Ready {
            return;
        }
        self.refresh_again = false;
        self.refresh_at = None;
        self.refreshing = true;
        let (core, pod) = (self.core.clone(), self.pod.clone());
        self.work
            .push(async move { Done::Refreshed(volumes::set_up(&core, &pod).await) }.boxed());
    }

    /// Writes the status if the API shows another one; after the last one, deletes the object.
    pub(super) fn write_status(&mut self, now: Timestamp, stopped: bool) {
        if self.writing || self.deleting || self.write_after.is_some_and(|after| after > now) {
            return;
        }
        self.write_after = None;
        let Some(shown) = self.shown.clone() else {
            return;
        };
        let (namespace, name) = (spec::namespace(&shown), spec::name(&shown).to_owned());
        let api: Api<Pod> = Api::namespaced(self.core.config.client.clone(), namespace);
        match patch(&shown, &self.status) {
            Some(patch) if self.settled.as_ref() != Some(&patch["status"]) => {
                debug!(pod = self.uid, %patch, "writes status");
                self.writing = true;
                // What the API drops from a status that it accepted is not written again.
                self.settled = Some(patch["status"].clone());
                self.work.push(write(api, name, patch).boxed());
            }
            _ if stopped && self.pod.metadata.deletion_timestamp.is_some() && !self.removed => {
                self.deleting = true;
                let uid = spec::uid(&shown).to_owned();
                self.work.push(delete(api, name, uid).boxed());
            }
            _ => {}
        }
    }

    pub(super) fn finish_write(&mut self, outcome: Result<Answer, kube::Error>) {
        self.writing = false;
        if !matches!(outcome, Ok(Answer { taken: true, .. })) {
            self.settled = None;
        }
        match outcome {
            Ok(Answer { pod, .. }) => {
                if is_newer(&pod, self.shown.as_deref()) {
                    self.shown = Some((*pod).into());
                }
            }
            // The watch will say that it is gone.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                self.write_after = Some(self.core.now() + Duration::from_secs(1));
            }
            Err(error) => {
                warn!(pod = self.uid, %error, "cannot write status");
                self.write_after = Some(self.core.now() + Duration::from_secs(1));
            }
        }
    }

    pub(super) fn finish_delete(&mut self, outcome: Result<(), kube::Error>) {
        match outcome {
            Ok(()) => self.removed = true,
            Err(error) => {
                warn!(pod = self.uid, %error, "cannot delete pod");
                self.deleting = false;
                self.write_after = Some(self.core.now() + Duration::from_secs(1));
            }
        }
    }
}

async fn write(api: Api<Pod>, name: String, patch: Value) -> Done {
    let params = PatchParams::default();
    let (outcome, taken) = match api
        .patch_status(&name, &params, &Patch::Merge(&patch))
        .await
    {
        // Somebody wrote in between: the next patch is made from what is there now.
        Err(kube::Error::Api(status)) if status.code == 409 => (api.get(&name).await, false),
        other => (other, true),
    };
    Done::Written(outcome.map(|pod| Answer {
        pod: Box::new(pod),
        taken,
    }))
}

async fn delete(api: Api<Pod>, name: String, uid: String) -> Done {
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions {
            uid: Some(uid),
            resource_version: None,
        }),
        ..Default::default()
    };
    let outcome = match api.delete(&name, &params).await {
        Ok(_) => Ok(()),
        // Gone, or another pod has this name.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(error),
    };
    Done::Deleted(outcome)
}

/// The merge patch from what the API shows to `status`, for exactly the version it shows: lists are
/// replaced as a whole, so a write in between must not be lost. `None` if nothing differs.
fn patch(shown: &Pod, status: &PodStatus) -> Option<Value> {
    let old = serde_json::to_value(shown.status.clone().unwrap_or_default()).ok()?;
    let new = serde_json::to_value(status).ok()?;
    let changes = difference(&old, &new)?;
    Some(json!({
        "metadata": {
            "uid": shown.metadata.uid,
            "resourceVersion": shown.metadata.resource_version,
        },
        "status": changes,
    }))
}

/// What must be merged into `old` to make it `new`.
fn difference(old: &Value, new: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return (old != new).then(|| new.clone());
    };
    let mut changes = Map::new();
    for (key, value) in new {
        match old.get(key) {
            Some(before) => {
                if let Some(change) = difference(before, value) {
                    changes.insert(key.clone(), change);
                }
            }
            None => {
                changes.insert(key.clone(), value.clone());
            }
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        changes.insert(key.clone(), Value::Null);
    }
    (!changes.is_empty()).then_some(Value::Object(changes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_holds_only_what_differs() {
        let old = json!({"phase": "Pending", "podIP": "1", "list": [1], "gone": 1});
        let new = json!({"phase": "Running", "podIP": "1", "list": [1, 2]});
        assert_eq!(
            difference(&old, &new),
            Some(json!({"phase": "Running", "list": [1, 2], "gone": null}))
        );
        assert_eq!(difference(&new, &new), None);
    }
}
