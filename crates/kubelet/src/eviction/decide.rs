//! Decides from observations which thresholds are met for long enough, and which conditions the
//! node has. Pure; [`State`] holds what is remembered.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use super::thresholds::{Signal, Threshold};

/// The available amount and the capacity of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    pub available: i64,
    pub capacity: i64,
}

/// The signals that could be observed.
pub type Observations = BTreeMap<Signal, Observation>;

/// State between two evaluations.
#[derive(Debug, Default)]
pub struct State {
    /// Thresholds that are met, and since when.
    met_since: Vec<(Threshold, Timestamp)>,
    /// Thresholds that were acted upon and are not resolved.
    acted_upon: Vec<Threshold>,
    /// When a condition was last true.
    condition_seen: BTreeMap<&'static str, Timestamp>,
}

/// The result of an evaluation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    /// Conditions that are true.
    pub conditions: Vec<&'static str>,
    /// Thresholds to act upon, the most urgent first.
    pub thresholds: Vec<Threshold>,
}

/// Evaluates the observations.
pub fn evaluate(
    state: &mut State,
    thresholds: &[Threshold],
    transition: Duration,
    seen: &Observations,
    now: Timestamp,
) -> Verdict {
    let mut met: Vec<Threshold> = thresholds
        .iter()
        .filter(|threshold| is_met(threshold, seen, false))
        .copied()
        .collect();
    // Thresholds that were acted upon remain met until the minimum is reclaimed.
    for threshold in &state.acted_upon {
        if is_met(threshold, seen, true) && !met.contains(threshold) {
            met.push(*threshold);
        }
    }
    let since = |threshold: &Threshold| {
        let known = state.met_since.iter().find(|(known, _)| known == threshold);
        known.map_or(now, |(_, since)| *since)
    };
    let met_since: Vec<_> = met
        .iter()
        .map(|threshold| (*threshold, since(threshold)))
        .collect();
    for threshold in &met {
        state
            .condition_seen
            .insert(threshold.signal.condition(), now);
    }
    state
        .condition_seen
        .retain(|_, seen| now - transition < *seen || *seen == now);
    let mut due: Vec<Threshold> = met_since
        .iter()
        .filter(|(threshold, since)| now - threshold.grace >= *since)
        .map(|(threshold, _)| *threshold)
        .collect();
    state.met_since = met_since;
    state.acted_upon.clone_from(&due);
    // Memory first: it runs out fastest.
    due.sort_by_key(|threshold| threshold.signal);
    Verdict {
        conditions: state.condition_seen.keys().copied().collect(),
        thresholds: due,
    }
}

/// Whether less than the threshold is available; with `with_reclaim`, less than threshold and
/// minimum reclaim together.
pub fn is_met(threshold: &Threshold, seen: &Observations, with_reclaim: bool) -> bool {
    let Some(observed) = seen.get(&threshold.signal) else {
        return false;
    };
    let mut wanted = threshold.value.resolve(observed.capacity);
    if with_reclaim {
        wanted = wanted.saturating_add(threshold.min_reclaim.resolve(observed.capacity));
    }
    observed.available < wanted
}

#[cfg(test)]
mod tests {
    use super::{
        super::thresholds::{Amount, Resource},
        *,
    };

    const HARD: Threshold = Threshold {
        signal: Signal::NodeFsAvailable,
        value: Amount::Quantity(100),
        grace: Duration::ZERO,
        min_reclaim: Amount::Quantity(50),
    };
    const SOFT: Threshold = Threshold {
        signal: Signal::MemoryAvailable,
        value: Amount::Share(0.5),
        grace: Duration::from_secs(60),
        min_reclaim: Amount::Quantity(0),
    };
    const TRANSITION: Duration = Duration::from_secs(300);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn seen(disk: i64, memory: i64) -> Observations {
        let of = |available| Observation {
            available,
            capacity: 1000,
        };
        [
            (Signal::NodeFsAvailable, of(disk)),
            (Signal::MemoryAvailable, of(memory)),
        ]
        .into()
    }

    fn step(state: &mut State, second: i64, disk: i64, memory: i64) -> Verdict {
        let seen = seen(disk, memory);
        evaluate(state, &[HARD, SOFT], TRANSITION, &seen, at(second))
    }

    #[test]
    fn a_hard_threshold_is_acted_upon_at_once_until_the_minimum_is_regained() {
        let mut state = State::default();
        assert_eq!(step(&mut state, 0, 500, 900), Verdict::default());
        let short = step(&mut state, 10, 99, 900);
        assert_eq!(
            (short.conditions, short.thresholds),
            (vec!["DiskPressure"], vec![HARD])
        );
        // Above the threshold, but less than the minimum reclaim.
        assert_eq!(step(&mut state, 20, 120, 900).thresholds, [HARD]);
        assert_eq!(step(&mut state, 30, 150, 900).thresholds, []);
        // Once resolved, only the threshold itself counts again.
        assert_eq!(step(&mut state, 40, 120, 900).thresholds, []);
    }

    #[test]
    fn a_soft_threshold_must_last_and_starts_anew_when_it_was_not_met() {
        let mut state = State::default();
        assert_eq!(step(&mut state, 0, 500, 400).thresholds, []);
        assert_eq!(step(&mut state, 59, 500, 400).thresholds, []);
        assert_eq!(step(&mut state, 60, 500, 400).thresholds, [SOFT]);
        assert_eq!(step(&mut state, 70, 500, 600).thresholds, []);
        assert_eq!(step(&mut state, 80, 500, 400).thresholds, []);
    }

    #[test]
    fn a_condition_stays_for_the_transition_period() {
        let mut state = State::default();
        assert_eq!(step(&mut state, 0, 50, 900).conditions, ["DiskPressure"]);
        assert_eq!(step(&mut state, 299, 500, 900).conditions, ["DiskPressure"]);
        assert_eq!(step(&mut state, 300, 500, 900).conditions, [""; 0]);
        // A soft threshold sets the condition before its grace period has passed.
        assert_eq!(
            step(&mut state, 400, 500, 400).conditions,
            ["MemoryPressure"]
        );
    }

    #[test]
    fn memory_pressure_comes_first_and_unobserved_signals_are_not_met() {
        let mut state = State::default();
        step(&mut state, 0, 50, 400);
        let both = step(&mut state, 100, 50, 400);
        let order: Vec<_> = both
            .thresholds
            .iter()
            .map(|t| t.signal.resource())
            .collect();
        assert_eq!(order, [Resource::Memory, Resource::EphemeralStorage]);
        let blind = evaluate(
            &mut State::default(),
            &[HARD],
            TRANSITION,
            &BTreeMap::new(),
            at(0),
        );
        assert_eq!(blind, Verdict::default());
    }
}
