//! `kubectl set selector`

use anyhow::{Result, bail};
use clap::Args;
use serde_json::Value;

use crate::{json::str_of, session::Session};

use super::Common;

/// Flags of `set selector`.
#[derive(Debug, Args)]
pub(super) struct Selector {
    /// TYPE NAME or TYPE/NAME, then the selector
    words: Vec<String>,
    /// Only change an object of this version
    #[arg(long, value_name = "VERSION")]
    resource_version: Option<String>,
    #[command(flatten)]
    common: Common,
}

impl Selector {
    pub(super) async fn run(self, session: &Session) -> Result<()> {
        let Some((selector, names)) = self.words.split_last() else {
            bail!(
                "one or more resources must be specified as <resource> <name> or <resource>/<name>"
            );
        };
        if !selector.contains('=') {
            bail!("a selector such as app=web must be given");
        }
        let parsed = super::super::create::pairs(selector)?;
        let change = |object: &mut Value| {
            if let Some(version) = &self.resource_version
                && object["metadata"]["resourceVersion"] != version.as_str()
            {
                bail!("the object has another resource version than {version}");
            }
            if object["kind"] != "Service" {
                bail!(
                    "setting a selector is only supported for Services, not for {}",
                    str_of(&object["kind"])
                );
            }
            object["spec"]["selector"] = parsed.clone();
            Ok(())
        };
        self.common
            .change(session, names, "selector updated", change)
            .await
    }
}
