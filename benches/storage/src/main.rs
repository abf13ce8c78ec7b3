//! How much longer pods take to start with a claim of the default class: a StatefulSet creates all
//! of them at once, first without claims, then with one each, on a cluster of their own. Also
//! prints how long it takes until everything is removed, including volumes and data, and the CPU
//! time of the daemon until all pods run: other load of the machine changes it little.
//!
//! `MAINSTAY_BIN=target/…/release/mainstay cargo run --release -p bench-storage` (as root)
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "it prints its results")]

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Parser;
use testkit::{Cluster, until};

/// What to measure.
#[derive(Parser)]
struct Arguments {
    /// The number of pods at once.
    #[arg(long, default_value_t = 200)]
    pods: usize,
    /// The number of rounds.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// The timeout of pods.
const PATIENCE: Duration = Duration::from_secs(600);

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let cluster = start(arguments.pods)?;
    // Warms up images, caches and connections.
    measure(&cluster, 5, true)?;
    println!(
        "{:>6} {:>10} {:>10} {:>7} {:>10} {:>10} {:>7} {:>12}",
        "pods", "without", "with", "ratio", "CPU", "CPU with", "ratio", "all removed"
    );
    for _ in 0..arguments.rounds {
        let plain = measure(&cluster, arguments.pods, false)?;
        let claimed = measure(&cluster, arguments.pods, true)?;
        let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
        let ratio = |time: fn(&Round) -> Duration| {
            time(&claimed).as_secs_f64() / time(&plain).as_secs_f64()
        };
        println!(
            "{:>6} {:>10} {:>10} {:>6.2}x {:>10} {:>10} {:>6.2}x {:>12}",
            arguments.pods,
            seconds(plain.running),
            seconds(claimed.running),
            ratio(|round| round.running),
            seconds(plain.cpu),
            seconds(claimed.cpu),
            ratio(|round| round.cpu),
            seconds(claimed.removed)
        );
    }
    Ok(())
}

/// The times of a round.
struct Round {
    /// Until all pods run.
    running: Duration,
    /// The daemon's CPU time until then.
    cpu: Duration,
    /// From the deletion until everything is removed.
    removed: Duration,
}

/// The CPU time that a process has used.
fn cpu_time(process: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name before may have spaces.
    let (_, fields) = stat.rsplit_once(')').unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(|field| field.parse().unwrap_or(0)).sum();
    Ok(Duration::from_millis(ticks * 10))
}

/// A cluster whose node has room for that many pods.
fn start(pods: usize) -> Result<Cluster> {
    let mut cluster = Cluster::stopped(&["--log-level", "warn"]);
    let file = cluster.machine().dir().join("room.yaml");
    let text = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: {}\n\
         evictionHard: {{memory.available: 50Mi, nodefs.available: 1%}}\n",
        pods + 20
    );
    std::fs::write(&file, text)?;
    cluster.add_flag("--kubelet-config", &file.display().to_string());
    cluster.start();
    Ok(cluster)
}

fn measure(cluster: &Cluster, pods: usize, with_claims: bool) -> Result<Round> {
    let used = cpu_time(cluster.pid())?;
    let begun = Instant::now();
    let applied = cluster.kubectl_stdin(&["create", "-f", "-"], &set(pods, with_claims));
    if !applied.ok {
        bail!("{}", applied.stderr);
    }
    let ready = format!("--for=jsonpath={{.status.readyReplicas}}={pods}");
    let timeout = format!("--timeout={}s", PATIENCE.as_secs());
    let waited = cluster.kubectl(&["wait", "statefulset/load", &ready, &timeout]);
    if !waited.ok {
        bail!("{}", waited.stderr);
    }
    let running = begun.elapsed();
    let cpu = cpu_time(cluster.pid())?.saturating_sub(used);
    let begun = Instant::now();
    let deleted = cluster.kubectl(&["delete", "statefulset/load", "--wait=false"]);
    if !deleted.ok {
        bail!("{}", deleted.stderr);
    }
    until("everything to be gone", PATIENCE, || {
        let left = cluster.kubectl(&["get", "pods,pvc,pv,statefulset", "-o", "name"]);
        match left.stdout.lines().count() {
            0 if left.ok => Ok(()),
            count => Err(format!("{count} objects left; {}", left.stderr)),
        }
    });
    Ok(Round {
        running,
        cpu,
        removed: begun.elapsed(),
    })
}

fn set(pods: usize, with_claims: bool) -> String {
    let (mount, template) = match with_claims {
        true => (
            "volumeMounts: [{name: data, mountPath: /data}]",
            "volumeClaimTemplates:\n  - metadata: {name: data}\n    spec: {accessModes: [ReadWriteOnce], \
             resources: {requests: {storage: 1Mi}}}",
        ),
        false => ("", ""),
    };
    format!(
        r#"apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: load}}
spec:
  replicas: {pods}
  podManagementPolicy: Parallel
  persistentVolumeClaimRetentionPolicy: {{whenDeleted: Delete}}
  selector: {{matchLabels: {{app: load}}}}
  template:
    metadata: {{labels: {{app: load}}}}
    spec:
      terminationGracePeriodSeconds: 1
      automountServiceAccountToken: false
      containers:
      - name: load
        image: mainstay.local/hello
        args: [sleep, "360843"]
        {mount}
  {template}
"#
    )
}
