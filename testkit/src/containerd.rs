//! Debian's containerd on a machine, for nodes with another runtime.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Duration,
};

use crate::{Machine, Ran, until};

/// A daemon that is killed with all of its shims when dropped.
pub struct Containerd {
    daemon: Child,
    /// The directory of its sockets, which the command lines of its shims contain.
    state: PathBuf,
    run: Box<dyn Fn(&str) -> Command + Send>,
}

/// Pods on a bridge of the machine.
const BRIDGE: &str = r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [
    {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false,
     "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/20"}]],
              "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "/run/cni-addresses"}},
    {"type": "portmap", "capabilities": {"portMappings": true}}]}"#;

impl Containerd {
    /// Starts it with a bridge network for its pods. `pause` is an archive of its sandbox image,
    /// named `pause_name`.
    pub fn on(machine: &Machine, pause: &str, pause_name: &str) -> Self {
        let plugins = Path::new("/usr/lib/cni");
        Self::with_network(machine, pause, pause_name, BRIDGE, plugins)
    }

    /// The same with this list of CNI plugins, which are in a directory.
    pub fn with_network(
        machine: &Machine,
        pause: &str,
        pause_name: &str,
        network: &str,
        plugins: &Path,
    ) -> Self {
        let dir = machine.dir().join("containerd");
        let state = machine.dir().join("containerd-state");
        let networks = dir.join("net.d");
        fs::create_dir_all(&networks).expect("a directory");
        fs::write(networks.join("10-pods.conflist"), network).expect("a file");
        let config = format!(
            "version = 2\nroot = {root:?}\nstate = {state:?}\n[grpc]\naddress = {socket:?}\n\
             [ttrpc]\naddress = {ttrpc:?}\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = {pause_name:?}\n\
             disable_tcp_service = true\nrestrict_oom_score_adj = true\n\
             [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = {plugins:?}\nconf_dir = {networks:?}\n\
             [plugins.\"io.containerd.internal.v1.opt\"]\npath = {opt:?}\n",
            root = machine.disk().join("containerd"),
            socket = state.join("containerd.sock"),
            ttrpc = state.join("ttrpc.sock"),
            opt = dir.join("opt"),
        );
        let file = dir.join("config.toml");
        fs::write(&file, config).expect("a file");
        let log = File::create(dir.join("log")).expect("a file");
        let daemon = machine
            .command("containerd")
            .arg("--config")
            .arg(&file)
            .stderr(log)
            .spawn()
            .expect("containerd is installed (make test does it)");
        let started = Self {
            daemon,
            state,
            run: Box::new(machine.command_maker()),
        };
        until("containerd to answer", Duration::from_secs(60), || {
            let ran = started.ctr(&["version"]);
            if ran.ok { Ok(()) } else { Err(ran.stderr) }
        });
        started.import(pause);
        started
    }

    /// The runtime's endpoint.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.state.join("containerd.sock").display())
    }

    /// Imports an image from an archive.
    pub fn import(&self, archive: &str) {
        let snapshotter = ["--snapshotter", "overlayfs"];
        let args = [&["images", "import"][..], &snapshotter, &[archive]].concat();
        self.ctr(&args).success();
    }

    fn ctr(&self, args: &[&str]) -> Ran {
        let mut command = (self.run)("ctr");
        command.arg("--address");
        command.arg(self.state.join("containerd.sock"));
        command.args(["--namespace", "k8s.io"]).args(args);
        command.output().expect("ctr starts").into()
    }

    /// The process id of the daemon.
    pub fn pid(&self) -> u32 {
        // nsenter has executed the daemon.
        self.daemon.id()
    }

    /// Sends a signal, such as to stop or continue the daemon.
    pub fn signal(&self, signal: &str) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.expect("kill starts").success());
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // SIGKILL also ends a stopped process.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        end_shims(&self.state);
    }
}

/// Shims outlive the daemon; their command lines contain its directory.
fn end_shims(state: &Path) {
    let name = state.display().to_string();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).into_owned();
        if command.contains("containerd-shim") && command.contains(&name) {
            let pid = entry.file_name();
            let _ = Command::new("kill").arg("-KILL").arg(pid).status();
        }
    }
}
