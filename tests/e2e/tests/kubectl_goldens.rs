//! Our kubectl beside upstream's: the same commands on the same cluster print the same bytes and end with the same
//! code. Skipped, by name, where `MAINSTAY_KUBECTL` or the PATH has no kubectl 1.36.

use testkit::{Cluster, Ran};

/// Commands whose output depends on the cluster alone. `{file}` is the manifest below.
const COMMANDS: &[&str] = &[
    "get namespaces -o name",
    "get deployment shop -o yaml",
    "get deployment shop -o json",
    "get deployment shop -o kyaml",
    "get configmap settings -o yaml",
    "get configmaps -o name --sort-by=.metadata.name",
    "get configmap settings -o jsonpath={.data.a}",
    "get configmap settings -o jsonpath-as-json={.data}",
    "get configmap settings -o go-template={{range.data}}{{.}};{{end}}",
    "get configmaps -o custom-columns=NAME:.metadata.name,A:.data.a,L:.metadata.labels",
    "get configmap settings --show-labels --no-headers -o custom-columns=N:.metadata.name",
    "get nothing",
    "get configmap absent",
    "get configmap absent --ignore-not-found",
    "get configmap settings absent -o name",
    "get pods --nonsense",
    "get -o xml pods",
    "describe secret keys",
    "describe configmap settings",
    "describe serviceaccount default",
    "describe role reader",
    "create deployment web --image=nginx:1 --replicas=2 --port=80 --dry-run=client -o yaml",
    "create deployment web --image=nginx:1 --dry-run=client -o json",
    "create configmap c --from-literal=a=1 --from-literal=b=yes --dry-run=client -o yaml",
    "create configmap c --from-literal=a=1 --append-hash --dry-run=client -o name",
    "create secret generic s --from-literal=a=1 --dry-run=client -o yaml",
    "create service clusterip s --tcp=80:8080 --dry-run=client -o yaml",
    "create service nodeport s --tcp=80 --node-port=30080 --dry-run=client -o json",
    "create ingress i --rule=a.com/x*=svc:80,tls=t --dry-run=client -o yaml",
    "create job j --image=busybox --dry-run=client -o yaml -- sleep 1",
    "create cronjob j --image=busybox --schedule=*/5_*_*_*_* --dry-run=client -o yaml",
    "create quota q --hard=pods=1,cpu=2 --dry-run=client -o yaml",
    "create pdb p --selector=a=b --min-available=50% --dry-run=client -o yaml",
    "create priorityclass p --value=10 --dry-run=client -o yaml",
    "create role r --verb=get,list --resource=pods,deployments.apps --dry-run=client -o yaml",
    "create rolebinding r --clusterrole=view --user=jane --serviceaccount=a:b --dry-run=client -o yaml",
    "create namespace n --dry-run=client -o yaml",
    "create configmap settings --from-literal=x=1",
    "run p --image=nginx --env=A=b --labels=x=y --dry-run=client -o yaml -- a b",
    "label configmap settings app=x",
    "label configmap settings app=y",
    "label configmap settings app-",
    "annotate configmap settings note=hello --overwrite",
    "patch configmap settings -p {\"data\":{\"c\":\"3\"}}",
    "patch configmap settings -p {\"data\":{\"c\":\"3\"}}",
    "apply -f {file}",
    "apply -f {file} --dry-run=server",
    "diff -f {file}",
    "set image deployment/shop web=other --dry-run=client -o name",
    "set env deployment/shop A=b --dry-run=client -o yaml",
    "rollout history deployment/shop",
    "auth can-i get pods",
    "auth can-i get pods --as=nobody",
    "auth whoami",
    "api-versions",
    "explain configmap",
    "explain deployment.spec.strategy",
    "explain nothing",
    "wait --for=create configmap/settings",
    "wait --for=jsonpath={.data.a}=1 configmap/settings --timeout=5s",
    "config current-context",
    "config view",
    "config get-contexts",
    "delete configmap absent",
    "delete configmap settings --dry-run=client",
];

const MANIFEST: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, labels: {tier: back}}
data: {a: "1", b: "two words: here", long: "line\nline\n"}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {password: hunter2}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules:
- {apiGroups: [""], resources: [pods, pods/log], verbs: [get, list]}
- {apiGroups: [apps], resources: [deployments], resourceNames: [shop], verbs: [get]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
spec:
  paused: true
  replicas: 0
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      containers: [{name: web, image: mainstay.local/hello}]
"#;

fn is_the_same_version(cluster: &Cluster) -> bool {
    let ran = cluster.upstream_kubectl(&["version", "--client"]);
    // A build from upstream's sources without its release scripts calls itself 0.0.0.
    let is_meant = std::env::var_os("MAINSTAY_KUBECTL").is_some();
    ran.is_some_and(|ran| {
        ran.stdout.contains("v1.36.") || is_meant && ran.stdout.contains("v0.0.0-master")
    })
}

#[test]
fn both_kubectls_print_the_same_bytes() {
    let cluster = Cluster::up();
    if !is_the_same_version(&cluster) {
        reference::skip("needs kubectl 1.36 (MAINSTAY_KUBECTL)");
        return;
    }
    let file = cluster.machine().dir().join("goldens.yaml");
    std::fs::write(&file, MANIFEST).expect("a file");
    let file = file.display().to_string();
    cluster.kubectl(&["apply", "-f", &file]).success();
    let mut differences = Vec::new();
    for line in COMMANDS {
        let line = line.replace("{file}", &file);
        // Underscores stand for spaces inside one word, such as a schedule.
        let words: Vec<String> = line
            .split(' ')
            .map(|word| word.replace("_*", " *"))
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let writes = ["label", "annotate", "patch"].contains(&words[0]);
        let fresh = || {
            if writes {
                cluster
                    .kubectl(&["delete", "configmap", "settings"])
                    .success();
                cluster.kubectl(&["apply", "-f", &file]).success();
            }
        };
        fresh();
        let ours = cluster.kubectl(&words);
        // Both meet the same object.
        fresh();
        let theirs = cluster.upstream_kubectl(&words).expect("it is there");
        if let Some(difference) = difference(&ours, &theirs) {
            differences.push(format!("kubectl {line}\n{difference}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

fn difference(ours: &Ran, theirs: &Ran) -> Option<String> {
    let is_same = ours.stdout == theirs.stdout
        && ours.code == theirs.code
        && first(&ours.stderr) == first(&theirs.stderr);
    (!is_same).then(|| {
        format!(
            "--- ours ({:?})\n{}{}\n--- theirs ({:?})\n{}{}",
            ours.code, ours.stdout, ours.stderr, theirs.code, theirs.stdout, theirs.stderr
        )
    })
}

/// Errors are compared by their first line; hints behind it are each kubectl's own.
fn first(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
