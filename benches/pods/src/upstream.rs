//! Upstream's kubelet with Debian's containerd, behind kube-apiserver and etcd, on a machine of its own. There is no
//! scheduler and no controller: the bench names the node in its pods, so upstream has fewer steps than we have.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use testkit::{Containerd, Machine, pause_archive};

/// The name of its node.
pub(crate) const NODE: &str = "upstream";
const TOKEN: &str = "bench-pods";
const START_TIMEOUT: Duration = Duration::from_secs(180);
/// Directories that no option of the kubelet excludes: the machine has its own.
const PRIVATE: &[&str] = &["/var/lib", "/var/log", "/opt"];

/// The running programs. Fields are dropped in this order.
pub(crate) struct Upstream {
    programs: Vec<Program>,
    containerd: Containerd,
    _cgroup: Cgroup,
    kubeconfig: PathBuf,
    machine: Machine,
}

/// A program that is killed when this is dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Upstream {
    /// Starts the programs of a directory, with room for `pods` on the node; `image` is an archive for containerd.
    pub(crate) fn start(
        programs: &Path,
        pods: usize,
        image: impl FnOnce(&Path) -> String,
    ) -> Result<Self> {
        let machine = Machine::new();
        for private in PRIVATE {
            let mounted = machine.run("mount", &["-t", "tmpfs", "tmpfs", private]);
            if !mounted.ok {
                bail!("{private}: {}", mounted.stderr);
            }
        }
        let dir = machine.dir().to_owned();
        let (pause, name) = pause_archive(&dir.join("pause"));
        let containerd = Containerd::on(&machine, &pause, name);
        containerd.import(&image(&dir.join("image")));
        let cgroup = Cgroup::create()?;
        let kubeconfig = write_files(&machine, &containerd, &cgroup, pods)?;
        let mut upstream = Self {
            programs: Vec::new(),
            containerd,
            _cgroup: cgroup,
            kubeconfig,
            machine,
        };
        upstream.run(programs, "etcd", &etcd_flags(&dir))?;
        let flags = apiserver_flags(&dir, upstream.machine.address());
        upstream.run(programs, "kube-apiserver", &flags)?;
        upstream.run(programs, "kubelet", &kubelet_flags(&dir))?;
        Ok(upstream)
    }

    /// Starts a program of the directory, or else one that is installed.
    fn run(&mut self, programs: &Path, name: &str, flags: &[String]) -> Result<()> {
        let given = programs.join(name);
        let program = match given.exists() {
            true => given.display().to_string(),
            false => name.to_owned(),
        };
        let log = File::create(self.machine.dir().join(format!("{name}.log")))?;
        let mut command = self.machine.command(&program);
        command.args(flags).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().with_context(|| program.clone())?;
        self.programs.push(Program(child));
        Ok(())
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub(crate) const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The processes of the node: the kubelet and containerd. Its shims, one for each pod, are not among them.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let kubelet = self.programs.last().map(|program| program.0.id());
        kubelet.into_iter().chain([self.containerd.pid()]).collect()
    }

    /// What went wrong, for a start that failed.
    pub(crate) fn logs(&self) -> String {
        let tail = |name: &str| {
            let text = fs::read_to_string(self.machine.dir().join(format!("{name}.log")));
            let text = text.unwrap_or_default();
            let lines: Vec<&str> = text.lines().rev().take(5).collect();
            let lines: Vec<&str> = lines.into_iter().rev().collect();
            format!("{name}:\n{}\n", lines.join("\n"))
        };
        ["etcd", "kube-apiserver", "kubelet"].map(tail).concat()
    }
}

/// Waits until the API answers and the node is ready, and creates what controllers would create for pods.
pub(crate) async fn prepare(client: kube::Client) -> Result<()> {
    use k8s_openapi::api::core::v1::{ConfigMap, Node, ServiceAccount};
    use kube::api::{Api, PostParams};
    let deadline = Instant::now() + START_TIMEOUT;
    let nodes: Api<Node> = Api::all(client.clone());
    loop {
        let problem = match nodes.get(NODE).await {
            Ok(node) if is_ready(&node) => break,
            Ok(_) => "not ready".to_owned(),
            Err(error) => error.to_string(),
        };
        if Instant::now() > deadline {
            bail!("upstream's node: {problem}");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let account = serde_json::from_value(json!({"metadata": {"name": "default"}}))?;
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
    accounts.create(&PostParams::default(), &account).await?;
    let roots = json!({"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": ""}});
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let roots = serde_json::from_value(roots)?;
    maps.create(&PostParams::default(), &roots).await?;
    Ok(())
}

fn is_ready(node: &k8s_openapi::api::core::v1::Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn words(flags: &[&str]) -> Vec<String> {
    flags.iter().map(|flag| (*flag).to_owned()).collect()
}

fn etcd_flags(dir: &Path) -> Vec<String> {
    // In memory, as our own cluster.
    let data = dir.join("disk/etcd").display().to_string();
    words(&["--data-dir", &data, "--log-level", "error"])
}

fn apiserver_flags(dir: &Path, address: &str) -> Vec<String> {
    let file = |name: &str| dir.join(name).display().to_string();
    words(&[
        "--etcd-servers=http://127.0.0.1:2379",
        &format!("--advertise-address={address}"),
        "--bind-address=127.0.0.1",
        &format!("--cert-dir={}", file("certificates")),
        "--service-cluster-ip-range=10.96.0.0/16",
        "--service-account-issuer=https://kubernetes.default.svc",
        &format!("--service-account-key-file={}", file("accounts.pub")),
        &format!(
            "--service-account-signing-key-file={}",
            file("accounts.key")
        ),
        &format!("--token-auth-file={}", file("tokens.csv")),
        "--authorization-mode=RBAC",
    ])
}

fn kubelet_flags(dir: &Path) -> Vec<String> {
    let file = |name: &str| dir.join(name).display().to_string();
    words(&[
        &format!("--config={}", file("kubelet.yaml")),
        &format!("--kubeconfig={}", file("kubeconfig")),
        &format!("--root-dir={}", file("disk/kubelet")),
        &format!("--cert-dir={}", file("disk/kubelet-pki")),
        &format!("--hostname-override={NODE}"),
    ])
}

/// Writes the files that the flags name; returns the kubeconfig.
fn write_files(
    machine: &Machine,
    containerd: &Containerd,
    cgroup: &Cgroup,
    pods: usize,
) -> Result<PathBuf> {
    let dir = machine.dir();
    let key = rcgen::KeyPair::generate()?;
    fs::write(dir.join("accounts.key"), key.serialize_pem())?;
    // kube-apiserver does not find the public key in a private key in PKCS #8.
    fs::write(dir.join("accounts.pub"), key.public_key_pem())?;
    let admin = format!("{TOKEN},admin,admin,system:masters\n");
    fs::write(dir.join("tokens.csv"), admin)?;
    let settings = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": false}},
        "containerRuntimeEndpoint": containerd.endpoint(),
        "cgroupDriver": "cgroupfs", "cgroupRoot": cgroup.path(),
        "failSwapOn": false, "failCgroupV1": false, "maxPods": pods + 20,
        "volumePluginDir": dir.join("disk/plugins"),
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%"},
    });
    // JSON is YAML.
    fs::write(dir.join("kubelet.yaml"), settings.to_string())?;
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{"name": "bench", "cluster":
            {"server": "https://127.0.0.1:6443", "insecure-skip-tls-verify": true}}],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "admin"}}],
    });
    let file = dir.join("kubeconfig");
    fs::write(&file, kubeconfig.to_string())?;
    Ok(file)
}

/// A cgroup for the pods, so that the host's own stay as they are. Removed when dropped.
struct Cgroup {
    name: String,
}

impl Cgroup {
    fn create() -> Result<Self> {
        let name = format!("bench-pods-{}", std::process::id());
        let cgroup = Self { name };
        for root in cgroup.roots() {
            fs::create_dir(&root).with_context(|| root.display().to_string())?;
        }
        Ok(cgroup)
    }

    fn path(&self) -> String {
        format!("/{}", self.name)
    }

    /// Its directory in each hierarchy.
    fn roots(&self) -> Vec<PathBuf> {
        let top = Path::new("/sys/fs/cgroup");
        if top.join("cgroup.controllers").exists() {
            return vec![top.join(&self.name)];
        }
        let entries = fs::read_dir(top).into_iter().flatten().flatten();
        // Some hierarchies have a second name, which is a link.
        let hierarchies = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        hierarchies
            .map(|entry| entry.path().join(&self.name))
            .collect()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for root in self.roots() {
            remove(&root);
        }
    }
}

/// Kills what is left in a cgroup and removes it, from the innermost outwards.
fn remove(cgroup: &Path) {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while cgroup.exists() && fs::remove_dir(cgroup).is_err() && Instant::now() < deadline {
        let left = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
        for pid in left.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            let pid = rustix::process::Pid::from_raw(pid);
            // A process that has ended meanwhile is as good.
            let _ =
                pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
