//! CertificateSigningRequests: approves nodes' own requests, signs approved ones and deletes old
//! ones. This file has what the three controllers share.

pub mod approving;
pub mod cleaner;
mod node_proxy;
mod serving;
pub mod signing;

use client::Api;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::PostParams;
use pki::csr::RequestedCertificate;
use reconcile::Error;

pub(crate) use serving::node_addresses;

const ACCOUNT: &str = "certificate-controller";

pub(crate) const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub(crate) const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub(crate) const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
pub(crate) const LEGACY: &str = "kubernetes.io/legacy-unknown";

const NODE_PREFIX: &str = "system:node:";

/// Writes a subresource of a request, if it was not changed since it was read.
async fn replace(
    client: &kube::Client,
    subresource: &str,
    csr: &CertificateSigningRequest,
) -> Result<(), Error> {
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let name = csr.metadata.name.clone().unwrap_or_default();
    api.replace_subresource(subresource, &name, &PostParams::default(), csr)
        .await?;
    Ok(())
}

fn has(csr: &CertificateSigningRequest, condition: &str) -> bool {
    let conditions = csr
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|known| known.type_ == condition)
}

/// Whether this is a kubelet's request that was neither approved nor denied.
pub(crate) fn waits_for_approval(csr: &CertificateSigningRequest) -> bool {
    let is_of_kubelet = matches!(&*csr.spec.signer_name, KUBELET_SERVING | KUBELET_CLIENT);
    let conditions = ["Approved", "Denied", "Failed"];
    is_of_kubelet && !conditions.iter().any(|condition| has(csr, condition))
}

fn is_issued(csr: &CertificateSigningRequest) -> bool {
    let certificate = csr
        .status
        .as_ref()
        .and_then(|status| status.certificate.as_ref());
    certificate.is_some_and(|certificate| !certificate.0.is_empty())
}

fn usages(csr: &CertificateSigningRequest) -> Vec<&str> {
    csr.spec
        .usages
        .iter()
        .flatten()
        .map(String::as_str)
        .collect()
}

/// Whether the usages are these, with or without key encipherment, which only RSA keys need.
fn are(usages: &[&str], purpose: &str) -> bool {
    let mut given = usages.to_vec();
    given.sort_unstable();
    given.dedup();
    let mut few = vec!["digital signature", purpose];
    few.sort_unstable();
    let mut all = vec!["digital signature", "key encipherment", purpose];
    all.sort_unstable();
    given == few || given == all
}

fn is_of_a_node(request: &RequestedCertificate) -> Result<(), String> {
    if request.organizations != ["system:nodes"] {
        return Err("subject organization is not system:nodes".to_owned());
    }
    if !request.common_name.starts_with(NODE_PREFIX) {
        return Err("subject common name does not begin with system:node:".to_owned());
    }
    Ok(())
}

/// Whether this is a valid request of a kubelet's client certificate.
fn is_kubelet_client(request: &RequestedCertificate, usages: &[&str]) -> Result<(), String> {
    is_of_a_node(request)?;
    for (none, what) in [
        (request.dns_names.is_empty(), "DNS"),
        (request.emails.is_empty(), "Email"),
        (request.addresses.is_empty(), "IP"),
        (request.uris.is_empty(), "URI"),
    ] {
        if !none {
            return Err(format!("{what} subjectAltNames are not allowed"));
        }
    }
    if !are(usages, "client auth") {
        return Err(
            "usages did not match [client auth digital signature key encipherment]".to_owned(),
        );
    }
    Ok(())
}

/// Whether this is a valid request of a kubelet's serving certificate.
fn is_kubelet_serving(request: &RequestedCertificate, usages: &[&str]) -> Result<(), String> {
    is_of_a_node(request)?;
    if request.dns_names.is_empty() && request.addresses.is_empty() {
        return Err("DNS or IP subjectAltName is required".to_owned());
    }
    if !request.emails.is_empty() {
        return Err("Email subjectAltNames are not allowed".to_owned());
    }
    if !request.uris.is_empty() {
        return Err("URI subjectAltNames are not allowed".to_owned());
    }
    if !are(usages, "server auth") {
        return Err(
            "usages did not match [digital signature key encipherment server auth]".to_owned(),
        );
    }
    Ok(())
}

/// Whether the usages are those of a client certificate.
fn is_client(usages: &[&str]) -> Result<(), String> {
    let known = ["digital signature", "key encipherment", "client auth"];
    if let Some(other) = usages.iter().find(|usage| !known.contains(usage)) {
        return Err(format!("invalid usage for client certificate: {other}"));
    }
    if !usages.contains(&"client auth") {
        return Err("missing required usage for client certificate: client auth".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_of_a_kubelet_waits_until_it_is_approved_or_denied() {
        for (signer, condition, expected) in [
            (KUBELET_CLIENT, "", true),
            (KUBELET_SERVING, "Other", true),
            (KUBELET_SERVING, "Approved", false),
            (KUBELET_CLIENT, "Denied", false),
            (CLIENT, "", false),
        ] {
            let conditions = serde_json::json!([{"type": condition, "status": "True"}]);
            let csr = serde_json::json!({"metadata": {},
                "spec": {"request": "", "signerName": signer}, "status": {"conditions": conditions}});
            let csr = serde_json::from_value(csr).unwrap();
            assert_eq!(waits_for_approval(&csr), expected, "{signer} {condition}");
        }
    }

    #[test]
    fn kubelet_requests_are_recognized_by_subject_and_usages() {
        let node = RequestedCertificate {
            common_name: "system:node:n1".to_owned(),
            organizations: vec!["system:nodes".to_owned()],
            ..RequestedCertificate::default()
        };
        let serving = RequestedCertificate {
            dns_names: vec!["n1".to_owned()],
            ..node.clone()
        };
        let client = ["client auth", "digital signature"];
        let server = ["server auth", "key encipherment", "digital signature"];
        is_kubelet_client(&node, &client).unwrap();
        is_kubelet_client(&serving, &client).unwrap_err();
        is_kubelet_client(&node, &server).unwrap_err();
        is_kubelet_client(&node, &["client auth", "digital signature", "cert sign"]).unwrap_err();
        is_kubelet_serving(&serving, &server).unwrap();
        is_kubelet_serving(&node, &server).unwrap_err();
        let greedy = RequestedCertificate {
            organizations: vec!["system:nodes".to_owned(), "system:masters".to_owned()],
            ..node.clone()
        };
        let why = is_kubelet_client(&greedy, &client).unwrap_err();
        assert_eq!(why, "subject organization is not system:nodes");
        let person = RequestedCertificate {
            common_name: "eve".to_owned(),
            ..node
        };
        is_kubelet_client(&person, &client).unwrap_err();
        is_client(&["client auth"]).unwrap();
        is_client(&["digital signature"]).unwrap_err();
        is_client(&["client auth", "server auth"]).unwrap_err();
    }
}
