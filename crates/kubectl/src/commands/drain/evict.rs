//! Evicts pods, all at once, and waits until they are gone: a pod that a disruption budget protects
//! delays no other one.

use std::time::Duration;

use anyhow::{Error, Result, anyhow};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Drain,
    pods::{name_of, namespace_of},
};
use crate::{
    args::DryRunMode,
    commands::wait,
    error::{self, ErrorList, ServerError},
    resources::{self, Target},
    session::Session,
};

/// The retry interval of an eviction that is not allowed yet.
const RETRY: Duration = Duration::from_secs(5);

/// The pods of one node that are removed.
pub(super) struct Removal<'a> {
    pub(super) drain: &'a Drain,
    pub(super) session: &'a Session,
    pub(super) dry_run: DryRunMode,
    /// None is forever.
    pub(super) timeout: Option<Duration>,
    pub(super) deadline: Option<Instant>,
}

/// What follows after a refused eviction.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// It is gone.
    Done,
    /// It is being deleted anyway.
    Wait,
    /// Retried; this is printed.
    Retry(String),
    Fail(String),
}

impl Removal<'_> {
    /// All evictions are tried; the error has those of all that failed.
    pub(super) async fn run(&self, pods: &[Value]) -> Result<()> {
        if self.drain.disable_eviction {
            return self.delete(pods).await;
        }
        let evictions = pods.iter().map(|pod| self.evict(pod));
        let ended = futures::future::join_all(evictions).await;
        let failed: Vec<Error> = ended.into_iter().filter_map(Result::err).collect();
        match failed.is_empty() {
            true => Ok(()),
            false => Err(ErrorList(failed).into()),
        }
    }

    async fn evict(&self, pod: &Value) -> Result<()> {
        let (namespace, name) = (namespace_of(pod), name_of(pod));
        let named = format!("pods/{name:?} -n {namespace:?}");
        let target = self.target(pod).await?;
        let path = format!("{}/eviction", target.path());
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": self.options()});
        let mut live = pod.clone();
        loop {
            let suffix = match self.dry_run {
                DryRunMode::Server => self.dry_run.suffix(),
                _ => "",
            };
            println!("evicting pod {namespace}/{name}{suffix}");
            if self
                .deadline
                .is_some_and(|deadline| deadline <= Instant::now())
            {
                let timeout = machinery::duration::text(self.timeout.unwrap_or_default());
                return Err(anyhow!(
                    "error when evicting {named}: global timeout reached: {timeout}"
                ));
            }
            match self.session.api.create(&path, &eviction, &[]).await {
                Ok(_) => break,
                Err(error) => match after(&error, &live) {
                    Next::Done => return Ok(()),
                    Next::Wait => break,
                    Next::Retry(message) => {
                        eprintln!("{message}");
                        self.pause().await;
                    }
                    Next::Fail(message) => return Err(anyhow!("{message}")),
                },
            }
            if let Ok(Some(fresh)) = self.session.api.find(&target.path()).await {
                live = fresh;
            }
        }
        if self.dry_run == DryRunMode::Server {
            return Ok(());
        }
        let failed = |error: Error| {
            anyhow!(
                "error when waiting for pod {name:?} in namespace {namespace:?} to terminate: {error:#}"
            )
        };
        self.until_gone(&target, &live, "evicted")
            .await
            .map_err(failed)
    }

    async fn delete(&self, pods: &[Value]) -> Result<()> {
        let mut targets = Vec::new();
        for pod in pods {
            let target = self.target(pod).await?;
            match self
                .session
                .api
                .delete(&target.path(), &self.options())
                .await
            {
                Err(error) if !error::is_not_found(&error) => return Err(error),
                _ => targets.push((target, pod)),
            }
        }
        if self.dry_run == DryRunMode::Server {
            return Ok(());
        }
        let waits = targets
            .iter()
            .map(|(target, pod)| self.until_gone(target, pod, "deleted"));
        futures::future::try_join_all(waits).await?;
        Ok(())
    }

    fn options(&self) -> Value {
        let mut options = json!({});
        if self.drain.grace_period >= 0 {
            options["gracePeriodSeconds"] = json!(self.drain.grace_period);
        }
        if self.dry_run == DryRunMode::Server {
            options["dryRun"] = json!(["All"]);
        }
        options
    }

    async fn target(&self, pod: &Value) -> Result<Target> {
        let resource = self.session.discovery.resolve("pods").await?;
        let mut target = resources::target(self.session, resource, name_of(pod).to_owned());
        target.namespace = namespace_of(pod).to_owned();
        Ok(target)
    }

    /// A retry is not later than the end of the time.
    async fn pause(&self) {
        let retry = Instant::now() + RETRY;
        let until = self.deadline.map_or(retry, |deadline| deadline.min(retry));
        tokio::time::sleep_until(until).await;
    }

    async fn until_gone(&self, target: &Target, pod: &Value, deed: &str) -> Result<()> {
        let uid = &pod["metadata"]["uid"];
        let mut is_given_up = false;
        let gone = wait::until(self.session, target, |live| {
            let Some(live) = live else { return true };
            let now = jiff::Timestamp::now().as_second();
            is_given_up = live["metadata"]["uid"] == *uid && self.drain.is_given_up(live, now);
            live["metadata"]["uid"] != *uid || is_given_up
        });
        let gone = match self.deadline {
            None => gone.await,
            Some(deadline) => tokio::time::timeout_at(deadline, gone)
                .await
                .unwrap_or_else(|_| Err(anyhow!("context deadline exceeded"))),
        };
        gone?;
        match is_given_up {
            true => println!(
                "pod {:?} has DeletionTimestamp older than {} seconds, skipping",
                target.name, self.drain.skip_wait_for_delete_timeout
            ),
            false => println!("pod/{} {deed}", target.name),
        }
        Ok(())
    }
}

/// What to do after this error about the eviction of a pod.
fn after(error: &Error, pod: &Value) -> Next {
    let (namespace, name) = (namespace_of(pod), name_of(pod));
    let message = match error.downcast_ref::<ServerError>() {
        Some(ServerError(status)) => status.message.clone(),
        None => format!("{error:#}"),
    };
    let is_terminating = error.downcast_ref::<ServerError>().is_some_and(|error| {
        let causes = error.0.details.iter().flat_map(|details| &details.causes);
        error.0.code == 403
            && causes
                .into_iter()
                .any(|cause| cause.reason == "NamespaceTerminating")
    });
    if error::is_not_found(error) {
        return Next::Done;
    }
    // A disruption budget does not allow it now.
    if error::code_is(error, 429) {
        return Next::Retry(format!(
            "error when evicting pods/{name:?} -n {namespace:?} (will retry after 5s): {message}"
        ));
    }
    match is_terminating {
        // Evictions never succeed in such a namespace, but its pods are deleted.
        true if !pod["metadata"]["deletionTimestamp"].is_null() => Next::Wait,
        true => Next::Retry(format!(
            "error when evicting pod {name:?} from terminating namespace {namespace:?} (will retry after 5s): {message}"
        )),
        false => Next::Fail(format!(
            "error when evicting pods/{name:?} -n {namespace:?}: {message}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evictions_are_repeated_only_while_they_may_succeed() {
        let pod = json!({"metadata": {"name": "p", "namespace": "n"}});
        let mut deleted = pod.clone();
        deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let error = |code: u16, reason: &str, cause: &str| -> Error {
            let status = json!({"code": code, "reason": reason, "message": "m",
                "details": {"causes": [{"reason": cause}]}});
            ServerError(serde_json::from_value(status).unwrap()).into()
        };
        let terminating = || error(403, "Forbidden", "NamespaceTerminating");
        let named = "pods/\"p\" -n \"n\"";
        for (error, pod, expected) in [
            (error(404, "NotFound", ""), &pod, Next::Done),
            (
                error(429, "TooManyRequests", "DisruptionBudget"),
                &pod,
                Next::Retry(format!("error when evicting {named} (will retry after 5s): m")),
            ),
            (
                terminating(),
                &pod,
                Next::Retry(
                    "error when evicting pod \"p\" from terminating namespace \"n\" (will retry after 5s): m"
                        .to_owned(),
                ),
            ),
            (terminating(), &deleted, Next::Wait),
            (
                error(403, "Forbidden", ""),
                &deleted,
                Next::Fail(format!("error when evicting {named}: m")),
            ),
        ] {
            assert_eq!(after(&error, pod), expected, "{error}");
        }
    }
}
