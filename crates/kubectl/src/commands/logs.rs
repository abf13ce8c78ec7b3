//! `kubectl logs`: of one container, or of several at once.

use std::{collections::HashSet, io::Write, time::Duration};

use anyhow::{Result, bail};
use clap::Args;
use futures::StreamExt;
use serde_json::Value;
use tokio::{sync::mpsc, time::Instant};

use crate::{
    api::{Query, with_query},
    error,
    json::{list, str_of, text},
    pod_order,
    session::Session,
    streams::{self, container_names, container_of, pod_of, pods_of, pods_with},
};

/// Flags of `logs`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Logs {
    /// POD or TYPE/NAME
    resource: Option<String>,
    /// The container
    name: Option<String>,
    /// Print the logs of this container
    #[arg(short, long)]
    container: Option<String>,
    /// Selector (label query) to filter on
    #[arg(short = 'l', long, value_name = "QUERY")]
    selector: Option<String>,
    /// Get all containers' logs in the pod(s)
    #[arg(long)]
    all_containers: bool,
    /// Get logs from all pod(s); sets prefix
    #[arg(long)]
    all_pods: bool,
    /// Prefix each log line with the log source (pod name and container name)
    #[arg(long)]
    prefix: bool,
    /// Specify if the logs should be streamed
    #[arg(short, long)]
    follow: bool,
    /// Follow, also in pods that start later
    #[arg(short = 'F', long)]
    follow_new: bool,
    /// Print the logs for the previous instance of the container
    #[arg(short, long)]
    previous: bool,
    /// Include timestamps on each line in the log output
    #[arg(long)]
    timestamps: bool,
    /// Lines of recent log file to display; -1 shows all, and with a selector 10
    #[arg(long, value_name = "COUNT")]
    tail: Option<i64>,
    /// Only return logs newer than a relative duration like 5s, 2m, or 3h
    #[arg(long, value_name = "DURATION")]
    since: Option<String>,
    /// Only return logs after a specific date (RFC3339)
    #[arg(long)]
    since_time: Option<String>,
    /// Maximum bytes of logs to return
    #[arg(long, default_value_t = 0)]
    limit_bytes: i64,
    /// Maximum number of concurrent logs to follow when using a selector
    #[arg(long, default_value_t = 5, value_name = "COUNT")]
    max_log_requests: usize,
    /// If following logs, continue after non-fatal errors
    #[arg(long)]
    ignore_errors: bool,
    /// Do not check the identity of the kubelet
    #[arg(long)]
    insecure_skip_tls_verify_backend: bool,
    /// How long to wait until at least one pod is running
    #[arg(long, default_value = "20s", value_name = "DURATION")]
    pod_running_timeout: String,
}

/// One container's log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Source {
    namespace: String,
    pod: String,
    container: String,
    /// The ID of the running or last container; empty before the first.
    instance: String,
}

impl Logs {
    pub(crate) async fn run(mut self, session: &Session) -> Result<()> {
        self.follow |= self.follow_new;
        self.selector = self.selector.filter(|selector| !selector.is_empty());
        self.check()?;
        let sources = self.sources(session, false).await?;
        let prefix = self.prefix || self.all_pods;
        if self.follow && (sources.len() > 1 || self.follow_new) {
            return self.follow_all(session, sources, prefix).await;
        }
        for source in sources {
            self.copy_with_retries(session, &source, prefix).await?;
        }
        Ok(())
    }

    /// Copies one log. If it is followed, the server's errors are printed and the log is requested again.
    async fn copy_with_retries(
        &self,
        session: &Session,
        source: &Source,
        prefix: bool,
    ) -> Result<()> {
        let patience = crate::duration::parse(&self.pod_running_timeout)?;
        let deadline = Instant::now() + patience;
        loop {
            let Err(error) = self.copy(session, source, prefix).await else {
                return Ok(());
            };
            let message = error::message(&error);
            if self.ignore_errors {
                println!("error: {message}");
                return Ok(());
            }
            if !self.follow {
                return Err(error);
            }
            eprintln!("{message}");
            if error.downcast_ref::<error::ServerError>().is_none() {
                return Err(error);
            }
            if Instant::now() + Duration::from_secs(1) >= deadline {
                tokio::time::sleep_until(deadline).await;
                bail!("context deadline exceeded");
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    fn check(&self) -> Result<()> {
        if self.resource.is_none() && self.selector.is_none() {
            return Err(error::usage(
                "logs",
                "expected 'logs [-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]'.\nPOD or TYPE/NAME is a required argument for the logs command",
            ));
        }
        if self.resource.is_some() && self.selector.is_some() {
            return Err(error::usage(
                "logs",
                "only a selector (-l) or a POD name is allowed",
            ));
        }
        if let Some(since) = self.since.as_deref().filter(|since| !since.is_empty())
            && crate::duration::parse_signed(since).is_err()
        {
            bail!(
                "invalid argument {since:?} for \"--since\" flag: time: invalid duration {since:?}\n\
                 See 'kubectl logs --help' for usage."
            );
        }
        super::exec::check_patience(&self.pod_running_timeout)?;
        if let Some(time) = self.since_time.as_deref().filter(|time| !time.is_empty())
            && time.parse::<jiff::Timestamp>().is_err()
        {
            bail!(
                "parsing time {time:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {time:?} as \"2006\""
            );
        }
        Ok(())
    }

    /// Options that the server would reject; reported once the pod is known.
    fn check_with_pod(&self) -> Result<()> {
        let has_since = self.since_seconds()?.is_some();
        if has_since
            && self
                .since_time
                .as_ref()
                .is_some_and(|time| !time.is_empty())
        {
            bail!("at most one of `sinceTime` or `sinceSeconds` may be specified");
        }
        let container = self.container_name();
        if self.all_containers && !container.is_empty() {
            bail!("--all-containers=true should not be specified with container name {container}");
        }
        if self.container.is_some() && self.name.is_some() {
            bail!("only one of -c or an inline [CONTAINER] arg is allowed");
        }
        if self.limit_bytes < 0 {
            bail!("--limit-bytes must be greater than 0");
        }
        if self.since_seconds()?.is_some_and(|seconds| seconds < 0) {
            bail!("--since must be greater than 0");
        }
        if self.tail.is_some_and(|tail| tail < -1) {
            bail!("--tail must be greater than or equal to -1");
        }
        Ok(())
    }

    /// The container that is named; empty if none is.
    fn container_name(&self) -> &str {
        let name = self.name.as_deref().or(self.container.as_deref());
        name.unwrap_or_default()
    }

    /// `--since`, rounded to seconds; zero is the flag's default.
    fn since_seconds(&self) -> Result<Option<i64>> {
        let Some(since) = self.since.as_deref().filter(|since| !since.is_empty()) else {
            return Ok(None);
        };
        let (is_negative, since) = crate::duration::parse_signed(since)?;
        let seconds = i64::try_from((since + Duration::from_millis(500)).as_secs())?;
        Ok((!since.is_zero()).then_some(if is_negative { -seconds } else { seconds }))
    }

    async fn pods(&self, session: &Session) -> Result<Vec<Value>> {
        if let Some(selector) = &self.selector {
            let pods = pods_with(session, selector, Some(&session.namespace)).await?;
            if pods.is_empty() && !self.follow_new {
                eprintln!("No resources found in {} namespace.", session.namespace);
            }
            return Ok(pods);
        }
        let word = self.resource.as_deref().unwrap_or_default();
        if !word.contains('/') {
            let found = pod_of(session, word, &self.pod_running_timeout).await;
            return match found {
                Ok(pod) => Ok(vec![pod]),
                Err(error) => {
                    let error = streams::or_missing_namespace(session, error).await;
                    Err(located(error, session))
                }
            };
        }
        let patience = match self.follow_new {
            true => "0s",
            false => self.pod_running_timeout.as_str(),
        };
        let pods = pods_of(session, word, "get the logs from", patience).await;
        let mut pods = match pods {
            // No pods yet, or no answer; not if the server refuses.
            Err(error) if self.follow_new && !error.is::<error::ServerError>() => Vec::new(),
            pods => pods.map_err(|error| located(error, session))?,
        };
        pods.sort_by(|a, b| pod_order::for_logs(a).cmp(&pod_order::for_logs(b)));
        if self.all_pods || self.follow_new {
            return Ok(pods);
        }
        if pods.len() > 1 {
            let name = str_of(&pods[0]["metadata"]["name"]);
            eprintln!("Found {} pods, using pod/{name}", pods.len());
        }
        pods.truncate(1);
        Ok(pods)
    }

    /// `again`: the command already said which containers it chose.
    async fn sources(&self, session: &Session, again: bool) -> Result<Vec<Source>> {
        let mut sources = Vec::new();
        let pods = self.pods(session).await?;
        self.check_with_pod()?;
        if pods.is_empty() && self.follow_new && !again {
            eprintln!("waiting for pods");
        }
        for pod in pods {
            for container in self.containers(&pod, again)? {
                sources.push(Source {
                    namespace: text(&pod["metadata"]["namespace"]),
                    pod: text(&pod["metadata"]["name"]),
                    instance: instance(&pod, &container),
                    container,
                });
            }
        }
        Ok(sources)
    }

    fn containers(&self, pod: &Value, again: bool) -> Result<Vec<String>> {
        if self.all_containers {
            let fields = ["initContainers", "containers", "ephemeralContainers"];
            return Ok(fields
                .iter()
                .flat_map(|field| container_names(pod, field))
                .collect());
        }
        let named = Some(self.container_name());
        Ok(vec![container_of(pod, named, self.all_pods || again)?])
    }

    /// `is_later`: the container started while others were followed; its whole log is new.
    fn path(&self, source: &Source, is_later: bool) -> Result<String> {
        let mut query: Query = vec![("container", source.container.clone())];
        for (is_set, name) in [
            (self.follow, "follow"),
            (self.previous, "previous"),
            (self.timestamps, "timestamps"),
            (
                self.insecure_skip_tls_verify_backend,
                "insecureSkipTLSVerifyBackend",
            ),
        ] {
            if is_set {
                query.push((name, "true".into()));
            }
        }
        // For several pods: the last lines of each, unless set.
        let tail = match self.tail {
            _ if is_later => -1,
            None if self.selector.is_some() => 10,
            tail => tail.unwrap_or(-1),
        };
        if tail >= 0 {
            query.push(("tailLines", tail.to_string()));
        }
        if let Some(seconds) = self.since_seconds()? {
            query.push(("sinceSeconds", seconds.to_string()));
        }
        if let Some(time) = self.since_time.as_deref().filter(|time| !time.is_empty()) {
            query.push(("sinceTime", time.to_owned()));
        }
        if self.limit_bytes > 0 {
            query.push(("limitBytes", self.limit_bytes.to_string()));
        }
        let Source { namespace, pod, .. } = source;
        Ok(with_query(
            &format!("/api/v1/namespaces/{namespace}/pods/{pod}/log"),
            &query,
        ))
    }

    async fn copy(&self, session: &Session, source: &Source, prefix: bool) -> Result<()> {
        let mut chunks = Box::pin(
            session
                .api
                .stream(&self.path(source, false)?, "*/*")
                .await?,
        );
        let mut lines = Prefixed::new(prefix.then_some(source));
        while let Some(chunk) = chunks.next().await {
            lines.write(&chunk?)?;
        }
        Ok(())
    }

    /// Follows several logs at once; lines of different containers are never mixed.
    async fn follow_all(
        &self,
        session: &Session,
        sources: Vec<Source>,
        prefix: bool,
    ) -> Result<()> {
        if sources.len() > self.max_log_requests && !self.follow_new {
            bail!(
                "you are attempting to follow {} log streams, but maximum allowed concurrency is {}, use --max-log-requests to increase the limit",
                sources.len(),
                self.max_log_requests
            );
        }
        let (sender, mut lines) = mpsc::channel::<Result<(Source, Vec<u8>)>>(256);
        let mut tasks = tokio::task::JoinSet::new();
        let mut known: HashSet<Source> = HashSet::new();
        let at_start: HashSet<Source> = sources.iter().cloned().collect();
        let mut interval = tokio::time::interval(Duration::from_secs(1));
        let mut pending = sources;
        let mut sender = Some(sender);
        loop {
            for source in pending.drain(..) {
                // A container without an ID has no log yet.
                if self.follow_new && source.instance.is_empty() {
                    continue;
                }
                if known.insert(source.clone())
                    && let Some(sender) = &sender
                {
                    let stream = session
                        .api
                        .stream(&self.path(&source, !at_start.contains(&source))?, "*/*")
                        .await;
                    match stream {
                        Ok(stream) => drop(tasks.spawn(forward(stream, source, sender.clone()))),
                        // A container that has not started yet will be retried.
                        Err(_) if self.follow_new => {
                            known.remove(&source);
                        }
                        Err(error) if self.ignore_errors => {
                            println!("error: {}", error::message(&error));
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
            if !self.follow_new {
                sender = None;
            }
            tokio::select! {
                line = lines.recv() => match line {
                    Some(Ok((source, line))) => {
                        let mut out = Prefixed::new(prefix.then_some(&source));
                        out.write(&line)?;
                    }
                    Some(Err(error)) if self.ignore_errors || self.follow_new => eprintln!("{}", error::line(&error)),
                    Some(Err(error)) => return Err(error),
                    None => return Ok(()),
                },
                _ = interval.tick(), if self.follow_new => pending = self.sources(session, true).await.unwrap_or_default(),
            }
        }
    }
}

/// The ID of a container in the pod's status: each start has another one.
fn instance(pod: &Value, container: &str) -> String {
    const STATUSES: [&str; 3] = [
        "initContainerStatuses",
        "containerStatuses",
        "ephemeralContainerStatuses",
    ];
    let mut all = STATUSES
        .iter()
        .flat_map(|field| list(&pod["status"][*field]));
    let status = all.find(|status| status["name"] == container);
    status.map_or_else(String::new, |status| text(&status["containerID"]))
}

/// The error for a missing object, with its namespace.
fn located(error: anyhow::Error, session: &Session) -> anyhow::Error {
    match error.downcast_ref::<error::ServerError>() {
        Some(error::ServerError(status)) if status.code == 404 => anyhow::anyhow!(
            "error from server (NotFound): {} in namespace {:?}",
            status.message,
            session.namespace
        ),
        _ => error,
    }
}

/// Sends a log's lines, each whole.
async fn forward(
    bytes: impl futures::Stream<Item = Result<bytes::Bytes>> + Send + 'static,
    source: Source,
    to: mpsc::Sender<Result<(Source, Vec<u8>)>>,
) {
    let mut lines = Box::pin(crate::api::lines(bytes));
    while let Some(line) = lines.next().await {
        let line = line.map(|line| (source.clone(), line));
        if to.send(line).await.is_err() {
            return;
        }
    }
}

/// Standard output with the source as prefix of each line.
struct Prefixed {
    prefix: Option<String>,
    at_start: bool,
}

impl Prefixed {
    fn new(source: Option<&Source>) -> Self {
        Self {
            prefix: source.map(|source| format!("[pod/{}/{}] ", source.pod, source.container)),
            at_start: true,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let mut out = std::io::stdout().lock();
        match &self.prefix {
            None => out.write_all(bytes)?,
            Some(prefix) => {
                for line in bytes.split_inclusive(|byte| *byte == b'\n') {
                    if self.at_start {
                        out.write_all(prefix.as_bytes())?;
                    }
                    out.write_all(line)?;
                    self.at_start = line.ends_with(b"\n");
                }
            }
        }
        out.flush()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        logs: Logs,
    }

    fn logs(line: &str) -> Logs {
        Line::try_parse_from(line.split(' ')).expect(line).logs
    }

    #[test]
    fn a_container_that_starts_later_is_shown_from_its_beginning() {
        let source = Source {
            namespace: "n".into(),
            pod: "p".into(),
            container: "c".into(),
            instance: "i".into(),
        };
        for (line, is_later, expected) in [
            ("logs -l a=b", false, Some("tailLines=10")),
            ("logs -l a=b -F", true, None),
            ("logs p --tail=3", false, Some("tailLines=3")),
            ("logs p --tail=3 -F", true, None),
            ("logs p", false, None),
        ] {
            let path = logs(line).path(&source, is_later).unwrap();
            let tail = path.split('&').find(|part| part.starts_with("tailLines"));
            assert_eq!(tail, expected, "{line}");
        }
    }

    #[test]
    fn a_restarted_container_is_another_source() {
        let pod = |id: &str| {
            json!({"status": {"containerStatuses": [{"name": "c", "containerID": id}],
                "initContainerStatuses": [{"name": "i", "containerID": "x"}]}})
        };
        assert_eq!(instance(&pod("a"), "c"), "a");
        assert_ne!(instance(&pod("a"), "c"), instance(&pod("b"), "c"));
        assert_eq!(instance(&pod("a"), "i"), "x");
        assert_eq!(instance(&json!({}), "c"), "");
    }
}
