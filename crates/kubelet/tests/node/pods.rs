//! Edge cases of a pod's life: admission, restarts, status and cleanup.

use k8s_openapi::api::core::v1::{Node, Secret};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{runtime::Fake, support::TestNode};

fn one(container: Value) -> Value {
    let mut container = container;
    container["image"] = "here:1".into();
    json!({"containers": [container]})
}

fn exists(path: &std::path::Path) -> Value {
    json!({"exec": {"command": ["exists", path.to_string_lossy()]}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_that_the_node_got_just_now_counts() {
    let node = TestNode::start().await;
    let nodes: Api<Node> = Api::all(node.client.clone());
    let label = json!({"metadata": {"labels": {"disk": "fast"}}});
    nodes
        .patch("node", &PatchParams::default(), &Patch::Merge(&label))
        .await
        .unwrap();
    let mut spec = one(json!({"name": "a"}));
    spec["nodeSelector"] = json!({"disk": "fast"});
    node.create("fits", spec.clone()).await;
    node.shows("fits", "/phase", "Running").await;
    spec["nodeSelector"] = json!({"disk": "slow"});
    node.create("other", spec).await;
    node.shows("other", "/reason", "NodeAffinity").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_pods_that_want_one_host_port_the_second_fails_and_later_fits() {
    let node = TestNode::start().await;
    let spec = || one(json!({"name": "a", "ports": [{"containerPort": 80, "hostPort": 8080}]}));
    node.create("first", spec()).await;
    node.shows("first", "/phase", "Running").await;
    node.create("second", spec()).await;
    node.shows("second", "/phase", "Failed").await;
    let status = node.status("second").await;
    assert_eq!(status["reason"], "NodePorts");
    assert!(status["containerStatuses"].is_null(), "{status}");
    node.pods()
        .delete("first", &DeleteParams::default())
        .await
        .unwrap();
    node.wait("the first to go", || async {
        node.get("first").await.is_none()
    })
    .await;
    node.create("third", spec()).await;
    node.shows("third", "/phase", "Running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_deleted_without_grace_frees_its_resources_while_it_still_stops() {
    let node = TestNode::start_changed(Fake::new(), |kubelet, _| kubelet.max_pods = 1).await;
    node.runtime.state.lock().hanging = vec!["hang".into()];
    let hook = json!({"preStop": {"exec": {"command": ["hang"]}}});
    node.create("first", one(json!({"name": "a", "lifecycle": hook})))
        .await;
    node.shows("first", "/phase", "Running").await;
    let pods = node.pods();
    pods.delete("first", &DeleteParams::default())
        .await
        .unwrap();
    node.wait("the hook to begin", || async {
        !node.runtime.state.lock().executed.is_empty()
    })
    .await;
    let force = DeleteParams::default().grace_period(0);
    pods.delete("first", &force).await.unwrap();
    node.create("second", one(json!({"name": "b"}))).await;
    node.shows("second", "/phase", "Running").await;
    let stops = node.runtime.state.lock().stops.clone();
    assert!(stops.is_empty(), "the hook still runs: {stops:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_pre_stop_hooks_run_at_once_and_sidecars_end_after_the_main_containers() {
    let node = TestNode::start().await;
    let named = |name: &str| {
        let hook = json!({"preStop": {"exec": {"command": [format!("leave-{name}")]}}});
        json!({"name": name, "image": "here:1", "lifecycle": hook})
    };
    let sidecar = |name: &str| {
        let mut container = named(name);
        container["restartPolicy"] = "Always".into();
        container
    };
    let spec = json!({"initContainers": [sidecar("first"), sidecar("second")],
        "containers": [named("main")]});
    node.create("p", spec).await;
    node.shows("p", "/phase", "Running").await;
    node.runtime.state.lock().holds_stops = true;
    let params = DeleteParams::default();
    node.pods().delete("p", &params).await.unwrap();
    node.wait("all hooks to run", || async {
        node.runtime.state.lock().executed.len() == 3
    })
    .await;
    node.wait("the main container to be stopped", || async {
        !node.runtime.state.lock().stops.is_empty()
    })
    .await;
    let stopped = || -> Vec<String> {
        let stops = node.runtime.state.lock().stops.clone();
        stops.into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(stopped(), ["main"]);
    node.runtime.state.lock().holds_stops = false;
    node.wait("the pod to go", || async { node.get("p").await.is_none() })
        .await;
    assert_eq!(stopped()[..3], ["main", "second", "first"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_fails_its_liveness_probe_restarts_though_it_ends_well() {
    let node = TestNode::start().await;
    node.runtime.state.lock().stop_code = Some(0);
    let alive = node.path("alive");
    std::fs::write(&alive, "").unwrap();
    let mut probe = exists(&alive);
    probe["periodSeconds"] = 1.into();
    probe["failureThreshold"] = 1.into();
    let mut spec = one(json!({"name": "a", "livenessProbe": probe}));
    spec["restartPolicy"] = "OnFailure".into();
    node.create("p", spec).await;
    node.shows("p", "/phase", "Running").await;
    std::fs::remove_file(&alive).unwrap();
    let reason = "/containerStatuses/0/state/waiting/reason";
    node.shows("p", reason, "CrashLoopBackOff").await;
    node.shows("p", "/phase", "Running").await;
    std::fs::write(&alive, "").unwrap();
    node.shows("p", "/containerStatuses/0/ready", true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_with_a_new_image_restarts_under_never_and_is_ready_all_the_time() {
    let node = TestNode::start().await;
    let mut spec = one(json!({"name": "a"}));
    spec["restartPolicy"] = "Never".into();
    node.create("p", spec).await;
    node.shows("p", "/containerStatuses/0/ready", true).await;
    let mut events = {
        use kube::runtime::{WatchStreamExt, watcher};
        let config = watcher::Config::default().fields("metadata.name=p");
        Box::pin(watcher(node.pods(), config).applied_objects())
    };
    let change = json!({"spec": {"containers": [{"name": "a", "image": "here:2"}]}});
    let params = PatchParams::default();
    node.pods()
        .patch("p", &params, &Patch::Strategic(&change))
        .await
        .unwrap();
    loop {
        let pod = futures::StreamExt::next(&mut events)
            .await
            .unwrap()
            .unwrap();
        let status = pod.status.unwrap().container_statuses.unwrap().remove(0);
        assert!(status.ready, "{status:?}");
        if status.restart_count == 1 {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_probes_run_often_at_first_and_continue_until_the_end() {
    let node = TestNode::start().await;
    let file = node.path("ready");
    let mut probe = exists(&file);
    // Far longer than this test waits for anything.
    probe["periodSeconds"] = 600.into();
    let hook = json!({"preStop": {"exec": {"command": ["hang"]}}});
    node.runtime.state.lock().hanging = vec!["hang".into()];
    let mut spec = one(json!({"name": "a", "readinessProbe": probe, "lifecycle": hook}));
    spec["terminationGracePeriodSeconds"] = 600.into();
    node.create("p", spec).await;
    node.shows("p", "/phase", "Running").await;
    std::fs::write(&file, "").unwrap();
    node.shows("p", "/containerStatuses/0/ready", true).await;

    let mut probe = exists(&file);
    probe["periodSeconds"] = 1.into();
    probe["failureThreshold"] = 1.into();
    let mut spec = one(json!({"name": "b", "readinessProbe": probe, "lifecycle": hook}));
    spec["terminationGracePeriodSeconds"] = 600.into();
    node.create("q", spec).await;
    node.shows("q", "/containerStatuses/0/ready", true).await;
    node.pods()
        .delete("q", &DeleteParams::default())
        .await
        .unwrap();
    node.wait("the hook to begin", || async {
        let hook = vec!["hang".to_owned()];
        node.runtime.state.lock().executed.contains(&hook)
    })
    .await;
    std::fs::remove_file(&file).unwrap();
    node.shows("q", "/containerStatuses/0/ready", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_of_others_are_kept_and_gates_are_followed() {
    let node = TestNode::start().await;
    let mut spec = one(json!({"name": "a"}));
    spec["readinessGates"] = json!([{"conditionType": "example.com/gate"}]);
    node.create("p", spec).await;
    node.shows("p", "/phase", "Running").await;
    let condition = |pod: Value, type_: &str| {
        let all = pod["conditions"].as_array().cloned().unwrap_or_default();
        let found = all.into_iter().find(|c| c["type"] == type_);
        found.map(|c| c["status"].as_str().unwrap().to_owned())
    };
    assert_eq!(
        condition(node.status("p").await, "Ready").as_deref(),
        Some("False")
    );
    let gate = json!({"status": {"conditions": [
        {"type": "example.com/gate", "status": "True"},
        {"type": "example.com/other", "status": "Unknown"}]}});
    let params = PatchParams::default();
    node.pods()
        .patch_status("p", &params, &Patch::Strategic(&gate))
        .await
        .unwrap();
    node.wait("the pod to be ready", || async {
        condition(node.status("p").await, "Ready").as_deref() == Some("True")
    })
    .await;
    node.runtime.exit("a", 1);
    node.shows("p", "/containerStatuses/0/restartCount", 1)
        .await;
    let other = condition(node.status("p").await, "example.com/other");
    assert_eq!(other.as_deref(), Some("Unknown"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_without_events_is_polled_and_orphans_are_stopped() {
    let runtime = Fake::new();
    runtime.state.lock().is_mute = true;
    let node = TestNode::start_with(runtime).await;
    node.create("p", one(json!({"name": "a"}))).await;
    node.shows("p", "/phase", "Running").await;
    node.runtime.exit("a", 3);
    node.shows("p", "/containerStatuses/0/restartCount", 1)
        .await;

    let orphan = cri::v1::PodSandboxStatus {
        id: "orphan".into(),
        labels: [
            ("io.kubernetes.pod.uid", "nobody's"),
            ("io.kubernetes.pod.name", "x"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into(),
        ..Default::default()
    };
    node.runtime
        .state
        .lock()
        .sandboxes
        .insert("orphan".into(), orphan);
    node.wait("the orphan to end", || async {
        !node.runtime.state.lock().sandboxes.contains_key("orphan")
    })
    .await;
    assert!(node.runtime.container("a").is_some());
}

/// A cgroup of this test, removed with everything below it.
struct OwnCgroup;

impl OwnCgroup {
    fn path() -> String {
        format!("/mainstay-test-{}", std::process::id())
    }
}

impl Drop for OwnCgroup {
    fn drop(&mut self) {
        let _ = libcgroups::Cgroup::new(Self::path()).remove();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_may_have_many_but_not_all_processes_and_its_class_has_the_weight_of_its_requests() {
    let _own = OwnCgroup;
    let node = TestNode::start_changed(Fake::new(), |kubelet, _| {
        kubelet.cgroup_root = OwnCgroup::path();
    })
    .await;
    let requests = json!({"requests": {"cpu": "500m"}});
    let made = node
        .create("p", one(json!({"name": "a", "resources": requests})))
        .await;
    node.shows("p", "/phase", "Running").await;
    let class = format!("{}/kubepods/burstable", OwnCgroup::path());
    let pod = format!("{class}/pod{}", made.metadata.uid.unwrap());
    let read = |controller: &str, path: &str, file: &str| {
        let dir = libcgroups::Cgroup::new(path).dir(controller).unwrap();
        let text = std::fs::read_to_string(dir.join(file)).unwrap_or_default();
        text.trim().to_owned()
    };
    assert_eq!(read("pids", &pod, "pids.max"), "16384");
    // Half a CPU, in the units of cgroup v1 and v2.
    node.wait("the weight of the class", || async {
        read("cpu", &class, "cpu.shares") == "512" || read("cpu", &class, "cpu.weight") == "20"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn remains_of_pods_that_went_during_a_crash_are_removed_at_the_next_start() {
    let _own = OwnCgroup;
    let mut node = TestNode::start_changed(Fake::new(), |kubelet, _| {
        kubelet.cgroup_root = OwnCgroup::path();
    })
    .await;
    let kept = node.create("kept", one(json!({"name": "a"}))).await;
    node.shows("kept", "/phase", "Running").await;
    node.stop_kubelet().await;
    let paths = |name: &str, uid: &str| {
        let group = format!("{}/kubepods/besteffort/pod{uid}", OwnCgroup::path());
        let group = libcgroups::Cgroup::new(group);
        let logs = node.path(&format!("logs/pods/default_{name}_{uid}"));
        let directory = node.path(&format!("kubelet/pods/{uid}"));
        (group, logs, directory)
    };
    let (group, logs, directory) = paths("gone", "0a-1b");
    group.create().unwrap();
    std::fs::create_dir_all(logs.join("a")).unwrap();
    std::fs::write(logs.join("a/0.log"), "").unwrap();
    let volume = directory.join("volumes/kubernetes.io~empty-dir/data");
    std::fs::create_dir_all(&volume).unwrap();
    std::fs::write(volume.join("file"), "").unwrap();
    let remains = [logs, directory, group.dir("memory").unwrap()];
    assert!(remains.iter().all(|path| path.exists()));
    let (group, logs, directory) = paths("kept", &kept.metadata.uid.unwrap());
    // The runtime of this test writes no logs.
    std::fs::create_dir_all(&logs).unwrap();
    let owned = [logs, directory, group.dir("memory").unwrap()];
    assert!(owned.iter().all(|path| path.exists()), "{owned:?}");

    node.start_kubelet();
    node.wait("the remains to go", || async {
        remains.iter().all(|path| !path.exists())
    })
    .await;
    assert!(owned.iter().all(|path| path.exists()), "{owned:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cgroups_of_an_orphan_go_whatever_its_class() {
    let _own = OwnCgroup;
    let root = OwnCgroup::path();
    let runtime = Fake::new();
    runtime.state.lock().is_mute = true;
    let node = TestNode::start_changed(runtime, |kubelet, _| {
        kubelet.cgroup_root = OwnCgroup::path();
    })
    .await;
    let classes = ["", "/burstable", "/besteffort"];
    let cgroup = |class: &str| {
        let uid = format!("orphan{}", class.replace('/', "-"));
        let path = format!("{root}/kubepods{class}/pod{uid}");
        (uid, libcgroups::Cgroup::new(format!("{path}/container")))
    };
    for class in classes {
        let (uid, container) = cgroup(class);
        container.create().unwrap();
        let labels = [
            ("io.kubernetes.pod.uid", uid.as_str()),
            ("io.kubernetes.pod.name", "x"),
        ];
        let orphan = cri::v1::PodSandboxStatus {
            id: uid.clone(),
            labels: labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..Default::default()
        };
        node.runtime.state.lock().sandboxes.insert(uid, orphan);
    }
    for class in classes {
        let (uid, container) = cgroup(class);
        let pod = container.dir("memory").unwrap();
        let pod = pod.parent().unwrap();
        node.wait(&format!("the cgroup of {uid} to go"), || async {
            let is_known = node.runtime.state.lock().sandboxes.contains_key(&uid);
            !is_known && !pod.exists()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_after_the_start_does_not_outlive_its_pod() {
    let node = TestNode::start().await;
    node.runtime.state.lock().hanging = vec!["hang".into()];
    let hook = json!({"postStart": {"exec": {"command": ["hang"]}}});
    node.create("p", one(json!({"name": "a", "lifecycle": hook})))
        .await;
    node.wait("the hook to begin", || async {
        !node.runtime.state.lock().executed.is_empty()
    })
    .await;
    node.shows(
        "p",
        "/containerStatuses/0/state/waiting/reason",
        "ContainerCreating",
    )
    .await;
    node.pods()
        .delete("p", &DeleteParams::default())
        .await
        .unwrap();
    node.wait("the pod to go", || async { node.get("p").await.is_none() })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_restarts_while_its_new_size_waits_keeps_the_old_one() {
    let node = TestNode::start().await;
    let nodes: Api<Node> = Api::all(node.client.clone());
    let status = nodes.get("node").await.unwrap().status.unwrap();
    let cpus: i64 = status.allocatable.unwrap()["cpu"].0.parse().unwrap();
    let asking = |name: &str, milli: i64| {
        let requests = json!({"cpu": format!("{milli}m")});
        json!({"name": name, "image": "here:1", "resources": {"requests": requests}})
    };
    node.create("big", one(asking("big", cpus * 1000 - 300)))
        .await;
    node.create("p", one(asking("a", 100))).await;
    node.shows("big", "/phase", "Running").await;
    node.shows("p", "/phase", "Running").await;
    let params = PatchParams::default();
    let change = json!({"spec": {"containers": [asking("a", 900)]}});
    node.pods()
        .patch_subresource("resize", "p", &params, &Patch::Strategic(&change))
        .await
        .unwrap();
    node.wait("the resize to be deferred", || async {
        let status = node.status("p").await;
        let conditions = status["conditions"].as_array().cloned();
        let deferred = |c: &Value| c["type"] == "PodResizePending" && c["reason"] == "Deferred";
        conditions.unwrap_or_default().iter().any(deferred)
    })
    .await;
    node.runtime.exit("a", 1);
    node.shows("p", "/containerStatuses/0/restartCount", 1)
        .await;
    let made = node.runtime.container("a").unwrap().config.linux.unwrap();
    assert_eq!(made.resources.unwrap().cpu_shares, 102);
    node.shows("p", "/containerStatuses/0/allocatedResources/cpu", "100m")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_by_a_rule_restarts_the_whole_pod() {
    let node = TestNode::start().await;
    let rule = json!({"action": "RestartAllContainers",
        "exitCodes": {"operator": "In", "values": [7]}});
    let spec = json!({"restartPolicy": "Never",
        "containers": [
            {"name": "a", "image": "here:1"},
            {"name": "b", "image": "here:1", "restartPolicy": "Never", "restartPolicyRules": [rule]}]});
    node.create("p", spec).await;
    node.shows("p", "/containerStatuses/1/ready", true).await;
    node.runtime.exit("b", 7);
    node.wait("the condition", || async {
        let conditions = node.status("p").await["conditions"].clone();
        let all = conditions.as_array().cloned().unwrap_or_default();
        all.iter()
            .any(|c| c["type"] == "AllContainersRestarting" && c["status"] == "False")
    })
    .await;
    for container in ["0", "1"] {
        let path = format!("/containerStatuses/{container}/restartCount");
        node.shows("p", &path, 1).await;
    }
    node.shows("p", "/phase", "Running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_a_claim_that_is_not_allocated_does_not_begin() {
    let node = TestNode::start().await;
    let mut spec = one(json!({"name": "a"}));
    spec["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "none"}]);
    node.create("p", spec).await;
    let events: Api<k8s_openapi::api::core::v1::Event> =
        Api::namespaced(node.client.clone(), "default");
    node.wait("the event", || async {
        let all = events.list(&Default::default()).await.unwrap();
        let reason = "FailedPrepareDynamicResources";
        all.iter()
            .any(|event| event.reason.as_deref() == Some(reason))
    })
    .await;
    assert_eq!(node.runtime.made(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_fetch_the_same_new_config_map_at_once_all_see_its_changes() {
    let node = TestNode::start().await;
    crate::config_map(&node, "shared", json!({"file": "one"})).await;
    let names: Vec<String> = (0..8).map(|n| format!("p{n}")).collect();
    let created = names.iter().map(|name| {
        let mount = json!([{"name": "v", "mountPath": "/v"}]);
        let mut spec = one(json!({"name": name, "volumeMounts": mount}));
        spec["volumes"] = json!([{"name": "v", "configMap": {"name": "shared"}}]);
        node.create(name, spec)
    });
    futures::future::join_all(created).await;
    for name in &names {
        node.shows(name, "/phase", "Running").await;
    }
    let maps: Api<k8s_openapi::api::core::v1::ConfigMap> =
        Api::namespaced(node.client.clone(), "default");
    let change = json!({"data": {"file": "two"}});
    let params = PatchParams::default();
    maps.patch("shared", &params, &Patch::Merge(&change))
        .await
        .unwrap();
    for name in &names {
        let made = node.runtime.container(name).unwrap().config;
        let mount = made.mounts.into_iter().find(|m| m.container_path == "/v");
        let file = std::path::PathBuf::from(mount.unwrap().host_path).join("file");
        node.wait("the new content", || async {
            std::fs::read_to_string(&file).unwrap() == "two"
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_containers_get_new_sizes_at_once() {
    let node = TestNode::start().await;
    let container = |name: &str, memory: &str| {
        let resources = json!({"requests": {"memory": memory}, "limits": {"memory": memory}});
        json!({"name": name, "image": "here:1", "resources": resources})
    };
    let both =
        |memory: &str| json!({"containers": [container("a", memory), container("b", memory)]});
    node.create("p", both("32Mi")).await;
    node.shows("p", "/containerStatuses/1/ready", true).await;
    let params = PatchParams::default();
    let change = json!({"spec": both("64Mi")});
    node.pods()
        .patch_subresource("resize", "p", &params, &Patch::Strategic(&change))
        .await
        .unwrap();
    for index in ["0", "1"] {
        let path = format!("/containerStatuses/{index}/resources/limits/memory");
        node.shows("p", &path, "64Mi").await;
    }
    node.wait("the resize to be complete", || async {
        let conditions = node.status("p").await["conditions"].to_string();
        !conditions.contains("PodResize")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_never_starts_from_an_image_that_nothing_is_known_about() {
    let node = TestNode::start().await;
    let spec = json!({"containers": [{"name": "a", "image": "odd:1"}]});
    node.create("p", spec).await;
    let reason = "/containerStatuses/0/state/waiting/reason";
    node.shows("p", reason, "ImageInspectError").await;
    assert!(node.runtime.container("a").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_probe_call_is_retried_and_does_not_count_as_a_result() {
    let node = TestNode::start().await;
    node.runtime.state.lock().broken.insert("broken".into(), 0);
    let probe =
        json!({"exec": {"command": ["broken"]}, "periodSeconds": 600, "failureThreshold": 1});
    node.create("p", one(json!({"name": "a", "livenessProbe": probe})))
        .await;
    node.wait("three tries", || async {
        node.runtime.state.lock().broken["broken"] == 3
    })
    .await;
    node.shows("p", "/containerStatuses/0/ready", true).await;
    assert_eq!(node.runtime.state.lock().stops, []);
}

/// Creates a secret for the private registry.
async fn create_registry_secret(node: &TestNode) {
    let config = json!({"auths": {"private.example": {"username": "ada", "password": "pw"}}});
    let secret = json!({"metadata": {"name": "regcred"}, "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": config.to_string()}});
    let secret: Secret = serde_json::from_value(secret).unwrap();
    let secrets = Api::<Secret>::namespaced(node.client.clone(), "default");
    let params = PostParams::default();
    secrets.create(&params, &secret).await.unwrap();
}

fn private(container: &str, policy: &str, secrets: Value) -> Value {
    json!({"imagePullSecrets": secrets, "containers": [
        {"name": container, "image": "private.example/app:1", "imagePullPolicy": policy}]})
}

fn regcred() -> Value {
    json!([{"name": "regcred"}])
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_a_secret_brought_is_only_for_pods_that_have_the_secret() {
    let mut node = TestNode::start().await;
    create_registry_secret(&node).await;
    node.create("owner", private("o", "IfNotPresent", regcred()))
        .await;
    node.shows("owner", "/phase", "Running").await;
    node.create("thief", private("t", "Never", json!([]))).await;
    let reason = "/containerStatuses/0/state/waiting/reason";
    node.shows("thief", reason, "ErrImageNeverPull").await;
    node.stop_kubelet().await;
    node.start_kubelet();
    node.create("other", private("x", "IfNotPresent", json!([])))
        .await;
    node.wait("the pull to be refused", || async {
        let status = node.status("other").await.to_string();
        status.contains("ErrImagePull") && status.contains("no such image")
    })
    .await;
    node.create("friend", private("f", "Never", regcred()))
        .await;
    node.shows("friend", "/phase", "Running").await;
    assert!(node.runtime.container("t").is_none() && node.runtime.container("x").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_came_after_its_pod_was_deleted_is_only_for_pods_with_its_secret() {
    let node = TestNode::start().await;
    create_registry_secret(&node).await;
    node.runtime.state.lock().holds_pulls = true;
    node.create("owner", private("o", "IfNotPresent", regcred()))
        .await;
    // The sandbox is there while the image is pulled.
    node.wait("the sandbox", || async {
        let status = node.status("owner").await;
        let conditions = status["conditions"].as_array().cloned();
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|one| one["type"] == "PodReadyToStartContainers" && one["status"] == "True")
    })
    .await;
    let intents = node.path("kubelet/image_manager/pulling");
    let count = || std::fs::read_dir(&intents).map_or(0, Iterator::count);
    node.wait("the pull to begin", || async { count() == 1 })
        .await;
    let params = DeleteParams::default();
    node.pods().delete("owner", &params).await.unwrap();
    node.wait("the pod to go", || async {
        node.get("owner").await.is_none()
    })
    .await;
    assert_eq!(count(), 1, "the pull goes on");
    node.runtime.state.lock().holds_pulls = false;
    node.wait("the pull to end", || async { count() == 0 })
        .await;
    node.create("thief", private("t", "Never", json!([]))).await;
    let reason = "/containerStatuses/0/state/waiting/reason";
    node.shows("thief", reason, "ErrImageNeverPull").await;
    node.create("friend", private("f", "Never", regcred()))
        .await;
    node.shows("friend", "/phase", "Running").await;
}
