//! Bearer tokens that expire: those of files, which are read again every minute, and those of exec
//! credential plugins, which are run again when the token has expired or was refused. Commands may
//! run longer than a token is valid (`proxy`, `port-forward`, `logs -f`).

use std::{
    fmt,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use http::HeaderValue;
use jiff::Timestamp;
use serde_json::Value;

use super::exec;

/// How long the content of a file is used.
const FILE_AGE: Duration = Duration::from_secs(60);

/// Where tokens come from.
#[derive(Debug, Clone)]
pub(crate) enum TokenSource {
    File(PathBuf),
    Plugin {
        exec: Value,
        cluster: Value,
        server: String,
    },
}

/// A token that is replaced in time.
pub(crate) struct Tokens {
    source: TokenSource,
    current: Mutex<Current>,
}

struct Current {
    token: String,
    read_at: Instant,
    expires: Option<Timestamp>,
    is_refused: bool,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}

impl Tokens {
    /// With the token in a file.
    pub(crate) fn of_file(path: PathBuf) -> Result<Self> {
        let token = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self::new(TokenSource::File(path), token, None))
    }

    /// With the first token.
    pub(crate) fn new(source: TokenSource, token: String, expires: Option<Timestamp>) -> Self {
        let current = Current {
            token,
            read_at: Instant::now(),
            expires,
            is_refused: false,
        };
        Self {
            source,
            current: Mutex::new(current),
        }
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of `Authorization`.
    pub(crate) fn authorization(&self) -> Result<HeaderValue> {
        let mut current = self.current();
        self.renew(&mut current)?;
        let mut value = HeaderValue::from_str(&format!("Bearer {}", current.token.trim()))
            .context("the token has characters that a header cannot carry")?;
        value.set_sensitive(true);
        Ok(value)
    }

    fn renew(&self, current: &mut Current) -> Result<()> {
        let is_expired = current.expires.is_some_and(|at| at <= Timestamp::now());
        match &self.source {
            TokenSource::File(path) => {
                if (current.read_at.elapsed() > FILE_AGE || current.is_refused)
                    && let Ok(token) = std::fs::read_to_string(path)
                {
                    *current = Current {
                        token,
                        read_at: Instant::now(),
                        expires: None,
                        is_refused: false,
                    };
                }
            }
            TokenSource::Plugin {
                exec,
                cluster,
                server,
            } if is_expired || current.is_refused => {
                let credential = exec::credential(exec, cluster, server)?;
                // A plugin that turns to certificates gives no token: the last one is kept.
                current.token = credential.token.unwrap_or_else(|| current.token.clone());
                current.expires = credential.expires;
                current.is_refused = false;
            }
            TokenSource::Plugin { .. } => {}
        }
        Ok(())
    }

    /// Notes that the server has answered 401: the next request gets another token.
    pub(crate) fn refuse(&self) {
        self.current().is_refused = true;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refused_token_is_read_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "one\n").unwrap();
        let tokens = Tokens::of_file(file.path().to_owned()).unwrap();
        std::fs::write(file.path(), "two\n").unwrap();
        assert_eq!(tokens.authorization().unwrap(), "Bearer one");
        tokens.refuse();
        assert_eq!(tokens.authorization().unwrap(), "Bearer two");
        // A file that is gone does not take the token with it.
        tokens.refuse();
        file.close().unwrap();
        assert_eq!(tokens.authorization().unwrap(), "Bearer two");
        assert!(Tokens::of_file("/nonexistent".into()).is_err());
    }

    #[test]
    fn a_plugin_is_run_again_when_its_token_has_expired() {
        let count = tempfile::NamedTempFile::new().unwrap();
        let script = format!(
            r#"echo x >> {0}; printf '{{"apiVersion":"client.authentication.k8s.io/v1","status":{{"token":"t%s","expirationTimestamp":"2099-01-01T00:00:00Z"}}}}' $(grep -c x {0})"#,
            count.path().display()
        );
        let exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script]});
        let source = TokenSource::Plugin {
            exec,
            cluster: json!({}),
            server: "https://s".into(),
        };
        let past = "2020-01-01T00:00:00Z".parse().ok();
        let tokens = Tokens::new(source, "old".into(), past);
        for expected in ["Bearer t1", "Bearer t1"] {
            assert_eq!(tokens.authorization().unwrap(), expected);
        }
        tokens.refuse();
        assert_eq!(tokens.authorization().unwrap(), "Bearer t2");
    }
}
