//! The second identity of a node, `system:node-proxy:NAME`, with which its service proxy, DNS and
//! network policy read the API. It has a signer of its own, because Kubernetes' signers may approve
//! nothing else. A node requests it as itself and gets it only for its own name. Its group may list
//! and watch a few kinds, and write nothing.

use pki::csr::RequestedCertificate;

use super::{NODE_PREFIX, are};

/// The signer of these certificates.
pub(crate) const SIGNER: &str = "mainstay.local/node-proxy-client";
/// The prefix of the user name, before the node's name.
const PREFIX: &str = "system:node-proxy:";
const GROUP: &str = "system:node-proxies";

/// Validates a request for this signer.
pub(super) fn check(request: &RequestedCertificate, usages: &[&str]) -> Result<(), String> {
    if request.organizations != [GROUP] {
        return Err(format!("subject organization is not {GROUP}"));
    }
    let name = request.common_name.strip_prefix(PREFIX);
    if name.is_none_or(str::is_empty) {
        return Err(format!("subject common name does not begin with {PREFIX}"));
    }
    let has_names = [&request.dns_names, &request.emails, &request.uris]
        .iter()
        .any(|names| !names.is_empty());
    if has_names || !request.addresses.is_empty() {
        return Err("subjectAltNames are not allowed".to_owned());
    }
    if !are(usages, "client auth") {
        let why = "usages did not match [client auth digital signature key encipherment]";
        return Err(why.to_owned());
    }
    Ok(())
}

/// Whether a node requests its own certificate.
pub(super) fn is_own(
    author: &str,
    groups: &[String],
    request: &RequestedCertificate,
    usages: &[&str],
) -> bool {
    let node = author.strip_prefix(NODE_PREFIX);
    check(request, usages).is_ok()
        && groups.iter().any(|group| group == "system:nodes")
        && node.is_some()
        && node == request.common_name.strip_prefix(PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_approved_only_for_its_own_node_proxy_certificate() {
        let wish = |name: &str, group: &str| RequestedCertificate {
            common_name: name.to_owned(),
            organizations: vec![group.to_owned()],
            ..RequestedCertificate::default()
        };
        let usages = ["digital signature", "client auth"];
        let nodes = ["system:nodes".to_owned()];
        let own = wish("system:node-proxy:n1", GROUP);
        assert!(is_own("system:node:n1", &nodes, &own, &usages));
        assert!(!is_own("system:node:n2", &nodes, &own, &usages));
        assert!(!is_own("system:node:n1", &[], &own, &usages));
        assert!(!is_own("n1", &nodes, &own, &usages));
        assert!(!is_own(
            "system:node:n1",
            &nodes,
            &own,
            &["digital signature", "server auth"]
        ));
        for other in [
            wish("system:node-proxy:n1", "system:masters"),
            wish("system:node-proxy:", GROUP),
            wish("system:node:n1", GROUP),
        ] {
            assert!(check(&other, &usages).is_err(), "{other:?}");
        }
        let named = RequestedCertificate {
            dns_names: vec!["kubernetes".to_owned()],
            ..own
        };
        assert!(check(&named, &usages).is_err());
    }
}
