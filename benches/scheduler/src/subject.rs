//! The measured schedulers, and their API server. Every run of a shape has its own server with an
//! empty directory.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::serve;

/// Which schedulers are measured.
#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    /// A running cluster with its scheduler; then nothing else is measured.
    #[arg(long)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Processes of that cluster whose memory and CPU time are printed.
    #[arg(long, value_delimiter = ',', requires = "kubeconfig")]
    pub(crate) pid: Vec<u32>,
    /// Upstream's program, measured after ours on each shape.
    #[arg(long, conflicts_with = "kubeconfig")]
    pub(crate) kube_scheduler: Option<PathBuf>,
    /// Also measure our scheduler in a process of its own.
    #[arg(long, conflicts_with = "kubeconfig")]
    pub(crate) apart: bool,
    /// Do not measure our scheduler in the API server's process.
    #[arg(long, conflicts_with = "kubeconfig")]
    pub(crate) not_inside: bool,
    /// The directory of our API server's store: on a disk, since every write is synced.
    #[arg(long, default_value = ".")]
    pub(crate) data: PathBuf,
}

/// A scheduler.
#[derive(Debug, Clone)]
pub(crate) enum Subject {
    /// Ours in the API server's process.
    Inside,
    /// Ours over HTTPS.
    Apart,
    /// Upstream's.
    Upstream(PathBuf),
}

impl Options {
    pub(crate) fn subjects(&self) -> Vec<Subject> {
        let mut subjects = Vec::new();
        if !self.not_inside {
            subjects.push(Subject::Inside);
        }
        if self.apart {
            subjects.push(Subject::Apart);
        }
        subjects.extend(self.kube_scheduler.clone().map(Subject::Upstream));
        subjects
    }
}

impl Subject {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Inside => "mainstay",
            Self::Apart => "mainstay apart",
            Self::Upstream(_) => "kube-scheduler",
        }
    }
}

/// A child process, killed when this is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Our API server as a child process, and the scheduler once it is started.
pub(crate) struct Server {
    scheduler: Option<Process>,
    process: Process,
    directory: tempfile::TempDir,
}

impl Server {
    /// Starts it with an empty directory below `parent`.
    pub(crate) fn start(parent: &Path) -> Result<Self> {
        let directory = tempfile::tempdir_in(parent)?;
        let mut child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .arg(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().context("no output")?;
        let server = Self {
            scheduler: None,
            process: Process(child),
            directory,
        };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(line.trim() == "ready", "the server did not start");
        Ok(server)
    }

    pub(crate) fn admin(&self) -> Result<kube::Client> {
        let path = self.directory.path().join(serve::ADMIN);
        Ok(client::from_kubeconfig(path)?)
    }

    /// Starts the scheduler.
    pub(crate) fn schedule(&mut self, subject: &Subject) -> Result<()> {
        let kubeconfig = self.directory.path().join(serve::SCHEDULER);
        let child = match subject {
            Subject::Inside => {
                let input = self.process.0.stdin.as_mut().context("no input")?;
                input.write_all(b"schedule\n")?;
                return Ok(());
            }
            Subject::Apart => Command::new(std::env::current_exe()?)
                .arg("scheduler")
                .arg(kubeconfig)
                .spawn()?,
            Subject::Upstream(program) => {
                let config = self.directory.path().join("upstream.yaml");
                std::fs::write(&config, upstream_configuration(&kubeconfig))?;
                let log = std::fs::File::create(self.directory.path().join("upstream.log"))?;
                Command::new(program)
                    .arg("--config")
                    .arg(config)
                    .arg("--secure-port=0")
                    .stdout(log.try_clone()?)
                    .stderr(log)
                    .spawn()?
            }
        };
        self.scheduler = Some(Process(child));
        Ok(())
    }

    /// The pids of the server and of the scheduler, if it is a process of its own.
    pub(crate) fn processes(&self) -> (u32, Option<u32>) {
        let scheduler = self.scheduler.as_ref().map(|process| process.0.id());
        (self.process.0.id(), scheduler)
    }

    /// The last lines of upstream's log.
    pub(crate) fn log(&self) -> String {
        let text = std::fs::read_to_string(self.directory.path().join("upstream.log"));
        let text = text.unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

/// Without the default rate limits of its client.
fn upstream_configuration(kubeconfig: &Path) -> String {
    format!(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
         leaderElection:\n  leaderElect: false\nclientConnection:\n  kubeconfig: {}\n  qps: 5000\n  \
         burst: 5000\n  contentType: application/vnd.kubernetes.protobuf\n",
        kubeconfig.display()
    )
}
