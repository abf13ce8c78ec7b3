//! A front proxy names the user in headers. They are trusted only if the proxy's certificate is
//! signed by the front proxy CA and has an allowed name.

use std::sync::Arc;

use async_trait::async_trait;
use http::HeaderMap;
use pki::{Identifier, Signer};
use stdx::Clock;

use super::{Authenticator, Credentials, Refused};
use request::{User, query, user};

pub(super) const ALLOWED_NAMES: &[&str] = &["front-proxy-client"];
const USER: &str = "x-remote-user";
const UID: &str = "x-remote-uid";
const GROUP: &str = "x-remote-group";
const EXTRA: &str = "x-remote-extra-";

pub struct RequestHeader {
    identifier: Arc<Identifier>,
    clock: Arc<dyn Clock>,
}

impl RequestHeader {
    pub fn new(identifier: Arc<Identifier>, clock: Arc<dyn Clock>) -> Self {
        Self { identifier, clock }
    }
}

#[async_trait]
impl Authenticator for RequestHeader {
    fn name(&self) -> &'static str {
        "request-header"
    }

    async fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Option<User>, Refused> {
        if credentials.certificates.is_empty() || !credentials.headers.contains_key(USER) {
            return Ok(None);
        }
        let peer = self
            .identifier
            .identify(credentials.certificates, self.clock.now());
        let trusted = peer.is_ok_and(|peer| {
            peer.signer == Signer::FrontProxy && ALLOWED_NAMES.contains(&peer.user.as_str())
        });
        Ok(if trusted {
            named(credentials.headers)
        } else {
            None
        })
    }
}

fn named(headers: &HeaderMap) -> Option<User> {
    let all = |name: &str| {
        let values = headers
            .get_all(name)
            .into_iter()
            .map(|value| std::str::from_utf8(value.as_bytes()).map(str::to_owned));
        // Values that are not text are rejected: a partial identity is worse than none.
        values.collect::<Result<Vec<_>, _>>().ok()
    };
    let name = all(USER)?
        .into_iter()
        .next()
        .filter(|name| !name.is_empty())?;
    let known = name != user::ANONYMOUS;
    let mut user = if known {
        User::new(name, all(GROUP)?)
    } else {
        User::anonymous()
    };
    user.uid = all(UID)?.into_iter().next().unwrap_or_default();
    for header in headers.keys() {
        if let Some(key) = header.as_str().strip_prefix(EXTRA) {
            user.extra.insert(query::decode(key), all(header.as_str())?);
        }
    }
    Some(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_name_the_user_the_groups_and_the_rest() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            (USER, "eve"),
            (UID, "u"),
            (GROUP, "one"),
            (GROUP, "two"),
            ("x-remote-extra-acme.com%2fproject", "p"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        let user = named(&headers).unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("eve", "u"));
        assert_eq!(user.groups, ["one", "two", "system:authenticated"]);
        assert_eq!(user.extra["acme.com/project"], ["p"]);
        headers.insert(USER, "".parse().unwrap());
        assert!(named(&headers).is_none());
    }
}
