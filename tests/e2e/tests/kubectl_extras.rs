//! What our kubectl does beyond upstream's: everything in a namespace, logs of pods that start
//! later, forwarded ports that outlive their pod. And where it finds its cluster: in a pod, and in
//! the home of a user behind sudo.

use std::{fs, path::Path};

use e2e::{name, ready_pods};
use testkit::{Cluster, eventually};

const WEB: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      # The first one runs while the logs of the second are read.
      - {name: one, image: mainstay.local/hello, args: [http, "8080"]}
      - {name: two, image: mainstay.local/hello, args: [http, "8081"]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
"#;

fn cluster() -> Cluster {
    let cluster = Cluster::up();
    cluster.kubectl_stdin(&["apply", "-f", "-"], WEB).success();
    ready_pods(&cluster, "app=web", 1);
    cluster
}

#[test]
fn namespaces_logs_and_forwarded_ports_are_complete() {
    let cluster = cluster();
    everything_is_listed(&cluster);
    logs_follow_all_containers_and_new_pods(&cluster);
    a_forwarded_port_outlives_its_pod(&cluster);
    a_pod_finds_its_own_cluster(&cluster);
    discovery_is_kept_on_disk(&cluster);
}

fn everything_is_listed(cluster: &Cluster) {
    cluster.kubectl(&["create", "configmap", "kept"]).success();
    let all = cluster.kubectl(&["get", "all", "-o", "name"]).success();
    assert!(
        all.contains("deployment.apps/web") && !all.contains("configmap/kept"),
        "{all}"
    );
    let all = cluster
        .kubectl(&["get", "all", "--really-all", "-o", "name"])
        .success();
    for object in [
        "deployment.apps/web",
        "configmap/kept",
        "serviceaccount/default",
        "endpointslice.discovery.k8s.io/web-",
    ] {
        assert!(all.contains(object), "{object}: {all}");
    }
}

fn logs_follow_all_containers_and_new_pods(cluster: &Cluster) {
    let ran = cluster.kubectl(&["logs", "-F", "deployment/none"]);
    let expected = "deployments.apps \"none\" not found";
    assert!(!ran.ok && ran.stderr.contains(expected), "{ran:?}");
    let first = name(&ready_pods(cluster, "app=web", 1)[0]);
    let all = "kubectl logs -f -l app=web --all-containers --prefix";
    let mut followed = cluster.terminal(all, &[]);
    let mut new = cluster.terminal(
        "kubectl logs -F deployment/web --all-containers --prefix",
        &[],
    );
    let mut chosen = cluster.terminal("kubectl logs -F deployment/web", &[]);
    for container in ["one", "two"] {
        for logs in [&followed, &new] {
            let prefix = format!("[pod/{first}/{container}] ");
            eventually(&prefix, || match logs.shown().contains(&prefix) {
                true => Ok(()),
                false => Err(logs.shown()),
            });
        }
    }
    let scale = ["scale", "deployment/web", "--replicas=2"];
    cluster.kubectl(&scale).success();
    let pods = ready_pods(cluster, "app=web", 2);
    let second = pods.iter().map(name).find(|pod| *pod != first);
    let second = second.expect("another pod");
    new.wait_for(&format!("[pod/{second}/"));
    assert!(!followed.shown().contains(&second), "{}", followed.shown());
    // The pods are looked up every second; the message about the chosen container is printed once.
    chosen.wait_for(&format!("{second} serves HTTP"));
    let said = chosen.shown().matches("Defaulted container").count();
    assert_eq!(said, 1, "{}", chosen.shown());
    for logs in [&mut followed, &mut new, &mut chosen] {
        logs.press("\x03");
    }
}

fn a_forwarded_port_outlives_its_pod(cluster: &Cluster) {
    let binary = std::env::var("MAINSTAY_BIN").expect("the binary");
    let mut forward = cluster.terminal("kubectl port-forward service/web 18080:80", &[]);
    forward.wait_for("Forwarding from 127.0.0.1:18080 -> 8080");
    let answer = || {
        let get = ["hello", "get", "http://127.0.0.1:18080/"];
        let ran = cluster.machine().run(&binary, &get);
        if ran.ok {
            Ok(ran.stdout)
        } else {
            Err(ran.stderr)
        }
    };
    let before = answer().expect("a pod answers");
    let delete = ["delete", "pod", "-l", "app=web", "--now"];
    cluster.kubectl(&delete).success();
    let after = eventually("another pod to answer", answer);
    assert_ne!(before, after);
    forward.press("\x03");
}

fn a_pod_finds_its_own_cluster(cluster: &Cluster) {
    let pod = name(&ready_pods(cluster, "app=web", 2)[0]);
    let whoami = [
        "auth",
        "whoami",
        "-o",
        "jsonpath={.status.userInfo.username}",
    ];
    let exec = ["exec", &pod, "-c", "one", "--", "/mainstay", "kubectl"];
    let user = cluster.kubectl(&[&exec[..], &whoami].concat()).success();
    assert_eq!(user, "system:serviceaccount:default:default");
}

/// The types of the server are read once, and again if one is asked for that was not there.
fn discovery_is_kept_on_disk(cluster: &Cluster) {
    let cache = cluster.machine().dir().join("cache");
    let cache = cache.to_str().expect("a path");
    let requests = |arguments: &[&str]| {
        let verbose = [arguments, &["-v=6", "--cache-dir", cache]].concat();
        let ran = cluster.kubectl(&verbose);
        assert!(ran.ok, "{ran:?}");
        ran.stderr
    };
    let list = "/api/v1/namespaces/default/configmaps";
    for (reads_types, round) in [(true, "first"), (false, "second")] {
        let said = requests(&["get", "configmaps"]);
        assert!(said.contains(list), "{round}: {said}");
        assert_eq!(said.contains("/apis"), reads_types, "{round}: {said}");
    }
    let definition = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/greetings.yaml");
    cluster.kubectl(&["apply", "-f", definition]).success();
    let name = "crd/greetings.story.mainstay.local";
    cluster
        .kubectl(&["wait", "--for=condition=Established", name, "--timeout=60s"])
        .success();
    eventually("the new type", || {
        let ran = cluster.kubectl(&["get", "greetings", "--cache-dir", cache]);
        if ran.ok { Ok(()) } else { Err(ran.stderr) }
    });
}

#[test]
fn the_user_behind_sudo_gets_the_context() {
    let cluster = Cluster::up();
    let machine = cluster.machine();
    // Only this machine has the user.
    let accounts = machine.dir().join("passwd");
    let own = fs::read_to_string("/etc/passwd").expect("accounts");
    fs::write(
        &accounts,
        format!("{own}jane:x:54321:54321::/run/jane:/bin/sh\n"),
    )
    .expect("a file");
    let accounts = accounts.display();
    let prepare = format!(
        "mount --bind {accounts} /etc/passwd && mkdir /run/jane && chown 54321:54321 /run/jane"
    );
    machine.run("sh", &["-ec", &prepare]).success();
    let binary = std::env::var("MAINSTAY_BIN").expect("the binary");
    let merge = format!(
        "SUDO_UID=54321 SUDO_GID=54321 SUDO_USER=jane {binary} kubeconfig --merge --data-dir {}",
        cluster.data_dir().display()
    );
    let said = machine.run("sh", &["-ec", &merge]).success();
    assert!(said.contains("/run/jane/.kube/config"), "{said}");
    let owner = ["-c", "%u %a", "/run/jane/.kube/config"];
    assert_eq!(machine.run("stat", &owner).success().trim(), "54321 600");
    let nodes = [binary.as_str(), "kubectl", "get", "nodes", "-o", "name"];
    let as_jane = ["-i", "HOME=/run/jane"];
    let nodes = machine.run("env", &[&as_jane[..], &nodes].concat());
    assert_eq!(nodes.success(), "node/one\n");
    // Nothing of it is outside of the machine.
    assert!(!Path::new("/run/jane").exists());
}
