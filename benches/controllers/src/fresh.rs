//! A server for one scenario, in a directory of its own.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::Instant,
};

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Fresh {
    server: Child,
    pid: u32,
    directory: TempDir,
}

impl Fresh {
    /// Starts a server with a command, whose words are separated by spaces; `{}` is its directory.
    pub(crate) async fn start(command: &str) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let mut words = words(command, &directory.path().display().to_string()).into_iter();
        let program = words.next().context("the server's command is empty")?;
        let server = Command::new(&program)
            .args(words)
            .kill_on_drop(true)
            .spawn();
        let server = server.with_context(|| program)?;
        let pid = server.id().context("the server has ended")?;
        let mut fresh = Self {
            server,
            pid,
            directory,
        };
        let begun = Instant::now();
        while !fresh.is_ready().await {
            if let Some(status) = fresh.server.try_wait()? {
                bail!("the server has ended: {status}");
            }
            if begun.elapsed() > PATIENCE {
                bail!("the server is not ready after {PATIENCE:?}");
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(fresh)
    }

    async fn is_ready(&self) -> bool {
        let Ok(client) = client::from_kubeconfig(self.kubeconfig()) else {
            return false;
        };
        let Ok(request) = http::Request::get("/readyz").body(Vec::new()) else {
            return false;
        };
        client.request_text(request).await.is_ok()
    }

    /// The administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("admin.kubeconfig")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Ends the server and removes its directory.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.server.kill().await?;
        Ok(self.directory.close()?)
    }
}

fn words(command: &str, directory: &str) -> Vec<String> {
    let words = command.split_whitespace();
    words.map(|word| word.replace("{}", directory)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_names_the_directory_where_it_has_braces() {
        let command = words(
            "mainstay  server --data-dir={}/data --node-ip 10.0.0.1",
            "/tmp/x",
        );
        let expected = [
            "mainstay",
            "server",
            "--data-dir=/tmp/x/data",
            "--node-ip",
            "10.0.0.1",
        ];
        assert_eq!(command, expected);
    }
}
