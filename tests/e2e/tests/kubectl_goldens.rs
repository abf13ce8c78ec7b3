//! Our kubectl compared with upstream's: the same commands on the same cluster print the same bytes
//! and have the same exit code. Skipped if neither `MAINSTAY_KUBECTL` nor the PATH has a kubectl
//! 1.36.

use e2e::words::words;
use testkit::{Cluster, Ran};

/// One command per line; `{dir}` is the directory of the manifests. Lines that begin with `!`
/// change the object `configmap/settings`, which is recreated before each of the two.
const COMMANDS: &str = include_str!("../clients/kubectl/commands.txt");
const MISTAKES: &str = include_str!("../clients/kubectl/mistakes.txt");
const USAGE: &str = include_str!("../clients/kubectl/usage.txt");
const CORNERS: &str = include_str!("../clients/kubectl/corners.txt");
const UNCOMMON: &str = include_str!("../clients/kubectl/uncommon.txt");
const RARE: &str = include_str!("../clients/kubectl/rare.txt");
const DESCRIBED: &str = include_str!("../clients/kubectl/described.txt");
const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/kubectl");
/// Commands that are compared at once.
const THREADS: usize = 4;
/// Ages and other times may change between the two; then both are run again.
const TRIES: usize = 3;

fn is_the_same_version(cluster: &Cluster) -> bool {
    let ran = cluster.upstream_kubectl(&["version", "--client"]);
    // A build of upstream's sources without its release scripts has the version 0.0.0.
    let is_meant = std::env::var_os("MAINSTAY_KUBECTL").is_some();
    ran.is_some_and(|ran| {
        ran.stdout.contains("v1.36.") || is_meant && ran.stdout.contains("v0.0.0-master")
    })
}

#[test]
fn both_kubectls_print_the_same_bytes() {
    compare(COMMANDS);
}

#[test]
fn both_kubectls_refuse_the_same_mistakes_and_generate_the_same_objects() {
    compare(MISTAKES);
}

#[test]
fn both_kubectls_report_the_same_usage_errors() {
    compare(USAGE);
}

#[test]
fn both_kubectls_agree_about_templates_selectors_generators_and_absent_objects() {
    compare(CORNERS);
}

#[test]
fn both_kubectls_agree_about_all_types_odd_values_and_surplus_arguments() {
    compare(UNCOMMON);
}

#[test]
fn both_kubectls_agree_about_flags_that_are_rarely_used() {
    compare(RARE);
}

#[test]
fn both_kubectls_describe_objects_with_many_fields() {
    compare_with(&["described.yaml"], DESCRIBED);
}

fn compare(commands: &str) {
    compare_with(&[], commands);
}

/// Runs all commands of a list on a cluster with the objects of these files and the usual ones.
fn compare_with(files: &[&str], commands: &str) {
    let cluster = Cluster::up();
    if !is_the_same_version(&cluster) {
        reference::skip("needs kubectl 1.36 (MAINSTAY_KUBECTL)");
        return;
    }
    let usual = ["cluster.yaml", "objects.yaml", "greeting.yaml"];
    for file in usual.iter().chain(files) {
        let file = format!("{DIRECTORY}/{file}");
        testkit::eventually(&file, || {
            let ran = cluster.kubectl(&["apply", "-f", &file]);
            if ran.ok { Ok(()) } else { Err(ran.stderr) }
        });
    }
    let lines = || {
        commands
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
    };
    let reading: Vec<&str> = lines().filter(|line| !line.starts_with('!')).collect();
    let chunks = reading.chunks(reading.len().div_ceil(THREADS).max(1));
    let mut differences = std::thread::scope(|scope| {
        let compare_all = |chunk: &[&str]| {
            let found = chunk.iter().filter_map(|line| compared(&cluster, line));
            found.collect::<Vec<String>>()
        };
        let threads: Vec<_> = chunks
            .map(|chunk| scope.spawn(move || compare_all(chunk)))
            .collect();
        let found = threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("no panic"));
        found.collect::<Vec<String>>()
    });
    let writing = lines().filter(|line| line.starts_with('!'));
    differences.extend(writing.filter_map(|line| compared(&cluster, line)));
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

/// Runs a line with both; returns the difference.
fn compared(cluster: &Cluster, line: &str) -> Option<String> {
    let (does_write, command) = match line.strip_prefix('!') {
        Some(command) => (true, command),
        None => (false, line),
    };
    let words = words(&command.replace("{dir}", DIRECTORY));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut difference = None;
    for _ in 0..TRIES {
        let ours = run(cluster, does_write, || cluster.kubectl(&words));
        let theirs = run(cluster, does_write, || {
            cluster.upstream_kubectl(&words).expect("it is there")
        });
        difference = difference_of(&ours, &theirs);
        difference.as_ref()?;
    }
    difference.map(|difference| format!("kubectl {command}\n{difference}"))
}

fn run(cluster: &Cluster, does_write: bool, run: impl Fn() -> Ran) -> Ran {
    if does_write {
        cluster.kubectl(&["delete", "configmap", "settings"]);
        let file = format!("{DIRECTORY}/objects.yaml");
        cluster
            .kubectl(&["apply", "-f", &file, "-l", "golden=changed"])
            .success();
    }
    run()
}

fn difference_of(ours: &Ran, theirs: &Ran) -> Option<String> {
    // Hints are ours alone.
    let is_hint = |line: &&str| line.contains("did you mean \"");
    let lines = ours.stderr.split_inclusive('\n');
    let errors: String = lines.filter(|line| !is_hint(line)).collect();
    let is_same =
        ours.stdout == theirs.stdout && ours.code == theirs.code && errors == theirs.stderr;
    (!is_same).then(|| {
        format!(
            "--- ours ({:?})\n{}{}\n--- theirs ({:?})\n{}{}",
            ours.code, ours.stdout, ours.stderr, theirs.code, theirs.stdout, theirs.stderr
        )
    })
}
