//! A node of a cluster on a machine of its own: the built binary, `mainstay agent`.

use std::{
    fs::File,
    path::PathBuf,
    process::{Child, Command},
    time::Duration,
};

use crate::{
    Lan, Machine, Ran,
    cluster::{binary, tail},
    until,
};

/// A machine that is, or will be, a node; dropping it resets it.
pub struct Agent {
    machine: Machine,
    daemon: Option<Child>,
    name: String,
    /// The program to start; kubectl is always the built one.
    binary: String,
    /// Whether the agent detects its address.
    follows_address: bool,
}

impl Agent {
    /// A machine that has not joined yet.
    pub fn new(machine: Machine, name: &str) -> Self {
        Self {
            machine,
            daemon: None,
            name: name.to_owned(),
            binary: binary().to_owned(),
            follows_address: false,
        }
    }

    /// The same on a new machine of a network: host `number` of one of its subnets.
    pub fn on_lan(lan: &Lan, subnet: usize, number: u8, name: &str) -> Self {
        Self::new(Machine::on(lan, &lan.address(subnet, number)), name)
    }

    /// Starts without an address flag next time: the agent detects the machine's address and
    /// follows it.
    pub fn follow_address(&mut self) {
        self.follows_address = true;
    }

    /// The daemon's process.
    pub fn pid(&self) -> u32 {
        self.daemon.as_ref().expect("it runs").id()
    }

    /// Sets another program for the next start, such as [`crate::stamped`].
    pub fn set_binary(&mut self, path: &str) {
        path.clone_into(&mut self.binary);
    }

    /// Starts the daemon; `join` are flags such as a token, empty for an agent that has joined
    /// before.
    pub fn start(&mut self, join: &[String]) {
        assert!(self.daemon.is_none(), "it runs already");
        let log = File::options().create(true).append(true).open(self.log());
        let log = log.expect("a log file");
        let mut command = self.command(join);
        let daemon = command
            .stdout(log.try_clone().expect("a log file"))
            .stderr(log)
            .spawn();
        self.daemon = Some(daemon.expect("the binary starts"));
    }

    /// Runs `mainstay agent` to its end: for agents that are rejected.
    pub fn refused(&self, join: &[String]) -> Ran {
        let ran: Ran = self
            .command(join)
            .output()
            .expect("the binary starts")
            .into();
        assert!(!ran.ok, "it was not refused");
        ran
    }

    fn command(&self, join: &[String]) -> Command {
        let mut command = self.machine.command(&self.binary);
        command.args(["agent", "--node-name", &self.name]);
        if !self.follows_address {
            command.args(["--node-ip", self.machine.address()]);
        }
        command
            .args(["--log-level", "debug,h2=info,hyper=info,tower=info"])
            .arg("--data-dir")
            .arg(self.data_dir())
            .args(join);
        command
    }

    /// Kills the daemon with SIGKILL, as in a crash.
    pub fn kill(&mut self) {
        let mut daemon = self.daemon.take().expect("it runs");
        daemon.kill().expect("it can be killed");
        daemon.wait().expect("it ends");
    }

    /// Asks the daemon to stop and waits for it.
    pub fn stop(&mut self) {
        let mut daemon = self.daemon.take().expect("it runs");
        let pid = daemon.id().to_string();
        self.machine.run("kill", &["-TERM", &pid]).success();
        until(
            "the agent to stop",
            Duration::from_secs(30),
            || match daemon.try_wait() {
                Ok(Some(_)) => Ok(()),
                other => Err(format!("{other:?}")),
            },
        );
    }

    /// `mainstay reset`.
    pub fn reset(&mut self) -> Ran {
        if self.daemon.is_some() {
            self.stop();
        }
        let mut command = self.machine.command(binary());
        command
            .args(["reset", "--yes", "--data-dir"])
            .arg(self.data_dir());
        command.output().expect("reset runs").into()
    }

    /// Runs our kubectl on this machine with a kubeconfig.
    pub fn kubectl(&self, kubeconfig: &std::path::Path, args: &[&str]) -> Ran {
        let mut command = self.machine.command(binary());
        command.arg("kubectl").args(args);
        command.env("KUBECONFIG", kubeconfig);
        command.output().expect("kubectl starts").into()
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn data_dir(&self) -> PathBuf {
        self.machine.disk().join("data")
    }

    /// The daemon's output.
    pub fn log(&self) -> PathBuf {
        self.machine.dir().join("mainstay.log")
    }
}

#[allow(clippy::print_stderr)]
impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "--- the last lines of {}'s log\n{}",
                self.name,
                tail(&self.log())
            );
        }
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = self.reset();
    }
}
