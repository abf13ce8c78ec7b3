//! Deletes the Secrets of expired bootstrap tokens, so that they cannot become valid again by a
//! changed date.

use std::{sync::Arc, time::Duration};

use client::Informer;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use reconcile::{Action, Controller, Error, Key, Writer};

use crate::shared::Shared;

/// The name in [`crate::ALL`].
pub const NAME: &str = "token-cleaner";
const ACCOUNT: &str = "token-cleaner";
pub(crate) const TYPE: &str = "bootstrap.kubernetes.io/token";

struct Cleaner {
    shared: Arc<Shared>,
    secrets: Writer<Secret>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    // Watches only the tokens, as the service account that may.
    let client = shared.client(ACCOUNT);
    let secrets = Informer::builder(client.clone())
        .namespace("kube-system")
        .fields(format!("type={TYPE}"))
        .start(&shared.context);
    let controller = Arc::new(Cleaner {
        shared: shared.clone(),
        secrets: Writer::new(client, secrets),
    });
    shared
        .controller(&controller)
        .watches(controller.secrets.cache())
        .start();
}

/// The token's expiration; `None` if it never expires. An invalid date counts as expired.
pub(crate) fn end(secret: &Secret) -> Option<Timestamp> {
    let expiration = secret.data.as_ref()?.get("expiration")?;
    if expiration.0.is_empty() {
        return None;
    }
    let text = std::str::from_utf8(&expiration.0).ok();
    Some(
        text.and_then(|text| text.parse().ok())
            .unwrap_or(Timestamp::MIN),
    )
}

impl Controller for Cleaner {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let secret = self.secrets.cache().get(&key.namespace, &key.name);
        let Some(secret) = secret.filter(|secret| secret.type_.as_deref() == Some(TYPE)) else {
            return Ok(Action::Done);
        };
        let Some(end) = end(&secret) else {
            return Ok(Action::Done);
        };
        let left = end.duration_since(self.shared.now());
        match Duration::try_from(left) {
            Ok(left) if !left.is_zero() => Ok(Action::After(left)),
            _ => {
                self.secrets.delete(&secret).await?;
                Ok(Action::Done)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn a_bootstrap_token_with_an_invalid_expiration_expires_at_once() {
        let with = |expiration: &str| {
            let data = [("expiration".to_owned(), ByteString(expiration.into()))];
            end(&Secret {
                data: Some(data.into()),
                ..Secret::default()
            })
        };
        let at = "2026-06-01T00:00:00Z";
        assert_eq!(with(at), at.parse().ok());
        assert_eq!(with("tomorrow"), Some(Timestamp::MIN));
        assert_eq!(with(""), None);
        assert_eq!(end(&Secret::default()), None);
    }
}
