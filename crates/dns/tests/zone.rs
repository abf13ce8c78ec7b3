//! Tables of questions and answers, as in the specification.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;

use dns::{
    chain::Chain,
    cluster::Cluster,
    corefile,
    memo::{Memo, MemoEntry, Outcome, Template},
    reply::{self, Step, encode},
    wire,
};
use hickory_proto::{
    op::{Edns, Message, Query, ResponseCode},
    rr::{Name, RecordType},
};
use serde_json::{Value, json};

fn cluster() -> Cluster {
    let unreachable = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Ok::<_, Infallible>(http::Response::new(kube::client::Body::empty()))
    });
    let cluster = Cluster::offline(&kube::Client::new(unreachable, "default"));
    let ports =
        json!([{"name": "http", "port": 80}, {"name": "peer", "port": 7000, "protocol": "UDP"}]);
    put_service(
        &cluster,
        "web",
        json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"], "ports": ports}),
    );
    put_service(
        &cluster,
        "dual",
        json!({"clusterIP": "10.43.0.8", "clusterIPs": ["10.43.0.8", "fd00:43::8"], "ports": ports}),
    );
    put_service(
        &cluster,
        "db",
        json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": ports}),
    );
    put_service(
        &cluster,
        "idle",
        json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": ports}),
    );
    put_service(
        &cluster,
        "out",
        json!({"type": "ExternalName", "externalName": "Example.ORG"}),
    );
    put_service(
        &cluster,
        "alias",
        json!({"type": "ExternalName", "externalName": "web.default.svc.cluster.local"}),
    );
    put_slice(
        &cluster,
        "db",
        json!([
            {"addresses": ["10.42.0.1"], "hostname": "db-0"},
            {"addresses": ["10.42.0.2"], "conditions": {"ready": true}},
            {"addresses": ["10.42.0.3"], "hostname": "db-2", "conditions": {"ready": false}},
        ]),
    );
    put_slice(&cluster, "web", json!([{"addresses": ["10.42.0.7"]}]));
    cluster
}

fn put_service(cluster: &Cluster, name: &str, spec: Value) {
    let service = json!({"apiVersion": "v1", "kind": "Service", "spec": spec,
                         "metadata": {"name": name, "namespace": "default", "uid": name}});
    cluster
        .services
        .upsert(serde_json::from_value(service).unwrap());
}

fn put_slice(cluster: &Cluster, service: &str, endpoints: Value) {
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("{service}-1"), "namespace": "default", "uid": service,
                     "labels": {"kubernetes.io/service-name": service}},
        "ports": [{"name": "http", "port": 8080}, {"name": "peer", "port": 7000, "protocol": "UDP"}],
        "endpoints": endpoints,
    });
    cluster
        .slices
        .upsert(serde_json::from_value(slice).unwrap());
}

fn zone() -> Chain {
    let ranges = ["10.42.0.0/16", "10.43.0.0/16"].map(|range| range.parse().unwrap());
    let text = corefile::default_text("cluster.local");
    Chain::of_corefile(&text, "cluster.local", &ranges)
        .unwrap()
        .0
}

fn decide(zone: &Chain, cluster: &Cluster, bytes: &[u8]) -> Step {
    reply::decide(zone, cluster, bytes).0
}

fn request(name: &str, kind: RecordType) -> Message {
    let mut request = Message::query();
    request.metadata.recursion_desired = true;
    request.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    request
}

/// The answer in one line: the code, then the data of each record, sorted.
fn ask(name: &str, kind: RecordType) -> String {
    match decide(&zone(), &cluster(), &request(name, kind).to_vec().unwrap()) {
        Step::Send(reply) => {
            let mut data: Vec<String> = reply
                .answers
                .iter()
                .map(|record| record.data.to_string())
                .collect();
            data.sort();
            let nothing = data.is_empty() && reply.metadata.response_code != ResponseCode::ServFail;
            assert_eq!(
                nothing,
                !reply.authorities.is_empty(),
                "absence comes with an SOA: {name}"
            );
            assert!(reply.metadata.authoritative);
            let code = reply.metadata.response_code;
            let code = if code == ResponseCode::NoError {
                "ok".into()
            } else {
                format!("{code:?}")
            };
            format!("{code} {}", data.join(" | ")).trim().to_owned()
        }
        Step::Forward(..) => "forward".into(),
        Step::Complete(asked) => format!("complete {}", asked.question.name()),
        Step::Ignore => "ignore".into(),
    }
}

/// Names, record types, and what is answered.
fn check(table: &[(&str, RecordType, &str)]) {
    for (name, kind, expected) in table {
        assert_eq!(ask(name, *kind), *expected, "{name} {kind}");
    }
}

#[tokio::test]
async fn cluster_ips_and_ports_of_services_are_resolved() {
    use RecordType::{A, AAAA, MX, SRV};
    check(&[
        // Cluster IPs.
        ("web.default.svc.cluster.local.", A, "ok 10.43.0.9"),
        ("WEB.Default.svc.Cluster.Local.", A, "ok 10.43.0.9"),
        ("web.default.svc.cluster.local.", AAAA, "ok"),
        ("web.default.svc.cluster.local.", MX, "ok"),
        ("dual.default.svc.cluster.local.", AAAA, "ok fd00:43::8"),
        ("nope.default.svc.cluster.local.", A, "NXDomain"),
        ("web.other.svc.cluster.local.", A, "NXDomain"),
        // Names that clients try through their search list.
        ("example.org.default.svc.cluster.local.", A, "NXDomain"),
        (
            "web.default.svc.cluster.local.default.svc.cluster.local.",
            A,
            "NXDomain",
        ),
        // Ports.
        (
            "_http._tcp.web.default.svc.cluster.local.",
            SRV,
            "ok 0 100 80 web.default.svc.cluster.local.",
        ),
        ("_http._udp.web.default.svc.cluster.local.", SRV, "NXDomain"),
        ("_http._tcp.web.default.svc.cluster.local.", A, "ok"),
        ("_tcp.web.default.svc.cluster.local.", SRV, "ok"),
        (
            "_http._tcp.db.default.svc.cluster.local.",
            SRV,
            "ok 0 50 8080 10-42-0-2.db.default.svc.cluster.local. | 0 50 8080 db-0.db.default.svc.cluster.local.",
        ),
        (
            "web.default.svc.cluster.local.",
            SRV,
            "ok 0 50 7000 web.default.svc.cluster.local. | 0 50 80 web.default.svc.cluster.local.",
        ),
    ]);
}

#[tokio::test]
async fn headless_services_endpoints_and_pods_are_resolved() {
    use RecordType::{A, AAAA};
    check(&[
        // Headless services and their endpoints.
        (
            "db.default.svc.cluster.local.",
            A,
            "ok 10.42.0.1 | 10.42.0.2",
        ),
        ("db.default.svc.cluster.local.", AAAA, "ok"),
        ("db-0.db.default.svc.cluster.local.", A, "ok 10.42.0.1"),
        ("db-2.db.default.svc.cluster.local.", A, "NXDomain"),
        ("10-42-0-2.db.default.svc.cluster.local.", A, "ok 10.42.0.2"),
        ("idle.default.svc.cluster.local.", A, "NXDomain"),
        // Endpoints of a Service with an address.
        (
            "10-42-0-7.web.default.svc.cluster.local.",
            A,
            "ok 10.42.0.7",
        ),
        ("10-42-0-8.web.default.svc.cluster.local.", A, "NXDomain"),
        // Pods by address.
        ("10-42-0-5.default.pod.cluster.local.", A, "ok 10.42.0.5"),
        ("10-42-0-5.default.pod.cluster.local.", AAAA, "ok"),
        ("fd00--5.default.pod.cluster.local.", AAAA, "ok fd00::5"),
        ("web.default.pod.cluster.local.", A, "NXDomain"),
    ]);
}

#[tokio::test]
async fn the_zones_own_names_cnames_and_reverse_names_are_resolved() {
    use RecordType::{A, CNAME, NS, PTR, SOA, TXT};
    check(&[
        // Intermediate names.
        ("default.svc.cluster.local.", A, "ok"),
        ("other.svc.cluster.local.", A, "NXDomain"),
        ("svc.cluster.local.", A, "ok"),
        ("pod.cluster.local.", A, "ok"),
        ("cluster.local.", A, "ok"),
        ("cluster.local.", NS, "ok ns.dns.cluster.local."),
        ("ns.dns.cluster.local.", A, "ok"),
        ("foo.cluster.local.", A, "NXDomain"),
        ("dns-version.cluster.local.", TXT, "ok 1.1.0"),
        // CNAMEs.
        ("out.default.svc.cluster.local.", CNAME, "ok example.org."),
        ("out.default.svc.cluster.local.", A, "complete example.org."),
        (
            "alias.default.svc.cluster.local.",
            A,
            "ok 10.43.0.9 | web.default.svc.cluster.local.",
        ),
        // Reverse names.
        (
            "9.0.43.10.in-addr.arpa.",
            PTR,
            "ok web.default.svc.cluster.local.",
        ),
        ("9.0.43.10.in-addr.arpa.", A, "ok"),
        (
            "1.0.42.10.in-addr.arpa.",
            PTR,
            "ok db-0.db.default.svc.cluster.local.",
        ),
        ("7.0.42.10.in-addr.arpa.", PTR, "NXDomain"),
        ("9.9.9.9.in-addr.arpa.", PTR, "forward"),
        // Everything else.
        ("example.org.", A, "forward"),
        ("local.", A, "forward"),
        ("notcluster.local.", A, "forward"),
    ]);
    assert!(
        ask("cluster.local.", SOA)
            .starts_with("ok ns.dns.cluster.local. hostmaster.cluster.local.")
    );
}

#[tokio::test]
async fn targets_of_ports_come_with_their_addresses() {
    let request = request("_http._tcp.web.default.svc.cluster.local.", RecordType::SRV);
    let Step::Send(reply) = decide(&zone(), &cluster(), &request.to_vec().unwrap()) else {
        panic!()
    };
    assert_eq!(reply.additionals.len(), 1);
    assert_eq!(reply.additionals[0].data.to_string(), "10.43.0.9");
    assert_eq!(reply.answers[0].ttl, 5);
}

fn reply_to(request: &Message) -> Message {
    match decide(&zone(), &cluster(), &request.to_vec().unwrap()) {
        Step::Send(reply) => reply,
        _ => panic!("expected an answer"),
    }
}

#[tokio::test]
async fn a_reply_has_the_clients_id_question_and_extension() {
    let mut request = request("web.default.svc.cluster.local.", RecordType::A);
    assert!(reply_to(&request).edns.is_none());
    request.set_edns(Edns::new());
    let reply = reply_to(&request);
    assert_eq!(reply.metadata.id, request.metadata.id);
    assert_eq!(reply.queries, request.queries);
    assert!(reply.metadata.recursion_desired && reply.metadata.recursion_available);
    assert!(reply.edns.is_some());
}

#[tokio::test]
async fn zone_transfers_are_refused() {
    for (name, kind) in [
        ("cluster.local.", RecordType::AXFR),
        ("web.default.svc.cluster.local.", RecordType::IXFR),
        ("example.org.", RecordType::AXFR),
    ] {
        let reply = reply_to(&request(name, kind));
        assert_eq!(
            reply.metadata.response_code,
            ResponseCode::Refused,
            "{name}"
        );
        assert!(reply.answers.is_empty());
    }
}

#[tokio::test]
async fn the_name_server_of_the_zone_has_the_addresses_of_the_dns_service() {
    let cluster = cluster();
    let service = json!({"metadata": {"name": "kube-dns", "namespace": "kube-system", "uid": "dns"},
        "spec": {"clusterIP": "10.43.0.10", "clusterIPs": ["10.43.0.10"], "ports": [{"port": 53}]}});
    cluster
        .services
        .upsert(serde_json::from_value(service).unwrap());
    let request = request("ns.dns.cluster.local.", RecordType::A);
    let Step::Send(reply) = decide(&zone(), &cluster, &request.to_vec().unwrap()) else {
        panic!()
    };
    assert_eq!(reply.answers[0].data.to_string(), "10.43.0.10");
}

#[tokio::test]
async fn replies_that_cannot_be_rotated_are_remembered_in_several_orders() {
    let cluster = cluster();
    let endpoints: Value = (0..200)
        .map(|number| json!({"addresses": [format!("10.42.1.{number}")]}))
        .collect();
    put_slice(&cluster, "db", endpoints);
    for (name, kind) in [
        ("db.default.svc.cluster.local.", RecordType::A),
        ("_http._tcp.db.default.svc.cluster.local.", RecordType::SRV),
    ] {
        let (mut memo, mut firsts) = (Memo::default(), std::collections::BTreeSet::new());
        memo.enter(1);
        for id in 0..64 {
            let mut message = request(name, kind);
            message.metadata.id = id;
            let bytes = message.to_vec().unwrap();
            let question = wire::plain(&bytes).unwrap();
            let mut reply = Vec::new();
            let found = memo.find(&bytes, &question, 512, &mut reply);
            assert_eq!(found.is_some(), id >= 8, "{name} {id}");
            if found.is_none() {
                let Step::Send(made) = decide(&zone(), &cluster, &bytes) else {
                    panic!()
                };
                reply = encode(made, 512).unwrap();
                memo.keep_reply(&bytes, &question, 512, &reply);
            }
            let read = Message::from_vec(&reply).unwrap();
            assert_eq!(read.metadata.id, id);
            assert!(read.metadata.truncation && !read.answers.is_empty());
            firsts.insert(read.answers[0].data.to_string());
        }
        assert_eq!(firsts.len(), 8, "{name}: {firsts:?}");
    }
}

#[tokio::test]
async fn an_unknown_edns_version_gets_badvers() {
    let mut request = request("web.default.svc.cluster.local.", RecordType::A);
    let mut edns = Edns::new();
    edns.set_version(1);
    request.set_edns(edns);
    let reply = Message::from_vec(&encode(reply_to(&request), 512).unwrap()).unwrap();
    assert_eq!(
        u16::from(reply.metadata.response_code),
        u16::from(ResponseCode::BADVERS)
    );
}

#[tokio::test]
async fn invalid_requests_get_an_error_or_are_ignored_and_get_one_answer_at_most() {
    let (zone, cluster) = (zone(), cluster());
    assert!(matches!(decide(&zone, &cluster, b""), Step::Ignore));
    assert!(matches!(decide(&zone, &cluster, &[0; 5]), Step::Ignore));
    let mut garbage = [0xff; 40];
    garbage[2] = 0;
    assert!(matches!(
        decide(&zone, &cluster, &garbage),
        Step::Send(reply) if reply.metadata.response_code == ResponseCode::FormErr
    ));
    let answer = Message::response(7, hickory_proto::op::OpCode::Query)
        .to_vec()
        .unwrap();
    assert!(matches!(decide(&zone, &cluster, &answer), Step::Ignore));
    let none = Message::query().to_vec().unwrap();
    assert!(matches!(
        decide(&zone, &cluster, &none),
        Step::Send(reply) if reply.metadata.response_code == ResponseCode::FormErr
    ));
}

#[tokio::test]
async fn a_long_answer_is_cut_for_datagrams_and_says_so() {
    let cluster = cluster();
    let endpoints: Value = (0..200)
        .map(|number| json!({"addresses": [format!("10.42.1.{number}")]}))
        .collect();
    put_slice(&cluster, "db", endpoints);
    let request = request("db.default.svc.cluster.local.", RecordType::A);
    let Step::Send(reply) = decide(&zone(), &cluster, &request.to_vec().unwrap()) else {
        panic!()
    };
    assert_eq!(reply.answers.len(), 200);
    let whole = Message::from_vec(&encode(reply.clone(), 65535).unwrap()).unwrap();
    assert!(!whole.metadata.truncation && whole.answers.len() == 200);
    let bytes = encode(reply, 512).unwrap();
    let cut = Message::from_vec(&bytes).unwrap();
    assert!(bytes.len() <= 512 && cut.metadata.truncation && cut.answers.len() > 10);
}

#[tokio::test]
async fn a_remembered_reply_is_the_one_that_would_be_made() {
    let (zone, cluster) = (zone(), cluster());
    let mut memo = Memo::default();
    memo.enter(1);
    let questions = [
        ("web.default.svc.cluster.local.", RecordType::A),
        ("web.default.svc.cluster.local.", RecordType::AAAA),
        ("dual.default.svc.cluster.local.", RecordType::ANY),
        ("db.default.svc.cluster.local.", RecordType::A),
        ("db.default.svc.cluster.local.", RecordType::SRV),
        ("nothing.default.svc.cluster.local.", RecordType::A),
        ("9.0.43.10.in-addr.arpa.", RecordType::PTR),
    ];
    let mut remembered = 0;
    for (name, kind) in questions {
        for (id, spelled, edns) in [(6, true, false), (7, false, false), (9, true, true)] {
            for again in [false, true] {
                let mut message = request(
                    &if spelled {
                        name.to_uppercase()
                    } else {
                        name.into()
                    },
                    kind,
                );
                message.metadata.id = id + u16::from(again);
                message.metadata.recursion_desired = again;
                if edns {
                    message.set_edns(Edns::new());
                }
                let bytes = message.to_vec().unwrap();
                let question = wire::plain(&bytes).unwrap();
                let (step, limit) = reply::decide(&zone, &cluster, &bytes);
                let Step::Send(made) = step else { panic!() };
                let made = encode(made, limit).unwrap();
                let mut written = Vec::new();
                if let Some(MemoEntry::Written) = memo.find(&bytes, &question, limit, &mut written)
                {
                    // Another case of the name compresses differently.
                    let [written, made] = [&written, &made].map(|bytes| Message::from_vec(bytes));
                    assert_eq!(written.unwrap(), made.unwrap(), "{message}");
                    remembered += 1;
                }
                if let Some(template) = Template::new(&made, &question) {
                    memo.keep(&question, limit, Outcome::Reply(template));
                }
            }
        }
    }
    assert!(remembered >= 20, "{remembered}");
    memo.enter(2);
    let bytes = request(questions[0].0, questions[0].1).to_vec().unwrap();
    let question = wire::plain(&bytes).unwrap();
    assert!(memo.find(&bytes, &question, 512, &mut Vec::new()).is_none());
}
