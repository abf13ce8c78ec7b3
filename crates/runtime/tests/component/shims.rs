//! Shims with daemons of other versions, with attacking containers, and killed at any time.

use std::{
    fs,
    io::{Read, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    time::Duration,
};

use cri::v1;
use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::support::{Node, container_config, own_pids, sandbox_config};

/// A connection that speaks the protocol with literal messages, as a daemon of any version.
struct ByHand(UnixStream);

impl ByHand {
    fn connect(node: &Node, pod: &str) -> Self {
        let socket = node.state.join("s").join(pod).join("shim.sock");
        let stream = UnixStream::connect(socket).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        Self(stream)
    }

    fn ask(&mut self, request: &Value) -> Value {
        let text = request.to_string();
        let length = u32::try_from(text.len()).unwrap();
        self.0.write_all(&length.to_be_bytes()).unwrap();
        self.0.write_all(text.as_bytes()).unwrap();
        let mut length = [0; 4];
        self.0.read_exact(&mut length).unwrap();
        let mut reply = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut reply).unwrap();
        serde_json::from_slice(&reply).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_answers_daemons_that_are_older_and_newer() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "ages")).await;
    let container = node.run(&pod, container_config("ages", &["sleep"])).await;
    let mut daemon = ByHand::connect(&node, &pod);
    // The messages of version 1.
    let hello = daemon.ask(&json!({ "id": 1, "call": { "hello": { "version": 1 } } }));
    let held = &hello["reply"]["result"]["Ok"]["hello"]["containers"][0];
    assert_eq!(held["id"], json!(container), "{hello}");
    assert!(held["exit"].is_null() && held["pid"].as_i64().unwrap() > 1);
    // A call of a future version, and a known one with an unknown field.
    let unknown = daemon.ask(&json!({ "id": 2, "call": { "dance": { "steps": 3 } } }));
    assert_eq!(unknown["reply"]["id"], json!(2));
    let why = unknown["reply"]["result"]["Err"].as_str().unwrap();
    assert!(
        why.contains("unknown call") && why.contains("dance"),
        "{why}"
    );
    let call = json!({ "reopen_log": { "container": container, "compress": true } });
    let done = daemon.ask(&json!({ "id": 3, "call": call, "trace": "x" }));
    assert_eq!(done["reply"]["result"], json!({ "Ok": "done" }));
    // The daemon did not consider the shim dead.
    let output = node
        .exec(&container, &["/mainstay", "hello", "exit", "2"])
        .await;
    assert_eq!(output.exit_code, 2);
}

/// CVE-2019-5736: a container that gets hold of the runtime's program must not change it.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_cannot_overwrite_the_program_that_made_it() {
    let node = Node::start().await;
    let mut config = sandbox_config(&node, "attack");
    let options = v1::NamespaceOption {
        pid: v1::NamespaceMode::Node.into(),
        ..own_pids()
    };
    let context = &mut config.linux.as_mut().unwrap().security_context;
    context.as_mut().unwrap().namespace_options = Some(options.clone());
    let pod = node.run_sandbox(config).await;
    // The worst case: a privileged container in the host's PID namespace.
    let mut config = container_config("attack", &["sleep"]);
    let security = config
        .linux
        .as_mut()
        .unwrap()
        .security_context
        .as_mut()
        .unwrap();
    security.privileged = true;
    security.namespace_options = Some(options);
    let container = node.run(&pod, config.clone()).await;
    let program = format!("/proc/{}/exe", node.shim_pid());
    let sealed = fs::File::open(&program).unwrap();
    let before = sealed.metadata().unwrap().len();
    let seals = SealFlag::from_bits_retain(fcntl(sealed.as_fd(), FcntlArg::F_GET_SEALS).unwrap());
    let wanted = SealFlag::F_SEAL_SEAL
        | SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_WRITE;
    assert!(seals.contains(wanted), "{seals:?}");
    for how in ["write", "append"] {
        let command = ["/mainstay", "hello", how, &program, "overwritten"];
        let output = node.exec(&container, &command).await;
        assert_eq!(output.exit_code, 1, "{how}: {output:?}");
    }
    // A container that executes /proc/self/exe, as the attack does.
    config.metadata.as_mut().unwrap().name = "itself".into();
    config.command = vec!["/proc/self/exe".into()];
    config.args = vec![
        "hello".into(),
        "append".into(),
        "/proc/self/exe".into(),
        "x".into(),
    ];
    let itself = node.run(&pod, config).await;
    assert_ne!(node.wait_exit(&itself).await.exit_code, 0);
    assert_eq!(sealed.metadata().unwrap().len(), before);
    let next = node
        .run(&pod, container_config("next", &["exit", "9"]))
        .await;
    assert_eq!(node.wait_exit(&next).await.exit_code, 9);
}

/// One pod's life, which may be interrupted anywhere.
async fn live(cri: cri::Client, config: v1::PodSandboxConfig) -> Option<()> {
    let mut runtime = cri.runtime;
    let request = v1::RunPodSandboxRequest {
        config: Some(config),
        ..Default::default()
    };
    let pod = runtime.run_pod_sandbox(request).await.ok()?;
    let pod_sandbox_id = pod.into_inner().pod_sandbox_id;
    for args in [&["sleep"][..], &["exit", "1"][..], &["log", "5"][..]] {
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: pod_sandbox_id.clone(),
            config: Some(container_config(args[0], args)),
            sandbox_config: None,
        };
        let made = runtime.create_container(request).await.ok()?;
        let container_id = made.into_inner().container_id;
        let request = v1::StartContainerRequest { container_id };
        runtime.start_container(request).await.ok()?;
    }
    let stop = v1::StopPodSandboxRequest { pod_sandbox_id };
    runtime.stop_pod_sandbox(stop).await.ok()?;
    Some(())
}

/// Kills shims, or shims and the daemon at once, at seeded times of a pod's life. Afterwards
/// running containers accept exec, lost ones say so, everything can be removed and nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn shims_killed_at_any_moment_leave_nothing_that_cannot_be_removed() {
    let rounds = if std::env::var_os("MAINSTAY_SOAK").is_some() {
        200
    } else {
        20
    };
    let mut node = Node::start().await;
    let mut seed = 0x853c_49e6_748f_ea9b_u64;
    for round in 0..rounds {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let moment = Duration::from_micros(seed % 60_000);
        let with_daemon = seed >> 40 & 1 == 1;
        let what = format!("round {round} at {moment:?}, with daemon: {with_daemon}");
        let config = sandbox_config(&node, &format!("round{round}"));
        let life = tokio::spawn(live(node.cri.clone(), config));
        tokio::time::sleep(moment).await;
        if with_daemon {
            node.kill_daemon();
        }
        for shim in node.shim_pids() {
            let _ = kill(Pid::from_raw(shim), Signal::SIGKILL);
        }
        life.await.unwrap();
        if with_daemon {
            node.launch().await;
        }
        let mut runtime = node.cri.clone().runtime;
        let all = runtime.list_containers(v1::ListContainersRequest::default());
        for container in all.await.unwrap().into_inner().containers {
            let created = i32::from(v1::ContainerState::ContainerCreated);
            let status = node.status(&container.id).await;
            // Nothing runs without its shim, but the notice of its death may be delayed.
            if status.state != created {
                let status = node.wait_exit(&container.id).await;
                if status.reason == "ContainerStatusUnknown" {
                    assert_eq!(status.exit_code, 137, "{what}");
                }
            }
        }
        let pods = runtime.list_pod_sandbox(v1::ListPodSandboxRequest::default());
        for pod in pods.await.unwrap().into_inner().items {
            node.remove_sandbox(&pod.id).await;
        }
        node.wait_for(&format!("nothing left of {what}"), || {
            node.leftovers().is_empty()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_is_out_of_reach_of_terminals_and_service_managers() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "apart")).await;
    let container = node.run(&pod, container_config("apart", &["sleep"])).await;
    let shim = node.shim_pid();
    let session = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields = stat.rsplit(')').next().unwrap().split_whitespace();
        let numbers: Vec<i32> = fields.skip(1).take(3).map(|n| n.parse().unwrap()).collect();
        (numbers[1], numbers[2])
    };
    let daemon = node.daemon_pid().cast_signed();
    let (group, of_session) = session(shim);
    assert_ne!(group, session(daemon).0, "Ctrl-C goes to a process group");
    assert_ne!(of_session, session(daemon).1, "SIGHUP goes to a session");
    let cgroups = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let apart = format!("/{}/shims", node.cgroup());
    for line in cgroups(shim).lines() {
        let path = line.rsplit(':').next().unwrap();
        // A controller that is not mounted has only the root cgroup.
        assert!(path == apart || path == "/", "{line}");
    }
    assert!(cgroups(shim).contains(&apart));
    for signal in [
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGQUIT,
    ] {
        kill(Pid::from_raw(shim), signal).unwrap();
    }
    let output = node
        .exec(&container, &["/mainstay", "hello", "exit", "4"])
        .await;
    assert_eq!(output.exit_code, 4);
    assert_eq!(node.shim_pid(), shim);
}
