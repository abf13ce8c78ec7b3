//! A cluster: the built binary, `mainstay up`, on a machine of its own.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use crate::{Lan, Machine, Ran, Terminal, eventually, until};

/// A running cluster; dropping it resets it.
pub struct Cluster {
    machine: Machine,
    daemon: Option<Child>,
    flags: Vec<String>,
    kubectl: Option<PathBuf>,
    data_dir: PathBuf,
}

impl Cluster {
    /// Starts `mainstay up` and waits until its node is Ready.
    pub fn up() -> Self {
        Self::up_with(&[])
    }

    /// The same with more flags.
    pub fn up_with(flags: &[&str]) -> Self {
        let mut cluster = Self::stopped(flags);
        cluster.start();
        cluster
    }

    /// A machine for a cluster that is not started yet.
    pub fn stopped(flags: &[&str]) -> Self {
        Self::stopped_on(Machine::new(), flags)
    }

    /// The same on a given machine.
    pub fn stopped_on(machine: Machine, flags: &[&str]) -> Self {
        Self {
            data_dir: machine.disk().join("data"),
            machine,
            daemon: None,
            kubectl: None,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        }
    }

    /// Starts one on the first machine of a network.
    pub fn on_lan(lan: &Lan, flags: &[&str]) -> Self {
        let address = lan.address(0, 2);
        let flags = [&["--node-ip", address.as_str()], flags].concat();
        let mut cluster = Self::stopped_on(Machine::on(lan, &address), &flags);
        cluster.start();
        cluster
    }

    /// Adds a flag for the next start.
    pub fn add_flag(&mut self, flag: &str, value: &str) {
        self.flags.extend([flag.to_owned(), value.to_owned()]);
    }

    /// Keeps everything where `mainstay up` does without flags; only the machine sees it.
    pub fn use_default_data_dir(&mut self) {
        // A node in the default place also adds its context to root's kubeconfig.
        let cover = "kube=$(getent passwd 0 | cut -d: -f6)/.kube && mkdir -p $kube && \
                     for dir in /var/lib /var/log $kube; do mount -t tmpfs tmpfs $dir; done";
        self.machine.run("sh", &["-ec", cover]).success();
        self.data_dir = "/var/lib/mainstay".into();
    }

    /// The ID in the names of everything that this cluster makes on the machine.
    pub fn id(&self) -> String {
        let id = self.machine.run("ls", &["/run/mainstay"]).success();
        id.trim().to_owned()
    }

    /// The machine it runs on.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Starts the daemon again after [`Cluster::kill`] or [`Cluster::stop`].
    pub fn start(&mut self) {
        assert!(self.daemon.is_none(), "it runs already");
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .expect("a log file");
        let daemon = self
            .machine
            .command(binary())
            .args(["up", "--node-name", "one"])
            .args(self.log_level())
            .args(self.kubelet_config())
            .arg("--data-dir")
            .arg(self.data_dir())
            .args(&self.flags)
            .stdout(log.try_clone().expect("a log file"))
            .stderr(log)
            .spawn()
            .expect("the binary starts");
        self.daemon = Some(daemon);
        self.wait_ready();
    }

    /// The default node configuration: a machine whose disk is nearly full must not make unrelated
    /// tests fail.
    fn kubelet_config(&self) -> Vec<String> {
        if self.flags.iter().any(|flag| flag == "--kubelet-config") {
            return Vec::new();
        }
        let file = self.machine.dir().join("kubelet.yaml");
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                    evictionHard: {memory.available: 50Mi, nodefs.available: 1%}\n";
        std::fs::write(&file, text).expect("a file");
        vec!["--kubelet-config".to_owned(), file.display().to_string()]
    }

    /// The default log level.
    fn log_level(&self) -> &'static [&'static str] {
        if self.flags.iter().any(|flag| flag == "--log-level") {
            &[]
        } else {
            &["--log-level", "debug,h2=info,hyper=info,tower=info"]
        }
    }

    fn wait_ready(&mut self) {
        let log = self.log();
        until("the node to be Ready", Duration::from_secs(60), || {
            if let Ok(Some(status)) = self.daemon.as_mut().expect("started").try_wait() {
                panic!("mainstay ended with {status}:\n{}", tail(&log));
            }
            let ran = self.kubectl(&["get", "node", "one", "-o", "json"]);
            let node: Value = serde_json::from_str(&ran.stdout).map_err(|_| ran.stderr.clone())?;
            if is_ready(&node) {
                Ok(())
            } else {
                Err(format!("{}\n{}", node["status"]["conditions"], tail(&log)))
            }
        });
    }

    /// The daemon's process.
    pub fn pid(&self) -> u32 {
        self.daemon.as_ref().expect("it runs").id()
    }

    /// Kills the daemon with SIGKILL, as in a crash.
    pub fn kill(&mut self) {
        let mut daemon = self.daemon.take().expect("it runs");
        daemon.kill().expect("it can be killed");
        daemon.wait().expect("it ends");
    }

    /// Asks the daemon to stop, as Ctrl-C does, and waits for it.
    pub fn stop(&mut self) {
        let mut daemon = self.daemon.take().expect("it runs");
        self.machine
            .run("kill", &["-TERM", &daemon.id().to_string()])
            .success();
        until(
            "the daemon to stop",
            Duration::from_secs(30),
            || match daemon.try_wait() {
                Ok(Some(_)) => Ok(()),
                other => Err(format!("{other:?}")),
            },
        );
    }

    /// Creates a token; returns the flags of the command that joins with it.
    pub fn join_flags(&self) -> Vec<String> {
        let line = self.mainstay(&["token", "create"]).success();
        let words = line.trim().strip_prefix("mainstay agent ");
        let words = words.unwrap_or_else(|| panic!("not a join command: {line}"));
        words.split(' ').map(str::to_owned).collect()
    }

    /// `mainstay reset`: removes everything the cluster made.
    pub fn reset(&mut self) -> Ran {
        if self.daemon.is_some() {
            self.stop();
        }
        let ran = self
            .machine
            .command(binary())
            .args(["reset", "--yes", "--data-dir"])
            .arg(self.data_dir())
            .output();
        ran.expect("reset runs").into()
    }

    /// Runs the binary with the cluster's data directory.
    pub fn mainstay(&self, args: &[&str]) -> Ran {
        let mut command = self.machine.command(binary());
        command.args(args).arg("--data-dir").arg(self.data_dir());
        command.output().expect("the binary starts").into()
    }

    /// Runs our kubectl as the administrator.
    pub fn kubectl(&self, args: &[&str]) -> Ran {
        let mut command = self.machine.command(binary());
        command
            .arg("kubectl")
            .args(args)
            // An editor of the machine would wait for a person.
            .env("EDITOR", "false")
            .env("KUBECONFIG", self.kubeconfig());
        command.output().expect("kubectl starts").into()
    }

    /// Runs kubectl with this standard input.
    pub fn kubectl_stdin(&self, args: &[&str], input: &str) -> Ran {
        use std::io::Write;
        let mut command = self.machine.command(binary());
        command
            .arg("kubectl")
            .args(args)
            .env("KUBECONFIG", self.kubeconfig());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        child
            .stdin
            .take()
            .expect("stdin is piped")
            .write_all(input.as_bytes())
            .expect("it reads");
        child.wait_with_output().expect("kubectl ends").into()
    }

    /// Runs a command line of the binary, such as `kubectl get pods`, in a terminal.
    pub fn terminal(&self, line: &str, environment: &[(&str, &str)]) -> Terminal {
        let line = format!("exec {} {line}", binary());
        let kubeconfig = self.kubeconfig().display().to_string();
        let environment = [environment, &[("KUBECONFIG", kubeconfig.as_str())]].concat();
        Terminal::start(&self.machine, &line, &environment)
    }

    /// Sets upstream's kubectl, unless `MAINSTAY_KUBECTL` names another.
    pub fn set_upstream_kubectl(&mut self, path: Option<PathBuf>) {
        self.kubectl = path;
    }

    /// Runs upstream's kubectl: the one that `MAINSTAY_KUBECTL` names, that was set or that is
    /// installed on the machine, if there is one.
    pub fn upstream_kubectl(&self, args: &[&str]) -> Option<Ran> {
        let mut command = self.upstream_kubectl_command(args)?;
        Some(command.output().expect("kubectl starts").into())
    }

    /// The same as a command to start.
    pub fn upstream_kubectl_command(&self, args: &[&str]) -> Option<Command> {
        let path = upstream_kubectl(self.kubectl.as_deref())?;
        let mut command = self.machine.command(path.to_str()?);
        command
            .args(args)
            .env("EDITOR", "false")
            .env("KUBECONFIG", self.kubeconfig())
            .env("HOME", self.machine.dir());
        Some(command)
    }

    /// An object as JSON, once it exists.
    pub fn get(&self, args: &[&str]) -> Value {
        eventually(&format!("{args:?}"), || {
            let ran = self.kubectl(&[&["get"], args, &["-o", "json"]].concat());
            serde_json::from_str(&ran.stdout).map_err(|_| ran.stderr)
        })
    }

    /// The nodes, once exactly this many are Ready.
    pub fn ready_nodes(&self, count: usize) -> Vec<Value> {
        eventually(&format!("{count} Ready nodes"), || {
            let list = self.get(&["nodes"]);
            let nodes = list["items"].as_array().cloned().unwrap_or_default();
            let ready: Vec<Value> = nodes
                .iter()
                .filter(|node| is_ready(node))
                .cloned()
                .collect();
            if ready.len() == count {
                return Ok(ready);
            }
            Err(format!("{} of {} are Ready", ready.len(), nodes.len()))
        })
    }

    pub fn data_dir(&self) -> PathBuf {
        self.data_dir.clone()
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.data_dir().join("admin.kubeconfig")
    }

    /// The daemon's output.
    pub fn log(&self) -> PathBuf {
        self.machine.dir().join("mainstay.log")
    }
}

/// Whether an object's condition `Ready` is `True`.
pub fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn upstream_kubectl(set: Option<&Path>) -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("MAINSTAY_KUBECTL") {
        return Some(named.into());
    }
    if let Some(set) = set {
        return Some(set.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join("kubectl"));
    places.find(|path| path.exists())
}

#[allow(clippy::print_stderr)]
impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "--- the last lines of the daemon's log\n{}",
                tail(&self.log())
            );
        }
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let reset = ["reset", "--yes", "--data-dir"];
        let _ = self
            .machine
            .command(binary())
            .args(reset)
            .arg(self.data_dir())
            .output();
    }
}

/// The binary under test: MAINSTAY_BIN, as `make e2e` sets it.
pub(crate) fn binary() -> &'static str {
    static BINARY: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    BINARY.get_or_init(|| {
        std::env::var("MAINSTAY_BIN")
            .expect("MAINSTAY_BIN names the binary under test (see TESTING.md)")
    })
}

pub(crate) fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}
