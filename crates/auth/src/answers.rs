//! Answers of webhooks, kept for a while: a bounded map whose entries end.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// How many answers are kept, and how long their questions may be.
const MOST: usize = 8192;
const LONGEST_KEY: usize = 10_000;

/// Answers by question.
pub(crate) struct Answers<T> {
    /// Guards the answers, each with its end.
    kept: Mutex<HashMap<String, (Instant, T)>>,
}

impl<T: Clone> Answers<T> {
    pub(crate) fn new() -> Self {
        Self {
            kept: Mutex::default(),
        }
    }

    pub(crate) fn get(&self, question: &str, now: Instant) -> Option<T> {
        let kept = self.kept.lock();
        let (end, answer) = kept.get(question)?;
        (*end > now).then(|| answer.clone())
    }

    pub(crate) fn keep(&self, question: String, answer: T, now: Instant, time: Duration) {
        if time.is_zero() || question.len() > LONGEST_KEY {
            return;
        }
        let mut kept = self.kept.lock();
        if kept.len() >= MOST {
            kept.retain(|_, (end, _)| *end > now);
        }
        if kept.len() >= MOST {
            kept.clear();
        }
        kept.insert(question, (now + time, answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_end_and_are_bounded() {
        let (answers, now) = (Answers::new(), Instant::now());
        let second = Duration::from_secs(1);
        answers.keep("a".to_owned(), 1, now, second);
        answers.keep("b".to_owned(), 2, now, Duration::ZERO);
        assert_eq!(answers.get("a", now), Some(1));
        assert_eq!(answers.get("a", now + second), None);
        assert_eq!(answers.get("b", now), None);
        for i in 0..MOST + 10 {
            answers.keep(format!("q{i}"), 3, now, second);
        }
        assert!(answers.kept.lock().len() <= MOST);
        answers.keep("x".repeat(LONGEST_KEY + 1), 4, now, second);
        assert!(
            answers
                .kept
                .lock()
                .keys()
                .all(|key| key.len() <= LONGEST_KEY)
        );
    }
}
