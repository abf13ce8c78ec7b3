//! Every program of the built-in image does in a container what its help says.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    path::PathBuf,
    time::Duration,
};

use cri::v1;

use crate::support::{Node, container_config, sandbox_config};

struct Pod<'a> {
    node: &'a Node,
    id: String,
    /// The container in which commands run.
    shell: String,
    netns: PathBuf,
}

impl Pod<'_> {
    async fn hello(&self, args: &[&str]) -> (i32, String, String) {
        let command: Vec<&str> = ["/mainstay", "hello"].iter().chain(args).copied().collect();
        let output = self.node.exec(&self.shell, &command).await;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.exit_code, text(output.stdout), text(output.stderr))
    }

    async fn says(&self, args: &[&str]) -> String {
        let (code, out, err) = self.hello(args).await;
        assert_eq!(code, 0, "{args:?}: {err}");
        out
    }

    /// Starts a server and waits for its first line.
    async fn serve(&self, name: &str, args: &[&str]) -> String {
        let container = self.node.run(&self.id, container_config(name, args)).await;
        let log = || self.node.log("hello", name);
        self.node.wait_for(name, || !log().is_empty()).await;
        container
    }

    /// Runs a closure in the pod's network namespace.
    async fn inside<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        network::netns::run(&self.netns, work).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_program_of_the_hello_image_works() {
    let node = Node::start().await;
    let mut config = sandbox_config(&node, "hello");
    config.dns_config = Some(v1::DnsConfig {
        servers: vec!["127.0.0.1".into()],
        ..Default::default()
    });
    let id = node.run_sandbox(config).await;
    let shell = node.run(&id, container_config("shell", &["sleep"])).await;
    let netns = node.state.join("s").join(&id).join("net");
    let pod = Pod {
        node: &node,
        id,
        shell,
        netns,
    };

    // Help lists everything that is tested below.
    let help = pod.says(&["--help"]).await;
    let programs: Vec<&str> = help
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let tried = [
        "http",
        "get",
        "post",
        "guestbook",
        "entries",
        "echo",
        "lookup",
        "cat",
        "ls",
        "stat",
        "write",
        "append",
        "rm",
        "burn-cpu",
        "burn-memory",
        "env",
        "hostname",
        "id",
        "pwd",
        "exit",
        "sleep",
        "signals",
        "log",
        "say",
        // Needs an API server: the example tests run it.
        "elect",
        // Their own tests show what they remove.
        "remove-volume",
        "empty-volume",
    ];
    for name in tried {
        assert!(programs.contains(&name), "{name} is not in\n{help}");
    }
    assert_eq!(
        programs.len(),
        tried.len(),
        "one of these is not tried:\n{help}"
    );
    let (code, _, complaint) = pod.hello(&["dance"]).await;
    assert!(code == 2 && complaint.contains("hello help"), "{complaint}");

    files(&pod).await;
    processes(&pod).await;
    web(&pod).await;
    guestbook(&pod).await;
    echoes(&pod).await;
    names(&pod).await;
    burners(&pod).await;
}

async fn files(pod: &Pod<'_>) {
    pod.says(&["write", "/tmp/a", "one"]).await;
    pod.says(&["append", "/tmp/a", "two"]).await;
    assert_eq!(pod.says(&["cat", "/tmp/a"]).await, "one\ntwo\n");
    assert_eq!(pod.says(&["ls", "/tmp"]).await, "a\n");
    let stat = pod.says(&["stat", "/tmp/a"]).await;
    assert!(stat.contains("644") && stat.contains('8'), "{stat}");
    pod.says(&["rm", "/tmp/a"]).await;
    let (code, _, complaint) = pod.hello(&["cat", "/tmp/a"]).await;
    assert!(
        code == 1 && complaint.contains("No such file"),
        "{complaint}"
    );
}

async fn processes(pod: &Pod<'_>) {
    assert_eq!(pod.says(&["hostname"]).await, "hello\n");
    assert_eq!(pod.says(&["pwd"]).await, "/\n");
    assert_eq!(pod.says(&["say", "a", "b"]).await, "a b\n");
    assert!(pod.says(&["env"]).await.contains("PATH="));
    assert!(pod.says(&["id"]).await.contains("CapEff"));
    assert_eq!(pod.hello(&["exit", "42"]).await.0, 42);
    assert_eq!(pod.hello(&["sleep", "0"]).await.0, 0);
    let (_, out, err) = pod.hello(&["log", "1"]).await;
    assert_eq!((out.as_str(), err.as_str()), ("out 1\n", "err 1\n"));
    let signals = pod.serve("signals", &["signals"]).await;
    pod.node.stop(&signals, 1).await;
    let log = pod.node.log("hello", "signals");
    assert!(
        log.iter().any(|line| line.ends_with("signal 15")),
        "{log:?}"
    );
}

async fn web(pod: &Pod<'_>) {
    pod.serve("web", &["http", "8081"]).await;
    let get = async |path: &str| {
        pod.hello(&["get", &format!("http://127.0.0.1:8081{path}")])
            .await
    };
    assert_eq!(get("/").await.1, "hello\n");
    let headers = get("/headers").await.1.to_lowercase();
    assert!(headers.contains("host: 127.0.0.1:8081"), "{headers}");
    assert!(get("/client").await.1.contains("127.0.0.1"));
    assert_eq!(get("/healthz").await.0, 0);
    get("/healthz/off").await;
    assert_eq!(get("/healthz").await.0, 1);
    get("/healthz/on").await;
    assert_eq!(get("/healthz").await.0, 0);
    assert_eq!(get("/nothing/here").await.0, 1);
}

async fn guestbook(pod: &Pod<'_>) {
    pod.serve("leader", &["entries", "6379"]).await;
    pod.serve("follower", &["entries", "6380", "127.0.0.1:6379"])
        .await;
    pod.serve("page", &["guestbook", "8082"]).await;
    let (leader, follower) = ("http://127.0.0.1:6379", "http://127.0.0.1:6380");
    let written = pod
        .says(&["post", &format!("{leader}/entries"), "hello"])
        .await;
    assert_eq!(written, "written\n");
    let place = format!("{follower}/entries");
    let read_only = pod.hello(&["post", &place, "x"]).await;
    assert_eq!(read_only.0, 1);
    // A long poll returns at once if there are earlier entries.
    let news = pod.says(&["get", &format!("{leader}/entries/since")]).await;
    assert!(news.ends_with(" 0\nhello\n"), "{news}");
    let copied = async || {
        let entries = pod.hello(&["get", &format!("{follower}/entries")]).await;
        entries.1 == "hello\n"
    };
    for _ in 0..100 {
        if copied().await {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(copied().await, "the follower has no copy");
    // There is no Service through which the page could find its store.
    assert_eq!(pod.hello(&["get", "http://127.0.0.1:8082/"]).await.0, 1);
    let health = pod.says(&["get", "http://127.0.0.1:8082/healthz"]).await;
    assert_eq!(health, "ok\n");
}

async fn echoes(pod: &Pod<'_>) {
    pod.serve("echo-tcp", &["echo", "tcp", "7001"]).await;
    pod.serve("echo-udp", &["echo", "udp", "7002"]).await;
    let back = pod.inside(|| {
        let mut stream = TcpStream::connect("127.0.0.1:7001").unwrap();
        stream.write_all(b"over tcp").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut back = String::new();
        stream.read_to_string(&mut back).unwrap();
        back
    });
    assert_eq!(back.await, "over tcp");
    let back = pod.inside(|| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        socket.send_to(b"over udp", "127.0.0.1:7002").unwrap();
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    });
    assert_eq!(back.await, "over udp");
}

/// Answers one query with 192.0.2.7.
fn name_server(socket: &UdpSocket) {
    let mut buffer = [0; 512];
    let (length, client): (usize, SocketAddr) = socket.recv_from(&mut buffer).unwrap();
    let mut answer = buffer[..length].to_vec();
    answer[2..4].copy_from_slice(&[0x81, 0x80]);
    answer[6..8].copy_from_slice(&[0, 1]);
    // Do not repeat additional records of the query.
    answer[8..12].fill(0);
    let end = 12 + answer[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
    answer.truncate(end);
    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 192, 0, 2, 7]);
    socket.send_to(&answer, client).unwrap();
}

async fn names(pod: &Pod<'_>) {
    let bind = || {
        let socket = UdpSocket::bind("127.0.0.1:53").unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        socket
    };
    let socket = pod.inside(bind).await;
    let serving = tokio::task::spawn_blocking(move || name_server(&socket));
    let found = pod.says(&["lookup", "pod.example.", "A"]).await;
    assert!(found.contains("192.0.2.7"), "{found}");
    serving.await.unwrap();
}

async fn burners(pod: &Pod<'_>) {
    assert_eq!(pod.hello(&["burn-cpu", "0", "1"]).await.0, 0);
    assert_eq!(pod.hello(&["burn-memory", "8", "0"]).await.0, 0);
    let usage = v1::ContainerStatsRequest {
        container_id: pod.shell.clone(),
    };
    let stats = pod
        .node
        .cri
        .clone()
        .runtime
        .container_stats(usage)
        .await
        .unwrap();
    let cpu = stats.into_inner().stats.unwrap().cpu.unwrap();
    assert!(cpu.usage_core_nano_seconds.unwrap().value > 0);
}
