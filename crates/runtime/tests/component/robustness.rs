//! Daemons and shims killed at any time.

use std::time::Duration;

use cri::v1;

use crate::support::{Node, container_config, sandbox_config};

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_shims_containers_are_killed_and_reported_as_unknown() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "orphan")).await;
    let container = node.run(&pod, container_config("orphan", &["sleep"])).await;
    let pid = node.pid(&container).await;
    let shim = node.shim_pid();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(shim),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    let status = node.wait_exit(&container).await;
    assert_eq!(
        (status.exit_code, status.reason.as_str()),
        (137, "ContainerStatusUnknown")
    );
    node.wait_for("its process to be gone", || {
        !std::path::Path::new(&format!("/proc/{pid}")).exists()
    })
    .await;
    let request = v1::PodSandboxStatusRequest {
        pod_sandbox_id: pod.clone(),
        verbose: false,
    };
    let status = node
        .cri
        .clone()
        .runtime
        .pod_sandbox_status(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        status.status.unwrap().state,
        i32::from(v1::PodSandboxState::SandboxNotready)
    );
    node.remove_sandbox(&pod).await;
    node.wait_for("everything to be gone", || node.leftovers().is_empty())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_that_no_daemon_saw_is_found_later() {
    let mut node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "alone")).await;
    let container = node
        .run(&pod, container_config("alone", &["sleep", "1"]))
        .await;
    let pid = node.pid(&container).await;
    node.kill_daemon();
    node.wait_for("its end", || {
        !std::path::Path::new(&format!("/proc/{pid}")).exists()
    })
    .await;
    node.launch().await;
    let status = node.status(&container).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (0, "Completed"));
    assert!(status.finished_at > status.started_at);
}

/// Kills the daemon at seeded times of a pod's life; afterwards the pod can always be removed and
/// nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_killed_at_any_moment_leaves_nothing_that_cannot_be_removed() {
    let rounds = if std::env::var_os("MAINSTAY_SOAK").is_some() {
        200
    } else {
        20
    };
    let mut node = Node::start().await;
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..rounds {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let moment = Duration::from_micros(seed % 150_000);
        let name = format!("round{round}");
        let life = {
            let (cri, config) = (node.cri.clone(), sandbox_config(&node, &name));
            tokio::spawn(async move {
                let mut runtime = cri.runtime;
                let request = v1::RunPodSandboxRequest {
                    config: Some(config),
                    ..Default::default()
                };
                let Ok(pod) = runtime.run_pod_sandbox(request).await else {
                    return;
                };
                let pod = pod.into_inner().pod_sandbox_id;
                for args in [&["sleep"][..], &["exit", "1"][..]] {
                    let request = v1::CreateContainerRequest {
                        pod_sandbox_id: pod.clone(),
                        config: Some(container_config(args[0], args)),
                        sandbox_config: None,
                    };
                    let Ok(made) = runtime.create_container(request).await else {
                        return;
                    };
                    let container_id = made.into_inner().container_id;
                    let request = v1::StartContainerRequest { container_id };
                    if runtime.start_container(request).await.is_err() {
                        return;
                    }
                }
                let _ = runtime
                    .stop_pod_sandbox(v1::StopPodSandboxRequest {
                        pod_sandbox_id: pod,
                    })
                    .await;
            })
        };
        tokio::time::sleep(moment).await;
        node.kill_daemon();
        life.await.unwrap();
        node.launch().await;
        let mut runtime = node.cri.clone().runtime;
        let pods = runtime
            .list_pod_sandbox(v1::ListPodSandboxRequest::default())
            .await
            .unwrap();
        let containers = runtime
            .list_containers(v1::ListContainersRequest::default())
            .await
            .unwrap();
        for container in &containers.into_inner().containers {
            // A container with the state running accepts exec.
            if container.state == i32::from(v1::ContainerState::ContainerRunning) {
                let output = node
                    .exec(&container.id, &["/mainstay", "hello", "exit", "3"])
                    .await;
                assert_eq!(output.exit_code, 3, "round {round} at {moment:?}");
            }
        }
        for pod in pods.into_inner().items {
            node.remove_sandbox(&pod.id).await;
        }
        node.wait_for(
            &format!("nothing left of round {round} at {moment:?}"),
            || node.leftovers().is_empty(),
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_pod_life_cycles_leak_nothing() {
    let cycles = if std::env::var_os("MAINSTAY_SOAK").is_some() {
        1000
    } else {
        20
    };
    let node = Node::start().await;
    let fds = || {
        std::fs::read_dir(format!("/proc/{}/fd", node.daemon_pid()))
            .unwrap()
            .count()
    };
    let mut before = 0;
    for cycle in 0..cycles {
        let pod = node.run_sandbox(sandbox_config(&node, "cycle")).await;
        let container = node.run(&pod, container_config("cycle", &["exit"])).await;
        node.wait_exit(&container).await;
        node.remove_sandbox(&pod).await;
        if cycle == 4 {
            before = fds();
        }
    }
    node.wait_for("everything to be gone", || node.leftovers().is_empty())
        .await;
    node.wait_for("descriptors to be closed", || fds() <= before + 2)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_stays_small() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "small")).await;
    let container = node.run(&pod, container_config("small", &["sleep"])).await;
    for _ in 0..5 {
        node.exec(&container, &["/mainstay", "hello", "log", "2000"])
            .await;
    }
    let kibibytes = |name: &str| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", node.shim_pid())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    // Unoptimized code is spread over more pages.
    let most = if cfg!(debug_assertions) {
        5 * 1024
    } else {
        3 * 1024
    };
    node.wait_for("memory to be given back", || kibibytes("VmRSS:") < most)
        .await;
    assert!(kibibytes("RssAnon:") < 512, "what it has alone");
    // It must still work after releasing memory.
    let output = node
        .exec(&container, &["/mainstay", "hello", "exit", "6"])
        .await;
    assert_eq!(output.exit_code, 6);
}
