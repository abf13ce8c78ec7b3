//! An address of the load balancer pool on two machines: one of them announces it at a time, the other
//! takes over when that one is excluded or cut off, and a deleted Service leaves nothing behind. New
//! connections are served while a rollout moves the endpoints.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use e2e::ready_pods;
use testkit::{Agent, Cluster, Lan, Machine, eventually, until};

const WEB: &str = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: mainstay.local/hello}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
"#;
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Longer than the node controller waits for a node that is silent.
const TAKEOVER: Duration = Duration::from_secs(180);

fn hardware_address(machine: &Machine) -> String {
    // The files below /sys may be those of another network namespace.
    let shown = machine.run("ip", &["-o", "link", "show", "dev", "eth0"]);
    let words = shown.success();
    let mut words = words.split_whitespace();
    let address = words.find(|word| *word == "link/ether");
    address
        .and_then(|_| words.next())
        .expect("an address")
        .to_owned()
}

/// Whether the address is answered by this machine, as a client on the network sees it.
fn leads_to(lan: &Lan, address: &str, machine: &Machine) -> Result<(), String> {
    let url = format!("http://{address}/");
    let answer = lan.run("curl", &["-s", "-m", "2", &url]);
    let seen = lan.run("ip", &["neigh", "show", address]).stdout;
    match answer.ok && seen.contains(&hardware_address(machine)) {
        true => Ok(()),
        false => Err(format!("{seen} {}", answer.stdout)),
    }
}

fn announcer(cluster: &Cluster) -> String {
    let service = cluster.get(&["service", "web"]);
    let annotation = &service["metadata"]["annotations"]["mainstay.local/announced-by"];
    annotation.as_str().unwrap_or_default().to_owned()
}

fn announced_by(cluster: &Cluster, node: &str) -> Result<(), String> {
    match announcer(cluster) {
        found if found == node => Ok(()),
        found => Err(format!("announced by {found}")),
    }
}

#[test]
fn another_machine_takes_over_the_address_of_one_that_is_cut_off() {
    let lan = Lan::new();
    let address = lan.address(0, 100);
    let mut cluster = Cluster::on_lan(&lan, &["--load-balancer-pool", &address]);
    let mut two = Agent::on_lan(&lan, 0, 3, "two");
    two.start(&cluster.join_flags());
    cluster.ready_nodes(2);
    cluster.kubectl_stdin(&["apply", "-f", "-"], WEB).success();
    ready_pods(&cluster, "app=web", 2);
    eventually("the address of the pool", || {
        let service = cluster.get(&["service", "web"]);
        let ip = &service["status"]["loadBalancer"]["ingress"][0]["ip"];
        match ip == address.as_str() && !announcer(&cluster).is_empty() {
            true => Ok(()),
            false => Err(service.to_string()),
        }
    });
    // A node that is excluded hands the address over, and does not get it back.
    let label = |change: &str| cluster.kubectl(&["label", "node", "one", change]).success();
    label(&format!("{EXCLUDED}="));
    eventually("two to announce it", || announced_by(&cluster, "two"));
    eventually("traffic to two", || leads_to(&lan, &address, two.machine()));
    label(&format!("{EXCLUDED}-"));

    let cut = two.machine().address().to_owned();
    lan.cut(&cut);
    until("one to take over", TAKEOVER, || {
        announced_by(&cluster, "one")
    });
    eventually("traffic to one", || {
        leads_to(&lan, &address, cluster.machine())
    });

    // The other returns and does not announce the address any more.
    lan.mend(&cut);
    cluster.ready_nodes(2);
    ready_pods(&cluster, "app=web", 2);
    announced_by(&cluster, "one").expect("it stays");
    lan.run("ip", &["neigh", "flush", "to", &address]).success();
    eventually("traffic to one", || {
        leads_to(&lan, &address, cluster.machine())
    });

    cluster.kubectl(&["delete", "service", "web"]).success();
    let url = format!("http://{address}/");
    eventually("nothing at the address", || {
        match lan.run("curl", &["-s", "-m", "1", &url]).ok {
            true => Err("it answers".to_owned()),
            false => Ok(()),
        }
    });
    two.reset();
    cluster.reset().success();
}

/// One server, first on node one. A pod that is replaced serves its connections for a minute.
const MOVING: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {kubernetes.io/hostname: one}
      terminationGracePeriodSeconds: 70
      containers:
      - name: web
        image: mainstay.local/hello
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
        lifecycle: {preStop: {sleep: {seconds: 60}}}
      - name: echo
        image: mainstay.local/hello
        args: [echo, udp, "7007"]
        lifecycle: {preStop: {sleep: {seconds: 60}}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  selector: {app: web}
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: echo, protocol: UDP, port: 7, targetPort: 7007}
"#;
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    Ok(stream)
}

/// The name of the pod that answers over this connection.
fn ask(mut stream: &TcpStream) -> io::Result<String> {
    stream.write_all(b"GET /hostname HTTP/1.1\r\nHost: web\r\n\r\n")?;
    let (mut answer, mut part) = (String::new(), [0; 1024]);
    loop {
        let length = stream.read(&mut part)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.push_str(&String::from_utf8_lossy(&part[..length]));
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
        if let Some(name) = body.and_then(|body| body.strip_suffix('\n')) {
            return Ok(name.to_owned());
        }
    }
}

/// A datagram of a conversation that goes on over a socket, and its echo.
fn echoes(conversation: &UdpSocket, word: &str) -> Result<(), String> {
    let mut echo = [0; 64];
    let mut exchange = || {
        conversation.send(word.as_bytes())?;
        loop {
            // Echoes of earlier words may be late.
            let length = conversation.recv(&mut echo)?;
            if echo[..length] == *word.as_bytes() {
                return Ok(());
            }
        }
    };
    exchange().map_err(|error: io::Error| error.to_string())
}

/// Sends one request after the other, each over its own connection, until it is stopped: the number of answers, and the
/// failures other than resets.
fn ask_steadily(address: SocketAddr, stop: &AtomicBool) -> (usize, Vec<String>) {
    let (mut answered, mut failed) = (0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        match connect(address).and_then(|stream| ask(&stream)) {
            Ok(_) => answered += 1,
            // It was under way when the address moved.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            Err(error) => failed.push(format!("after {answered} answers: {error}")),
        }
    }
    (answered, failed)
}

fn pods_of(cluster: &Cluster) -> Vec<String> {
    let pods = cluster.get(&["pods", "-l", "app=web"]);
    let pods = pods["items"].as_array().into_iter().flatten();
    pods.map(e2e::name).collect()
}

#[test]
fn no_new_connection_is_refused_when_a_rollout_moves_the_address() {
    let lan = Lan::new();
    let ip = lan.address(0, 100);
    let mut cluster = Cluster::on_lan(&lan, &["--load-balancer-pool", &ip]);
    let mut two = Agent::on_lan(&lan, 0, 3, "two");
    two.start(&cluster.join_flags());
    cluster.ready_nodes(2);
    cluster
        .kubectl_stdin(&["apply", "-f", "-"], MOVING)
        .success();
    let rolled = ["rollout", "status", "deployment/web", "--timeout=120s"];
    cluster.kubectl(&rolled).success();
    eventually("one to announce it", || announced_by(&cluster, "one"));
    let client = Machine::on(&lan, &lan.address(0, 9));
    let address: SocketAddr = format!("{ip}:80").parse().expect("an address");
    let ask_anew = || {
        let asked = client.thread(move || connect(address).and_then(|stream| ask(&stream)));
        let asked = asked.join().expect("no panic");
        asked.map_err(|error| error.to_string())
    };
    eventually("an answer", ask_anew);
    let datagrams = SocketAddr::new(address.ip(), 7);
    let conversation = client.thread(move || {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(datagrams)?;
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        Ok::<_, io::Error>(socket)
    });
    let conversation = conversation.join().expect("no panic").expect("a socket");
    eventually("an echo", || echoes(&conversation, "first"));
    let stop = Arc::new(AtomicBool::new(false));
    let steady: Vec<_> = (0..2)
        .map(|_| {
            let stop = stop.clone();
            client.thread(move || ask_steadily(address, &stop))
        })
        .collect();
    for node in ["two", "one", "two", "one"] {
        let old = eventually("an answer", ask_anew);
        let selector = format!(
            r#"{{"spec": {{"template": {{"spec": {{"nodeSelector": {{"kubernetes.io/hostname": "{node}"}}}}}}}}}}"#
        );
        cluster
            .kubectl(&["patch", "deployment", "web", "-p", &selector])
            .success();
        cluster.kubectl(&rolled).success();
        eventually("the address to move", || announced_by(&cluster, node));
        eventually(
            "new connections to lead to the new pod",
            || match ask_anew()? {
                new if new != old => Ok(()),
                _ => Err(format!("{old} answers")),
            },
        );
        eventually("the conversation to go on", || echoes(&conversation, node));
    }
    // Also when the pods are gone that it was with before.
    let running = ask_anew().expect("an answer");
    for pod in pods_of(&cluster) {
        if pod != running.trim() {
            let delete = ["delete", "pod", &pod, "--force", "--grace-period=0"];
            cluster.kubectl(&delete).success();
        }
    }
    eventually("one pod", || match &pods_of(&cluster)[..] {
        [_] => Ok(()),
        more => Err(more.join(" ")),
    });
    eventually("an echo of the last pod", || echoes(&conversation, "last"));
    stop.store(true, Ordering::Relaxed);
    for thread in steady {
        let (answered, failed) = thread.join().expect("no panic");
        assert!(failed.is_empty(), "{answered} answers, but {failed:?}");
        assert!(answered > 0, "no answer at all");
    }
    two.reset();
    cluster.reset().success();
}
