//! How long attaching and detaching take: from the write of a VolumeAttachment to the driver's answer. Pure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::decide::Attachment;

/// An operation whose end was not seen yet.
struct Begun {
    driver: String,
    at: Instant,
    /// The last error that was counted.
    error: Option<String>,
}

/// The operations of one node, by attachment.
#[derive(Default)]
pub(super) struct Operations {
    attaching: BTreeMap<String, Begun>,
    detaching: BTreeMap<String, Begun>,
}

/// An operation that succeeded or failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) driver: String,
    /// As metrics name it.
    pub(super) operation: &'static str,
    pub(super) is_ok: bool,
    pub(super) took: Duration,
}

impl Operations {
    pub(super) fn attach(&mut self, attachment: String, driver: &str, now: Instant) {
        begin(&mut self.attaching, attachment, driver, now);
    }

    pub(super) fn detach(&mut self, attachment: String, driver: &str, now: Instant) {
        self.attaching.remove(&attachment);
        begin(&mut self.detaching, attachment, driver, now);
    }

    /// What has ended, by the node's attachments. A failed attach goes on and may fail again with another error.
    pub(super) fn observe(&mut self, attachments: &[Attachment], now: Instant) -> Vec<Ended> {
        let mut ended = Vec::new();
        let mut end = |operation, begun: &Begun, is_ok| {
            ended.push(Ended {
                driver: begun.driver.clone(),
                operation,
                is_ok,
                took: now.saturating_duration_since(begun.at),
            });
        };
        for known in attachments {
            let Some(begun) = self.attaching.get_mut(&known.name) else {
                continue;
            };
            if known.is_attached {
                end("volume_attach", begun, true);
                self.attaching.remove(&known.name);
            } else if known.error.is_some() && known.error != begun.error {
                end("volume_attach", begun, false);
                begun.error.clone_from(&known.error);
                begun.at = now;
            }
        }
        let is_left = |name: &str| attachments.iter().any(|known| known.name == name);
        self.attaching.retain(|name, _| is_left(name));
        self.detaching.retain(|name, begun| {
            let is_left = is_left(name);
            if !is_left {
                end("volume_detach", begun, true);
            }
            is_left
        });
        ended
    }
}

fn begin(operations: &mut BTreeMap<String, Begun>, name: String, driver: &str, now: Instant) {
    let begun = || Begun {
        driver: driver.to_owned(),
        at: now,
        error: None,
    };
    operations.entry(name).or_insert_with(begun);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(is_attached: bool, error: Option<&str>) -> Attachment {
        Attachment {
            name: "a".to_owned(),
            unique_name: None,
            volume: "v".to_owned(),
            is_attached,
            is_leaving: false,
            error: error.map(ToOwned::to_owned),
        }
    }

    #[test]
    fn an_operation_lasts_from_the_write_to_the_drivers_answer() {
        let (mut operations, begin) = (Operations::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let shown = |ended: Vec<Ended>| {
            let shown = ended.iter().map(|one| {
                assert_eq!(one.driver, "x.io");
                let outcome = if one.is_ok { "ok" } else { "failed" };
                format!("{} {outcome} {}", one.operation, one.took.as_secs())
            });
            shown.collect::<Vec<_>>()
        };
        let nothing: [&str; 0] = [];
        operations.attach("a".to_owned(), "x.io", at(0));
        assert_eq!(
            shown(operations.observe(&[attachment(false, None)], at(1))),
            nothing
        );
        let failed = [attachment(false, Some("full"))];
        assert_eq!(
            shown(operations.observe(&failed, at(3))),
            ["volume_attach failed 3"]
        );
        assert_eq!(
            shown(operations.observe(&failed, at(4))),
            nothing,
            "the same error"
        );
        let attached = [attachment(true, None)];
        assert_eq!(
            shown(operations.observe(&attached, at(8))),
            ["volume_attach ok 5"]
        );
        assert_eq!(shown(operations.observe(&attached, at(9))), nothing);
        operations.detach("a".to_owned(), "x.io", at(10));
        operations.detach("a".to_owned(), "x.io", at(11));
        assert_eq!(shown(operations.observe(&attached, at(12))), nothing);
        assert_eq!(
            shown(operations.observe(&[], at(17))),
            ["volume_detach ok 7"]
        );
        assert_eq!(shown(operations.observe(&[], at(18))), nothing);
    }
}
