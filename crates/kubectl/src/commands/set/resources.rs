//! `kubectl set resources`

use anyhow::{Result, anyhow, bail};
use clap::Args;
use machinery::quantity::Quantity;
use serde_json::{Value, json};

use crate::{
    args::{FilesOrSelector, Selection},
    session::Session,
};

use super::{Common, Words, each_container, is_selected};

/// Flags of `set resources`.
#[derive(Debug, Args)]
pub(super) struct Resources {
    /// TYPE NAME or TYPE/NAME
    words: Vec<String>,
    /// The containers in the selected pod templates to change; wildcards are allowed
    #[arg(short, long, default_value = "*")]
    containers: String,
    /// The resource requirement limits for this container, as cpu=200m,memory=512Mi
    #[arg(long, default_value = "", hide_default_value = true)]
    limits: String,
    /// The resource requirement requests for this container, as cpu=100m,memory=256Mi
    #[arg(long, default_value = "", hide_default_value = true)]
    requests: String,
    #[command(flatten)]
    selection: FilesOrSelector,
    #[command(flatten)]
    common: Common,
}

impl Resources {
    pub(super) async fn run(self, session: &Session) -> Result<()> {
        self.common.check_flags()?;
        let selection = Selection::from(&self.selection);
        self.common.refuse_local_names(&self.words)?;
        let objects = self
            .common
            .objects(session, &selection, &self.words)
            .await?;
        self.common.check_local()?;
        self.common.check_all(&selection)?;
        if self.limits.is_empty() && self.requests.is_empty() {
            bail!(
                "you must specify an update to requests or limits (in the form of --requests/--limits)"
            );
        }
        let limits = parse(&self.limits)?;
        let requests = parse(&self.requests)?;
        let change = |object: &mut Value, errors: &mut Vec<anyhow::Error>| {
            let set = |container: &mut Value| {
                for (field, amounts) in [("limits", &limits), ("requests", &requests)] {
                    for (name, amount) in amounts {
                        container["resources"][field][name.as_str()] = json!(amount);
                    }
                }
                Ok(())
            };
            let found = each_container(object, |name| is_selected(name, &self.containers), set)?;
            if found == 0 {
                let pattern = &self.containers;
                errors.push(anyhow!("error: unable to find container named {pattern}"));
            }
            Ok(found > 0)
        };
        let words = Words {
            deed: "resource requirements updated",
            failure: "failed to patch resources update to pod template",
            skips_unchanged: true,
        };
        self.common.change(session, objects, &words, change).await
    }
}

fn parse(text: &str) -> Result<Vec<(String, String)>> {
    let mut amounts = Vec::new();
    for pair in text.split(',').filter(|_| !text.is_empty()) {
        let parts: Vec<&str> = pair.split('=').collect();
        let [name, amount] = parts[..] else {
            bail!("Invalid argument syntax {pair}, expected <resource>=<value>");
        };
        amount.parse::<Quantity>()?;
        amounts.push((name.to_owned(), amount.to_owned()));
    }
    Ok(amounts)
}
