//! Reference data for tests, and histories. The reference data of Kubernetes v1.36 is not part of
//! the repository: a test that does not find it is skipped and recorded, so that the end of a run
//! lists what was not compared.

#![forbid(unsafe_code)]

pub mod history;

use std::{
    env,
    fs::OpenOptions,
    io::Write,
    path::{Path, PathBuf},
};

/// The directory of the data, if it is not beside the checkout.
const DIRECTORY: &str = "KUBERNETES_REFERENCE";
/// The file to which skipped tests are appended; `make test` prints it.
const SKIPPED: &str = "MAINSTAY_SKIPPED_TESTS";

/// A file or directory of the reference data. If there is none at all, the running test is recorded
/// as skipped.
pub fn find(path: &str) -> Option<PathBuf> {
    let mut roots = roots().into_iter().filter(|root| root.exists()).peekable();
    if roots.peek().is_none() {
        skip(&format!("no {path}"));
    }
    roots.map(|root| root.join(path)).find(|path| path.exists())
}

fn roots() -> Vec<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let given = env::var_os(DIRECTORY).map(PathBuf::from);
    // A worktree may be one level deeper.
    let beside = ["../../..", "../../../.."].map(|up| here.join(up).join("shared/kubernetes"));
    given.into_iter().chain(beside).collect()
}

/// Records the running test as skipped.
pub fn skip(why: &str) {
    let line = format!("{}: {why}\n", test_name());
    // Shown only if the test fails or runs alone.
    #[allow(clippy::print_stderr, reason = "a test that compares nothing says so")]
    {
        eprint!("skipped {line}");
    }
    if let Some(file) = env::var_os(SKIPPED) {
        let file = OpenOptions::new().append(true).create(true).open(file);
        // A single write, so that lines of concurrent tests do not mix.
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            panic!("cannot record a skipped test: {error}");
        }
    }
}

/// Package and name of the running test. cargo-nextest sets it in the environment, libtest names
/// its threads.
fn test_name() -> String {
    let package = env::var("CARGO_PKG_NAME").unwrap_or_default();
    let thread = std::thread::current();
    let name = env::var("NEXTEST_TEST_NAME").ok();
    let name = name.or_else(|| thread.name().map(str::to_owned));
    format!("{package} {}", name.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_test_is_named() {
        let name = test_name();
        assert!(name.ends_with("the_running_test_is_named"), "{name}");
    }
}
