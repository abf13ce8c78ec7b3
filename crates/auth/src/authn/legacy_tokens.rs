//! Tokens in Secrets of type `kubernetes.io/service-account-token`. They do not expire: such a
//! token is valid as long as its Secret contains it and its account exists, unless it is labelled
//! invalid. The day of its last use is recorded on its Secret, so that unused tokens can be found.

use std::collections::HashSet;

use base64::{Engine, prelude::BASE64_STANDARD};
use kinds::tree;
use machinery::Object;
use parking_lot::Mutex;
use serde::Deserialize;
use stdx::Clock;
use tokio::sync::Notify;

use super::{Refused, bearer};
use registry::{Reader, meta};
use request::User;

pub(super) const ISSUER: &str = "kubernetes/serviceaccount";
/// The label of a Secret with the day on which its token was last used.
pub const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

/// The claims of such a token.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct LegacyClaims {
    #[serde(default)]
    pub sub: String,
    #[serde(default, rename = "kubernetes.io/serviceaccount/service-account.name")]
    pub account: String,
    #[serde(default, rename = "kubernetes.io/serviceaccount/service-account.uid")]
    pub uid: String,
    #[serde(default, rename = "kubernetes.io/serviceaccount/secret.name")]
    pub secret: String,
    #[serde(default, rename = "kubernetes.io/serviceaccount/namespace")]
    pub namespace: String,
}

/// Secrets whose tokens were used since they were last recorded.
#[derive(Default)]
pub struct Uses {
    /// Guards namespace, name and uid of the Secrets.
    secrets: Mutex<HashSet<(String, String, String)>>,
    more: Notify,
}

impl Uses {
    fn record_use(&self, namespace: &str, secret: &Object) {
        let text = |field| meta::text(secret, field).to_owned();
        let used = (namespace.to_owned(), text("name"), text("uid"));
        if self.secrets.lock().insert(used) {
            self.more.notify_one();
        }
    }

    /// Waits for unrecorded uses: namespace, name and uid of their Secrets.
    pub async fn next(&self) -> HashSet<(String, String, String)> {
        self.more.notified().await;
        std::mem::take(&mut *self.secrets.lock())
    }
}

fn refuse(why: impl Into<String>) -> Refused {
    Refused(why.into())
}

/// The account of a token with a valid signature.
pub(super) async fn account(
    reader: &Reader,
    uses: &Uses,
    clock: &dyn Clock,
    token: &str,
    claims: &LegacyClaims,
) -> Result<User, Refused> {
    let (namespace, name) = (claims.namespace.as_str(), claims.account.as_str());
    for (value, claim) in [
        (&claims.sub, "sub"),
        (&claims.namespace, "namespace"),
        (&claims.secret, "secretName"),
        (&claims.account, "serviceAccountName"),
        (&claims.uid, "serviceAccountUID"),
    ] {
        if value.is_empty() {
            return Err(refuse(format!("{claim} claim is missing")));
        }
    }
    if claims.sub != format!("system:serviceaccount:{namespace}:{name}") {
        return Err(refuse("sub claim is invalid"));
    }
    let read = async |resource: &str, name: &str| {
        let found = reader.get("", resource, namespace, name).await;
        let found = found.map_err(|_| refuse("cannot read the store"))?;
        let found = found.map(|found| found.parse());
        Ok::<_, Refused>(found.filter(|object| !meta::is_deleting(object)))
    };
    let secret = read("secrets", &claims.secret).await?;
    let secret = secret.ok_or_else(|| refuse("Token has been invalidated"))?;
    let held = tree::text(&tree::get(&secret, "data")["token"]);
    let held = BASE64_STANDARD.decode(held).unwrap_or_default();
    if !bearer::equal(&String::from_utf8_lossy(&held), token) {
        return Err(refuse("Token does not match server's copy"));
    }
    let account = read("serviceaccounts", name).await?;
    let account = account
        .ok_or_else(|| refuse(format!("ServiceAccount {namespace}/{name} does not exist")))?;
    if meta::text(&account, "uid") != claims.uid {
        return Err(refuse("ServiceAccount UID does not match claim"));
    }
    let labels = &tree::get(&secret, "metadata")["labels"];
    if is_stale(tree::text(&labels[LAST_USED]), clock) {
        uses.record_use(namespace, &secret);
    }
    if !tree::text(&labels[INVALID_SINCE]).is_empty() {
        let secret = &claims.secret;
        return Err(refuse(format!(
            "the token in secret {namespace}/{secret} for service account {namespace}/{name} has been marked invalid. Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the '{INVALID_SINCE}' label from the secret to temporarily allow use of this token"
        )));
    }
    let mut user = User::service_account(namespace, name);
    user.uid.clone_from(&claims.uid);
    Ok(user)
}

/// The day in UTC.
pub fn today(clock: &dyn Clock) -> jiff::civil::Date {
    clock.now().to_zoned(jiff::tz::TimeZone::UTC).date()
}

/// Whether the recorded day is neither today nor, by another server's clock, tomorrow.
fn is_stale(noted: &str, clock: &dyn Clock) -> bool {
    let today = today(clock);
    let tomorrow = today.tomorrow().unwrap_or(today);
    noted != today.to_string() && noted != tomorrow.to_string()
}
