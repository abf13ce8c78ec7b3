//! The volume manager with a CSI driver behind a socket: which calls in which order, and the state
//! after failures and restarts.

// A test may panic on any error.
#![allow(clippy::unwrap_used)]

mod hostile;
mod hung;
mod random;
mod sized;
mod support;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use csi::{
    Capability,
    testing::{Fault, Options},
    tonic::Code,
};
use serde_json::json;
use stdx::FakeClock;
use support::{DRIVER, Node, persistent, pod, set_up, until, volume};
use volume::storage::{Expanded, Manager, StepError, resolve};

#[tokio::test]
async fn a_volume_is_staged_for_the_first_pod_and_unstaged_after_the_last() {
    let node = Node::new(Options::new(DRIVER));
    let data = volume("data");
    let first = node.set_up(&pod("p1"), &data).await.unwrap();
    assert_eq!(first.path.to_string_lossy(), node.target("p1", "data"));
    node.set_up(&pod("p2"), &data).await.unwrap();
    // A repetition changes nothing.
    node.set_up(&pod("p2"), &data).await.unwrap();
    node.manager.tear_down("p1").await.unwrap();
    assert_eq!(node.driver.staged().len(), 1);
    node.manager.tear_down("p2").await.unwrap();
    until("the volume to be unstaged", || {
        node.driver.staged().is_empty()
    })
    .await;
    assert_eq!(
        node.driver.order(),
        [
            "NodeStageVolume",
            "NodePublishVolume",
            "NodePublishVolume",
            "NodeUnpublishVolume",
            "NodeUnpublishVolume",
            "NodeUnstageVolume"
        ]
    );
    until("nothing to be left", || {
        let plugins = node.dir.path().join("kubelet/plugins/kubernetes.io/csi");
        let left = std::fs::read_dir(plugins.join(DRIVER)).unwrap();
        left.count() == 0
    })
    .await;
    assert!(node.driver.violations().is_empty());
}

#[tokio::test]
async fn the_driver_gets_the_parameters_of_volume_pod_and_csi_driver() {
    let mut options = Options::new(DRIVER);
    options.capabilities.push(Capability::VolumeMountGroup);
    let node = Node::new(options);
    node.set_csi_driver(json!({"attachRequired": false, "podInfoOnMount": true,
        "tokenRequests": [{"audience": "vault"}]}));
    *node.host.secrets.lock() = BTreeMap::from([("key".into(), "value".into())]);
    let reference = json!({"name": "s", "namespace": "default"});
    let mut data = persistent(
        "data",
        json!({"accessModes": ["ReadWriteMany"], "mountOptions": ["noatime"],
            "csi": {"driver": DRIVER, "volumeHandle": "h", "fsType": "ext4",
                "volumeAttributes": {"pool": "fast"},
                "nodeStageSecretRef": reference, "nodePublishSecretRef": reference}}),
    );
    data.read_only = true;
    let mut grouped = pod("p");
    let context = json!({"fsGroup": 77});
    grouped.spec.as_mut().unwrap().security_context = serde_json::from_value(context).unwrap();
    node.set_up(&grouped, &data).await.unwrap();
    let stage = &node.driver.calls_of("NodeStageVolume")[0];
    assert_eq!(stage.access, "ext4 noatime");
    assert_eq!(stage.secrets["key"], "value");
    assert_eq!(
        stage.context,
        BTreeMap::from([("pool".into(), "fast".into())])
    );
    let publish = &node.driver.calls_of("NodePublishVolume")[0];
    assert!(publish.readonly && publish.staging == stage.path);
    assert_eq!(publish.mount_group, "77");
    assert_eq!(publish.secrets["key"], "value");
    for (key, value) in [
        ("pool", "fast"),
        ("csi.storage.k8s.io/pod.name", "p"),
        ("csi.storage.k8s.io/pod.uid", "p"),
        ("csi.storage.k8s.io/ephemeral", "false"),
        ("csi.storage.k8s.io/serviceAccount.tokens", "1 tokens"),
    ] {
        assert_eq!(publish.context[key], value, "{key}");
    }
    node.set_csi_driver(
        json!({"attachRequired": false, "serviceAccountTokenInSecrets": true,
        "tokenRequests": [{"audience": "vault"}]}),
    );
    node.set_up(&pod("q"), &data).await.unwrap();
    let publish = &node.driver.calls_of("NodePublishVolume")[1];
    assert_eq!(
        publish.secrets["csi.storage.k8s.io/serviceAccount.tokens"],
        "1 tokens"
    );
    assert_eq!(publish.context.len(), 1);
}

#[tokio::test]
async fn an_inline_volume_is_only_published_and_needs_a_driver_that_allows_it() {
    let node = Node::new(Options::new(DRIVER));
    let inline = json!({"name": "scratch", "csi": {"driver": DRIVER,
        "volumeAttributes": {"size": "1"}, "readOnly": true}});
    let inline = resolve::inline(&serde_json::from_value(inline).unwrap());
    let error = node.set_up(&pod("p"), &inline).await.unwrap_err();
    assert!(
        error.to_string().contains("not supported by driver"),
        "{error}"
    );
    node.set_csi_driver(json!({"volumeLifecycleModes": ["Ephemeral"], "podInfoOnMount": true}));
    node.set_up(&pod("p"), &inline).await.unwrap();
    node.manager.tear_down("p").await.unwrap();
    assert_eq!(
        node.driver.order(),
        ["NodePublishVolume", "NodeUnpublishVolume"]
    );
    let publish = &node.driver.calls_of("NodePublishVolume")[0];
    assert!(publish.volume.starts_with("csi-") && publish.readonly);
    assert_eq!(publish.context["csi.storage.k8s.io/ephemeral"], "true");
}

#[tokio::test]
async fn a_volume_for_one_pod_is_not_mounted_for_a_second_before_the_first_has_ended() {
    let node = Node::new(Options::new(DRIVER));
    let source = json!({"driver": DRIVER, "volumeHandle": "h"});
    let modes = |modes: &[&str]| persistent("data", json!({"accessModes": modes, "csi": source}));
    let data = modes(&["ReadWriteOncePod"]);
    node.set_up(&pod("p1"), &data).await.unwrap();
    let error = node.set_up(&pod("p2"), &data).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "MountVolume.SetUp failed for volume \"data\" : volume uses the ReadWriteOncePod access \
         mode and is already in use by another pod"
    );
    // The pod that has it is not affected, nor are volumes that allow more.
    node.set_up(&pod("p1"), &data).await.unwrap();
    assert_eq!(node.driver.calls_of("NodePublishVolume").len(), 1);
    node.manager.tear_down("p1").await.unwrap();
    node.set_up(&pod("p2"), &data).await.unwrap();
    let several = modes(&["ReadWriteOncePod", "ReadWriteOnce"]);
    node.set_up(&pod("p3"), &several).await.unwrap();
}

#[tokio::test]
async fn an_attachable_volume_waits_until_it_is_in_use_and_attached() {
    let node = Node::new(Options::new(DRIVER));
    node.set_csi_driver(json!({"attachRequired": true}));
    let (data, one) = (volume("data"), pod("p"));
    let name = format!("kubernetes.io/csi/{DRIVER}^h-data");
    let manager = node.manager.clone();
    let waiting = tokio::spawn(async move { set_up(&manager, &one, &data, false).await });
    until("the volume to be in use", || {
        *node.manager.in_use().borrow() == [name.clone()]
    })
    .await;
    node.host.in_use.lock().push(name.clone());
    node.host.attached.lock().push(name.clone());
    let attachment = |attached: bool| {
        let object = json!({"metadata": {"name": "a"}, "spec": {"attacher": DRIVER, "nodeName": "node", "source": {}},
            "status": {"attached": attached, "attachmentMetadata": {"device": "xvdb"}}});
        *node.host.attachment.lock() = Some(serde_json::from_value(object).unwrap());
    };
    attachment(false);
    assert!(node.driver.order().is_empty());
    attachment(true);
    waiting.await.unwrap().unwrap();
    let stage = &node.driver.calls_of("NodeStageVolume")[0];
    assert_eq!(stage.publish_context["device"], "xvdb");
    node.manager.tear_down("p").await.unwrap();
    until("the volume to be free", || {
        node.manager.in_use().borrow().is_empty()
    })
    .await;
    assert!(node.driver.staged().is_empty());
}

#[tokio::test]
async fn a_refused_step_leaves_nothing_and_an_uncertain_one_is_undone() {
    let node = Node::new(Options::new(DRIVER));
    let data = volume("data");
    node.driver
        .break_method("NodePublishVolume", Fault::Refuse(Code::Internal));
    let error = node.set_up(&pod("p"), &data).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "MountVolume.SetUp failed for volume \"data\" : rpc error: code = Internal desc = a test says so"
    );
    let record = node
        .dir
        .path()
        .join("kubelet/pods/p/volumes/kubernetes.io~csi/data");
    assert!(!record.exists());
    node.manager.tear_down("p").await.unwrap();
    assert!(node.driver.calls_of("NodeUnpublishVolume").is_empty());
    // Published, but the response was lost: unpublished all the same.
    node.driver
        .break_method("NodePublishVolume", Fault::Lose(Code::Aborted));
    node.set_up(&pod("p"), &data).await.unwrap_err();
    assert_eq!(node.driver.published().len(), 1);
    node.manager.tear_down("p").await.unwrap();
    assert!(node.driver.published().is_empty());
    until("the volume to be unstaged", || {
        node.driver.staged().is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_step_in_which_the_driver_died_is_undone() {
    let node = Node::new(Options::new(DRIVER));
    for method in ["NodeStageVolume", "NodePublishVolume"] {
        node.driver.break_method(method, Fault::Die);
        let error = node.set_up(&pod("p"), &volume("data")).await.unwrap_err();
        assert!(matches!(error.error, StepError::Uncertain(_)), "{error}");
        assert_eq!(node.driver.staged().len(), 1);
        node.driver.heal(method);
        node.manager.tear_down("p").await.unwrap();
        assert!(node.driver.published().is_empty());
        until("the volume to be unstaged", || {
            node.driver.staged().is_empty()
        })
        .await;
    }
}

#[tokio::test]
async fn a_driver_that_hangs_or_is_away_delays_only_its_own_volumes() {
    let node = Node::new(Options::new(DRIVER));
    let data = volume("data");
    let local = node.dir.path().join("plain");
    std::fs::create_dir(&local).unwrap();
    let plain = persistent("plain", json!({"hostPath": {"path": local}}));
    node.driver.break_method("NodeStageVolume", Fault::Hang);
    let (stuck, fine) = (pod("stuck"), pod("fine"));
    let (stuck, fine) = tokio::join!(node.set_up(&stuck, &data), node.set_up(&fine, &plain));
    assert_eq!(fine.unwrap().path, local);
    let error = stuck.unwrap_err();
    assert!(matches!(error.error, StepError::Uncertain(_)), "{error}");
    assert!(error.to_string().contains("DeadlineExceeded"), "{error}");
    node.driver.heal("NodeStageVolume");
    node.set_up(&pod("stuck"), &data).await.unwrap();
    // Unavailable: the pod keeps its volume until the driver is back.
    *node.host.is_registered.lock() = false;
    let error = node.manager.tear_down("stuck").await.unwrap_err();
    assert!(
        error.to_string().contains("registered CSI drivers"),
        "{error}"
    );
    assert_eq!(node.driver.published().len(), 1);
    *node.host.is_registered.lock() = true;
    node.manager.tear_down("stuck").await.unwrap();
    until("the volume to be unstaged", || {
        node.driver.staged().is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_restart_at_any_step_loses_nothing() {
    for fault in [Fault::Hang, Fault::Lose(Code::Unavailable)] {
        for method in [
            "NodeStageVolume",
            "NodePublishVolume",
            "NodeUnpublishVolume",
            "NodeUnstageVolume",
        ] {
            let mut node = Node::new(Options::new(DRIVER));
            let data = volume("data");
            node.driver.break_method(method, fault);
            let manager = node.manager.clone();
            let spec = data.clone();
            let task = tokio::spawn(async move {
                let _ = set_up(&manager, &pod("p"), &spec, false).await;
                let _ = manager.tear_down("p").await;
            });
            until("the step to begin", || {
                !node.driver.calls_of(method).is_empty()
            })
            .await;
            task.abort();
            let _ = task.await;
            node.driver.heal(method);
            node.restart().await;
            // The pod still exists and needs its volume.
            node.set_up(&pod("p"), &data).await.unwrap();
            assert_eq!(
                node.driver.published()["h-data"].len(),
                1,
                "{method} {fault:?}"
            );
            node.restart().await;
            assert_eq!(node.driver.published().len(), 1);
            // Then it is deleted.
            node.manager.tear_down("p").await.unwrap();
            until("nothing to be left", || {
                node.driver.staged().is_empty() && node.driver.published().is_empty()
            })
            .await;
            assert_eq!(node.driver.violations(), Vec::<String>::new(), "{method}");
        }
    }
}

#[tokio::test]
async fn volumes_grow_are_measured_and_are_published_again_where_drivers_want_it() {
    let node = Node::new(Options::new(DRIVER));
    node.set_csi_driver(json!({"attachRequired": false, "requiresRepublish": true}));
    let (data, one) = (volume("data"), pod("p"));
    let ready = node.set_up(&one, &data).await.unwrap();
    assert!(ready.republishes);
    set_up(&node.manager, &one, &data, true).await.unwrap();
    assert_eq!(node.driver.calls_of("NodePublishVolume").len(), 2);
    // A failure keeps what the pod uses.
    node.driver
        .break_method("NodePublishVolume", Fault::Refuse(Code::Internal));
    set_up(&node.manager, &one, &data, true).await.unwrap_err();
    assert!(std::path::Path::new(&node.target("p", "data")).exists());
    let grown = node.manager.expand("p", &ready.key, &data, 5 << 30).await;
    assert_eq!(grown, Ok(Expanded::Done));
    let call = &node.driver.calls_of("NodeExpandVolume")[0];
    assert_eq!(
        (call.bytes, call.path.as_str()),
        (5 << 30, &*node.target("p", "data"))
    );
    for (code, expected) in [
        (Code::FailedPrecondition, "in use"),
        (Code::OutOfRange, "infeasible"),
    ] {
        node.driver
            .break_method("NodeExpandVolume", Fault::Refuse(code));
        let outcome = node.manager.expand("p", &ready.key, &data, 6 << 30).await;
        match outcome.unwrap() {
            Expanded::InUse(_) => assert_eq!(expected, "in use"),
            Expanded::Infeasible(_) => assert_eq!(expected, "infeasible"),
            other => panic!("{other:?}"),
        }
    }
    let stats = node.manager.stats("p").await;
    assert_eq!(stats.len(), 1);
    assert_eq!(
        (stats[0].name.as_str(), stats[0].measure.usage.used),
        ("vol-data", Some(300))
    );
    // A late refresh does not bring a removed volume back.
    node.driver.heal("NodePublishVolume");
    node.manager.tear_down("p").await.unwrap();
    set_up(&node.manager, &one, &data, true).await.unwrap_err();
    assert!(node.driver.published().is_empty());
}

#[tokio::test]
async fn a_volume_is_not_expanded_for_a_pod_that_it_is_unmounted_from() {
    let node = Node::new(Options::new(DRIVER));
    let data = volume("data");
    let ready = node.set_up(&pod("p"), &data).await.unwrap();
    // Another pod's step is under way; the other two wait for it, one after the other.
    node.driver.break_method("NodePublishVolume", Fault::Hang);
    let other = pod("q");
    let published = node.set_up(&other, &data);
    let ended = async {
        until("the other pod's step", || {
            node.driver.calls_of("NodePublishVolume").len() > 1
        })
        .await;
        let unmount = node.manager.tear_down("p");
        let expand = node.manager.expand("p", &ready.key, &data, 5 << 30);
        tokio::join!(unmount, expand)
    };
    let (published, (unmounted, expanded)) = tokio::join!(published, ended);
    assert!(published.is_err());
    unmounted.unwrap();
    assert!(
        matches!(expanded, Err(StepError::NotTried(_))),
        "{expanded:?}"
    );
    assert!(node.driver.calls_of("NodeExpandVolume").is_empty());
}

#[tokio::test]
async fn a_raw_block_volume_is_a_device_of_the_pod() {
    let mut node = Node::new(Options::new(DRIVER));
    let raw = persistent(
        "raw",
        json!({"volumeMode": "Block", "accessModes": ["ReadWriteOnce"],
               "csi": {"driver": DRIVER, "volumeHandle": "h-raw"}}),
    );
    let ready = node.set_up(&pod("p"), &raw).await.unwrap();
    let devices = node
        .dir
        .path()
        .join("kubelet/plugins/kubernetes.io/csi/volumeDevices");
    assert_eq!(ready.path, devices.join("publish/raw/p"));
    let publish = &node.driver.calls_of("NodePublishVolume")[0];
    assert_eq!(publish.access, "block");
    assert_eq!(
        publish.staging,
        devices.join("staging/raw").to_string_lossy()
    );
    let link = node
        .dir
        .path()
        .join("kubelet/pods/p/volumeDevices/kubernetes.io~csi/raw");
    assert_eq!(std::fs::read_link(&link).unwrap(), ready.path);
    node.restart().await;
    assert_eq!(node.driver.published().len(), 1);
    node.manager.tear_down("p").await.unwrap();
    until("nothing to be left", || {
        node.driver.staged().is_empty() && !devices.join("raw").exists()
    })
    .await;
    assert!(!link.exists() && !link.is_symlink());
}

#[tokio::test]
async fn a_volume_beyond_the_limit_of_the_node_is_rejected_where_the_driver_updates_it() {
    let node = Node::new(Options::new(DRIVER));
    let name = format!("kubernetes.io/csi/{DRIVER}^h-data");
    node.host.in_use.lock().push(name);
    let object = json!({"metadata": {"name": "a"}, "spec": {"attacher": DRIVER, "nodeName": "node", "source": {}},
        "status": {"attached": false, "attachError": {"message": "full", "errorCode": 8}}});
    *node.host.attachment.lock() = Some(serde_json::from_value(object).unwrap());
    for (period, is_rejected) in [(json!(null), false), (json!(60), true)] {
        let driver = json!({"attachRequired": true, "nodeAllocatableUpdatePeriodSeconds": period});
        node.set_csi_driver(driver);
        let clock = FakeClock::at(jiff::Timestamp::UNIX_EPOCH);
        let manager = Manager::new(node.host.clone(), Arc::new(clock.clone()));
        let waiting =
            tokio::spawn(async move { set_up(&manager, &pod("p"), &volume("data"), false).await });
        until("the end of the wait", || {
            clock.advance(Duration::from_secs(1));
            waiting.is_finished()
        })
        .await;
        let error = waiting.await.unwrap().unwrap_err().error;
        let is_limit = matches!(error, StepError::LimitReached(_));
        assert_eq!(is_limit, is_rejected, "{error}");
        // The driver is asked for the new limit.
        assert_eq!(!node.host.limits_reached.lock().is_empty(), is_rejected);
    }
}
