//! `kubectl set image`

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    args::{FilesOrSelector, Selection},
    error,
    session::Session,
};

use super::{Common, Words, each_container};

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
        self.common.check_flags()?;
        let (names, changes) = parse(&self.words)?;
        let selection = Selection::from(&self.selection);
        self.common.refuse_local_names(&names)?;
        let objects = self.common.objects(session, &selection, &names).await?;
        self.check(&selection, &changes)?;
        let change = |object: &mut Value, errors: &mut Vec<anyhow::Error>| {
            for (name, image) in &changes {
                let set = |container: &mut Value| {
                    container["image"] = json!(image);
                    Ok(())
                };
                let is_named = |container: &str| name == "*" || container == name;
                if each_container(object, is_named, set)? == 0 {
                    errors.push(anyhow!("error: unable to find container named {name:?}"));
                }
            }
            Ok(true)
        };
        let words = Words {
            deed: "image updated",
            failure: "failed to patch image update to pod template:",
            skips_unchanged: true,
        };
        self.common.change(session, objects, &words, change).await
    }

    fn check(&self, selection: &Selection, changes: &BTreeMap<String, String>) -> Result<()> {
        let images = match changes.len() {
            0 => Err(anyhow!("at least one image update is required")),
            2.. if changes.contains_key("*") => Err(anyhow!(
                "all containers are already specified by *, but saw more than one container_name=container_image pairs"
            )),
            _ => Ok(()),
        };
        let checks = [
            self.common.check_all(selection),
            images,
            self.common.check_local(),
        ];
        error::aggregate(checks.into_iter().filter_map(Result::err).collect())
    }
}

/// The types and names, and the images by container.
fn parse(words: &[String]) -> Result<(Vec<String>, BTreeMap<String, String>)> {
    let is_image = |word: &&String| {
        word.find('=').is_some_and(|at| at > 0) || (word.ends_with('-') && *word != "-")
    };
    let count = words.iter().take_while(|word| !is_image(word)).count();
    let (names, pairs) = words.split_at(count);
    if let Some(late) = pairs.iter().find(|word| !is_image(word)) {
        bail!("all resources must be specified before image changes: {late}");
    }
    let (mut images, mut invalid) = (BTreeMap::new(), Vec::new());
    for pair in pairs {
        match pair.split_once('=') {
            Some((name, image)) => drop(images.insert(name.to_owned(), image.to_owned())),
            None => invalid.push(pair.as_str()),
        }
    }
    match invalid.is_empty() {
        true => Ok((names.to_vec(), images)),
        false => bail!("invalid image format: {}", invalid.join(", ")),
    }
}
