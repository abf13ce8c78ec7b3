//! Retry-After of rejected requests: one second at first, increasing with rejections and decreasing
//! again when there are fewer.

use std::collections::VecDeque;

/// The longest Retry-After, in seconds.
const LONGEST: i64 = 32;

/// Recent rejections.
#[derive(Debug)]
pub(super) struct RetryAfter {
    /// Seconds with their number of rejections; the last is the current one.
    history: VecDeque<(i64, i64)>,
    seconds: i64,
    /// When it was last increased.
    longer_since: i64,
}

impl Default for RetryAfter {
    fn default() -> Self {
        Self {
            history: VecDeque::new(),
            seconds: 1,
            longer_since: 0,
        }
    }
}

impl RetryAfter {
    /// Counts a rejection in this second and returns its Retry-After, in seconds.
    pub(super) fn refuse(&mut self, second: i64) -> u32 {
        match self.history.back_mut() {
            Some((present, count)) if *present == second => *count += 1,
            _ => {
                self.history.push_back((second, 1));
                self.adjust(second);
            }
        }
        u32::try_from(self.seconds).unwrap_or(1)
    }

    /// Looks back over the current Retry-After: three rejections per second are too many, less than
    /// one is few.
    fn adjust(&mut self, now: i64) {
        let ago = |second: &i64| now - second;
        let keep = (2 * self.seconds).min(LONGEST);
        while self
            .history
            .front()
            .is_some_and(|(second, _)| ago(second) > keep)
        {
            self.history.pop_front();
        }
        let lately = self.history.iter();
        let lately = lately.filter(|(second, _)| (1..=self.seconds).contains(&ago(second)));
        let refused: i64 = lately.map(|(_, count)| count).sum();
        if refused >= 3 * self.seconds && ago(&self.longer_since) >= self.seconds {
            self.seconds = (2 * self.seconds).min(LONGEST);
            self.longer_since = now;
        } else if refused < self.seconds && self.seconds > 1 {
            self.seconds -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_doubles_while_many_are_rejected_and_falls_slowly() {
        let mut retry = RetryAfter::default();
        let mut said = Vec::new();
        for second in 100..108 {
            said.push((0..20).map(|_| retry.refuse(second)).max().unwrap());
        }
        assert_eq!(said, [1, 2, 2, 4, 4, 4, 4, 8]);
        let calm: Vec<u32> = [200, 300, 400].map(|second| retry.refuse(second)).to_vec();
        assert_eq!(calm, [7, 6, 5]);
    }

    #[test]
    fn retry_after_is_one_second_while_few_are_rejected() {
        let mut retry = RetryAfter::default();
        assert!((100..200).all(|second| retry.refuse(second) == 1));
    }
}
