//! The node itself: authorization of requests to the kubelet, statistics, the Lease, and evictions.

use k8s_openapi::api::{
    authorization::v1::SubjectAccessReview, coordination::v1::Lease, core::v1::Node,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use pki::{Leaf, Names, Pki};
use serde_json::{Value, json};

use crate::{runtime::Fake, support::TestNode};

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_authenticated_and_authorized_by_rbac() {
    let node = TestNode::start().await;
    for path in [
        "/healthz",
        "/pods",
        "/configz",
        "/stats/summary",
        "/metrics",
        "/logs/",
    ] {
        let (status, body) = node.ask(Leaf::Admin, path).await;
        assert_eq!(status, 200, "{path}: {body}");
        for leaf in [Leaf::Scheduler, Leaf::Kubelet] {
            let (status, _) = node.ask(leaf, path).await;
            assert_eq!(status, 403, "{leaf:?} {path}");
        }
        for token in [None, Some("no such token")] {
            let (status, _) = node.ask_with_token(token, path).await;
            assert_eq!(status, 401, "{path}");
        }
    }
    let (_, reported) = node.ask(Leaf::Scheduler, "/pods").await;
    assert_eq!(
        reported,
        "Forbidden (user=system:kube-scheduler, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"
    );
    // What flags and the cluster say is shown beside what the file says.
    let (_, shown) = node.ask(Leaf::Admin, "/configz").await;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let shown = &shown["kubeletconfig"];
    let manifests = node.path("manifests").display().to_string();
    assert_eq!(shown["staticPodPath"], manifests);
    assert_eq!(shown["clusterDomain"], "cluster.local");
    assert_eq!(shown["resolvConf"], "/etc/resolv.conf");
    // A role for metrics only.
    let role = json!({"metadata": {"name": "scraper"}, "rules": [
        {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]}]});
    let roles: Api<k8s_openapi::api::rbac::v1::ClusterRole> = Api::all(node.client.clone());
    let role = serde_json::from_value(role).unwrap();
    roles.create(&PostParams::default(), &role).await.unwrap();
    let binding = json!({"metadata": {"name": "scraper"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "scraper"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-proxy"}]});
    let bindings: Api<k8s_openapi::api::rbac::v1::ClusterRoleBinding> =
        Api::all(node.client.clone());
    let binding = serde_json::from_value(binding).unwrap();
    bindings
        .create(&PostParams::default(), &binding)
        .await
        .unwrap();
    // The kubelet caches a denial for half a minute: ask it only after the API server allows the
    // request.
    let review = json!({"spec": {"user": "system:kube-proxy", "resourceAttributes":
        {"verb": "get", "resource": "nodes", "subresource": "metrics", "name": "node"}}});
    let review: SubjectAccessReview = serde_json::from_value(review).unwrap();
    let reviews: Api<SubjectAccessReview> = Api::all(node.client.clone());
    node.wait("the role to count", || async {
        let answer = reviews.create(&PostParams::default(), &review).await;
        answer.unwrap().status.is_some_and(|status| status.allowed)
    })
    .await;
    assert_eq!(node.ask(Leaf::KubeProxy, "/metrics/resource").await.0, 200);
    assert_eq!(node.ask(Leaf::KubeProxy, "/stats/summary").await.0, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_the_client_ca_file_get_in_beside_the_clusters() {
    let node = TestNode::start_changed(Fake::new(), |kubelet, directory| {
        let other = directory.join("other");
        Pki::ensure(&other, &Names::default()).unwrap();
        let file = directory.join("clients.crt");
        std::fs::copy(other.join("ca.crt"), &file).unwrap();
        kubelet.authentication.x509.client_ca_file = file.display().to_string();
    })
    .await;
    let other = Pki::ensure(&node.path("other"), &Names::default()).unwrap();
    let third = Pki::ensure(&node.path("third"), &Names::default()).unwrap();
    assert_eq!(node.ask(Leaf::Admin, "/healthz").await.0, 200);
    let of_other = node.ask_of(&other, Leaf::Admin, "/healthz").await;
    assert_eq!(of_other.map(|(status, _)| status), Some(200));
    let without_rights = node.ask_of(&other, Leaf::Scheduler, "/healthz").await;
    assert_eq!(without_rights.map(|(status, _)| status), Some(403));
    assert_eq!(node.ask_of(&third, Leaf::Admin, "/healthz").await, None);
    // The file is watched; an invalid bundle changes nothing.
    std::fs::write(node.path("clients.crt"), "nonsense").unwrap();
    assert!(node.ask_of(&other, Leaf::Admin, "/healthz").await.is_some());
    std::fs::copy(node.path("third/ca.crt"), node.path("clients.crt")).unwrap();
    let of_third = node.ask_of(&third, Leaf::Admin, "/healthz").await;
    assert_eq!(of_third.map(|(status, _)| status), Some(200));
    assert_eq!(node.ask_of(&other, Leaf::Admin, "/healthz").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn permission_to_read_the_node_does_not_permit_exec() {
    let node = TestNode::start().await;
    for (path, verb) in [
        ("/exec/default/web/web?command=id", "create"),
        ("/attach/default/web/web", "create"),
        ("/portForward/default/web", "create"),
        ("/containerLogs/default/web/web", "get"),
    ] {
        let (status, reported) = node.ask(Leaf::Scheduler, path).await;
        let expected = format!("verb={verb}, resource=nodes, subresource(s)=[proxy]");
        assert!(
            status == 403 && reported.contains(&expected),
            "{path}: {status} {reported}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_is_the_runtimes_to_make() {
    let node = TestNode::start().await;
    node.create(
        "web",
        json!({"containers": [{"name": "web", "image": "here:1"}]}),
    )
    .await;
    node.shows("web", "/phase", "Running").await;
    for (path, status, expected) in [
        ("/checkpoint/default/no/web", 404, "pod does not exist"),
        (
            "/checkpoint/default/web/no",
            404,
            "container no does not exist",
        ),
        (
            "/checkpoint/default/web/web?timeout=x",
            404,
            "cannot parse value of timeout parameter",
        ),
        // The fake runtime cannot checkpoint.
        (
            "/checkpoint/default/web/web",
            500,
            "checkpointing of default/web/web failed (",
        ),
    ] {
        let (answered, reported) = node.post(Leaf::Admin, path).await;
        assert!(
            answered == status && reported.starts_with(expected),
            "{path}: {answered} {reported}"
        );
    }
    assert_eq!(
        node.post(Leaf::Scheduler, "/checkpoint/default/web/web")
            .await
            .0,
        403
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_containers_log_is_linked_where_log_shippers_look() {
    let node = TestNode::start().await;
    let spec = json!({"terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "here:1"}]});
    let pod = node.create("web", spec).await;
    node.shows("web", "/phase", "Running").await;
    let links = || {
        let entries = std::fs::read_dir(node.path("logs/containers")).unwrap();
        let entries = entries.map(|entry| entry.unwrap().path());
        entries.collect::<Vec<_>>()
    };
    let all = links();
    assert_eq!(all.len(), 1, "{all:?}");
    let name = all[0].file_name().unwrap().to_str().unwrap();
    assert!(
        name.starts_with("web_default_main-") && name.ends_with(".log"),
        "{name}"
    );
    let uid = pod.metadata.uid.unwrap();
    let log = node
        .path("logs/pods")
        .join(format!("default_web_{uid}/main/0.log"));
    assert_eq!(std::fs::read_link(&all[0]).unwrap(), log);
    let now = DeleteParams::default();
    node.pods().delete("web", &now).await.unwrap();
    node.wait("the link to go", || async { links().is_empty() })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn head_over_http2_has_headers_and_no_body() {
    let node = TestNode::start().await;
    let answer = node.head(Leaf::Admin, "/healthz").await;
    assert_eq!(
        (answer.status, answer.length, answer.body.as_str()),
        (200, Some(2), "")
    );
    let refused = node.head(Leaf::Scheduler, "/healthz").await;
    assert_eq!((refused.status, refused.body.as_str()), (403, ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_summary_and_the_metrics_agree_about_pods_and_the_node() {
    let node = TestNode::start().await;
    node.create(
        "web",
        json!({"containers": [{"name": "web", "image": "here:1"}]}),
    )
    .await;
    node.shows("web", "/phase", "Running").await;
    let (status, body) = node.ask(Leaf::Admin, "/stats/summary").await;
    assert_eq!(status, 200, "{body}");
    let summary: Value = serde_json::from_str(&body).unwrap();
    let of = |path: &str| summary.pointer(path).cloned().unwrap_or_default();
    for path in [
        "/node/cpu/usageCoreNanoSeconds",
        "/node/memory/workingSetBytes",
        "/node/fs/capacityBytes",
        "/node/runtime/imageFs/capacityBytes",
        "/node/rlimit/maxpid",
    ] {
        assert!(of(path).as_u64() > Some(0), "{path}: {}", of(path));
    }
    let started: jiff::Timestamp = of("/node/startTime").as_str().unwrap().parse().unwrap();
    let boot = std::fs::read_to_string("/proc/stat").unwrap();
    let boot = boot
        .lines()
        .find_map(|line| line.strip_prefix("btime "))
        .unwrap();
    assert_eq!(started.as_second(), boot.parse::<i64>().unwrap());
    assert_eq!(of("/pods/0/podRef/name"), "web");
    assert_eq!(of("/pods/0/containers/0/memory/workingSetBytes"), 1 << 20);
    assert_ne!(of("/pods/0/containers/0/startTime"), Value::Null);
    let (_, page) = node.ask(Leaf::Admin, "/metrics/resource").await;
    let line =
        "container_cpu_usage_seconds_total{container=\"web\",namespace=\"default\",pod=\"web\"} 5 ";
    assert!(page.contains(line), "{page}");
    assert!(page.contains("resource_scrape_error 0"), "{page}");
    let (_, page) = node.ask(Leaf::Admin, "/metrics/cadvisor").await;
    assert!(
        page.contains("container_memory_working_set_bytes{container=\"web\""),
        "{page}"
    );
    let (_, page) = node.ask(Leaf::Admin, "/metrics").await;
    assert!(page.contains("kubelet_running_pods 1"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_node_stays_deleted_until_the_kubelet_starts_again_and_owns_its_lease() {
    let mut node = TestNode::start().await;
    let nodes: Api<Node> = Api::all(node.client.clone());
    let leases: Api<Lease> = Api::namespaced(node.client.clone(), "kube-node-lease");
    let uid = async || {
        nodes
            .get_opt("node")
            .await
            .unwrap()
            .and_then(|node| node.metadata.uid)
    };
    let owner = async || {
        let lease = leases.get_opt("node").await.unwrap()?;
        Some(lease.metadata.owner_references?.first()?.uid.clone())
    };
    let first = uid().await;
    node.wait("the lease", || async {
        owner().await == first && first.is_some()
    })
    .await;
    nodes
        .delete("node", &DeleteParams::default())
        .await
        .unwrap();
    // The kubelet notices the deletion and has a reason to write a status: the runtime changes,
    // too.
    node.stays("the node is gone", || async { uid().await.is_none() })
        .await;
    node.stop_kubelet().await;
    node.start_kubelet();
    node.wait("a new node with its lease", || async {
        let now = uid().await;
        now.is_some() && now != first && owner().await == now
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_declares_what_pods_may_need_of_it() {
    let node = TestNode::start().await;
    let nodes: Api<Node> = Api::all(node.client.clone());
    node.wait("features to be declared", || async {
        let shown = nodes.get("node").await.unwrap().status.unwrap();
        let declared = shown.declared_features.unwrap_or_default();
        declared.contains(&"RestartAllContainersOnContainerExits".to_owned())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_and_resources_that_others_write_stay_on_the_node() {
    let node = TestNode::start().await;
    let nodes: Api<Node> = Api::all(node.client.clone());
    let foreign = json!({"status": {
        "capacity": {"example.com/gpu": "3"},
        "conditions": [{"type": "Frozen", "status": "False", "reason": "Warm", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}],
    }});
    let params = PatchParams::default();
    nodes
        .patch_status("node", &params, &Patch::Strategic(foreign))
        .await
        .unwrap();
    node.wait("the kubelet to offer what was added", || async {
        let shown = nodes.get("node").await.unwrap().status.unwrap();
        let amount = shown.allocatable.unwrap().get("example.com/gpu").cloned();
        let types: Vec<String> = shown
            .conditions
            .unwrap()
            .into_iter()
            .map(|c| c.type_)
            .collect();
        amount.is_some_and(|amount| amount.0 == "3")
            && types.contains(&"Frozen".to_owned())
            && types.contains(&"Ready".to_owned())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_beyond_its_share_of_the_disk_is_evicted() {
    let node = TestNode::start().await;
    let limits = json!({"limits": {"ephemeral-storage": "10Mi"}});
    let container = json!({"name": "greedy", "image": "here:1", "resources": limits});
    node.create("greedy", json!({"containers": [container]}))
        .await;
    node.create(
        "modest",
        json!({"containers": [{"name": "modest", "image": "here:1"}]}),
    )
    .await;
    node.shows("greedy", "/phase", "Running").await;
    node.shows("modest", "/phase", "Running").await;
    node.runtime
        .state
        .lock()
        .written
        .insert("greedy".into(), 11 << 20);
    node.shows("greedy", "/reason", "Evicted").await;
    node.shows("greedy", "/phase", "Failed").await;
    let status = node.status("greedy").await;
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("ephemeral") && message.contains("10Mi"),
        "{message}"
    );
    node.wait("its container to be stopped at once", || async {
        let state = node.runtime.state.lock();
        state
            .stops
            .iter()
            .any(|(name, grace)| name == "greedy" && *grace <= 2)
    })
    .await;
    assert_eq!(node.status("modest").await["phase"], "Running");
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_to_the_hosts_file_count_as_usage_of_the_container() {
    let node = TestNode::start().await;
    let limits = json!({"limits": {"ephemeral-storage": "4Mi"}});
    let container = json!({"name": "a", "image": "here:1", "resources": limits});
    let pod = node.create("p", json!({"containers": [container]})).await;
    node.shows("p", "/phase", "Running").await;
    let hosts = node.path("kubelet/pods").join(pod.metadata.uid.unwrap());
    let hosts = hosts.join("etc-hosts");
    assert!(hosts.is_file());
    std::fs::write(&hosts, vec![b'#'; 6 << 20]).unwrap();
    node.shows("p", "/reason", "Evicted").await;
    let message = node.status("p").await["message"].clone();
    let message = message.as_str().unwrap();
    assert!(message.contains("ephemeral"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_in_the_place_of_a_log_is_not_read() {
    let node = TestNode::start().await;
    node.create(
        "web",
        json!({"containers": [{"name": "web", "image": "here:1"}]}),
    )
    .await;
    node.shows("web", "/phase", "Running").await;
    let log = node.runtime.container("web").unwrap().status.log_path;
    let path = "/containerLogs/default/web/web";
    assert_eq!(node.ask(Leaf::Admin, path).await.1, "hello\n");
    let secret = node.path("secret");
    std::fs::write(&secret, "2026-01-01T00:00:00Z stdout F secret\n").unwrap();
    std::fs::remove_file(&log).unwrap();
    std::os::unix::fs::symlink(&secret, &log).unwrap();
    let (_, reported) = node.ask(Leaf::Admin, path).await;
    assert!(!reported.contains("secret"), "{reported}");
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_of_unknown_pods_are_removed() {
    let mut node = TestNode::start().await;
    node.create(
        "web",
        json!({"containers": [{"name": "web", "image": "here:1"}]}),
    )
    .await;
    node.shows("web", "/phase", "Running").await;
    node.stop_kubelet().await;
    let logs = node.path("logs/pods");
    let orphan = logs.join("default_gone_0123-4567/gone");
    std::fs::create_dir_all(&orphan).unwrap();
    std::fs::write(orphan.join("0.log"), "").unwrap();
    node.start_kubelet();
    // The logs of the running pod stay.
    node.wait("the orphan's logs alone to go", || async {
        std::fs::read_dir(&logs).unwrap().count() == 1
    })
    .await;
    assert!(!orphan.exists());
}
