//! The built-in network as a CNI plugin: calls of a runtime, links in network namespaces.

#![allow(clippy::unwrap_used)]

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use lifecycle::{Context, Service};
use network::{
    Config, PodNetwork, RoutedNetwork,
    cni_plugin::{self, CniServer, Failure},
    nft::Nft,
    routes::Peer,
};
use network_lab::{self as lab, Namespace};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const ID: &str = "0123abcd";

struct Node {
    _files: tempfile::TempDir,
    socket: PathBuf,
    network: Arc<RoutedNetwork>,
    nodes: watch::Sender<Option<Vec<Peer>>>,
}

async fn node() -> Node {
    let files = tempfile::tempdir().unwrap();
    let config = Config {
        id: ID.into(),
        state_dir: files.path().join("network"),
        cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
        service_cidrs: vec!["10.43.0.0/16".parse().unwrap()],
        node_ips: vec![lab::NODE_IP],
        mtu: 1500,
    };
    let network = config.build(Nft::new()).unwrap();
    let (nodes, seen) = watch::channel(None);
    let socket = files.path().join("cni.sock");
    let server = Arc::new(CniServer {
        socket: socket.clone(),
        network: network.clone(),
        routed: network.clone(),
        nodes: seen,
        node_name: "n1".into(),
    });
    tokio::spawn(async move {
        let context = Context::standalone("cni", CancellationToken::new());
        server.run(context).await.unwrap();
    });
    let deadline = Instant::now() + Duration::from_secs(10);
    while !socket.exists() {
        assert!(Instant::now() < deadline, "the socket never comes");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Node {
        _files: files,
        socket,
        network,
        nodes,
    }
}

/// Whether a connection from the node itself is answered.
async fn is_answered(at: SocketAddr) -> bool {
    let asked = tokio::task::spawn_blocking(move || lab::ask_here(at));
    asked.await.unwrap().is_some()
}

impl Node {
    async fn call(
        &self,
        command: &str,
        pod: Option<&Namespace>,
        config: Value,
    ) -> Result<Value, Failure> {
        let mut config = config;
        config["name"] = json!("mainstay");
        config["type"] = json!("mainstay");
        config["socket"] = json!(self.socket);
        if config.get("cniVersion").is_none() {
            config["cniVersion"] = json!("1.1.0");
        }
        let (command, netns) = (command.to_owned(), pod.map(|pod| pod.path().to_owned()));
        let work = move || {
            let variable = |name: &str| {
                Some(match name {
                    "CNI_COMMAND" => command.clone(),
                    "CNI_CONTAINERID" => "c1".to_owned(),
                    "CNI_NETNS" => netns.as_ref()?.display().to_string(),
                    "CNI_IFNAME" => "eth0".to_owned(),
                    "CNI_ARGS" => "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web".to_owned(),
                    _ => return None,
                })
            };
            cni_plugin::answer(config.to_string().as_bytes(), variable, |_| PathBuf::new())
        };
        tokio::task::spawn_blocking(work).await.unwrap()
    }
}

#[test]
fn a_runtime_adds_checks_and_deletes_pods() {
    lab::node(|outside| async move {
        let (node, pod) = (node().await, Namespace::new());
        // Without a pod CIDR the runtime waits.
        assert_eq!(
            node.call("STATUS", None, json!({})).await.unwrap_err().code,
            50
        );
        assert_eq!(
            node.call("ADD", Some(&pod), json!({}))
                .await
                .unwrap_err()
                .code,
            11
        );
        let own = Peer {
            name: "n1".into(),
            addresses: vec![lab::NODE_IP],
            pod_cidrs: vec!["10.42.7.0/24".parse().unwrap()],
        };
        node.nodes.send_replace(Some(vec![own]));
        let deadline = Instant::now() + Duration::from_secs(10);
        while node.call("STATUS", None, json!({})).await.is_err() {
            assert!(Instant::now() < deadline, "the range never comes");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let config = json!({"runtimeConfig": {
            "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}});
        let added = node.call("ADD", Some(&pod), config).await.unwrap();
        let address = added["ips"][0]["address"].as_str().unwrap();
        assert!(address.starts_with("10.42.7."), "{added}");
        assert_eq!(added["interfaces"][1]["name"], "eth0");
        assert_eq!(added["interfaces"][1]["mtu"], 1500);
        let shown = pod.command("ip address show eth0").await;
        assert!(shown.contains(address), "{shown}");
        let mac = added["interfaces"][1]["mac"].as_str().unwrap();
        assert!(shown.contains(mac), "{shown}");
        // The pod is reachable at its address and host port.
        pod.serve("web", 80).await;
        let ip: IpAddr = address.split('/').next().unwrap().parse().unwrap();
        assert!(is_answered((ip, 80).into()).await);
        assert!(outside.ask((lab::NODE_IP, 8080).into()).await.is_some());
        let previous = json!({"prevResult": added});
        assert_eq!(
            node.call("CHECK", Some(&pod), previous.clone()).await,
            Ok(Value::Null)
        );
        pod.command("ip address flush dev eth0").await;
        assert_eq!(
            node.call("CHECK", Some(&pod), previous.clone())
                .await
                .unwrap_err()
                .code,
            3
        );
        // Attachments that the runtime lists stay, others are removed.
        let valid = json!({"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]});
        assert_eq!(node.call("GC", None, valid).await, Ok(Value::Null));
        assert!(node.network.attachment("c1").await.is_some());
        assert_eq!(node.call("DEL", None, json!({})).await, Ok(Value::Null));
        assert_eq!(
            node.call("DEL", Some(&pod), json!({})).await,
            Ok(Value::Null)
        );
        assert_eq!(
            node.call("CHECK", Some(&pod), previous)
                .await
                .unwrap_err()
                .code,
            3
        );
        assert!(!lab::command("ip link").contains(&format!("m{ID}")));
        let none = json!({"cni.dev/valid-attachments": []});
        assert!(
            node.call("ADD", Some(&pod), json!({"cniVersion": "0.4.0"}))
                .await
                .is_ok()
        );
        assert_eq!(node.call("GC", None, none).await, Ok(Value::Null));
        assert!(node.network.attachment("c1").await.is_none());
    });
}

#[test]
fn bandwidth_is_limited_on_the_nodes_side_of_the_link() {
    lab::node(|_| async {
        let (node, pod) = (node().await, Namespace::new());
        let ranges = vec!["10.42.7.0/24".parse().unwrap()];
        node.network.set_pod_cidrs(ranges).await.unwrap();
        let limits = json!({"ingressRate": 8_000_000, "ingressBurst": 1, "egressRate": 16_000_000, "egressBurst": 1});
        let config = json!({"runtimeConfig": {"bandwidth": limits}});
        let added = node.call("ADD", Some(&pod), config).await.unwrap();
        let link = added["interfaces"][0]["name"].as_str().unwrap();
        let queue = lab::command(&format!("tc qdisc show dev {link}"));
        assert!(
            queue.contains("tbf") && queue.contains("rate 8Mbit"),
            "{queue}"
        );
        assert!(queue.contains("ingress ffff:"), "{queue}");
        let all = lab::command("tc qdisc show");
        assert!(all.contains("rate 16Mbit"), "{all}");
        // Packets still pass in both directions.
        pod.serve("web", 80).await;
        let ip = added["ips"][0]["address"].as_str().unwrap();
        let ip: IpAddr = ip.split('/').next().unwrap().parse().unwrap();
        assert!(is_answered((ip, 80).into()).await);
        assert_eq!(
            node.call("DEL", Some(&pod), json!({})).await,
            Ok(Value::Null)
        );
        assert!(!lab::command("ip link").contains(&format!("m{ID}")));
    });
}
