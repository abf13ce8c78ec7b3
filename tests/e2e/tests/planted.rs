//! No secret is logged, at any log level: secrets, passwords, tokens and keys are planted wherever
//! API server, controllers, kubelet and runtime see them, the cluster uses them, and every log is
//! searched for them, including the audit log at level Metadata.

use std::{fs, path::Path};

use e2e::busybox_archive;
use testkit::{Cluster, eventually};

const STATIC_TOKEN: &str = "planted-static-token-0001";
const WRONG_TOKEN: &str = "planted-wrong-token-0002";
const VALUE: &str = "planted-secret-value-0003";
const PASSWORD: &str = "planted-registry-password-0004";
const TOKEN_SECRET: &str = "plantedplanted05";

const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
rules: [{level: Metadata}]
";

const OBJECTS: &str = r#"
apiVersion: v1
kind: Secret
metadata: {name: planted}
stringData: {value: planted-secret-value-0003}
---
apiVersion: v1
kind: Secret
metadata: {name: registry}
type: kubernetes.io/dockerconfigjson
stringData:
  .dockerconfigjson: '{"auths": {"local.test": {"username": "u", "password": "planted-registry-password-0004"}}}'
---
apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-plante, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData:
  token-id: plante
  token-secret: plantedplanted05
  usage-bootstrap-authentication: "true"
  usage-bootstrap-signing: "true"
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cluster-info, namespace: kube-public}
data: {kubeconfig: "somewhere"}
---
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  terminationGracePeriodSeconds: 0
  imagePullSecrets: [{name: registry}]
  containers:
  - name: main
    image: local.test/busybox:1
    imagePullPolicy: IfNotPresent
    command: [/bin/busybox, sleep, "3600"]
    env: [{name: VALUE, valueFrom: {secretKeyRef: {name: planted, key: value}}}]
    volumeMounts: [{name: planted, mountPath: /planted}]
  volumes: [{name: planted, secret: {secretName: planted}}]
---
apiVersion: v1
kind: Pod
metadata: {name: broken}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: local.test/busybox:1
    imagePullPolicy: IfNotPresent
    command: [/no/such/program]
    env: [{name: VALUE, valueFrom: {secretKeyRef: {name: planted, key: value}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: unpulled}
spec:
  imagePullSecrets: [{name: registry}]
  containers: [{name: main, image: "local.test/absent:1"}]
"#;

/// The administrator's kubeconfig with a token instead of the certificate.
fn with_token(cluster: &Cluster, token: &str) -> String {
    let admin = cluster
        .machine()
        .run("cat", &[&path(&cluster.kubeconfig())]);
    let mut lines: Vec<String> = Vec::new();
    for line in admin.success().lines() {
        if line.trim_start().starts_with("client-key-data:") {
            continue;
        }
        match line.split_once("client-certificate-data:") {
            Some((indent, _)) => lines.push(format!("{indent}token: {token}")),
            None => lines.push(line.to_owned()),
        }
    }
    let file = cluster.machine().dir().join("token.kubeconfig");
    fs::write(&file, lines.join("\n")).expect("a file");
    path(&file)
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

/// The forms of a secret: plain, and in base64.
fn forms(cluster: &Cluster, secret: &str) -> Vec<String> {
    let script = format!("printf %s '{secret}' | base64 -w0");
    let encoded = cluster.machine().run("sh", &["-c", &script]).success();
    vec![secret.to_owned(), encoded.trim_end_matches('=').to_owned()]
}

#[test]
fn no_log_of_a_cluster_has_a_secret_in_it() {
    let mut cluster = Cluster::stopped(&[]);
    let dir = cluster.machine().dir().to_owned();
    let file = |name: &str, content: &str| {
        fs::write(dir.join(name), content).expect("a file");
        path(&dir.join(name))
    };
    let audit = path(&dir.join("audit.log"));
    let tokens = format!("{STATIC_TOKEN},eve,u1,\"system:masters\"\n");
    for (flag, value) in [
        ("--log-level", "trace"),
        ("--token-auth-file", &file("tokens.csv", &tokens)),
        ("--audit-policy-file", &file("policy.yaml", POLICY)),
        ("--audit-log-path", &audit),
    ] {
        cluster.add_flag(flag, value);
    }
    cluster.start();
    let archive = busybox_archive(&dir);
    cluster.mainstay(&["image", "import", &archive]).success();
    cluster
        .kubectl_stdin(&["apply", "-f", "-"], OBJECTS)
        .success();
    eventually("the pod that has them to run", || {
        let pod = cluster.get(&["pod", "user"]);
        e2e::is_ready(&pod)
            .then_some(())
            .ok_or(pod["status"].to_string())
    });
    for (pod, reason) in [("broken", "StartError"), ("unpulled", "ErrImagePull")] {
        eventually(&format!("{pod} to fail"), || {
            let seen = cluster.get(&["pod", pod])["status"].to_string();
            let failed = seen.contains(reason) || seen.contains("ImagePullBackOff");
            let failed = failed || seen.contains("RunContainerError") || seen.contains("Failed");
            failed.then_some(()).ok_or(seen)
        });
    }
    let exec = |script: &str| {
        let shell = ["exec", "user", "--", "/bin/busybox", "sh", "-c", script];
        cluster.kubectl(&shell).success()
    };
    assert_eq!(
        exec("/bin/busybox cat /planted/value; echo -n \" $VALUE\""),
        format!("{VALUE} {VALUE}")
    );
    let account = exec("/bin/busybox cat /var/run/secrets/kubernetes.io/serviceaccount/token");
    assert_eq!(account.matches('.').count(), 2, "a token");

    let get = |token: &str| {
        let config = with_token(&cluster, token);
        cluster.kubectl(&["get", "pods", "--kubeconfig", &config])
    };
    assert!(get(STATIC_TOKEN).ok);
    assert!(!get(WRONG_TOKEN).ok);
    let bootstrap = format!("plante.{TOKEN_SECRET}");
    for known in [account.as_str(), &bootstrap] {
        let answer = get(known);
        assert!(
            answer.stderr.contains("orbidden"),
            "known, and may not: {}",
            answer.stderr
        );
    }
    eventually("the token to sign", || {
        let map = cluster.get(&["configmap", "cluster-info", "-n", "kube-public"]);
        let signed = map["data"].get("jws-kubeconfig-plante").is_some();
        signed.then_some(()).ok_or(map["data"].to_string())
    });
    let patch = r#"{"stringData": {"value": "planted-secret-value-0003-changed"}}"#;
    cluster
        .kubectl(&["patch", "secret", "planted", "-p", patch])
        .success();
    cluster.kill();
    cluster.start();
    eventually("the pod after a crash", || {
        let pod = cluster.get(&["pod", "user"]);
        e2e::is_ready(&pod)
            .then_some(())
            .ok_or(pod["status"].to_string())
    });
    cluster
        .kubectl(&["delete", "pod", "user", "broken", "unpulled"])
        .success();

    let mut needles: Vec<String> = [STATIC_TOKEN, WRONG_TOKEN, VALUE, PASSWORD, TOKEN_SECRET]
        .iter()
        .flat_map(|secret| forms(&cluster, secret))
        .collect();
    // The secret part of a service account token: its signature.
    needles.extend(account.rsplit('.').next().map(str::to_owned));
    let keys = "cat \"$0\"/pki/*.key | grep -v -e -----";
    let data = path(&cluster.data_dir());
    let keys = cluster.machine().run("sh", &["-c", keys, &data]).success();
    let keys: Vec<&str> = keys.lines().filter(|line| line.len() > 40).collect();
    assert!(keys.len() > 5, "{} lines of keys", keys.len());
    needles.extend(keys.iter().map(|line| (*line).to_owned()));
    search(&cluster, &audit, &file("needles", &needles.join("\n")));
}

/// Searches all logs for the needles.
fn search(cluster: &Cluster, audit: &str, needles: &str) {
    let data = path(&cluster.data_dir());
    let script = "find \"$0\" /run/mainstay -type f \\( -name '*.log*' -o -path '*/logs/*' \\)";
    let found = cluster
        .machine()
        .run("sh", &["-c", script, &data])
        .success();
    let own = path(&cluster.log());
    let mut logs: Vec<&str> = found.lines().collect();
    logs.extend([own.as_str(), audit]);
    let log = fs::read_to_string(cluster.log()).expect("a log");
    assert!(log.contains("TRACE"), "it tells everything");
    let written = fs::read_to_string(audit).expect("an audit log");
    assert!(
        written.contains("\"secrets\""),
        "requests for secrets are in it"
    );
    let mut arguments = vec!["-F", "-n", "-f", needles];
    arguments.extend(&logs);
    let hits = cluster.machine().run("grep", &arguments);
    let shown: Vec<String> = hits
        .stdout
        .lines()
        .map(|line| line.chars().take(300).collect())
        .collect();
    assert_eq!(hits.code, Some(1), "{logs:?}: {shown:#?}{}", hits.stderr);
}
