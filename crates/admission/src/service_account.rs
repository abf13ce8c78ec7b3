//! Sets a pod's service account and, unless disabled, mounts a token for the API server, the
//! cluster's CA and the namespace at the well-known path.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use kinds::tree;
use machinery::json::{Key, json};
use machinery::{Object, Status, Value};

use super::{Attributes, Operation, Plugin};
use crate::{NameSuffixes, RandomNameSuffixes, Stored};

pub(crate) const NAME: &str = "ServiceAccount";

const DEFAULT: &str = "default";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME_PREFIX: &str = "kube-api-access-";
const MIRROR: &str = "kubernetes.io/config.mirror";
const ENFORCE: &str = "kubernetes.io/enforce-mountable-secrets";
/// An hour and seven seconds, which distinguishes these tokens from explicitly requested ones.
const EXPIRATION: i64 = 3607;
/// The default account is created right after its namespace: how often a pod's admission retries.
const ATTEMPTS: usize = 10;
const INTERVAL: Duration = Duration::from_millis(50);

pub(crate) struct ServiceAccount;

#[async_trait]
impl Plugin for ServiceAccount {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create && attributes.is_write_of("", "pods")
            || attributes.is("", "pods") && attributes.subresource == "ephemeralcontainers"
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        let pod = object.filter(|_| attributes.subresource == "ephemeralcontainers");
        let Some(spec) = pod.and_then(|pod| tree::get(pod, "spec").as_object()) else {
            return Ok(());
        };
        let name = tree::text(tree::get(spec, "serviceAccountName"));
        if name.is_empty() {
            return Ok(());
        }
        // Ephemeral containers are restricted by the pod's account like other containers.
        let account = account(attributes, name).await?;
        let debuggers = tree::list(tree::get(spec, "ephemeralContainers"));
        enforce_environment(debuggers, name, account.parsed())
            .map_err(|why| attributes.forbidden(&why))
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: &mut Object) -> Result<(), Status> {
        if !attributes.subresource.is_empty() {
            return Ok(());
        }
        if tree::is_set(&tree::get(object, "metadata")["annotations"][MIRROR]) {
            return mirror(object).map_err(|why| attributes.forbidden(why));
        }
        let spec = tree::child_or_new(object, "spec");
        let name = match tree::text(tree::get(spec, "serviceAccountName")) {
            "" => DEFAULT.to_owned(),
            name => name.to_owned(),
        };
        let account = account(attributes, &name).await?;
        let account = account.parsed();
        apply(spec, &name, account, RandomNameSuffixes.next());
        enforce(spec, &name, account).map_err(|why| attributes.forbidden(&why))
    }
}

async fn account(attributes: &Attributes<'_>, name: &str) -> Result<Arc<Stored>, Status> {
    let (namespace, reader) = (attributes.namespace, attributes.reader);
    for attempt in 0..ATTEMPTS {
        if let Some(found) = reader.get("", "serviceaccounts", namespace, name).await? {
            return Ok(found);
        }
        if name != DEFAULT || attempt + 1 == ATTEMPTS {
            break;
        }
        tokio::time::sleep(INTERVAL).await;
    }
    let complaints = machinery::format::path_segment(name);
    let why = if complaints.is_empty() {
        format!("serviceaccount {name:?} not found")
    } else {
        format!("invalid resource name {name:?}: [{}]", complaints.join(" "))
    };
    let why = format!("error looking up service account {namespace}/{name}: {why}");
    Err(attributes.forbidden(&why))
}

/// A mirror pod may not reference API objects.
fn mirror(pod: &Object) -> Result<(), &'static str> {
    let spec = tree::get(pod, "spec");
    if !tree::text(&spec["serviceAccountName"]).is_empty() {
        return Err("a mirror pod may not reference service accounts");
    }
    if crate::authz::uses(spec)
        .iter()
        .any(|used| used.resource == "secrets")
    {
        return Err("a mirror pod may not reference secrets");
    }
    for volume in tree::list(&spec["volumes"]) {
        let mut sources = tree::list(&volume["projected"]["sources"]).iter();
        if sources.any(|source| tree::is_set(&source["serviceAccountToken"])) {
            return Err("a mirror pod may not use ServiceAccountToken volume projections");
        }
    }
    Ok(())
}

fn apply(spec: &mut Object, name: &str, account: &Object, suffix: String) {
    for field in ["serviceAccountName", "serviceAccount"] {
        spec.insert(field.to_owned(), name.into());
    }
    let automount = [
        tree::get(spec, "automountServiceAccountToken"),
        tree::get(account, "automountServiceAccountToken"),
    ];
    let declined = automount.iter().find_map(|value| value.as_bool()) == Some(false);
    if !declined {
        mount(spec, suffix);
    }
    let secrets = tree::get(account, "imagePullSecrets");
    if tree::list(tree::get(spec, "imagePullSecrets")).is_empty() && !tree::list(secrets).is_empty()
    {
        spec.insert("imagePullSecrets".to_owned(), secrets.clone());
    }
}

/// Mounts the token volume in every container without a mount at its path.
fn mount(spec: &mut Object, suffix: String) {
    let volumes = tree::list(tree::get(spec, "volumes")).iter();
    let existing = volumes.map(|volume| tree::text(&volume["name"]));
    let existing = existing
        .into_iter()
        .find(|name| name.starts_with(VOLUME_PREFIX));
    let (name, made) = match existing {
        Some(name) => (name.to_owned(), true),
        None => (format!("{VOLUME_PREFIX}{suffix}"), false),
    };
    let mut needed = false;
    for containers in ["initContainers", "containers"] {
        for container in tree::each(spec, containers) {
            let mounts = tree::list(tree::get(container, "volumeMounts"));
            if mounts.iter().any(|mount| mount["mountPath"] == MOUNT_PATH) {
                continue;
            }
            let mount = json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH});
            push(container, "volumeMounts", mount);
            needed = true;
        }
    }
    if needed && !made {
        push(spec, "volumes", token_volume(&name));
    }
}

fn push(object: &mut Object, field: &str, item: Value) {
    let slot = object.entry(Key::new(field)).or_insert(Value::Null);
    match slot {
        Value::Array(list) => list.push(item),
        _ => *slot = Value::Array(vec![item]),
    }
}

fn token_volume(name: &str) -> Value {
    json!({
        "name": name,
        "projected": {
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": EXPIRATION, "path": "token"}},
                {"configMap": {
                    "name": "kube-root-ca.crt",
                    "items": [{"key": "ca.crt", "path": "ca.crt"}],
                }},
                {"downwardAPI": {"items": [{
                    "path": "namespace",
                    "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                }]}},
            ],
            "defaultMode": 0o644,
        },
    })
}

/// Whether an account restricts its pods to the secrets it lists.
fn enforces(account: &Object) -> bool {
    let enforced = tree::text(&tree::get(account, "metadata")["annotations"][ENFORCE]);
    matches!(enforced, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

fn lists(account: &Object, field: &str, secret: &str) -> bool {
    let listed = tree::list(tree::get(account, field));
    listed.iter().any(|item| item["name"] == secret)
}

fn refused(what: &str, secret: &str, name: &str) -> String {
    format!(
        "{what} with secret.secretName={secret:?} is not allowed because service account {name} \
         does not reference that secret"
    )
}

fn enforce(spec: &Object, name: &str, account: &Object) -> Result<(), String> {
    if !enforces(account) {
        return Ok(());
    }
    for volume in tree::list(tree::get(spec, "volumes")) {
        let secret = tree::text(&volume["secret"]["secretName"]);
        if !secret.is_empty() && !lists(account, "secrets", secret) {
            return Err(refused("volume", secret, name));
        }
    }
    for containers in ["initContainers", "containers"] {
        enforce_environment(tree::list(tree::get(spec, containers)), name, account)?;
    }
    for reference in tree::list(tree::get(spec, "imagePullSecrets")) {
        let secret = tree::text(&reference["name"]);
        if !lists(account, "imagePullSecrets", secret) {
            return Err(refused("imagePullSecrets", secret, name));
        }
    }
    Ok(())
}

fn enforce_environment(containers: &[Value], name: &str, account: &Object) -> Result<(), String> {
    if !enforces(account) {
        return Ok(());
    }
    for container in containers {
        let env = tree::list(&container["env"]).iter();
        let keys = env.map(|variable| &variable["valueFrom"]["secretKeyRef"]["name"]);
        let from = tree::list(&container["envFrom"]).iter();
        let mut all = keys
            .chain(from.map(|source| &source["secretRef"]["name"]))
            .map(tree::text);
        if let Some(secret) = all.find(|s| !s.is_empty() && !lists(account, "secrets", s)) {
            return Err(refused("environment", secret, name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    fn admitted(spec: Value, account: Value) -> Object {
        let mut spec = object(spec);
        apply(&mut spec, "mine", &object(account), "abcde".to_owned());
        spec
    }

    #[test]
    fn a_pod_gets_its_account_and_a_token_in_every_container() {
        let containers = json!([{"name": "a"}, {"name": "b"}]);
        let spec = admitted(
            json!({"containers": containers, "initContainers": [{"name": "i"}]}),
            json!({}),
        );
        assert_eq!(spec["serviceAccountName"], "mine");
        assert_eq!(spec["serviceAccount"], "mine");
        let mount = json!([{"name": "kube-api-access-abcde", "readOnly": true,
                            "mountPath": MOUNT_PATH}]);
        for container in [
            &spec["containers"][0],
            &spec["containers"][1],
            &spec["initContainers"][0],
        ] {
            assert_eq!(container["volumeMounts"], mount);
        }
        assert_eq!(
            spec["volumes"],
            json!([token_volume("kube-api-access-abcde")])
        );
        let mut again = spec.clone();
        apply(&mut again, "mine", &object(json!({})), "other".to_owned());
        assert_eq!(again, spec, "admitting twice changes nothing");
    }

    #[test]
    fn automount_of_the_pod_overrides_the_service_account() {
        let containers = json!([{"name": "a"}]);
        for (pod, account, mounted) in [
            (json!(null), json!(null), true),
            (json!(null), json!(false), false),
            (json!(true), json!(false), true),
            (json!(false), json!(true), false),
        ] {
            let spec = admitted(
                json!({"containers": containers, "automountServiceAccountToken": pod}),
                json!({"automountServiceAccountToken": account}),
            );
            assert_eq!(spec.contains_key("volumes"), mounted);
        }
    }

    #[test]
    fn a_container_with_something_at_the_path_keeps_it() {
        let own = json!([{"name": "a", "volumeMounts": [{"name": "x", "mountPath": MOUNT_PATH}]}]);
        let spec = admitted(json!({"containers": own}), json!({}));
        assert_eq!(spec["containers"], own);
        assert!(!spec.contains_key("volumes"));
    }

    #[test]
    fn pull_secrets_come_from_the_account_unless_the_pod_has_its_own() {
        let account = json!({"imagePullSecrets": [{"name": "registry"}]});
        let spec = admitted(json!({"containers": []}), account.clone());
        assert_eq!(spec["imagePullSecrets"][0]["name"], "registry");
        let own = json!({"containers": [], "imagePullSecrets": [{"name": "own"}]});
        assert_eq!(
            admitted(own, account)["imagePullSecrets"],
            json!([{"name": "own"}])
        );
    }

    #[test]
    fn mirror_pods_use_no_accounts_and_no_secrets() {
        let pod = |spec: Value| object(json!({ "spec": spec }));
        mirror(&pod(json!({"volumes": [{"hostPath": {"path": "/etc"}}]}))).unwrap();
        mirror(&pod(json!({"serviceAccountName": "x"}))).unwrap_err();
        mirror(&pod(json!({"volumes": [{"secret": {"secretName": "x"}}]}))).unwrap_err();
        let projected = json!({"sources": [{"serviceAccountToken": {"path": "t"}}]});
        mirror(&pod(json!({"volumes": [{"projected": projected}]}))).unwrap_err();
    }

    #[test]
    fn an_account_can_limit_its_pods_to_the_secrets_it_lists() {
        let account = object(json!({
            "metadata": {"annotations": {ENFORCE: "true"}},
            "secrets": [{"name": "allowed"}],
        }));
        let volume = |name: &str| object(json!({"volumes": [{"secret": {"secretName": name}}]}));
        enforce(&volume("allowed"), "mine", &account).unwrap();
        assert!(
            enforce(&volume("other"), "mine", &account)
                .unwrap_err()
                .contains("\"other\"")
        );
        enforce(&volume("other"), "mine", &object(json!({}))).unwrap();
        let env = json!({"name": "a", "envFrom": [{"secretRef": {"name": "other"}}]});
        enforce(&object(json!({"containers": [env]})), "mine", &account).unwrap_err();
    }
}
