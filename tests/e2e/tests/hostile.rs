//! A compromised node of the cluster, and a machine with only a bootstrap token: they cannot get
//! more permissions than they have.

use std::{fs, path::PathBuf, time::Duration};

use serde_json::{Value, json};
use testkit::{Agent, Cluster, Lan, Ran, eventually, until};

struct Site {
    // Fields are dropped in this order: machines before their network.
    two: Agent,
    cluster: Cluster,
    lan: Lan,
}

/// The user of a request.
#[derive(Clone, Copy)]
enum Identity<'a> {
    /// `system:node:two`.
    Node,
    /// The identity of the node's proxy, DNS and network policy.
    Proxy,
    /// A bootstrap token.
    Token(&'a str),
}

impl Site {
    fn new() -> Self {
        let lan = Lan::new();
        let cluster = Cluster::on_lan(&lan, &[]);
        let mut two = Agent::on_lan(&lan, 0, 3, "two");
        two.start(&cluster.join_flags());
        eventually("the second identity", || {
            let path = two.data_dir().join("agent/proxy.pem");
            let path = path.display().to_string();
            match two.machine().run("test", &["-s", &path]).ok {
                true => Ok(()),
                false => Err(path),
            }
        });
        Self { two, cluster, lan }
    }

    fn kubeconfig(&self, identity: Identity<'_>) -> PathBuf {
        let dir = self.two.data_dir().join("agent");
        let file = |name: &str| dir.join(name).display().to_string();
        let user = match identity {
            Identity::Node => {
                json!({"client-certificate": file("kubelet.pem"), "client-key": file("kubelet.pem")})
            }
            Identity::Proxy => {
                json!({"client-certificate": file("proxy.pem"), "client-key": file("proxy.pem")})
            }
            Identity::Token(token) => json!({"token": token}),
        };
        let server = format!("https://{}:6443", self.cluster.machine().address());
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": server, "certificate-authority": file("ca.crt")}}],
            "users": [{"name": "it", "user": user}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        });
        let path = self.two.machine().dir().join("hostile.kubeconfig");
        fs::write(&path, config.to_string()).expect("a file");
        path
    }

    fn kubectl(&self, identity: Identity<'_>, args: &[&str]) -> Ran {
        self.two.kubectl(&self.kubeconfig(identity), args)
    }

    /// Creates objects from a file.
    fn create(&self, identity: Identity<'_>, object: &Value) -> Ran {
        let path = self.two.machine().dir().join("hostile.json");
        fs::write(&path, object.to_string()).expect("a file");
        let path = path.display().to_string();
        self.kubectl(identity, &["create", "-f", &path])
    }

    /// A CertificateSigningRequest.
    fn request(&self, name: &str, signer: &str, subject: &str, usage: &str) -> Value {
        let dir = self.two.machine().dir();
        let (key, csr) = (dir.join("hostile.key"), dir.join("hostile.csr"));
        let (key, csr) = (key.display().to_string(), csr.display().to_string());
        let arguments = [
            "req", "-new", "-nodes", "-newkey", "rsa:2048", "-keyout", &key,
        ];
        let arguments = [&arguments[..], &["-out", &csr, "-subj", subject]].concat();
        self.two.machine().run("openssl", &arguments).success();
        let encoded = self.two.machine().run("base64", &["-w0", &csr]).success();
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": name},
            "spec": {"signerName": signer, "request": encoded, "usages": ["digital signature", usage]},
        })
    }
}

#[track_caller]
fn forbidden(ran: &Ran) {
    let is_refused = ran.stderr.contains("Forbidden") || ran.stderr.contains("forbidden");
    assert!(!ran.ok && is_refused, "{}{}", ran.stdout, ran.stderr);
}

const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const PROXY: &str = "mainstay.local/node-proxy-client";

#[test]
fn a_compromised_node_and_a_bootstrap_token_cannot_escalate() {
    let site = Site::new();
    secrets_of_others_stay_closed(&site);
    objects_of_others_are_not_written(&site);
    other_names_are_not_certified(&site);
    tokens_that_are_over_or_of_another_purpose_do_not_join(&site);
}

fn secrets_of_others_stay_closed(site: &Site) {
    let create = [
        "create",
        "secret",
        "generic",
        "treasure",
        "--from-literal=a=b",
    ];
    site.cluster.kubectl(&create).success();
    // Used by a pod, but on another node.
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "elsewhere"},
        "spec": {"nodeName": "one", "containers": [{"name": "c", "image": "mainstay.local/hello",
            "envFrom": [{"secretRef": {"name": "treasure"}}]}]},
    });
    let apply = ["create", "-f", "-"];
    site.cluster
        .kubectl_stdin(&apply, &pod.to_string())
        .success();
    for identity in [Identity::Node, Identity::Proxy] {
        forbidden(&site.kubectl(identity, &["get", "secret", "treasure"]));
        forbidden(&site.kubectl(identity, &["get", "secrets", "-A"]));
        forbidden(&site.kubectl(identity, &["get", "secrets", "-n", "kube-system"]));
        let token = ["create", "token", "default", "--bound-object-kind=Pod"];
        let token = [&token[..], &["--bound-object-name=elsewhere"]].concat();
        forbidden(&site.kubectl(identity, &token));
        forbidden(&site.kubectl(identity, &["create", "token", "default"]));
    }
}

fn objects_of_others_are_not_written(site: &Site) {
    let label = ["label", "node", "one", "a=b"];
    let taint = ["taint", "node", "two", "a=b:NoExecute"];
    let own = ["label", "node", "two", "node-restriction.kubernetes.io/a=b"];
    for command in [
        &label[..],
        &taint,
        &own,
        &["delete", "node", "one"],
        &["delete", "pod", "elsewhere"],
    ] {
        forbidden(&site.kubectl(Identity::Node, command));
    }
    let lease = [
        "patch",
        "lease",
        "one",
        "-n",
        "kube-node-lease",
        "-p",
        r#"{"spec":{"holderIdentity":"x"}}"#,
    ];
    forbidden(&site.kubectl(Identity::Node, &lease));
    let status = [
        "patch",
        "node",
        "one",
        "--subresource=status",
        "-p",
        r#"{"status":{"phase":"x"}}"#,
    ];
    forbidden(&site.kubectl(Identity::Node, &status));
    // A pod of the control plane's node, and one with a service account.
    for (node, account) in [("one", ""), ("two", "default")] {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "planted", "annotations": {"kubernetes.io/config.mirror": "x"}},
            "spec": {"nodeName": node, "serviceAccountName": account,
                "containers": [{"name": "c", "image": "mainstay.local/hello"}]},
        });
        forbidden(&site.create(Identity::Node, &pod));
    }
    for command in [
        &label[..],
        &["delete", "pod", "elsewhere"],
        &["get", "configmaps", "-A"],
        &["create", "ns", "x"],
    ] {
        forbidden(&site.kubectl(Identity::Proxy, command));
    }
}

/// Requests for certificates of other identities are accepted and never signed.
fn other_names_are_not_certified(site: &Site) {
    let token = site.cluster.join_flags();
    let at = token.iter().position(|flag| flag == "--token");
    let token = token[at.expect("a token") + 1].clone();
    let node = |name: &str| format!("/O=system:nodes/CN=system:node:{name}");
    let requests = [
        ("other-node", Identity::Node, CLIENT, node("one")),
        (
            "other-proxy",
            Identity::Node,
            PROXY,
            "/O=system:node-proxies/CN=system:node-proxy:one".to_owned(),
        ),
        (
            "masters",
            Identity::Node,
            CLIENT,
            "/O=system:masters/CN=system:node:two".to_owned(),
        ),
        // The holder of a token must not get the identity of an existing, Ready node.
        ("taken-name", Identity::Token(&token), CLIENT, node("one")),
        // The last name counts, for Go's programs too.
        (
            "two-names",
            Identity::Token(&token),
            CLIENT,
            "/O=system:nodes/CN=system:node:new/CN=system:node:one".to_owned(),
        ),
        (
            "token-proxy",
            Identity::Token(&token),
            PROXY,
            "/O=system:node-proxies/CN=system:node-proxy:one".to_owned(),
        ),
    ];
    for (name, identity, signer, subject) in &requests {
        let request = site.request(name, signer, subject, "client auth");
        let ran = site.create(*identity, &request);
        assert!(
            ran.ok || ran.stderr.contains("orbidden"),
            "{name}: {}",
            ran.stderr
        );
        if ran.ok && matches!(identity, Identity::Node) {
            forbidden(&site.kubectl(*identity, &["certificate", "approve", name]));
        }
    }
    // When one that may be signed is signed, the earlier ones were processed, too.
    let fresh = site.request("fresh", CLIENT, &node("fresh"), "client auth");
    site.create(Identity::Token(&token), &fresh).success();
    let certificate = |name: &str| {
        let ran = site.cluster.kubectl(&["get", "csr", name, "-o", "json"]);
        let csr: Option<Value> = serde_json::from_str(&ran.stdout).ok();
        csr.and_then(|csr| csr["status"]["certificate"].as_str().map(str::to_owned))
    };
    eventually("a certificate of a new node", || {
        certificate("fresh").ok_or_else(|| "none yet".to_owned())
    });
    for (name, ..) in &requests {
        assert_eq!(certificate(name), None, "{name}");
    }
    forbidden(&site.kubectl(Identity::Token(&token), &["get", "secrets", "-A"]));
    forbidden(&site.kubectl(Identity::Token(&token), &["get", "pods", "-A"]));
    forbidden(&site.kubectl(Identity::Token(&token), &["delete", "node", "one"]));
}

/// The flags of the command that joins with a new token, and the token.
fn new_token(site: &Site, options: &[&str]) -> (Vec<String>, String) {
    let create = [&["token", "create"], options].concat();
    let line = site.cluster.mainstay(&create).success();
    let words = line.trim().strip_prefix("mainstay agent ").expect("flags");
    let join: Vec<String> = words.split(' ').map(str::to_owned).collect();
    let at = join.iter().position(|flag| flag == "--token");
    let token = join[at.expect("a token") + 1].clone();
    (join, token)
}

fn tokens_that_are_over_or_of_another_purpose_do_not_join(site: &Site) {
    let (join, token) = new_token(site, &["--ttl", "2s"]);
    until("the token to be over", Duration::from_secs(30), || {
        let ran = site.kubectl(Identity::Token(&token), &["get", "node", "one"]);
        match ran.stderr.contains("Unauthorized") || ran.stderr.contains("logged in") {
            true => Ok(()),
            false => Err(format!("{}{}", ran.stdout, ran.stderr)),
        }
    });
    let mut tokens = vec![(join, token, "token")];
    for (options, why) in [
        (["--usages", "signing"], "has no usage \"authentication\""),
        (["--usages", "authentication"], "has no usage \"signing\""),
        (
            ["--groups", "system:bootstrappers:other"],
            "may not join nodes",
        ),
    ] {
        let (join, token) = new_token(site, &options);
        tokens.push((join, token, why));
    }
    let three = Agent::on_lan(&site.lan, 0, 4, "three");
    for (join, token, why) in tokens {
        let ran = three.refused(&join);
        assert!(ran.stderr.contains(why), "{why}: {}", ran.stderr);
        assert!(
            !ran.stderr.contains(&token),
            "the token is shown: {}",
            ran.stderr
        );
    }
    let nodes = site.cluster.get(&["nodes"]);
    let nodes = nodes["items"].as_array().map_or(0, Vec::len);
    assert_eq!(nodes, 2, "a node was registered");
}
