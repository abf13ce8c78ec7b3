//! Checks sources: module docs, lengths of files and functions, leftover debugging code.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;

const LONGEST: usize = 800;

/// Exceptions for long files, each with its reason.
const LONG: &[(&str, &str)] = &[];

const LONGEST_FUNCTION: usize = 80;

/// Tests may have tables.
const LONGEST_TEST: usize = 100;

/// Exceptions for long functions, each with its reason.
const LONG_FUNCTIONS: &[(&str, &str, &str)] = &[
    (
        "crates/cel/src/cost/estimate.rs",
        "library",
        "one arm per function of the library",
    ),
    (
        "crates/cel/src/cost/estimate.rs",
        "overload",
        "one arm per operator",
    ),
    (
        "crates/admission/src/options.rs",
        "all",
        "one entry per plugin",
    ),
    (
        "crates/kubelet/src/configuration/mod.rs",
        "default",
        "one entry per field",
    ),
    (
        "crates/flowcontrol/src/defaults.rs",
        "schemas",
        "one entry per default FlowSchema",
    ),
];

/// Paths that may print.
const MAY_PRINT: &[&str] = &[
    "bin/",
    "crates/kubectl/",
    "crates/hello/",
    "xtask/",
    "benches/",
    "tests/",
    "testkit/",
];

const SCAFFOLDING: &[&str] = &["todo!(", "unimplemented!(", "dbg!("];
const PRINTING: &[&str] = &["println!(", "eprintln!("];

const UNSAFE: &[&str] = &["unsafe {", "unsafe fn ", "unsafe impl ", "unsafe extern "];

/// Texts of a Go program's crash: our messages follow Kubernetes', but not its crashes.
const GO_CRASHES: &[&str] = &["goroutine ", "runtime error: "];

/// One finding per violation.
pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    // Whether a package has unsafe code, and whether it forbids it.
    let mut packages: BTreeMap<String, (bool, bool)> = BTreeMap::new();
    let mut all = Vec::new();
    for top in ["bin", "crates", "benches", "testkit", "tests", "xtask"] {
        all.extend(files(&root.join(top))?);
    }
    for file in all {
        let name = file
            .strip_prefix(root)
            .unwrap_or(&file)
            .display()
            .to_string();
        let text = fs::read_to_string(&file)?;
        judge(&name, &text, &mut findings);
        if let Some((package, _)) = name.split_once("/src/") {
            let (uses, forbids) = packages.entry(package.to_owned()).or_default();
            *uses |= uses_unsafe(&text);
            *forbids |= text.contains("#![forbid(unsafe_code)]");
        }
    }
    for (package, (uses, forbids)) in packages {
        if !uses && !forbids {
            findings.push(format!(
                "{package}: has no unsafe code and does not forbid it"
            ));
        }
    }
    for (name, function, _) in LONG_FUNCTIONS {
        let text = fs::read_to_string(root.join(name)).unwrap_or_default();
        if !long_functions(&text, false).any(|(_, known, _)| known == *function) {
            findings.push(format!(
                "{name}: `{function}` needs no exception (xtask/src/tidy/sources.rs)"
            ));
        }
    }
    Ok(findings)
}

fn uses_unsafe(text: &str) -> bool {
    text.lines().any(|line| {
        let bare = line.trim_start();
        !bare.starts_with("//") && UNSAFE.iter().any(|word| contains_word(bare, word))
    })
}

/// Directories of files that were not written by hand.
const NOT_OURS: &[&str] = &["target", "generated"];

/// The Rust files below a directory that were written by hand.
pub(super) fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    collect(directory, &mut files)?;
    Ok(files)
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Ok(());
    };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            if !NOT_OURS.iter().any(|name| path.ends_with(name)) {
                collect(&path, files)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn judge(name: &str, text: &str, findings: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > LONGEST && !LONG.iter().any(|(known, _)| *known == name) {
        findings.push(format!("{name}: {lines} lines; split it by meaning"));
    }
    let first = text
        .lines()
        .find(|line| !line.trim().is_empty() && !line.starts_with("#!"));
    if !first.is_some_and(|line| line.starts_with("//!")) {
        findings.push(format!(
            "{name}: does not start with a module comment (//!)"
        ));
    }
    if name.starts_with("xtask/src/tidy/") {
        return;
    }
    let is_test =
        name.contains("/tests/") || name.ends_with("/tests.rs") || name.starts_with("tests/");
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    for (number, function, length) in long_functions(text, is_test) {
        let is_known = |(path, known, _): &&(&str, &str, &str)| *path == name && *known == function;
        if !LONG_FUNCTIONS.iter().any(|known| is_known(&known)) {
            findings.push(format!(
                "{name}:{number}: `{function}` has {length} lines; split it by meaning"
            ));
        }
    }
    // Build scripts print for cargo, tests for the reader of their output.
    let may_print = MAY_PRINT.iter().any(|prefix| name.starts_with(prefix))
        || name.ends_with("/build.rs")
        || name.contains("/tests/");
    for (number, line) in code.lines().enumerate() {
        let bare = line.trim_start();
        let stray = |words: &[&str]| words.iter().any(|word| contains_word(bare, word));
        if bare.starts_with("//") {
            continue;
        }
        if stray(SCAFFOLDING) || (!may_print && stray(PRINTING)) {
            findings.push(format!("{name}:{}: {bare}", number + 1));
        }
        if GO_CRASHES.iter().any(|words| bare.contains(words)) || names_go_source(bare) {
            let number = number + 1;
            findings.push(format!("{name}:{number}: a Go program's own words: {bare}"));
        }
    }
}

/// Whether a line has a position in a Go source file, such as `reflector.go:227`.
fn names_go_source(line: &str) -> bool {
    let mut found = line.match_indices(".go:");
    found.any(|(at, words)| line[at + words.len()..].starts_with(|c: char| c.is_ascii_digit()))
}

/// The lines, names and lengths of functions that are too long. `rustfmt` puts the end of a function at
/// the indentation of its start. A test module is the last item of its file.
fn long_functions(text: &str, is_test: bool) -> impl Iterator<Item = (usize, &str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let is_test_module = |pair: &[&str]| {
        pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{')
    };
    let tests_begin = match is_test {
        true => Some(0),
        false => lines.windows(2).position(is_test_module),
    };
    let most = move |start: usize| match tests_begin.is_some_and(|begin| begin <= start) {
        true => LONGEST_TEST,
        false => LONGEST_FUNCTION,
    };
    let length = |start: usize| {
        let line = lines[start];
        let indent = &line[..line.len() - line.trim_start().len()];
        let end = format!("{indent}}}");
        // A declaration without a body ends with its signature.
        let has_body = lines[start..]
            .iter()
            .find(|line| line.ends_with('{') || line.ends_with(';') || line.ends_with('}'));
        if !has_body.is_some_and(|line| line.ends_with('{')) {
            return 0;
        }
        let last = lines[start..].iter().position(|line| *line == end);
        last.unwrap_or(0) + 1
    };
    let named = lines.iter().enumerate();
    let named = named.filter_map(|(start, line)| function_name(line).map(|name| (start, name)));
    let long = named.map(|(start, name)| (start + 1, name, length(start)));
    let long: Vec<_> = long
        .filter(|(number, _, length)| *length > most(*number))
        .collect();
    long.into_iter()
}

/// The name of the function that begins in a line.
fn function_name(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    loop {
        match words.next()? {
            "fn" => break,
            "const" | "async" | "unsafe" | "extern" | "\"C\"" => {}
            word if word.starts_with("pub") => {}
            _ => return None,
        }
    }
    let rest = words.next()?;
    Some(rest.split(['(', '<']).next().unwrap_or(rest))
}

/// Whether the word stands alone, not at the end of a longer name.
fn contains_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(name: &str, text: &str) -> usize {
        let mut findings = Vec::new();
        judge(name, text, &mut findings);
        findings.len()
    }

    #[test]
    fn a_tidy_module_has_no_findings() {
        assert_eq!(
            findings("crates/x/src/lib.rs", "//! Purpose.\nfn f() {}\n"),
            0
        );
    }

    #[test]
    fn a_function_of_many_lines_is_named() {
        let body = "    let x = 1;\n".repeat(80);
        let long = format!("//! P.\npub(crate) async fn longest<T>() {{\n{body}}}\n");
        let mut findings = Vec::new();
        judge("crates/x/src/lib.rs", &long, &mut findings);
        assert_eq!(findings.len(), 1);
        assert!(
            findings[0].contains("`longest` has 82 lines"),
            "{findings:?}"
        );
        let short = format!(
            "//! P.\ntrait T {{\n    fn declared(&self);\n}}\n{}",
            "\n".repeat(90)
        );
        assert_eq!(self::findings("crates/x/src/lib.rs", &short), 0);
        assert_eq!(self::findings("crates/x/tests/y.rs", &long), 0);
        let body = "    let x = 1;\n".repeat(100);
        let long = format!("//! P.\nfn test() {{\n{body}}}\n");
        assert_eq!(self::findings("crates/x/tests/y.rs", &long), 1);
        let body = "        let x = 1;\n".repeat(90);
        let inside =
            |mark: &str| format!("//! P.\n{mark}mod inside {{\n    fn f() {{\n{body}    }}\n}}\n");
        assert_eq!(self::findings("crates/x/src/lib.rs", &inside("")), 1);
        let tests = inside("#[cfg(test)]\n");
        assert_eq!(self::findings("crates/x/src/lib.rs", &tests), 0);
    }

    #[test]
    fn unsafe_code_is_recognized_outside_of_comments() {
        assert!(uses_unsafe("fn f() {\n    let x = unsafe { g() };\n}\n"));
        assert!(uses_unsafe("unsafe impl Send for X {}\n"));
        assert!(!uses_unsafe(
            "// An unsafe { block }.\n#![forbid(unsafe_code)]\n"
        ));
    }

    #[test]
    fn a_missing_purpose_a_stray_macro_and_a_long_file_are_found() {
        assert_eq!(findings("crates/x/src/lib.rs", "fn f() {}\n"), 1);
        assert_eq!(
            findings("crates/x/src/lib.rs", "//! P.\nfn f() { todo!() }\n"),
            1
        );
        assert_eq!(
            findings(
                "crates/x/src/lib.rs",
                "//! P.\nfn f() { println!(\"x\") }\n"
            ),
            1
        );
        assert_eq!(
            findings("bin/x/src/main.rs", "//! P.\nfn f() { println!(\"x\") }\n"),
            0
        );
        for text in [
            "converter.go:227: no",
            "panic: runtime error: x",
            "goroutine 1",
        ] {
            let code = format!("//! P.\nfn f() -> &str {{ \"{text}\" }}\n");
            assert_eq!(findings("crates/x/src/lib.rs", &code), 1, "{text}");
        }
        let code = "//! P.\nfn f() -> &str { \"main.go: no such file\" }\n";
        assert_eq!(findings("crates/x/src/lib.rs", code), 0);
        for name in ["crates/x/build.rs", "crates/x/tests/y.rs"] {
            assert_eq!(findings(name, "//! P.\nfn f() { println!(\"x\") }\n"), 0);
        }
        assert_eq!(
            findings(
                "crates/x/src/lib.rs",
                &format!("//! P.\n{}", "\n".repeat(800))
            ),
            1
        );
    }
}
