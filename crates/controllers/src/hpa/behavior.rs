//! Limits a proposed size by bounds, scaling policies and stabilization, with the history of one
//! autoscaler. Pure; the time is passed in.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{HPAScalingRules, HorizontalPodAutoscalerBehavior};

/// The default stabilization window for scaling down.
const DOWNSCALE_STABILIZATION: Duration = Duration::from_secs(300);
/// Without `behavior`, one step at most doubles the size, or reaches four.
const SCALE_UP_FACTOR: f64 = 2.0;
const SCALE_UP_MINIMUM: f64 = 4.0;

/// The recommendations and changes of an autoscaler.
#[derive(Debug, Default)]
pub(super) struct History {
    recommendations: Vec<(Timestamp, i32)>,
    scale_ups: Vec<(Timestamp, i32)>,
    scale_downs: Vec<(Timestamp, i32)>,
}

/// A proposed size and its bounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) min: i32,
    pub(super) max: i32,
    pub(super) current: i32,
    /// The size that the metrics propose.
    pub(super) desired: i32,
}

/// A reason and its message, as in a condition.
pub(super) type Explanation = (&'static str, &'static str);

/// The resulting size, and the conditions AbleToScale and ScalingLimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) replicas: i32,
    pub(super) able_to_scale: Explanation,
    pub(super) limited: bool,
    pub(super) limit: Explanation,
}

const READY: Explanation = ("ReadyForNewScale", "recommended size matches current size");
const UP_STABILIZED: Explanation = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const DOWN_STABILIZED: Explanation = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const WITHIN: Explanation = (
    "DesiredWithinRange",
    "the desired count is within the acceptable range",
);
const TOO_MANY: Explanation = (
    "TooManyReplicas",
    "the desired replica count is more than the maximum replica count",
);
const TOO_FEW: Explanation = (
    "TooFewReplicas",
    "the desired replica count is less than the minimum replica count",
);
const UP_LIMIT: Explanation = (
    "ScaleUpLimit",
    "the desired replica count is increasing faster than the maximum scale rate",
);
const DOWN_LIMIT: Explanation = (
    "ScaleDownLimit",
    "the desired replica count is decreasing faster than the maximum scale rate",
);

impl History {
    /// Counts the initial size as a recommendation, so that a restart does not scale down at once.
    pub(super) fn begin(&mut self, current: i32, now: Timestamp) {
        if self.recommendations.is_empty() {
            self.recommendations.push((now, current));
        }
    }

    /// Limits a proposal and records it.
    pub(super) fn decide(
        &mut self,
        bounds: Bounds,
        behavior: Option<&HorizontalPodAutoscalerBehavior>,
        now: Timestamp,
    ) -> Decision {
        let rules = behavior.map(|behavior| {
            let up = Rules::new(behavior.scale_up.as_ref(), Duration::ZERO);
            let down = Rules::new(behavior.scale_down.as_ref(), DOWNSCALE_STABILIZATION);
            (up, down)
        });
        let (stable, explanation) = match &rules {
            None => (self.highest(bounds.desired, now), DOWN_STABILIZED),
            Some((up, down)) => self.stabilized(bounds, up.window, down.window, now),
        };
        let kept = match &rules {
            None => DOWNSCALE_STABILIZATION,
            Some((up, down)) => up.window.max(down.window),
        };
        self.remember(bounds.desired, kept, now);
        let able_to_scale = if stable == bounds.desired {
            READY
        } else {
            explanation
        };
        let bounds = Bounds {
            desired: stable,
            ..bounds
        };
        let (replicas, limit) = match &rules {
            None => within_default_rates(bounds),
            Some((up, down)) => self.within_rates(bounds, up, down, now),
        };
        Decision {
            replicas,
            able_to_scale,
            limited: replicas != stable,
            limit,
        }
    }

    /// Records a change of the size for the scaling policies.
    pub(super) fn scaled(
        &mut self,
        from: i32,
        to: i32,
        behavior: Option<&HorizontalPodAutoscalerBehavior>,
        now: Timestamp,
    ) {
        let Some(behavior) = behavior else { return };
        let (events, rules) = if to > from {
            (&mut self.scale_ups, behavior.scale_up.as_ref())
        } else {
            (&mut self.scale_downs, behavior.scale_down.as_ref())
        };
        let periods = rules.into_iter().flat_map(|rules| rules.policies.iter());
        let longest = periods.flatten().map(|policy| policy.period_seconds).max();
        let oldest = now - seconds(longest.unwrap_or(0));
        events.retain(|(time, _)| *time >= oldest);
        events.push((now, to.abs_diff(from).try_into().unwrap_or(i32::MAX)));
    }

    fn remember(&mut self, desired: i32, window: Duration, now: Timestamp) {
        self.recommendations
            .retain(|(time, _)| *time + window >= now);
        self.recommendations.push((now, desired));
    }

    fn recent(&self, window: Duration, now: Timestamp) -> impl Iterator<Item = i32> {
        let recommendations = self.recommendations.iter();
        let recent = recommendations.filter(move |(time, _)| *time + window > now);
        recent.map(|(_, replicas)| *replicas)
    }

    fn highest(&self, desired: i32, now: Timestamp) -> i32 {
        let recent = self.recent(DOWNSCALE_STABILIZATION, now);
        recent.fold(desired, i32::max)
    }

    fn stabilized(
        &self,
        bounds: Bounds,
        up: Duration,
        down: Duration,
        now: Timestamp,
    ) -> (i32, Explanation) {
        let lowest = self.recent(up, now).fold(bounds.desired, i32::min);
        let highest = self.recent(down, now).fold(bounds.desired, i32::max);
        let stable = bounds.current.max(lowest).min(highest);
        let explanation = if bounds.desired >= bounds.current {
            UP_STABILIZED
        } else {
            DOWN_STABILIZED
        };
        (stable, explanation)
    }

    fn within_rates(
        &self,
        bounds: Bounds,
        up: &Rules<'_>,
        down: &Rules<'_>,
        now: Timestamp,
    ) -> (i32, Explanation) {
        let Bounds {
            min,
            max,
            current,
            desired,
        } = bounds;
        if desired > current {
            let rate = self.limit(current, up, Direction::Up, now).max(current);
            let (limit, explanation) = if max > rate {
                (rate, UP_LIMIT)
            } else {
                (max, TOO_MANY)
            };
            if desired > limit {
                return (limit, explanation);
            }
        } else if desired < current {
            let rate = self.limit(current, down, Direction::Down, now).min(current);
            let (limit, explanation) = if min < rate {
                (rate, DOWN_LIMIT)
            } else {
                (min, TOO_FEW)
            };
            if desired < limit {
                return (limit, explanation);
            }
        }
        (desired, WITHIN)
    }

    /// The size that the scaling policies allow in one direction.
    fn limit(&self, current: i32, rules: &Rules<'_>, to: Direction, now: Timestamp) -> i32 {
        if rules.select == "Disabled" {
            return current;
        }
        let proposals = rules.policies().map(|policy| {
            let since = now - seconds(policy.period_seconds);
            let added = changed(&self.scale_ups, since);
            let removed = changed(&self.scale_downs, since);
            let start = f64::from(current.saturating_sub(added).saturating_add(removed));
            let change = match policy.type_.as_str() {
                "Pods" => f64::from(policy.value),
                _ => start * f64::from(policy.value) / 100.0,
            };
            match to {
                // Rounded up, so that a small percentage still scales up a small workload.
                Direction::Up => (start + change).ceil() as i32,
                Direction::Down => (start - change) as i32,
            }
        });
        let least_change = rules.select == "Min";
        let limit = match (to, least_change) {
            (Direction::Up, true) | (Direction::Down, false) => proposals.min(),
            (Direction::Up, false) | (Direction::Down, true) => proposals.max(),
        };
        limit.unwrap_or(current)
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Up,
    Down,
}

/// The scaling rules of one direction, with defaults.
struct Rules<'a> {
    rules: Option<&'a HPAScalingRules>,
    window: Duration,
    select: &'a str,
}

impl<'a> Rules<'a> {
    fn new(rules: Option<&'a HPAScalingRules>, window: Duration) -> Self {
        let set = rules.and_then(|rules| rules.stabilization_window_seconds);
        let select = rules.and_then(|rules| rules.select_policy.as_deref());
        Self {
            rules,
            window: set.map_or(window, seconds),
            select: select.unwrap_or("Max"),
        }
    }

    fn policies(
        &self,
    ) -> impl Iterator<Item = &'a k8s_openapi::api::autoscaling::v2::HPAScalingPolicy> {
        let policies = self.rules.into_iter();
        policies.flat_map(|rules| rules.policies.iter().flatten())
    }
}

fn seconds(seconds: i32) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

fn changed(events: &[(Timestamp, i32)], since: Timestamp) -> i32 {
    let recent = events.iter().filter(|(time, _)| *time > since);
    recent
        .map(|(_, change)| *change)
        .fold(0, i32::saturating_add)
}

fn within_default_rates(bounds: Bounds) -> (i32, Explanation) {
    let rate = (SCALE_UP_FACTOR * f64::from(bounds.current)).max(SCALE_UP_MINIMUM) as i32;
    let (max, explanation) = if bounds.max > rate {
        (rate, UP_LIMIT)
    } else {
        (bounds.max, TOO_MANY)
    };
    if bounds.desired < bounds.min {
        (bounds.min, TOO_FEW)
    } else if bounds.desired > max {
        (max, explanation)
    } else {
        (bounds.desired, WITHIN)
    }
}
