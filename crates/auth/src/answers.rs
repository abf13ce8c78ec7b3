//! A bounded cache of webhook responses with a time to live. Keys are hashes of the requests, since requests contain
//! tokens.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use ring::digest::{SHA256, digest};

/// The maximum number of cached responses.
const MAX_RESPONSES: usize = 8192;

/// The SHA-256 hash of a request.
type Key = [u8; 32];

fn key(question: &str) -> Key {
    let mut key = Key::default();
    key.copy_from_slice(digest(&SHA256, question.as_bytes()).as_ref());
    key
}

/// Responses by the hash of their request.
pub(crate) struct Answers<T> {
    /// Guards the responses, each with the time when it expires.
    kept: Mutex<HashMap<Key, (Instant, T)>>,
}

impl<T: Clone> Answers<T> {
    pub(crate) fn new() -> Self {
        Self {
            kept: Mutex::default(),
        }
    }

    pub(crate) fn get(&self, question: &str, now: Instant) -> Option<T> {
        let kept = self.kept.lock();
        let (end, answer) = kept.get(&key(question))?;
        (*end > now).then(|| answer.clone())
    }

    pub(crate) fn insert(&self, question: &str, answer: T, now: Instant, time: Duration) {
        if time.is_zero() {
            return;
        }
        let mut kept = self.kept.lock();
        if kept.len() >= MAX_RESPONSES {
            kept.retain(|_, (end, _)| *end > now);
        }
        if kept.len() >= MAX_RESPONSES {
            kept.clear();
        }
        kept.insert(key(question), (now + time, answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_end_and_are_bounded() {
        let (answers, now) = (Answers::new(), Instant::now());
        let second = Duration::from_secs(1);
        answers.insert("a", 1, now, second);
        answers.insert("b", 2, now, Duration::ZERO);
        assert_eq!(answers.get("a", now), Some(1));
        assert_eq!(answers.get("a", now + second), None);
        assert_eq!(answers.get("b", now), None);
        for i in 0..MAX_RESPONSES + 10 {
            answers.insert(&format!("q{i}"), 3, now, second);
        }
        assert!(answers.kept.lock().len() <= MAX_RESPONSES);
    }
}
