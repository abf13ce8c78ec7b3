//! What `kubectl apply` keeps between runs: ApplySets whose members are pruned, and field managers
//! when apply moves from the client to the server.

use serde_json::Value;
use testkit::{Cluster, Ran};

const SHOP: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: prices, namespace: shop}
data: {apple: "1"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: names, namespace: staff}
---
apiVersion: v1
kind: Service
metadata: {name: till, namespace: shop}
spec: {ports: [{port: 80}]}
"#;

fn apply(cluster: &Cluster, manifest: &str, flags: &[&str]) -> Ran {
    cluster.kubectl_stdin(&[&["apply", "-f", "-"], flags].concat(), manifest)
}

/// The manifest's documents without the one that contains this.
fn without(manifest: &str, name: &str) -> String {
    let documents = manifest.split("---").filter(|text| !text.contains(name));
    documents.collect::<Vec<_>>().join("---")
}

fn managers(object: &Value) -> Vec<(String, String)> {
    let entries = object["metadata"]["managedFields"].as_array();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let entries = entries.into_iter().flatten();
    entries
        .map(|entry| (text(&entry["manager"]), text(&entry["operation"])))
        .collect()
}

#[test]
fn an_applyset_prunes_objects_removed_from_the_files_in_every_namespace_and_kind() {
    let cluster = Cluster::up();
    for namespace in ["shop", "staff"] {
        cluster
            .kubectl(&["create", "namespace", namespace])
            .success();
    }
    let set = ["--prune", "--applyset=shop", "-n", "shop"];
    let refused = apply(&cluster, SHOP, &["--prune", "--applyset=shop"]);
    assert!(
        refused.stderr.contains("namespace is required"),
        "{refused:?}"
    );
    let refused = apply(&cluster, SHOP, &["--applyset=shop", "-n", "shop"]);
    assert!(
        refused.stderr.contains("--applyset requires --prune"),
        "{refused:?}"
    );

    // Objects of another namespace than that of -n are rejected, as without an ApplySet.
    let here = without(SHOP, "staff");
    apply(&cluster, &here, &set).success();
    let parent = cluster.get(&["secret", "shop", "-n", "shop"]);
    let kinds = &parent["metadata"]["annotations"]["applyset.kubernetes.io/contains-group-kinds"];
    assert_eq!(*kinds, "ConfigMap,Service");
    let id = parent["metadata"]["labels"]["applyset.kubernetes.io/id"].clone();
    let member = cluster.get(&["service", "till", "-n", "shop"]);
    assert_eq!(
        member["metadata"]["labels"]["applyset.kubernetes.io/part-of"],
        id
    );

    let dry = [&set[..], &["--dry-run=server"]].concat();
    let pruned = apply(&cluster, &without(&here, "till"), &dry).success();
    assert!(
        pruned.contains("service/till pruned (server dry run)"),
        "{pruned}"
    );
    let pruned = apply(&cluster, &without(&here, "till"), &set).success();
    assert!(pruned.contains("service/till pruned\n"), "{pruned}");
    let parent = cluster.get(&["secret", "shop", "-n", "shop"]);
    let kinds = &parent["metadata"]["annotations"]["applyset.kubernetes.io/contains-group-kinds"];
    assert_eq!(*kinds, "ConfigMap");

    // An object without our label is never used as a parent.
    let other = ["create", "configmap", "theirs", "-n", "shop"];
    cluster.kubectl(&other).success();
    let refused = apply(
        &cluster,
        &here,
        &["--prune", "--applyset=configmaps/theirs", "-n", "shop"],
    );
    assert!(
        refused.stderr.contains("missing required annotation"),
        "{refused:?}"
    );
}

#[test]
fn fields_of_client_side_apply_can_be_removed_by_server_side_apply() {
    let cluster = Cluster::up();
    let manifest = |data: &str| {
        format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: moved}}, data: {data}}}")
    };
    apply(&cluster, &manifest("{old: a, kept: b}"), &[]).success();
    apply(&cluster, &manifest("{kept: b}"), &["--server-side"]).success();
    let moved = cluster.get(&["configmap", "moved", "--show-managed-fields"]);
    assert_eq!(moved["data"], serde_json::json!({"kept": "b"}));
    let expected = [("kubectl", "Apply"), ("kubectl-last-applied", "Apply")];
    let mut found = managers(&moved);
    found.sort();
    assert_eq!(
        found,
        expected.map(|(name, how)| (name.to_owned(), how.to_owned()))
    );
}
