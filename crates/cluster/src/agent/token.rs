//! Kubernetes' bootstrap tokens: `ID.SECRET`, six and sixteen lower-case letters or digits.

use rand::Rng;

const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// A token in its two parts.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    pub id: String,
    pub secret: String,
}

/// Does not print the secret.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token({}.…)", self.id)
    }
}

impl Token {
    /// A new token.
    pub fn random() -> Self {
        Self {
            id: letters(6),
            secret: letters(16),
        }
    }

    /// Parses `ID.SECRET`.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.split_once('.')?;
        let fits = |part: &str, length: usize| {
            part.len() == length && part.bytes().all(|byte| LETTERS.contains(&byte))
        };
        (fits(id, 6) && fits(secret, 16)).then(|| Self {
            id: id.to_owned(),
            secret: secret.to_owned(),
        })
    }

    /// `ID.SECRET`.
    pub fn reveal(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}

fn letters(count: usize) -> String {
    let mut random = rand::rng();
    let letter = |_| char::from(LETTERS[random.random_range(0..LETTERS.len())]);
    (0..count).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_token_has_the_bootstrap_token_format() {
        let token = Token::random();
        assert_eq!(Token::parse(&token.reveal()), Some(token.clone()));
        assert!(!format!("{token:?}").contains(&token.secret));
        for wrong in [
            "",
            "abcdef",
            "abcdef.0123456789abcde",
            "ABCDEF.0123456789abcdef",
        ] {
            assert_eq!(Token::parse(wrong), None, "{wrong}");
        }
    }
}
