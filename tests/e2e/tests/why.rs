//! `mainstay why` about what commonly goes wrong, on a cluster where it does.

use testkit::{Cluster, eventually};

const BROKEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/why/broken.yaml");

/// What is asked, and what the answer contains.
const ANSWERS: &[(&str, &[&str])] = &[
    (
        "pod/big",
        &[
            "pod/big is Pending: it fits no node",
            "Insufficient cpu (requests 100, ",
        ],
    ),
    (
        "pod/oom",
        &["it was killed because it used more memory than its limit"],
    ),
    (
        "pod/crashing",
        &["it exited with code 3", "cannot open config"],
    ),
    (
        "pod/nopull",
        &["pod/nopull cannot pull its image local.test/absent:1"],
    ),
    (
        "pod/held",
        &[
            "pod/held is Terminating",
            "waiting for finalizers: example.com/hold",
        ],
    ),
    (
        "pod/unready",
        &[
            "pod/unready is running, but not ready",
            "Readiness probe failed: ",
        ],
    ),
    (
        "service/unready",
        &[
            "has no ready endpoints: none of its 1 pods is ready",
            "mainstay why pod/unready",
        ],
    ),
    (
        "service/nobody",
        &["service/nobody has no endpoints: no pod has the labels app=nobody"],
    ),
    (
        "ingress/ing",
        &["there is no IngressClass none", "there is no Service gone"],
    ),
    (
        "pvc/claim",
        &["pvc/claim is Pending", "there is no StorageClass none"],
    ),
    (
        "deployment/denied",
        &["ValidatingAdmissionPolicy 'no-pods' with binding 'no-pods' denied request"],
    ),
    ("node/one", &["node/one is ready"]),
];

#[test]
fn each_common_fault_has_its_cause_and_a_step() {
    let cluster = Cluster::up();
    let archive = e2e::busybox_archive(cluster.machine().dir());
    cluster.mainstay(&["image", "import", &archive]).success();
    eventually("the objects", || {
        let ran = cluster.kubectl(&["apply", "-f", BROKEN]);
        if ran.ok { Ok(()) } else { Err(ran.stderr) }
    });
    // Policies take effect a moment after they are made.
    let image = "--image=mainstay.local/hello";
    let denied = [
        "run",
        "denied",
        image,
        "--labels=app=denied",
        "--dry-run=server",
    ];
    eventually("the policy", || match cluster.kubectl(&denied).ok {
        true => Err("the pod may be created".to_owned()),
        false => Ok(()),
    });
    let create = ["create", "deployment", "denied", image];
    cluster.kubectl(&create).success();
    let held = ["wait", "--for=condition=Ready", "pod/held", "--timeout=60s"];
    cluster.kubectl(&held).success();
    let delete = ["delete", "pod", "held", "--wait=false"];
    cluster.kubectl(&delete).success();
    for (asked, parts) in ANSWERS {
        eventually(asked, || {
            let said = cluster.mainstay(&["why", asked]).stdout;
            match parts.iter().all(|part| said.contains(part)) {
                true => Ok(()),
                false => Err(said),
            }
        });
    }
    let namespace = ["create", "namespace", "stuck"];
    cluster.kubectl(&namespace).success();
    let finalizer = r#"{"metadata": {"finalizers": ["example.com/hold"]}}"#;
    let map = ["create", "configmap", "kept", "-n", "stuck"];
    cluster.kubectl(&map).success();
    let hold = ["patch", "configmap", "kept", "-n", "stuck", "-p", finalizer];
    cluster.kubectl(&hold).success();
    let delete = ["delete", "namespace", "stuck", "--wait=false"];
    cluster.kubectl(&delete).success();
    eventually("the namespace that stays", || {
        let said = cluster.mainstay(&["why", "namespace/stuck"]).stdout;
        match said.contains("configmaps") && said.contains("example.com/hold") {
            true => Ok(()),
            false => Err(said),
        }
    });
    let may = cluster.mainstay(&["why", "can", "jane", "delete", "secrets"]);
    let may = may.success();
    for part in [
        "jane may not delete secrets in namespace default",
        "kubectl create role NAME -n default --verb=delete --resource=secrets",
        "kubectl create rolebinding NAME -n default --role=NAME --user=jane",
    ] {
        assert!(may.contains(part), "{may}");
    }
    for (object, namespace) in [("pod/held", "default"), ("configmap/kept", "stuck")] {
        let free = r#"{"metadata": {"finalizers": null}}"#;
        let patch = ["patch", object, "-n", namespace, "--type=merge", "-p", free];
        cluster.kubectl(&patch).success();
    }
}
