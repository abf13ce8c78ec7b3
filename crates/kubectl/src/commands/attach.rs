//! `kubectl attach`

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{
    json::list,
    session::Session,
    streams::{self, SessionStreams, container_of, pod_of},
};

use super::exec::StreamFlags;

/// Flags of `attach`.
#[derive(Debug, Args)]
pub(crate) struct Attach {
    /// POD, TYPE/NAME or TYPE NAME
    resource: Vec<String>,
    #[command(flatten)]
    flags: StreamFlags,
    /// Keys that leave the container, separated by commas
    #[arg(long, value_name = "KEYS", default_value = crate::detach::DEFAULT)]
    detach_keys: String,
}

impl Attach {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let word = match self.resource.as_slice() {
            [] => bail!("at least 1 argument is required for attach"),
            [word] => word.clone(),
            [kind, name] => format!("{kind}/{name}"),
            words => bail!(
                "expected POD, TYPE/NAME, or TYPE NAME, (at most 2 arguments) saw {}: [{}]",
                words.len(),
                words.join(" ")
            ),
        };
        self.flags.check("attach")?;
        let pod = pod_of(session, &word, &self.flags.pod_running_timeout).await?;
        let phase = crate::json::str_of(&pod["status"]["phase"]);
        if phase == "Succeeded" || phase == "Failed" {
            bail!("cannot attach a container in a completed pod; current phase is {phase}");
        }
        let container = container_of(&pod, self.flags.container.as_deref(), self.flags.quiet)
            .context("cannot attach to the container")?;
        let spec =
            list(&pod["spec"]["containers"]).chain(list(&pod["spec"]["ephemeralContainers"]));
        let has_tty = spec
            .into_iter()
            .any(|spec| spec["name"] == container.as_str() && spec["tty"] == true);
        if self.flags.tty && !has_tty && !self.flags.quiet {
            eprintln!("error: Unable to use a TTY - container {container} did not allocate one");
        }
        let wanted = SessionStreams {
            stdin: self.flags.stdin,
            // A container with a terminal is never attached to without one.
            tty: has_tty,
            quiet: self.flags.quiet,
            detach_keys: Some(&self.detach_keys),
        };
        streams::interactive(session, &pod, &container, "attach", &[], wanted).await
    }
}
