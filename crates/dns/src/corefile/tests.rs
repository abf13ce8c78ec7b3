//! Tables of Corefiles and their effect on queries.

use std::convert::Infallible;

use hickory_proto::{
    op::{Message, Query, ResponseCode},
    rr::{Name, RecordType},
};

use super::*;
use crate::{
    chain::Chain,
    cluster::Cluster,
    reply::{self, Step},
};

/// kubeadm's Corefile.
const KUBEADM: &str = ".:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30 {
       disable success cluster.local
       disable denial cluster.local
    }
    loop
    reload
    loadbalance
}
";

fn cluster() -> Cluster {
    let unreachable = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Ok::<_, Infallible>(http::Response::new(kube::client::Body::empty()))
    });
    let cluster = Cluster::offline(&kube::Client::new(unreachable, "default"));
    let service = |name: &str, spec: serde_json::Value| {
        let metadata = serde_json::json!({"name": name, "namespace": "default", "uid": name});
        let service = serde_json::json!({"metadata": metadata, "spec": spec});
        cluster
            .services
            .upsert(serde_json::from_value(service).unwrap());
    };
    service("web", serde_json::json!({"clusterIP": "10.43.0.9"}));
    service(
        "out",
        serde_json::json!({"type": "ExternalName", "externalName": "db.corp.example"}),
    );
    cluster
}

fn read(text: &str) -> Result<(Chain, Vec<String>), String> {
    Chain::of_corefile(text, "cluster.local", &["10.42.0.0/16".parse().unwrap()])
}

/// A short description of a query's result.
fn outcome(chain: &Chain, name: &str, kind: RecordType) -> String {
    let mut request = Message::query();
    request.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    match reply::decide(chain, &cluster(), &request.to_vec().unwrap()).0 {
        Step::Send(reply) if reply.metadata.response_code != ResponseCode::NoError => {
            format!("{:?}", reply.metadata.response_code)
        }
        Step::Send(reply) => {
            let shown = reply.answers.iter();
            let shown =
                shown.map(|record| format!("{} {} {}", record.name, record.ttl, record.data));
            shown.collect::<Vec<_>>().join(", ")
        }
        Step::Forward(block, _) => format!("forward by {}", block.index),
        Step::Complete(asked) => {
            format!("ask {} by {}", asked.question.name(), asked.block.index)
        }
        Step::Ignore => "ignore".into(),
    }
}

#[tokio::test]
async fn the_files_of_kubeadm_and_our_own_are_understood_completely() {
    for text in [KUBEADM, &default_text("cluster.local")] {
        let (_, problems) = read(text).unwrap();
        assert_eq!(problems, [""; 0]);
    }
    let (chain, _) = read(KUBEADM).unwrap();
    for (name, expected) in [
        (
            "web.default.svc.cluster.local.",
            "web.default.svc.cluster.local. 30 10.43.0.9",
        ),
        (
            "1-2-3-4.default.pod.cluster.local.",
            "1-2-3-4.default.pod.cluster.local. 30 1.2.3.4",
        ),
        ("no.default.svc.cluster.local.", "NXDomain"),
        ("example.org.", "forward by 0"),
        (
            "out.default.svc.cluster.local.",
            "ask db.corp.example. by 0",
        ),
    ] {
        assert_eq!(outcome(&chain, name, RecordType::A), expected, "{name}");
    }
    // Reverse names of pods are never forwarded.
    let reverse = outcome(&chain, "1.0.42.10.in-addr.arpa.", RecordType::PTR);
    assert_eq!(reverse, "NXDomain");
}

#[tokio::test]
async fn the_block_with_the_longest_zone_answers() {
    let text = "corp.example { \n forward . 192.0.2.1\n}\n\
                db.corp.example 168.192.in-addr.arpa {\n forward . 192.0.2.2:5300\n}\n\
                cluster.local {\n kubernetes\n}\n";
    let (chain, problems) = read(text).unwrap();
    assert_eq!(problems, [""; 0]);
    for (name, expected) in [
        ("a.corp.example.", "forward by 0"),
        ("CORP.example.", "forward by 0"),
        ("x.db.corp.example.", "forward by 1"),
        ("1.2.168.192.in-addr.arpa.", "forward by 1"),
        ("example.", "Refused"),
        ("1-2-3-4.default.pod.cluster.local.", "NXDomain"),
        (
            "out.default.svc.cluster.local.",
            "ask db.corp.example. by 1",
        ),
    ] {
        assert_eq!(outcome(&chain, name, RecordType::A), expected, "{name}");
    }
}

#[tokio::test]
async fn names_are_rewritten_and_answers_fit_the_question() {
    let text = ". {\n\
        rewrite continue type MX A\n\
        rewrite name exact old.example web.default.svc.cluster.local\n\
        rewrite name suffix .short .default.svc.cluster.local answer auto\n\
        rewrite name prefix www- web. answer auto\n\
        rewrite continue name substring -stage- .\n\
        rewrite stop {\n name regex (.*)\\.rx\\.example\\. {1}.default.svc.cluster.local\n\
            answer name (.*)\\.default\\.svc\\.cluster\\.local\\. {1}.rx.example\n }\n\
        rewrite ttl exact web.default.svc.cluster.local 77\n\
        kubernetes cluster.local\n forward . 192.0.2.1\n}\n";
    let (chain, problems) = read(text).unwrap();
    assert_eq!(problems, [""; 0]);
    for (name, expected) in [
        ("old.example.", "old.example. 5 10.43.0.9"),
        ("OLD.example.", "old.example. 5 10.43.0.9"),
        ("web.short.", "web.short. 5 10.43.0.9"),
        (
            "www-default.svc.cluster.local.",
            "www-default.svc.cluster.local. 5 10.43.0.9",
        ),
        ("web.rx.example.", "web.rx.example. 5 10.43.0.9"),
        (
            "web-stage-default.svc.cluster.local.",
            "web.default.svc.cluster.local. 77 10.43.0.9",
        ),
        (
            "web.default.svc.cluster.local.",
            "web.default.svc.cluster.local. 77 10.43.0.9",
        ),
        ("other.example.", "forward by 0"),
        ("x-stage-y.example.", "ask x.y.example. by 0"),
    ] {
        assert_eq!(outcome(&chain, name, RecordType::A), expected, "{name}");
    }
    let other_type = outcome(&chain, "web.default.svc.cluster.local.", RecordType::MX);
    assert_eq!(other_type, "web.default.svc.cluster.local. 77 10.43.0.9");
}

#[tokio::test]
async fn hosts_and_templates_answer_before_the_cluster() {
    let text = ". {\n\
        hosts example {\n 192.0.2.1 a.example A2.example # first\n 2001:db8::1 a.example\n ttl 60\n fallthrough sub.example\n }\n\
        template IN AAAA v4.example {\n rcode NXDOMAIN\n }\n\
        kubernetes cluster.local\n forward . 192.0.2.1 {\n except secret.test\n }\n}\n";
    let (chain, problems) = read(text).unwrap();
    assert_eq!(problems, [""; 0]);
    for (name, kind, expected) in [
        ("A.example.", RecordType::A, "A.example. 60 192.0.2.1"),
        ("a2.example.", RecordType::A, "a2.example. 60 192.0.2.1"),
        ("a.example.", RecordType::AAAA, "a.example. 60 2001:db8::1"),
        ("a.example.", RecordType::TXT, ""),
        ("b.example.", RecordType::A, "ServFail"),
        ("b.sub.example.", RecordType::A, "forward by 0"),
        ("b.other.", RecordType::A, "forward by 0"),
        ("x.secret.test.", RecordType::A, "ServFail"),
        ("x.v4.example.", RecordType::AAAA, "NXDomain"),
        (
            "1.2.0.192.in-addr.arpa.",
            RecordType::PTR,
            "1.2.0.192.in-addr.arpa. 60 a.example., 1.2.0.192.in-addr.arpa. 60 a2.example.",
        ),
        ("2.2.0.192.in-addr.arpa.", RecordType::PTR, "forward by 0"),
    ] {
        let mut shown = outcome(&chain, name, kind);
        if kind == RecordType::PTR && shown.contains(", ") {
            // Several records are rotated.
            let mut parts: Vec<&str> = shown.split(", ").collect();
            parts.sort_unstable();
            shown = parts.join(", ");
        }
        assert_eq!(shown, expected, "{name} {kind}");
    }
}

#[test]
fn directives_without_effect_are_reported_with_their_line() {
    let text = "example.org:1053 {\n autopath @kubernetes\n prometheus :9999\n acl {\n block net 10.0.0.0/8\n }\n\
        kubernetes other.local {\n pods verified\n namespaces a\n }\n\
        forward . 192.0.2.1 {\n failover NXDOMAIN\n }\n rewrite edns0 local set 0xffee abcd\n\
        hosts /etc/hosts\n errors {\n stacktrace\n }\n log a.example {\n class denial\n }\n\
        template IN A {\n answer \"x\"\n }\n cache {\n keepttl\n }\n}\n";
    let (_, problems) = read(text).unwrap();
    let lines: Vec<&str> = problems
        .iter()
        .map(|problem| problem.split(':').next().unwrap())
        .collect();
    let expected = [1, 2, 3, 4, 7, 8, 9, 12, 14, 15, 17, 19, 23, 22, 26];
    assert_eq!(
        lines,
        expected.map(|line| format!("line {line}")),
        "{problems:#?}"
    );
}

/// The Corefile of k3s, with the imports that AKS also has.
const K3S: &str = ".:53 {
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
      pods insecure
      fallthrough in-addr.arpa ip6.arpa
    }
    hosts /etc/coredns/NodeHosts {
      ttl 60
      reload 15s
      fallthrough
    }
    prometheus :9153
    cache 30
    loop
    reload
    loadbalance
    import /etc/coredns/custom/*.override
    forward . /etc/resolv.conf
}
import /etc/coredns/custom/*.server
";

fn read_with(text: &str, files: &[(&str, &str)]) -> Result<Parsed, String> {
    let origin = Name::from_ascii("cluster.local.").unwrap();
    let files = files.iter();
    let around = ParseContext {
        cluster_domain: &origin,
        files: &files
            .map(|(key, text)| ((*key).into(), (*text).into()))
            .collect(),
        resolv_conf: "/etc/resolv.conf".into(),
        own: Vec::new(),
    };
    parse(text, &around).map_err(|error| error.to_string())
}

#[test]
fn the_file_of_k3s_imports_other_keys() {
    let hosts = ("NodeHosts", "192.0.2.1 one");
    let parsed = read_with(K3S, &[hosts]).unwrap();
    assert_eq!((parsed.servers.len(), parsed.problems.len()), (1, 0));
    let files = [
        hosts,
        ("Corefile", "never imported"),
        ("log.override", "log"),
        (
            "corp.server",
            "corp.example:53 {\n forward . 192.0.2.53\n}\n",
        ),
    ];
    let parsed = read_with(K3S, &files).unwrap();
    assert_eq!((parsed.servers.len(), parsed.problems.len()), (2, 0));
    assert!(parsed.servers[0].log.is_some() && parsed.servers[1].log.is_none());
    let snippets = "(common) {\n errors\n cache 10\n}\na.example {\n import common\n}\n";
    let parsed = read_with(snippets, &[]).unwrap();
    assert!(parsed.servers[0].errors && parsed.servers[0].cache.is_some());
    for invalid in [
        ". {\n import missing\n}\n",
        ". {\n import\n}\n",
        ". {\n import *.bad\n}\n",
    ] {
        assert!(read_with(invalid, &[("a.bad", "{")]).is_err(), "{invalid}");
    }
}

#[test]
fn zones_of_other_ports_are_left_out_unless_there_is_no_usual_one() {
    for (text, zones, problems) in [
        (".:5353 {\n bufsize 1232\n}\n", &["."][..], 1),
        (". {\n}\n.:5353 {\n nonsense\n}\n", &["."], 1),
        ("a.example:53 b.example:5353 {\n}\n", &["a.example."], 1),
        (
            "a.example b.example:53 {\n bind lo\n cancel\n}\n",
            &["a.example.", "b.example."],
            0,
        ),
    ] {
        let parsed = read_with(text, &[]).unwrap();
        let found = parsed.servers.iter().flat_map(|server| &server.zones);
        let found: Vec<String> = found.map(Name::to_ascii).collect();
        assert_eq!(
            (found.as_slice(), parsed.problems.len()),
            (
                &zones
                    .iter()
                    .map(|zone| (*zone).to_owned())
                    .collect::<Vec<_>>()[..],
                problems
            ),
            "{text}"
        );
    }
    assert!(read(".:http {\n}\n").is_err());
}

#[tokio::test]
async fn templates_make_answers_and_aliases() {
    let text = ".:53 {\n template IN A example {\n match ^ip-([0-9]+)[.]example[.]$\n answer \"{{ .Name }} 60 IN A 10.0.0.{{ index .Match 1 }}\"\n fallthrough\n }\n\
        template IN ANY alias.example {\n answer \"{{ .Name }} IN CNAME web.default.svc.cluster.local.\"\n }\n\
        template IN A own.example {\n match ^a[.]\n answer \"{{ .Name }} IN A 10.0.0.1\"\n }\n\
        template IN AAAA . {\n rcode NXDOMAIN\n authority \"{{ .Zone }} 60 IN SOA ns.example. root.example. (1 60 60 60 60)\"\n }\n\
        kubernetes cluster.local\n forward . 192.0.2.1\n}\n";
    let (chain, problems) = read(text).unwrap();
    assert_eq!(problems, [""; 0]);
    for (name, kind, expected) in [
        ("ip-7.example.", RecordType::A, "ip-7.example. 60 10.0.0.7"),
        ("ip-700.example.", RecordType::A, "ServFail"),
        ("x.example.", RecordType::A, "forward by 0"),
        ("b.own.example.", RecordType::A, "ServFail"),
        ("ip-7.example.", RecordType::AAAA, "NXDomain"),
        (
            "alias.example.",
            RecordType::A,
            "alias.example. 3600 web.default.svc.cluster.local., web.default.svc.cluster.local. 5 10.43.0.9",
        ),
        (
            "alias.example.",
            RecordType::CNAME,
            "alias.example. 3600 web.default.svc.cluster.local.",
        ),
    ] {
        assert_eq!(outcome(&chain, name, kind), expected, "{name} {kind}");
    }
}

#[test]
fn invalid_directives_are_refused() {
    for (block, line) in [
        ("forward .", 2),
        ("forward . tls://192.0.2.1", 2),
        ("forward . resolver.example", 2),
        (
            "forward . 192.0.2.1 {\n policy best\n max_concurrent many\n }",
            4,
        ),
        ("kubernetes {\n ttl 4000\n }", 3),
        ("cache 0", 2),
        ("cache {\n success lots\n }", 3),
        ("cache {\n prefetch 1 1m 5%\n }", 3),
        ("rewrite name regex ( a", 2),
        ("rewrite name a", 2),
        ("rewrite ttl a.example 5-1", 2),
        ("log {\n class some\n }", 3),
        ("template IN NOTYPE", 2),
        ("hosts {\n ttl long\n }", 3),
    ] {
        let text = format!(". {{\n {block}\n}}\n");
        let error = read(&text).err().unwrap_or_default();
        assert!(
            error.starts_with(&format!("Corefile:{line}:")),
            "{block:?}: {error:?}"
        );
    }
    for text in [
        "",
        "errors\n",
        ". {\n}\n. {\n}\n",
        "a..b {\n}\n",
        "tls://. {\n}\n",
    ] {
        assert!(read(text).is_err(), "{text:?}");
    }
}

#[test]
fn durations_and_lists_are_read_as_go_reads_them() {
    let text = ". {\n cache 60 example.org {\n success 100 20 3\n denial 7\n prefetch 5 1m 20%\n\
        serve_stale 1h30m\n disable denial a.example\n }\n\
        forward example.org 192.0.2.1 [2001:db8::1]:5353 2001:db8::2 {\n read_timeout 1500ms\n force_tcp\n prefer_udp\n }\n}\n";
    let origin = Name::from_ascii("cluster.local.").unwrap();
    let around = ParseContext {
        cluster_domain: &origin,
        files: &BTreeMap::new(),
        resolv_conf: "/x".into(),
        own: vec!["2001:db8::2".parse().unwrap()],
    };
    let parsed = parse(text, &around).unwrap();
    let cache = parsed.servers[0].cache.as_ref().unwrap();
    let shown = |keeping: &CacheSettings| (keeping.capacity, keeping.longest, keeping.shortest);
    assert_eq!(shown(&cache.success), (100, 20, 3));
    assert_eq!(shown(&cache.denial), (7, 60, 5));
    assert_eq!((cache.prefetch, cache.prefetch_percent), (5, 20));
    assert_eq!(cache.stale, Duration::from_secs(5400));
    assert!(cache.stale_at_once);
    let forward = &parsed.servers[0].forwards[0];
    assert_eq!(forward.to.len(), 2, "not ourselves");
    assert_eq!(forward.read_timeout, Duration::from_millis(1500));
    assert_eq!(forward.transport, Preference::ForceTcp);
    assert_eq!(parsed.problems.len(), 2, "{:?}", parsed.problems);
}
