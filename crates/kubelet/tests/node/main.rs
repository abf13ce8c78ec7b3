//! A kubelet with the real API server and a fake runtime: its CRI calls, what it writes to the API,
//! and what it leaves behind.

// A test may panic on any error.
#![allow(clippy::unwrap_used)]

mod node_side;
mod pods;
mod restarts;
mod roles;
mod runtime;
mod storage;
mod support;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use pki::Leaf;
use serde_json::json;
use support::TestNode;

async fn config_map(node: &TestNode, name: &str, data: serde_json::Value) {
    let api: Api<ConfigMap> = Api::namespaced(node.client.clone(), "default");
    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    api.create(
        &PostParams::default(),
        &serde_json::from_value(map).unwrap(),
    )
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_two_containers_runs_restarts_and_goes_without_a_trace() {
    let node = TestNode::start().await;
    config_map(&node, "conf", json!({"KEY": "value", "file": "one"})).await;
    let spec = json!({
        "terminationGracePeriodSeconds": 7,
        "volumes": [{"name": "conf", "configMap": {"name": "conf"}}, {"name": "data", "emptyDir": {}}],
        "containers": [
            {"name": "web", "image": "here:1", "command": ["serve", "$(KEY)"],
             "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
             "envFrom": [{"configMapRef": {"name": "conf"}}],
             "volumeMounts": [{"name": "conf", "mountPath": "/conf"}, {"name": "data", "mountPath": "/data"}]},
            {"name": "log", "image": "here:1"}]});
    node.create("p", spec).await;
    node.shows("p", "/phase", "Running").await;
    node.shows("p", "/containerStatuses/1/ready", true).await;
    let status = node.status("p").await;
    for condition in status["conditions"].as_array().unwrap() {
        assert_eq!(condition["status"], "True", "{condition}");
    }

    let web = node.runtime.container("web").unwrap();
    assert_eq!(web.config.command, ["serve", "value"]);
    let variable = |name: &str| {
        let found = web.config.envs.iter().find(|env| env.key == name).unwrap();
        String::from_utf8(found.value.clone()).unwrap()
    };
    assert_eq!(variable("IP"), status["podIP"]);
    let mount = |path: &str| {
        let found = web
            .config
            .mounts
            .iter()
            .find(|mount| mount.container_path == path)
            .unwrap();
        std::path::PathBuf::from(&found.host_path)
    };
    assert!(mount("/data").is_dir());
    let file = mount("/conf").join("file");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "one");

    let maps: Api<ConfigMap> = Api::namespaced(node.client.clone(), "default");
    let change = json!({"data": {"file": "two"}});
    maps.patch("conf", &PatchParams::default(), &Patch::Merge(&change))
        .await
        .unwrap();
    node.wait("the new content", || async {
        std::fs::read_to_string(&file).unwrap() == "two"
    })
    .await;

    node.runtime.exit("web", 3);
    node.shows("p", "/containerStatuses/1/restartCount", 1)
        .await;
    node.shows("p", "/containerStatuses/1/lastState/terminated/exitCode", 3)
        .await;
    node.shows("p", "/containerStatuses/1/ready", true).await;

    node.pods()
        .delete("p", &DeleteParams::default())
        .await
        .unwrap();
    node.wait("the pod to go", || async { node.get("p").await.is_none() })
        .await;
    let mut stops = node.runtime.state.lock().stops.clone();
    stops.sort();
    assert_eq!(stops, [("log".to_owned(), 7), ("web".to_owned(), 7)]);
    node.wait("nothing to be left", || async {
        let empty = |dir: &str| std::fs::read_dir(node.path(dir)).unwrap().next().is_none();
        node.runtime.state.lock().sandboxes.is_empty()
            && empty("kubelet/pods")
            && empty("logs/pods")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_kubelet_leaves_running_pods_alone_and_ends_forgotten_ones() {
    let mut node = TestNode::start().await;
    let spec = json!({"containers": [{"name": "a", "image": "here:1"}]});
    node.create("stays", spec.clone()).await;
    node.create(
        "goes",
        json!({"containers": [{"name": "b", "image": "here:1"}]}),
    )
    .await;
    node.shows("stays", "/phase", "Running").await;
    node.shows("goes", "/phase", "Running").await;
    let (before, made) = (node.status("stays").await, node.runtime.made());
    node.stop_kubelet().await;
    node.pods()
        .delete("goes", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    node.start_kubelet();
    node.wait("the forgotten pod to end", || async {
        node.runtime.container("b").is_none()
    })
    .await;
    assert_eq!(node.runtime.made(), made);
    assert_eq!(node.status("stays").await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_runs_once_succeeds_and_keeps_its_logs() {
    let node = TestNode::start().await;
    let spec = json!({"restartPolicy": "Never",
        "initContainers": [{"name": "first", "image": "here:1"}],
        "containers": [{"name": "job", "image": "here:1"}]});
    node.create("job", spec).await;
    node.shows("job", "/initContainerStatuses/0/started", true)
        .await;
    assert_eq!(node.status("job").await["phase"], "Pending");
    node.runtime.exit("first", 0);
    node.shows("job", "/phase", "Running").await;
    node.runtime.exit("job", 0);
    node.shows("job", "/phase", "Succeeded").await;
    let state = "/containerStatuses/0/state/terminated/reason";
    node.shows("job", state, "Completed").await;
    let (status, log) = node
        .ask(
            Leaf::ApiserverKubeletClient,
            "/containerLogs/default/job/job",
        )
        .await;
    assert_eq!((status, log.as_str()), (200, "hello\n"));
    let (status, _) = node
        .ask(Leaf::Scheduler, "/containerLogs/default/job/job")
        .await;
    assert_eq!(status, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_cannot_start_has_a_waiting_reason() {
    let node = TestNode::start().await;
    let container = |image: &str, policy: &str| json!({"containers": [{"name": "a", "image": image, "imagePullPolicy": policy}]});
    let reason = "/containerStatuses/0/state/waiting/reason";
    node.create("missing", container("gone:1", "IfNotPresent"))
        .await;
    node.create("never", container("gone:1", "Never")).await;
    let unset = json!({"containers": [{"name": "a", "image": "here:1",
        "envFrom": [{"configMapRef": {"name": "later"}}]}]});
    node.create("unset", unset).await;
    node.shows("missing", reason, "ErrImagePull").await;
    node.shows("never", reason, "ErrImageNeverPull").await;
    node.shows("unset", reason, "CreateContainerConfigError")
        .await;
    config_map(&node, "later", json!({"A": "1"})).await;
    node.shows("unset", "/phase", "Running").await;
    node.shows("missing", reason, "ImagePullBackOff").await;
    let events: Api<k8s_openapi::api::core::v1::Event> =
        Api::namespaced(node.client.clone(), "default");
    let all = events.list(&ListParams::default()).await.unwrap();
    let reasons: Vec<_> = all
        .iter()
        .filter_map(|event| event.reason.clone())
        .collect();
    for expected in ["Pulling", "Pulled", "Created", "Started", "Failed"] {
        assert!(
            reasons.iter().any(|reason| reason == expected),
            "{expected} is not in {reasons:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_keeps_ending_backs_off() {
    let node = TestNode::start().await;
    node.create(
        "p",
        json!({"containers": [{"name": "a", "image": "here:1"}]}),
    )
    .await;
    node.shows("p", "/phase", "Running").await;
    node.runtime.exit("a", 1);
    node.shows("p", "/containerStatuses/0/restartCount", 1)
        .await;
    node.runtime.exit("a", 1);
    node.shows(
        "p",
        "/containerStatuses/0/state/waiting/reason",
        "CrashLoopBackOff",
    )
    .await;
    node.shows("p", "/phase", "Running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_decide_about_readiness_and_life() {
    let node = TestNode::start().await;
    let file = node.path("ready");
    let probe = |path: &std::path::Path| json!({"exec": {"command": ["exists", path.to_string_lossy()]}, "periodSeconds": 1, "failureThreshold": 1});
    let alive = node.path("alive");
    std::fs::write(&alive, "").unwrap();
    node.create(
        "p",
        json!({"containers": [{"name": "a", "image": "here:1",
        "readinessProbe": probe(&file), "livenessProbe": probe(&alive)}]}),
    )
    .await;
    node.shows("p", "/phase", "Running").await;
    assert_eq!(
        node.status("p").await["containerStatuses"][0]["ready"],
        false
    );
    std::fs::write(&file, "").unwrap();
    node.shows("p", "/containerStatuses/0/ready", true).await;
    std::fs::remove_file(&alive).unwrap();
    // Each new container fails its probe, too: a slow machine may show the second restart first.
    node.wait("the container to be started again", || async {
        node.status("p").await["containerStatuses"][0]["restartCount"].as_i64() >= Some(1)
    })
    .await;
    assert_eq!(node.runtime.state.lock().stops[0], ("a".to_owned(), 30));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_pod_runs_and_has_a_mirror() {
    let node = TestNode::start().await;
    let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "a", "image": "here:1"}]}});
    let file = node.path("manifests/web.yaml");
    std::fs::write(&file, manifest.to_string()).unwrap();
    node.shows("web-node", "/phase", "Running").await;
    // A mirror that is deleted comes back, and its pod goes on.
    let uid = node.get("web-node").await.unwrap().metadata.uid;
    let params = DeleteParams::default();
    node.pods().delete("web-node", &params).await.unwrap();
    node.wait("another mirror", || async {
        let mirror = node.get("web-node").await;
        mirror.is_some_and(|mirror| mirror.metadata.uid != uid)
    })
    .await;
    node.shows("web-node", "/phase", "Running").await;
    std::fs::remove_file(&file).unwrap();
    node.wait("the mirror to go", || async {
        node.get("web-node").await.is_none()
    })
    .await;
    node.wait("its container to go", || async {
        node.runtime.container("a").is_none()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_static_pod_starts_when_the_one_before_it_has_ended() {
    let node = TestNode::start().await;
    let manifest = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
            "spec": {"terminationGracePeriodSeconds": 30,
                "containers": [{"name": name, "image": "here:1"}]}})
    };
    let file = node.path("manifests/web.yaml");
    std::fs::write(&file, manifest("old").to_string()).unwrap();
    node.shows("web-node", "/phase", "Running").await;
    node.runtime.state.lock().holds_stops = true;
    std::fs::write(&file, manifest("new").to_string()).unwrap();
    let stops = || node.runtime.state.lock().stops.clone();
    node.wait("the old one to be asked to stop", || async {
        !stops().is_empty()
    })
    .await;
    node.stays("only the old one runs", || async {
        node.runtime.container("new").is_none()
    })
    .await;
    node.runtime.state.lock().holds_stops = false;
    node.shows("web-node", "/containerStatuses/0/name", "new")
        .await;
    node.shows("web-node", "/phase", "Running").await;
    assert!(node.runtime.container("old").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_pod_whose_file_comes_back_while_it_ends_runs_again() {
    let node = TestNode::start().await;
    let manifest = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
            "spec": {"terminationGracePeriodSeconds": 30,
                "containers": [{"name": name, "image": "here:1"}]}})
    };
    let file = node.path("manifests/web.yaml");
    let mut stopped = 0;
    // Removed and written again, and changed and changed back.
    for other in [None, Some("b")] {
        std::fs::write(&file, manifest("a").to_string()).unwrap();
        node.shows("web-node", "/phase", "Running").await;
        let uid = node.get("web-node").await.unwrap().metadata.uid;
        node.runtime.state.lock().holds_stops = true;
        match other {
            None => std::fs::remove_file(&file).unwrap(),
            Some(name) => std::fs::write(&file, manifest(name).to_string()).unwrap(),
        }
        let stops = || node.runtime.state.lock().stops.len();
        node.wait("it to be asked to stop", || async { stops() > stopped })
            .await;
        std::fs::write(&file, manifest("a").to_string()).unwrap();
        // Its mirror shows it until it has ended.
        node.stays("it still ends", || async {
            let mirror = node.get("web-node").await.unwrap_or_default();
            let phase = mirror.status.and_then(|status| status.phase);
            mirror.metadata.uid == uid && phase.as_deref() == Some("Running")
        })
        .await;
        node.runtime.state.lock().holds_stops = false;
        stopped += 1;
        node.shows(
            "web-node",
            "/containerStatuses/0/restartCount",
            stopped as i64,
        )
        .await;
        node.shows("web-node", "/containerStatuses/0/ready", true)
            .await;
        node.shows("web-node", "/phase", "Running").await;
    }
    std::fs::remove_file(&file).unwrap();
    node.wait("its container to go", || async {
        node.runtime.container("a").is_none()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_does_not_fit_or_takes_too_long_fails() {
    let node = TestNode::start().await;
    let huge = json!({"requests": {"cpu": "100000"}, "limits": {"cpu": "100000"}});
    let spec = json!({"containers": [{"name": "a", "image": "here:1", "resources": huge}]});
    node.create("huge", spec).await;
    node.shows("huge", "/phase", "Failed").await;
    node.shows("huge", "/reason", "OutOfcpu").await;
    let spec = json!({"activeDeadlineSeconds": 600, "terminationGracePeriodSeconds": 3,
        "containers": [{"name": "slow", "image": "here:1"}]});
    node.create("slow", spec).await;
    node.shows("slow", "/phase", "Running").await;
    let params = PatchParams::default();
    let sooner = json!({"spec": {"activeDeadlineSeconds": 1}});
    node.pods()
        .patch("slow", &params, &Patch::Merge(&sooner))
        .await
        .unwrap();
    node.shows("slow", "/reason", "DeadlineExceeded").await;
    node.shows("slow", "/phase", "Failed").await;
    node.wait("the container to be stopped", || async {
        node.runtime
            .state
            .lock()
            .stops
            .contains(&("slow".to_owned(), 3))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_run_after_the_start_and_before_the_stop() {
    let node = TestNode::start().await;
    let spec = json!({"terminationGracePeriodSeconds": 5, "containers": [
        {"name": "a", "image": "here:1", "lifecycle": {
            "postStart": {"exec": {"command": ["after", "start"]}},
            "preStop": {"exec": {"command": ["before", "stop"]}}}},
        {"name": "b", "image": "here:1"}]});
    node.create("p", spec).await;
    node.shows("p", "/phase", "Running").await;
    assert_eq!(node.runtime.state.lock().executed, [["after", "start"]]);
    node.pods()
        .delete("p", &DeleteParams::default())
        .await
        .unwrap();
    node.wait("the pod to go", || async { node.get("p").await.is_none() })
        .await;
    assert_eq!(
        node.runtime.state.lock().executed,
        [["after", "start"], ["before", "stop"]]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_container_gets_a_new_size() {
    let node = TestNode::start().await;
    let resources =
        json!({"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}});
    let spec = json!({"containers": [{"name": "a", "image": "here:1", "resources": resources}]});
    node.create("p", spec).await;
    node.shows("p", "/phase", "Running").await;
    let change = json!({"spec": {"containers": [{"name": "a",
        "resources": {"requests": {"cpu": "200m"}, "limits": {"memory": "128Mi"}}}]}});
    let params = PatchParams::default();
    let patch = Patch::Strategic(&change);
    node.pods()
        .patch_subresource("resize", "p", &params, &patch)
        .await
        .unwrap();
    node.shows("p", "/containerStatuses/0/resources/limits/memory", "128Mi")
        .await;
    node.shows("p", "/containerStatuses/0/allocatedResources/cpu", "200m")
        .await;
    let resources = node
        .runtime
        .container("a")
        .unwrap()
        .status
        .resources
        .unwrap()
        .linux
        .unwrap();
    assert_eq!(
        (resources.cpu_shares, resources.memory_limit_in_bytes),
        (204, 128 << 20)
    );
    assert_eq!(
        node.status("p").await["containerStatuses"][0]["restartCount"],
        0
    );
}
