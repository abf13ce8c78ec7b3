//! Bootstrap tokens of joining nodes: `ID.SECRET`, stored as a Secret in kube-system with expiry
//! and usages.

use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use kinds::tree;
use machinery::Object;
use std::sync::Arc;
use stdx::Clock;

use super::{Authenticator, Credentials, Refused, bearer};
use registry::Reader;
use request::User;

const TYPE: &str = "bootstrap.kubernetes.io/token";
const GROUP: &str = "system:bootstrappers";

pub struct BootstrapTokens {
    reader: Reader,
    clock: Arc<dyn Clock>,
}

impl BootstrapTokens {
    pub fn new(reader: Reader, clock: Arc<dyn Clock>) -> Self {
        Self { reader, clock }
    }
}

#[async_trait]
impl Authenticator for BootstrapTokens {
    fn name(&self) -> &'static str {
        "bootstrap-token"
    }

    async fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Option<User>, Refused> {
        match bearer::token(credentials.headers) {
            Some(token) => self.token(&token, None).await,
            None => Ok(None),
        }
    }

    async fn token(&self, token: &str, _: Option<&[String]>) -> Result<Option<User>, Refused> {
        let Some((id, secret)) = parts(token) else {
            return Ok(None);
        };
        let name = format!("bootstrap-token-{id}");
        let found = self.reader.get("", "secrets", "kube-system", &name).await;
        let found = found.map_err(|_| Refused("cannot read secrets".to_owned()))?;
        let Some(object) = found else { return Ok(None) };
        Ok(accept(&object.parse(), id, secret, self.clock.now()))
    }
}

/// Six and sixteen letters or digits.
fn parts(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let plain = |text: &str, length: usize| {
        text.len() == length
            && text
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    (plain(id, 6) && plain(secret, 16)).then_some((id, secret))
}

fn accept(object: &Object, id: &str, secret: &str, now: Timestamp) -> Option<User> {
    let data = tree::get(object, "data");
    let value = |key: &str| {
        let bytes = BASE64_STANDARD.decode(tree::text(&data[key])).ok()?;
        String::from_utf8(bytes)
            .ok()
            .filter(|text| !text.is_empty())
    };
    let deleted = tree::is_set(&tree::get(object, "metadata")["deletionTimestamp"]);
    let genuine = bearer::equal(&value("token-secret")?, secret) && value("token-id")? == id;
    if tree::text(tree::get(object, "type")) != TYPE || deleted || !genuine {
        return None;
    }
    if value("usage-bootstrap-authentication").as_deref() != Some("true") {
        return None;
    }
    if let Some(expiration) = value("expiration")
        // An unreadable expiration counts as expired.
        && !expiration.parse::<Timestamp>().is_ok_and(|end| end > now)
    {
        return None;
    }
    let extra = value("auth-extra-groups").unwrap_or_default();
    let extra: Vec<String> = extra
        .split(',')
        .map(|group| group.trim().to_owned())
        .collect();
    let extra = extra.into_iter().filter(|group| !group.is_empty());
    let mut groups = vec![GROUP.to_owned()];
    for group in extra {
        if !group
            .strip_prefix(GROUP)
            .is_some_and(|rest| rest.starts_with(':'))
        {
            return None;
        }
        groups.push(group);
    }
    Some(User::new(format!("system:bootstrap:{id}"), groups))
}

#[cfg(test)]
mod tests {
    use machinery::json::{Value, json};

    use super::*;
    use registry_testing::object;

    fn secret(changes: &[(&str, &str)]) -> Object {
        let mut data = Object::new();
        for (key, value) in [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-authentication", "true"),
        ]
        .iter()
        .chain(changes)
        {
            data.insert((*key).to_owned(), BASE64_STANDARD.encode(value).into());
        }
        object(json!({"type": TYPE, "data": Value::Object(data)}))
    }

    #[test]
    fn a_bootstrap_token_is_valid_as_its_secret_says() {
        let now: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
        let ask =
            |changes: &[(&str, &str)]| accept(&secret(changes), "abcdef", "0123456789abcdef", now);
        let user = ask(&[("auth-extra-groups", "system:bootstrappers:mainstay:nodes")]).unwrap();
        assert_eq!(user.name, "system:bootstrap:abcdef");
        assert_eq!(
            user.groups,
            [
                GROUP,
                "system:bootstrappers:mainstay:nodes",
                "system:authenticated"
            ]
        );
        assert!(ask(&[("expiration", "2026-07-01T00:00:00Z")]).is_some());
        assert!(ask(&[("expiration", "2026-05-01T00:00:00Z")]).is_none());
        assert!(ask(&[("expiration", "next year")]).is_none());
        assert!(ask(&[("usage-bootstrap-authentication", "false")]).is_none());
        assert!(ask(&[("auth-extra-groups", "system:masters")]).is_none());
        assert!(accept(&secret(&[]), "abcdef", "0123456789abcdeX", now).is_none());
    }

    #[test]
    fn only_the_right_shape_is_looked_up() {
        assert!(parts("abcdef.0123456789abcdef").is_some());
        for wrong in [
            "abcdef",
            "abcde.0123456789abcdef",
            "abcdef.0123",
            "../etc.0123456789abcdef",
        ] {
            assert!(parts(wrong).is_none(), "{wrong}");
        }
    }
}
