//! `kubectl wait --for=condition=Ready|delete|jsonpath=…`

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use futures::StreamExt;
use serde_json::Value;

use crate::{
    args::Selection,
    discovery::Discovery,
    error,
    output::jsonpath::{self, Template},
    resources::{self, Target},
    session::Session,
};

/// Flags of `wait`.
#[derive(Debug, Args)]
pub struct Wait {
    /// TYPE NAME… or TYPE/NAME…
    resources: Vec<String>,
    #[command(flatten)]
    selection: Selection,
    /// All objects of the type in the namespace
    #[arg(long)]
    all: bool,
    /// delete, create, condition=NAME[=VALUE], jsonpath='{PATH}'[=VALUE]
    #[arg(long = "for", value_name = "CONDITION")]
    condition: String,
    /// How long, such as 30s or 2m
    #[arg(long, default_value = "30s")]
    timeout: String,
}

enum Condition {
    Delete,
    Create,
    Status(String, String),
    Path(Template, Option<String>),
}

impl Condition {
    fn parse(text: &str) -> Result<Self> {
        if let Some(rest) = text.strip_prefix("condition=") {
            let (name, value) = rest.split_once('=').unwrap_or((rest, "true"));
            return Ok(Self::Status(name.to_owned(), value.to_owned()));
        }
        if let Some(rest) = text.strip_prefix("jsonpath=") {
            let rest = rest.trim_matches('\'');
            let (path, value) = match rest.rsplit_once("}=") {
                Some((path, value)) => (
                    format!("{path}}}"),
                    Some(value.trim_matches('\'').to_owned()),
                ),
                None => (rest.to_owned(), None),
            };
            return Ok(Self::Path(Template::parse(&path)?, value));
        }
        match text {
            "delete" => Ok(Self::Delete),
            "create" => Ok(Self::Create),
            other => bail!("unrecognized condition: {other:?}"),
        }
    }

    /// Whether it holds; `None` is an object that does not exist.
    fn holds(&self, object: Option<&Value>) -> bool {
        match (self, object) {
            (Self::Delete, object) => object.is_none(),
            (_, None) => false,
            (Self::Create, Some(_)) => true,
            (Self::Status(name, value), Some(object)) => {
                let conditions = object["status"]["conditions"]
                    .as_array()
                    .into_iter()
                    .flatten();
                let same =
                    |a: &Value, b: &str| a.as_str().is_some_and(|a| a.eq_ignore_ascii_case(b));
                conditions
                    .into_iter()
                    .any(|c| same(&c["type"], name) && same(&c["status"], value))
            }
            (Self::Path(path, value), Some(object)) => {
                let found = path.values(object);
                match value {
                    Some(value) => found.iter().any(|found| jsonpath::text(found) == *value),
                    None => !found.is_empty(),
                }
            }
        }
    }
}

impl Wait {
    pub async fn run(self, session: &Session) -> Result<()> {
        let condition = Condition::parse(&self.condition)?;
        let timeout = duration(&self.timeout)?;
        let discovery = Discovery::load(&session.api).await?;
        let targets = resources::targets(
            session,
            &discovery,
            &self.selection,
            &self.resources,
            self.all,
        )
        .await?;
        if targets.is_empty() && !matches!(condition, Condition::Delete) {
            bail!("no matching resources found");
        }
        let deadline = tokio::time::Instant::now() + timeout;
        for target in targets {
            tokio::time::timeout_at(deadline, until(session, &target, &condition))
                .await
                .with_context(|| {
                    format!(
                        "timed out waiting for the condition on {}",
                        target.display()
                    )
                })??;
            println!("{} condition met", target.display());
        }
        Ok(())
    }
}

async fn until(session: &Session, target: &Target, condition: &Condition) -> Result<()> {
    loop {
        let live = match session.api.get(&target.path()).await {
            Ok(live) => Some(live),
            Err(error) if error::is_not_found(&error) => None,
            Err(error) => return Err(error),
        };
        if condition.holds(live.as_ref()) {
            return Ok(());
        }
        if live.is_none() && !matches!(condition, Condition::Create) {
            bail!("{} not found", target.display());
        }
        let version = live
            .as_ref()
            .and_then(|live| live["metadata"]["resourceVersion"].as_str());
        let path = format!(
            "{}?watch=true&timeoutSeconds=60&fieldSelector=metadata.name%3D{}{}",
            target.resource.collection(Some(&target.namespace)),
            target.name,
            version
                .map(|version| format!("&resourceVersion={version}"))
                .unwrap_or_default()
        );
        let mut events = Box::pin(session.api.watch(&path, "application/json").await?);
        while let Some(Ok(event)) = events.next().await {
            let object = match event["type"].as_str() {
                Some("DELETED") => None,
                Some("ERROR") => break,
                _ => Some(&event["object"]),
            };
            if condition.holds(object) {
                return Ok(());
            }
        }
    }
}

/// `90s`, `2m`, `1h30m`, `500ms`, or seconds.
pub fn duration(text: &str) -> Result<Duration> {
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    let bad = || format!("invalid duration {text:?}");
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .with_context(bad)?;
        let number: f64 = rest[..end].parse().with_context(bad)?;
        let unit = &rest[end..];
        let (seconds, used) = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)]
            .into_iter()
            .find_map(|(name, seconds)| unit.starts_with(name).then_some((seconds, name.len())))
            .with_context(bad)?;
        total += Duration::try_from_secs_f64(number * seconds).with_context(bad)?;
        rest = &unit[used..];
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, seconds) in [
            ("90s", 90.0),
            ("2m", 120.0),
            ("1h30m", 5400.0),
            ("500ms", 0.5),
            ("7", 7.0),
        ] {
            assert_eq!(duration(text).unwrap().as_secs_f64(), seconds, "{text}");
        }
        assert!(duration("soon").is_err());
    }

    #[test]
    fn conditions_hold_when_the_object_says_so() {
        let object = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        for (text, holds) in [
            ("condition=Ready", true),
            ("condition=ready=false", false),
            ("jsonpath={.status.phase}=Running", true),
            ("jsonpath={.status.phase}=Failed", false),
            ("jsonpath={.status.podIP}", false),
            ("delete", false),
            ("create", true),
        ] {
            assert_eq!(
                Condition::parse(text).unwrap().holds(Some(&object)),
                holds,
                "{text}"
            );
        }
    }
}
