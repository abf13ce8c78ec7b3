//! Clients that request much and do not read it: their cost is bounded, and they are cut off.

use std::time::Duration;

use apiserver::Limits;
use futures::future::join_all;
use machinery::json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Server, Tls, admin, dial, eventually};

/// The size of a ConfigMap in bytes.
const LARGE: usize = 200_000;
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn limits(unsent: usize, stall: Duration) -> Limits {
    Limits {
        unsent,
        stall,
        ..Limits::default()
    }
}

async fn fill(server: &Server, count: usize) {
    for n in 0..count {
        let object =
            json!({"metadata": {"name": format!("large-{n}")}, "data": {"a": "x".repeat(LARGE)}});
        let made = admin(server, "POST", CONFIG_MAPS, object).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
}

/// A metric of `/metrics`.
async fn figure(server: &Server, name: &str) -> u64 {
    let text = admin(server, "GET", "/metrics", json!(null)).await.body;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name} ")));
    let value = line.unwrap_or_else(|| panic!("no {name} in {text}"));
    value.parse::<f64>().unwrap() as u64
}

const UNSENT: &str = "mainstay_apiserver_unsent_bytes";
const CUT: &str = "mainstay_apiserver_stalled_clients_total";

/// Sends a request and does not read the response.
async fn ask(server: &Server, path: &str, accept: &str) -> Tls {
    let mut tls = dial(server).await;
    let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\n\r\n");
    tls.write_all(head.as_bytes()).await.unwrap();
    tls.flush().await.unwrap();
    tls
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_that_are_not_read_cost_little_in_every_form() {
    let server = Server::start_with(limits(64 << 20, Duration::from_secs(600))).await;
    fill(&server, 40).await;
    let forms = [
        "application/json",
        "application/yaml",
        "application/vnd.kubernetes.protobuf",
        "application/json;as=Table;g=meta.k8s.io;v=v1",
        "application/json;pretty=1",
    ];
    let path = format!("{CONFIG_MAPS}?includeObject=Object");
    let asked = (0..30).map(|n| ask(&server, &path, forms[n % forms.len()]));
    let mut clients = join_all(asked).await;
    // Each has begun to receive its eight megabytes.
    for client in &mut clients {
        let mut start = [0; 15];
        client.read_exact(&mut start).await.unwrap();
        assert_eq!(&start, b"HTTP/1.1 200 OK");
    }
    // Far less than the requested 240 MB is buffered.
    let unsent = figure(&server, UNSENT).await;
    assert!(unsent < 30 * 512 * 1024, "{unsent}");
    drop(clients);
    eventually(|| async { (figure(&server, UNSENT).await == 0).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_stops_reading_is_cut_and_others_are_served() {
    let server = Server::start_with(limits(64 << 20, Duration::from_millis(300))).await;
    fill(&server, 60).await;
    let _stalled = ask(&server, CONFIG_MAPS, "application/yaml").await;
    eventually(|| async { (figure(&server, CUT).await > 0).then_some(()) }).await;
    let whole = admin(&server, "GET", CONFIG_MAPS, json!(null)).await;
    assert_eq!(whole.json()["items"].as_array().unwrap().len(), 60);
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_budget_is_used_up_stalled_clients_make_room() {
    // Room for a few pieces; a stalled client is cut off after a fifteenth of the stall time.
    let server = Server::start_with(limits(256 * 1024, Duration::from_secs(45))).await;
    fill(&server, 60).await;
    let asked = (0..20).map(|_| ask(&server, CONFIG_MAPS, "application/yaml"));
    let _stalled = join_all(asked).await;
    eventually(|| async { (figure(&server, CUT).await > 0).then_some(()) }).await;
    // Meanwhile a client that reads gets its list.
    let mut client = ask(&server, CONFIG_MAPS, "application/yaml").await;
    let mut read = 0;
    let mut piece = vec![0; 64 * 1024];
    while read < 60 * LARGE {
        let count = client.read(&mut piece).await.unwrap();
        assert_ne!(count, 0, "the list ended after {read} bytes");
        read += count;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_that_do_not_read_are_bounded_and_cut() {
    let server = Server::start_with(limits(64 << 20, Duration::from_secs(2))).await;
    let watch = format!("{CONFIG_MAPS}?watch=true");
    let asked = (0..10).map(|_| ask(&server, &watch, "application/json"));
    let mut watchers = join_all(asked).await;
    for watcher in &mut watchers {
        let mut start = [0; 15];
        watcher.read_exact(&mut start).await.unwrap();
    }
    fill(&server, 60).await;
    // Twelve megabytes were written, and each watcher buffers an event or two.
    let unsent = figure(&server, UNSENT).await;
    assert!(unsent < 10 * 1024 * 1024, "{unsent}");
    eventually(|| async { (figure(&server, CUT).await >= 10).then_some(()) }).await;
    eventually(|| async { (figure(&server, UNSENT).await == 0).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_window_is_closed_is_reset_and_the_connection_stays() {
    use http_body_util::BodyExt;
    let server = Server::start_with(limits(64 << 20, Duration::from_millis(500))).await;
    fill(&server, 20).await;
    let mut config = server.pki.client_config(pki::Leaf::Admin).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let address = server.url.trim_start_matches("https://").to_owned();
    let stream = tokio::net::TcpStream::connect(&address).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let tls = connector.connect(name, stream).await.unwrap();
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(executor)
        .initial_stream_window_size(1024)
        .initial_connection_window_size(1 << 20)
        .handshake(hyper_util::rt::TokioIo::new(tls))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let get = |path: &str| {
        let uri = format!("{}{path}", server.url);
        let empty = http_body_util::Empty::<bytes::Bytes>::new();
        http::Request::get(uri).body(empty).unwrap()
    };
    let mut list = sender.send_request(get(CONFIG_MAPS)).await.unwrap();
    assert_eq!(list.status(), 200);
    eventually(|| async { (figure(&server, CUT).await > 0).then_some(()) }).await;
    // Bytes from before the reset may be read; then the body ends with an error.
    let ended = loop {
        match list.body_mut().frame().await {
            Some(Ok(_)) => {}
            other => break other,
        }
    };
    assert!(matches!(ended, Some(Err(_))), "{ended:?}");
    let version = sender.send_request(get("/version")).await.unwrap();
    assert_eq!(version.status(), 200, "the connection stays");
    connection.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_in_pieces_is_the_list() {
    let server = Server::start().await;
    fill(&server, 3).await;
    let user = || apiserver::User::new("kubernetes-admin", ["system:masters"]);
    let get = async |accept: &str, path: &str| {
        crate::support::send(&server, user(), "GET", path, &[("accept", accept)], "").await
    };
    let json = get("application/json", CONFIG_MAPS).await.json();
    assert_eq!(json["items"].as_array().unwrap().len(), 3);
    let yaml = get("application/yaml", CONFIG_MAPS).await.body;
    let read: machinery::json::Value = serde_saphyr::from_str(&yaml).unwrap();
    // The list's resourceVersion grows with every write of the server itself.
    assert!(read["items"] == json["items"], "the same list in YAML");
    let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let path = format!("{CONFIG_MAPS}?includeObject=Object");
    let table = get(table, &path).await.json();
    let rows = table["rows"].as_array().unwrap();
    let objects: Vec<_> = rows
        .iter()
        .map(|row| row["object"]["data"].clone())
        .collect();
    let items = json["items"].as_array().unwrap().iter();
    assert!(objects == items.map(|item| item["data"].clone()).collect::<Vec<_>>());
    let yaml_table = "application/yaml;as=Table;g=meta.k8s.io;v=v1";
    let yaml = get(yaml_table, &path).await.body;
    let read: machinery::json::Value = serde_saphyr::from_str(&yaml).unwrap();
    assert!(read["rows"] == table["rows"], "the same Table in YAML");
    let empty = get("application/yaml", "/api/v1/namespaces/default/pods")
        .await
        .body;
    assert!(empty.contains("\nitems: []\n"), "{empty}");
}

/// Resident memory of this process, clients and server.
pub(crate) fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Prints how much the process has grown since, and asserts the bound.
fn must_have_grown_less_than(bound: usize, before: usize, what: &str) {
    let grown = resident().saturating_sub(before);
    eprintln!("{what}: {} MB more, of {} MB", grown >> 20, before >> 20);
    assert!(grown < bound, "{what}: {grown} bytes");
}

fn is_soak() -> bool {
    std::env::var_os("MAINSTAY_SOAK").is_some()
}

/// Figures of the attack that found this: 12.6 GB for the lists, 1.5 GB for the watchers.
#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_unread_lists_and_watches_is_bounded() {
    // In megabytes, what is requested: 12,600 and 84,000 in the soak, 160 and 400 otherwise.
    let (lists, watchers, objects, list_bound, watch_bound) = if is_soak() {
        (300, 2000, 210, 400, 600)
    } else {
        (20, 50, 40, 80, 100)
    };
    let server = Server::start_with(limits(64 << 20, Duration::from_secs(5))).await;
    fill(&server, objects).await;
    let before = resident();
    let forms = [
        "application/yaml",
        "application/json;as=Table;g=meta.k8s.io;v=v1",
    ];
    let path = format!("{CONFIG_MAPS}?includeObject=Object");
    let mut clients = Vec::new();
    for n in 0..lists {
        clients.push(ask(&server, &path, forms[n % forms.len()]).await);
    }
    eventually(|| async { (figure(&server, CUT).await > 0).then_some(()) }).await;
    must_have_grown_less_than(list_bound << 20, before, "unread lists");
    drop(clients);
    let before = resident();
    let cut = figure(&server, CUT).await;
    let watch = format!("{CONFIG_MAPS}?watch=true");
    let mut clients = Vec::new();
    for _ in 0..watchers {
        clients.push(ask(&server, &watch, "application/json").await);
    }
    for n in 0..objects {
        let patch = json!({"data": {"a": "y".repeat(LARGE)}});
        let at = format!("{CONFIG_MAPS}/large-{n}");
        assert_eq!(admin(&server, "PATCH", &at, patch).await.code, 200);
    }
    must_have_grown_less_than(watch_bound << 20, before, "unread watches");
    let cut = cut + watchers as u64;
    eventually(|| async { (figure(&server, CUT).await >= cut).then_some(()) }).await;
}
