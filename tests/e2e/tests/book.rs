//! Every command block of the documents and examples, as a reader would type it: a page is one
//! shell session, and all pages use one cluster.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use e2e::blocks::{Run, blocks};
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
    pages.extend(examples.filter(|page| page.exists()));
    pages.sort();
    pages.insert(0, root.join("README.md"));
    pages
}

/// The commands of a page that are run in this way, as one script; a failure names the line.
fn script(root: &Path, page: &Path, run: &Run) -> Option<String> {
    let text = fs::read_to_string(page).expect("a page");
    let name = page.strip_prefix(root).unwrap_or(page).display();
    let found = blocks(&text);
    let runs: Vec<_> = found.iter().filter(|block| block.run == *run).collect();
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
    Some(script)
}

/// Runs a script on the cluster's machine, with the programs of a directory before all others.
fn bash(cluster: &Cluster, programs: &Path, script: &str) -> Ran {
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
    ran.expect("bash starts").into()
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
        let script = script(&root, &page, &Run::WithPage);
        let ran = script.map(|script| bash(&cluster, &programs, &script));
        failed.extend(ran.and_then(|ran| failure(&page, &ran)));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

fn failure(page: &Path, ran: &Ran) -> Option<String> {
    let text = || format!("{}\n{}\n{}", page.display(), ran.stdout, ran.stderr);
    (!ran.ok).then(text)
}

/// A reader ends a start in the foreground before the next command, answers questions with yes,
/// and may have to be root.
const READER: &str = r#"#!/bin/sh
case "$1" in
up)
    BINARY down >/dev/null 2>&1
    case " $* " in
    *" --detach "*) exec BINARY "$@" ;;
    *) exec BINARY "$@" --detach ;;
    esac ;;
reset)
    BINARY down >/dev/null 2>&1
    exec BINARY "$@" --yes ;;
*) exec BINARY "$@" ;;
esac
"#;

/// What the pages expect to be there.
const BEFORE: &str = "for dir in /srv /etc/cni; do mkdir -p $dir; mount -t tmpfs tmpfs $dir; done\n\
    cd /srv\nmkdir backups\nmainstay up --detach\nmainstay backup backups/cluster.backup\n\
    mainstay reset\nprintf 'apiVersion: audit.k8s.io/v1\\nkind: Policy\\nrules: [{level: Metadata}]\\n' > policy.yaml\n";

#[test]
fn commands_that_start_restore_or_remove_a_cluster_work_as_printed() {
    use std::os::unix::fs::PermissionsExt;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = root.canonicalize().expect("the repository");
    let mut cluster = Cluster::stopped(&[]);
    cluster.use_default_data_dir();
    let programs = cluster.machine().dir().join("programs");
    fs::create_dir(&programs).expect("a directory");
    let binary = std::env::var("MAINSTAY_BIN").expect("the binary");
    let reader = READER.replace("BINARY", &binary);
    for (name, text) in [
        ("mainstay", reader.as_str()),
        ("sudo", "#!/bin/sh\nexec \"$@\"\n"),
    ] {
        let file = programs.join(name);
        fs::write(&file, text).expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("a program");
    }
    bash(&cluster, &programs, &format!("set -e\n{BEFORE}")).success();
    let mut failed = Vec::new();
    for page in pages(&root) {
        let Some(script) = script(&root, &page, &Run::Alone) else {
            continue;
        };
        let script =
            format!("{script}\nmainstay reset\n").replacen(&root.display().to_string(), "/srv", 1);
        failed.extend(failure(&page, &bash(&cluster, &programs, &script)));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn a_block_that_is_not_run_says_why() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for page in pages(&root) {
        let text = fs::read_to_string(&page).expect("a page");
        for block in blocks(&text) {
            let no_reason = Run::Never(String::new());
            assert_ne!(block.run, no_reason, "{}:{}", page.display(), block.line);
        }
    }
}
