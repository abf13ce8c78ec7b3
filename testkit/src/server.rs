//! A server of a cluster on a machine of its own: the built binary, `mainstay server`.

use std::{
    fs::File,
    path::PathBuf,
    process::{Child, Command},
    time::Duration,
};

use crate::{
    Machine, Ran,
    cluster::{binary, tail},
    until,
};

/// A machine that serves a cluster, or will; dropping it resets it.
pub struct Server {
    machine: Machine,
    daemon: Option<Child>,
    name: String,
    flags: Vec<String>,
    /// The program to start; kubectl is always the built one.
    binary: String,
}

impl Server {
    /// A machine whose server is not started yet.
    pub fn stopped(machine: Machine, name: &str, flags: &[String]) -> Self {
        Self {
            machine,
            daemon: None,
            name: name.to_owned(),
            flags: flags.to_vec(),
            binary: binary().to_owned(),
        }
    }

    /// Sets another program for the next start, such as [`crate::stamped`].
    pub fn set_binary(&mut self, path: &str) {
        path.clone_into(&mut self.binary);
    }

    /// Sets all flags for the next start.
    pub fn set_flags(&mut self, flags: &[String]) {
        self.flags = flags.to_vec();
    }

    /// Sets a flag for the next start, replacing an earlier one of the same name.
    pub fn set_flag(&mut self, flag: &str, value: &str) {
        if let Some(at) = self.flags.iter().position(|known| known == flag) {
            self.flags.drain(at..at + 2);
        }
        self.flags.extend([flag.to_owned(), value.to_owned()]);
    }

    fn command(&self) -> Command {
        let mut command = self.machine.command(&self.binary);
        command
            .args(["server", "--node-name", &self.name])
            .args(["--node-ip", self.machine.address()])
            .args(["--log-level", "info"])
            .arg("--data-dir")
            .arg(self.data_dir())
            .args(&self.flags);
        command
    }

    /// Starts the server, and waits until it answers.
    pub fn start(&mut self) {
        assert!(self.daemon.is_none(), "it runs already");
        let log = File::options().create(true).append(true).open(self.log());
        let log = log.expect("a log file");
        let mut command = self.command();
        let daemon = command
            .stdout(log.try_clone().expect("a log file"))
            .stderr(log)
            .spawn();
        // Known before anything can panic: it is killed when this value is dropped.
        self.daemon = Some(daemon.expect("the binary starts"));
        let own = format!("https://{}:6443", self.machine.address());
        until("the server to be ready", Duration::from_secs(60), || {
            if let Some(Ok(Some(status))) = self.daemon.as_mut().map(Child::try_wait) {
                panic!("mainstay ended with {status}:\n{}", tail(&self.log()));
            }
            let ran = self.kubectl(&["--server", &own, "get", "--raw", "/readyz"]);
            if ran.ok { Ok(()) } else { Err(ran.stderr) }
        });
    }

    /// Runs `mainstay server` to its end: for servers that are rejected.
    pub fn refused(&self) -> Ran {
        let output = self.command().output();
        let ran: Ran = output.expect("the binary starts").into();
        assert!(!ran.ok, "it was not refused");
        ran
    }

    /// Kills the server with SIGKILL, as in a crash.
    pub fn kill(&mut self) {
        let mut daemon = self.daemon.take().expect("it runs");
        daemon.kill().expect("it can be killed");
        daemon.wait().expect("it ends");
    }

    /// Asks the server to stop and waits for it.
    pub fn stop(&mut self) {
        self.signal("-TERM");
        let mut daemon = self.daemon.take().expect("it runs");
        until(
            "the server to stop",
            Duration::from_secs(30),
            || match daemon.try_wait() {
                Ok(Some(_)) => Ok(()),
                other => Err(format!("{other:?}")),
            },
        );
    }

    pub fn is_running(&self) -> bool {
        self.daemon.is_some()
    }

    /// Sends it a signal, such as `-STOP`.
    pub fn signal(&self, signal: &str) {
        let pid = self.daemon.as_ref().expect("it runs").id().to_string();
        self.machine.run("kill", &[signal, &pid]).success();
    }

    /// Runs the binary with the server's data directory.
    pub fn mainstay(&self, args: &[&str]) -> Ran {
        let mut command = self.machine.command(binary());
        command.args(args).arg("--data-dir").arg(self.data_dir());
        command.output().expect("the binary starts").into()
    }

    /// Runs our kubectl on this machine as the administrator.
    pub fn kubectl(&self, args: &[&str]) -> Ran {
        let mut command = self.machine.command(binary());
        command
            .arg("kubectl")
            .args(args)
            .env("KUBECONFIG", self.data_dir().join("admin.kubeconfig"));
        command.output().expect("kubectl starts").into()
    }

    /// The administrator's current kubeconfig.
    pub fn kubeconfig(&self) -> String {
        let path = self.data_dir().join("admin.kubeconfig");
        let path = path.display().to_string();
        self.machine.run("cat", &[&path]).success()
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    pub fn data_dir(&self) -> PathBuf {
        self.machine.disk().join("data")
    }

    /// The server's output.
    pub fn log(&self) -> PathBuf {
        self.machine.dir().join("mainstay.log")
    }
}

#[allow(clippy::print_stderr)]
impl Drop for Server {
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
        let mut reset = self.machine.command(binary());
        reset.args(["reset", "--yes", "--data-dir"]);
        let _ = reset.arg(self.data_dir()).output();
    }
}
