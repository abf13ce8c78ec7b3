//! The load: the same calls for every runtime.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use cri::v1::{self, runtime_service_client::RuntimeServiceClient};

type Runtime = RuntimeServiceClient<cri::Deadline>;

/// A runtime to measure.
#[derive(Clone)]
pub(crate) struct Subject {
    pub cri: cri::Client,
    pub image: String,
    pub cgroup_parent: String,
    /// Whether pods use the host network, for lack of a pod network.
    pub host_network: bool,
    pub logs: String,
}

pub(crate) const STEPS: &[&str] = &["sandbox", "create", "start", "exec", "stop", "remove"];

/// Medians in milliseconds.
pub(crate) struct Measured {
    pub steps: [f64; 6],
    /// A whole pod life.
    pub life: f64,
    /// The total wall time divided by the number of pods.
    pub total_per_life: f64,
}

pub(crate) async fn measure(subject: &Subject, lives: usize, width: usize) -> Result<Measured> {
    live(subject, "warm").await?;
    let next = Arc::new(AtomicUsize::new(0));
    let begun = Instant::now();
    let workers: Vec<_> = (0..width)
        .map(|_| {
            let (subject, next) = (subject.clone(), next.clone());
            tokio::spawn(async move {
                let mut seen = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= lives.max(width) {
                        return anyhow::Ok(seen);
                    }
                    seen.push(live(&subject, &format!("life-{width}-{number}")).await?);
                }
            })
        })
        .collect();
    let mut all = Vec::new();
    for worker in workers {
        all.extend(worker.await??);
    }
    let total = begun.elapsed().as_secs_f64() * 1000.0 / all.len() as f64;
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let mut steps = [0.0; 6];
    for (index, step) in steps.iter_mut().enumerate() {
        *step = median(all.iter().map(|life| life[index]).collect());
    }
    Ok(Measured {
        steps,
        life: median(all.iter().map(|life| life.iter().sum()).collect()),
        total_per_life: total,
    })
}

pub(crate) fn sandbox(subject: &Subject, name: &str) -> v1::PodSandboxConfig {
    let network = if subject.host_network {
        v1::NamespaceMode::Node
    } else {
        v1::NamespaceMode::Pod
    };
    let options = v1::NamespaceOption {
        network: network.into(),
        pid: v1::NamespaceMode::Container.into(),
        ..Default::default()
    };
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: name.into(),
            uid: name.into(),
            namespace: "bench".into(),
            attempt: 0,
        }),
        hostname: if subject.host_network {
            String::new()
        } else {
            name.into()
        },
        log_directory: format!("{}/{name}", subject.logs),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: subject.cgroup_parent.clone(),
            security_context: Some(v1::LinuxSandboxSecurityContext {
                namespace_options: Some(options),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub(crate) fn container(subject: &Subject, pod: &v1::PodSandboxConfig) -> v1::ContainerConfig {
    let options = pod
        .linux
        .as_ref()
        .and_then(|l| l.security_context.clone()?.namespace_options);
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: "main".into(),
            attempt: 0,
        }),
        image: Some(v1::ImageSpec {
            image: subject.image.clone(),
            ..Default::default()
        }),
        command: ["/mainstay", "hello", "sleep"].map(str::to_owned).into(),
        log_path: "main.log".into(),
        linux: Some(v1::LinuxContainerConfig {
            security_context: Some(v1::LinuxContainerSecurityContext {
                namespace_options: options,
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// One pod's life, step by step.
async fn live(subject: &Subject, name: &str) -> Result<[f64; 6]> {
    let mut runtime = subject.cri.clone().runtime;
    let config = sandbox(subject, name);
    let mut times = [0.0; 6];
    let mut last = Instant::now();
    let mut lap = |step: usize| {
        times[step] = last.elapsed().as_secs_f64() * 1000.0;
        last = Instant::now();
    };
    let request = v1::RunPodSandboxRequest {
        config: Some(config.clone()),
        ..Default::default()
    };
    let pod = runtime
        .run_pod_sandbox(request)
        .await?
        .into_inner()
        .pod_sandbox_id;
    lap(0);
    let request = v1::CreateContainerRequest {
        pod_sandbox_id: pod.clone(),
        config: Some(container(subject, &config)),
        sandbox_config: Some(config),
    };
    let id = runtime
        .create_container(request)
        .await?
        .into_inner()
        .container_id;
    lap(1);
    runtime
        .start_container(v1::StartContainerRequest {
            container_id: id.clone(),
        })
        .await?;
    lap(2);
    // The first process of a container does not get a signal that it does not handle yet.
    while !asks_for_sigterm(&mut runtime, &id).await? {}
    lap(3);
    runtime
        .stop_container(v1::StopContainerRequest {
            container_id: id.clone(),
            timeout: 10,
        })
        .await?;
    runtime
        .stop_pod_sandbox(v1::StopPodSandboxRequest {
            pod_sandbox_id: pod.clone(),
        })
        .await?;
    lap(4);
    runtime
        .remove_container(v1::RemoveContainerRequest { container_id: id })
        .await?;
    runtime
        .remove_pod_sandbox(v1::RemovePodSandboxRequest {
            pod_sandbox_id: pod,
        })
        .await?;
    lap(5);
    Ok(times)
}

/// Runs a command in the container that tells whether its program handles SIGTERM.
async fn asks_for_sigterm(runtime: &mut Runtime, container: &str) -> Result<bool> {
    let cmd = ["/mainstay", "hello", "cat", "/proc/1/status"];
    let request = v1::ExecSyncRequest {
        container_id: container.to_owned(),
        cmd: cmd.map(str::to_owned).into(),
        timeout: 30,
    };
    let output = runtime.exec_sync(request).await?.into_inner();
    ensure!(
        output.exit_code == 0,
        "the command ended with {}",
        output.exit_code
    );
    let status = String::from_utf8_lossy(&output.stdout);
    let blocked = status
        .lines()
        .find_map(|line| line.strip_prefix("SigBlk:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .context("no SigBlk")?;
    Ok(blocked & (1 << (SIGTERM - 1)) != 0)
}

const SIGTERM: u32 = 15;
