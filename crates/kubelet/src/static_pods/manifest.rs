//! Reads a static pod manifest, and validates what becomes a path on the node, since no API server
//! has validated it. Other errors show when the mirror pod is created.

use std::{collections::BTreeMap, fs::File, io::Read, path::Path};

use client::FromJson as _;
use k8s_openapi::api::core::v1::{Container, Pod, Toleration, VolumeProjection};
use machinery::{
    Value,
    decode::{self, Format},
};

use crate::pod::spec::{self, HASH_ANNOTATION, SOURCE_ANNOTATION};

/// The maximum size of a manifest.
const MAX_BYTES: u64 = 10 << 20;

/// The pods of a file.
pub(super) fn read(file: &Path, node: &str) -> Result<Vec<Pod>, String> {
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(|error| error.to_string())?;
    let limited = opened.take(MAX_BYTES + 1).read_to_end(&mut bytes);
    limited.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("larger than {MAX_BYTES} bytes"));
    }
    parse(&bytes, file, node)
}

fn parse(bytes: &[u8], file: &Path, node: &str) -> Result<Vec<Pod>, String> {
    // JSON is a subset of YAML.
    let (tree, _) = decode::tree(Format::Yaml, bytes)?;
    let text = |name: &str| tree[name].as_str().unwrap_or_default();
    let trees = match (text("apiVersion"), text("kind"), &tree["items"]) {
        ("v1", "Pod", _) => vec![tree],
        ("v1", "PodList", Value::Array(items)) => items.clone(),
        (version, kind, _) => return Err(format!("not a Pod of v1, but {kind:?} of {version:?}")),
    };
    let mut pods = Vec::new();
    for (place, tree) in trees.iter().enumerate() {
        let seed = format!("{node}\0{}\0{place}\0", file.display());
        pods.push(prepare(tree, seed.as_bytes(), bytes, node)?);
    }
    Ok(pods)
}

/// Adds uid, node name and tolerations to a static pod, then validates it.
fn prepare(tree: &Value, seed: &[u8], bytes: &[u8], node: &str) -> Result<Pod, String> {
    let text = serde_json::to_string(tree).map_err(|error| error.to_string())?;
    let mut pod: Pod = Pod::from_json(&text).map_err(|error| error.to_string())?;
    complete(&mut pod, seed, bytes, node)?;
    if let Some(problem) = problem(&pod) {
        return Err(format!("invalid pod: {problem}"));
    }
    match reference(&pod) {
        Some(resource) => Err(format!("static pods may not reference {resource}")),
        None => Ok(pod),
    }
}

/// The first name or path that could escape its directory.
fn problem(pod: &Pod) -> Option<String> {
    let spec = spec::spec(pod);
    let mut names = vec![
        ("metadata.name".to_owned(), spec::name(pod), 253),
        ("metadata.namespace".to_owned(), spec::namespace(pod), 63),
    ];
    let containers = spec.containers.iter().enumerate();
    let containers = containers.map(|(at, c)| (format!("spec.containers[{at}]"), c));
    let init = spec.init_containers.iter().flatten().enumerate();
    let init = init.map(|(at, c)| (format!("spec.initContainers[{at}]"), c));
    let all: Vec<(String, &Container)> = containers.chain(init).collect();
    for (path, container) in &all {
        names.push((format!("{path}.name"), &container.name, 63));
        if container.image.as_deref().unwrap_or_default().is_empty() {
            return Some(format!("{path}.image: Required value"));
        }
    }
    for (at, volume) in spec.volumes.iter().flatten().enumerate() {
        names.push((format!("spec.volumes[{at}].name"), &volume.name, 63));
    }
    let is_bad = |(_, name, longest): &&(String, &str, usize)| !is_name(name, *longest);
    if let Some((path, name, _)) = names.iter().find(is_bad) {
        return Some(format!(
            "{path}: Invalid value: {name:?}: must be a DNS name in lower case"
        ));
    }
    all.iter().find_map(|(path, container)| {
        let mounts = container.volume_mounts.iter().flatten().enumerate();
        let mut bad = mounts.filter(|(_, mount)| {
            let path = mount.sub_path.as_deref().unwrap_or_default();
            path.starts_with('/') || path.split('/').any(|part| part == "..")
        });
        let (at, _) = bad.next()?;
        Some(format!(
            "{path}.volumeMounts[{at}].subPath: must be a relative path without '..'"
        ))
    })
}

fn is_name(name: &str, longest: usize) -> bool {
    let is_end = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.iter().all(|byte| is_end(*byte) || *byte == b'-')
            && bytes.first().is_some_and(|byte| is_end(*byte))
            && bytes.last().is_some_and(|byte| is_end(*byte))
    };
    name.len() <= longest && name.split('.').all(is_label)
}

fn complete(pod: &mut Pod, seed: &[u8], bytes: &[u8], node: &str) -> Result<(), String> {
    let name = pod.metadata.name.clone().filter(|name| !name.is_empty());
    let name = name.ok_or("invalid pod: name is needed for the pod")?;
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node.to_owned());
    let tolerations = spec.tolerations.get_or_insert_default();
    let all = Toleration {
        operator: Some("Exists".into()),
        effect: Some("NoExecute".into()),
        ..Default::default()
    };
    if !tolerations.contains(&all) {
        tolerations.push(all);
    }
    pod.metadata.name = Some(format!("{name}-{}", node.to_lowercase()));
    let namespace = &mut pod.metadata.namespace;
    if namespace.as_deref().unwrap_or_default().is_empty() {
        *namespace = Some("default".to_owned());
    }
    let given = pod.metadata.uid.take().filter(|uid| !uid.is_empty());
    let uid = match given {
        // The uid becomes part of directory and cgroup names.
        Some(uid) if uid.len() > 128 || !uid.bytes().all(is_plain) => {
            return Err(format!("invalid pod: metadata.uid: {uid:?} is not a uid"));
        }
        Some(uid) => uid,
        None => identity(seed, bytes),
    };
    pod.metadata.uid = Some(uid.clone());
    let annotations = pod.metadata.annotations.get_or_insert_with(BTreeMap::new);
    annotations.insert(SOURCE_ANNOTATION.into(), "file".into());
    annotations.insert(HASH_ANNOTATION.into(), uid);
    Ok(())
}

const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

/// 32 hex digits that depend on the manifest, so that a changed file is another pod.
fn identity(seed: &[u8], bytes: &[u8]) -> String {
    let fnv = |start: u64| {
        let all = seed.iter().chain(bytes);
        all.fold(start, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    };
    format!(
        "{:016x}{:016x}",
        fnv(0xcbf2_9ce4_8422_2325),
        fnv(0x8422_2325_cbf2_9ce4)
    )
}

/// The first reference to an API object: a static pod may have none.
fn reference(pod: &Pod) -> Option<&'static str> {
    let spec = spec::spec(pod);
    let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    if is_set(&spec.service_account_name) {
        return Some("serviceaccounts");
    }
    if spec.image_pull_secrets.iter().flatten().count() > 0 {
        return Some("secrets");
    }
    let containers = spec.containers.iter();
    let containers = containers.chain(spec.init_containers.iter().flatten());
    if let Some(found) = containers.filter_map(of_environment).next() {
        return Some(found);
    }
    if spec.resource_claims.iter().flatten().count() > 0 {
        return Some("resourceclaims");
    }
    spec.volumes.iter().flatten().find_map(|volume| {
        let sources = volume.projected.as_ref().and_then(|p| p.sources.as_ref());
        [
            (
                volume.config_map.is_some(),
                "configmaps (via configmap volumes)",
            ),
            (volume.secret.is_some(), "secrets (via secret volumes)"),
            (volume.csi.is_some(), "csidrivers (via CSI volumes)"),
            (
                volume.glusterfs.is_some(),
                "endpoints (via glusterFS volumes)",
            ),
            (
                volume.persistent_volume_claim.is_some(),
                "persistentvolumeclaims",
            ),
            (
                volume.ephemeral.is_some(),
                "persistentvolumeclaims (via ephemeral volumes)",
            ),
            (
                volume.azure_file.is_some(),
                "secrets (via azureFile volumes)",
            ),
        ]
        .into_iter()
        .find_map(|(is_there, name)| is_there.then_some(name))
        .or_else(|| sources.into_iter().flatten().find_map(of_projection))
    })
}

fn of_projection(source: &VolumeProjection) -> Option<&'static str> {
    [
        (
            source.config_map.is_some(),
            "configmaps (via projected volumes)",
        ),
        (source.secret.is_some(), "secrets (via projected volumes)"),
        (
            source.service_account_token.is_some(),
            "serviceaccounts (via projected volumes)",
        ),
        (source.cluster_trust_bundle.is_some(), "clustertrustbundles"),
        (source.pod_certificate.is_some(), "podcertificates"),
    ]
    .into_iter()
    .find_map(|(is_there, name)| is_there.then_some(name))
}

fn of_environment(container: &Container) -> Option<&'static str> {
    let values = container.env.iter().flatten();
    let values = values.filter_map(|variable| variable.value_from.as_ref());
    let mut values = values.filter_map(|from| match () {
        () if from.secret_key_ref.is_some() => Some("secrets"),
        () if from.config_map_key_ref.is_some() => Some("configmaps"),
        () => None,
    });
    let whole = container.env_from.iter().flatten();
    let mut whole = whole.filter_map(|from| match () {
        () if from.secret_ref.is_some() => Some("secrets"),
        () if from.config_map_ref.is_some() => Some("configmaps"),
        () => None,
    });
    values.next().or_else(|| whole.next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods_in(text: &str) -> Result<Vec<Pod>, String> {
        parse(text.as_bytes(), Path::new("/m/web.yaml"), "node1")
    }

    const GOOD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: b}]}\n";

    #[test]
    fn a_static_pod_gets_an_identity_that_changes_with_its_manifest() {
        let one = |text: &str| pods_in(text).unwrap().remove(0);
        let pod = one(GOOD);
        assert_eq!(spec::name(&pod), "web-node1");
        assert_eq!(spec::namespace(&pod), "default");
        assert!(spec::is_static(&pod) && spec::uid(&pod).len() == 32);
        assert_eq!(spec::uid(&pod), spec::uid(&one(GOOD)));
        assert_ne!(spec::uid(&pod), spec::uid(&one(&GOOD.replace("b}", "c}"))));
    }

    #[test]
    fn a_list_describes_several_pods() {
        let item = |name: &str| {
            format!("{{metadata: {{name: {name}}}, spec: {{containers: [{{name: a, image: b}}]}}}}")
        };
        let list = format!(
            "apiVersion: v1\nkind: PodList\nitems: [{}, {}]\n",
            item("one"),
            item("two")
        );
        let pods = pods_in(&list).unwrap();
        let names: Vec<&str> = pods.iter().map(spec::name).collect();
        assert_eq!(names, ["one-node1", "two-node1"]);
        assert_ne!(spec::uid(&pods[0]), spec::uid(&pods[1]));
    }

    #[test]
    fn names_that_would_leave_the_pod_directory_are_refused() {
        for (good, bad, field) in [
            ("name: web", "name: ../../etc", "metadata.name"),
            (
                "name: web",
                "name: web, uid: ../../../../etc",
                "metadata.uid",
            ),
            ("name: web", "name: web, uid: \"a/b\"", "metadata.uid"),
            (
                "name: web",
                "name: web, namespace: ../kube-system",
                "metadata.namespace",
            ),
            ("name: a,", "name: ../../../etc,", "spec.containers[0].name"),
            (
                "name: a,",
                "name: a, volumeMounts: [{name: v, mountPath: /x, subPath: ../../etc}],",
                "spec.containers[0].volumeMounts[0].subPath",
            ),
            (
                "spec: {",
                "spec: {volumes: [{name: ../../x, emptyDir: {}}], ",
                "spec.volumes[0].name",
            ),
        ] {
            let refused = pods_in(&GOOD.replace(good, bad)).expect_err(bad);
            let expected = refused.starts_with("invalid pod: ") && refused.contains(field);
            assert!(expected, "{bad}: {refused}");
        }
    }

    #[test]
    fn manifests_of_other_kinds_are_refused() {
        for (text, expected) in [
            ("", "not a Pod"),
            ("a: [", ""),
            (
                "apiVersion: v1\nkind: Secret\nmetadata: {name: x}\n",
                "not a Pod",
            ),
            ("apiVersion: v1\nkind: PodList\nitems: 5\n", "not a Pod"),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {}\n",
                "name is needed",
            ),
            ("apiVersion: v1\nkind: Pod\nmetadata: 7\n", ""),
            (&GOOD.replace(", image: b", ""), "image"),
        ] {
            let refused = pods_in(text).expect_err(text);
            assert!(refused.contains(expected), "{text}: {refused}");
        }
    }

    #[test]
    fn static_pods_may_not_refer_to_api_objects() {
        for (good, more, expected) in [
            (
                "spec: {",
                "spec: {serviceAccountName: x, ",
                "serviceaccounts",
            ),
            (
                "image: b",
                "image: b, env: [{name: X, valueFrom: {secretKeyRef: {name: s, key: k}}}]",
                "secrets",
            ),
            (
                "image: b",
                "image: b, envFrom: [{configMapRef: {name: s}}]",
                "configmaps",
            ),
            (
                "spec: {",
                "spec: {volumes: [{name: v, secret: {secretName: s}}], ",
                "secrets (via secret volumes)",
            ),
            (
                "spec: {",
                "spec: {volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}], ",
                "serviceaccounts (via projected volumes)",
            ),
        ] {
            let refused = pods_in(&GOOD.replace(good, more)).expect_err(more);
            let expected = format!("static pods may not reference {expected}");
            assert_eq!(refused, expected, "{more}");
        }
        let fine = GOOD.replace("spec: {", "spec: {volumes: [{name: v, emptyDir: {}}], ");
        assert!(pods_in(&fine).is_ok());
    }
}
