//! Shared by the end-to-end tests: helpers for kubectl's output. The tests are under `tests/`, one
//! file per story; each runs the built binary from outside, on a machine of its own.

mod api;
pub mod audit;
pub mod blocks;
mod install;
pub mod recorder;
mod site;

pub use api::Api;
pub use install::{helm, install, kubectl};
pub use site::Site;

use std::{
    fs,
    path::Path,
    process::{Child, Command},
};

use serde_json::Value;
use testkit::{Cluster, eventually};

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
    let conditions = pod["status"]["conditions"].as_array();
    let ready = |c: &Value| c["type"] == "Ready" && c["status"] == "True";
    conditions.into_iter().flatten().any(ready) && pod["metadata"]["deletionTimestamp"].is_null()
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

/// Runs a program of the host and returns its output.
fn host(directory: &Path, program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .current_dir(directory)
        .output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A `docker save` archive: one layer with a static busybox.
pub fn busybox_archive(directory: &Path) -> String {
    let echo = r#"["/bin/busybox","echo","from busybox"]"#;
    archive(directory, "local.test/busybox:1", echo)
}

/// An image for the sandboxes of other runtimes, and its name: it only waits.
pub fn pause_archive(directory: &Path) -> (String, &'static str) {
    let name = "local.test/pause:1";
    let sleep = r#"["/bin/busybox","sleep","100000"]"#;
    (archive(directory, name, sleep), name)
}

fn archive(directory: &Path, name: &str, command: &str) -> String {
    fs::create_dir_all(directory.join("root/bin")).expect("a directory");
    let busybox = ["/bin/busybox", "/usr/bin/busybox"]
        .into_iter()
        .find(|path| Path::new(path).exists());
    let busybox = busybox.expect("busybox is installed (make test does it)");
    fs::copy(busybox, directory.join("root/bin/busybox")).expect("busybox can be copied");
    host(directory, "tar", &["-C", "root", "-cf", "layer.tar", "bin"]);
    let digest = host(directory, "sha256sum", &["layer.tar"]);
    let digest = digest.split_whitespace().next().expect("a digest");
    let config = format!(
        r#"{{"architecture":"{}","os":"linux","config":{{"Cmd":{command}}},
            "rootfs":{{"type":"layers","diff_ids":["sha256:{digest}"]}}}}"#,
        if cfg!(target_arch = "aarch64") {
            "arm64"
        } else {
            "amd64"
        },
    );
    fs::write(directory.join("config.json"), config).expect("a file");
    let manifest =
        format!(r#"[{{"Config":"config.json","RepoTags":["{name}"],"Layers":["layer.tar"]}}]"#);
    fs::write(directory.join("manifest.json"), manifest).expect("a file");
    host(
        directory,
        "tar",
        &[
            "-cf",
            "image.tar",
            "manifest.json",
            "config.json",
            "layer.tar",
        ],
    );
    directory.join("image.tar").display().to_string()
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
