//! Authorization within ResourceClaims: admin access to devices, allocation, and device status. It
//! depends on the claim's namespace and on permissions of their own (`resourceclaims/binding`,
//! `resourceclaims/driver`).

use kinds::tree::{get, is_set, list, same, text};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};
use std::collections::{BTreeMap, BTreeSet};

use crate::{User, write::Write};
use auth::authz::{self, Decision, forbidden};

const ADMIN_LABEL: &str = "resource.kubernetes.io/admin-access";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// Errors for what the writer of an object with devices is not allowed. Other kinds have no errors.
pub(crate) async fn authorize(write: &Write, object: &Object, old: Option<&Object>) -> Errors {
    let mut errors = Errors::new();
    if write.internal {
        return errors;
    }
    let subresource = write.subresource();
    let server_side = write.resource.kind.server_side();
    if let Some(path) = (server_side.admin_access)(object, old, subresource) {
        check_namespace(write, &path.as_path(), &mut errors).await;
    }
    if let (true, Some("status"), Some(old)) = (server_side.guards_devices, subresource, old) {
        let (status, was) = (get(object, "status"), get(old, "status"));
        check_binding(write, status, was, &mut errors).await;
        if is_set(&status["allocation"]) {
            check_drivers(write, status, was, &mut errors).await;
        }
    }
    errors
}

async fn check_namespace(write: &Write, path: &Path<'_>, errors: &mut Errors) {
    let found = write
        .path
        .reader
        .get("", "namespaces", "", &write.namespace)
        .await;
    let why = match found {
        Ok(Some(namespace)) => {
            let namespace = namespace.parse();
            if text(&get(&namespace, "metadata")["labels"][ADMIN_LABEL]) != "true" {
                let detail = format!(
                    "admin access to devices requires the `{ADMIN_LABEL}: true` label on the containing namespace"
                );
                errors.push(Error::forbidden(path, detail));
            }
            return;
        }
        Ok(None) => format!("namespaces {:?} not found", write.namespace),
        Err(status) => status.message,
    };
    let detail = format!("could not retrieve namespace to verify admin access: {why}");
    errors.push(Error::internal(path, detail));
}

async fn check_binding(write: &Write, status: &Value, was: &Value, errors: &mut Errors) {
    if ["allocation", "reservedFor"]
        .iter()
        .all(|field| same(&status[*field], &was[*field]))
    {
        return;
    }
    if let Err(why) = check_permission(write, write.verb, "binding", "", "").await {
        let verb = write.verb;
        let detail = format!(
            "changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", verb=\"{verb}\" permission: {why}"
        );
        let path = Path::new("status.allocation");
        errors.push(Error::forbidden(&path, detail));
    }
}

async fn check_drivers(write: &Write, status: &Value, was: &Value, errors: &mut Errors) {
    let drivers = changed_drivers(&status["devices"], &was["devices"]);
    if drivers.is_empty() {
        return;
    }
    let mut verbs = vec![format!("arbitrary-node:{}", write.verb)];
    if runs_on(&write.user, node_of(&status["allocation"])) {
        verbs.insert(0, format!("associated-node:{}", write.verb));
    }
    for driver in drivers {
        // Any of the verbs suffices; the first refusal is reported.
        let mut refused = None;
        let mut allowed = false;
        for verb in &verbs {
            match check_permission(write, verb, "driver", &write.namespace, driver).await {
                Ok(()) => {
                    allowed = true;
                    break;
                }
                Err(why) => drop(refused.get_or_insert(why)),
            }
        }
        if let Some(why) = refused.filter(|_| !allowed) {
            let detail = format!(
                "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{}]\" permission: {why}",
                verbs.join(" ")
            );
            let path = Path::new("status.devices");
            errors.push(Error::forbidden(&path, detail));
        }
    }
}

/// Drivers whose devices were added, removed or changed.
fn changed_drivers<'a>(devices: &'a Value, was: &'a Value) -> BTreeSet<&'a str> {
    let keyed = |devices: &'a Value| -> BTreeMap<[&'a str; 4], &'a Value> {
        let key =
            |of: &'a Value| ["driver", "pool", "device", "shareID"].map(|part| text(&of[part]));
        list(devices)
            .iter()
            .map(|device| (key(device), device))
            .collect()
    };
    let (now, before) = (keyed(devices), keyed(was));
    let came = now
        .iter()
        .filter(|(key, device)| before.get(*key).is_none_or(|old| !same(device, old)));
    let gone = before.iter().filter(|(key, _)| !now.contains_key(*key));
    came.chain(gone).map(|(key, _)| key[0]).collect()
}

/// The one node that an allocation is for.
fn node_of(allocation: &Value) -> Option<&str> {
    let [term] = list(&allocation["nodeSelector"]["nodeSelectorTerms"]) else {
        return None;
    };
    let ([], [field]) = (list(&term["matchExpressions"]), list(&term["matchFields"])) else {
        return None;
    };
    match list(&field["values"]) {
        [node] if field["key"] == "metadata.name" && field["operator"] == "In" => node.as_str(),
        _ => None,
    }
}

/// Whether the user is the service account of a pod on this node.
fn runs_on(user: &User, node: Option<&str>) -> bool {
    let names = user.extra.get(NODE_NAME).map(Vec::as_slice);
    user.name.starts_with("system:serviceaccount:")
        && matches!((node, names), (Some(node), Some([name])) if node == name)
}

async fn check_permission(
    write: &Write,
    verb: &str,
    subresource: &str,
    namespace: &str,
    name: &str,
) -> Result<(), String> {
    let attributes = authz::Attributes {
        user: &write.user,
        verb,
        is_resource: true,
        group: &write.resource.group,
        version: "v1",
        resource: &write.resource.plural,
        subresource,
        namespace,
        name,
        path: "",
        field_selector: "",
        label_selector: "",
    };
    match authz::decide(&write.path.authorizers, &attributes).await {
        Decision::Allow => Ok(()),
        Decision::Deny(reason) | Decision::NoOpinion(reason) => {
            Err(forbidden(&attributes, &reason).message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinery::json::json;

    #[test]
    fn drivers_are_asked_about_their_changed_devices_only() {
        let device = |driver: &str, device: &str, data: i64| json!({"driver": driver, "pool": "p", "device": device, "data": {"x": data}});
        let was = json!([
            device("a", "1", 0),
            device("b", "1", 0),
            device("c", "1", 0)
        ]);
        let now = json!([
            device("a", "1", 0),
            device("b", "1", 1),
            device("d", "1", 0)
        ]);
        let changed: Vec<_> = changed_drivers(&now, &was).into_iter().collect();
        assert_eq!(changed, ["b", "c", "d"]);
        assert!(changed_drivers(&was, &was).is_empty());
    }

    #[test]
    fn an_allocation_is_for_a_node_when_it_names_just_that() {
        let selector = |fields: Value| json!({"nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]}});
        let one = json!([{"key": "metadata.name", "operator": "In", "values": ["n"]}]);
        assert_eq!(node_of(&selector(one)), Some("n"));
        let two = json!([{"key": "metadata.name", "operator": "In", "values": ["n", "m"]}]);
        assert_eq!(node_of(&selector(two)), None);
        assert_eq!(node_of(&json!({})), None);
    }

    #[test]
    fn an_account_runs_on_the_node_that_its_token_names() {
        let mut user = User::new("system:serviceaccount:a:b", [""; 0]);
        assert!(!runs_on(&user, Some("n")));
        user.extra
            .insert(NODE_NAME.to_owned(), vec!["n".to_owned()]);
        assert!(runs_on(&user, Some("n")));
        assert!(!runs_on(&user, Some("m")));
        assert!(!runs_on(&user, None));
    }
}
