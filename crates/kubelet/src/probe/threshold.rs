//! Counts consecutive results up to the success or failure threshold.

use super::Answer;

/// The thresholds of a probe and its current count.
pub(super) struct Threshold {
    success: i32,
    failure: i32,
    last: Option<bool>,
    run: i32,
    reported: Option<bool>,
}

impl Threshold {
    pub(super) fn new(success: i32, failure: i32) -> Self {
        Self {
            success: success.max(1),
            failure: failure.max(1),
            last: None,
            run: 0,
            reported: None,
        }
    }

    /// The new verdict, if this result changed it.
    pub(super) fn record(&mut self, answer: &Answer) -> Option<bool> {
        let ok = match answer {
            Answer::Ok | Answer::Warning(_) => true,
            Answer::Failed(_) => false,
            Answer::Broken(_) => return None,
        };
        self.run = if self.last == Some(ok) {
            self.run + 1
        } else {
            1
        };
        self.last = Some(ok);
        let needed = if ok { self.success } else { self.failure };
        if self.run < needed || self.reported == Some(ok) {
            return None;
        }
        self.reported = Some(ok);
        Some(ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_changes_after_threshold_consecutive_answers_and_is_reported_once() {
        let mut threshold = Threshold::new(2, 3);
        let answers = "ok ok ok bad bad ok bad bad bad bad broken ok ok";
        let reported: Vec<_> = answers
            .split(' ')
            .map(|answer| {
                threshold.record(&match answer {
                    "ok" => Answer::Ok,
                    "bad" => Answer::Failed(String::new()),
                    _ => Answer::Broken(String::new()),
                })
            })
            .collect();
        let (t, f, n) = (Some(true), Some(false), None);
        assert_eq!(reported, [n, t, n, n, n, n, n, n, f, n, n, n, t]);
    }
}
