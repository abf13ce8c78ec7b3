//! Labels Secrets with the day on which their service account token was last used.

use std::sync::Arc;

use auth::authn::legacy_tokens::{LAST_USED, Uses, today};
use machinery::{Object, Status, json::json};

use crate::{
    meta,
    write::{self, Write, WritePath},
};

/// Records the use of tokens on their Secrets, for as long as the server runs.
pub(crate) async fn track(writes: Arc<WritePath>, uses: Arc<Uses>) {
    loop {
        for (namespace, name, uid) in uses.next().await {
            if let Err(error) = label(&writes, &namespace, &name, &uid).await {
                tracing::debug!(namespace, name, %error, "cannot record the last use of a token");
            }
        }
    }
}

async fn label(
    writes: &Arc<WritePath>,
    namespace: &str,
    name: &str,
    uid: &str,
) -> Result<(), Status> {
    let Some(resource) = writes.registry.get("", "v1", "secrets") else {
        return Ok(());
    };
    let write = Write {
        admitted: false,
        ..writes.own_write(resource, namespace, name, "patch")
    };
    let today = today(&*writes.clock).to_string();
    let change = |old: &Object| {
        let mut secret = old.clone();
        if meta::text(old, "uid") != uid {
            return Ok(secret);
        }
        let metadata = meta::of_mut(&mut secret);
        let labels = metadata.entry("labels").or_insert_with(|| json!({}));
        labels[LAST_USED] = today.as_str().into();
        Ok(secret)
    };
    match write::update(&write, &change).await {
        Err(status) if status.code != 404 => Err(status),
        _ => Ok(()),
    }
}
