//! Kustomizations: resources of other directories and files, changed by what kustomization.yaml says.

mod names;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Map, Value, json};

use crate::{
    api::PatchType,
    commands::split_text,
    glob,
    json::{entries, list, str_of},
    manifest, merge,
};

use names::{MARK, follow_names, original_name, rehash, remember, unhashed};

const NAMES: &[&str] = &["kustomization.yaml", "kustomization.yml", "Kustomization"];
const MAX_DEPTH: usize = 32;

/// Fields that are understood; another one is an error, not silently without effect.
const FIELDS: &[&str] = &[
    "apiVersion",
    "kind",
    "metadata",
    "resources",
    "bases",
    "components",
    "namespace",
    "namePrefix",
    "nameSuffix",
    "commonLabels",
    "labels",
    "commonAnnotations",
    "images",
    "replicas",
    "configMapGenerator",
    "secretGenerator",
    "generatorOptions",
    "patches",
    "patchesStrategicMerge",
    "patchesJson6902",
    "sortOptions",
    "buildMetadata",
];

/// The objects of the kustomization in a directory.
pub fn build(directory: &Path) -> Result<Vec<Value>> {
    let mut objects = build_at(directory, 0)?;
    objects.iter_mut().for_each(clean);
    Ok(objects)
}

/// Removes the marks that references are followed by.
fn clean(object: &mut Value) {
    if let Some(object) = object.as_object_mut() {
        object.remove(MARK);
    }
}

fn build_at(directory: &Path, depth: usize) -> Result<Vec<Value>> {
    if depth > MAX_DEPTH {
        bail!(
            "kustomizations refer to each other without end at {}",
            directory.display()
        );
    }
    let path = NAMES
        .iter()
        .map(|name| directory.join(name))
        .find(|path| path.exists());
    let Some(path) = path else {
        bail!(
            "unable to find one of 'kustomization.yaml', 'kustomization.yml' or 'Kustomization' in directory '{}'",
            directory.display()
        );
    };
    let text = std::fs::read_to_string(&path)?;
    let kustomization: Value =
        serde_saphyr::from_str(&text).with_context(|| path.display().to_string())?;
    for (field, _) in entries(&kustomization) {
        if !FIELDS.contains(&field) {
            bail!(
                "{}: the field {field:?} of kustomizations is not supported",
                path.display()
            );
        }
    }
    let mut objects = Vec::new();
    for resource in list(&kustomization["resources"]).chain(list(&kustomization["bases"])) {
        objects.extend(read(directory, str_of(resource), depth)?);
    }
    let mut build = Build {
        directory: directory.to_owned(),
        kustomization: &kustomization,
        objects,
    };
    build.generate()?;
    build.apply()?;
    for component in list(&kustomization["components"]) {
        let component_directory = directory.join(str_of(component));
        build.objects = component_of(&component_directory, std::mem::take(&mut build.objects))?;
    }
    Ok(build.objects)
}

/// A component changes what is there already.
fn component_of(directory: &Path, objects: Vec<Value>) -> Result<Vec<Value>> {
    let path = NAMES
        .iter()
        .map(|name| directory.join(name))
        .find(|path| path.exists());
    let path =
        path.with_context(|| format!("no kustomization in the component {}", directory.display()))?;
    let kustomization: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path)?)?;
    let mut build = Build {
        directory: directory.to_owned(),
        kustomization: &kustomization,
        objects,
    };
    for resource in list(&kustomization["resources"]) {
        build.objects.extend(read(directory, str_of(resource), 0)?);
    }
    build.generate()?;
    build.apply()?;
    Ok(build.objects)
}

fn read(directory: &Path, name: &str, depth: usize) -> Result<Vec<Value>> {
    if name.contains("://") {
        bail!("resources of other hosts are not fetched: {name}");
    }
    let path = directory.join(name);
    if path.is_dir() {
        return build_at(&path, depth + 1);
    }
    let text = std::fs::read_to_string(&path).with_context(|| {
        format!(
            "accumulating resources from '{name}': {} cannot be read",
            path.display()
        )
    })?;
    manifest::parse(&text, &path.display().to_string())
}

struct Build<'a> {
    directory: PathBuf,
    kustomization: &'a Value,
    objects: Vec<Value>,
}

impl Build<'_> {
    fn generate(&mut self) -> Result<()> {
        for (field, kind) in [
            ("configMapGenerator", "ConfigMap"),
            ("secretGenerator", "Secret"),
        ] {
            for generator in list(&self.kustomization[field]) {
                let object = self.generated(generator, kind)?;
                let same = |known: &&mut Value| {
                    known["kind"] == kind && original_name(known) == str_of(&generator["name"])
                };
                match (
                    str_of(&generator["behavior"]),
                    self.objects.iter_mut().find(same),
                ) {
                    ("" | "create", None) => self.objects.push(object),
                    ("" | "create", Some(_)) => bail!(
                        "{kind} {:?} exists already; say behavior: merge or replace",
                        str_of(&generator["name"])
                    ),
                    ("merge", Some(known)) => {
                        for field in ["data", "binaryData"] {
                            for (key, value) in entries(&object[field]) {
                                known[field][key] = value.clone();
                            }
                        }
                        rehash(known);
                    }
                    ("replace", Some(known)) => *known = object,
                    (behavior, _) => bail!(
                        "{kind} {:?} to {behavior} does not exist",
                        str_of(&generator["name"])
                    ),
                }
            }
        }
        Ok(())
    }

    fn generated(&self, generator: &Value, kind: &str) -> Result<Value> {
        let mut values: Vec<(String, Vec<u8>)> = Vec::new();
        for literal in list(&generator["literals"]).map(str_of) {
            let (key, value) = literal
                .split_once('=')
                .with_context(|| format!("literal {literal:?} must be KEY=VALUE"))?;
            let value = value.trim_matches(|c| c == '"' || c == '\'');
            values.push((key.to_owned(), value.as_bytes().to_vec()));
        }
        for file in list(&generator["files"]).map(str_of) {
            let (key, path) = match file.split_once('=') {
                Some((key, path)) => (key.to_owned(), path),
                None => (
                    Path::new(file)
                        .file_name()
                        .unwrap_or_default()
                        .to_string_lossy()
                        .into_owned(),
                    file,
                ),
            };
            let path = self.directory.join(path);
            values.push((
                key,
                std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?,
            ));
        }
        let env_files = list(&generator["envs"])
            .map(str_of)
            .chain(generator["env"].as_str());
        for file in env_files {
            let text = std::fs::read_to_string(self.directory.join(file))
                .with_context(|| format!("cannot read {file}"))?;
            for line in text
                .lines()
                .map(str::trim)
                .filter(|line| !line.is_empty() && !line.starts_with('#'))
            {
                let (key, value) = line.split_once('=').unwrap_or((line, ""));
                values.push((key.to_owned(), value.as_bytes().to_vec()));
            }
        }
        let mut metadata = json!({"name": str_of(&generator["name"])});
        if let Some(namespace) = generator["namespace"].as_str() {
            metadata["namespace"] = json!(namespace);
        }
        let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": metadata});
        match kind {
            "Secret" => {
                let encode = |(key, bytes): (String, Vec<u8>)| {
                    (key, Value::String(BASE64_STANDARD.encode(bytes)))
                };
                object["data"] = Value::Object(values.into_iter().map(encode).collect());
                object["type"] = json!(generator["type"].as_str().unwrap_or("Opaque"));
            }
            _ => {
                let (data, binary): (Map<String, Value>, Map<String, Value>) = split_text(values);
                if !data.is_empty() {
                    object["data"] = Value::Object(data);
                }
                if !binary.is_empty() {
                    object["binaryData"] = Value::Object(binary);
                }
            }
        }
        self.finish_generated(generator, object)
    }

    /// Options of generators: labels, annotations, immutability, and the hash in the name.
    fn finish_generated(&self, generator: &Value, mut object: Value) -> Result<Value> {
        let name = str_of(&object["metadata"]["name"]).to_owned();
        let options = [
            &self.kustomization["generatorOptions"],
            &generator["options"],
        ];
        let mut hashes = true;
        for options in options {
            for field in ["labels", "annotations"] {
                for (key, value) in entries(&options[field]) {
                    object["metadata"][field][key] = value.clone();
                }
            }
            if options["immutable"] == true {
                object["immutable"] = json!(true);
            }
            if let Some(disabled) = options["disableNameSuffixHash"].as_bool() {
                hashes = !disabled;
            }
        }
        object[MARK] = json!({"names": [name], "hashed": hashes});
        if hashes {
            rehash(&mut object);
        }
        Ok(object)
    }

    fn apply(&mut self) -> Result<()> {
        self.patch()?;
        self.set_namespace();
        self.rename();
        self.label();
        self.annotate();
        self.set_images();
        self.set_replicas()?;
        follow_names(&mut self.objects);
        Ok(())
    }

    fn patch(&mut self) -> Result<()> {
        let mut patches: Vec<(Value, Option<Value>)> = Vec::new();
        for patch in list(&self.kustomization["patchesStrategicMerge"]) {
            let text = self.text_of(str_of(patch))?;
            patches.extend(
                manifest::documents(&text, "a patch")?
                    .into_iter()
                    .map(|patch| (patch, None)),
            );
        }
        for patch in
            list(&self.kustomization["patchesJson6902"]).chain(list(&self.kustomization["patches"]))
        {
            let text = match patch["patch"].as_str() {
                Some(text) => text.to_owned(),
                None => self.text_of(str_of(&patch["path"]))?,
            };
            let target = patch.get("target").cloned();
            patches.extend(
                manifest::documents(&text, "a patch")?
                    .into_iter()
                    .map(|patch| (patch, target.clone())),
            );
        }
        for (patch, target) in patches {
            let mut found = false;
            let mut kept = Vec::new();
            for object in std::mem::take(&mut self.objects) {
                let is_meant = match &target {
                    Some(target) => is_target(&object, target)?,
                    None => is_same(&object, &patch),
                };
                if !is_meant {
                    kept.push(object);
                    continue;
                }
                found = true;
                if patch["$patch"] == "delete" {
                    continue;
                }
                kept.push(patched(&object, &patch)?);
            }
            self.objects = kept;
            if !found && target.is_none() {
                bail!(
                    "no matches for the patch of {} {:?}",
                    str_of(&patch["kind"]),
                    str_of(&patch["metadata"]["name"])
                );
            }
        }
        Ok(())
    }

    /// A file's text, or the text itself when it has many lines.
    fn text_of(&self, place: &str) -> Result<String> {
        if place.contains('\n') {
            return Ok(place.to_owned());
        }
        let path = self.directory.join(place);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    fn set_namespace(&mut self) {
        let Some(namespace) = self.kustomization["namespace"].as_str() else {
            return;
        };
        for object in &mut self.objects {
            let kind = str_of(&object["kind"]).to_owned();
            if kind == "Namespace" {
                continue;
            }
            if ["RoleBinding", "ClusterRoleBinding"].contains(&kind.as_str()) {
                for subject in object
                    .pointer_mut("/subjects")
                    .and_then(Value::as_array_mut)
                    .into_iter()
                    .flatten()
                {
                    if subject["kind"] == "ServiceAccount"
                        && (subject["name"] == "default" || !subject["namespace"].is_null())
                    {
                        subject["namespace"] = json!(namespace);
                    }
                }
            }
            if is_namespaced(&kind) {
                object["metadata"]["namespace"] = json!(namespace);
            }
        }
    }

    fn rename(&mut self) {
        let prefix = str_of(&self.kustomization["namePrefix"]).to_owned();
        let suffix = str_of(&self.kustomization["nameSuffix"]).to_owned();
        if prefix.is_empty() && suffix.is_empty() {
            return;
        }
        for object in &mut self.objects {
            if ["Namespace", "CustomResourceDefinition", "APIService"]
                .contains(&str_of(&object["kind"]))
            {
                continue;
            }
            let name = str_of(&object["metadata"]["name"]).to_owned();
            remember(object, &name);
            let base = unhashed(object, &name);
            object["metadata"]["name"] = json!(format!("{prefix}{base}{suffix}"));
            rehash(object);
        }
    }

    fn label(&mut self) {
        let mut sets: Vec<(Value, bool, bool)> =
            vec![(self.kustomization["commonLabels"].clone(), true, true)];
        for labels in list(&self.kustomization["labels"]) {
            let selectors = labels["includeSelectors"] == true;
            sets.push((
                labels["pairs"].clone(),
                selectors,
                selectors || labels["includeTemplates"] == true,
            ));
        }
        for (labels, selectors, templates) in sets {
            for object in &mut self.objects {
                add_labels(object, &labels, selectors, templates);
            }
        }
    }

    fn annotate(&mut self) {
        let annotations = self.kustomization["commonAnnotations"].clone();
        for object in &mut self.objects {
            for (key, value) in entries(&annotations) {
                object["metadata"]["annotations"][key] = value.clone();
                if object["spec"]["template"].is_object() {
                    object["spec"]["template"]["metadata"]["annotations"][key] = value.clone();
                }
            }
        }
    }

    fn set_images(&mut self) {
        for image in list(&self.kustomization["images"]) {
            for object in &mut self.objects {
                each_image(object, &mut |text| new_image(text, image));
            }
        }
    }

    fn set_replicas(&mut self) -> Result<()> {
        for replicas in list(&self.kustomization["replicas"]) {
            let name = str_of(&replicas["name"]);
            let mut found = false;
            for object in &mut self.objects {
                let is_scalable = [
                    "Deployment",
                    "ReplicaSet",
                    "StatefulSet",
                    "ReplicationController",
                ]
                .contains(&str_of(&object["kind"]));
                if is_scalable
                    && (original_name(object) == name || object["metadata"]["name"] == name)
                {
                    object["spec"]["replicas"] = replicas["count"].clone();
                    found = true;
                }
            }
            if !found {
                bail!(
                    "resource with name {name} does not match a config with the following GVK to change its replicas"
                );
            }
        }
        Ok(())
    }
}

fn is_namespaced(kind: &str) -> bool {
    const CLUSTER: &[&str] = &[
        "Namespace",
        "Node",
        "PersistentVolume",
        "ClusterRole",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
        "StorageClass",
        "PriorityClass",
        "IngressClass",
        "RuntimeClass",
        "APIService",
        "ValidatingWebhookConfiguration",
        "MutatingWebhookConfiguration",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "CSIDriver",
        "CSINode",
        "VolumeAttachment",
        "CertificateSigningRequest",
        "FlowSchema",
        "PriorityLevelConfiguration",
    ];
    !CLUSTER.contains(&kind)
}

fn is_same(object: &Value, patch: &Value) -> bool {
    let name = str_of(&patch["metadata"]["name"]);
    object["kind"] == patch["kind"]
        && object["apiVersion"] == patch["apiVersion"]
        && (object["metadata"]["name"] == name || original_name(object) == name)
}

fn is_target(object: &Value, target: &Value) -> Result<bool> {
    let version = str_of(&object["apiVersion"]);
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let fits = |field: &str, text: &str| {
        target[field]
            .as_str()
            .is_none_or(|pattern| matches(pattern, text))
    };
    let name_fits =
        fits("name", original_name(object)) || fits("name", str_of(&object["metadata"]["name"]));
    let labels_fit = match target["labelSelector"].as_str() {
        Some(selector) => crate::json::selects(&crate::json::selector(selector)?, object),
        None => true,
    };
    Ok(fits("kind", str_of(&object["kind"]))
        && fits("group", group)
        && fits("version", version)
        && fits("namespace", str_of(&object["metadata"]["namespace"]))
        && name_fits
        && labels_fit)
}

/// Names in targets are regular expressions of the whole name.
fn matches(pattern: &str, text: &str) -> bool {
    match regex::Regex::new(&format!("^(?:{pattern})$")) {
        Ok(regex) => regex.is_match(text),
        Err(_) => glob::matches(pattern, text),
    }
}

fn patched(object: &Value, patch: &Value) -> Result<Value> {
    let mark = object[MARK].clone();
    let mut bare = object.clone();
    clean(&mut bare);
    let mut result = match patch {
        Value::Array(_) => merge::apply(&bare, PatchType::Json, patch)?,
        _ => {
            let mut patch = patch.clone();
            // The patch names its object; that is no change.
            if let Some(metadata) = patch
                .pointer_mut("/metadata")
                .and_then(Value::as_object_mut)
            {
                metadata.remove("name");
            }
            merge::apply(&bare, PatchType::Strategic, &patch)?
        }
    };
    if !mark.is_null() {
        result[MARK] = mark;
    }
    Ok(result)
}

fn add_labels(object: &mut Value, labels: &Value, selectors: bool, templates: bool) {
    for (key, value) in entries(labels) {
        object["metadata"]["labels"][key] = value.clone();
        let kind = str_of(&object["kind"]).to_owned();
        if templates && object["spec"]["template"].is_object() && kind != "PodTemplate" {
            object["spec"]["template"]["metadata"]["labels"][key] = value.clone();
        }
        if templates && object["spec"]["jobTemplate"].is_object() {
            object["spec"]["jobTemplate"]["metadata"]["labels"][key] = value.clone();
            object["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"][key] =
                value.clone();
        }
        if !selectors {
            continue;
        }
        match kind.as_str() {
            "Service" | "ReplicationController" if object["spec"]["selector"].is_object() => {
                object["spec"]["selector"][key] = value.clone();
            }
            "Deployment" | "ReplicaSet" | "DaemonSet" | "StatefulSet" => {
                object["spec"]["selector"]["matchLabels"][key] = value.clone();
            }
            "NetworkPolicy" if object["spec"]["podSelector"]["matchLabels"].is_object() => {
                object["spec"]["podSelector"]["matchLabels"][key] = value.clone();
            }
            "PodDisruptionBudget" if object["spec"]["selector"]["matchLabels"].is_object() => {
                object["spec"]["selector"]["matchLabels"][key] = value.clone();
            }
            _ => {}
        }
    }
}

/// Calls with the image of every container, wherever it stands in the object.
fn each_image(value: &mut Value, with: &mut impl FnMut(&str) -> Option<String>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                if key == "containers" || key == "initContainers" {
                    for container in inner.as_array_mut().into_iter().flatten() {
                        if let Some(image) = container["image"].as_str().and_then(&mut *with) {
                            container["image"] = json!(image);
                        }
                    }
                } else {
                    each_image(inner, with);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| each_image(item, with)),
        _ => {}
    }
}

fn new_image(text: &str, image: &Value) -> Option<String> {
    let (name, rest) = match text.split_once('@') {
        Some((name, digest)) => (name, format!("@{digest}")),
        None => match text.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')) {
            Some((name, tag)) => (name, format!(":{tag}")),
            None => (text, String::new()),
        },
    };
    let bare = name
        .rsplit_once(':')
        .filter(|(_, tag)| !tag.contains('/'))
        .map_or(name, |(bare, _)| bare);
    if bare != str_of(&image["name"]) {
        return None;
    }
    let name = image["newName"].as_str().unwrap_or(bare);
    let tag = |value: &Value| {
        value
            .as_str()
            .map(ToOwned::to_owned)
            .or_else(|| value.as_i64().map(|n| n.to_string()))
    };
    Some(match (tag(&image["digest"]), tag(&image["newTag"])) {
        (Some(digest), _) => format!("{name}@{digest}"),
        (None, Some(tag)) => format!("{name}:{tag}"),
        (None, None) => format!("{name}{rest}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, name: &str, text: &str) {
        let path = directory.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn an_overlay_changes_its_base() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        write(
            root,
            "base/kustomization.yaml",
            "resources: [app.yaml]\nconfigMapGenerator:\n- {name: settings, literals: [a=1]}\n",
        );
        write(
            root,
            "base/app.yaml",
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}}\n    spec:\n      containers:\n      - {name: web, image: 'reg:5000/web:1', envFrom: [{configMapRef: {name: settings}}]}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {selector: {app: web}}\n",
        );
        write(
            root,
            "prod/kustomization.yaml",
            "resources: [../base]\nnamespace: shop\nnamePrefix: prod-\ncommonLabels: {env: prod}\nimages:\n- {name: 'reg:5000/web', newTag: '2'}\nreplicas:\n- {name: web, count: 3}\npatches:\n- patch: |\n    - {op: add, path: /spec/paused, value: true}\n  target: {kind: Deployment}\n- patch: |\n    apiVersion: apps/v1\n    kind: Deployment\n    metadata: {name: web}\n    spec: {template: {spec: {containers: [{name: side, image: side}]}}}\n",
        );
        let objects = build(&root.join("prod")).unwrap();
        let find = |kind: &str| {
            objects
                .iter()
                .find(|object| object["kind"] == kind)
                .unwrap()
        };
        let deployment = find("Deployment");
        assert_eq!(deployment["metadata"]["name"], "prod-web");
        assert_eq!(deployment["metadata"]["namespace"], "shop");
        assert_eq!(deployment["spec"]["replicas"], 3);
        assert_eq!(deployment["spec"]["paused"], true);
        assert_eq!(deployment["spec"]["selector"]["matchLabels"]["env"], "prod");
        let containers = deployment["spec"]["template"]["spec"]["containers"]
            .as_array()
            .unwrap();
        assert_eq!(containers.len(), 2);
        let web = containers
            .iter()
            .find(|container| container["name"] == "web")
            .unwrap();
        assert_eq!(web["image"], "reg:5000/web:2");
        let settings = find("ConfigMap")["metadata"]["name"].as_str().unwrap();
        assert!(settings.starts_with("prod-settings-"), "{settings}");
        assert_eq!(web["envFrom"][0]["configMapRef"]["name"], settings);
        assert_eq!(find("Service")["spec"]["selector"]["env"], "prod");
        assert!(objects.iter().all(|object| object.get(MARK).is_none()));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        write(
            directory.path(),
            "kustomization.yaml",
            "resources: []\nhelmCharts: []\n",
        );
        assert!(
            build(directory.path())
                .unwrap_err()
                .to_string()
                .contains("helmCharts")
        );
        assert!(build(&directory.path().join("none")).is_err());
    }
}
