//! Dependencies point downwards only: from a layer to a lower one, never up and never sideways.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Every package of the workspace and its layer. A new crate needs a line here.
const LAYERS: &[(&str, u8)] = &[
    ("stdx", 0),
    ("allocator", 0),
    ("libcgroups", 0),
    ("lifecycle", 1),
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
    ("reconcile", 4),
    ("apiserver", 4),
    ("runtime", 4),
    ("scheduler", 5),
    ("controllers", 5),
    ("kubelet", 5),
    ("proxy", 5),
    ("dns", 5),
    ("kubectl", 5),
    ("console", 5),
    ("cluster", 6),
    ("mainstay", 7),
    ("testkit", 8),
    ("xtask", 8),
    ("e2e", 9),
    ("fuzz", 9),
    ("bench-machinery", 9),
    ("bench-store", 9),
    ("bench-apiserver", 9),
    ("bench-runtime", 9),
    ("bench-scheduler", 9),
];

/// Only these may know what an API object is made of and where it is kept.
const KEEPERS: &[&str] = &["apiserver", "cluster"];
const KEPT: &[&str] = &["kinds", "store"];

/// One finding per edge that points the wrong way.
pub fn check(root: &Path) -> Result<Vec<String>> {
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
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = dependency["name"].as_str().unwrap_or_default();
            let is_dev = dependency["kind"].as_str() == Some("dev");
            let is_ours = !dependency["path"].is_null();
            if is_ours && let Some(finding) = judge(name, to, is_dev) {
                findings.push(finding);
            }
        }
    }
    Ok(findings)
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

/// What is wrong with an edge, if anything. Tests may look at anything below them too.
fn judge(from: &str, to: &str, is_dev: bool) -> Option<String> {
    let (above, below) = (layer(from)?, layer(to)?);
    if below >= above {
        return Some(format!(
            "{from} → {to}: points up or sideways (layers {above} → {below})"
        ));
    }
    let is_outside = above > 6;
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
    fn only_the_api_server_and_the_wiring_know_the_store() {
        assert_eq!(judge("apiserver", "store", false), None);
        assert!(judge("kubelet", "store", false).is_some());
        assert_eq!(judge("kubelet", "store", true), None);
    }
}
