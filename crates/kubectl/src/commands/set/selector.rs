//! `kubectl set selector`

use anyhow::{Result, bail};
use clap::Args;
use serde_json::Value;

use crate::{
    args::{Files, RecursiveFiles, Selection},
    json::{list, str_of},
    session::Session,
};

use super::Common;

/// Flags of `set selector`.
#[derive(Debug, Args)]
pub(super) struct Selector {
    /// TYPE NAME or TYPE/NAME, then the selector
    words: Vec<String>,
    /// Only change the object if this is its resource version
    #[arg(long, value_name = "VERSION")]
    resource_version: Option<String>,
    #[command(flatten)]
    files: RecursiveFiles,
    #[command(flatten)]
    common: Common,
}

impl Selector {
    pub(super) async fn run(self, session: &Session) -> Result<()> {
        let Some((selector, names)) = self.words.split_last() else {
            bail!("one selector is required");
        };
        let selection = Selection::from(&Files::from(&self.files));
        self.common.refuse_local_names(names)?;
        super::check_names(names, &selection, &self.common)?;
        refuse_expressions(selector)?;
        let parsed = super::super::create::pairs(selector)?;
        let is_sent = !self.common.dry_run.mode()?.is_client() && !self.common.local;
        let change = |object: &mut Value| {
            if let Some(version) = &self.resource_version
                && is_sent
                && object["metadata"]["resourceVersion"] != version.as_str()
            {
                bail!("the object has another resource version than {version}");
            }
            if object["kind"] != "Service" {
                bail!("setting a selector is only supported for Services");
            }
            object["spec"]["selector"] = parsed.clone();
            Ok(true)
        };
        self.common
            .change(
                session,
                (&selection, names),
                ("selector updated", ""),
                change,
            )
            .await
    }
}

/// Services select by labels only.
fn refuse_expressions(selector: &str) -> Result<()> {
    let parsed = crate::json::label_selector(selector)?;
    let shown = |expression: &Value| {
        let values: Vec<&str> = list(&expression["values"]).map(str_of).collect();
        let (key, operator) = (str_of(&expression["key"]), str_of(&expression["operator"]));
        format!("{{{key} {operator} [{}]}}", values.join(" "))
    };
    let expressions: Vec<String> = list(&parsed["matchExpressions"]).map(shown).collect();
    match expressions.is_empty() {
        true => Ok(()),
        false => bail!(
            "match expression [{}] not supported on this object",
            expressions.join(" ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_labels_are_accepted() {
        assert!(refuse_expressions("a=b,c=d").is_ok());
        for (selector, shown) in [("a", "[{a Exists []}]"), ("a in (b)", "[{a In [b]}]")] {
            let error = refuse_expressions(selector).unwrap_err().to_string();
            assert!(error.contains(shown), "{error}");
        }
    }
}
