//! A machine that systemd boots, with Mainstay as its service: installed, upgraded, killed,
//! stopped, booted again and removed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use e2e::container_ids;
use serde_json::Value;
use testkit::{Machine, Ran, eventually, stamped};

const SYSTEMD: &str = "/lib/systemd/systemd";
const NEW: &str = "v1.37.0";

/// A machine whose first process is systemd.
struct Booted {
    /// `unshare`, which ends with systemd.
    process: Child,
    cgroup: String,
    // Dropped after the processes in it.
    machine: Machine,
    binaries: [String; 2],
}

impl Booted {
    fn new() -> Self {
        let machine = Machine::new();
        let old = std::env::var("MAINSTAY_BIN").expect("MAINSTAY_BIN is set");
        let binaries = [old, stamped(machine.dir(), NEW)];
        let cgroup = format!("story-{}", std::process::id());
        let process = boot(&machine, &cgroup, "basic.target", &binaries);
        let booted = Self {
            process,
            cgroup,
            machine,
            binaries,
        };
        booted.wait_for_systemd();
        booted
    }

    /// The first process of the machine.
    fn init(&self) -> Option<String> {
        let path = format!("/proc/{0}/task/{0}/children", self.process.id());
        let children = fs::read_to_string(path).ok()?;
        children.split_whitespace().next().map(str::to_owned)
    }

    fn run(&self, command: &str) -> Ran {
        let init = self.init().expect("systemd runs");
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let ran = Command::new("nsenter")
            .args(["--target", &init, "--all", "env", "-i", path, "HOME=/root"])
            .args(["sh", "-c", command])
            .stdin(Stdio::null())
            .output();
        ran.expect("nsenter starts").into()
    }

    fn wait_for_systemd(&self) {
        eventually("systemd", || {
            let init = self.init().ok_or("not started")?;
            let name = fs::read_to_string(format!("/proc/{init}/comm")).unwrap_or_default();
            if name.trim() != "systemd" {
                return Err(name);
            }
            let ran = self.run("systemctl is-system-running");
            match ran.stdout.trim() {
                "running" | "degraded" => Ok(()),
                _ => Err(format!("{}{}", ran.stdout, ran.stderr)),
            }
        });
    }

    /// Shuts the machine down and boots it again.
    fn reboot(&mut self) {
        self.run("systemctl poweroff");
        self.process.wait().expect("it ends");
        let (machine, binaries) = (&self.machine, &self.binaries);
        self.process = boot(machine, &self.cgroup, "multi-user.target", binaries);
        self.wait_for_systemd();
    }

    fn main_process(&self) -> String {
        let show = "systemctl show --property=MainPID --value mainstay";
        self.run(show).success().trim().to_owned()
    }

    /// Waits until the node is Ready with this version.
    fn wait_for_node(&self, version: &str) {
        let path = "jsonpath={.status.nodeInfo.kubeletVersion} \
                    {.status.conditions[?(@.type==\"Ready\")].status}";
        let get = format!("kubectl get node story -o '{path}'");
        eventually(&format!("a Ready node of {version}"), || {
            let ran = self.run(&get);
            match ran.stdout.starts_with(version) && ran.stdout.ends_with("True") {
                true => Ok(()),
                false => Err(format!("{}{}", ran.stdout, ran.stderr)),
            }
        });
    }

    fn pods(&self) -> Vec<Value> {
        eventually("the pods to run", || {
            let ran = self.run("kubectl get pods -o json");
            let list: Value = serde_json::from_str(&ran.stdout).map_err(|_| ran.stderr)?;
            let pods = list["items"].as_array().cloned().unwrap_or_default();
            match pods.len() == 1 && pods.iter().all(e2e::is_ready) {
                true => Ok(pods),
                false => Err(list.to_string()),
            }
        })
    }

    fn containers(&self) -> Vec<Vec<String>> {
        self.pods().iter().map(container_ids).collect()
    }
}

fn boot(machine: &Machine, cgroup: &str, target: &str, binaries: &[String; 2]) -> Child {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/systemd/start.sh");
    let mut command = machine.command("sh");
    let directory = machine.dir().join("systemd");
    fs::create_dir_all(&directory).expect("a directory");
    command.arg(script).arg(directory).args([cgroup, target]);
    command.args(binaries).spawn().expect("nsenter starts")
}

impl Drop for Booted {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let roots = fs::read_dir("/sys/fs/cgroup").into_iter().flatten();
        let roots = roots.flatten().map(|root| root.path());
        let roots = roots.chain([PathBuf::from("/sys/fs/cgroup")]);
        let cgroups: Vec<PathBuf> = roots.map(|root| root.join(&self.cgroup)).collect();
        // Processes are killed with systemd, but not at once.
        let deadline = Instant::now() + Duration::from_secs(10);
        while cgroups.iter().any(|path| path.exists()) && Instant::now() < deadline {
            cgroups.iter().for_each(|path| remove_cgroup(path));
        }
    }
}

/// Removes a cgroup with those below it.
fn remove_cgroup(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    let _ = fs::remove_dir(path);
}

#[test]
fn systemd_starts_upgrades_and_restarts_the_service_while_pods_run() {
    if !Path::new(SYSTEMD).exists() {
        reference::skip("needs systemd");
        return;
    }
    let mut machine = Booted::new();
    let installed = machine.run("/tmp/mainstay-old install").success();
    assert!(installed.contains("Started"), "{installed}");
    machine.wait_for_node("v1.36");
    let create = "kubectl create deployment web --image=mainstay.local/hello";
    machine.run(create).success();
    let containers = machine.containers();

    // Upgrade.
    let installed = machine.run("/tmp/mainstay-new install").success();
    assert!(installed.contains("systemctl restart"), "{installed}");
    machine.run("systemctl restart mainstay").success();
    machine.wait_for_node(NEW);
    assert_eq!(machine.containers(), containers, "pods were touched");

    // A crash.
    let before = machine.main_process();
    machine.run(&format!("kill -KILL {before}")).success();
    eventually("systemd to restart the service", || {
        let state = machine.run("systemctl is-active mainstay").stdout;
        match machine.main_process() {
            after if after != before && state.trim() == "active" => Ok(()),
            same => Err(format!("{same} {state}")),
        }
    });
    assert_eq!(machine.containers(), containers, "pods were touched");

    // A stop.
    machine.run("systemctl stop mainstay").success();
    machine.run("systemctl start mainstay").success();
    assert_eq!(machine.containers(), containers, "pods were touched");
    let logs = machine.run("mainstay logs").success();
    assert!(logs.contains("The cluster is up"), "{logs}");

    machine.reboot();
    machine.wait_for_node(NEW);
    assert_ne!(machine.containers(), containers, "a boot starts containers");

    machine.run("systemctl stop mainstay").success();
    machine.run("mainstay reset --yes").success();
    machine.run("mainstay uninstall").success();
    let left = "systemctl cat mainstay || pgrep -f '[s]him|[h]ello' || nft list tables | grep .";
    let left = machine.run(left);
    assert!(!left.ok, "{}", left.stdout);
}
