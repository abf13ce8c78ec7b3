//! The keys that leave an attached terminal: `ctrl-p,ctrl-q`.

use anyhow::{Result, bail};

/// The default of `--detach-keys`.
pub(crate) const DEFAULT: &str = "ctrl-p,ctrl-q";

/// The bytes of keys separated by commas: letters, `ctrl-X` or `DEL`.
pub(crate) fn parse(keys: &str) -> Result<Vec<u8>> {
    let keys = if keys.is_empty() { DEFAULT } else { keys };
    let byte = |key: &str| match (key.as_bytes(), key.strip_prefix("ctrl-")) {
        ([one], _) => Ok(*one),
        (_, Some("@")) => Ok(0),
        (b"DEL", _) => Ok(127),
        (_, Some(control)) => match control.as_bytes() {
            [letter @ b'a'..=b'z'] => Ok(letter - b'a' + 1),
            [b'['] => Ok(27),
            [b'\\'] => Ok(28),
            [b']'] => Ok(29),
            [b'^'] => Ok(30),
            [b'_'] => Ok(31),
            _ => bail!("Unknown character: '{key}'"),
        },
        _ => bail!("Unknown character: '{key}'"),
    };
    keys.split(',').map(byte).collect()
}

/// Finds the keys in what is typed; a beginning of them is held back until it is known to be none.
#[derive(Debug, Default)]
pub(crate) struct Detacher {
    keys: Vec<u8>,
    /// How many of the keys were typed so far.
    matched: usize,
}

impl Detacher {
    /// Without keys nothing detaches.
    pub(crate) fn new(keys: Vec<u8>) -> Self {
        Self { keys, matched: 0 }
    }

    /// What to pass on, and whether the keys are complete.
    pub(crate) fn feed(&mut self, typed: &[u8]) -> (Vec<u8>, bool) {
        if self.keys.is_empty() {
            return (typed.to_vec(), false);
        }
        let mut passed = Vec::new();
        for byte in typed {
            if *byte != self.keys[self.matched] {
                passed.extend_from_slice(&self.keys[..self.matched]);
                self.matched = 0;
            }
            if *byte == self.keys[self.matched] {
                self.matched += 1;
                if self.matched == self.keys.len() {
                    return (passed, true);
                }
            } else {
                passed.push(*byte);
            }
        }
        (passed, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_letters_controls_and_delete() {
        assert_eq!(parse("ctrl-p,ctrl-q").unwrap(), [16, 17]);
        assert_eq!(parse("").unwrap(), [16, 17]);
        assert_eq!(parse("a,DEL,ctrl-],ctrl-@").unwrap(), [b'a', 127, 29, 0]);
        assert_eq!(
            parse("ctrl-p,esc").unwrap_err().to_string(),
            "Unknown character: 'esc'"
        );
    }

    #[test]
    fn the_keys_detach_also_in_pieces_and_everything_else_passes() {
        let mut detacher = Detacher::new(vec![16, 17]);
        assert_eq!(detacher.feed(b"ls\n"), (b"ls\n".to_vec(), false));
        assert_eq!(detacher.feed(&[16]), (Vec::new(), false));
        assert_eq!(detacher.feed(b"x"), (vec![16, b'x'], false));
        assert_eq!(detacher.feed(&[16, 16]), (vec![16], false));
        assert_eq!(detacher.feed(&[17, b'y']), (Vec::new(), true));
        assert_eq!(Detacher::default().feed(&[16, 17]), (vec![16, 17], false));
    }
}
