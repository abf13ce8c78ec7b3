//! Limits log lines that clients can cause: a pod must not fill the disk of its node with failed queries.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The maximum number of lines in a window.
const LINES: u32 = 20;
const WINDOW: Duration = Duration::from_secs(10);

/// A number of lines per time.
#[derive(Default)]
pub(crate) struct LogBudget {
    /// Guards the current window.
    window: Mutex<Option<Window>>,
}

struct Window {
    begun: Instant,
    written: u32,
    suppressed: u64,
}

impl LogBudget {
    /// `None` if the line is not to be written; otherwise how many were not since the last window began.
    pub(crate) fn take(&self, now: Instant) -> Option<u64> {
        let mut window = self.window.lock();
        let current = window.get_or_insert(Window {
            begun: now,
            written: 0,
            suppressed: 0,
        });
        let mut before = 0;
        if now.duration_since(current.begun) >= WINDOW {
            before = current.suppressed;
            *current = Window {
                begun: now,
                written: 0,
                suppressed: 0,
            };
        }
        if current.written == LINES {
            current.suppressed += 1;
            return None;
        }
        current.written += 1;
        Some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_budget_are_counted_in_the_next_window() {
        let (budget, begun) = (LogBudget::default(), Instant::now());
        let written = (0..1000).filter_map(|_| budget.take(begun)).count();
        assert_eq!(written, LINES as usize);
        assert_eq!(budget.take(begun + WINDOW / 2), None);
        let suppressed = 1001 - u64::from(LINES);
        assert_eq!(budget.take(begun + WINDOW), Some(suppressed));
        assert_eq!(budget.take(begun + WINDOW), Some(0));
    }
}
