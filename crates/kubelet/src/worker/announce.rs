//! Events about containers that wait.

use reconcile::Kind;

use super::Worker;
use crate::pod::{decide::Decision, memory::Waiting, spec};

impl Worker {
    /// Records one event when a container starts to back off.
    pub(super) fn announce_waiting(&mut self, decision: &Decision) {
        for (name, waiting) in &decision.waiting {
            let is_new = self.memory.announced.get(name) != Some(waiting);
            if is_new {
                self.announce(name, waiting);
            }
        }
        self.memory.announced = decision.waiting.iter().cloned().collect();
    }

    fn announce(&self, name: &str, waiting: &Waiting) {
        let pod = &self.subject.pod;
        let event = |kind, reason: &str, message: String| {
            let events = &self.core.events;
            events.container(pod, name, kind, reason, message);
        };
        match waiting.reason.as_str() {
            "CrashLoopBackOff" => {
                let pod = spec::described(pod);
                let message = format!("Back-off restarting failed container {name} in pod {pod}");
                event(Kind::Warning, "BackOff", message);
            }
            "ImagePullBackOff" => {
                let image = spec::find(pod, name).and_then(|(_, c)| c.image.clone());
                let image = image.unwrap_or_default();
                let message = format!("Back-off pulling image {image:?}");
                event(Kind::Normal, "BackOff", message);
                event(Kind::Warning, "Failed", "Error: ImagePullBackOff".into());
            }
            _ => {}
        }
    }
}
