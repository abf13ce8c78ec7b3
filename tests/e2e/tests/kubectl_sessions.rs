//! Our kubectl compared with upstream's in sessions: the same commands one after another, which
//! change objects, print the same text and have the same exit codes. Skipped as the other goldens.

use e2e::words::words;
use testkit::{Cluster, Ran};

/// `== NAME` begins a session; see the file.
const SESSIONS: &str = include_str!("../clients/kubectl/sessions.txt");
const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/kubectl/sessions");
/// Sessions wait for pods, and events may differ: then a session is repeated.
const TRIES: usize = 3;
/// The characters of generated names.
const GENERATED: &str = "bcdfghjklmnpqrstvwxz2456789";

struct Session {
    name: &'static str,
    lines: Vec<&'static str>,
}

fn sessions() -> Vec<Session> {
    let mut sessions: Vec<Session> = Vec::new();
    for line in SESSIONS.lines() {
        match (line.strip_prefix("== "), sessions.last_mut()) {
            (Some(name), _) => sessions.push(Session {
                name,
                lines: Vec::new(),
            }),
            (None, Some(session)) if !line.is_empty() && !line.starts_with('#') => {
                session.lines.push(line);
            }
            _ => {}
        }
    }
    sessions
}

impl Session {
    /// Runs the commands in a new namespace.
    fn run(&self, cluster: &Cluster, kubectl: impl Fn(&[&str]) -> Ran) -> Vec<(&str, String)> {
        let directory = tempfile::tempdir().expect("a directory");
        let tmp = directory.path().display().to_string();
        let namespace = format!("sessions-{}", self.name);
        let exists = ["delete", "namespace", &namespace, "--ignore-not-found"];
        cluster.kubectl(&exists).success();
        cluster
            .kubectl(&["create", "namespace", &namespace])
            .success();
        let account = format!("--namespace={namespace}");
        cluster
            .kubectl(&["wait", "--for=create", "sa/default", &account])
            .success();
        let mut said = Vec::new();
        for line in &self.lines {
            let (prepares, line) = match line.strip_prefix("> ") {
                Some(line) => (true, line),
                None => (false, *line),
            };
            let line_words = words(&line.replace("{dir}", DIRECTORY).replace("{tmp}", &tmp));
            let mut all: Vec<&str> = line_words.iter().map(String::as_str).collect();
            // The namespace would be that of new contexts.
            if all[0] != "config" {
                all.splice(0..0, ["-n", &namespace]);
            }
            if prepares {
                cluster.kubectl(&all).success();
                continue;
            }
            let ran = kubectl(&all);
            let text = format!(
                "{:?}\n{}{}",
                ran.code,
                ran.stdout,
                without_hints(&ran.stderr)
            );
            said.push((line, normalized(&text.replace(&tmp, "{tmp}"))));
        }
        said
    }
}

/// Hints are ours alone, and the advice after a conflict of server-side apply is worded differently.
fn without_hints(stderr: &str) -> String {
    let mut is_advice = false;
    let lines = stderr.split_inclusive('\n');
    lines
        .filter(|line| {
            is_advice |= line.starts_with("Please review the fields above");
            let is_last = is_advice && line.starts_with("See https://");
            let is_hint = line.contains("did you mean \"")
                || line.starts_with("The fields above have other managers.");
            let is_shown = !is_advice && !is_hint;
            is_advice &= !is_last;
            is_shown
        })
        .collect()
}

#[test]
fn hints_and_advice_are_left_out() {
    let theirs =
        "conflict\nPlease review the fields above--they\n* one\nSee https://example.com\nend\n";
    let ours = "conflict\nThe fields above have other managers. Leave them out.\nend\n";
    for text in [theirs, ours] {
        assert_eq!(without_hints(text), "conflict\nend\n");
    }
}

/// Replaces what differs from run to run: numbers, times, addresses, generated names. What is aligned
/// with them has one space.
fn normalized(text: &str) -> String {
    let mut shown = String::new();
    let mut word = String::new();
    for c in text.chars().chain(['\n']) {
        if c.is_ascii_alphanumeric() {
            word.push(c);
            continue;
        }
        let is_in_address = shown.ends_with('.') && word.parse::<u8>().is_ok();
        let is_number =
            is_in_address || word.len() > 1 && word.contains(|c: char| c.is_ascii_digit());
        let is_generated = (5..=10).contains(&word.len())
            && shown.ends_with(['-', '='])
            && word.chars().all(|c| GENERATED.contains(c));
        match is_number || is_generated {
            true => shown.push('#'),
            false => shown.push_str(&word),
        }
        word.clear();
        if c != ' ' || !shown.ends_with(' ') {
            shown.push(c);
        }
    }
    shown
}

fn is_the_same_version(cluster: &Cluster) -> bool {
    let ran = cluster.upstream_kubectl(&["version", "--client"]);
    ran.is_some_and(|ran| ran.stdout.contains("v1.36."))
}

/// The first difference of a session.
fn difference(cluster: &Cluster, session: &Session) -> Option<String> {
    let theirs = session.run(cluster, |words| {
        cluster.upstream_kubectl(words).expect("it is there")
    });
    let ours = session.run(cluster, |words| cluster.kubectl(words));
    let mut both = theirs.into_iter().zip(ours);
    let (theirs, ours) = both.find(|(theirs, ours)| theirs != ours)?;
    Some(format!(
        "{}: kubectl {}\n--- ours\n{}\n--- theirs\n{}",
        session.name, theirs.0, ours.1, theirs.1
    ))
}

#[test]
fn both_kubectls_do_the_same_in_sessions() {
    let cluster = Cluster::up();
    if !is_the_same_version(&cluster) {
        reference::skip("needs kubectl 1.36 (MAINSTAY_KUBECTL)");
        return;
    }
    let archive = e2e::busybox_archive(cluster.machine().dir());
    cluster.mainstay(&["image", "import", &archive]).success();
    let mut differences = Vec::new();
    for session in sessions() {
        let mut found = None;
        for _ in 0..TRIES {
            found = difference(&cluster, &session);
            if found.is_none() {
                break;
            }
        }
        differences.extend(found);
    }
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

#[test]
fn only_what_differs_from_run_to_run_is_replaced() {
    for (text, expected) in [
        ("web-66c4b997dd-bcdfg   1/1   12s", "web-#-# 1/1 #\n"),
        ("pod-template-hash=bcdfghjklm", "pod-template-hash=#\n"),
        ("node/one cordoned", "node/one cordoned\n"),
        ("at 10.42.0.7:8080", "at #.#.#.#:#\n"),
    ] {
        assert_eq!(normalized(text), expected);
    }
}
