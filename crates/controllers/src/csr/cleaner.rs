//! Deletes old CertificateSigningRequests: approved and denied ones after an hour, pending ones
//! after a day, and those whose certificate has expired.

use std::{sync::Arc, time::Duration};

use client::{Api, Informer};
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::{DeleteParams, Preconditions};
use reconcile::{Action, Controller, Error, Key};

use super::{ACCOUNT, is_issued};
use crate::shared::Shared;

/// The name in [`crate::ALL`].
pub const NAME: &str = "certificatesigningrequest-cleaner";

const DECIDED: Duration = Duration::from_secs(3600);
const WAITING: Duration = Duration::from_secs(24 * 3600);

struct Cleaner {
    shared: Arc<Shared>,
    requests: Informer<CertificateSigningRequest>,
    client: kube::Client,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Cleaner {
        shared: shared.clone(),
        requests: shared.informer(),
        client: shared.client(ACCOUNT),
    });
    shared
        .controller(&controller)
        .watches(&controller.requests)
        .start();
}

/// When to delete a request; `None` if only a change of it can tell.
fn removal(csr: &CertificateSigningRequest) -> Option<Timestamp> {
    let conditions = csr
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let conditions: Vec<_> = conditions.into_iter().flatten().collect();
    let issued = is_issued(csr);
    let mut ends: Vec<Timestamp> = Vec::new();
    if conditions.is_empty() {
        let created = csr.metadata.creation_timestamp.as_ref();
        ends.extend(created.and_then(|created| created.0.checked_add(WAITING).ok()));
    }
    for condition in conditions {
        let stays = match condition.type_.as_str() {
            "Approved" if issued => DECIDED,
            "Approved" => WAITING,
            "Denied" | "Failed" => DECIDED,
            _ => continue,
        };
        let at = condition.last_update_time.as_ref();
        ends.extend(at.and_then(|at| at.0.checked_add(stays).ok()));
    }
    if issued {
        let certificate = csr
            .status
            .as_ref()
            .and_then(|status| status.certificate.as_ref());
        ends.extend(certificate.and_then(|pem| pki::csr::not_after(&pem.0)));
    }
    ends.into_iter().min()
}

impl Controller for Cleaner {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(csr) = self.requests.get("", &key.name) else {
            return Ok(Action::Done);
        };
        let Some(end) = removal(&csr) else {
            return Ok(Action::Done);
        };
        let left = end.duration_since(self.shared.now());
        if let Ok(left) = Duration::try_from(left)
            && !left.is_zero()
        {
            return Ok(Action::After(left));
        }
        let api: Api<CertificateSigningRequest> = Api::all(self.client.clone());
        let exactly = DeleteParams {
            preconditions: Some(Preconditions {
                uid: csr.metadata.uid.clone(),
                ..Preconditions::default()
            }),
            ..DeleteParams::default()
        };
        match api.delete(&key.name, &exactly).await.map_err(Error::from) {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(Action::Done),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn each_state_has_its_own_time_to_go() {
        let removed = |conditions: Value, certificate: &str| {
            let csr = json!({
                "metadata": {"name": "c", "creationTimestamp": "2026-06-01T00:00:00Z"},
                "spec": {"request": "", "signerName": "a.b/c"},
                "status": {"conditions": conditions, "certificate": certificate},
            });
            removal(&serde_json::from_value(csr).unwrap()).map(|at| at.to_string())
        };
        let at = |kind: &str| {
            let time = "2026-06-02T00:00:00Z";
            json!([{"type": kind, "status": "True", "lastUpdateTime": time}])
        };
        let on = |text: &str| Some(text.to_owned());
        assert_eq!(removed(json!([]), ""), on("2026-06-02T00:00:00Z"));
        assert_eq!(removed(at("Approved"), ""), on("2026-06-03T00:00:00Z"));
        assert_eq!(removed(at("Approved"), "eA=="), on("2026-06-02T01:00:00Z"));
        assert_eq!(removed(at("Denied"), ""), on("2026-06-02T01:00:00Z"));
        assert_eq!(removed(at("Failed"), ""), on("2026-06-02T01:00:00Z"));
    }
}
