//! A CSI driver that hangs, returns errors and disappears, and a daemon that is killed during every
//! step of a volume: data and order of calls stay right, and other volumes do not wait. The test acts
//! as the external attacher and resizer.

use e2e::{attachments, hello, patch_attachment, ready_pods};
use serde_json::{Value, json};
use testkit::{
    Cluster, ServedDriver,
    csi_driver::{Driver, Fault, Options},
    eventually,
};

const DRIVER: &str = "disk.csi.example.com";
const INTERNAL: Fault = Fault::Refuse(testkit::csi_driver::Code::Internal);

/// The driver, its class, and a volume and a claim for each name.
fn storage(attach: bool, names: &[&str]) -> String {
    let mut all = format!(
        "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {{name: {DRIVER}}}\n\
         spec: {{attachRequired: {attach}}}\n---\n\
         apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {{name: disk}}\n\
         provisioner: {DRIVER}\nallowVolumeExpansion: true\n"
    );
    for name in names {
        all += &format!(
            "---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\n\
             spec:\n  accessModes: [ReadWriteOnce]\n  capacity: {{storage: 1Gi}}\n  \
             storageClassName: disk\n  csi: {{driver: {DRIVER}, volumeHandle: {name}}}\n\
             ---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}}}\n\
             spec:\n  accessModes: [ReadWriteOnce]\n  storageClassName: disk\n  \
             volumeName: {name}\n  resources: {{requests: {{storage: 1Gi}}}}\n"
        );
    }
    all
}

fn pod(name: &str, claim: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {name}}}}}\n\
         spec:\n  terminationGracePeriodSeconds: 1\n  \
         volumes: [{{name: data, persistentVolumeClaim: {{claimName: {claim}}}}}]\n  \
         containers:\n  - name: db\n    image: mainstay.local/hello\n    \
         args: [sleep, \"360844\"]\n    volumeMounts: [{{name: data, mountPath: /data}}]\n"
    )
}

fn apply(cluster: &Cluster, objects: &str) {
    let command = ["apply", "-f", "-"];
    cluster.kubectl_stdin(&command, objects).success();
}

fn serve(cluster: &Cluster) -> (Driver, ServedDriver) {
    let options = Options {
        data: Some(cluster.machine().disk().join("volumes")),
        ..Options::new(DRIVER)
    };
    let kubelet = cluster.data_dir().join("kubelet");
    ServedDriver::registered(cluster.machine(), &kubelet, options)
}

fn wait_for_call(driver: &Driver, method: &str) {
    eventually(&format!("a call of {method}"), || {
        let is_called = !driver.calls_of(method).is_empty();
        is_called
            .then_some(())
            .ok_or(format!("{:?}", driver.order()))
    });
}

/// Kills the daemon while the driver handles a call of `method`, and starts it again. `next` is
/// broken for the next kill.
fn kill_in(cluster: &mut Cluster, driver: &Driver, method: &'static str, next: &[&'static str]) {
    wait_for_call(driver, method);
    cluster.kill();
    for method in next {
        driver.break_method(method, Fault::Stall);
    }
    driver.heal(method);
    cluster.start();
}

/// Waits until nothing of the volumes is left on the node.
fn wait_until_unused(cluster: &Cluster, driver: &Driver) {
    eventually("nothing to be staged or in use", || {
        let node = cluster.get(&["node", "one"]);
        let used = node["status"]["volumesInUse"].clone();
        let left = (driver.published(), driver.staged(), used);
        let is_free = left.0.is_empty() && left.1.is_empty() && left.2 == Value::Null;
        is_free.then_some(()).ok_or(format!("{left:?}"))
    });
    assert!(driver.violations().is_empty(), "{:?}", driver.violations());
}

/// The only attachment, once `has` returns true.
fn attachment(cluster: &Cluster, what: &str, has: impl Fn(&Value) -> bool) -> Value {
    eventually(what, || match &attachments(cluster)[..] {
        [one] if has(one) => Ok(one.clone()),
        all => Err(format!("{all:?}")),
    })
}

#[test]
fn a_daemon_killed_in_every_step_of_a_volume_attaches_mounts_expands_and_frees_it() {
    let mut cluster = Cluster::up();
    let (driver, _served) = serve(&cluster);
    apply(&cluster, &storage(true, &["h1"]));
    apply(&cluster, &pod("db", "h1"));
    let asked = attachment(&cluster, "an attachment", |_| true);
    cluster.kill();
    cluster.start();
    let again = attachment(&cluster, "the attachment", |_| true);
    assert_eq!(again["metadata"]["uid"], asked["metadata"]["uid"]);
    driver.break_method("NodeStageVolume", Fault::Stall);
    let done = json!({"status": {"attached": true}});
    let name = e2e::name(&asked);
    patch_attachment(&cluster, &name, &done, &["--subresource=status"]).success();
    kill_in(
        &mut cluster,
        &driver,
        "NodeStageVolume",
        &["NodePublishVolume"],
    );
    kill_in(&mut cluster, &driver, "NodePublishVolume", &[]);
    ready_pods(&cluster, "app=db", 1);
    hello(&cluster, "db", &["write", "/data/row", "first"]).success();

    // The resizer has expanded the volume; the node expands the file system.
    driver.break_method("NodeExpandVolume", Fault::Stall);
    let patch = |kind: &str, spec: &str| {
        cluster
            .kubectl(&["patch", kind, "h1", "-p", spec])
            .success();
    };
    patch(
        "pvc",
        r#"{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}"#,
    );
    patch("pv", r#"{"spec":{"capacity":{"storage":"2Gi"}}}"#);
    cluster.kill();
    cluster.start();
    kill_in(&mut cluster, &driver, "NodeExpandVolume", &[]);
    eventually("the claim to have the new size", || {
        let status = cluster.get(&["pvc", "h1"])["status"].clone();
        let is_done = status["capacity"]["storage"] == "2Gi";
        is_done.then_some(()).ok_or(status.to_string())
    });
    let row = hello(&cluster, "db", &["cat", "/data/row"]).success();
    assert_eq!(row.trim(), "first");

    driver.break_method("NodeUnpublishVolume", Fault::Stall);
    let delete = ["delete", "pod", "db", "--wait=false"];
    cluster.kubectl(&delete).success();
    kill_in(
        &mut cluster,
        &driver,
        "NodeUnpublishVolume",
        &["NodeUnstageVolume"],
    );
    kill_in(&mut cluster, &driver, "NodeUnstageVolume", &[]);
    wait_until_unused(&cluster, &driver);
    eventually("no attachment and no pod", || {
        let pod = cluster.kubectl(&["get", "pod", "db"]);
        let left = attachments(&cluster);
        let is_gone = left.is_empty() && !pod.ok;
        is_gone.then_some(()).ok_or(format!("{left:?} {pod:?}"))
    });
}

#[test]
fn a_driver_that_hangs_fails_or_disappears_delays_only_its_own_volumes() {
    let cluster = Cluster::up();
    let (driver, served) = serve(&cluster);
    apply(&cluster, &storage(false, &["hangs", "fine", "fails"]));
    driver.break_volume("NodeStageVolume", "hangs", Fault::Hang);
    driver.break_volume("NodePublishVolume", "fails", INTERNAL);
    apply(&cluster, &pod("hangs", "hangs"));
    wait_for_call(&driver, "NodeStageVolume");
    apply(&cluster, &pod("fails", "fails"));
    apply(&cluster, &pod("fine", "fine"));
    ready_pods(&cluster, "app=fine", 1);
    hello(&cluster, "fine", &["write", "/data/row", "first"]).success();
    eventually("an event about the error", || {
        let events = cluster.kubectl(&["get", "events"]).stdout;
        let why = "rpc error: code = Internal desc = a test says so";
        events.contains(why).then_some(()).ok_or(events)
    });
    driver.heal("NodePublishVolume");
    ready_pods(&cluster, "app=fails", 1);

    // It disappears: its calls fail, pods keep their volumes, and those that end wait for it.
    driver.heal("NodeStageVolume");
    drop(served);
    eventually("the driver to be deregistered", || {
        let node = cluster.get(&["csinode", "one"]);
        let drivers = &node["spec"]["drivers"];
        let is_gone = drivers.as_array().is_none_or(Vec::is_empty);
        is_gone.then_some(()).ok_or(node.to_string())
    });
    let row = hello(&cluster, "fine", &["cat", "/data/row"]).success();
    assert_eq!(row.trim(), "first");
    let delete = ["delete", "pod", "fails", "--wait=false"];
    cluster.kubectl(&delete).success();
    eventually("an event about the missing driver", || {
        let events = cluster.kubectl(&["get", "events"]).stdout;
        let why = format!("driver name {DRIVER} not found in the list of registered CSI drivers");
        let is_there = events.contains("FailedUnmount") && events.contains(&why);
        is_there.then_some(()).ok_or(events)
    });
    assert!(cluster.kubectl(&["get", "pod", "fails"]).ok);
    assert_eq!(driver.published().len(), 2, "{:?}", driver.published());

    // Back again: everything goes on.
    let kubelet = cluster.data_dir().join("kubelet");
    let _served = ServedDriver::new(cluster.machine(), &driver, &kubelet);
    ready_pods(&cluster, "app=hangs", 1);
    let delete = ["delete", "pod", "fine", "hangs", "fails"];
    cluster
        .kubectl(&[&delete[..], &["--ignore-not-found"]].concat())
        .success();
    wait_until_unused(&cluster, &driver);
}
