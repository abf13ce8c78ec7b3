//! Division of the server's seats among the priority levels: initially by shares, then by demand
//! within lending and borrowing limits.

use super::demand::DemandStats;

/// The seat limits of a level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Its nominal limit, by its share.
    pub(super) nominal: usize,
    /// Its limit if it lends all it may.
    pub(super) lower: usize,
    /// Its limit if it borrows all it may.
    pub(super) upper: usize,
}

/// The share of a level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) shares: u32,
    pub(super) lendable_percent: u32,
    /// `None`: unlimited.
    pub(super) borrowing_percent: Option<u32>,
}

impl Share {
    /// Its limits within `total` seats, where `sum` is the sum of all shares.
    pub(super) fn bounds(&self, total: usize, sum: u64) -> Bounds {
        let nominal = (total as u64 * u64::from(self.shares)).div_ceil(sum.max(1)) as usize;
        let part = |percent: u32| (nominal as f64 * f64::from(percent) / 100.0).round() as usize;
        Bounds {
            nominal,
            lower: nominal.saturating_sub(part(self.lendable_percent)),
            upper: nominal + self.borrowing_percent.map_or(total, part),
        }
    }
}

/// A level at the time of an adjustment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Level {
    pub(super) is_exempt: bool,
    pub(super) bounds: Bounds,
    pub(super) seen: DemandStats,
    /// Its current limit.
    pub(super) current: usize,
}

/// The result of an adjustment.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Adjusted {
    /// The new limit of each level.
    pub(super) limits: Vec<usize>,
    /// The target of each level.
    pub(super) targets: Vec<f64>,
    /// The fraction of its target that each level without a binding limit gets.
    pub(super) fair: f64,
}

impl Level {
    /// What it keeps while others borrow: its recent use, within its nominal limit.
    fn kept(&self) -> usize {
        let used = if self.is_exempt {
            self.seen.most
        } else {
            self.seen.most.min(self.bounds.nominal)
        };
        used.max(self.bounds.lower)
    }

    fn target(&self) -> f64 {
        self.seen.smoothed.max(self.kept() as f64)
    }
}

/// Adjusts the limits. Exempt levels get what they use; the others share the rest, each by its
/// demand.
pub(super) fn adjust(levels: &[Level]) -> Adjusted {
    let total: usize = levels.iter().map(|level| level.bounds.nominal).sum();
    let limited = || levels.iter().filter(|level| !level.is_exempt);
    let exempt = levels.iter().filter(|level| level.is_exempt);
    let taken: usize = exempt.map(Level::kept).sum();
    let remaining = total.saturating_sub(taken);
    let lower: usize = limited().map(|level| level.bounds.lower).sum();
    let kept: usize = limited().map(Level::kept).sum();
    let fair = if remaining > kept {
        let items: Vec<Item> = limited().map(Item::new).collect();
        fair_fraction(total as f64, &items)
    } else {
        None
    };
    let limit = |level: &Level| {
        let (least, bounds) = (level.kept(), level.bounds);
        match fair {
            _ if level.is_exempt => least,
            Some(fair) => Item::new(level).at(fair).round() as usize,
            None if remaining > kept => level.current,
            None if remaining <= lower => bounds.lower,
            None => {
                let part = (remaining - lower) as f64 / (kept - lower).max(1) as f64;
                bounds.lower + ((least - bounds.lower) as f64 * part).round() as usize
            }
        }
    };
    Adjusted {
        limits: levels.iter().map(limit).collect(),
        targets: levels.iter().map(Level::target).collect(),
        fair: fair.unwrap_or_default(),
    }
}

/// The bounds and target of one level.
#[derive(Debug, Clone, Copy)]
struct Item {
    least: f64,
    most: f64,
    target: f64,
}

impl Item {
    fn new(level: &Level) -> Self {
        let least = level.kept() as f64;
        Self {
            least,
            most: (level.bounds.upper as f64).max(least),
            // Not zero: fractions of it are taken.
            target: level.target().max(0.001),
        }
    }

    /// Its limit if every level gets this fraction of its target.
    fn at(&self, fraction: f64) -> f64 {
        (self.target * fraction).clamp(self.least, self.most)
    }
}

/// The fraction of their targets at which the limits add up to `total`; `None` if there is none.
fn fair_fraction(total: f64, items: &[Item]) -> Option<f64> {
    let given = |fraction: f64| items.iter().map(|item| item.at(fraction)).sum::<f64>();
    // Between two neighbours of these, the sum grows linearly.
    let bends = items
        .iter()
        .flat_map(|item| [item.least, item.most].map(|end| end / item.target));
    let mut bends: Vec<f64> = bends.collect();
    bends.sort_by(f64::total_cmp);
    let after = bends.partition_point(|bend| given(*bend) < total);
    let high = *bends.get(after)?;
    let low = match after {
        0 => return (given(high) <= total).then_some(high),
        after => bends[after - 1],
    };
    let (from, to) = (given(low), given(high));
    Some(low + (high - low) * (total - from) / (to - from))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(shares: u32, lendable_percent: u32) -> Share {
        Share {
            shares,
            lendable_percent,
            borrowing_percent: None,
        }
    }

    /// The suggested levels with 600 seats: exempt, catch-all, global-default, leader-election, node-high, system,
    /// workload-high, workload-low.
    fn suggested() -> Vec<Level> {
        let shares = [
            (0, 0),
            (5, 0),
            (20, 50),
            (10, 0),
            (40, 25),
            (30, 33),
            (40, 50),
            (100, 90),
        ];
        let level = |(shares, lendable): (u32, u32)| Level {
            is_exempt: shares == 0,
            bounds: share(shares, lendable).bounds(600, 245),
            seen: DemandStats::default(),
            current: 0,
        };
        shares.map(level).to_vec()
    }

    #[test]
    fn shares_give_the_seats_that_upstream_gives() {
        let bounds: Vec<[usize; 3]> = suggested()
            .iter()
            .map(|level| [level.bounds.nominal, level.bounds.lower, level.bounds.upper])
            .collect();
        assert_eq!(
            bounds,
            [
                [0, 0, 600],
                [13, 13, 613],
                [49, 24, 649],
                [25, 25, 625],
                [98, 73, 698],
                [74, 50, 674],
                [98, 49, 698],
                [245, 24, 845]
            ]
        );
        let bounded = Share {
            borrowing_percent: Some(50),
            ..share(10, 0)
        };
        assert_eq!(bounded.bounds(100, 100).upper, 15);
    }

    #[test]
    fn idle_levels_share_the_unused_seats() {
        let adjusted = adjust(&suggested());
        assert_eq!(adjusted.limits, [0, 30, 56, 58, 170, 117, 114, 56]);
        assert!((adjusted.fair - 602.0 / 258.0).abs() < 1e-9, "{adjusted:?}");
    }

    #[test]
    fn busy_levels_borrow_up_to_the_lendable_seats() {
        let mut levels = suggested();
        levels[2].seen = DemandStats {
            most: 2000,
            average: 1500.0,
            deviation: 100.0,
            smoothed: 1600.0,
        };
        let limits = adjust(&levels).limits;
        assert_eq!(limits[2], 368, "all but what the others keep");
        assert_eq!(limits[1..2], [13]);
        assert_eq!(limits[3..], [25, 73, 50, 49, 24]);
        levels[6].seen = DemandStats {
            most: 60,
            average: 50.0,
            deviation: 10.0,
            smoothed: 60.0,
        };
        let limits = adjust(&levels).limits;
        assert_eq!(limits[6], 60, "who uses its part keeps it");
        assert_eq!(limits[2], 357);
    }

    #[test]
    fn the_exempt_level_reduces_all_other_levels() {
        let mut levels = suggested();
        levels[0].seen.most = 1000;
        let limits = adjust(&levels).limits;
        assert_eq!(limits, [1000, 13, 24, 25, 73, 50, 49, 24]);
        levels[0].seen.most = 302;
        levels[7].seen.most = 110;
        let limits = adjust(&levels).limits;
        assert_eq!(
            (limits[0], limits[7]),
            (302, 66),
            "half of what it uses above its least"
        );
    }
}
