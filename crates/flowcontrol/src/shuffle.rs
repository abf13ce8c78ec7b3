//! Shuffle sharding: each flow uses a few of the many queues, its hand. Two flows rarely have the
//! same hand, so that a flow that fills all its queues leaves the others at least one.

/// The hand of a flow: distinct numbers below `deck`, always the same.
pub(super) fn deal(flow: u64, deck: usize, hand: usize) -> Vec<usize> {
    let mut entropy = flow;
    let mut dealt: Vec<usize> = Vec::with_capacity(hand);
    for left in (1..=deck).rev().take(hand) {
        // One of the remaining cards, counted without those dealt before.
        let mut card = (entropy % left as u64) as usize;
        entropy /= left as u64;
        let mut before = dealt.clone();
        before.sort_unstable();
        for taken in before {
            if taken <= card {
                card += 1;
            }
        }
        dealt.push(card);
    }
    dealt
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use super::*;

    #[test]
    fn a_hand_has_distinct_cards_of_the_deck() {
        for (deck, hand) in [(1, 1), (8, 8), (64, 6), (128, 6), (10, 3)] {
            for flow in [0, 1, 7, u64::MAX, 0x9e37_79b9_7f4a_7c15] {
                let dealt = deal(flow, deck, hand);
                let distinct: BTreeSet<usize> = dealt.iter().copied().collect();
                assert_eq!((dealt.len(), distinct.len()), (hand, hand), "{dealt:?}");
                assert!(dealt.iter().all(|card| *card < deck), "{dealt:?}");
                assert_eq!(dealt, deal(flow, deck, hand), "the same each time");
            }
        }
    }

    #[test]
    fn every_hand_is_dealt_as_often_as_every_other() {
        let mut seen: HashMap<Vec<usize>, usize> = HashMap::new();
        for flow in 0..5 * 4 * 3 * 10 {
            *seen.entry(deal(flow, 5, 3)).or_default() += 1;
        }
        assert_eq!(seen.len(), 5 * 4 * 3);
        assert!(seen.values().all(|times| *times == 10), "{seen:?}");
    }
}
