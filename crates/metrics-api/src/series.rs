//! Two points of a counter, and the usage between them.

use std::time::Duration;

use jiff::Timestamp;

/// A container that started within this time is measured from its start.
const RESOLUTION: i64 = 15_000;
/// But not if it runs for less than this: processes use more while they start.
const MIN_SINCE_START: i64 = 10_000;

/// Counters at one time, in milliseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) at: i64,
    /// When the counter was zero.
    pub(crate) start: Option<i64>,
    /// Nanoseconds of cpu time since then.
    pub(crate) cpu: u64,
    /// The working set in bytes.
    pub(crate) memory: u64,
}

/// The newest point, and the start of the average.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Series {
    last: Point,
    previous: Option<Point>,
}

/// The usage over a window that ends at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    pub at: Timestamp,
    pub window: Duration,
    /// Nanocores.
    pub cpu: u64,
    /// The working set in bytes at that time.
    pub memory: u64,
}

/// One container of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerUsage {
    pub name: Box<str>,
    pub usage: Usage,
}

impl Series {
    /// The series with a new point. A restarted container starts a new series.
    pub(crate) fn advance(known: Option<&Self>, point: Point) -> Self {
        let age = point.start.map(|start| point.at.saturating_sub(start));
        if let (Some(start), Some(MIN_SINCE_START..RESOLUTION)) = (point.start, age) {
            let previous = Some(Point {
                at: start,
                cpu: 0,
                ..point
            });
            return Self {
                last: point,
                previous,
            };
        }
        match known {
            // The kubelet has no newer sample.
            Some(known) if point.at <= known.last.at && !known.ended_before(&point) => *known,
            Some(known) if !known.ended_before(&point) => Self {
                last: point,
                previous: Some(known.last),
            },
            _ => Self {
                last: point,
                previous: None,
            },
        }
    }

    fn ended_before(&self, point: &Point) -> bool {
        point.start.is_some_and(|start| start >= self.last.at)
    }

    /// The average between the points; `None` with one point or if the counter decreased.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let (last, previous) = (self.last, self.previous?);
        let window = u64::try_from(last.at.checked_sub(previous.at)?).ok()?;
        if window == 0 {
            return None;
        }
        let used = u128::from(last.cpu.checked_sub(previous.cpu)?);
        let cpu = used * 1000 / u128::from(window);
        Some(Usage {
            at: Timestamp::from_millisecond(last.at).ok()?,
            window: Duration::from_millis(window),
            cpu: u64::try_from(cpu).ok()?,
            memory: last.memory,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at: i64, start: Option<i64>, cpu: u64) -> Point {
        Point {
            at,
            start,
            cpu,
            memory: 1,
        }
    }

    /// The window in milliseconds and the millicores after some points.
    fn after(points: &[Point]) -> Option<(u128, u64)> {
        let mut series = None;
        for point in points {
            series = Some(Series::advance(series.as_ref(), *point));
        }
        let usage = series?.usage()?;
        Some((usage.window.as_millis(), usage.cpu / 1_000_000))
    }

    #[test]
    fn usage_is_the_average_between_the_last_two_points() {
        const S: u64 = 1_000_000_000;
        let old = Some(1_000);
        let plain = |at, cpu| point(at, old, cpu);
        for (points, expected) in [
            (vec![plain(100_000, S)], None),
            (
                vec![plain(100_000, S), plain(115_000, 4 * S)],
                Some((15_000, 200)),
            ),
            (
                // A repeated sample changes nothing.
                vec![
                    plain(100_000, S),
                    plain(115_000, 4 * S),
                    plain(115_000, 4 * S),
                ],
                Some((15_000, 200)),
            ),
            (vec![plain(100_000, S), plain(115_000, 0)], None),
            (
                // Without a start time the counter is assumed to continue.
                vec![point(100_000, None, 0), point(110_000, None, S)],
                Some((10_000, 100)),
            ),
            (
                // Started between the points, long enough ago.
                vec![plain(100_000, 9 * S), point(115_000, Some(103_000), 6 * S)],
                Some((12_000, 500)),
            ),
            (
                // Just started: no usage yet.
                vec![plain(100_000, 9 * S), point(115_000, Some(110_000), S)],
                None,
            ),
            (
                vec![point(0, Some(i64::MIN), 0), point(1, None, 0)],
                Some((1, 0)),
            ),
            (
                vec![point(i64::MIN, None, 0), point(i64::MAX, None, 1)],
                None,
            ),
        ] {
            assert_eq!(after(&points), expected, "{points:?}");
        }
    }
}
