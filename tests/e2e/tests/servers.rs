//! Three servers with three etcd members, and a node. A machine with a server and a member is
//! killed under load, and restarted; a leading server stops.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use e2e::{Api, Site, recorder::block_on};
use http::Method;
use serde_json::{Value, json};
use testkit::{Etcd, Lan, Machine, Ran, Server, eventually, until};

/// Writes objects one after the other until it is stopped.
struct Load {
    stop: Arc<AtomicBool>,
    writer: thread::JoinHandle<(Vec<String>, Duration)>,
}

impl Load {
    /// `kubectl` makes a command that creates a ConfigMap.
    fn start(kubectl: impl Fn(&str) -> Command + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let write = move || {
            let (mut written, mut longest) = (Vec::new(), Duration::ZERO);
            let mut last = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                let name = format!("load-{}", written.len());
                let ran: Ran = kubectl(&name).output().expect("kubectl starts").into();
                // A write whose response was lost is found at the next attempt.
                if ran.ok || ran.stderr.contains("AlreadyExists") {
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                    written.push(name);
                }
            }
            (written, longest.max(last.elapsed()))
        };
        Self {
            stop,
            writer: thread::spawn(write),
        }
    }

    /// The acknowledged writes, and the longest time without one.
    fn end(self) -> (Vec<String>, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        self.writer.join().expect("it writes")
    }
}

#[test]
fn a_server_and_a_member_of_three_may_die_and_no_write_is_lost() {
    let mut site = Site::new();
    let token = site.start_first();
    others_join_with_the_token_only(&mut site, &token);
    site.complete();
    names_of_all_servers_are_recorded(&site);
    a_node_does_not_get_the_name_of_a_server(&site);
    site.deploy("before");
    // Servers are no nodes.
    let nodes = site.get(&["nodes"]);
    assert_eq!(nodes["items"].as_array().map_or(0, Vec::len), 1, "{nodes}");

    let path = site.kubeconfig();
    one_machine_dies_under_load(&mut site, &path);
    it_comes_back(&mut site);
    clients_leave_a_silent_server(&site);
    the_token_is_replaced(&mut site, &token);
    the_leader_stops_and_another_goes_on_at_once(&mut site);
}

fn others_join_with_the_token_only(site: &mut Site, token: &str) {
    let refused = site.servers[1].refused().stderr;
    assert!(refused.contains("does not belong to"), "{refused}");
    let last = if token.ends_with('x') { 'y' } else { 'x' };
    let wrong = format!("{}{last}", &token[..token.len() - 1]);
    site.servers[1].set_flag("--server-token", &wrong);
    let refused = site.servers[1].refused().stderr;
    assert!(refused.contains("cannot decrypt the keys"), "{refused}");
    assert!(!refused.contains(&wrong), "{refused}");
    site.start_others(token);
    the_keys_are_in_etcd_and_not_in_the_api(site, token);
}

/// No node gets a certificate for them, whichever server approves it, and also while one is stopped.
fn names_of_all_servers_are_recorded(site: &Site) {
    eventually("the names of all servers", || {
        let map = site.get(&["configmap", "mainstay-servers", "-n", "kube-system"]);
        let entries = map["data"].as_object().cloned().unwrap_or_default();
        let names: Vec<String> = entries.values().map(ToString::to_string).collect();
        let is_known = |(number, server): (usize, &Server)| {
            let (name, address) = (format!("s{number}"), server.machine().address());
            let mut entries = names.iter();
            entries.any(|names| {
                let mut words = names.trim_matches('"').split(' ');
                let has_name = words.clone().any(|word| word == name);
                has_name && words.any(|word| word == address)
            })
        };
        match site.servers.iter().enumerate().all(is_known) {
            true => Ok(()),
            false => Err(map.to_string()),
        }
    });
}

/// Requests a certificate from the node's machine with a kubeconfig's user; returns the key's file.
fn request_certificate(
    site: &Site,
    user: &Value,
    (name, signer, usage): (&str, &str, &str),
    node: &str,
) -> String {
    let dir = site.agent.machine().dir();
    let file = |end: &str| dir.join(format!("{name}.{end}")).display().to_string();
    let (key, csr) = (file("key"), file("csr"));
    let subject = format!("/O=system:nodes/CN=system:node:{node}");
    let new = [
        "req", "-new", "-nodes", "-newkey", "rsa:2048", "-keyout", &key, "-out", &csr,
    ];
    let names = format!("subjectAltName=DNS:{node}");
    let names = match usage {
        "server auth" => vec!["-addext", &names],
        _ => vec![],
    };
    let words = [&new[..], &["-subj", &subject], &names].concat();
    site.agent.machine().run("openssl", &words).success();
    let encoded = site.agent.machine().run("base64", &["-w0", &csr]).success();
    let object = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {"signerName": signer, "request": encoded, "usages": ["digital signature", usage]},
    });
    let server = format!("https://{}:6443", site.servers[0].machine().address());
    let authority = site.agent.data_dir().join("agent/ca.crt");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it", "users": [{"name": "it", "user": user}],
        "clusters": [{"name": "it", "cluster": {"server": server, "certificate-authority": authority}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    });
    std::fs::write(file("json"), object.to_string()).expect("a file");
    std::fs::write(file("kubeconfig"), config.to_string()).expect("a file");
    let create = ["create", "-f", &file("json")];
    let config = file("kubeconfig");
    site.agent.kubectl(config.as_ref(), &create).success();
    key
}

fn issued(site: &Site, name: &str) -> Option<String> {
    let csr = site.get(&["csr", name]);
    csr["status"]["certificate"].as_str().map(str::to_owned)
}

/// The holder of a bootstrap token may have the client certificate of a node with any free name, but no certificate with
/// which it could be a server for those who connect to that by its name.
fn a_node_does_not_get_the_name_of_a_server(site: &Site) {
    let line = site.servers[0].mainstay(&["token", "create"]).success();
    let mut words = line
        .split_whitespace()
        .skip_while(|word| *word != "--token");
    let token = json!({"token": words.nth(1).expect("a token")});
    for node in ["s0", "s1", "s2", "fresh"] {
        let client = format!("{node}-client");
        let wish = (
            &*client,
            "kubernetes.io/kube-apiserver-client-kubelet",
            "client auth",
        );
        let key = request_certificate(site, &token, wish, node);
        let certificate = eventually("a client certificate", || {
            issued(site, &client).ok_or_else(|| "none yet".to_owned())
        });
        let identity = json!({"client-certificate-data": certificate, "client-key": key});
        let serving = format!("{node}-serving");
        let wish = (&*serving, "kubernetes.io/kubelet-serving", "server auth");
        request_certificate(site, &identity, wish, node);
    }
    // The last one is signed: the earlier ones were processed, too.
    eventually("a serving certificate", || {
        issued(site, "fresh-serving").ok_or_else(|| "none yet".to_owned())
    });
    for node in ["s0", "s1", "s2"] {
        assert_eq!(issued(site, &format!("{node}-serving")), None, "{node}");
    }
}

/// The content of etcd by key.
fn etcd_content(site: &Site) -> Vec<(String, String)> {
    let (files, url) = (site.etcd.client_files(), site.etcd.urls().swap_remove(0));
    let ask = move || {
        block_on(async {
            let member = Api::of_files(&files, &url, Duration::from_secs(10));
            // From the first key to the last.
            let all = json!({"key": "AA==", "range_end": "AA=="});
            member.send(Method::POST, "/v3/kv/range", Some(&all)).await
        })
    };
    let answer = site.agent.machine().thread(ask).join().expect("a thread");
    let answer = answer.expect("etcd's content");
    let decode = |field: &Value| {
        let text = field.as_str().unwrap_or_default();
        let bytes = BASE64_STANDARD.decode(text).expect("base64");
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let entries = answer["kvs"].as_array().expect("entries").iter();
    entries
        .map(|entry| (decode(&entry["key"]), decode(&entry["value"])))
        .collect()
}

/// The API serves the keys below `/registry/`. Private keys are nowhere in plain text, as in a
/// Secret or otherwise, and the encrypted ones are elsewhere.
fn the_keys_are_in_etcd_and_not_in_the_api(site: &Site, token: &str) {
    let content = etcd_content(site);
    let having = |text: &str| -> Vec<&str> {
        let found = content.iter().filter(|(_, value)| value.contains(text));
        found.map(|(key, _)| key.as_str()).collect()
    };
    let mut secrets = vec![token.to_owned()];
    for file in ["ca.key", "front-proxy-ca.key", "sa.key"] {
        let path = site.servers[0].data_dir().join("pki").join(file);
        let path = path.display().to_string();
        let pem = site.servers[0].machine().run("cat", &[&path]).success();
        let line = pem.lines().nth(1).expect("a key");
        secrets.extend([pem.clone(), line.to_owned()]);
    }
    for secret in secrets {
        assert_eq!(having(&secret), [""; 0]);
        // Without the last bytes, which depend on what follows.
        let encoded = BASE64_STANDARD.encode(&secret[..secret.len() / 3 * 3]);
        assert_eq!(having(&encoded), [""; 0]);
    }
    let encrypted = BASE64_STANDARD.encode("mainstay-seal-1");
    assert_eq!(having(&encrypted), ["/mainstay/cluster"]);
    assert!(having("kube-root-ca.crt").len() > 1, "nothing was read");
}

/// Prints its figures: `--no-capture` shows them.
#[allow(clippy::print_stdout)]
fn one_machine_dies_under_load(site: &mut Site, kubeconfig: &Path) {
    let command = site.agent.machine().command_maker();
    let kubeconfig = kubeconfig.to_owned();
    let load = Load::start(move |name| {
        let mut kubectl = command(&std::env::var("MAINSTAY_BIN").expect("MAINSTAY_BIN is set"));
        kubectl.args(["kubectl", "create", "configmap", name]);
        kubectl.env("KUBECONFIG", &kubeconfig);
        kubectl
    });
    thread::sleep(Duration::from_secs(2));
    let leader = site.leader().expect("a leader");
    site.servers[leader].kill();
    site.etcd.kill(leader);
    thread::sleep(Duration::from_secs(6));
    let (written, longest) = load.end();
    assert!(written.len() > 20, "{} writes", written.len());
    assert!(
        longest < Duration::from_secs(30),
        "no write for {longest:?}"
    );
    let listed = site.get(&["configmaps"]);
    let items = listed["items"].as_array().cloned().unwrap_or_default();
    let there: Vec<&str> = items
        .iter()
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect();
    let lost: Vec<&String> = written
        .iter()
        .filter(|name| !there.contains(&name.as_str()))
        .collect();
    assert!(lost.is_empty(), "{lost:?} of {}", written.len());
    println!("{} writes, the longest pause {longest:?}", written.len());
    // Another server leads when the lease has expired, and the node uses another server.
    let begun = Instant::now();
    site.deploy("without");
    println!("a deployment without the leader took {:?}", begun.elapsed());
    assert_ne!(site.leader(), Some(leader));
    site.wait_for_servers(2);
}

fn it_comes_back(site: &mut Site) {
    let down = site.servers.iter().position(|server| !server.is_running());
    let down = down.expect("one is down");
    site.etcd.start(down, site.servers[down].machine());
    site.servers[down].start();
    site.wait_for_servers(3);
}

/// The time of the node's last heartbeat.
fn heartbeat(site: &Site) -> Value {
    let lease = site.get(&["lease", "node", "-n", "kube-node-lease"]);
    lease["spec"]["renewTime"].clone()
}

/// How long kubectl may take while its server is silent. A machine that runs other tests, too, gets some more than in a
/// soak; a client that waits for the server fails.
fn failover_limit() -> Duration {
    let soak = std::env::var_os("MAINSTAY_SOAK").is_some();
    Duration::from_secs(if soak { 3 } else { 10 })
}

/// A paused server accepts connections and never responds. kubectl and agents need two seconds to
/// use another one.
#[allow(clippy::print_stdout)]
fn clients_leave_a_silent_server(site: &Site) {
    let connected = ["-Htn", "state", "established", "dport", "=", ":6443"];
    let connections = site.agent.machine().run("ss", &connected).success();
    let is_of_node = |server: &&Server| connections.contains(server.machine().address());
    let of_node = site.servers.iter().find(is_of_node).expect("a connection");
    let kubeconfig = std::fs::read_to_string(site.kubeconfig()).expect("a file");
    let named = |server: &&Server| {
        let line = format!("server: https://{}:6443", server.machine().address());
        kubeconfig.contains(&line)
    };
    let of_kubectl = site.servers.iter().find(named).expect("a server");
    for silent in [of_kubectl, of_node] {
        let before = heartbeat(site);
        silent.signal("-STOP");
        let begun = Instant::now();
        let ran = std::thread::scope(|scope| {
            let asked = scope.spawn(|| site.kubectl(&["get", "nodes"]));
            let has_ended = || match asked.is_finished() {
                true => Ok(()),
                false => Err("it waits for its answer".to_owned()),
            };
            let what = "kubectl to leave the silent server";
            until(what, failover_limit(), has_ended);
            asked.join().expect("an answer")
        });
        let took = begun.elapsed();
        let beating = || match heartbeat(site) {
            same if same == before => Err(same.to_string()),
            _ => Ok(()),
        };
        // It renews its Lease every ten seconds.
        until("the node's heartbeat", Duration::from_secs(25), beating);
        silent.signal("-CONT");
        assert!(ran.ok, "{}", ran.stderr);
        println!("kubectl left a silent server after {took:?}");
    }
    site.wait_for_servers(3);
}

fn the_token_is_replaced(site: &mut Site, before: &str) {
    let rotate = ["token", "server", "--rotate"];
    let token = site.servers[1].mainstay(&rotate).success();
    assert_ne!(token.trim(), before);
    let shown = site.servers[0].mainstay(&["token", "server"]).success();
    assert_eq!(shown, token);
    let server = &mut site.servers[2];
    server.stop();
    server.set_flag("--server-token", before);
    let refused = server.refused().stderr;
    assert!(refused.contains("cannot decrypt the keys"), "{refused}");
    server.set_flag("--server-token", token.trim());
    server.start();
    site.wait_for_servers(3);
}

fn the_leader_stops_and_another_goes_on_at_once(site: &mut Site) {
    let leader = site.leader().expect("a leader");
    site.servers[leader].stop();
    let soon = Duration::from_secs(8);
    until("another leader", soon, || match site.leader() {
        Some(other) if other != leader => Ok(()),
        same => Err(format!("{same:?} leads")),
    });
    site.deploy("after");
    site.wait_for_servers(2);
}

/// The holder of a lease.
fn holder(server: &Server, lease: &str) -> String {
    let path = "jsonpath={.spec.holderIdentity}";
    let get = ["get", "lease", "-n", "kube-system", lease, "-o", path];
    server.kubectl(&get).stdout
}

#[test]
fn a_leader_that_was_paused_stands_down_and_the_next_one_keeps_its_term() {
    let lan = Lan::new();
    let machine = |number| Machine::on(&lan, &lan.address(0, number));
    let machines = [machine(2), machine(3)];
    let mut etcd = Etcd::on(&[&machines[0]]);
    etcd.start(0, &machines[0]);
    let flags = etcd.flags();
    let [mut paused, mut next] = machines.map(|machine| Server::stopped(machine, "server", &flags));
    paused.start();
    let first = eventually("a leader", || {
        let holder = holder(&paused, "kube-controller-manager");
        if holder.is_empty() {
            Err(holder)
        } else {
            Ok(holder)
        }
    });
    let token = paused.mainstay(&["token", "server"]).success();
    next.set_flag("--server-token", token.trim());
    next.start();

    paused.signal("-STOP");
    let second = eventually("another leader", || {
        match holder(&next, "kube-controller-manager-term") {
            same if same == first || same.is_empty() => Err(same),
            other => Ok(other),
        }
    });
    paused.signal("-CONT");
    let log = paused.log();
    let text = || std::fs::read_to_string(&log).unwrap_or_default();
    eventually("the paused leader to stand down", || {
        let lost = text()
            .lines()
            .filter(|line| line.contains("leadership lost"))
            .count();
        // Of the controllers and of the scheduler.
        if lost == 2 { Ok(()) } else { Err(text()) }
    });
    let image = "--image=mainstay.local/hello";
    next.kubectl(&["create", "deployment", "web", image])
        .success();
    eventually("a controller at work", || {
        let sets = next.kubectl(&["get", "replicasets", "-o", "name"]);
        if sets.stdout.is_empty() {
            Err(sets.stderr)
        } else {
            Ok(())
        }
    });
    for lease in ["kube-controller-manager", "kube-controller-manager-term"] {
        assert_eq!(holder(&next, lease), second, "{lease}");
    }
}

/// Creates a Deployment, and waits until a controller has made its ReplicaSet.
fn controllers_work(server: &Server, name: &str) {
    let image = "--image=mainstay.local/hello";
    server
        .kubectl(&["create", "deployment", name, image])
        .success();
    let label = format!("app={name}");
    eventually(&format!("the ReplicaSet of {name}"), || {
        let sets = server.kubectl(&["get", "replicasets", "-l", &label, "-o", "name"]);
        match sets.stdout.is_empty() {
            true => Err(sets.stderr),
            false => Ok(()),
        }
    });
}

/// As people force an election.
#[test]
fn controllers_work_after_the_leases_of_leaders_were_changed_or_deleted() {
    let lan = Lan::new();
    let machine = |number| Machine::on(&lan, &lan.address(0, number));
    let machines = [machine(2), machine(3)];
    let mut etcd = Etcd::on(&[&machines[0]]);
    etcd.start(0, &machines[0]);
    let flags = etcd.flags();
    let [mut one, mut two] = machines.map(|machine| Server::stopped(machine, "server", &flags));
    one.start();
    let token = one.mainstay(&["token", "server"]).success();
    two.set_flag("--server-token", token.trim());
    two.start();
    // Several terms: the deleted Leases start with their number at zero again.
    for _ in 0..2 {
        for server in [&mut one, &mut two] {
            server.stop();
            server.start();
        }
    }
    let lease = |verb: &[&str]| {
        let names = ["kube-controller-manager", "kube-scheduler"];
        one.kubectl(&[verb, &["leases", "-n", "kube-system"], &names].concat())
            .success();
    };
    lease(&["delete"]);
    controllers_work(&one, "deleted");
    let term = "kube-controller-manager-term";
    let annotate = ["annotate", "lease", term, "-n", "kube-system", "by=hand"];
    one.kubectl(&annotate).success();
    controllers_work(&one, "changed");
    one.kubectl(&["delete", "lease", term, "-n", "kube-system"])
        .success();
    controllers_work(&one, "without-term");
    // Whichever leads.
    lease(&["delete"]);
    one.stop();
    controllers_work(&two, "after-one");
    one.start();
    two.stop();
    controllers_work(&one, "after-two");
}

#[test]
fn a_copy_of_a_running_servers_directory_is_refused() {
    let lan = Lan::new();
    let machine = |number| Machine::on(&lan, &lan.address(0, number));
    let machines = [machine(2), machine(3)];
    let mut etcd = Etcd::on(&[&machines[0]]);
    etcd.start(0, &machines[0]);
    let flags = etcd.flags();
    let [mut one, mut copy] = machines.map(|machine| Server::stopped(machine, "server", &flags));
    one.start();
    let archive = one.machine().dir().join("copy.tar").display().to_string();
    let directory = |server: &Server| server.data_dir().display().to_string();
    let (from, to) = (directory(&one), directory(&copy));
    one.machine()
        .run("tar", &["-C", &from, "-cf", &archive, "."])
        .success();
    copy.machine().run("mkdir", &["-p", &to]).success();
    copy.machine()
        .run("tar", &["-C", &to, "-xf", &archive])
        .success();
    let refused = copy.refused().stderr;
    assert!(refused.contains("runs with a copy of"), "{refused}");
    // After the end of the other it takes over, as after a change of its address.
    one.kill();
    copy.start();
    controllers_work(&copy, "web");
}

/// Starts a server and kills it with SIGKILL after a while.
fn start_and_kill(server: &Server, flags: &[String], after: Duration) {
    let program = std::env::var("MAINSTAY_BIN").expect("MAINSTAY_BIN is set");
    let mut command = server.machine().command(&program);
    command.args(["server", "--node-ip", server.machine().address()]);
    command.args(flags).arg("--data-dir").arg(server.data_dir());
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut started = quiet.spawn().expect("the binary starts");
    thread::sleep(after);
    started.kill().expect("it can be killed");
    started.wait().expect("it ends");
}

#[test]
fn servers_that_are_killed_while_they_found_or_join_a_cluster_do_so_at_the_next_start() {
    let lan = Lan::new();
    let machine = |number| Machine::on(&lan, &lan.address(0, number));
    let machines = [machine(2), machine(3)];
    let mut etcd = Etcd::on(&[&machines[0]]);
    etcd.start(0, &machines[0]);
    let flags = etcd.flags();
    let [mut first, mut second] = machines.map(|machine| Server::stopped(machine, "s", &flags));
    let moments = (1..12).map(|number| Duration::from_millis(30 * number));
    for moment in moments.clone() {
        start_and_kill(&first, &flags, moment);
    }
    first.start();
    let token = first.mainstay(&["token", "server"]).success();
    second.set_flag("--server-token", token.trim());
    let join = [&flags[..], &["--server-token".into(), token.trim().into()]].concat();
    for moment in moments {
        start_and_kill(&second, &join, moment);
    }
    second.start();
    // Both serve the same cluster: the administrator of one is that of the other.
    let create = ["create", "configmap", "shared"];
    second.kubectl(&create).success();
    first.kubectl(&["get", "configmap", "shared"]).success();
}
