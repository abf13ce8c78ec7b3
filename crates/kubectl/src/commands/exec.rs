//! `kubectl exec` and `kubectl attach`: one's own terminal at a container.

use std::io::IsTerminal;

use anyhow::{Context, Result, bail};
use clap::Args;
use client::kube::client::Body;
use serde_json::Value;
use streaming::{ExitStatus, StreamReader, StreamWriter, client::Handshake};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::{
    api,
    discovery::encode,
    error::{Exit, ServerError},
    session::Session,
    terminal,
};

use super::logs::{default_container, pod_of};

/// Flags of `exec`.
#[derive(Debug, Args)]
pub struct Exec {
    /// POD or TYPE/NAME
    resource: String,
    #[command(flatten)]
    streams: Streams,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Flags of `attach`.
#[derive(Debug, Args)]
pub struct Attach {
    /// POD or TYPE/NAME
    resource: String,
    #[command(flatten)]
    streams: Streams,
}

#[derive(Debug, Args)]
struct Streams {
    /// The container
    #[arg(short, long)]
    container: Option<String>,
    /// Pass standard input to the container
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Standard input is a terminal
    #[arg(short, long)]
    tty: bool,
    /// Only print what the command prints
    #[arg(short, long)]
    quiet: bool,
}

impl Exec {
    pub async fn run(self, session: &Session) -> Result<()> {
        let command: Vec<String> = self
            .command
            .iter()
            .map(|word| format!("command={}", encode(word)))
            .collect();
        self.streams
            .run(session, &self.resource, "exec", &command)
            .await
    }
}

impl Attach {
    pub async fn run(self, session: &Session) -> Result<()> {
        self.streams
            .run(session, &self.resource, "attach", &[])
            .await
    }
}

impl Streams {
    async fn run(&self, session: &Session, word: &str, verb: &str, more: &[String]) -> Result<()> {
        let pod = pod_of(session, word).await?;
        let container = match &self.container {
            Some(name) => name.clone(),
            None => default_container(&pod)?,
        };
        let tty = self.tty && self.stdin && std::io::stdin().is_terminal();
        if self.tty && !tty && !self.quiet {
            eprintln!("Unable to use a TTY - input is not a terminal or the right kind of file");
        }
        let path = self.path(&pod, verb, &container, tty, more);
        let exec = connect(session, &path).await?;
        let raw = if tty { terminal::Raw::enter() } else { None };
        let status = self.pump(exec, tty).await?;
        drop(raw);
        match status {
            ExitStatus::Code(0) => Ok(()),
            ExitStatus::Code(code) => Err(Exit(u8::try_from(code & 0xff).unwrap_or(1)).into()),
            ExitStatus::Failed(message) => bail!("{message}"),
        }
    }

    fn path(&self, pod: &Value, verb: &str, container: &str, tty: bool, more: &[String]) -> String {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (
            text(&pod["metadata"]["namespace"]),
            text(&pod["metadata"]["name"]),
        );
        let mut query = vec![
            format!("container={}", encode(container)),
            "stdout=true".to_owned(),
        ];
        query.extend(more.iter().cloned());
        query.push(format!("stdin={}", self.stdin));
        query.push(format!("tty={tty}"));
        query.push(format!("stderr={}", !tty));
        format!(
            "/api/v1/namespaces/{namespace}/pods/{name}/{verb}?{}",
            query.join("&")
        )
    }

    /// Moves bytes both ways until the command has ended.
    async fn pump(&self, mut exec: streaming::client::Exec, tty: bool) -> Result<ExitStatus> {
        let stdin = exec.stdin.take().filter(|_| self.stdin);
        let input = tokio::spawn(async move {
            if let Some(stdin) = stdin {
                send(stdin).await;
            }
        });
        let output = tokio::spawn(print(exec.stdout.take(), tokio::io::stdout()));
        let errors = tokio::spawn(print(exec.stderr.take(), tokio::io::stderr()));
        let status = if tty {
            with_size(&mut exec).await?
        } else {
            exec.status().await
        };
        output.await.context("standard output")?;
        errors.await.context("standard error")?;
        input.abort();
        exec.close().await;
        Ok(status)
    }
}

/// Waits for the end of the command, and tells it the terminal's size whenever that changes.
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
    let request = handshake.request().uri(path).body(Body::empty())?;
    let response = session
        .upgrading()?
        .send(request)
        .await
        .map_err(api::unreachable)?;
    match handshake.exec(response).await {
        Ok(exec) => Ok(exec),
        Err(streaming::Error::Refused { status, message }) => {
            Err(ServerError(api::status(status, message.as_bytes())).into())
        }
        Err(error) => Err(error.into()),
    }
}

async fn print(from: Option<StreamReader>, mut to: impl AsyncWrite + Unpin) {
    let Some(mut from) = from else { return };
    while let Some(chunk) = from.chunk().await {
        if to.write_all(&chunk).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
}

async fn send(mut to: StreamWriter) {
    let mut stdin = tokio::io::stdin();
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count) = stdin.read(&mut buffer).await {
        if count == 0 || to.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}
