//! DNS packets from pods, and Corefiles.

use std::{convert::Infallible, sync::LazyLock};

use dns::{
    chain::Chain,
    cluster::Cluster,
    corefile,
    memo::{Memo, MemoEntry, Outcome, Template},
    reply::{self, Step, encode},
    wire,
};
use kube::client::Body;
use serde_json::json;

/// A query with EDNS, one without, one for an external name, and an SRV query.
pub(crate) const PACKETS: &[&str] = &[
    "\0\x07\x01\0\0\x01\0\0\0\0\0\x01\x03web\x07default\x03svc\x07cluster\x05local\0\0\x01\0\x01\0\0\x29\x04\x50\0\0\0\0\0\0",
    "\0\x08\x01\0\0\x01\0\0\0\0\0\0\x02db\x07default\x03svc\x07cluster\x05local\0\0\x01\0\x01",
    "\0\x09\x01\x20\0\x01\0\0\0\0\0\0\x03old\x07example\0\0\x1c\0\x01",
    "\0\x0a\x01\0\0\x01\0\0\0\0\0\0\x05_http\x04_tcp\x02db\x07default\x03svc\x07cluster\x05local\0\0\x21\0\x01",
    "\0\x0b\x01\0\0\x01\0\0\0\0\0\0\x019\x010\x0243\x0210\x07in-addr\x04arpa\0\0\x0c\0\x01",
];

/// Corefiles with every directive.
pub(crate) const COREFILES: &[&str] = &[
    ". {\n errors\n log {\n class denial error\n }\n kubernetes cluster.local in-addr.arpa {\n pods insecure\n ttl 30\n fallthrough\n }\n forward . 192.0.2.1 [2001:db8::1]:53 /etc/resolv.conf {\n except a.b\n policy random\n max_concurrent 5\n }\n cache 30 {\n success 10 20 3\n prefetch 3 1m 20%\n serve_stale 1h verify\n disable denial x\n }\n}\n",
    "a.b:53 10.0.0.0/8 {\n hosts f {\n 192.0.2.1 x y # z\n ttl 5\n }\n rewrite continue name regex (.*)\\.c {1}.d answer name (.*) {1}.e\n rewrite stop {\n name suffix .f .g\n answer auto\n }\n rewrite ttl a 5-\n template IN AAAA x {\n rcode NXDOMAIN\n }\n}\n",
];

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let unreachable = tower::service_fn(|_: http::Request<Body>| async {
        Ok::<_, Infallible>(http::Response::new(Body::empty()))
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    // A client needs a runtime to be created; it is never used.
    let runtime = runtime.unwrap_or_else(|error| panic!("no runtime: {error}"));
    let _inside = runtime.enter();
    let cluster = Cluster::offline(&kube::Client::new(unreachable, "default"));
    let put = |name: &str, ip: &str| {
        let metadata = json!({"name": name, "namespace": "default", "uid": name});
        let spec = json!({"clusterIP": ip, "ports": [{"name": "http", "port": 80}]});
        let service = serde_json::from_value(json!({"metadata": metadata, "spec": spec}));
        cluster.services.upsert(service.unwrap_or_default());
    };
    put("web", "10.43.0.9");
    put("db", "None");
    let endpoints = json!([{"addresses": ["10.42.0.1"]}, {"addresses": ["10.42.0.2"]}]);
    let slice = json!({"addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "http", "port": 80}],
        "metadata": {"name": "db-1", "namespace": "default", "uid": "s",
                     "labels": {"kubernetes.io/service-name": "db"}}});
    if let Ok(slice) = serde_json::from_value(slice) {
        cluster.slices.upsert(slice);
    }
    cluster
});

static CHAIN: LazyLock<Chain> = LazyLock::new(|| {
    let text = ". {\n rewrite name old.example web.default.svc.cluster.local\n kubernetes cluster.local\n forward . 192.0.2.1\n}\n";
    match Chain::of_corefile(text, "cluster.local", &[]) {
        Ok((chain, _)) => chain,
        Err(error) => panic!("{error}"),
    }
});

/// A packet gets a reply that fits, and a memoized reply equals a new one.
pub(crate) fn packet(input: &[u8]) {
    let (step, limit) = reply::decide(&CHAIN, &CLUSTER, input);
    let Step::Send(made) = step else { return };
    let Some(made) = encode(made, limit) else {
        return;
    };
    assert!(made.len() <= limit, "{} bytes for {limit}", made.len());
    let Some(question) = wire::plain(input) else {
        return;
    };
    assert_eq!(limit, reply::limit(question.payload));
    if let Some(template) = Template::new(&made, &question) {
        let mut memo = Memo::default();
        memo.keep(&question, limit, Outcome::Reply(template));
        let mut written = Vec::new();
        let known = memo.find(input, &question, limit, &mut written);
        assert!(matches!(known, Some(MemoEntry::Written)));
        assert_eq!(written, made);
    }
}

/// A Corefile is parsed or rejected, and a parsed one answers.
pub(crate) fn corefile(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Ok((chain, _)) = Chain::of_corefile(text, "cluster.local", &[]) {
        for packet in PACKETS {
            let _ = reply::decide(&chain, &CLUSTER, packet.as_bytes());
        }
    }
    let _ = corefile::syntax::parse(text);
}
