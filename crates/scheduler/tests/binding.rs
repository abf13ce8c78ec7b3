//! The scheduler on a real API server: pods get nodes, wait with a reason, and are woken by what
//! helps them.

#![allow(clippy::unwrap_used)]

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use apiserver::{ApiServer, ObjectCodec, Registry, User};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use lifecycle::{Context, Health, Service};
use serde_json::json;
use stdx::SystemClock;
use tokio_util::sync::CancellationToken;

fn server(directory: &tempfile::TempDir) -> Arc<ApiServer> {
    let pki =
        Arc::new(pki::Pki::ensure(&directory.path().join("pki"), &pki::Names::default()).unwrap());
    let registry = Registry::builtin();
    let codec = ObjectCodec::new(registry.clone());
    let store = store::embedded::Embedded::open(directory.path().join("store"), codec).unwrap();
    let config = apiserver::Config {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        advertise: SocketAddr::from((Ipv4Addr::LOCALHOST, 6443)),
        tls: pki.apiserver_config().unwrap(),
        kubelet_tls: None,
        service_cidrs: vec![(Ipv4Addr::new(10, 43, 0, 0).into(), 16)],
        node_ports: 30000..=32767,
        client_ca: pki.ca().pem().to_owned(),
        front_proxy_ca: pki.front_proxy_ca().pem().to_owned(),
        health: Health::default(),
        clock: Arc::new(SystemClock),
        limits: apiserver::Limits::default(),
        endings: std::sync::Arc::new(apiserver::RandomEndings),
        token_auth_file: None,
        audit: None,
        admission: apiserver::admission::Options::default(),
        tokens: None,
    };
    config.build(store, registry).unwrap()
}

async fn until(what: &str, pods: &Api<Pod>, name: &str, wanted: impl Fn(&Pod) -> bool) -> Pod {
    let reached = async {
        loop {
            let pod = pods.get(name).await.unwrap();
            if wanted(&pod) {
                return pod;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let reached = tokio::time::timeout(Duration::from_secs(30), reached).await;
    reached.unwrap_or_else(|_| panic!("never happened: {what}"))
}

fn waits(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions
        .iter()
        .find(|c| c.type_ == "PodScheduled" && c.status == "False")?;
    found.message.clone()
}

fn is_on(pod: &Pod, node: &str) -> bool {
    pod.spec.as_ref().unwrap().node_name.as_deref() == Some(node)
}

async fn pod(pods: &Api<Pod>, name: &str, cpu: &str) {
    let pod = json!({
        "metadata": {"name": name},
        "spec": {"containers": [
            {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}},
        ]},
    });
    let pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
}

async fn node(nodes: &Api<Node>, name: &str, cpu: &str) {
    let node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    // Admission may have tainted a node that has not said anything yet.
    let spec = json!({"spec": {"taints": null}});
    nodes
        .patch(name, &PatchParams::default(), &Patch::Merge(&spec))
        .await
        .unwrap();
    let amounts = json!({"cpu": cpu, "memory": "4Gi", "pods": "10"});
    let status = json!({"status": {"allocatable": amounts, "capacity": amounts}});
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_get_nodes_wait_with_a_reason_and_are_woken_by_what_helps() {
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory);
    let stop = CancellationToken::new();
    let context = Context::standalone("test", stop.clone());
    tokio::spawn(server.clone().run(context.clone()));
    server.address().await;
    let admin = client::in_process(server.connect(User::new("admin", ["system:masters"])));
    let own = client::in_process(server.connect(User::new("system:kube-scheduler", [""; 0])));
    let scheduler = Arc::new(scheduler::Config::new(own).build());
    let diagnoses = scheduler.diagnoses();
    tokio::spawn(scheduler.run(context));
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    let default = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
    // The server may have made it already.
    let _ = namespaces.create(&PostParams::default(), &default).await;
    // A controller's work, without which no pod is admitted.
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), "default");
    let account = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
    accounts
        .create(&PostParams::default(), &account)
        .await
        .unwrap();
    let pods: Api<Pod> = Api::namespaced(admin.clone(), "default");
    let nodes: Api<Node> = Api::all(admin.clone());

    pod(&pods, "early", "1").await;
    let early = until("a reason without nodes", &pods, "early", |pod| {
        waits(pod).is_some()
    })
    .await;
    assert_eq!(
        waits(&early).unwrap(),
        "no nodes available to schedule pods"
    );

    node(&nodes, "n1", "2").await;
    until("the first pod on the first node", &pods, "early", |pod| {
        is_on(pod, "n1")
    })
    .await;

    pod(&pods, "large", "3").await;
    let text = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: \
                1 Preemption is not helpful for scheduling.";
    let large = until("a reason", &pods, "large", |pod| {
        waits(pod).as_deref() == Some(text)
    })
    .await;
    let diagnosis = diagnoses
        .get(large.metadata.uid.as_deref().unwrap())
        .unwrap();
    assert_eq!(
        (&*diagnosis.nodes[0].0, diagnosis.nodes[0].1),
        ("n1", "NodeResourcesFit")
    );

    pod(&pods, "second", "1").await;
    until("the node is full", &pods, "second", |pod| is_on(pod, "n1")).await;
    pod(&pods, "third", "1").await;
    until("no room", &pods, "third", |pod| waits(pod).is_some()).await;
    pods.delete("early", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    until("room was made", &pods, "third", |pod| is_on(pod, "n1")).await;

    node(&nodes, "n2", "8").await;
    until("a larger node", &pods, "large", |pod| is_on(pod, "n2")).await;
    stop.cancel();
}
