//! Image archives with a static busybox, for tests without a registry.

use std::{fs, path::Path, process::Command};

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
