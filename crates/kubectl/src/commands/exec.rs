//! `kubectl exec`

use anyhow::{Result, bail};
use clap::Args;

use crate::{
    manifest,
    session::Session,
    streams::{self, SessionStreams, container_of, pod_of},
};

/// Flags of `exec`.
#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// POD or TYPE/NAME
    resource: Vec<String>,
    #[command(flatten)]
    flags: StreamFlags,
    /// File with the resource to exec into
    #[arg(short, long, value_name = "FILE")]
    filename: Vec<String>,
    /// The command and its arguments
    #[arg(last = true)]
    command: Vec<String>,
}

/// Flags of `exec` and `attach`.
#[derive(Debug, Clone, Args)]
pub(super) struct StreamFlags {
    /// Container name
    #[arg(short, long)]
    pub container: Option<String>,
    /// Pass stdin to the container
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Stdin is a TTY
    #[arg(short, long)]
    pub tty: bool,
    /// Only print output from the remote session
    #[arg(short, long)]
    pub quiet: bool,
    /// How long to wait until at least one pod is running
    #[arg(long, default_value = "1m0s", value_name = "DURATION")]
    pub pod_running_timeout: String,
}

impl StreamFlags {
    pub(super) fn check(&self, command: &str) -> Result<()> {
        check_patience(&self.pod_running_timeout)
            .map_err(|error| crate::error::usage(command, error))
    }
}

/// `--pod-running-timeout` is a positive duration.
pub(super) fn check_patience(text: &str) -> Result<()> {
    match crate::duration::parse(text) {
        Ok(timeout) if !timeout.is_zero() => Ok(()),
        _ => anyhow::bail!("--pod-running-timeout must be higher than zero"),
    }
}

impl Exec {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let names_no_file = self.filename.iter().all(String::is_empty);
        let word = match (self.resource.as_slice(), names_no_file) {
            ([word], true) => word.clone(),
            ([], true) => {
                bail!("pod, type/name or --filename must be specified");
            }
            ([], false) => {
                self.check()?;
                let files = crate::args::Files {
                    filename: self.filename.clone(),
                    ..crate::args::Files::default()
                };
                let manifests = manifest::read(&files).await?;
                let targets = crate::resources::from_manifests(session, manifests).await?;
                match targets.as_slice() {
                    [target] => format!("{}/{}", target.resource.qualified_plural(), target.name),
                    _ => bail!("--filename must name one resource"),
                }
            }
            _ => bail!(
                "exec [POD] [COMMAND] is not supported anymore. Use exec [POD] -- [COMMAND] instead\nSee 'kubectl exec -h' for help and examples"
            ),
        };
        self.check()?;
        let pod = pod_of(session, &word, &self.flags.pod_running_timeout).await?;
        let phase = crate::json::str_of(&pod["status"]["phase"]);
        if phase == "Succeeded" || phase == "Failed" {
            bail!("cannot exec into a container in a completed pod; current phase is {phase}");
        }
        let container = container_of(&pod, self.flags.container.as_deref(), self.flags.quiet)?;
        let wanted = SessionStreams {
            stdin: self.flags.stdin,
            tty: self.flags.tty,
            quiet: self.flags.quiet,
            detach_keys: None,
        };
        streams::interactive(session, &pod, &container, "exec", &self.command, wanted).await
    }

    fn check(&self) -> Result<()> {
        self.flags.check("exec")?;
        if self.command.is_empty() {
            bail!("you must specify at least one command for the container");
        }
        Ok(())
    }
}
