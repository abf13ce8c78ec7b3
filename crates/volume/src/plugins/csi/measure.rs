//! Volume statistics and conditions from CSI drivers.

use csi::v1::{self, volume_usage::Unit};

use crate::storage::{Condition, Measure, Usage};

/// Converts a response; `None` if it has neither usage nor condition.
pub(super) fn from_answer(
    answer: v1::NodeGetVolumeStatsResponse,
    says_condition: bool,
) -> Option<Measure> {
    if !says_condition && answer.usage.is_empty() {
        return None;
    }
    let condition = says_condition.then(|| condition(answer.volume_condition.unwrap_or_default()));
    let usage = usage(&answer.usage);
    Some(Measure { usage, condition })
}

fn condition(said: v1::VolumeCondition) -> Condition {
    Condition {
        is_abnormal: said.abnormal,
        message: said.message,
    }
}

fn usage(all: &[v1::VolumeUsage]) -> Usage {
    let number = |value: i64| u64::try_from(value).ok();
    let mut usage = Usage::default();
    for one in all {
        match one.unit() {
            Unit::Bytes => {
                usage.capacity = number(one.total);
                usage.available = number(one.available);
                usage.used = number(one.used);
            }
            Unit::Inodes => {
                usage.inodes = number(one.total);
                usage.inodes_free = number(one.available);
                usage.inodes_used = number(one.used);
            }
            Unit::Unknown => {}
        }
    }
    usage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_counts_only_from_drivers_that_report_it() {
        let answer = |usage| v1::NodeGetVolumeStatsResponse {
            usage,
            volume_condition: Some(v1::VolumeCondition {
                abnormal: true,
                message: "gone".into(),
            }),
        };
        assert_eq!(from_answer(answer(vec![]), false), None);
        let condition = from_answer(answer(vec![]), true).unwrap().condition;
        let expected = Condition {
            is_abnormal: true,
            message: "gone".into(),
        };
        assert_eq!(condition, Some(expected));
        let bytes = v1::VolumeUsage {
            total: 10,
            used: 4,
            available: 6,
            unit: Unit::Bytes as i32,
        };
        let measure = from_answer(answer(vec![bytes]), false).unwrap();
        assert_eq!((measure.usage.used, measure.condition), (Some(4), None));
        // A driver that supports conditions and sends none reports a healthy volume.
        let silent = v1::NodeGetVolumeStatsResponse::default();
        let condition = from_answer(silent, true).unwrap().condition;
        assert_eq!(condition, Some(Condition::default()));
    }
}
