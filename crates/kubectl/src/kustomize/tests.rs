//! Complete kustomizations, from files to objects.

use std::path::Path;

use serde_json::Value;

use super::*;

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn find<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects
        .iter()
        .find(|object| object["kind"] == kind)
        .unwrap()
}

const APP: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: 'reg:5000/web:1', envFrom: [{configMapRef: {name: settings}}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}}
";

#[test]
fn an_overlay_changes_its_base() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    write(root, "base/app.yaml", APP);
    write(
        root,
        "base/kustomization.yaml",
        "resources: [app.yaml]\nconfigMapGenerator:\n- {name: settings, literals: [a=1]}\n",
    );
    write(
        root,
        "prod/kustomization.yaml",
        "\
resources: [../base]
namespace: shop
namePrefix: prod-
labels:
- pairs: {env: prod}
  includeSelectors: true
images:
- {name: 'reg:5000/web', newTag: '2'}
replicas:
- {name: web, count: 3}
patches:
- patch: |
    - {op: add, path: /spec/paused, value: true}
  target: {kind: Deployment}
- patch: |
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: web}
    spec: {template: {spec: {containers: [{name: side, image: side}]}}}
",
    );
    let objects = build(&root.join("prod")).unwrap();
    let kinds: Vec<&str> = objects.iter().map(|o| str_of(&o["kind"])).collect();
    assert_eq!(kinds, ["ConfigMap", "Service", "Deployment"]);
    let deployment = find(&objects, "Deployment");
    assert_eq!(deployment["metadata"]["name"], "prod-web");
    assert_eq!(deployment["metadata"]["namespace"], "shop");
    assert_eq!(deployment["spec"]["replicas"], 3);
    assert_eq!(deployment["spec"]["paused"], true);
    assert_eq!(deployment["spec"]["selector"]["matchLabels"]["env"], "prod");
    let containers = &deployment["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers[0]["name"], "side");
    assert_eq!(containers[1]["image"], "reg:5000/web:2");
    let settings = find(&objects, "ConfigMap")["metadata"]["name"].clone();
    assert!(
        str_of(&settings).starts_with("prod-settings-"),
        "{settings}"
    );
    assert_eq!(
        containers[1]["envFrom"][0]["configMapRef"]["name"],
        settings
    );
    assert_eq!(find(&objects, "Service")["spec"]["selector"]["env"], "prod");
}

#[test]
fn generators_merge_into_those_of_a_base_and_variables_follow_names() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    write(
        root,
        "base/kustomization.yaml",
        "resources: [app.yaml]\nconfigMapGenerator:\n- {name: settings, literals: [a=1, b=2]}\nvars:\n- {name: WEB, objref: {kind: Service, name: web, apiVersion: v1}}\n",
    );
    write(
        root,
        "base/app.yaml",
        &APP.replace("envFrom", "args: ['--to=$(WEB)'], envFrom"),
    );
    write(
        root,
        "kustomization.yaml",
        "resources: [base]\nnameSuffix: -x\nconfigMapGenerator:\n- {name: settings, behavior: merge, literals: [b=3]}\n",
    );
    let objects = build(root).unwrap();
    assert_eq!(
        find(&objects, "ConfigMap")["data"],
        json!({"a": "1", "b": "3"})
    );
    let args = &find(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"];
    assert_eq!(*args, json!(["--to=web-x"]));
}

#[test]
fn components_and_replacements_change_resources() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    write(root, "app.yaml", APP);
    write(
        root,
        "part/kustomization.yaml",
        "kind: Component\nreplacements:\n- source: {kind: Service, name: web}\n  targets:\n  - select: {kind: Deployment}\n    fieldPaths: [metadata.annotations.to/service]\n    options: {create: true}\n",
    );
    write(
        root,
        "kustomization.yaml",
        "resources: [app.yaml]\ncomponents: [part]\nbuildMetadata: [originAnnotations, managedByLabel]\n",
    );
    let objects = build(root).unwrap();
    let metadata = &find(&objects, "Deployment")["metadata"];
    assert_eq!(metadata["annotations"]["to/service"], "web");
    assert_eq!(metadata["annotations"][origin::ORIGIN], "path: app.yaml\n");
    assert_eq!(metadata["labels"][MANAGED_BY], "kustomize-v5.8.1");
}

#[test]
fn transformers_of_files_do_the_same_as_fields() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    write(root, "app.yaml", APP);
    write(
        root,
        "prefix.yaml",
        "apiVersion: builtin\nkind: PrefixTransformer\nmetadata: {name: p}\nprefix: a-\nfieldSpecs: [{path: metadata/name}]\n",
    );
    write(
        root,
        "kustomization.yaml",
        "resources: [app.yaml]\ntransformers:\n- prefix.yaml\n- |\n  apiVersion: builtin\n  kind: LabelTransformer\n  metadata: {name: l}\n  labels: {x: y}\n  fieldSpecs: [{path: metadata/labels, create: true}]\n",
    );
    let objects = build(root).unwrap();
    let metadata = &find(&objects, "Service")["metadata"];
    assert_eq!(*metadata, json!({"labels": {"x": "y"}, "name": "a-web"}));
}

#[test]
fn unknown_fields_and_missing_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    for (name, text) in [("out.yaml", APP), ("k/in.yaml", APP)] {
        write(root, name, text);
    }
    for (text, expected) in [
        (
            "nonsense: []\n",
            "invalid Kustomization: json: unknown field \"nonsense\"",
        ),
        ("kind: Kustomization\n", "kustomization.yaml is empty"),
        ("resources: [none.yaml]\n", "no such file or directory"),
        ("resources: [../out.yaml]\n", "security; file"),
        (
            "resources: [in.yaml, in.yaml]\n",
            "already registered id: Deployment.v1.apps/web.[noNs]",
        ),
        ("resources: [../k]\n", "cycle detected"),
        ("helmCharts: [{name: a}]\n", "helmCharts"),
        (
            "resources: [in.yaml]\ntransformers: ['{apiVersion: me/v1, kind: Mine, metadata: {name: x}}']\n",
            "external plugins disabled; unable to load external plugin 'Mine'",
        ),
        (
            "resources: [in.yaml]\npatches: [{patch: '{apiVersion: v1, kind: Pod, metadata: {name: x}}'}]\n",
            "no resource matches strategic merge patch \"Pod.v1.[noGrp]/x.[noNs]\"",
        ),
    ] {
        write(root, "k/kustomization.yaml", text);
        let error = format!("{:#}", build(&root.join("k")).unwrap_err());
        assert!(error.contains(expected), "{text}: {error}");
    }
    assert!(build(&root.join("none")).is_err());
}

/// `testdata/kustomize` holds kustomizations with the output of upstream's kubectl v1.36.4.
#[test]
fn the_output_is_that_of_upstreams_kubectl_byte_for_byte() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/kustomize");
    for name in [
        "base",
        "metadata",
        "patches",
        "replacements",
        "generators",
        "extended",
    ] {
        let objects = build(&root.join(name)).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        let documents: Vec<String> = objects.iter().map(crate::output::yaml::to_string).collect();
        let expected = std::fs::read_to_string(root.join(name).join("expected.txt")).unwrap();
        assert_eq!(documents.join("---\n"), expected, "{name}");
    }
}
