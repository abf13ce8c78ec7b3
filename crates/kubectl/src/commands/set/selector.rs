//! `kubectl set selector`

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    args::{Files, RecursiveFiles, Selection},
    json::{list, str_of},
    session::Session,
};

use super::{Common, Words};

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
        self.common.dry_run.mode()?;
        let selector = self.words.last();
        let parsed = selector
            .map(|text| crate::json::label_selector(text))
            .transpose()?;
        self.common.check_flags()?;
        let (Some(parsed), Some((_, names))) = (parsed, self.words.split_last()) else {
            bail!("one selector is required");
        };
        let selection = Selection::from(&Files::from(&self.files));
        self.common.refuse_local_names(names)?;
        let mut objects = self.common.objects(session, &selection, names).await?;
        let version = self
            .resource_version
            .as_ref()
            .filter(|text| !text.is_empty());
        if version.is_some() {
            // So that the version is part of the patch.
            for metadata in objects
                .iter_mut()
                .filter_map(|(_, object)| object["metadata"].as_object_mut())
            {
                metadata.remove("resourceVersion");
            }
        }
        let change = |object: &mut Value, _: &mut Vec<anyhow::Error>| {
            if let Some(version) = version {
                object["metadata"]["resourceVersion"] = json!(version);
            }
            if object["kind"] != "Service" {
                bail!("setting a selector is only supported for Services");
            }
            refuse_expressions(&parsed)?;
            object["spec"]["selector"] = parsed["matchLabels"].clone();
            Ok(true)
        };
        let words = Words {
            deed: "selector updated",
            failure: "",
            skips_unchanged: false,
        };
        self.common.change(session, objects, &words, change).await
    }
}

/// Services select by labels only.
fn refuse_expressions(parsed: &Value) -> Result<()> {
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
        let refuse = |text: &str| refuse_expressions(&crate::json::label_selector(text).unwrap());
        assert!(refuse("a=b,c=d").is_ok());
        for (selector, shown) in [("a", "[{a Exists []}]"), ("a in (b)", "[{a In [b]}]")] {
            let error = refuse(selector).unwrap_err().to_string();
            assert!(error.contains(shown), "{error}");
        }
    }
}
