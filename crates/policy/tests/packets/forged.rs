//! Forged ICMP errors: conntrack counts an error as part of the connection that it quotes, so that it would be judged
//! as that connection.

use std::{
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use network::netns;
use network_lab as lab;
use serde_json::json;

use crate::lab_node::{ID, LabNode, at};

const SHORT: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(20);

/// A client with an answered datagram.
async fn connected(node: &LabNode, pod: &str, to: SocketAddr) -> UdpSocket {
    let connect = move || {
        let socket = UdpSocket::bind((if to.is_ipv4() { "0.0.0.0" } else { "::" }, 0)).unwrap();
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.send(b"hello").unwrap();
        socket.recv(&mut [0; 64]).unwrap();
        socket.set_read_timeout(Some(SHORT)).unwrap();
        socket
    };
    netns::run(node.pods[pod].path(), connect).await.unwrap()
}

#[test]
fn an_isolated_pod_cannot_send_errors_about_connections_of_others() {
    lab::node(|outside| async move {
        let mut node = LabNode::start(outside).await;
        node.namespace("x", json!({}));
        node.start_pod("x", "prisoner", json!({"pod": "prisoner"}))
            .await;
        let accomplice = node.start_pod("x", "accomplice", json!({})).await;
        let server = node.start_pod("x", "server", json!({})).await;
        let isolated =
            json!({"podSelector": {"matchLabels": {"pod": "prisoner"}}, "policyTypes": ["Egress"]});
        for (client, server) in accomplice.into_iter().zip(server) {
            let server = at(server, 80);
            for is_isolated in [false, true] {
                node.no_policies();
                if is_isolated {
                    node.policy("x", "isolated", isolated.clone());
                }
                node.settle().await;
                // Pods of the built-in network are kept from it in any case, those of plugins are not.
                lab::command(&format!("nft flush chain inet mainstay-{ID} errors"));
                let socket = connected(&node, "accomplice", server).await;
                let port = socket.local_addr().unwrap().port();
                let message = lab::port_unreachable(at(client, port), server);
                let forge = move || lab::send_icmp(client, &message);
                netns::run(node.pods["prisoner"].path(), forge)
                    .await
                    .unwrap();
                let error = socket.recv(&mut [0; 64]).unwrap_err().kind();
                let expected = match is_isolated {
                    true => ErrorKind::WouldBlock,
                    false => ErrorKind::ConnectionRefused,
                };
                assert_eq!(error, expected, "{server}, isolated: {is_isolated}");
            }
        }
    });
}

#[test]
fn an_isolated_pod_can_refuse_its_own_connections() {
    lab::node(|outside| async move {
        let mut node = LabNode::start(outside).await;
        node.namespace("x", json!({}));
        node.start_pod("x", "client", json!({})).await;
        let server = node
            .start_pod("x", "server", json!({"pod": "server"}))
            .await;
        let spec = json!({"podSelector": {"matchLabels": {"pod": "server"}}, "policyTypes": ["Ingress", "Egress"],
                          "ingress": [{}]});
        node.policy("x", "server", spec);
        node.settle().await;
        for ip in server {
            let closed = at(ip, 4444);
            let ask = move || {
                let socket =
                    UdpSocket::bind((if ip.is_ipv4() { "0.0.0.0" } else { "::" }, 0)).unwrap();
                socket.connect(closed).unwrap();
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                socket.send(b"hello").unwrap();
                socket.recv(&mut [0; 64]).unwrap_err().kind()
            };
            let error = netns::run(node.pods["client"].path(), ask).await.unwrap();
            assert_eq!(error, ErrorKind::ConnectionRefused, "{ip}");
        }
    });
}
