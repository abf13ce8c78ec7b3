//! Runs CNI plugins: their environment, input and output.

use std::{
    io,
    path::PathBuf,
    process::{Output, Stdio},
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, process, time::timeout};

use super::version::Version;

/// The timeout of a plugin.
const PATIENCE: Duration = Duration::from_secs(120);

/// A CNI command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Add,
    Check,
    Del,
    Gc,
    Status,
    Version,
}

impl Command {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Check => "CHECK",
            Self::Del => "DEL",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }
}

/// The pod of a call; empty for calls about the whole network.
#[derive(Debug, Clone, Default)]
pub(super) struct Call {
    pub container_id: String,
    pub netns: Option<PathBuf>,
    pub interface: String,
    pub args: String,
}

/// A plugin's error.
#[derive(Debug)]
pub(super) struct PluginFailure {
    pub plugin: String,
    pub command: &'static str,
    pub message: String,
}

/// The error that a plugin prints.
#[derive(Deserialize)]
struct Complaint {
    #[serde(default)]
    code: u64,
    #[serde(default)]
    msg: String,
    #[serde(default)]
    details: String,
}

/// The response to VERSION.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VersionResponse {
    #[serde(default)]
    supported_versions: Vec<String>,
}

/// The plugin executables on this machine.
#[derive(Debug)]
pub(super) struct Plugins {
    dirs: Vec<PathBuf>,
}

impl Plugins {
    pub(super) fn new(dirs: Vec<PathBuf>) -> Self {
        Self { dirs }
    }

    fn find(&self, kind: &str) -> Result<PathBuf, String> {
        let places = self.dirs.iter().map(|dir| dir.join(kind));
        places.clone().find(|path| path.is_file()).ok_or_else(|| {
            let dirs: Vec<_> = self
                .dirs
                .iter()
                .map(|dir| dir.display().to_string())
                .collect();
            format!("no such plugin in {}", dirs.join(", "))
        })
    }

    /// The versions that a plugin supports; empty if it does not report them.
    pub(super) async fn versions(&self, kind: &str) -> Result<Vec<Version>, PluginFailure> {
        let newest = Version::V1_1_0.to_string();
        let asked = json!({ "cniVersion": newest });
        // The executable must exist; its response may be anything.
        self.find(kind).map_err(|message| PluginFailure {
            plugin: kind.into(),
            command: Command::Version.as_str(),
            message,
        })?;
        let empty_call = Call::default();
        let answer = match self.run(Command::Version, kind, &empty_call, &asked).await {
            Ok(answer) => answer,
            Err(trouble) => {
                tracing::debug!(plugin = kind, error = trouble.message, "no CNI versions");
                return Ok(Vec::new());
            }
        };
        let spoken = serde_json::from_value::<VersionResponse>(answer);
        let texts = spoken.map(|spoken| spoken.supported_versions);
        let texts = texts.unwrap_or_default();
        Ok(texts.iter().filter_map(|text| text.parse().ok()).collect())
    }

    /// Runs a plugin and returns its output.
    pub(super) async fn run(
        &self,
        command: Command,
        kind: &str,
        call: &Call,
        input: &Value,
    ) -> Result<Value, PluginFailure> {
        let trouble = |message: String| PluginFailure {
            plugin: kind.to_owned(),
            command: command.as_str(),
            message,
        };
        let program = self.find(kind).map_err(trouble)?;
        let output = timeout(PATIENCE, self.spawn(command, program, call, input)).await;
        let output = output
            .map_err(|_| trouble(format!("no answer within {} seconds", PATIENCE.as_secs())))?
            .map_err(|error| trouble(error.to_string()))?;
        if !output.status.success() {
            return Err(trouble(complaint(&output)));
        }
        if output.stdout.iter().all(u8::is_ascii_whitespace) {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&output.stdout)
            .map_err(|error| trouble(format!("its output is not JSON: {error}")))
    }

    async fn spawn(
        &self,
        command: Command,
        program: PathBuf,
        call: &Call,
        input: &Value,
    ) -> io::Result<Output> {
        let path = std::env::join_paths(&self.dirs).map_err(io::Error::other)?;
        let mut plugin = process::Command::new(program);
        plugin
            .env("CNI_COMMAND", command.as_str())
            .env("CNI_CONTAINERID", &call.container_id)
            .env("CNI_NETNS", call.netns.clone().unwrap_or_default())
            .env("CNI_IFNAME", &call.interface)
            .env("CNI_ARGS", &call.args)
            .env("CNI_PATH", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = plugin.spawn()?;
        let stdin = child.stdin.take();
        let feeding = async {
            if let Some(mut stdin) = stdin {
                // A plugin need not read its input.
                let _ = stdin.write_all(input.to_string().as_bytes()).await;
            }
        };
        let (output, ()) = tokio::join!(child.wait_with_output(), feeding);
        output
    }
}

/// The plugin's error message, or its other output.
fn complaint(output: &Output) -> String {
    if let Ok(complaint) = serde_json::from_slice::<Complaint>(&output.stdout)
        && !complaint.msg.is_empty()
    {
        let Complaint { code, msg, details } = complaint;
        let details = if details.is_empty() {
            details
        } else {
            format!("; {details}")
        };
        return format!("{msg}{details} (code {code})");
    }
    let text = [&output.stderr, &output.stdout]
        .map(|bytes| String::from_utf8_lossy(bytes).trim().to_owned());
    let said = text.into_iter().find(|text| !text.is_empty());
    format!(
        "{}: {}",
        output.status,
        said.unwrap_or_else(|| "no output".into())
    )
}
