//! Restarts of the kubelet and of the machine, and pods that are deleted meanwhile: what upstream's suite for nodes
//! checks by restarting its kubelet.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};

use crate::{runtime::Fake, support::TestNode};

const MAIN: &str = "/containerStatuses/0";

fn one(mut container: Value) -> Value {
    container["image"] = "here:1".into();
    json!({"containers": [container]})
}

fn exists(path: &std::path::Path) -> Value {
    json!({"exec": {"command": ["exists", path.to_string_lossy()]}, "periodSeconds": 1, "failureThreshold": 1})
}

fn names(runtime: &Fake) -> Vec<String> {
    let state = runtime.state.lock();
    let containers = state.containers.values();
    let named = containers.filter_map(|container| container.status.metadata.clone());
    named.map(|metadata| metadata.name).collect()
}

async fn delete(node: &TestNode, name: &str) {
    let params = DeleteParams::default();
    node.pods().delete(name, &params).await.unwrap();
}

async fn gone(node: &TestNode, name: &str) {
    node.wait("the pod to go", || async { node.get(name).await.is_none() })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ready_pod_stays_ready_and_started_when_the_kubelet_restarts() {
    let mut node = TestNode::start().await;
    let file = node.path("ready");
    std::fs::write(&file, "").unwrap();
    let probes = [
        ("none", json!({})),
        ("startup", json!({"startupProbe": exists(&file)})),
        ("readiness", json!({"readinessProbe": exists(&file)})),
        (
            "both",
            json!({"startupProbe": exists(&file), "readinessProbe": exists(&file)}),
        ),
    ];
    for (name, probe) in &probes {
        let mut container = probe.clone();
        container["name"] = (*name).into();
        let mut sidecar = container.clone();
        sidecar["name"] = format!("{name}-sidecar").into();
        sidecar["image"] = "here:1".into();
        sidecar["restartPolicy"] = "Always".into();
        let mut spec = one(container);
        spec["initContainers"] = json!([sidecar]);
        node.create(name, spec).await;
    }
    for (name, _) in &probes {
        node.shows(name, "/containerStatuses/0/ready", true).await;
        node.shows(name, "/initContainerStatuses/0/ready", true)
            .await;
    }
    let wavered = Arc::new(AtomicBool::new(false));
    let seen = wavered.clone();
    let mut events = Box::pin(
        watcher(node.pods(), watcher::Config::default())
            .default_backoff()
            .applied_objects(),
    );
    let watching = tokio::spawn(async move {
        while let Some(Ok(pod)) = events.next().await {
            let status = pod.status.unwrap_or_default();
            let all = [status.container_statuses, status.init_container_statuses];
            let mut all = all.into_iter().flatten().flatten();
            if all.any(|one| !one.ready || one.started != Some(true) || one.restart_count > 0) {
                seen.store(true, Ordering::Relaxed);
            }
        }
    });
    let made = node.runtime.made();
    node.stop_kubelet().await;
    let probed = node.runtime.state.lock().executed.len();
    node.start_kubelet();
    node.wait("every pod to be probed again", || async {
        node.runtime.state.lock().executed.len() > probed + 8
    })
    .await;
    assert!(!wavered.load(Ordering::Relaxed), "a status changed");
    assert_eq!(node.runtime.made(), made);
    std::fs::remove_file(&file).unwrap();
    node.shows("both", "/containerStatuses/0/ready", false)
        .await;
    watching.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn completed_init_containers_never_run_again_though_the_runtime_forgot_them() {
    let mut node = TestNode::start().await;
    let mut spec = one(json!({"name": "main"}));
    spec["initContainers"] = json!([
        {"name": "first", "image": "here:1"}, {"name": "second", "image": "here:1"}]);
    node.create("p", spec).await;
    for (index, name) in ["first", "second"].into_iter().enumerate() {
        let started = format!("/initContainerStatuses/{index}/started");
        node.shows("p", &started, true).await;
        node.runtime.exit(name, 0);
    }
    node.shows("p", "/containerStatuses/0/ready", true).await;
    node.stop_kubelet().await;
    {
        let mut state = node.runtime.state.lock();
        let is_main = |name: &str| name == "main";
        state
            .containers
            .retain(|_, one| is_main(&one.status.metadata.as_ref().unwrap().name));
    }
    node.start_kubelet();
    node.runtime.exit("main", 1);
    node.shows("p", &format!("{MAIN}/restartCount"), 1).await;
    node.shows("p", &format!("{MAIN}/ready"), true).await;
    let left = names(&node.runtime);
    assert!(left.iter().all(|name| name == "main"), "{left:?}");
    let status = node.status("p").await;
    let reason = "/initContainerStatuses/0/state/terminated/reason";
    assert_eq!(status.pointer(reason), Some(&json!("Completed")));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_reboot_the_pod_is_pending_until_its_init_containers_ran_again() {
    let mut node = TestNode::start().await;
    let mut spec = one(json!({"name": "main"}));
    spec["initContainers"] = json!([
        {"name": "init", "image": "here:1"},
        {"name": "sidecar", "image": "here:1", "restartPolicy": "Always"}]);
    node.create("p", spec).await;
    node.shows("p", "/initContainerStatuses/0/started", true)
        .await;
    node.runtime.exit("init", 0);
    node.shows("p", "/phase", "Running").await;
    node.stop_kubelet().await;
    for name in ["main", "sidecar"] {
        node.runtime.exit(name, 137);
    }
    {
        let mut state = node.runtime.state.lock();
        for sandbox in state.sandboxes.values_mut() {
            sandbox.state = cri::v1::PodSandboxState::SandboxNotready as i32;
        }
    }
    node.start_kubelet();
    let running = "/initContainerStatuses/0/state/running/startedAt";
    node.wait("the init container to run again", || async {
        node.status("p").await.pointer(running).is_some()
    })
    .await;
    let status = node.status("p").await;
    assert_eq!(status["phase"], "Pending", "{status:#}");
    assert!(
        node.runtime
            .container("main")
            .is_none_or(|main| { main.status.state() == cri::v1::ContainerState::ContainerExited })
    );
    node.runtime.exit("init", 0);
    node.shows("p", "/phase", "Running").await;
    node.shows("p", &format!("{MAIN}/ready"), true).await;
    node.shows("p", "/initContainerStatuses/1/ready", true)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_deleted_before_it_ran_is_failed() {
    let node = TestNode::start().await;
    for policy in ["Always", "OnFailure", "Never"] {
        let pod = json!({"metadata": {"name": "p", "finalizers": ["example.com/keep"]}, "spec": {
            "nodeName": "node", "restartPolicy": policy, "automountServiceAccountToken": false,
            "containers": [{"name": "a", "image": "gone:1"}]}});
        let pod = serde_json::from_value(pod).unwrap();
        let pods = node.pods();
        pods.create(&PostParams::default(), &pod).await.unwrap();
        node.shows("p", "/phase", "Pending").await;
        delete(&node, "p").await;
        node.shows("p", "/phase", "Failed").await;
        let free = json!({"metadata": {"finalizers": null}});
        let params = PatchParams::default();
        pods.patch("p", &params, &Patch::Merge(&free))
            .await
            .unwrap();
        gone(&node, "p").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_were_deleted_while_the_kubelet_was_away_go_whether_they_fit_or_not() {
    let mut node = TestNode::start().await;
    let nodes: Api<Node> = Api::all(node.client.clone());
    let label = |value: Value| json!({"metadata": {"labels": {"disk": value}}});
    let params = PatchParams::default();
    nodes
        .patch("node", &params, &Patch::Merge(&label(json!("fast"))))
        .await
        .unwrap();
    let mut fast = one(json!({"name": "a"}));
    fast["nodeSelector"] = json!({"disk": "fast"});
    node.create("ran", fast.clone()).await;
    node.shows("ran", "/phase", "Running").await;
    let mut job = one(json!({"name": "job"}));
    job["restartPolicy"] = "Never".into();
    node.create("ended", job).await;
    node.shows("ended", "/phase", "Running").await;
    node.runtime.exit("job", 0);
    node.shows("ended", "/phase", "Succeeded").await;
    node.stop_kubelet().await;
    nodes
        .patch("node", &params, &Patch::Merge(&label(Value::Null)))
        .await
        .unwrap();
    node.create("never-fits", fast).await;
    for name in ["ran", "ended", "never-fits"] {
        delete(&node, name).await;
    }
    node.start_kubelet();
    for name in ["ran", "ended", "never-fits"] {
        gone(&node, name).await;
    }
    node.wait("nothing to run", || async {
        node.runtime.state.lock().sandboxes.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_pods_take_no_room_after_a_restart() {
    let mut node = TestNode::start_changed(Fake::new(), |kubelet, _| kubelet.max_pods = 2).await;
    for name in ["one", "two"] {
        let mut spec = one(json!({"name": name}));
        spec["restartPolicy"] = "Never".into();
        node.create(name, spec).await;
        node.shows(name, "/phase", "Running").await;
        node.runtime.exit(name, 0);
        node.shows(name, "/phase", "Succeeded").await;
    }
    node.stop_kubelet().await;
    node.start_kubelet();
    for name in ["three", "four"] {
        node.create(name, one(json!({"name": name}))).await;
        node.shows(name, "/phase", "Running").await;
    }
    node.create("five", one(json!({"name": "five"}))).await;
    node.shows("five", "/reason", "OutOfpods").await;
    node.shows("one", "/phase", "Succeeded").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_pod_without_its_former_init_container_is_ready_after_a_restart() {
    let mut node = TestNode::start().await;
    let file = node.path("manifests/static.json");
    let pod = |init: Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "static"}, "spec": {
            "initContainers": init, "containers": [{"name": "main", "image": "here:1"}]}})
        .to_string()
    };
    let init = json!([{"name": "init", "image": "here:1"}]);
    std::fs::write(&file, pod(init)).unwrap();
    node.shows("static-node", "/initContainerStatuses/0/started", true)
        .await;
    node.runtime.exit("init", 0);
    node.shows("static-node", &format!("{MAIN}/ready"), true)
        .await;
    node.stop_kubelet().await;
    std::fs::write(&file, pod(json!([]))).unwrap();
    node.start_kubelet();
    node.wait("the mirror of the new pod", || async {
        let status = node.status("static-node").await;
        let ready = status.pointer(&format!("{MAIN}/ready")) == Some(&json!(true));
        ready && status["initContainerStatuses"].is_null()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_of_the_operating_system_are_set_again_at_the_start() {
    let mut node = TestNode::start().await;
    let nodes: Api<Node> = Api::all(node.client.clone());
    let labels = || async {
        let found = nodes.get("node").await.unwrap().metadata.labels.unwrap();
        let label = |name: &str| found[&format!("kubernetes.io/{name}")].clone();
        (label("os"), label("arch"))
    };
    let right = labels().await;
    assert_eq!(right.0, "linux");
    let wrong = json!({"metadata": {"labels": {
        "kubernetes.io/os": "plan9", "kubernetes.io/arch": "pdp11"}}});
    node.stop_kubelet().await;
    let params = PatchParams::default();
    let patch = Patch::Merge(&wrong);
    nodes.patch("node", &params, &patch).await.unwrap();
    node.start_kubelet();
    node.wait("the labels", || async { labels().await == right })
        .await;
}
