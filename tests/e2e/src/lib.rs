//! Shared by the end-to-end tests: helpers for kubectl's output. The tests are under `tests/`, one
//! file per story; each runs the built binary from outside, on a machine of its own.

#![forbid(unsafe_code)]

mod api;
pub mod audit;
pub mod blocks;
mod dual_stack;
mod install;
pub mod recorder;
mod site;
pub mod words;

pub use api::Api;
pub use dual_stack::DualStack;
pub use install::{helm, install, kubectl};
pub use site::Site;

use std::{path::Path, process::Child};

use serde_json::Value;
use testkit::{Cluster, Machine, Ran, eventually};
pub use testkit::{busybox_archive, pause_archive};

/// The pods with this label that are Ready and not being deleted, as soon as there are `count`.
pub fn ready_pods(cluster: &Cluster, selector: &str, count: usize) -> Vec<Value> {
    eventually(&format!("{count} ready pods with {selector}"), || {
        let list = cluster.get(&["pods", "-l", selector]);
        let pods: Vec<Value> = list["items"].as_array().cloned().unwrap_or_default();
        let ready: Vec<Value> = pods.iter().filter(|pod| is_ready(pod)).cloned().collect();
        if ready.len() == count && pods.len() == count {
            return Ok(ready);
        }
        Err(format!(
            "{} of {} are ready: {}",
            ready.len(),
            pods.len(),
            summary(cluster)
        ))
    })
}

/// Whether a pod is Ready and not being deleted.
pub fn is_ready(pod: &Value) -> bool {
    testkit::is_ready(pod) && pod["metadata"]["deletionTimestamp"].is_null()
}

/// Runs a command of the hello image in a running pod.
pub fn hello(cluster: &Cluster, pod: &str, args: &[&str]) -> Ran {
    let exec = ["exec", pod, "--", "/mainstay", "hello"];
    cluster.kubectl(&[&exec[..], args].concat())
}

/// The VolumeAttachments.
pub fn attachments(cluster: &Cluster) -> Vec<Value> {
    let list = cluster.get(&["volumeattachments"]);
    list["items"].as_array().cloned().unwrap_or_default()
}

/// Patches a VolumeAttachment, as a driver's attacher does.
pub fn patch_attachment(cluster: &Cluster, name: &str, patch: &Value, more: &[&str]) -> Ran {
    let patch = patch.to_string();
    let args = ["patch", "volumeattachment", name, "--type=merge", "-p"];
    cluster.kubectl(&[&args[..], &[patch.as_str()], more].concat())
}

/// The name of an object.
pub fn name(object: &Value) -> String {
    object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// The ids of all containers of a pod, in the order of its status.
pub fn container_ids(pod: &Value) -> Vec<String> {
    let statuses = pod["status"]["containerStatuses"].as_array();
    let id = |status: &Value| {
        status["containerID"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    statuses.into_iter().flatten().map(id).collect()
}

fn summary(cluster: &Cluster) -> String {
    let pods = cluster.kubectl(&["get", "pods", "-A", "-o", "wide"]).stdout;
    let events = cluster.kubectl(&["get", "events", "-A"]).stdout;
    format!("\n{pods}\n{events}")
}

/// Imports the busybox image of [`busybox_archive`] on a machine whose daemon has this data directory.
pub fn import_busybox(machine: &Machine, data_dir: &Path) {
    let archive = busybox_archive(machine.dir());
    let binary = std::env::var("MAINSTAY_BIN").expect("MAINSTAY_BIN is set");
    let data = data_dir.display().to_string();
    eventually("the image to be imported", || {
        let args = ["image", "import", &archive, "--data-dir", &data];
        let ran = machine.run(&binary, &args);
        if ran.ok { Ok(()) } else { Err(ran.stderr) }
    });
}

/// A background program, killed when this is dropped.
pub struct Background(pub Child);

impl Drop for Background {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
