//! The static token file: lines of token, user, uid and, in quotes, groups.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;

use super::{Authenticator, Credentials, Refused, bearer};
use request::User;

pub struct StaticTokens {
    tokens: Vec<(String, Arc<User>)>,
}

impl StaticTokens {
    /// Loads the file.
    pub fn load(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut tokens: Vec<(String, Arc<User>)> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.trim_start().starts_with('#') {
                continue;
            }
            let columns = columns(line);
            // The line contains a secret: report only its number.
            let wrong = |what: &str| Err(format!("line {}: {what}", number + 1));
            let [token, name, uid, rest @ ..] = columns.as_slice() else {
                return wrong("at least 3 columns are needed: token, user name, uid");
            };
            if token.is_empty() || name.is_empty() {
                return wrong("the token and the user name must not be empty");
            }
            if tokens.iter().any(|(known, _)| known == token) {
                return wrong("duplicate of a token on an earlier line");
            }
            let groups = rest.first().map(String::as_str).unwrap_or_default();
            let groups = groups
                .split(',')
                .map(str::trim)
                .filter(|group| !group.is_empty());
            let user = User {
                uid: uid.clone(),
                ..User::new(name, groups)
            };
            tokens.push((token.clone(), Arc::new(user)));
        }
        Ok(Self { tokens })
    }

    fn find(&self, token: &str) -> Option<&Arc<User>> {
        // Every line is compared, so that the duration does not reveal which one matches.
        self.tokens.iter().fold(None, |found, (known, user)| {
            if bearer::equal(known, token) {
                Some(user)
            } else {
                found
            }
        })
    }
}

/// Comma-separated columns; quotes protect commas.
fn columns(line: &str) -> Vec<String> {
    let mut columns = vec![String::new()];
    let mut quoted = false;
    for letter in line.chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => columns.push(String::new()),
            _ => columns.last_mut().map_or((), |column| column.push(letter)),
        }
    }
    columns
        .iter()
        .map(|column| column.trim().to_owned())
        .collect()
}

#[async_trait]
impl Authenticator for StaticTokens {
    fn name(&self) -> &'static str {
        "token-file"
    }

    fn at_once(&self, credentials: &Credentials<'_>) -> Option<Arc<User>> {
        self.find(&bearer::token(credentials.headers)?).cloned()
    }

    async fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Option<User>, Refused> {
        match bearer::token(credentials.headers) {
            Some(token) => self.token(&token, None).await,
            None => Ok(None),
        }
    }

    async fn token(&self, token: &str, _: Option<&[String]>) -> Result<Option<User>, Refused> {
        Ok(self.find(token).map(|user| User::clone(user)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_known_token_is_authenticated_and_an_unknown_one_is_not() {
        let file = "# people\nsecret,eve,u1,\"team, system:masters\"\nother,bob,u2\n";
        let tokens = StaticTokens::parse(file).unwrap();
        let eve = tokens.token("secret", None).await.unwrap().unwrap();
        assert_eq!((eve.name.as_str(), eve.uid.as_str()), ("eve", "u1"));
        assert_eq!(
            eve.groups,
            ["team", "system:masters", "system:authenticated"]
        );
        assert_eq!(
            tokens.token("other", None).await.unwrap().unwrap().name,
            "bob"
        );
        assert!(tokens.token("secre", None).await.unwrap().is_none());
    }

    #[test]
    fn a_bad_line_is_named_without_its_secret() {
        let error = StaticTokens::parse("secret,eve").err().unwrap();
        assert!(
            error.starts_with("line 1") && !error.contains("secret"),
            "{error}"
        );
        StaticTokens::parse("a,eve,u\na,bob,u").err().unwrap();
    }
}
