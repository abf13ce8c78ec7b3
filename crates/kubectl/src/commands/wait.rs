//! `kubectl wait --for=condition=Ready|delete|create|jsonpath=…`

use anyhow::{Context, Result, bail};
use clap::Args;
use futures::StreamExt;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    args::{Files, RecursiveFiles, Selection},
    error,
    json::{list, str_of},
    output::{
        PrintFlags,
        jsonpath::{self, Template},
    },
    resources::{self, Target},
    session::Session,
};

use super::report::Report;

/// Flags of `wait`.
#[derive(Debug, Args)]
pub(crate) struct Wait {
    /// TYPE NAME… or TYPE/NAME…
    resources: Vec<String>,
    #[command(flatten)]
    files: RecursiveFiles,
    /// Selector (label query) to filter on, such as app=web,tier!=cache
    #[arg(short = 'l', long, value_name = "QUERY")]
    selector: Option<String>,
    /// Selector (field query) to filter on, such as status.phase=Running
    #[arg(long, value_name = "QUERY")]
    field_selector: Option<String>,
    /// List the objects across all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Read the files only, without types and names
    #[arg(long)]
    local: bool,
    /// Select all resources in the namespace of the specified resource types
    #[arg(long)]
    all: bool,
    /// The condition to wait on: delete, create, condition=NAME[=VALUE], jsonpath='{PATH}'[=VALUE]; may be repeated
    #[arg(long = "for", value_name = "CONDITION")]
    conditions: Vec<String>,
    /// How long to wait before giving up; 0 checks once, negative is a week
    #[arg(long, default_value = "30s", value_name = "DURATION")]
    timeout: String,
    #[command(flatten)]
    print: PrintFlags,
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
            let (path, value) = split_path(rest)?;
            return Ok(Self::Path(
                Template::relaxed(path.trim_matches('\''))?,
                value,
            ));
        }
        match text.to_lowercase().as_str() {
            "delete" => Ok(Self::Delete),
            "create" => Ok(Self::Create),
            _ => bail!("unrecognized condition: {text:?}"),
        }
    }

    /// The error of a path that leads to an object or a list although a value is given.
    fn check(&self, object: &Value) -> Result<()> {
        let Self::Path(path, Some(_)) = self else {
            return Ok(());
        };
        let is_nested = |value: &Value| value.is_object() || value.is_array();
        match path.values(object).as_slice() {
            [_, _, ..] => bail!("given jsonpath expression matches more than one value"),
            [value] if is_nested(value) => {
                bail!("jsonpath leads to a nested object or list which is not supported")
            }
            _ => Ok(()),
        }
    }

    /// Whether it holds; `None` is an object that does not exist.
    fn holds(&self, object: Option<&Value>) -> bool {
        match (self, object) {
            (Self::Delete, object) => object.is_none(),
            (_, None) => false,
            (Self::Create, Some(_)) => true,
            (Self::Status(name, value), Some(object)) => has_condition(object, name, value),
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

/// Whether a condition has a status that is up to date: the controller has observed the current
/// generation.
fn has_condition(object: &Value, name: &str, value: &str) -> bool {
    let same = |a: &Value, b: &str| str_of(a).eq_ignore_ascii_case(b);
    let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
    list(&object["status"]["conditions"]).any(|condition| {
        let observed = condition["observedGeneration"].as_i64();
        let observed = observed
            .or(object["status"]["observedGeneration"].as_i64())
            .unwrap_or(generation);
        same(&condition["type"], name)
            && same(&condition["status"], value)
            && observed >= generation
    })
}

/// A path and the value after a single `=`.
fn split_path(text: &str) -> Result<(String, Option<String>)> {
    if text.is_empty() {
        bail!("jsonpath expression cannot be empty");
    }
    let mut parts = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '=' if chars.next_if_eq(&'=').is_some() => parts
                .iter_mut()
                .last()
                .into_iter()
                .for_each(|p| p.push_str("==")),
            '=' => parts.push(String::new()),
            c => parts.iter_mut().last().into_iter().for_each(|p| p.push(c)),
        }
    }
    match parts.as_slice() {
        [path] => Ok((path.clone(), None)),
        [path, value] => match value.trim_matches(['\'', '"']) {
            "" => bail!(
                "jsonpath wait has to have a value after equal sign, like --for=jsonpath='{{.status.readyReplicas}}'=3"
            ),
            value => Ok((path.clone(), Some(value.to_owned()))),
        },
        _ => bail!(
            "jsonpath wait format must be --for=jsonpath='{{.status.readyReplicas}}'=3 or --for=jsonpath='{{.status.readyReplicas}}'"
        ),
    }
}

impl Wait {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let report = Report::new(&self.print, crate::args::DryRunMode::None)?;
        if self.conditions.is_empty() {
            bail!("unrecognized condition: []");
        }
        let conditions: Vec<Condition> = self
            .conditions
            .iter()
            .map(|text| Condition::parse(text))
            .collect::<Result<_>>()?;
        let timeout = match crate::duration::parse_signed(&self.timeout)? {
            (true, _) => std::time::Duration::from_secs(7 * 24 * 3600),
            (false, timeout) => timeout,
        };
        let deadline = Instant::now() + timeout;
        let is_for_delete = conditions
            .iter()
            .any(|condition| matches!(condition, Condition::Delete));
        let is_for_create = conditions
            .iter()
            .any(|condition| matches!(condition, Condition::Create));
        if is_for_create {
            self.wait_for_all(session, deadline).await?;
        }
        let targets = self.targets(session).await?;
        if targets.is_empty() && !is_for_delete {
            bail!("no matching resources found");
        }
        let mut errors = Vec::new();
        for target in targets {
            for condition in &conditions {
                let outcome = self.wait(session, &target, condition, deadline).await;
                match outcome {
                    // There was nothing to wait for.
                    Ok(object) if object.is_null() => {}
                    Ok(object) => report.print(&object, "condition met")?,
                    Err(error) => {
                        errors.push(error);
                        break;
                    }
                }
            }
        }
        error::aggregate(errors)
    }

    /// Waits until there are objects, and every named one exists. As in upstream, only one of them may be missing.
    async fn wait_for_all(&self, session: &Session, deadline: Instant) -> Result<()> {
        const INTERVAL: std::time::Duration = std::time::Duration::from_millis(500);
        loop {
            let (mut found, mut errors) = (false, Vec::new());
            match self.targets(session).await {
                Err(error) => errors.push(error),
                Ok(targets) => {
                    for target in targets {
                        match target.get(session).await {
                            Ok(_) => found = true,
                            Err(error) => errors.push(error),
                        }
                    }
                }
            }
            match errors.as_slice() {
                [] if found => return Ok(()),
                [] => {}
                [one] if error::is_not_found(one) => {}
                _ => return error::aggregate(errors),
            }
            if Instant::now() + INTERVAL >= deadline {
                tokio::time::sleep_until(deadline).await;
                bail!("timed out waiting for the condition");
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    async fn targets(&self, session: &Session) -> Result<Vec<Target>> {
        let selection = Selection {
            files: Files::from(&self.files),
            selector: self.selector.clone(),
            field_selector: self.field_selector.clone(),
            all_namespaces: self.all_namespaces,
            chunk_size: None,
        };
        if self.local && !self.resources.is_empty() {
            bail!(resources::LOCAL_TYPES);
        }
        resources::targets(session, &selection, &self.resources, self.all).await
    }

    async fn wait(
        &self,
        session: &Session,
        target: &Target,
        condition: &Condition,
        deadline: Instant,
    ) -> Result<Value> {
        let mut last = target.live.clone();
        if let Condition::Create = condition {
            return target.get(session).await;
        }
        // `--timeout=0`
        // An object that is gone meets `delete` even after the timeout.
        let is_late = Instant::now() >= deadline;
        if is_late && matches!(condition, Condition::Delete) {
            let live = session.api.find(&target.path()).await?;
            if live.is_none() {
                return Ok(Value::Null);
            }
        }
        let is_only_check = crate::duration::parse(&self.timeout).is_ok_and(|t| t.is_zero());
        let mut failure = Ok(());
        let found = async {
            until(session, target, |object| {
                if let Some(object) = object {
                    last = Some(object.clone());
                    failure = condition.check(object);
                    if failure.is_err() {
                        return true;
                    }
                }
                // An object that does not exist will not get a condition.
                let is_hopeless = object.is_none() && !matches!(condition, Condition::Delete);
                condition.holds(object) || is_hopeless || is_only_check
            })
            .await
        };
        if is_only_check {
            found.await?;
            failure?;
            return match (last, condition) {
                (None, Condition::Delete) => Ok(Value::Null),
                (Some(object), condition) if condition.holds(Some(&object)) => Ok(object),
                (None, Condition::Status(..) | Condition::Path(..)) => {
                    session.api.get(&target.path()).await
                }
                _ => bail!("condition not met for {}", display(target)),
            };
        }
        let outcome = tokio::time::timeout_at(deadline, found).await;
        failure?;
        outcome.map_err(|_| {
            anyhow::anyhow!("timed out waiting for the condition on {}", display(target))
        })??;
        match (last, condition) {
            (Some(object), _) => Ok(object),
            (None, Condition::Delete) => Ok(Value::Null),
            // The server's message about the missing object.
            (None, _) => session.api.get(&target.path()).await,
        }
    }
}

/// `deployments/web`, as in the timeout message.
fn display(target: &Target) -> String {
    format!("{}/{}", target.resource.plural, target.name)
}

/// Reads and then watches an object until the predicate holds; `None` is an object that does not
/// exist.
pub(super) async fn until(
    session: &Session,
    target: &Target,
    mut holds: impl FnMut(Option<&Value>) -> bool,
) -> Result<()> {
    loop {
        let live = session.api.find(&target.path()).await?;
        if holds(live.as_ref()) {
            return Ok(());
        }
        let version = live
            .as_ref()
            .map(|live| str_of(&live["metadata"]["resourceVersion"]))
            .unwrap_or_default();
        let mut events = Box::pin(
            session
                .api
                .watch(&target.watch_path(version), "application/json")
                .await?,
        );
        while let Some(event) = events.next().await {
            let event = event.context("the watch ended")?;
            let object = match event["type"].as_str() {
                Some("DELETED") => None,
                Some("ERROR") => break,
                Some("BOOKMARK") => continue,
                _ => Some(&event["object"]),
            };
            if holds(object) {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_hold_when_the_object_says_so() {
        let object = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        for (text, holds) in [
            ("condition=Ready", true),
            ("condition=ready=false", false),
            ("jsonpath={.status.phase}=Running", true),
            ("jsonpath='{.status.phase}'=Failed", false),
            ("jsonpath=.status.podIP", false),
            ("delete", false),
            ("create", true),
        ] {
            assert_eq!(
                Condition::parse(text).unwrap().holds(Some(&object)),
                holds,
                "{text}"
            );
        }
        for text in ["never", "jsonpath={.a}=", "jsonpath={.a}=b=c"] {
            assert!(Condition::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_path_with_a_value_leads_to_one_scalar() {
        let object = json!({"list": [{"a": "x"}, {"a": "y"}], "one": "x"});
        let check = |text: &str| Condition::parse(text).unwrap().check(&object);
        assert!(check("jsonpath={.one}=x").is_ok());
        assert!(check("jsonpath={.list[*].a}").is_ok());
        for (text, expected) in [
            ("jsonpath={.list[*].a}=x", "more than one value"),
            ("jsonpath={.list}=x", "nested object or list"),
        ] {
            let error = check(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_condition_of_an_earlier_generation_does_not_count() {
        let object = json!({"metadata": {"generation": 2}, "status": {
            "observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True"}]}});
        assert!(!has_condition(&object, "Ready", "true"));
    }
}
