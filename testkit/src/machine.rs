//! A machine: a holder process keeps a network and a mount namespace alive.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    os::fd::AsFd,
    process::{Child, Command, Output, Stdio},
    thread::JoinHandle,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;

use crate::Lan;

/// The address of a machine without a LAN.
const ADDRESS: &str = "192.168.77.2";

/// Where kubectl keeps what it discovers: clusters of several machines have the same addresses.
const KUBECTL_CACHE: &str = "KUBECACHEDIR";

/// Namespaces that exist as long as this value.
pub struct Machine {
    holder: Child,
    dir: TempDir,
    address: String,
}

/// The result of a command.
#[derive(Debug)]
pub struct Ran {
    pub ok: bool,
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            ok: output.status.success(),
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ran {
    /// The output of a command that must succeed.
    #[track_caller]
    pub fn success(self) -> String {
        assert!(
            self.ok,
            "failed with {:?}\n{}\n{}",
            self.code, self.stdout, self.stderr
        );
        self.stdout
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// Creates the namespaces and a link with an address; there is no route out.
    pub fn new() -> Self {
        let wire = format!(
            "ip link add eth0 type veth peer name wire && ip address add {ADDRESS}/24 dev eth0 \
             && ip link set eth0 up && ip link set wire up"
        );
        Self::make(&wire, ADDRESS)
    }

    /// A machine on a network.
    pub fn on(lan: &Lan, address: &str) -> Self {
        let machine = Self::make("true", address);
        lan.attach(machine.inside(), address);
        machine
    }

    fn make(wire: &str, address: &str) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("mst")
            .tempdir()
            .expect("a directory");
        let disk = dir.path().join("disk");
        std::fs::create_dir(&disk).expect("a directory");
        let setup = format!(
            "ip link set lo up && {wire} && mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs {}",
            disk.display()
        );
        Self {
            holder: hold(&["--net", "--mount", "--propagation", "slave"], &setup),
            dir,
            address: address.to_owned(),
        }
    }

    /// A directory that is removed with the machine.
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// A tmpfs visible only inside: how full the host's disk is does not matter.
    pub fn disk(&self) -> std::path::PathBuf {
        self.dir.path().join("disk")
    }

    /// The address of the machine's link.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A command that will run inside.
    pub fn command(&self, program: &str) -> Command {
        let mut command = enter(self.inside(), program);
        command.env(KUBECTL_CACHE, self.dir().join("kubectl-cache"));
        command
    }

    /// Makes commands that will run inside, also on another thread.
    pub fn command_maker(&self) -> impl Fn(&str) -> Command + Send + use<> {
        let (inside, cache) = (self.inside(), self.dir().join("kubectl-cache"));
        move |program| {
            let mut command = enter(inside, program);
            command.env(KUBECTL_CACHE, &cache);
            command
        }
    }

    /// Runs `work` on a thread of its own inside the machine's network namespace.
    pub fn thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let path = format!("/proc/{}/ns/net", self.inside());
        let network = File::open(path).expect("a network namespace");
        std::thread::spawn(move || {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("the namespace can be entered");
            work()
        })
    }

    /// Runs a command inside and waits for it.
    pub fn run(&self, program: &str, args: &[&str]) -> Ran {
        self.command(program)
            .args(args)
            .output()
            .expect("nsenter starts")
            .into()
    }

    /// The process inside the namespaces.
    pub(crate) fn inside(&self) -> u32 {
        inside(&self.holder)
    }
}

/// A command in the namespaces of a process.
fn enter(process: u32, program: &str) -> Command {
    let mut command = Command::new("nsenter");
    let target = process.to_string();
    command.args(["--target", &target, "--net", "--mount", program]);
    command.stdin(Stdio::null());
    command
}

/// Starts a process that holds new namespaces, and runs `setup` in them.
pub(crate) fn hold(namespaces: &[&str], setup: &str) -> Child {
    assert!(
        running_as_root(),
        "these tests need root: they make namespaces and containers"
    );
    let setup = format!("{setup} && echo made && exec sleep infinity");
    let mut holder = Command::new("unshare")
        .args(namespaces)
        .args(["--kill-child", "--fork", "sh", "-ec", &setup])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare starts");
    let mut line = String::new();
    let stdout = holder.stdout.take().expect("stdout is piped");
    BufReader::new(stdout)
        .read_line(&mut line)
        .expect("the holder speaks");
    assert_eq!(line.trim(), "made", "the namespaces could not be made");
    holder
}

/// The process inside a holder's namespaces: the child that unshare forked.
pub(crate) fn inside(holder: &Child) -> u32 {
    let path = format!("/proc/{0}/task/{0}/children", holder.id());
    let children = std::fs::read_to_string(path).expect("the holder lives");
    children
        .split_whitespace()
        .next()
        .and_then(|pid| pid.parse().ok())
        .expect("one child")
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn running_as_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
}
