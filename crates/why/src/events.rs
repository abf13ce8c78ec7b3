//! Events of an object, newest last.

use client::{Api, kube};
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;

use crate::Result;

/// How many warnings are shown.
const SHOWN: usize = 3;

/// The last warnings about an object, deduplicated.
pub(crate) async fn warnings(
    client: &kube::Client,
    namespace: &str,
    kind: &str,
    name: &str,
) -> Result<Vec<Warning>> {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let fields = format!("involvedObject.kind={kind},involvedObject.name={name},type=Warning");
    let found = events.list(&ListParams::default().fields(&fields)).await?;
    Ok(newest(found))
}

/// A warning Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Warning {
    /// The event's reason.
    pub reason: String,
    /// The event's message.
    pub message: String,
    /// How often.
    pub count: i32,
}

impl Warning {
    /// As a line.
    pub(crate) fn line(&self) -> String {
        let times = match self.count {
            0 | 1 => String::new(),
            count => format!(" ({count} times)"),
        };
        format!("{}: {}{times}", self.reason, self.message)
    }
}

fn newest(mut events: Vec<Event>) -> Vec<Warning> {
    events.sort_by_key(last_seen);
    let message_of = |event: &Event| {
        event
            .message
            .as_deref()
            .unwrap_or_default()
            .trim_end()
            .to_owned()
    };
    // Reasons of events that have a cause in their message.
    let explained: Vec<Option<String>> = events
        .iter()
        .filter(|event| !is_bare(&message_of(event)))
        .map(|event| event.reason.clone())
        .collect();
    let mut seen: Vec<Warning> = Vec::new();
    for event in events.into_iter().rev() {
        let message = message_of(&event);
        if is_bare(&message) && explained.contains(&event.reason) {
            continue;
        }
        let warning = Warning {
            reason: event.reason.unwrap_or_default(),
            message,
            count: event.count.unwrap_or(1),
        };
        let is_known = seen.iter().any(|other| other.reason == warning.reason);
        if seen.len() < SHOWN && !is_known {
            seen.push(warning);
        }
    }
    seen.reverse();
    seen
}

/// Whether a message is only a reason, such as `Error: ImagePullBackOff`: usually an earlier event has the cause.
fn is_bare(message: &str) -> bool {
    let reason = message.strip_prefix("Error: ");
    reason.is_some_and(|reason| !reason.contains(char::is_whitespace))
}

fn last_seen(event: &Event) -> Option<jiff::Timestamp> {
    let series = event.series.as_ref();
    let series = series.and_then(|series| series.last_observed_time.as_ref());
    series
        .map(|time| time.0)
        .or(event.last_timestamp.as_ref().map(|time| time.0))
        .or(event.event_time.as_ref().map(|time| time.0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_newest_message_of_each_reason_is_shown_preferably_one_that_says_more_than_a_reason() {
        let event = |second: u32, reason: &str, message: &str| -> Event {
            let time = format!("2026-01-01T00:00:{second:02}Z");
            let object = json!({"metadata": {}, "involvedObject": {}, "lastTimestamp": time,
                                "reason": reason, "message": message});
            serde_json::from_value(object).unwrap()
        };
        let shown = newest(vec![
            event(1, "Failed", "Failed to pull image \"a\": no answer"),
            event(2, "Failed", "Error: ErrImagePull"),
            event(3, "Failed", "Error: ImagePullBackOff"),
            event(4, "Unhealthy", "first"),
            event(5, "Unhealthy", "Error: in two words"),
            event(6, "FailedMount", "Error: Timeout"),
        ]);
        let shown: Vec<&str> = shown.iter().map(|warning| &*warning.message).collect();
        let expected = [
            "Failed to pull image \"a\": no answer",
            "Error: in two words",
            "Error: Timeout",
        ];
        assert_eq!(shown, expected);
    }
}
