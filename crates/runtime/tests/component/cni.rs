//! Pods with CNI plugins: scripts that record their calls, and Debian's plugins.

use std::{
    fs,
    io::{Read, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use cri::v1;
use serde_json::{Value, json};

use crate::support::{Node, container_config, sandbox_config};

/// Records each call and its input; answers ADD with an address of its own, after those of the
/// previous plugins.
const PLUGIN: &str = r#"#!/bin/sh
name=$(basename "$0")
dir=$(dirname "$0")
input=$(cat)
case "$CNI_COMMAND" in
  VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]}'; exit 0 ;;
esac
printf '%s %s %s %s %s %s\n' "$name" "$CNI_COMMAND" "$CNI_IFNAME" "$CNI_NETNS" "$CNI_CONTAINERID" "$CNI_ARGS" >>"$dir/calls"
printf '%s\n' "$input" >>"$dir/inputs"
if [ -e "$dir/fail-$CNI_COMMAND-$name" ]; then
  cat "$dir/fail-$CNI_COMMAND-$name"
  exit 1
fi
[ "$CNI_COMMAND" = ADD ] && cat "$dir/result-$name"
exit 0
"#;

struct Plugins {
    dir: tempfile::TempDir,
}

impl Plugins {
    fn new(names: &[&str]) -> Self {
        let plugins = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        for dir in ["conf", "bin"] {
            fs::create_dir(plugins.dir.path().join(dir)).unwrap();
        }
        for (number, name) in names.iter().enumerate() {
            let path = plugins.bin().join(name);
            fs::write(&path, PLUGIN).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            plugins.answer(
                name,
                &json!({
                    "cniVersion": "1.1.0",
                    "interfaces": [{ "name": "eth0", "sandbox": "/netns" }],
                    "ips": [{ "address": format!("10.77.0.{}/24", number + 5), "interface": 0 }],
                }),
            );
        }
        plugins
    }

    fn bin(&self) -> PathBuf {
        self.dir.path().join("bin")
    }

    fn answer(&self, name: &str, result: &Value) {
        fs::write(
            self.bin().join(format!("result-{name}")),
            result.to_string(),
        )
        .unwrap();
    }

    fn fail(&self, command: &str, name: &str, message: &str) {
        let said =
            json!({ "cniVersion": "1.0.0", "code": 7, "msg": message, "details": "look here" });
        let path = self.bin().join(format!("fail-{command}-{name}"));
        fs::write(path, said.to_string()).unwrap();
    }

    fn mend(&self, command: &str, name: &str) {
        fs::remove_file(self.bin().join(format!("fail-{command}-{name}"))).unwrap();
    }

    fn configure(&self, file: &str, config: &Value) {
        fs::write(self.dir.path().join("conf").join(file), config.to_string()).unwrap();
    }

    async fn node(&self) -> Node {
        self.node_with(&[]).await
    }

    async fn node_with(&self, more: &[&str]) -> Node {
        let conf = self.dir.path().join("conf");
        let setting = format!(
            "--cni={}:{}:/usr/lib/cni",
            conf.display(),
            self.bin().display()
        );
        let mut settings = vec![setting.as_str()];
        settings.extend(more);
        Node::with_handlers(&settings).await
    }

    /// Calls since the last time, without namespaces and ids.
    fn calls(&self) -> Vec<String> {
        let path = self.bin().join("calls");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        let words = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
        text.lines().map(words).collect()
    }

    fn inputs(&self) -> Vec<Value> {
        let path = self.bin().join("inputs");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

async fn network_ready(node: &Node) -> Result<(), String> {
    let request = v1::StatusRequest { verbose: false };
    let answer = node.cri.clone().runtime.status(request).await.unwrap();
    let conditions = answer.into_inner().status.unwrap().conditions;
    let condition = conditions
        .iter()
        .find(|c| c.r#type == "NetworkReady")
        .unwrap();
    if condition.status {
        return Ok(());
    }
    assert_eq!(condition.reason, "NetworkPluginNotReady");
    Err(condition.message.clone())
}

async fn try_run(node: &Node, config: v1::PodSandboxConfig) -> Result<String, String> {
    let request = v1::RunPodSandboxRequest {
        config: Some(config),
        ..Default::default()
    };
    let answer = node.cri.clone().runtime.run_pod_sandbox(request).await;
    answer
        .map(|answer| answer.into_inner().pod_sandbox_id)
        .map_err(|status| status.message().to_owned())
}

async fn addresses(node: &Node, pod: &str) -> Vec<String> {
    let request = v1::PodSandboxStatusRequest {
        pod_sandbox_id: pod.into(),
        verbose: false,
    };
    let answer = node
        .cri
        .clone()
        .runtime
        .pod_sandbox_status(request)
        .await
        .unwrap();
    let network = answer.into_inner().status.unwrap().network.unwrap();
    let more = network.additional_ips.into_iter().map(|ip| ip.ip);
    std::iter::once(network.ip).chain(more).collect()
}

fn results(node: &Node) -> usize {
    fs::read_dir(node.root.join("runtime/cni/results"))
        .unwrap()
        .count()
}

fn with_ports_bandwidth_and_dns(mut config: v1::PodSandboxConfig) -> v1::PodSandboxConfig {
    config.port_mappings = vec![v1::PortMapping {
        container_port: 80,
        host_port: 8080,
        ..Default::default()
    }];
    config.annotations = [(
        "kubernetes.io/ingress-bandwidth".to_owned(),
        "1M".to_owned(),
    )]
    .into();
    config.dns_config = Some(v1::DnsConfig {
        servers: vec!["10.43.0.10".into()],
        ..Default::default()
    });
    config
}

#[tokio::test(flavor = "multi_thread")]
async fn chained_plugins_get_their_input_and_are_deleted_in_reverse_order() {
    let plugins = Plugins::new(&["first", "second"]);
    let mut node = plugins.node().await;
    let none = network_ready(&node).await.unwrap_err();
    assert!(none.contains("no network configuration"), "{none}");
    let refused = try_run(&node, sandbox_config(&node, "early"))
        .await
        .unwrap_err();
    assert!(refused.contains("no network configuration"), "{refused}");

    plugins.configure("10-test.conflist", &json!({
        "name": "test", "cniVersion": "1.0.0",
        "plugins": [
            { "type": "first", "ipam": { "type": "nothing" } },
            { "type": "second", "capabilities": { "portMappings": true, "bandwidth": true, "dns": true } },
        ],
    }));
    network_ready(&node).await.unwrap();
    let config = with_ports_bandwidth_and_dns(sandbox_config(&node, "pod"));
    let pod = node.run_sandbox(config).await;
    assert_eq!(
        addresses(&node, &pod).await,
        ["10.77.0.6"],
        "the last plugin's word counts"
    );
    let text = fs::read_to_string(plugins.bin().join("calls")).unwrap();
    let netns = node.state.join("s").join(&pod).join("net");
    let expected = format!(
        "first ADD eth0 {} {pod} IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod;\
         K8S_POD_INFRA_CONTAINER_ID={pod};K8S_POD_UID=uid-pod",
        netns.display()
    );
    assert_eq!(text.lines().next().unwrap(), expected);
    assert_eq!(plugins.calls(), ["first ADD", "second ADD"]);
    let inputs = plugins.inputs();
    assert_eq!(
        inputs[0],
        json!({
            "type": "first", "ipam": { "type": "nothing" }, "name": "test", "cniVersion": "1.0.0",
        })
    );
    assert_eq!(inputs[1]["prevResult"]["ips"][0]["address"], "10.77.0.5/24");
    assert_eq!(
        inputs[1]["runtimeConfig"],
        json!({
            "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "" }],
            "bandwidth": { "ingressRate": 1_000_000, "ingressBurst": i32::MAX },
            "dns": { "servers": ["10.43.0.10"], "searches": [], "options": [] },
        })
    );

    // A restarted daemon runs CHECK with the same configuration.
    node.kill_daemon();
    node.launch().await;
    assert_eq!(plugins.calls(), ["first CHECK", "second CHECK"]);
    assert_eq!(
        plugins.inputs()[1]["prevResult"]["ips"][0]["address"],
        "10.77.0.6/24"
    );
    assert_eq!(addresses(&node, &pod).await, ["10.77.0.6"]);

    // A changed configuration applies only to new pods.
    plugins.configure(
        "00-new.conf",
        &json!({ "name": "new", "cniVersion": "0.3.1", "type": "first" }),
    );
    let other = node.run_sandbox(sandbox_config(&node, "other")).await;
    assert_eq!(plugins.calls(), ["first ADD"]);
    plugins.inputs();
    node.remove_sandbox(&pod).await;
    assert_eq!(plugins.calls(), ["second DEL", "first DEL"]);
    let inputs = plugins.inputs();
    assert_eq!(inputs[0]["name"], "test");
    assert_eq!(inputs[0]["prevResult"]["ips"][0]["address"], "10.77.0.6/24");
    assert_eq!(
        inputs[0]["runtimeConfig"]["portMappings"][0]["hostPort"],
        8080
    );
    node.remove_sandbox(&other).await;
    assert_eq!(plugins.calls(), ["first DEL"]);
    assert!(
        plugins.inputs()[0].get("prevResult").is_none(),
        "not before 0.4.0"
    );
    assert_eq!(results(&node), 0);
    node.wait_for("everything to be gone", || node.leftovers().is_empty())
        .await;
}

/// A plugin without a result, a missing one, and a version that none supports.
async fn check_unusable_plugins(plugins: &Plugins, node: &Node) {
    for name in ["first", "second"] {
        plugins.answer(name, &json!({ "cniVersion": "1.1.0" }));
    }
    let refused = try_run(node, sandbox_config(node, "none"))
        .await
        .unwrap_err();
    assert!(
        refused.contains("no plugin returned an IP address"),
        "{refused}"
    );
    plugins.configure(
        "00.conf",
        &json!({ "name": "x", "cniVersion": "1.0.0", "type": "absent" }),
    );
    let why = network_ready(node).await.unwrap_err();
    assert!(
        why.contains("\"absent\"") && why.contains("no such plugin"),
        "{why}"
    );
    plugins.configure(
        "00.conf",
        &json!({ "name": "x", "cniVersion": "0.2.0", "type": "first" }),
    );
    let why = network_ready(node).await.unwrap_err();
    assert!(
        why.contains("does not support configuration version 0.2.0"),
        "{why}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugins_error_is_reported_and_a_partial_network_is_undone() {
    let plugins = Plugins::new(&["first", "second"]);
    plugins.configure(
        "10.conflist",
        &json!({
            "name": "test", "cniVersion": "0.4.0", "cniVersions": ["0.4.0", "1.1.0"],
            "plugins": [{ "type": "first" }, { "type": "second" }],
        }),
    );
    let mut node = plugins.node().await;
    plugins.fail("ADD", "second", "no wires left");
    let refused = try_run(&node, sandbox_config(&node, "pod"))
        .await
        .unwrap_err();
    assert!(
        refused.contains(r#""second" failed (ADD): no wires left; look here (code 7)"#),
        "{refused}"
    );
    let calls = plugins.calls();
    let adds = calls.iter().position(|call| call == "first ADD").unwrap();
    assert_eq!(
        calls[adds..],
        ["first ADD", "second ADD", "second DEL", "first DEL"]
    );
    assert_eq!(results(&node), 0);
    node.wait_for("everything to be gone", || node.leftovers().is_empty())
        .await;
    plugins.mend("ADD", "second");

    // The higher of two versions is used, which has STATUS.
    plugins.inputs();
    plugins.fail("STATUS", "first", "the switch is off");
    let why = network_ready(&node).await.unwrap_err();
    assert!(why.contains("the switch is off"), "{why}");
    assert_eq!(plugins.inputs()[0]["cniVersion"], "1.1.0");
    plugins.mend("STATUS", "first");
    network_ready(&node).await.unwrap();

    // A pod whose DEL fails stays until it succeeds.
    let pod = node.run_sandbox(sandbox_config(&node, "stuck")).await;
    plugins.fail("DEL", "first", "busy");
    let stop = v1::StopPodSandboxRequest {
        pod_sandbox_id: pod.clone(),
    };
    let refused = node
        .cri
        .clone()
        .runtime
        .stop_pod_sandbox(stop)
        .await
        .unwrap_err();
    assert!(refused.message().contains("busy"), "{refused}");
    assert_eq!(results(&node), 1);
    plugins.mend("DEL", "first");
    node.remove_sandbox(&pod).await;
    assert_eq!(results(&node), 0);

    // GC at the next start releases what no pod uses.
    let keep = node.run_sandbox(sandbox_config(&node, "keep")).await;
    plugins.calls();
    plugins.inputs();
    node.kill_daemon();
    node.launch().await;
    let calls = plugins.calls();
    assert_eq!(
        calls,
        ["first CHECK", "second CHECK", "first GC", "second GC"]
    );
    let valid = &plugins.inputs()[2]["cni.dev/valid-attachments"];
    assert_eq!(*valid, json!([{ "containerID": keep, "ifname": "eth0" }]));

    check_unusable_plugins(&plugins, &node).await;
}

/// The node has its own network namespace, so that links and rules are removed with it.
#[tokio::test(flavor = "multi_thread")]
async fn debians_plugins_connect_pods_and_map_ports() {
    assert!(
        Path::new("/usr/lib/cni/bridge").exists(),
        "Debian's package containernetworking-plugins is needed"
    );
    let plugins = Plugins::new(&[]);
    plugins.configure("10-bridge.conflist", &json!({
        "name": "debian", "cniVersion": "1.0.0",
        "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false,
                "ipam": {
                    "type": "host-local", "dataDir": plugins.dir.path().join("leases"),
                    "ranges": [[{ "subnet": "10.123.0.0/24" }]],
                },
            },
            { "type": "portmap", "capabilities": { "portMappings": true }, "backend": "iptables" },
        ],
    }));
    let node = plugins.node_with(&["--own-network=1"]).await;
    let netns = PathBuf::from(format!("/proc/{}/ns/net", node.daemon_pid()));
    let ask = |port: u16| {
        let netns = netns.clone();
        async move {
            let asked = network::netns::run(&netns, move || {
                let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
                stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer)?;
                std::io::Result::Ok(answer)
            });
            asked.await.unwrap()
        }
    };
    network_ready(&node).await.unwrap();
    let mut config = sandbox_config(&node, "web");
    config.port_mappings = vec![v1::PortMapping {
        container_port: 8080,
        host_port: 18080,
        ..Default::default()
    }];
    let web = node.run_sandbox(config).await;
    node.run(&web, container_config("web", &[])).await;
    node.wait_for("the server", || !node.log("web", "web").is_empty())
        .await;
    let address = addresses(&node, &web).await.remove(0);
    assert!(address.starts_with("10.123.0."), "{address}");
    let client = node.run_sandbox(sandbox_config(&node, "client")).await;
    let idle = node
        .run(&client, container_config("idle", &["sleep"]))
        .await;
    let url = format!("http://{address}:8080/");
    let output = node.exec(&idle, &["/mainstay", "hello", "get", &url]).await;
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "web\n",
        "{output:?}"
    );
    // From the node to its own port.
    assert!(ask(18080).await.unwrap().ends_with("web\n"));
    let leases = |plugins: &Plugins| {
        let dir = plugins.dir.path().join("leases/debian");
        let names = fs::read_dir(dir).unwrap().flatten();
        names
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("10."))
            .count()
    };
    assert_eq!(leases(&plugins), 2);
    node.remove_sandbox(&web).await;
    node.remove_sandbox(&client).await;
    assert_eq!(leases(&plugins), 0);
    assert!(ask(18080).await.is_err(), "the port is closed");
    node.wait_for("everything to be gone", || node.leftovers().is_empty())
        .await;
}
