//! A node with the pod network and the enforcer, with fake informers.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use lifecycle::Context;
use network::{AttachRequest, PodNetwork, nft::Nft};
use network_lab::{self as lab, NODE_IP, Namespace, OUTSIDE_IP};
use policy::{Config, Enforcer, Gated, Sources};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub(crate) const ID: &str = "0123abcd";
pub(crate) const PORTS: [u16; 2] = [80, 81];

/// The addresses of a pod on the neighbour.
pub(crate) const REMOTE: [&str; 2] = ["10.42.1.7", "fd42:0:0:1::7"];

pub(crate) struct LabNode {
    pub outside: Arc<Namespace>,
    pub network: Gated,
    pub enforcer: Arc<Enforcer>,
    pub sources: Sources,
    pub pods: BTreeMap<String, Arc<Namespace>>,
    run: CancellationToken,
    _state: tempfile::TempDir,
}

pub(crate) fn unreachable_client() -> kube::Client {
    let unreachable = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Ok::<_, Infallible>(http::Response::new(kube::client::Body::empty()))
    });
    kube::Client::new(unreachable, "default")
}

fn cidrs(all: [&str; 2]) -> Vec<network::IpNet> {
    all.iter().map(|cidr| cidr.parse().unwrap()).collect()
}

impl LabNode {
    pub(crate) async fn start(outside: Arc<Namespace>) -> Self {
        let state = tempfile::tempdir().unwrap();
        let nft = Nft::new();
        let config = network::Config {
            id: ID.into(),
            state_dir: state.path().into(),
            cluster_cidrs: cidrs(["10.42.0.0/16", "fd42::/48"]),
            service_cidrs: cidrs(["10.43.0.0/16", "fd43::/112"]),
            node_ips: vec![NODE_IP, "fd00::1".parse().unwrap()],
            mtu: 1500,
        };
        // IPv6 addresses of its own, and routes to the neighbour's pods.
        lab::command("ip address add fd00::1/64 dev wire0 nodad");
        lab::command(&format!("ip route add 10.42.1.0/24 via {OUTSIDE_IP}"));
        lab::command("ip route add fd42:0:0:1::/64 via fd00::2");
        for line in [
            "ip address add fd00::2/64 dev wire1 nodad".to_owned(),
            format!("ip address add {}/32 dev lo", REMOTE[0]),
            format!("ip address add {}/128 dev lo nodad", REMOTE[1]),
            format!("ip route add 10.42.0.0/24 via {NODE_IP} src {}", REMOTE[0]),
            format!("ip route add fd42::/64 via fd00::1 src {}", REMOTE[1]),
        ] {
            outside.command(&line).await;
        }
        // Neighbour discovery needs link-local addresses.
        let tentative = "ip -6 -o address show tentative";
        while !lab::command(tentative).is_empty() || !outside.command(tentative).await.is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let routed = config.build(nft.clone()).unwrap();
        let own = cidrs(["10.42.0.0/24", "fd42::/64"]);
        routed.set_pod_cidrs(own).await.unwrap();
        let client = unreachable_client();
        let sources = Sources::offline(&client);
        let enforcer = Config {
            id: ID.into(),
            client,
            node_name: "here".into(),
        };
        let enforcer = enforcer.build(nft);
        let network = Gated {
            network: routed,
            enforcer: enforcer.clone(),
        };
        let mut node = Self {
            outside,
            network,
            enforcer,
            sources,
            pods: BTreeMap::new(),
            run: CancellationToken::new(),
            _state: state,
        };
        node.run();
        node
    }

    /// Starts a run of the enforcer; ends the previous one.
    pub(crate) fn run(&mut self) {
        self.run.cancel();
        self.run = CancellationToken::new();
        let (enforcer, sources) = (self.enforcer.clone(), self.sources.clone());
        let context = Context::standalone("network-policy", self.run.clone());
        tokio::spawn(async move { enforcer.follow(sources, &context).await.unwrap() });
    }

    pub(crate) fn stop(&mut self) {
        self.run.cancel();
    }

    /// Returns when all changes of the informers are in the kernel.
    pub(crate) async fn settle(&self) {
        let unreachable = ("nowhere".to_owned(), "nobody".to_owned());
        let address = [IpAddr::from([10, 42, 0, 250])];
        let admitted = self.enforcer.admit("nowhere", unreachable, &address);
        admitted.await.unwrap();
    }

    pub(crate) fn namespace(&self, name: &str, labels: Value) {
        let object = json!({"metadata": {"name": name, "labels": labels}});
        let object = serde_json::from_value(object).unwrap();
        self.sources.namespaces.upsert(object);
    }

    pub(crate) fn policy(&self, namespace: &str, name: &str, spec: Value) {
        let object = json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec});
        let object = serde_json::from_value(object).unwrap();
        self.sources.policies.upsert(object);
    }

    pub(crate) fn no_policies(&self) {
        for policy in self.sources.policies.list() {
            self.sources.policies.remove(
                policy.metadata.namespace.as_deref().unwrap(),
                policy.metadata.name.as_deref().unwrap(),
            );
        }
    }

    /// Attaches a pod that answers with its name on [`PORTS`]; it is not in the API yet.
    pub(crate) async fn attach(&mut self, namespace: &str, name: &str) -> Vec<IpAddr> {
        let pod = Arc::new(Namespace::new());
        let request = AttachRequest {
            sandbox_id: name.into(),
            netns: pod.path().into(),
            namespace: namespace.into(),
            name: name.into(),
            uid: name.into(),
            ..AttachRequest::default()
        };
        let attachment = self.network.attach(request).await.unwrap();
        for port in PORTS {
            pod.serve(name, port).await;
            pod.serve_sctp(name, port).await;
        }
        self.pods.insert(name.to_owned(), pod);
        attachment.addresses
    }

    /// Adds a pod to the API.
    pub(crate) fn show(
        &self,
        namespace: &str,
        name: &str,
        labels: Value,
        node: &str,
        ips: &[IpAddr],
    ) {
        let ips: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
        let object = json!({
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"nodeName": node, "containers": [{"name": "web", "ports": [
                {"name": "first", "containerPort": 80},
                {"name": "second-udp", "containerPort": 81, "protocol": "UDP"},
                {"name": "second-sctp", "containerPort": 81, "protocol": "SCTP"}]}]},
            "status": {"phase": "Running", "podIPs": ips},
        });
        self.sources
            .pods
            .upsert(serde_json::from_value(object).unwrap());
    }

    /// Attaches a pod and adds it to the API.
    pub(crate) async fn start_pod(
        &mut self,
        namespace: &str,
        name: &str,
        labels: Value,
    ) -> Vec<IpAddr> {
        let addresses = self.attach(namespace, name).await;
        self.show(namespace, name, labels, "here", &addresses);
        addresses
    }

    /// The enforcer's table, without counters and sorted.
    pub(crate) fn table(&self) -> String {
        let listing = lab::command(&format!("nft -s list table inet mainstay-{ID}-policy"));
        let (_, inside) = listing.split_once("{\n").unwrap();
        let inside = inside.trim_end().strip_suffix('}').unwrap().trim_end();
        let mut blocks: Vec<&str> = inside.split("\n\n").collect();
        blocks.sort_unstable();
        blocks.join("\n")
    }
}

pub(crate) fn at(ip: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(ip, port)
}
