//! Sets of completion indexes, written as `0-2,5` and stored as intervals, since a Job may have a
//! billion of them. Pure.

use std::fmt;

/// Intervals in rising order, with a gap between any two.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Indexes(Vec<(i32, i32)>);

impl Indexes {
    /// Parses a set. Invalid parts and indexes from `completions` on are skipped, since completions
    /// may have been lowered.
    pub(super) fn parse(text: &str, completions: i32) -> Self {
        let intervals = text.split(',').filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.parse().ok()?, last.parse::<i32>().ok()?);
            let last = last.min(completions - 1);
            (0 <= first && first <= last).then_some((first, last))
        });
        Self::from_intervals(intervals.collect())
    }

    fn from_intervals(mut intervals: Vec<(i32, i32)>) -> Self {
        intervals.sort_unstable();
        let mut merged: Vec<(i32, i32)> = Vec::with_capacity(intervals.len());
        for (first, last) in intervals {
            match merged.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    /// The indexes that are in either set.
    pub(super) fn union(&self, other: &Self) -> Self {
        Self::from_intervals(self.0.iter().chain(&other.0).copied().collect())
    }

    /// How many there are.
    pub(super) fn len(&self) -> i32 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, index: i32) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < index);
        self.0.get(at).is_some_and(|(first, _)| *first <= index)
    }

    /// How many indexes are in both sets.
    pub(super) fn overlap(&self, other: &Self) -> i32 {
        let (mut mine, mut others, mut common) = (0, 0, 0);
        while let (Some((a, b)), Some((c, d))) = (self.0.get(mine), other.0.get(others)) {
            common += (b.min(d) - a.max(c) + 1).max(0);
            if b < d {
                mine += 1;
            } else {
                others += 1;
            }
        }
        common
    }

    /// The first `count` indexes below `completions` that are not in the set.
    pub(super) fn first_missing(&self, count: usize, completions: i32) -> Vec<i32> {
        let ends = self.0.iter().copied().chain([(completions, completions)]);
        let mut next = 0;
        let gaps = ends.flat_map(|(first, last)| {
            let gap = next..first.min(completions);
            next = last.saturating_add(1);
            gap
        });
        gaps.take(count).collect()
    }
}

impl FromIterator<i32> for Indexes {
    fn from_iter<I: IntoIterator<Item = i32>>(indexes: I) -> Self {
        Self::from_intervals(indexes.into_iter().map(|index| (index, index)).collect())
    }
}

impl fmt::Display for Indexes {
    /// Runs of more than two are written with a dash.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (first, last)) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Indexes {
        Indexes::parse(text, 100)
    }

    #[test]
    fn indexes_are_written_in_runs_and_read_back() {
        for text in ["", "0", "0,1", "0-2,5", "1,3-7,9"] {
            assert_eq!(parse(text).to_string(), text);
        }
    }

    #[test]
    fn invalid_and_out_of_range_indexes_are_ignored() {
        for (text, completions, expected) in [
            ("0,x,2", 3, "0,2"),
            ("0,1-x,4", 5, "0,4"),
            ("0-9", 3, "0-2"),
            ("0,5-9", 3, "0"),
            ("0-999999999", 1_000_000_000, "0-999999999"),
            ("1,0", 3, "0,1"),
            ("0,1,2", 3, "0-2"),
        ] {
            let indexes = Indexes::parse(text, completions);
            assert_eq!(indexes.to_string(), expected, "{text}");
        }
    }

    #[test]
    fn sets_are_joined_searched_and_counted() {
        let joined = parse("0-2,8").union(&parse("2-4,6,9"));
        assert_eq!(joined.to_string(), "0-4,6,8,9");
        assert_eq!(joined.len(), 8);
        assert!(joined.contains(4) && joined.contains(8) && !joined.contains(5));
        assert!(!joined.contains(10));
        for (one, other, common) in [
            ("0-4", "2-9", 3),
            ("0,2,4", "0-4", 3),
            ("0-1,5-6", "1-5", 2),
            ("0", "1", 0),
            ("", "1", 0),
        ] {
            assert_eq!(parse(one).overlap(&parse(other)), common, "{one} {other}");
        }
    }

    #[test]
    fn the_first_missing_indexes_fill_the_gaps() {
        for (present, count, completions, expected) in [
            ("", 2, 3, vec![0, 1]),
            ("", 5, 3, vec![0, 1, 2]),
            ("1,3", 2, 6, vec![0, 2]),
            ("0-2,4", 9, 6, vec![3, 5]),
            ("0-5", 9, 6, vec![]),
            ("0-9", 9, 6, vec![]),
        ] {
            let missing = parse(present).first_missing(count, completions);
            assert_eq!(missing, expected, "{present}");
        }
    }
}
