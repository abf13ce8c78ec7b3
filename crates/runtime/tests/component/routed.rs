//! Pods in the built-in network, through the socket: ready once the node has a pod CIDR, reachable
//! from each other and by host ports.

use std::{
    io::{Read, Write},
    net::SocketAddr,
    path::PathBuf,
};

use cri::v1;

use crate::support::{Node, container_config, sandbox_config};

#[tokio::test(flavor = "multi_thread")]
async fn pods_get_addresses_of_the_nodes_range_and_ports_of_the_node() {
    let node = Node::with_handlers(&["--own-network=1", "--routed=192.0.2.1"]).await;
    let mut runtime = node.cri.clone().runtime;
    let mut condition = async || {
        let status = runtime.status(v1::StatusRequest { verbose: false }).await;
        let conditions = status.unwrap().into_inner().status.unwrap().conditions;
        let network = conditions.into_iter().find(|c| c.r#type == "NetworkReady");
        network.unwrap()
    };
    let early = condition().await;
    assert!(
        !early.status && early.message.contains("no pod CIDR"),
        "{early:?}"
    );
    let range = v1::UpdateRuntimeConfigRequest {
        runtime_config: Some(v1::RuntimeConfig {
            network_config: Some(v1::NetworkConfig {
                pod_cidr: "10.42.7.0/24".into(),
            }),
        }),
    };
    node.cri
        .clone()
        .runtime
        .update_runtime_config(range)
        .await
        .unwrap();
    assert!(condition().await.status);

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
    let request = v1::PodSandboxStatusRequest {
        pod_sandbox_id: web.clone(),
        verbose: false,
    };
    let status = node.cri.clone().runtime.pod_sandbox_status(request).await;
    let network = status
        .unwrap()
        .into_inner()
        .status
        .unwrap()
        .network
        .unwrap();
    assert!(network.ip.starts_with("10.42.7."), "{network:?}");

    let client = node.run_sandbox(sandbox_config(&node, "client")).await;
    let idle = node
        .run(&client, container_config("idle", &["sleep"]))
        .await;
    for url in [
        format!("http://{}:8080/", network.ip),
        "http://192.0.2.1:18080/".to_owned(),
    ] {
        let output = node.exec(&idle, &["/mainstay", "hello", "get", &url]).await;
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "web\n",
            "{url}: {output:?}"
        );
    }
    let netns = PathBuf::from(format!("/proc/{}/ns/net", node.daemon_pid()));
    let ask = || {
        network::netns::run(&netns, || {
            let address: SocketAddr = ([192, 0, 2, 1], 18080).into();
            let mut stream = std::net::TcpStream::connect(address)?;
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            std::io::Result::Ok(answer)
        })
    };
    assert!(ask().await.unwrap().unwrap().ends_with("web\n"));
    node.remove_sandbox(&web).await;
    assert!(ask().await.unwrap().is_err(), "the port is closed");
    node.remove_sandbox(&client).await;
    node.wait_for("everything to be gone", || node.leftovers().is_empty())
        .await;
}
