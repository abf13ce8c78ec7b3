//! Checks that every field that the server's code reads by name, and every segment of a field path,
//! is in the schema table: a typo would silently read null.
//!
//! The check knows names, not types: `spec["labels"]` passes, since `labels` is a field of some
//! type.

use std::{collections::HashSet, fs, path::Path};

use anyhow::Result;

use super::sources;

/// The sources that read objects as trees.
const READERS: &[&str] = &[
    "admission/src",
    "aggregator/src",
    "apiextensions/src",
    "apiserver/src",
    "audit/src",
    "auth/src",
    "cel/src",
    "cluster/src",
    "connect/src",
    "controllers/src",
    "flowcontrol/src",
    "kinds/src",
    "kubectl/src/commands",
    "kubelet/src",
    "machinery/src",
    "metrics-api/src",
    "openapi/src",
    "policy/src",
    "proxy/src",
    "quota/src",
    "reconcile/src",
    "registry/src",
    "request/src",
    "service-allocator/src",
    "volume/src",
    "webhook/src",
    "why/src",
];

/// Names that are not in the table, each with its reason.
const OTHERS: &[(&str, &str)] = &[
    ("AdditionalItems", "upstream's field path of a schema"),
    ("AdditionalProperties", "upstream's field path of a schema"),
    ("Items", "upstream's field path of a schema"),
    ("JSONPath", "v1beta1 of definitions, as field paths name it"),
    (
        "LoadBalancerSourceRanges",
        "upstream's field path of a Service",
    ),
    ("Not", "upstream's field path of a schema"),
    ("Phase", "upstream's field path of a Namespace"),
    ("Schema", "upstream's field path of a definition's version"),
    ("Spec", "upstream's field path of a StatefulSet"),
    ("Type", "upstream's field path of a pod's condition"),
    ("VolumeName", "upstream's field path of a claim"),
    ("alg", "a key set or discovery document of a token issuer"),
    ("aliases", "a kuberc"),
    ("annotation", "upstream's field path of a converted object"),
    (
        "anonymous",
        "the authentication or authorization configuration file",
    ),
    (
        "attachedRequired",
        "upstream's field path of CSIDriver's attachRequired",
    ),
    (
        "audienceMatchPolicy",
        "the authentication or authorization configuration file",
    ),
    ("auth", "a file with registry credentials"),
    (
        "authorizedTTL",
        "the authentication or authorization configuration file",
    ),
    (
        "authorizers",
        "the authentication or authorization configuration file",
    ),
    ("auths", "a file with registry credentials"),
    ("certificate-authority-data", "a kubeconfig"),
    (
        "certificateAuthority",
        "the authentication or authorization configuration file",
    ),
    (
        "claim",
        "the authentication or authorization configuration file",
    ),
    (
        "claimMappings",
        "the authentication or authorization configuration file",
    ),
    (
        "claimValidationRules",
        "the authentication or authorization configuration file",
    ),
    ("cluster", "a kubeconfig"),
    ("colors", "a kubeconfig"),
    ("components", "a document of OpenAPI"),
    (
        "connectionInfo",
        "the authentication or authorization configuration file",
    ),
    ("consumes", "a document of OpenAPI"),
    ("content", "a document of OpenAPI"),
    ("contexts", "a kubeconfig"),
    ("credentialPluginAllowlist", "a kuberc"),
    ("credentialPluginPolicy", "a kuberc"),
    ("crv", "a key set or discovery document of a token issuer"),
    ("current-context", "a kubeconfig"),
    (
        "discoveryURL",
        "the authentication or authorization configuration file",
    ),
    (
        "egressSelectorType",
        "the authentication or authorization configuration file",
    ),
    ("email", "a file with registry credentials"),
    ("f:annotations", "managedFields"),
    ("f:metadata", "managedFields"),
    ("gitVersion", "the server's version"),
    ("in", "a document of OpenAPI"),
    ("info", "a document of OpenAPI"),
    (
        "initiatorname",
        "upstream's field path of iscsi's initiatorName",
    ),
    ("interactiveMode", "a kubeconfig"),
    (
        "issuer",
        "the authentication or authorization configuration file",
    ),
    (
        "jwks_uri",
        "a key set or discovery document of a token issuer",
    ),
    (
        "jwt",
        "the authentication or authorization configuration file",
    ),
    ("keys", "the encryption configuration file"),
    ("kid", "a key set or discovery document of a token issuer"),
    ("kms", "the encryption configuration file"),
    ("kty", "a key set or discovery document of a token issuer"),
    ("kubeConfigFile", "the admission configuration file"),
    (
        "matchConditionSubjectAccessReviewVersion",
        "the authentication or authorization configuration file",
    ),
    ("minor", "the server's version"),
    ("nodeEligible", "the answer of the proxy's health check"),
    ("nodeSwapStatus", "upstream's field path of a node's swap"),
    ("nodev", "a mount option"),
    ("op", "an operation of a JSON patch"),
    ("ordinals.start", "upstream's field path of a StatefulSet"),
    (
        "persistentvolumesource",
        "upstream's field path of a changed source",
    ),
    ("preferences", "a kubeconfig"),
    ("produces", "a document of OpenAPI"),
    ("provideClusterInfo", "a kubeconfig"),
    ("providers", "the encryption configuration file"),
    (
        "requiredValue",
        "the authentication or authorization configuration file",
    ),
    ("responses", "a document of OpenAPI"),
    ("schemas", "a document of OpenAPI"),
    ("serverRelativeURL", "a document of OpenAPI"),
    ("serverVersion", "the versions that kubectl prints"),
    ("ssh-privatekey", "a key of a Secret"),
    (
        "subjectAccessReviewVersion",
        "the authentication or authorization configuration file",
    ),
    (
        "targetportal",
        "upstream's field path of iscsi's targetPortal",
    ),
    (
        "timeout",
        "the authentication or authorization configuration file",
    ),
    (
        "unauthorizedTTL",
        "the authentication or authorization configuration file",
    ),
    (
        "userValidationRules",
        "the authentication or authorization configuration file",
    ),
    (
        "validation",
        "v1beta1 of definitions, as field paths name it",
    ),
    (
        "webhookClientConfig",
        "v1beta1 of definitions, as field paths name it",
    ),
    ("x-kubernetes-group-version-kind", "a document of OpenAPI"),
    ("x-kubernetes-selectable-fields", "a document of OpenAPI"),
    (
        "{topologyKey, whenUnsatisfiable}",
        "upstream's field path of two fields together",
    ),
];

/// One finding for each name that is not in the table.
pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let known = names(&root.join("crates/machinery/src/schema/table"))?;
    let mut findings = Vec::new();
    for reader in READERS {
        for file in sources::files(&root.join("crates").join(reader))? {
            let name = file
                .strip_prefix(root)
                .unwrap_or(&file)
                .display()
                .to_string();
            if !name.ends_with("testing.rs") && !name.ends_with("tests.rs") {
                judge(&name, &fs::read_to_string(&file)?, &known, &mut findings);
            }
        }
    }
    Ok(findings)
}

/// The JSON names of all fields: a line such as ` name 1 string !` declares a field.
fn names(table: &Path) -> Result<HashSet<String>> {
    let mut names: HashSet<String> = OTHERS.iter().map(|(name, _)| (*name).to_owned()).collect();
    for entry in fs::read_dir(table)? {
        let text = fs::read_to_string(entry?.path())?;
        let fields = text.lines().filter_map(|line| line.strip_prefix(' '));
        names.extend(
            fields
                .filter_map(|line| line.split(' ').next())
                .map(str::to_owned),
        );
    }
    Ok(names)
}

fn judge(name: &str, text: &str, known: &HashSet<String>, findings: &mut Vec<String>) {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    for (number, line) in code.lines().enumerate() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        for field in accessed(line).flat_map(|name| unknown(name, known)) {
            findings.push(format!(
                "{name}:{}: no type of the schema table has a field `{field}`",
                number + 1
            ));
        }
    }
}

/// The fields of a name that are not in the table. A path may have several segments, as in
/// `spec.template`.
fn unknown<'a>(name: &'a str, known: &HashSet<String>) -> Vec<&'a str> {
    if known.contains(name) {
        return Vec::new();
    }
    let fields = name.split('.').filter(|field| !known.contains(*field));
    fields.collect()
}

/// The names in `value["name"]`, `get(object, "name")`, `Path::new("name")` and `path.child("name")`.
fn accessed(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices('"').filter_map(|(at, _)| {
        let before = &line[..at];
        let (name, after) = line[at + 1..].split_once('"')?;
        let is_index = after.starts_with(']')
            && before
                .strip_suffix('[')
                .and_then(|before| before.chars().next_back())
                .is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | ')' | ']' | '?'));
        let is_get = after.starts_with(')')
            && before
                .rfind("get(")
                .is_some_and(|start| is_argument(&before[start + 4..]));
        // `Path::new("")` is the object itself.
        let is_path = after.starts_with(')')
            && (before.ends_with(".child(") || before.ends_with("Path::new("))
            && name.contains(char::is_alphabetic);
        // Keys of labels and annotations have a domain prefix.
        (!name.contains('/') && (is_index || is_get || is_path)).then_some(name)
    })
}

/// Whether this is one argument and its separator, as in `get(&object.spec, `.
fn is_argument(text: &str) -> bool {
    text.strip_suffix(", ").is_some_and(|argument| {
        argument
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '&' | '*'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_lookups_and_paths_and_nowhere_else() {
        for (line, names) in [
            (
                r#"let x = &pod["spec"]["nodeName"];"#,
                &["spec", "nodeName"][..],
            ),
            (
                r#"text(&get(object, "metadata")["name"])"#,
                &["metadata", "name"],
            ),
            (
                r#"at.child("ports").index(0).child("name")"#,
                &["ports", "name"],
            ),
            (
                r#"let at = Path::new("spec.template").child("spec.volumes");"#,
                &["spec.template", "spec.volumes"],
            ),
            (r#"short_names: &["po"],"#, &[]),
            (r#"matches!(verb, ["get"])"#, &[]),
            (r#"query.get("verbose")"#, &[]),
        ] {
            assert_eq!(accessed(line).collect::<Vec<_>>(), names, "{line}");
        }
    }

    #[test]
    fn a_typo_is_named_with_its_place() {
        let known = HashSet::from(["spec".to_owned()]);
        let mut findings = Vec::new();
        judge(
            "a.rs",
            "//! P.\nlet x = pod[\"spce\"];\n",
            &known,
            &mut findings,
        );
        assert_eq!(
            findings,
            ["a.rs:2: no type of the schema table has a field `spce`"]
        );
        findings.clear();
        judge("a.rs", "let x = pod[\"spec\"];\n", &known, &mut findings);
        judge("a.rs", "path.child(\"spec.spec\")\n", &known, &mut findings);
        assert!(findings.is_empty());
        judge("a.rs", "path.child(\"spec.spce\")\n", &known, &mut findings);
        assert_eq!(
            findings,
            ["a.rs:1: no type of the schema table has a field `spce`"]
        );
    }
}
