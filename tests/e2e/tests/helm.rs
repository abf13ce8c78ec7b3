//! Unmodified helm installs, upgrades, rolls back and uninstalls a release with hooks, and waits for its objects
//! (`--wait`).

use std::path::{Path, PathBuf};

use serde_json::Value;
use testkit::{Cluster, Ran};

/// The chart of the test.
const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/chart");

/// The path of helm: `MAINSTAY_HELM`, or the downloaded one.
fn program() -> Option<PathBuf> {
    let named = std::env::var_os("MAINSTAY_HELM").map(PathBuf::from);
    named.or_else(|| e2e::helm(Path::new(env!("CARGO_TARGET_TMPDIR"))))
}

struct Helm<'a> {
    cluster: &'a Cluster,
    program: String,
}

impl Helm<'_> {
    fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.cluster.machine().command(&self.program);
        command
            .args(args)
            .env("KUBECONFIG", self.cluster.kubeconfig())
            .env("HOME", self.cluster.machine().dir());
        command.output().expect("helm starts").into()
    }

    /// The newest revision of the release and its state.
    fn state(&self) -> (i64, String) {
        let said = self.run(&["status", "shop", "--output", "json"]).success();
        let status: Value = serde_json::from_str(&said).expect("JSON");
        let state = status["info"]["status"].as_str().unwrap_or_default();
        (status["version"].as_i64().unwrap_or(0), state.to_owned())
    }
}

fn greeting(cluster: &Cluster) -> String {
    let map = cluster.get(&["configmap", "shop"]);
    map["data"]["greeting"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn ready_replicas(cluster: &Cluster) -> Value {
    cluster.get(&["deployment", "shop"])["status"]["readyReplicas"].clone()
}

#[test]
fn helm_installs_upgrades_rolls_back_and_removes_a_release() {
    let Some(program) = program() else {
        reference::skip("needs helm (MAINSTAY_HELM)");
        return;
    };
    let cluster = Cluster::up();
    let helm = Helm {
        cluster: &cluster,
        program: program.display().to_string(),
    };
    let wait = ["--wait", "--timeout", "90s"];
    let said = helm.run(&[&["install", "shop", CHART], &wait[..]].concat());
    assert!(said.success().contains("shop says hello"));
    assert_eq!(
        (greeting(&cluster), ready_replicas(&cluster)),
        ("hello".into(), 1.into())
    );
    helm.run(&["test", "shop", "--timeout", "90s"]).success();

    let set = ["--set", "greeting=goodbye,replicas=2"];
    helm.run(&[&["upgrade", "shop", CHART], &set[..], &wait].concat())
        .success();
    assert_eq!(
        (greeting(&cluster), ready_replicas(&cluster)),
        ("goodbye".into(), 2.into())
    );
    assert_eq!(helm.state(), (2, "deployed".into()));

    // An upgrade that does not become ready is rolled back.
    let bad = [
        "--set",
        "image=mainstay.local/no-such",
        "--atomic",
        "--timeout",
        "5s",
    ];
    let failed = helm.run(&[&["upgrade", "shop", CHART], &bad[..]].concat());
    assert!(!failed.ok, "{failed:?}");
    assert_eq!(helm.state(), (4, "deployed".into()));
    assert_eq!(greeting(&cluster), "goodbye");

    helm.run(&[&["rollback", "shop", "1"], &wait[..]].concat())
        .success();
    assert_eq!(
        (greeting(&cluster), ready_replicas(&cluster)),
        ("hello".into(), 1.into())
    );
    let history = helm.run(&["history", "shop"]).success();
    assert!(history.contains("Rollback to 1"), "{history}");

    helm.run(&[&["uninstall", "shop"], &wait[..]].concat())
        .success();
    let kinds = "deployments,replicasets,services,configmaps,secrets,jobs";
    let left = cluster.kubectl(&["get", kinds, "--output=name"]).success();
    let left: Vec<&str> = left.lines().filter(|name| name.contains("shop")).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!helm.run(&["status", "shop"]).ok);
}
