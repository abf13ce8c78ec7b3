//! Warnings for writers of custom resources.

use kinds::{Names, tree};
use machinery::{Object, Value};

use crate::versions;

/// The warning for a deprecated version, with a newer one that is not deprecated.
pub(super) fn deprecation(names: &Names, versions: &Value) -> String {
    let Names {
        group,
        kind,
        version,
        ..
    } = names;
    let rank = |version: &str| {
        (
            versions::priority(version),
            std::cmp::Reverse(version.to_owned()),
        )
    };
    let all = versions.as_array().into_iter().flatten();
    let newer = all
        .filter(|other| other["served"] == true && other["deprecated"] != true)
        .filter_map(|other| other["name"].as_str())
        .filter(|other| rank(other) > rank(version))
        .max_by_key(|other| rank(other));
    let instead = newer.map(|newer| format!("; use {group}/{newer} {kind}"));
    format!(
        "{group}/{version} {kind} is deprecated{}",
        instead.unwrap_or_default()
    )
}

/// The names of an object's finalizers.
pub(super) fn finalizers(object: &Object) -> Vec<&str> {
    let finalizers = tree::list(&tree::get(object, "metadata")["finalizers"]).iter();
    finalizers.filter_map(Value::as_str).collect()
}

/// Warns of finalizers without a domain.
pub(super) fn finalizer_warnings(name: &str) -> Vec<String> {
    let at = "metadata.finalizers";
    let quoted = machinery::text::quote(name);
    let complaints = machinery::format::qualified_name(name);
    let mut found: Vec<String> = complaints
        .iter()
        .map(|why| format!("{at}: {quoted}: {why}"))
        .collect();
    let standard = ["orphan", "foregroundDeletion", "kubernetes"];
    if !name.contains('/') && !standard.contains(&name) {
        let path = if name.contains('.') {
            " including a path (/)"
        } else {
            ""
        };
        found.push(format!(
            "{at}: {quoted}: prefer a domain-qualified finalizer name{path} to avoid accidental conflicts with other finalizer writers"
        ));
    }
    found
}
