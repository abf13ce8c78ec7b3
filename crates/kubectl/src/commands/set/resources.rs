//! `kubectl set resources`

use anyhow::{Result, bail};
use clap::Args;
use machinery::quantity::Quantity;
use serde_json::{Value, json};

use crate::{
    args::{FilesOrSelector, Selection},
    session::Session,
};

use super::{Common, each_container};

/// Flags of `set resources`.
#[derive(Debug, Args)]
pub(super) struct Resources {
    /// TYPE NAME or TYPE/NAME
    words: Vec<String>,
    /// The containers in the selected pod templates to change; wildcards are allowed
    #[arg(short, long, default_value = "*")]
    containers: String,
    /// The resource requirement limits for this container, as cpu=200m,memory=512Mi
    #[arg(long)]
    limits: Option<String>,
    /// The resource requirement requests for this container, as cpu=100m,memory=256Mi
    #[arg(long)]
    requests: Option<String>,
    #[command(flatten)]
    selection: FilesOrSelector,
    #[command(flatten)]
    common: Common,
}

impl Resources {
    pub(super) async fn run(self, session: &Session) -> Result<()> {
        let selection = Selection::from(&self.selection);
        self.common.refuse_local_names(&self.words)?;
        super::check_names(&self.words, &selection, &self.common)?;
        self.common.check_local()?;
        if self.limits.is_none() && self.requests.is_none() {
            bail!(
                "you must specify an update to requests or limits (in the form of --requests/--limits)"
            );
        }
        let limits = parse(self.limits.as_deref())?;
        let requests = parse(self.requests.as_deref())?;
        let change = |object: &mut Value| {
            let found = each_container(
                object,
                &self.containers,
                &["containers", "initContainers"],
                |container| {
                    for (field, amounts) in [("limits", &limits), ("requests", &requests)] {
                        for (name, amount) in amounts {
                            container["resources"][field][name.as_str()] = json!(amount);
                        }
                    }
                    Ok(())
                },
            )?;
            match found {
                0 => bail!("unable to find container named {}", self.containers),
                _ => Ok(true),
            }
        };
        self.common
            .change(
                session,
                (&selection, &self.words),
                (
                    "resource requirements updated",
                    "failed to patch resources update to pod template",
                ),
                change,
            )
            .await
    }
}

fn parse(text: Option<&str>) -> Result<Vec<(String, String)>> {
    let mut amounts = Vec::new();
    for pair in text
        .into_iter()
        .flat_map(|text| text.split(','))
        .filter(|pair| !pair.is_empty())
    {
        let Some((name, amount)) = pair.split_once('=') else {
            bail!("Invalid argument syntax {pair}, expected <resource>=<value>");
        };
        if amount.parse::<Quantity>().is_err() {
            bail!(
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            );
        }
        amounts.push((name.to_owned(), amount.to_owned()));
    }
    Ok(amounts)
}
