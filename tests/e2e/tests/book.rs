//! Every command block of the documents and examples, as a reader would type it: a page is one
//! shell session in a new namespace of one cluster.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use e2e::blocks::blocks;
use testkit::{Cluster, Ran};

/// The pages in the order in which they are run.
fn pages(root: &Path) -> Vec<PathBuf> {
    let markdown = |directory: &str| {
        let entries = fs::read_dir(root.join(directory)).expect("a directory");
        let paths = entries.flatten().map(|entry| entry.path());
        let is_page = |path: &PathBuf| path.extension().is_some_and(|end| end == "md");
        paths.filter(is_page).collect::<Vec<_>>()
    };
    let mut pages = markdown("docs");
    let examples = fs::read_dir(root.join("examples")).expect("a directory");
    let examples = examples
        .flatten()
        .map(|entry| entry.path().join("README.md"));
    // The guestbook has a test of its own.
    pages.extend(
        examples.filter(|page| page.exists() && !page.starts_with(root.join("examples/guestbook"))),
    );
    pages.sort();
    pages.insert(0, root.join("README.md"));
    pages
}

/// Runs the blocks of a page as one script; a failure names the line.
fn run(cluster: &Cluster, root: &Path, programs: &Path, page: &Path) -> Option<Ran> {
    let text = fs::read_to_string(page).expect("a page");
    let name = page
        .strip_prefix(root)
        .unwrap_or(page)
        .display()
        .to_string();
    let found = blocks(&text);
    let runs: Vec<_> = found
        .iter()
        .filter(|block| block.left_out.is_none())
        .collect();
    if runs.is_empty() {
        return None;
    }
    // Entering a machine's namespaces changes the directory.
    let mut script = format!("cd '{}'\n", root.display());
    script += "set -euo pipefail\nshopt -s expand_aliases\nat=\n\
                      trap 'echo \"failed: $at\" >&2' ERR\n";
    for block in runs {
        script += &format!("at='{name}:{}'\n{}\n", block.line, checked(&block.commands));
    }
    let file = cluster.machine().dir().join("page.sh");
    fs::write(&file, script).expect("a file");
    let path = std::env::var("PATH").unwrap_or_default();
    let ran = cluster
        .machine()
        .command("bash")
        .arg(&file)
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("KUBECONFIG", cluster.kubeconfig())
        .env("MAINSTAY_DATA_DIR", cluster.data_dir())
        .env("HOME", cluster.machine().dir())
        // No interactive editor.
        .env("EDITOR", "true")
        .output();
    Some(ran.expect("bash starts").into())
}

/// A line `! COMMAND` expects a command to fail; bash alone would ignore its success.
fn checked(commands: &str) -> String {
    let line = |line: &str| match line.strip_prefix("! ") {
        Some(command) => {
            format!("if {command}; then echo 'this should have failed' >&2; false; fi\n")
        }
        None => format!("{line}\n"),
    };
    commands.lines().map(line).collect()
}

#[test]
fn every_command_of_the_documents_and_examples_works_as_printed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = root.canonicalize().expect("the repository");
    let cluster = Cluster::up();
    let programs = cluster.machine().dir().join("programs");
    fs::create_dir(&programs).expect("a directory");
    let binary = std::env::var("MAINSTAY_BIN").expect("the binary");
    for name in ["mainstay", "kubectl"] {
        symlink(&binary, programs.join(name)).expect("a link");
    }
    let mut failed = Vec::new();
    for page in pages(&root) {
        if let Some(ran) = run(&cluster, &root, &programs, &page)
            && !ran.ok
        {
            failed.push(format!(
                "{}\n{}\n{}",
                page.display(),
                ran.stdout,
                ran.stderr
            ));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn a_block_that_is_not_run_says_why() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for page in pages(&root) {
        let text = fs::read_to_string(&page).expect("a page");
        for block in blocks(&text) {
            let why = block.left_out.as_deref();
            assert_ne!(why, Some(""), "{}:{}", page.display(), block.line);
        }
    }
}
