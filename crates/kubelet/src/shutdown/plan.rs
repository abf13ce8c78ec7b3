//! Which pods end when, and with which grace period.

use std::time::Duration;

use crate::{
    configuration::{KubeletConfiguration, ShutdownGracePeriodByPodPriority},
    pod::spec,
    registry::PublishedPod,
};

/// The lowest priority of critical pods.
const CRITICAL: i32 = 2_000_000_000;

/// Pods that end together.
#[derive(Clone)]
pub(super) struct Group {
    pub priority: i32,
    pub seconds: i64,
    pub pods: Vec<PublishedPod>,
}

/// The duration of the whole shutdown; zero if not configured.
pub fn period(settings: &KubeletConfiguration) -> Duration {
    let periods = periods(settings);
    let seconds = periods
        .iter()
        .map(|period| u64::try_from(period.shutdown_grace_period_seconds).unwrap_or(0));
    Duration::from_secs(seconds.fold(0, u64::saturating_add))
}

/// The grace periods by priority, the lowest first.
fn periods(settings: &KubeletConfiguration) -> Vec<ShutdownGracePeriodByPodPriority> {
    let mut periods = settings.shutdown_grace_period_by_pod_priority.clone();
    let all = settings.shutdown_grace_period.0;
    if periods.is_empty() && !all.is_zero() {
        let critical = settings.shutdown_grace_period_critical_pods.0;
        let of = |priority, period: Duration| ShutdownGracePeriodByPodPriority {
            priority,
            shutdown_grace_period_seconds: i64::try_from(period.as_secs()).unwrap_or(i64::MAX),
        };
        periods = vec![
            of(0, all.saturating_sub(critical)),
            of(CRITICAL, critical.min(all)),
        ];
    }
    periods.sort_by_key(|period| period.priority);
    periods
}

/// The pods in the order in which they end. Pods below the lowest priority end with its group.
pub(super) fn groups(settings: &KubeletConfiguration, pods: Vec<PublishedPod>) -> Vec<Group> {
    let mut groups: Vec<Group> = periods(settings)
        .into_iter()
        .map(|period| Group {
            priority: period.priority,
            seconds: period.shutdown_grace_period_seconds,
            pods: Vec::new(),
        })
        .collect();
    for seen in pods {
        let priority = spec::spec(&seen.pod).priority.unwrap_or(0);
        let above = groups.partition_point(|group| group.priority <= priority);
        if let Some(group) = groups.get_mut(above.saturating_sub(1)) {
            group.pods.push(seen);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::Pod;

    use super::*;
    use crate::configuration::GoDuration;

    fn pod(priority: Option<i32>) -> PublishedPod {
        let pod: Pod = serde_json::from_value(
            serde_json::json!({"spec": {"priority": priority, "containers": []}}),
        )
        .unwrap();
        PublishedPod::new(Arc::new(pod))
    }

    fn planned(settings: &KubeletConfiguration) -> Vec<(i32, i64, Vec<Option<i32>>)> {
        let pods = [
            None,
            Some(-5),
            Some(10),
            Some(99_999),
            Some(100_000),
            Some(2_000_001_000),
        ];
        let groups = groups(settings, pods.into_iter().map(pod).collect());
        let shown = groups.into_iter().map(|group| {
            let pods = group.pods.iter();
            let priorities = pods.map(|seen| spec::spec(&seen.pod).priority);
            (group.priority, group.seconds, priorities.collect())
        });
        shown.collect()
    }

    #[test]
    fn critical_pods_end_last_with_their_part_of_the_time() {
        let settings = KubeletConfiguration {
            shutdown_grace_period: GoDuration::from_secs(30),
            shutdown_grace_period_critical_pods: GoDuration::from_secs(10),
            ..KubeletConfiguration::default()
        };
        assert_eq!(period(&settings), Duration::from_secs(30));
        assert_eq!(
            planned(&settings),
            [
                (
                    0,
                    20,
                    vec![None, Some(-5), Some(10), Some(99_999), Some(100_000)]
                ),
                (2_000_000_000, 10, vec![Some(2_000_001_000)]),
            ]
        );
        assert!(planned(&KubeletConfiguration::default()).is_empty());
        assert!(period(&KubeletConfiguration::default()).is_zero());
    }

    #[test]
    fn priorities_decide_where_they_are_configured() {
        let of = |priority, shutdown_grace_period_seconds| ShutdownGracePeriodByPodPriority {
            priority,
            shutdown_grace_period_seconds,
        };
        let settings = KubeletConfiguration {
            shutdown_grace_period_by_pod_priority: vec![of(100_000, 10), of(10, 60), of(0, 120)],
            ..KubeletConfiguration::default()
        };
        assert_eq!(period(&settings), Duration::from_secs(190));
        assert_eq!(
            planned(&settings),
            [
                (0, 120, vec![None, Some(-5)]),
                (10, 60, vec![Some(10), Some(99_999)]),
                (100_000, 10, vec![Some(100_000), Some(2_000_001_000)]),
            ]
        );
    }
}
