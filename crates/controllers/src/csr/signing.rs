//! Signs approved requests of Kubernetes' four signers and of the node-proxy signer with the
//! cluster's CA. Requests that a signer does not allow get the condition Failed. Requests of other
//! signers are ignored.

use std::{sync::Arc, time::Duration};

use client::Informer;
use k8s_openapi::{
    ByteString,
    api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use pki::{
    Pki,
    csr::{Request, RequestedCertificate, Usages},
};
use reconcile::{Action, Controller, Error, Key};

use super::{
    ACCOUNT, CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY, has, is_client, is_issued,
    is_kubelet_client, is_kubelet_serving, node_proxy, usages,
};
use crate::shared::Shared;

/// The name in [`crate::ALL`].
pub const NAME: &str = "certificatesigningrequest-signing";

const SHORTEST: Duration = Duration::from_secs(600);

struct Signer {
    shared: Arc<Shared>,
    pki: Arc<Pki>,
    requests: Informer<CertificateSigningRequest>,
    client: kube::Client,
}

/// Starts the controller, if there is a CA to sign with.
pub fn start(shared: &Arc<Shared>) {
    let Some(authority) = &shared.config.authority else {
        return;
    };
    let controller = Arc::new(Signer {
        shared: shared.clone(),
        pki: authority.0.clone(),
        requests: shared.informer(),
        client: shared.client(ACCOUNT),
    });
    shared
        .controller(&controller)
        .watches(&controller.requests)
        .start();
}

/// Validates a request for its signer; `None` if the signer is not ours.
fn check(
    csr: &CertificateSigningRequest,
    request: &RequestedCertificate,
) -> Option<Result<(), String>> {
    let usages = usages(csr);
    match csr.spec.signer_name.as_str() {
        CLIENT => Some(is_client(&usages)),
        KUBELET_CLIENT => Some(is_kubelet_client(request, &usages)),
        KUBELET_SERVING => Some(is_kubelet_serving(request, &usages)),
        node_proxy::SIGNER => Some(node_proxy::check(request, &usages)),
        LEGACY => Some(Ok(())),
        _ => None,
    }
}

/// The certificate's lifetime: as requested, within limits.
fn life(csr: &CertificateSigningRequest, longest: Duration) -> Duration {
    let asked = csr
        .spec
        .expiration_seconds
        .map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or_default()));
    asked.map_or(longest, |asked| asked.max(SHORTEST).min(longest))
}

impl Controller for Signer {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(csr) = self.requests.get("", &key.name) else {
            return Ok(Action::Done);
        };
        let approved = has(&csr, "Approved") && !has(&csr, "Denied") && !has(&csr, "Failed");
        if !approved || is_issued(&csr) {
            return Ok(Action::Done);
        }
        let Ok(request) = Request::parse(&csr.spec.request.0) else {
            return Ok(Action::Done);
        };
        let Some(checked) = check(&csr, &request) else {
            return Ok(Action::Done);
        };
        let checked = checked.and_then(|()| Usages::parse(&usages(&csr)));
        let mut csr = (*csr).clone();
        let life = life(&csr, self.pki.ca().life());
        let status = csr.status.get_or_insert_default();
        match checked {
            Ok(usages) => {
                let signed = self
                    .pki
                    .ca()
                    .sign(&request, &usages, self.shared.now(), life);
                let signed = signed.map_err(|error| Error::Invalid(error.to_string()))?;
                status.certificate = Some(ByteString(signed.into_bytes()));
            }
            Err(why) => {
                let now = Some(Time(self.shared.now()));
                let failed = CertificateSigningRequestCondition {
                    type_: "Failed".to_owned(),
                    status: "True".to_owned(),
                    reason: Some("SignerValidationFailure".to_owned()),
                    message: Some(why),
                    last_update_time: now,
                    ..CertificateSigningRequestCondition::default()
                };
                status.conditions.get_or_insert_default().push(failed);
            }
        }
        super::replace(&self.client, "status", &csr).await?;
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use pki::csr::LIFE;

    use super::*;

    #[test]
    fn the_requested_duration_of_a_certificate_is_clamped() {
        let of = |seconds: Option<i32>| {
            let mut csr = CertificateSigningRequest::default();
            csr.spec.expiration_seconds = seconds;
            life(&csr, LIFE).as_secs()
        };
        assert_eq!(of(None), LIFE.as_secs());
        assert_eq!(of(Some(3600)), 3600);
        assert_eq!(of(Some(5)), 600);
        assert_eq!(of(Some(i32::MAX)), LIFE.as_secs());
        // Also if the maximum lifetime is shorter than the minimum that a request may name.
        let mut csr = CertificateSigningRequest::default();
        csr.spec.expiration_seconds = Some(3600);
        let short = Duration::from_secs(60);
        assert_eq!(life(&csr, short), short);
    }

    #[test]
    fn each_signer_signs_only_its_kind_of_certificate() {
        let checked = |signer: &str, usages: &[&str]| {
            let mut csr = CertificateSigningRequest::default();
            csr.spec.signer_name = signer.to_owned();
            csr.spec.usages = Some(usages.iter().map(|&usage| usage.to_owned()).collect());
            check(&csr, &RequestedCertificate::default())
        };
        assert_eq!(checked(CLIENT, &["client auth"]), Some(Ok(())));
        assert!(checked(CLIENT, &["server auth"]).unwrap().is_err());
        assert!(checked(KUBELET_CLIENT, &["client auth"]).unwrap().is_err());
        assert_eq!(checked(LEGACY, &["any"]), Some(Ok(())));
        assert_eq!(checked("example.com/own", &["client auth"]), None);
    }
}
