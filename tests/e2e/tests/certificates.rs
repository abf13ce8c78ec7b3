//! Certificate requests are approved and denied with our kubectl and with upstream's. Certificates
//! with a lifetime below a minute are renewed without a restart.

use std::{collections::BTreeMap, fs, time::Duration};

use e2e::{name, ready_pods};
use testkit::{Agent, Cluster, Lan, Machine, Ran, eventually, until};

/// A request for a client certificate, as a manifest.
fn request(cluster: &Cluster, name: &str) -> String {
    let dir = cluster.machine().dir();
    let (key, csr) = (
        dir.join(format!("{name}.key")),
        dir.join(format!("{name}.csr")),
    );
    let (key, csr) = (key.display().to_string(), csr.display().to_string());
    let subject = format!("/O=dev/CN={name}");
    let new = ["req", "-new", "-nodes", "-newkey", "rsa:2048", "-keyout"];
    let mut arguments = new.to_vec();
    arguments.extend([key.as_str(), "-out", &csr, "-subj", &subject]);
    cluster.machine().run("openssl", &arguments).success();
    let encoded = cluster.machine().run("base64", &["-w0", &csr]).success();
    format!(
        "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {{name: {name}}}\n\
         spec: {{signerName: kubernetes.io/kube-apiserver-client, expirationSeconds: 3600, usages: [client auth], request: {encoded}}}\n"
    )
}

/// The issued certificate, as openssl prints it.
fn issued(cluster: &Cluster, name: &str) -> String {
    let certificate = eventually("the certificate", || {
        let csr = cluster.get(&["csr", name]);
        let certificate = csr["status"]["certificate"].as_str().map(str::to_owned);
        certificate.ok_or(csr["status"].to_string())
    });
    let file = cluster.machine().dir().join(format!("{name}.b64"));
    fs::write(&file, certificate).expect("a file");
    let read = "base64 -d \"$0\" | openssl x509 -noout -subject -issuer -ext extendedKeyUsage";
    let file = file.display().to_string();
    cluster.machine().run("sh", &["-c", read, &file]).success()
}

fn decide(cluster: &Cluster, kubectl: &dyn Fn(&[&str]) -> Ran, who: &str) {
    let (yes, no) = (format!("{who}-alice"), format!("{who}-bob"));
    for name in [&yes, &no] {
        let manifest = request(cluster, name);
        cluster
            .kubectl_stdin(&["create", "-f", "-"], &manifest)
            .success();
    }
    let listed = kubectl(&["get", "csr", &yes]).success();
    assert!(listed.contains("Pending"), "{listed}");
    let said = kubectl(&["certificate", "approve", &yes]).success();
    let expected = format!("certificatesigningrequest.certificates.k8s.io/{yes} approved");
    assert!(said.contains(&expected), "{said}");
    let said = kubectl(&["certificate", "deny", &no]).success();
    let expected = format!("certificatesigningrequest.certificates.k8s.io/{no} denied");
    assert!(said.contains(&expected), "{said}");
    let certificate = issued(cluster, &yes);
    assert!(
        certificate.contains(&yes) && certificate.contains("dev"),
        "{certificate}"
    );
    assert!(
        certificate.contains("TLS Web Client Authentication"),
        "{certificate}"
    );
    let listed = kubectl(&["get", "csr", &yes, &no]).success();
    assert!(
        listed.contains("Approved,Issued") && listed.contains("Denied"),
        "{listed}"
    );
    let denied = cluster.get(&["csr", &no]);
    assert!(denied["status"].get("certificate").is_none(), "{denied}");
}

#[test]
fn requests_for_certificates_are_approved_and_denied() {
    let mut cluster = Cluster::up();
    cluster.set_upstream_kubectl(e2e::kubectl(env!("CARGO_TARGET_TMPDIR").as_ref()));
    decide(&cluster, &|args| cluster.kubectl(args), "own");
    if cluster.upstream_kubectl(&["version", "--client"]).is_some() {
        let kubectl = |args: &[&str]| cluster.upstream_kubectl(args).expect("it is there");
        decide(&cluster, &kubectl, "ordinary");
    }
}

/// Certificates by file.
type Certificates = BTreeMap<String, String>;

const OF_SERVER: [&str; 4] = [
    "pki/apiserver.crt",
    "pki/front-proxy-client.crt",
    "pki/apiserver-kubelet-client.crt",
    "pki/admin.crt",
];
const OF_AGENT: [&str; 3] = [
    "agent/kubelet.pem",
    "agent/kubelet-serving.pem",
    "agent/proxy.pem",
];

/// The current certificates of the server and of the agent.
fn certificates(cluster: &Cluster, agent: &Agent) -> Certificates {
    let read = |machine: &Machine, dir: std::path::PathBuf, file: &str| {
        let path = dir.join(file).display().to_string();
        let ran = machine.run("openssl", &["x509", "-in", &path]);
        (file.to_owned(), ran.stdout)
    };
    let of_server = OF_SERVER.map(|file| read(cluster.machine(), cluster.data_dir(), file));
    let of_agent = OF_AGENT.map(|file| read(agent.machine(), agent.data_dir(), file));
    of_server.into_iter().chain(of_agent).collect()
}

/// Which of these are still valid.
fn valid(cluster: &Cluster, certificates: &Certificates) -> Vec<String> {
    let path = cluster.machine().dir().join("certificate.pem");
    let shown = path.display().to_string();
    let is_valid = |pem: &String| {
        fs::write(&path, pem).expect("a file");
        let check = ["x509", "-checkend", "0", "-noout", "-in", shown.as_str()];
        cluster.machine().run("openssl", &check).ok
    };
    let valid = certificates.iter().filter(|(_, pem)| is_valid(pem));
    valid.map(|(file, _)| file.clone()).collect()
}

#[test]
fn certificates_of_less_than_a_minute_are_renewed_without_a_restart() {
    let lan = Lan::new();
    let cluster = Cluster::on_lan(&lan, &["--cluster-signing-duration", "40s"]);
    let mut agent = Agent::on_lan(&lan, 0, 3, "two");
    agent.start(&cluster.join_flags());
    let pod = r#"{"spec": {"nodeName": "two"}}"#;
    let image = "--image=mainstay.local/hello";
    let run = |name: &str| {
        let overrides = format!("--overrides={pod}");
        let args = ["run", name, image, "--labels=app=web", &overrides];
        cluster.kubectl(&args).success();
    };
    run("before");
    let web = ready_pods(&cluster, "app=web", 1);
    let tokens = cluster.mainstay(&["token", "list"]).success();
    let id = tokens
        .lines()
        .nth(1)
        .and_then(|line| line.split(' ').next());
    let delete = ["token", "delete", id.expect("a token")];
    cluster.mainstay(&delete).success();
    let processes = (cluster.pid(), agent.pid());

    let first = certificates(&cluster, &agent);
    assert_eq!(first.len(), OF_SERVER.len() + OF_AGENT.len());
    let patience = Duration::from_secs(120);
    until("every certificate to be over", patience, || {
        match valid(&cluster, &first) {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{left:?}")),
        }
    });
    let second = certificates(&cluster, &agent);
    for (file, pem) in &first {
        assert_ne!(pem, &second[file], "{file}");
    }
    assert_eq!(valid(&cluster, &second).len(), second.len());
    // The kubelet still writes, the API server still reaches it, and the proxy still gets Services.
    run("after");
    let pods = ready_pods(&cluster, "app=web", 2);
    for pod in &pods {
        cluster.kubectl(&["logs", &name(pod)]).success();
    }
    let expose = [
        "expose",
        "pod",
        "after",
        "--name=late",
        "--port=80",
        "--target-port=8080",
    ];
    cluster.kubectl(&expose).success();
    let caller = name(&web[0]);
    eventually("a service made after the renewal", || {
        let url = "http://late.default.svc.cluster.local/";
        let ran = cluster.kubectl(&["exec", &caller, "--", "/mainstay", "hello", "get", url]);
        if ran.ok { Ok(()) } else { Err(ran.stderr) }
    });
    assert_eq!((cluster.pid(), agent.pid()), processes);
}
