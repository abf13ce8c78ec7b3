//! The cost of idle pods: memory of their shims and containers, of the kernel and of the daemon, in
//! total, and the idle daemon's CPU time.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result};
use cri::v1;

use crate::{
    life::{container, sandbox},
    ours::Ours,
};

/// The number of pods created or removed concurrently.
const WIDTH: usize = 8;

/// How long the idle daemon is measured.
const IDLE: Duration = Duration::from_secs(30);

/// Creates the pods, measures them and removes them.
pub(crate) async fn weigh(ours: &Ours, pods: usize) -> Result<()> {
    // The first pod pays for what all share.
    let first = start(ours, 0).await?;
    settle().await;
    let before = Scales::read(ours)?;
    let begun = std::time::Instant::now();
    let mut made = in_parallel(ours, (1..=pods).collect(), start).await?;
    let making = begun.elapsed();
    settle().await;
    let after = Scales::read(ours)?;
    let busy = ours.cpu()?;
    tokio::time::sleep(IDLE).await;
    let busy = (ours.cpu()? - busy) / IDLE.as_secs_f64() * 100.0;
    let each = |before: u64, after: u64| (after as f64 - before as f64) / pods as f64;
    println!("{pods} idle pods, made in {:.1} s", making.as_secs_f64());
    for (what, before, after) in [
        ("all told (MemAvailable)", after.available, before.available),
        ("shim, PSS", before.shims.pss, after.shims.pss),
        ("shim, RSS", before.shims.rss, after.shims.rss),
        ("container, PSS", before.inside.pss, after.inside.pss),
        ("containers' cgroups", before.cgroups, after.cgroups),
        ("kernel, slab", before.slab, after.slab),
        ("kernel, per processor", before.percpu, after.percpu),
        ("kernel, page tables", before.tables, after.tables),
        ("kernel, stacks", before.stacks, after.stacks),
        ("daemon, PSS", before.daemon.pss, after.daemon.pss),
    ] {
        println!("{what:>26} {:>9.1} KiB each", each(before, after));
    }
    println!("{:>26} {:>9.2} % of a core over {IDLE:?}", "daemon", busy);
    made.push(first);
    let begun = std::time::Instant::now();
    in_parallel(ours, made, stop).await?;
    println!("removed in {:.1} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Shims release memory half a second after their last activity.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(2)).await;
}

async fn in_parallel<T, U, F>(
    ours: &Ours,
    items: Vec<T>,
    work: impl Fn(&Ours, T) -> F + Copy,
) -> Result<Vec<U>>
where
    F: Future<Output = Result<U>>,
{
    let mut done = Vec::new();
    let mut items = items.into_iter().peekable();
    while items.peek().is_some() {
        let batch: Vec<_> = items
            .by_ref()
            .take(WIDTH)
            .map(|item| work(ours, item))
            .collect();
        for result in futures::future::join_all(batch).await {
            done.push(result?);
        }
    }
    Ok(done)
}

fn start(ours: &Ours, number: usize) -> impl Future<Output = Result<String>> + use<> {
    let subject = ours.subject.clone();
    async move {
        let mut runtime = subject.cri.clone().runtime;
        let config = sandbox(&subject, &format!("idle-{number}"));
        let request = v1::RunPodSandboxRequest {
            config: Some(config.clone()),
            ..Default::default()
        };
        let made = runtime.run_pod_sandbox(request).await?;
        let pod_sandbox_id = made.into_inner().pod_sandbox_id;
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: pod_sandbox_id.clone(),
            config: Some(container(&subject, &config)),
            sandbox_config: None,
        };
        let made = runtime.create_container(request).await?;
        let container_id = made.into_inner().container_id;
        let request = v1::StartContainerRequest { container_id };
        runtime.start_container(request).await?;
        Ok(pod_sandbox_id)
    }
}

fn stop(ours: &Ours, pod_sandbox_id: String) -> impl Future<Output = Result<()>> + use<> {
    let mut runtime = ours.subject.cri.clone().runtime;
    async move {
        let request = v1::StopPodSandboxRequest {
            pod_sandbox_id: pod_sandbox_id.clone(),
        };
        runtime.stop_pod_sandbox(request).await?;
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id };
        runtime.remove_pod_sandbox(request).await?;
        Ok(())
    }
}

/// Memory in KiB.
#[derive(Default, Clone, Copy)]
struct Resident {
    /// Private memory, and the proportional share of shared memory.
    pss: u64,
    rss: u64,
}

impl Resident {
    fn of(pids: impl IntoIterator<Item = u32>) -> Self {
        let mut sum = Self::default();
        for pid in pids {
            // It may have ended.
            let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
            let rollup = rollup.unwrap_or_default();
            sum.pss += kibibytes(&rollup, "Pss:").unwrap_or(0);
            sum.rss += kibibytes(&rollup, "Rss:").unwrap_or(0);
        }
        sum
    }
}

/// All measurements, in KiB.
struct Scales {
    available: u64,
    slab: u64,
    percpu: u64,
    tables: u64,
    stacks: u64,
    cgroups: u64,
    shims: Resident,
    inside: Resident,
    daemon: Resident,
}

impl Scales {
    fn read(ours: &Ours) -> Result<Self> {
        let table = fs::read_to_string("/proc/meminfo")?;
        let line = |name: &str| kibibytes(&table, name).with_context(|| name.to_owned());
        Ok(Self {
            available: line("MemAvailable:")?,
            slab: line("Slab:")?,
            percpu: line("Percpu:")?,
            tables: line("PageTables:")?,
            stacks: line("KernelStack:")?,
            cgroups: ours.cgroup_usage() / 1024,
            shims: Resident::of(ours.processes("shims")),
            inside: Resident::of(ours.processes("pods")),
            daemon: Resident::of([ours.daemon.id()]),
        })
    }
}

fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}
