//! `kubectl set image`

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;

use crate::{
    args::{FilesOrSelector, Selection},
    session::Session,
};

use super::{Common, each_container, split_words};

/// Flags of `set image`.
#[derive(Debug, Args)]
pub(super) struct Image {
    /// TYPE NAME or TYPE/NAME, then CONTAINER=IMAGE…; * is every container
    words: Vec<String>,
    #[command(flatten)]
    selection: FilesOrSelector,
    #[command(flatten)]
    common: Common,
}

impl Image {
    pub(super) async fn run(self, session: &Session) -> Result<()> {
        let (names, pairs) = split_words(&self.words);
        let selection = Selection::from(&self.selection);
        self.common.refuse_local_names(&names)?;
        super::check_names(&names, &selection, &self.common)?;
        super::refuse_stray_words(&names)?;
        if pairs.is_empty() {
            // Missing objects are reported before a missing image.
            self.common.objects(session, &selection, &names).await?;
            bail!("at least one image update is required");
        }
        let changes: Vec<(&str, &str)> = pairs
            .iter()
            .filter_map(|pair| pair.split_once('='))
            .collect();
        if changes.iter().any(|(name, _)| name.is_empty()) {
            bail!("missing container name or image in {}", pairs.join(" "));
        }
        if changes.len() > 1 && changes.iter().any(|(name, _)| *name == "*") {
            bail!(
                "all containers are already specified by *, but saw more than one container_name=container_image pairs"
            );
        }
        self.common.check_local()?;
        let change = |object: &mut serde_json::Value| {
            for (name, image) in &changes {
                let fields: &[&str] = match *name {
                    "*" => &["containers"],
                    _ => &["containers", "initContainers"],
                };
                let found = each_container(object, name, fields, |container| {
                    container["image"] = json!(image);
                    Ok(())
                })?;
                if found == 0 {
                    bail!("unable to find container named {name:?}");
                }
            }
            Ok(true)
        };
        self.common
            .change(
                session,
                (&selection, &names),
                (
                    "image updated",
                    "failed to patch image update to pod template:",
                ),
                change,
            )
            .await
    }
}
