//! The status of ValidatingAdmissionPolicies: observedGeneration and the findings of type checking.
//! Upstream's controller manager writes it; here the API server does, because it knows all schemas,
//! as the same service account.

use std::sync::Arc;

use http::{Method, StatusCode};
use kinds::tree;
use machinery::{Object, Value, json::json};
use registry::Table;
use request::Client;
use tokio::sync::Notify;

use crate::{LocalService, User, pipeline::Core};
use admission::policy::type_checking;

const GROUP: &str = "admissionregistration.k8s.io";
const PLURAL: &str = "validatingadmissionpolicies";
/// The name of upstream's controller.
const CONTROLLER: &str = "validatingadmissionpolicy-status-controller";

/// Keeps the statuses up to date for as long as the server runs.
pub(crate) async fn keep(core: Arc<Core>) {
    if core.reader.resource(GROUP, PLURAL).is_none() {
        return;
    }
    let user = User::service_account("kube-system", CONTROLLER);
    let api = LocalService::new(core.clone(), user);
    let changed = Notify::new();
    let watch = core.reader.tell_of_changes(GROUP, PLURAL, &changed);
    let work = async {
        loop {
            changed.notified().await;
            follow(&core, &api).await;
        }
    };
    tokio::join!(watch, work);
}

async fn follow(core: &Core, api: &LocalService) {
    let Ok(policies) = core.reader.list_readable(GROUP, PLURAL).await else {
        // The next change lists the policies again.
        return;
    };
    let table = core.reader.table();
    for policy in policies.parsed() {
        if let Some(status) = wanted(&policy, &table) {
            write(api, tree::name(&policy), status).await;
        }
    }
}

/// The new status of a policy whose generation was not observed yet.
fn wanted(policy: &Object, table: &Table) -> Option<Value> {
    let generation = tree::int(&tree::get(policy, "metadata")["generation"]);
    let observed = tree::int(&tree::get(policy, "status")["observedGeneration"]);
    (generation > observed).then(|| {
        json!({
            "observedGeneration": generation,
            "typeChecking": type_checking::check(policy, table),
        })
    })
}

async fn write(api: &LocalService, name: &str, status: Value) {
    let object = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "status": status,
    });
    let path = format!("/apis/{GROUP}/v1/{PLURAL}/{name}/status");
    let path = format!("{path}?fieldManager={CONTROLLER}&force=true");
    let why = match api
        .ask(Method::PATCH, &path, object.as_object().cloned())
        .await
    {
        Ok((status, _)) if status.is_success() || status == StatusCode::NOT_FOUND => return,
        Ok((_, answer)) => tree::text(tree::get(&answer, "message")).to_owned(),
        Err(why) => why,
    };
    tracing::warn!(
        name,
        why,
        "cannot update the status of a ValidatingAdmissionPolicy"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;
    use registry_testing::object;

    #[test]
    fn a_generation_is_type_checked_once() {
        let registry = Registry::builtin();
        let policy = |observed: i64| {
            let policy = json!({"metadata": {"name": "p", "generation": 2}, "status": {"observedGeneration": observed}});
            wanted(&object(policy), &registry.table())
        };
        assert_eq!(
            policy(1),
            Some(json!({"observedGeneration": 2, "typeChecking": {}}))
        );
        assert_eq!(policy(2), None);
    }
}
