//! Writes in the background why pods have no node. Few are written at once, so that many pods that fit nowhere do not delay
//! bindings, and of a pod only the newest explanation waits.

use std::{collections::HashMap, sync::Arc};

use lifecycle::Context;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::{
    pod::{PodInfo, Unscheduled},
    write::{Nomination, Writes},
};

/// The maximum number of concurrent writes.
const MAX_CONCURRENT: usize = 32;

/// Why a pod has no node.
#[derive(Debug)]
pub(crate) struct Explanation {
    pub(crate) pod: Arc<PodInfo>,
    pub(crate) why: Unscheduled,
    pub(crate) nomination: Nomination,
    /// Whether to record an event, too.
    pub(crate) with_event: bool,
}

impl Explanation {
    async fn write(self, writes: &Writes) {
        if self.with_event {
            writes.explain(&self.pod, &self.why, &self.nomination).await;
        } else {
            writes.gated(&self.pod, &self.why).await;
        }
    }
}

/// The explanations that wait to be written.
pub(crate) struct Explanations {
    /// Guards the newest explanation of each pod, by uid.
    waiting: Arc<Mutex<HashMap<Arc<str>, Explanation>>>,
    turns: Arc<Semaphore>,
}

impl Default for Explanations {
    fn default() -> Self {
        Self {
            waiting: Arc::default(),
            turns: Arc::new(Semaphore::new(MAX_CONCURRENT)),
        }
    }
}

impl Explanations {
    /// Drops what waits to be written about a pod that has a node now.
    pub(crate) fn withdraw(&self, uid: &str) {
        self.waiting.lock().remove(uid);
    }

    /// Writes an explanation in the background.
    pub(crate) fn write(&self, context: &Context, writes: &Arc<Writes>, explanation: Explanation) {
        let uid = explanation.pod.uid.clone();
        if !put(&mut self.waiting.lock(), explanation) {
            return;
        }
        let (waiting, turns) = (self.waiting.clone(), self.turns.clone());
        let writes = writes.clone();
        context.spawn("explain", async move {
            // The semaphore is never closed.
            let _turn = turns.acquire_owned().await;
            let newest = waiting.lock().remove(&uid);
            if let Some(explanation) = newest {
                explanation.write(&writes).await;
            }
        });
    }
}

/// Returns whether no explanation of the pod waited. A nomination that was not written yet stays.
fn put(waiting: &mut HashMap<Arc<str>, Explanation>, mut explanation: Explanation) -> bool {
    let old = waiting.remove(&explanation.pod.uid);
    let is_first = old.is_none();
    if let Some(old) = old
        && explanation.nomination == Nomination::Keep
    {
        explanation.nomination = old.nomination;
    }
    waiting.insert(explanation.pod.uid.clone(), explanation);
    is_first
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn of_a_pod_the_newest_explanation_waits_with_a_nomination_that_was_not_written() {
        let mut waiting = HashMap::new();
        let set = || Nomination::Set("n1".into());
        for (pod, message, nomination, is_first) in [
            ("a", "first", set(), true),
            ("b", "first", Nomination::Keep, true),
            ("a", "second", Nomination::Keep, false),
            ("b", "second", Nomination::Clear, false),
            ("b", "third", set(), false),
        ] {
            let explanation = Explanation {
                pod: samples::pod(pod, "1", "1"),
                why: Unscheduled {
                    reason: "Unschedulable".into(),
                    message: message.into(),
                },
                nomination,
                with_event: true,
            };
            assert_eq!(put(&mut waiting, explanation), is_first, "{pod} {message}");
        }
        for (uid, message) in [("uid-a", "second"), ("uid-b", "third")] {
            let left = waiting.remove(uid).unwrap();
            assert_eq!((&*left.why.message, left.nomination), (message, set()));
        }
        assert!(waiting.is_empty());
    }
}
