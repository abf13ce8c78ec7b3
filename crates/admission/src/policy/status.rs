//! The status of ValidatingAdmissionPolicies: observedGeneration and the findings of type checking.
//! Upstream's controller manager writes it; here the API server does, because it knows all schemas,
//! as the same service account. What fails, because the store is unavailable for example, is tried again.

use std::{sync::Arc, time::Duration};

use http::{Method, StatusCode};
use kinds::tree;
use machinery::{Object, Value, json::json};
use registry::{Reader, Table};
use request::Client;
use stdx::{Backoff, Clock};
use tokio::sync::Notify;

use super::type_checking;

const GROUP: &str = "admissionregistration.k8s.io";
const PLURAL: &str = "validatingadmissionpolicies";
/// The name of upstream's controller; the client writes as the service account of this name.
pub const CONTROLLER: &str = "validatingadmissionpolicy-status-controller";
const RETRY_INITIAL: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Keeps the statuses up to date for as long as the server runs.
pub async fn keep(reader: Reader, api: Arc<dyn Client>, clock: Arc<dyn Clock>) {
    if reader.resource(GROUP, PLURAL).is_none() {
        return;
    }
    let changed = Notify::new();
    let watch = reader.tell_of_changes(GROUP, PLURAL, &changed);
    let work = async {
        let mut backoff = Backoff::new(RETRY_INITIAL, RETRY_MAX);
        loop {
            changed.notified().await;
            if follow(&reader, &*api).await {
                backoff.reset();
            } else {
                clock.sleep(backoff.step()).await;
                changed.notify_one();
            }
        }
    };
    tokio::join!(watch, work);
}

/// Returns whether all statuses are written, or cannot be.
async fn follow(reader: &Reader, api: &dyn Client) -> bool {
    let Ok(policies) = reader.list_readable(GROUP, PLURAL).await else {
        return false;
    };
    let table = reader.table();
    let mut is_done = true;
    for policy in policies.parsed() {
        let (name, table) = (tree::name(&policy).to_owned(), table.clone());
        // A policy may have a megabyte of expressions, for ten and more kinds.
        let check = tokio::task::spawn_blocking(move || wanted(&policy, &table));
        match check.await {
            Ok(None) => {}
            Ok(Some(status)) => is_done &= write(api, &name, status).await,
            Err(_) => is_done = false,
        }
    }
    is_done
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

/// Returns false if the write may succeed later.
async fn write(api: &dyn Client, name: &str, status: Value) -> bool {
    let object = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "status": status,
    });
    let path = format!("/apis/{GROUP}/v1/{PLURAL}/{name}/status");
    let path = format!("{path}?fieldManager={CONTROLLER}&force=true");
    let (is_done, why) = match api
        .ask(Method::PATCH, &path, object.as_object().cloned())
        .await
    {
        Ok((status, _)) if status.is_success() || status == StatusCode::NOT_FOUND => return true,
        Ok((status, answer)) => {
            let passes = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
            (
                !passes,
                tree::text(tree::get(&answer, "message")).to_owned(),
            )
        }
        Err(why) => (false, why),
    };
    tracing::warn!(
        name,
        why,
        "cannot update the status of a ValidatingAdmissionPolicy"
    );
    is_done
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use parking_lot::Mutex;

    use registry::Registry;
    use registry_testing::object;

    use super::*;

    /// Answers with these codes, one after the other.
    struct Answers(Mutex<Vec<u16>>);

    #[async_trait]
    impl Client for Answers {
        async fn ask(
            &self,
            _: Method,
            _: &str,
            _: Option<Object>,
        ) -> Result<(StatusCode, Object), String> {
            let code = self.0.lock().remove(0);
            Ok((StatusCode::from_u16(code).unwrap(), Object::new()))
        }
    }

    #[tokio::test]
    async fn a_status_is_written_again_after_errors_that_pass() {
        for (code, is_done) in [
            (200, true),
            (404, true),
            (422, true),
            (500, false),
            (503, false),
            (429, false),
        ] {
            let api = Answers(Mutex::new(vec![code]));
            assert_eq!(write(&api, "p", json!({})).await, is_done, "{code}");
            assert!(api.0.lock().is_empty());
        }
    }

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
