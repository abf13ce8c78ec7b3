//! The server on real sockets, in a network namespace of its own with its own resolvers.

#![allow(clippy::unwrap_used)]

use std::{
    convert::Infallible,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use dns::{Config, cluster::Cluster};
use hickory_proto::{
    op::{Message, Query, ResponseCode},
    rr::{Name, RData, Record, RecordType, rdata::A},
};
use lifecycle::Context;
use network_lab as lab;
use serde_json::json;
use tokio_util::sync::CancellationToken;

const LISTEN: &str = "192.0.2.1:10053";

async fn start(resolv_conf: &str) -> tempfile::TempDir {
    start_with(resolv_conf, None).await.0
}

/// A server that watches its settings.
async fn start_with(resolv_conf: &str, corefile: Option<&str>) -> (tempfile::TempDir, Cluster) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("resolv.conf"), resolv_conf).unwrap();
    let unreachable = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Ok::<_, Infallible>(http::Response::new(kube::client::Body::empty()))
    });
    let client = kube::Client::new(unreachable, "default");
    let cluster = Cluster::offline(&client);
    let service = |name: &str, spec: serde_json::Value| {
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "Service", "spec": spec,
            "metadata": {"name": name, "namespace": "default", "uid": name}}))
        .unwrap()
    };
    cluster
        .services
        .upsert(service("web", json!({"clusterIP": "10.43.0.9"})));
    cluster.services.upsert(service(
        "out",
        json!({"type": "ExternalName", "externalName": "example.org"}),
    ));
    let server = Config {
        client,
        saved: None,
        metrics: None,
        holder: None,
        listen: vec![LISTEN.parse().unwrap()],
        cluster_domain: "cluster.local".into(),
        cluster_dns: vec!["10.43.0.10".parse().unwrap()],
        own_ranges: vec![],
        resolv_conf: directory.path().join("resolv.conf"),
        clock: std::sync::Arc::new(stdx::SystemClock),
    };
    let server = server.build().unwrap();
    if let Some(corefile) = corefile {
        set_corefile(&cluster, corefile);
    }
    let with = cluster.clone();
    tokio::spawn(async move {
        let context = Context::standalone("dns", CancellationToken::new());
        server.serve(with, &context).await.unwrap();
    });
    let deadline = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(LISTEN).is_err() {
        assert!(Instant::now() < deadline, "the server never listens");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    (directory, cluster)
}

fn set_corefile(cluster: &Cluster, text: &str) {
    let map = json!({"metadata": {"name": "coredns", "namespace": "kube-system", "uid": "c"},
                     "data": {"Corefile": text, "NodeHosts": "192.0.2.44 n1.example\n"}});
    cluster
        .settings
        .upsert(serde_json::from_value(map).unwrap());
}

/// Asks until the answer matches.
async fn until(name: &'static str, expected: &[&str]) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let found = data(&blocking(move || ask_udp(name)).await);
        if found == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{name}: {found:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn query(name: &str) -> Message {
    let mut request = Message::query();
    request.metadata.recursion_desired = true;
    request.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    request
}

fn ask_udp(name: &str) -> Message {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(15)))
        .unwrap();
    let request = query(name);
    socket.send_to(&request.to_vec().unwrap(), LISTEN).unwrap();
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).unwrap();
    let reply = Message::from_vec(&buffer[..length]).unwrap();
    assert_eq!(reply.metadata.id, request.metadata.id);
    reply
}

fn ask_tcp(name: &str) -> Message {
    let mut stream = TcpStream::connect(LISTEN).unwrap();
    let bytes = query(name).to_vec().unwrap();
    stream
        .write_all(&u16::try_from(bytes.len()).unwrap().to_be_bytes())
        .unwrap();
    stream.write_all(&bytes).unwrap();
    Message::from_vec(&read_framed(&mut stream)).unwrap()
}

fn read_framed(stream: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut bytes = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// A resolver that answers every name with one address and counts queries.
fn resolver(at: &str) -> Arc<AtomicUsize> {
    let asked = Arc::new(AtomicUsize::new(0));
    let at: SocketAddr = at.parse().unwrap();
    let (socket, listener) = (UdpSocket::bind(at).unwrap(), TcpListener::bind(at).unwrap());
    let answer = |bytes: &[u8]| {
        let request = Message::from_vec(bytes).unwrap();
        let mut reply = Message::response(request.metadata.id, request.metadata.op_code);
        reply.add_queries(request.queries.clone());
        let name = request.queries[0].name().clone();
        reply.add_answer(Record::from_rdata(
            name,
            60,
            RData::A(A::new(203, 0, 113, 5)),
        ));
        reply.to_vec().unwrap()
    };
    let count = asked.clone();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            count.fetch_add(1, Ordering::SeqCst);
            socket.send_to(&answer(&buffer[..length]), from).unwrap();
        }
    });
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let bytes = answer(&read_framed(&mut stream));
            stream
                .write_all(&u16::try_from(bytes.len()).unwrap().to_be_bytes())
                .unwrap();
            stream.write_all(&bytes).unwrap();
        }
    });
    asked
}

fn data(reply: &Message) -> Vec<String> {
    reply
        .answers
        .iter()
        .map(|record| record.data.to_string())
        .collect()
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[test]
fn names_of_the_cluster_are_answered_on_datagrams_and_streams() {
    lab::node(|_| async {
        let _files = start("").await;
        for ask in [ask_udp, ask_tcp] {
            let reply = blocking(move || ask("web.default.svc.cluster.local.")).await;
            assert_eq!(data(&reply), ["10.43.0.9"]);
        }
    });
}

#[test]
fn other_names_are_forwarded_to_the_nodes_resolvers() {
    lab::node(|_| async {
        let asked = resolver("127.0.0.1:53");
        // The first server does not exist and the second is our own; the third answers.
        let _files =
            start("nameserver 192.0.2.77\nnameserver 10.43.0.10\nnameserver 127.0.0.1\n").await;
        lab::command("ip route add unreachable 192.0.2.77");
        for ask in [ask_udp, ask_tcp] {
            let reply = blocking(move || ask("example.org.")).await;
            assert_eq!(data(&reply), ["203.0.113.5"]);
        }
        let reply = blocking(|| ask_udp("out.default.svc.cluster.local.")).await;
        assert_eq!(data(&reply), ["example.org.", "203.0.113.5"]);
        // The CNAME's target is cached from the first query.
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    });
}

/// Answers every name over TCP with this many addresses.
fn long_resolver(at: &str, count: u8) {
    let listener = TcpListener::bind(at).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let request = Message::from_vec(&read_framed(&mut stream)).unwrap();
            let mut reply = Message::response(request.metadata.id, request.metadata.op_code);
            reply.add_queries(request.queries.clone());
            let name = request.queries[0].name();
            reply.add_answers((0..count).map(|number| {
                let address = RData::A(A::new(203, 0, 113, number));
                Record::from_rdata(name.clone(), 60, address)
            }));
            let bytes = reply.to_vec().unwrap();
            let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
            stream.write_all(&[&length[..], &bytes].concat()).unwrap();
        }
    });
}

#[test]
fn a_forwarded_reply_is_as_long_as_the_clients_datagrams() {
    lab::node(|_| async {
        long_resolver("127.0.0.1:53", 60);
        let corefile = ".:53 {\n forward . 127.0.0.1 {\n force_tcp\n }\n cache 30\n kubernetes cluster.local\n}\n";
        let _running = start_with("", Some(corefile)).await;
        until("web.default.svc.cluster.local.", &["10.43.0.9"]).await;
        // Forwarded, and from the cache.
        for _ in 0..2 {
            let reply = blocking(|| ask_udp("long.example.")).await;
            let length = reply.to_vec().unwrap().len();
            assert!(reply.metadata.truncation && length <= 512, "{length}");
            assert!(!reply.answers.is_empty());
            let reply = blocking(|| ask_tcp("long.example.")).await;
            assert_eq!(
                (reply.answers.len(), reply.metadata.truncation),
                (60, false)
            );
        }
    });
}

#[test]
fn without_a_resolver_other_names_fail() {
    lab::node(|_| async {
        let _files = start("search nowhere\n").await;
        let reply = blocking(|| ask_udp("example.org.")).await;
        assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
    });
}

#[test]
fn a_forwarding_loop_makes_no_storm() {
    lab::node(|_| async {
        let _files = start("nameserver 127.0.0.1\n").await;
        // Sends every query back to us.
        let socket = UdpSocket::bind("127.0.0.1:53").unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        thread::spawn(move || {
            let back = UdpSocket::bind("0.0.0.0:0").unwrap();
            let mut buffer = [0; 4096];
            while let Ok((length, _)) = socket.recv_from(&mut buffer) {
                count.fetch_add(1, Ordering::SeqCst);
                back.send_to(&buffer[..length], LISTEN).unwrap();
            }
        });
        let reply = blocking(|| ask_udp("example.org.")).await;
        assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
        assert_eq!(asked.load(Ordering::SeqCst), 2, "once per round");
    });
}

#[test]
fn corefile_changes_take_effect() {
    lab::node(|_| async {
        let (home, stub) = (resolver("127.0.0.1:53"), resolver("127.0.0.2:5353"));
        let corefile = |address: &str| {
            format!(
                "corp.example:53 {{\n forward . 127.0.0.2:5353\n cache 30\n}}\n\
                 .:53 {{\n hosts /etc/coredns/NodeHosts {{\n {address} static.example\n fallthrough\n }}\n\
                 rewrite name old.example web.default.svc.cluster.local\n\
                 kubernetes cluster.local\n forward . /etc/resolv.conf\n}}\n"
            )
        };
        let (_files, cluster) =
            start_with("nameserver 127.0.0.1\n", Some(&corefile("192.0.2.9"))).await;
        until("static.example.", &["192.0.2.9"]).await;
        until("n1.example.", &["192.0.2.44"]).await;
        until("old.example.", &["10.43.0.9"]).await;
        // The first query of a stub zone is forwarded, the second is cached.
        until("a.corp.example.", &["203.0.113.5"]).await;
        until("a.corp.example.", &["203.0.113.5"]).await;
        assert_eq!(
            (home.load(Ordering::SeqCst), stub.load(Ordering::SeqCst)),
            (0, 1)
        );
        // Without `cache` nothing is cached.
        until("b.example.", &["203.0.113.5"]).await;
        until("b.example.", &["203.0.113.5"]).await;
        assert_eq!(home.load(Ordering::SeqCst), 2);
        set_corefile(&cluster, &corefile("192.0.2.10"));
        until("static.example.", &["192.0.2.10"]).await;
        // An invalid Corefile changes nothing.
        set_corefile(&cluster, ". {\n");
        set_corefile(&cluster, &corefile("192.0.2.11"));
        until("static.example.", &["192.0.2.11"]).await;
        cluster.settings.remove("kube-system", "coredns");
        until("static.example.", &["203.0.113.5"]).await;
    });
}

#[test]
fn a_resolver_that_is_silent_is_asked_last_for_a_while() {
    lab::node(|_| async {
        let asked = resolver("127.0.0.1:53");
        // Listens and never answers.
        let silent = UdpSocket::bind("127.0.0.2:53").unwrap();
        let _files = start("nameserver 127.0.0.2\nnameserver 127.0.0.1\n").await;
        let reply = blocking(|| ask_udp("a.example.")).await;
        assert_eq!(data(&reply), ["203.0.113.5"]);
        for name in ["b.example.", "c.example.", "d.example."] {
            assert_eq!(
                data(&blocking(move || ask_udp(name)).await),
                ["203.0.113.5"]
            );
        }
        assert_eq!(asked.load(Ordering::SeqCst), 4);
        silent.set_nonblocking(true).unwrap();
        let mut questions = Vec::new();
        let mut packet = [0; 512];
        while let Ok(length) = silent.recv(&mut packet) {
            questions.push(String::from_utf8_lossy(&packet[..length]).into_owned());
        }
        assert!(!questions.is_empty(), "it was asked first");
        let later = |question: &&String| !question.contains("\u{1}a\u{7}example");
        assert_eq!(questions.iter().find(later), None, "it was asked again");
    });
}

#[test]
fn clients_that_stall_keep_no_other_from_its_answer() {
    lab::node(|outside| async move {
        let _files = start("nameserver 127.0.0.1\n").await;
        // More than the server's total: without a limit per client none would be left.
        let open = || -> Vec<TcpStream> {
            let streams = (0..1500).filter_map(|_| TcpStream::connect(LISTEN).ok());
            streams.collect()
        };
        let mut stalled = network::netns::run(outside.path(), open).await.unwrap();
        let reply = blocking(|| ask_tcp("web.default.svc.cluster.local.")).await;
        assert_eq!(data(&reply), ["10.43.0.9"]);
        // Connections above the limit were closed.
        let mut last = stalled.pop().unwrap();
        let ended = blocking(move || last.read(&mut [0; 1])).await;
        assert!(!matches!(ended, Ok(1..)), "{ended:?}");
    });
}

#[test]
fn a_client_with_unanswered_names_does_not_keep_others_from_forwarding() {
    lab::node(|outside| async move {
        let socket = UdpSocket::bind("127.0.0.1:53").unwrap();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let request = Message::from_vec(&buffer[..length]).unwrap();
                let name = request.queries[0].name().clone();
                if name.to_ascii().contains("silent") {
                    continue;
                }
                let mut reply = Message::response(request.metadata.id, request.metadata.op_code);
                reply.add_queries(request.queries.clone());
                let address = RData::A(A::new(203, 0, 113, 5));
                reply.add_answer(Record::from_rdata(name, 60, address));
                socket.send_to(&reply.to_vec().unwrap(), from).unwrap();
            }
        });
        let corefile = ".:53 {\n forward . 127.0.0.1 {\n max_concurrent 300\n }\n kubernetes cluster.local\n}\n";
        let (_files, _cluster) = start_with("", Some(corefile)).await;
        let flood = || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect(LISTEN).unwrap();
            for number in 0..600 {
                let request = query(&format!("n{number}.silent.example."));
                socket.send(&request.to_vec().unwrap()).unwrap();
                // Queries of a socket are read in order: when this one is answered, the one before was read.
                let last = query("web.default.svc.cluster.local.");
                socket.send(&last.to_vec().unwrap()).unwrap();
                let mut buffer = [0; 4096];
                loop {
                    let length = socket.recv(&mut buffer).unwrap();
                    if buffer[..length].starts_with(&last.metadata.id.to_be_bytes()) {
                        break;
                    }
                }
            }
        };
        network::netns::run(outside.path(), flood).await.unwrap();
        let reply = blocking(|| ask_udp("other.example.")).await;
        assert_eq!(data(&reply), ["203.0.113.5"], "{reply}");
    });
}

#[test]
fn after_invalid_requests_the_next_one_is_answered() {
    lab::node(|_| async {
        let _files = start("nameserver 127.0.0.1\n").await;
        let header = |questions: u8| [0, 7, 1, 0, 0, questions, 0, 0, 0, 0, 0, 0].to_vec();
        // A name that points at itself, one that points beyond the message, two that point at each
        // other, a label without end, a header with wrong counts, replies, and garbage.
        let nonsense: Vec<Vec<u8>> = vec![
            [header(1), vec![0xc0, 12, 0, 1, 0, 1]].concat(),
            [header(1), vec![0xff, 0xff, 0, 1, 0, 1]].concat(),
            [header(1), vec![0xc0, 14, 0xc0, 12, 0, 1, 0, 1]].concat(),
            [header(1), vec![63; 40]].concat(),
            header(255),
            [vec![0, 7, 0x81, 0x80], vec![0xff; 60]].concat(),
            vec![],
            vec![0],
            vec![0xff; 4096],
            vec![0; 60_000],
        ];
        let again = nonsense.clone();
        blocking(move || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            for bytes in &again {
                socket.send_to(bytes, LISTEN).unwrap();
            }
        })
        .await;
        let reply = blocking(|| ask_udp("web.default.svc.cluster.local.")).await;
        assert_eq!(data(&reply), ["10.43.0.9"]);
        for bytes in nonsense {
            // The connection is answered or closed.
            blocking(move || {
                let mut stream = TcpStream::connect(LISTEN).unwrap();
                let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
                stream.write_all(&[&length[..], &bytes].concat()).unwrap();
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                let mut answer = Vec::new();
                let _ = stream.read_to_end(&mut answer);
                let code = answer.get(5).map(|flags| flags & 0xf);
                assert!(matches!(code, None | Some(1)), "{answer:?}");
            })
            .await;
        }
        let reply = blocking(|| ask_tcp("web.default.svc.cluster.local.")).await;
        assert_eq!(data(&reply), ["10.43.0.9"]);
    });
}
