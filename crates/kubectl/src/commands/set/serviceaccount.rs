//! `kubectl set serviceaccount`

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    args::{Files, Selection},
    session::Session,
};

use super::{Common, Words, pod_spec};

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
        self.common.check_local()?;
        self.common.check_flags()?;
        let Some((account, names)) = self.words.split_last() else {
            bail!("serviceaccount is required");
        };
        let selection = Selection::from(&self.files);
        let objects = self.common.objects(session, &selection, names).await?;
        let change = |object: &mut Value, _: &mut Vec<anyhow::Error>| {
            let spec = pod_spec(object)?;
            spec["serviceAccountName"] = json!(account);
            Ok(true)
        };
        let words = Words {
            deed: "serviceaccount updated",
            failure: "failed to patch ServiceAccountName",
            skips_unchanged: false,
        };
        self.common.change(session, objects, &words, change).await
    }
}
