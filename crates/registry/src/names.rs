//! Generated names: `generateName` and a random suffix.

use rand::Rng;

/// Characters of generated names: no vowels, nothing ambiguous.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const ENDING: usize = 5;
/// Maximum length of a generated name's prefix.
const LONGEST_PREFIX: usize = 63 - ENDING;

/// Generates name suffixes.
pub trait NameSuffixes: Send + Sync {
    fn next(&self) -> String;
}

/// Five random characters.
#[derive(Debug, Clone, Copy, Default)]
pub struct RandomNameSuffixes;

impl NameSuffixes for RandomNameSuffixes {
    fn next(&self) -> String {
        let mut random = rand::rng();
        let letter = |_| char::from(LETTERS[random.random_range(0..LETTERS.len())]);
        (0..ENDING).map(letter).collect()
    }
}

/// A name with this prefix, truncated if needed.
pub fn generate(prefix: &str, suffixes: &dyn NameSuffixes) -> String {
    let ends = prefix.char_indices().map(|(at, c)| at + c.len_utf8());
    let cut = ends.take_while(|end| *end <= LONGEST_PREFIX).last();
    let prefix = &prefix[..cut.unwrap_or(0)];
    format!("{prefix}{}", suffixes.next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_name_fits_and_keeps_its_prefix() {
        let name = generate("web-", &RandomNameSuffixes);
        assert!(name.starts_with("web-") && name.len() == 9, "{name}");
        assert_ne!(name, generate("web-", &RandomNameSuffixes));
        assert_eq!(generate(&"x".repeat(100), &RandomNameSuffixes).len(), 63);
        assert_eq!(generate(&"é".repeat(40), &RandomNameSuffixes).len(), 63);
    }
}
