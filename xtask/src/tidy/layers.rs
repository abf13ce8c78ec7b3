//! Checks that dependencies only point downwards: from a layer to a lower one, never up and never
//! sideways.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The crate without code that every other one depends on, so that all share their dependencies'
/// builds.
const UNIFIER: &str = "features";

/// Every package of the workspace and its layer. A new crate needs a line here.
const LAYERS: &[(&str, u8)] = &[
    (UNIFIER, 0),
    ("stdx", 0),
    ("reference", 0),
    ("network-lab", 0),
    ("allocator", 0),
    ("dbus", 0),
    ("rust-criu", 0),
    ("libcgroups", 1),
    ("lifecycle", 1),
    ("csi", 2),
    ("feed", 2),
    ("machinery", 2),
    ("pki", 2),
    ("streaming", 2),
    ("hello", 2),
    ("cel", 3),
    ("kinds", 3),
    ("quota", 3),
    ("store", 3),
    ("client", 3),
    ("cri", 3),
    ("network", 3),
    ("volume", 3),
    ("webhook", 3),
    ("request", 4),
    ("apiextensions", 4),
    ("audit", 5),
    ("http-server", 5),
    ("registry", 5),
    ("registry-testing", 6),
    ("aggregator", 7),
    ("auth", 7),
    ("connect", 7),
    ("flowcontrol", 7),
    ("metrics-api", 7),
    ("openapi", 7),
    ("server-metrics", 7),
    ("service-allocator", 7),
    ("admission", 8),
    ("apiserver", 9),
    ("reconcile", 9),
    ("runtime", 9),
    ("scheduler", 10),
    ("simulate", 10),
    ("controllers", 10),
    ("kubelet", 10),
    ("proxy", 10),
    ("policy", 10),
    ("dns", 10),
    ("kubectl", 10),
    ("cluster", 11),
    ("why", 11),
    ("mainstay", 12),
    ("testkit", 13),
    ("xtask", 13),
    ("e2e", 14),
    ("fuzz", 14),
    ("bench-machinery", 14),
    ("bench-store", 14),
    ("bench-apiserver", 14),
    ("bench-runtime", 14),
    ("bench-scheduler", 14),
    ("bench-network", 14),
    ("bench-storage", 14),
    ("bench-controllers", 14),
    ("bench-pods", 14),
];

/// Layers above this one are tools and tests; ARCHITECTURE.md's map need not list them.
const LAST_DOCUMENTED: u8 = 12;

/// Only these crates may access stored objects: the API server, its parts, and the wiring.
const KEEPERS: &[&str] = &[
    "apiextensions",
    "registry",
    "registry-testing",
    "aggregator",
    "auth",
    "flowcontrol",
    "metrics-api",
    "openapi",
    "service-allocator",
    "admission",
    "apiserver",
    "cluster",
];
const KEPT: &[&str] = &["kinds", "store"];

/// One finding per dependency that violates the layers.
pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let metadata = metadata(root)?;
    let packages = metadata["packages"]
        .as_array()
        .context("metadata without packages")?;
    let mut findings = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        if layer(name).is_none() {
            findings.push(format!(
                "{name}: not in the list of layers (xtask/src/tidy/layers.rs)"
            ));
        }
        let dependencies = package["dependencies"]
            .as_array()
            .map_or(&[][..], |all| all);
        let is_unified = dependencies.iter().any(|to| to["name"] == UNIFIER);
        if name != UNIFIER && !is_unified {
            findings.push(format!("{name}: does not depend on `{UNIFIER}`"));
        }
        for dependency in dependencies {
            let to = dependency["name"].as_str().unwrap_or_default();
            let is_dev = dependency["kind"].as_str() == Some("dev");
            let is_ours = !dependency["path"].is_null();
            if is_ours && let Some(finding) = judge(name, to, is_dev) {
                findings.push(finding);
            }
        }
    }
    let architecture = std::fs::read_to_string(root.join("ARCHITECTURE.md"))?;
    let names = packages
        .iter()
        .filter_map(|package| package["name"].as_str());
    findings.extend(compare(&architecture, &names.collect::<Vec<_>>()));
    Ok(findings)
}

/// One finding per crate that ARCHITECTURE.md assigns to another layer, or omits.
fn compare(architecture: &str, packages: &[&str]) -> Vec<String> {
    let documented = documented(architecture);
    let mut findings = Vec::new();
    for (name, layer) in &documented {
        if let Some(real) = self::layer(name)
            && real != *layer
        {
            findings.push(format!(
                "ARCHITECTURE.md: {name} is on layer {real}, not {layer}"
            ));
        }
    }
    for (name, layer) in LAYERS {
        let is_known = documented.iter().any(|(known, _)| known == name);
        if *layer <= LAST_DOCUMENTED && packages.contains(name) && !is_known {
            findings.push(format!("ARCHITECTURE.md: {name} is missing in the map"));
        }
    }
    findings
}

/// The crates of the map's table and their layers. A row without a number belongs to the layer
/// above it.
fn documented(architecture: &str) -> Vec<(String, u8)> {
    let mut found = Vec::new();
    let mut layer = None;
    for line in architecture.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, number, crates, ..] = cells[..] else {
            continue;
        };
        layer = number.parse().ok().or(layer);
        // Names are in backticks, some with a directory.
        let names = crates.split('`').skip(1).step_by(2);
        let names = names.map(|name| name.rsplit('/').next().unwrap_or(name));
        found.extend(layer.iter().flat_map(|layer| {
            let named = names.clone().map(|name| (name.to_owned(), *layer));
            named.collect::<Vec<_>>()
        }));
    }
    found
}

fn metadata(root: &Path) -> Result<Value> {
    let output = Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root)
        .output()?;
    if !output.status.success() {
        bail!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn layer(name: &str) -> Option<u8> {
    LAYERS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, layer)| *layer)
}

/// What is wrong with a dependency, if anything. Tests may depend on anything below them too.
fn judge(from: &str, to: &str, is_dev: bool) -> Option<String> {
    if to == UNIFIER {
        return None;
    }
    let (above, below) = (layer(from)?, layer(to)?);
    if below >= above {
        return Some(format!(
            "{from} → {to}: points up or sideways (layers {above} → {below})"
        ));
    }
    let is_outside = above > layer("cluster")?;
    if KEPT.contains(&to) && !KEEPERS.contains(&from) && !is_dev && !is_outside {
        return Some(format!("{from} → {to}: only {KEEPERS:?} may know {to}"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_may_point_down_but_neither_up_nor_sideways() {
        assert_eq!(judge("apiserver", "machinery", false), None);
        assert!(judge("machinery", "apiserver", false).is_some());
        assert!(judge("apiserver", "runtime", false).is_some());
    }

    #[test]
    fn the_map_in_the_documents_has_the_same_layers() {
        let map = "| layer | crate | what |\n|---|---|---|\n| 0 | `stdx` | a |\n| | `allocator` `pki` | b |\n";
        let found = documented(map);
        let expected = [("stdx", 0), ("allocator", 0), ("pki", 0)];
        let expected = expected.map(|(name, layer)| (name.to_owned(), layer));
        assert_eq!(found, expected);
        let findings = compare(map, &["stdx", "pki", "cluster", "xtask"]);
        let wrong = |what: &str| findings.iter().any(|finding| finding.contains(what));
        assert!(wrong("pki is on layer 2, not 0") && wrong("cluster is missing"));
        assert!(!wrong("stdx") && !wrong("xtask"));
    }

    #[test]
    fn only_the_api_server_and_the_wiring_know_the_store() {
        assert_eq!(judge("apiserver", "store", false), None);
        assert!(judge("kubelet", "store", false).is_some());
        assert_eq!(judge("kubelet", "store", true), None);
    }
}
