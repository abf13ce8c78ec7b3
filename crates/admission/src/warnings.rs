//! Warnings of plugins for the client. Those that a response cannot show are not kept: a policy may warn once for each of
//! thousands of parameters.

use std::collections::HashSet;

/// What a response shows at most: characters in total, and of one warning if all are more than that.
const SHOWN: usize = 4096;
const SHOWN_OF_ONE: usize = 256;

#[derive(Default)]
pub(crate) struct Warnings {
    texts: Vec<String>,
    known: HashSet<String>,
    /// Characters of `texts` that are shown even if each is cut.
    shown: usize,
}

impl Warnings {
    /// Adds a warning, unless it is known or too many are.
    pub(crate) fn add(&mut self, text: String) {
        if self.shown >= SHOWN || !self.known.insert(text.clone()) {
            return;
        }
        self.shown += text.chars().take(SHOWN_OF_ONE).count();
        self.texts.push(text);
    }

    pub(crate) fn into_texts(self) -> Vec<String> {
        self.texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_kept_once_and_only_as_many_as_can_be_shown() {
        let mut warnings = Warnings::default();
        for text in ["b", "a", "b"] {
            warnings.add(text.to_owned());
        }
        assert_eq!(warnings.into_texts(), ["b", "a"]);
        let mut warnings = Warnings::default();
        for number in 0..10_000 {
            warnings.add(format!("{number:0>5000}"));
        }
        assert_eq!(warnings.into_texts().len(), SHOWN / SHOWN_OF_ONE);
        let mut warnings = Warnings::default();
        for number in 0..10_000 {
            warnings.add(format!("{number}"));
        }
        let texts = warnings.into_texts();
        assert!(texts.concat().len() >= SHOWN && texts.len() < 2000);
    }
}
