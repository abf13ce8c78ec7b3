//! Connections to containers: exec and attach with the user's terminal, and resolution of pods.

use std::io::{IsTerminal, Write};

use anyhow::{Context, Result, bail};
use client::kube::client::Body;
use futures::StreamExt;
use serde_json::Value;
use streaming::{ExitStatus, StreamReader, StreamWriter, client::Handshake};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::{
    api::with_query,
    args::Selection,
    detach::{self, Detacher},
    discovery::encode,
    error::{self, Exit},
    json::{list, str_of, text},
    pod_order, resources,
    session::Session,
    terminal,
};

/// The streams of a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionStreams<'a> {
    pub stdin: bool,
    pub tty: bool,
    pub quiet: bool,
    /// Keys that leave an attached terminal, such as `ctrl-p,ctrl-q`; exec has none.
    pub detach_keys: Option<&'a str>,
}

/// Runs exec or attach with the user's streams, and exits as the command did.
pub(crate) async fn interactive(
    session: &Session,
    pod: &Value,
    container: &str,
    verb: &str,
    command: &[String],
    wanted: SessionStreams<'_>,
) -> Result<()> {
    // Without standard input there is no terminal, which upstream does not mention.
    let tty = wanted.tty && wanted.stdin && std::io::stdin().is_terminal();
    if wanted.tty && wanted.stdin && !tty && !wanted.quiet {
        eprintln!("Unable to use a TTY - input is not a terminal or the right kind of file");
    }
    let path = path(pod, verb, container, command, wanted.stdin, tty);
    let keys = match wanted.detach_keys {
        Some(keys) if tty => detach::parse(keys).context("could not bind detach keys")?,
        _ => Vec::new(),
    };
    if verb == "attach" && !wanted.quiet {
        eprintln!(
            "All commands and output from this session will be recorded in container logs, including credentials and sensitive information passed through the command prompt."
        );
        eprintln!("If you don't see a command prompt, try pressing enter.");
    }
    let exec = connect(session, &path).await?;
    let raw = if tty { terminal::Raw::enter() } else { None };
    let status = pump(exec, wanted.stdin, tty, keys).await;
    drop(raw);
    if verb == "attach" && tty && !wanted.quiet {
        println!("{}", resume_message(pod, container));
    }
    match status? {
        ExitStatus::Code(0) => Ok(()),
        ExitStatus::Code(code) => Err(Exit(u8::try_from(code & 0xff).unwrap_or(1)).into()),
        ExitStatus::Failed(message) => bail!("{message}"),
    }
}

fn path(
    pod: &Value,
    verb: &str,
    container: &str,
    command: &[String],
    stdin: bool,
    tty: bool,
) -> String {
    let (namespace, name) = (
        text(&pod["metadata"]["namespace"]),
        text(&pod["metadata"]["name"]),
    );
    let mut query: Vec<(&str, String)> = command
        .iter()
        .map(|word| ("command", word.clone()))
        .collect();
    query.push(("container", container.to_owned()));
    query.push(("stdin", stdin.to_string()));
    query.push(("stdout", "true".to_owned()));
    query.push(("stderr", (!tty).to_string()));
    query.push(("tty", tty.to_string()));
    with_query(
        &format!("/api/v1/namespaces/{namespace}/pods/{name}/{verb}"),
        &query,
    )
}

/// Runs a command in a container with streams for the caller.
pub(crate) async fn exec(
    session: &Session,
    pod: &Value,
    container: &str,
    command: &[String],
    stdin: bool,
) -> Result<streaming::client::Exec> {
    connect(
        session,
        &path(pod, "exec", container, command, stdin, false),
    )
    .await
}

/// Prints the log of a container of the pod at a path.
pub(crate) async fn print_log(session: &Session, pod: &str, container: Option<&str>) -> Result<()> {
    let query: Vec<_> = container
        .map(|name| ("container", name.to_owned()))
        .into_iter()
        .collect();
    let path = with_query(&format!("{pod}/log"), &query);
    let mut log = Box::pin(session.api.stream(&path, "*/*").await?);
    while let Some(bytes) = log.next().await {
        std::io::stdout().write_all(&bytes?)?;
    }
    Ok(())
}

/// How to come back to a container after its session.
fn resume_message(pod: &Value, container: &str) -> String {
    let (name, namespace) = (
        str_of(&pod["metadata"]["name"]),
        str_of(&pod["metadata"]["namespace"]),
    );
    let attach = format!("'kubectl attach {name} -c {container} -n {namespace} -i -t'");
    let is_ephemeral = container_names(pod, "ephemeralContainers")
        .iter()
        .any(|one| one == container);
    match is_ephemeral {
        true => format!(
            "Session ended, the ephemeral container will not be restarted but may be reattached using {attach} if it is still running"
        ),
        false => format!("Session ended, resume using {attach} command"),
    }
}

/// Copies both ways until the command has ended, or the user has typed the detach keys.
async fn pump(
    mut exec: streaming::client::Exec,
    with_stdin: bool,
    tty: bool,
    detach_keys: Vec<u8>,
) -> Result<ExitStatus> {
    let stdin = exec.stdin.take().filter(|_| with_stdin);
    let (detached, is_detached) = tokio::sync::oneshot::channel();
    let input = tokio::spawn(async move {
        if let Some(stdin) = stdin
            && send(stdin, Detacher::new(detach_keys)).await
        {
            let _ = detached.send(());
        }
    });
    let output = tokio::spawn(print(exec.stdout.take(), tokio::io::stdout()));
    let errors = tokio::spawn(print(exec.stderr.take(), tokio::io::stderr()));
    let ended = async {
        match tty {
            true => with_size(&mut exec).await,
            false => Ok(exec.status().await),
        }
    };
    let status = tokio::select! {
        status = ended => status?,
        Ok(()) = is_detached => {
            output.abort();
            errors.abort();
            exec.close().await;
            return Ok(ExitStatus::Code(0));
        }
    };
    output.await.context("standard output")?;
    errors.await.context("standard error")?;
    input.abort();
    exec.close().await;
    Ok(status)
}

/// Waits for the end of the command, and sends changed terminal sizes.
async fn with_size(exec: &mut streaming::client::Exec) -> Result<ExitStatus> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut changes = signal(SignalKind::window_change())?;
    loop {
        if let Some(size) = terminal::size() {
            exec.resize.send(size).await?;
        }
        tokio::select! {
            status = exec.status() => return Ok(status),
            _ = changes.recv() => {}
        }
    }
}

async fn connect(session: &Session, path: &str) -> Result<streaming::client::Exec> {
    let handshake = Handshake::for_exec();
    let mut request = handshake.request().uri(path).body(Body::empty())?;
    session.connection.authorize(&mut request)?;
    let sent = session.upgrading()?.send(request).await;
    let response =
        sent.map_err(|error| crate::unreachable::unreachable(error, &session.connection.server))?;
    handshake.exec(response).await.map_err(refused)
}

/// A rejected stream, as upstream reports it: with the message of a Status, or else the whole response.
pub(crate) fn refused(error: streaming::Error) -> anyhow::Error {
    let streaming::Error::Refused { message, .. } = error else {
        return error.into();
    };
    let body: Value = serde_json::from_str(&message).unwrap_or_default();
    let texts = [str_of(&body["message"]), str_of(&body["error"]), &message];
    let mut texts = texts.into_iter().map(str::trim);
    let text = texts.find(|text| !text.is_empty());
    anyhow::anyhow!(
        "unable to upgrade connection: {}",
        text.unwrap_or("empty server response")
    )
}

async fn print(from: Option<StreamReader>, mut to: impl AsyncWrite + Unpin) {
    let Some(mut from) = from else { return };
    while let Some(chunk) = from.chunk().await {
        if to.write_all(&chunk).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
}

/// Sends standard input; returns whether it ended with the detach keys.
async fn send(mut to: StreamWriter, mut detacher: Detacher) -> bool {
    let mut stdin = tokio::io::stdin();
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count) = stdin.read(&mut buffer).await {
        if count == 0 {
            break;
        }
        let (bytes, is_detached) = detacher.feed(&buffer[..count]);
        if to.write_all(&bytes).await.is_err() {
            break;
        }
        if is_detached {
            return true;
        }
    }
    let _ = to.shutdown().await;
    false
}

/// The pod of a word: a pod's name, `pod/x`, or a pod of `deployment/x`, for which it waits this
/// long.
pub(crate) async fn pod_of(session: &Session, word: &str, patience: &str) -> Result<Value> {
    if !word.contains('/') {
        let path = format!(
            "/api/v1/namespaces/{}/pods/{}",
            session.namespace,
            encode(word)
        );
        return session.api.get(&path).await;
    }
    let mut pods = pods_of(session, word, "attach to", patience).await?;
    pods.sort_by(|a, b| pod_order::for_streams(a).cmp(&pod_order::for_streams(b)));
    // There is at least one.
    Ok(pods.swap_remove(0))
}

/// The error about an object's namespace, if the object was not found because of that.
pub(crate) async fn or_missing_namespace(session: &Session, error: anyhow::Error) -> anyhow::Error {
    resources::missing_namespace(session, &session.namespace, error).await
}

/// All pods of `TYPE/NAME`, at least one: it waits this long for it.
pub(crate) async fn pods_of(
    session: &Session,
    word: &str,
    deed: &str,
    patience: &str,
) -> Result<Vec<Value>> {
    let deadline = tokio::time::Instant::now() + crate::duration::parse(patience)?;
    let words = [word.to_owned()];
    let targets = resources::targets(session, &Selection::default(), &words, false).await?;
    let target = targets.first().context("no such resource")?;
    let object = target.get(session).await?;
    if target.resource.kind == "Pod" {
        return Ok(vec![object]);
    }
    let selector = selector_of_workload(&object);
    let selector = selector
        .map_err(|why| anyhow::anyhow!("cannot {deed} {}: {why}", error::go_type(&object)))?;
    loop {
        let pods = pods_with(session, &selector, Some(&session.namespace)).await?;
        if !pods.is_empty() {
            return Ok(pods);
        }
        if tokio::time::Instant::now() >= deadline {
            bail!("timed out waiting for the condition");
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
}

/// The label selector of the pods of a workload or a service.
fn selector_of_workload(object: &Value) -> Result<String, String> {
    let is_known = matches!(
        str_of(&object["kind"]),
        "ReplicaSet"
            | "ReplicationController"
            | "StatefulSet"
            | "DaemonSet"
            | "Deployment"
            | "Job"
            | "Service"
    );
    match pod_selector(object) {
        Some(selector) if is_known => Ok(selector),
        None if object["kind"] == "Service" => Err(format!(
            "invalid service '{}': Service is defined without a selector",
            str_of(&object["metadata"]["name"])
        )),
        _ => Err(format!(
            "selector for {} not implemented",
            error::go_type(object)
        )),
    }
}

/// The label selector of an object's pods.
pub(crate) fn pod_selector(object: &Value) -> Option<String> {
    let selector = &object["spec"]["selector"];
    let labels = selector.get("matchLabels").unwrap_or(selector);
    let is_set_based = selector.get("matchExpressions").is_some();
    let mut terms: Vec<String> = match selector.get("matchLabels").is_some() || !is_set_based {
        true => labels
            .as_object()?
            .iter()
            .map(|(key, value)| format!("{key}={}", str_of(value)))
            .collect(),
        false => Vec::new(),
    };
    for term in list(&selector["matchExpressions"]) {
        let key = str_of(&term["key"]);
        let mut values: Vec<&str> = list(&term["values"]).map(str_of).collect();
        values.sort_unstable();
        terms.push(match str_of(&term["operator"]) {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        });
    }
    (!terms.is_empty()).then(|| terms.join(","))
}

/// The pods of a selector; `None` is all namespaces.
pub(crate) async fn pods_with(
    session: &Session,
    selector: &str,
    namespace: Option<&str>,
) -> Result<Vec<Value>> {
    let path = match namespace {
        Some(namespace) => format!("/api/v1/namespaces/{namespace}/pods"),
        None => "/api/v1/pods".to_owned(),
    };
    session
        .api
        .items(&with_query(
            &path,
            &[("labelSelector", selector.to_owned())],
        ))
        .await
}

/// Names of a pod's containers in one of its lists.
pub(crate) fn container_names(pod: &Value, field: &str) -> Vec<String> {
    list(&pod["spec"][field])
        .map(|container| text(&container["name"]))
        .collect()
}

/// The container: the named one, the annotated default, or the first.
pub(crate) fn container_of(pod: &Value, named: Option<&str>, quiet: bool) -> Result<String> {
    let (container, notice) = choose_container(pod, named)?;
    if let Some(notice) = notice.filter(|_| !quiet) {
        eprintln!("{notice}");
    }
    Ok(container)
}

/// The same with a notice if the first of several was chosen.
pub(crate) fn choose_container(
    pod: &Value,
    named: Option<&str>,
) -> Result<(String, Option<String>)> {
    let names = container_names(pod, "containers");
    let every = ["containers", "ephemeralContainers", "initContainers"];
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        let known = every
            .iter()
            .any(|field| container_names(pod, field).iter().any(|name| name == named));
        if !known {
            let suffixes = [
                ("containers", ""),
                ("initContainers", " (init)"),
                ("ephemeralContainers", " (ephem)"),
            ];
            let all: Vec<String> = suffixes
                .iter()
                .flat_map(|(field, suffix)| {
                    let names = container_names(pod, field).into_iter();
                    names.map(move |name| format!("{name}{suffix}"))
                })
                .collect();
            bail!(
                "container {named} is not valid for pod {} out of: {}",
                str_of(&pod["metadata"]["name"]),
                all.join(", ")
            );
        }
        return Ok((named.to_owned(), None));
    }
    let annotation = &pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"];
    let annotated = annotation
        .as_str()
        .filter(|named| names.iter().any(|name| name == named));
    if let Some(named) = annotated {
        return Ok((named.to_owned(), None));
    }
    let first = names
        .first()
        .cloned()
        .context("the pod has no containers")?;
    let others: Vec<String> = every
        .iter()
        .flat_map(|field| described_names(pod, field))
        .collect();
    let notice = format!(
        "Defaulted container \"{first}\" out of: {}",
        others.join(", ")
    );
    Ok((first, (others.len() > 1).then_some(notice)))
}

fn described_names(pod: &Value, field: &str) -> Vec<String> {
    let suffix = match field {
        "initContainers" => " (init)",
        "ephemeralContainers" => " (ephem)",
        _ => "",
    };
    container_names(pod, field)
        .into_iter()
        .map(|name| format!("{name}{suffix}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_of_every_form_become_queries() {
        for (selector, expected) in [
            (json!({"app": "x"}), Some("app=x")),
            (json!({"matchLabels": {"app": "x"}}), Some("app=x")),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "c"]}]}),
                Some("a in (b,c)"),
            ),
            (json!({}), None),
        ] {
            assert_eq!(
                pod_selector(&json!({"spec": {"selector": selector}})).as_deref(),
                expected
            );
        }
    }

    #[test]
    fn a_container_is_named_annotated_or_the_first() {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {
            "containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}});
        assert_eq!(container_of(&pod, None, true).unwrap(), "a");
        assert_eq!(container_of(&pod, Some("i"), true).unwrap(), "i");
        assert!(container_of(&pod, Some("x"), true).is_err());
        pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = json!("b");
        assert_eq!(container_of(&pod, None, true).unwrap(), "b");
    }
}
