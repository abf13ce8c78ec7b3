//! `kubectl set serviceaccount`

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    args::{Files, Selection},
    session::Session,
};

use super::{Common, pod_spec};

/// Flags of `set serviceaccount`.
#[derive(Debug, Args)]
pub(super) struct ServiceAccount {
    /// TYPE NAME or TYPE/NAME, then the service account
    words: Vec<String>,
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    common: Common,
}

impl ServiceAccount {
    pub(super) async fn run(self, session: &Session) -> Result<()> {
        let Some((account, names)) = self.words.split_last() else {
            bail!("serviceaccount is required");
        };
        let selection = Selection::from(&self.files);
        let change = |object: &mut Value| {
            let spec = pod_spec(object)?;
            spec["serviceAccountName"] = json!(account);
            Ok(true)
        };
        self.common
            .change(
                session,
                (&selection, names),
                (
                    "serviceaccount updated",
                    "failed to patch ServiceAccountName",
                ),
                change,
            )
            .await
    }
}
