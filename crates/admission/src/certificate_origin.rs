//! Records in a CertificateSigningRequest the address it came from, as the server saw it: an
//! annotation that no client can set or change. The approver of kubelet serving certificates trusts
//! nothing else about a node's address.

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status, Value};

use super::{Attributes, Operation, Peer, Plugin};

pub(crate) const NAME: &str = "CertificateOrigin";

/// The address of the requester.
const PEER: &str = "mainstay.local/peer-address";
/// Whether the requester runs in the server's own process.
const IN_PROCESS: &str = "mainstay.local/in-process";

pub(crate) struct CertificateOrigin;

#[async_trait]
impl Plugin for CertificateOrigin {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.is("certificates.k8s.io", "certificatesigningrequests")
            && matches!(attributes.operation, Operation::Create | Operation::Update)
    }

    fn validates(&self) -> bool {
        false
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: &mut Object) -> Result<(), Status> {
        let origin = match (attributes.operation, attributes.old) {
            (Operation::Create, _) => origin_of_peer(attributes.peer),
            (_, Some(old)) => noted(old),
            _ => return Ok(()),
        };
        note(object, origin);
        Ok(())
    }
}

type Origin = [(&'static str, Option<String>); 2];

fn origin_of_peer(peer: Option<Peer>) -> Origin {
    let (address, in_process) = match peer {
        None => (None, None),
        Some(Peer::Certified(address)) => (Some(address), None),
        Some(Peer::InProcess(address)) => (Some(address), Some("true".to_owned())),
    };
    [
        (PEER, address.map(|address| address.to_string())),
        (IN_PROCESS, in_process),
    ]
}

fn noted(old: &Object) -> Origin {
    let annotations = &tree::get(old, "metadata")["annotations"];
    let noted = |key: &str| annotations[key].as_str().map(str::to_owned);
    [(PEER, noted(PEER)), (IN_PROCESS, noted(IN_PROCESS))]
}

fn note(object: &mut Object, origin: Origin) {
    let metadata = tree::child_or_new(object, "metadata");
    let mut annotations = match metadata.shift_remove("annotations") {
        Some(Value::Object(annotations)) => annotations,
        _ => Object::new(),
    };
    for (key, value) in origin {
        match value {
            Some(value) => _ = annotations.insert(key, value.into()),
            None => _ = annotations.shift_remove(key),
        }
    }
    if !annotations.is_empty() {
        metadata.insert("annotations", Value::Object(annotations));
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::testing::{Case, object};

    async fn admitted(case: &Case, peer: Option<Peer>, given: Value) -> Value {
        let mut attributes = case.attributes();
        attributes.peer = peer;
        let mut object = object(given);
        assert!(CertificateOrigin.handles(&attributes));
        CertificateOrigin
            .mutate(&attributes, &mut object)
            .await
            .unwrap();
        object
            .get("metadata")
            .map(|metadata| metadata["annotations"].clone())
            .unwrap_or_default()
    }

    #[tokio::test]
    async fn the_origin_annotation_is_set_by_the_server_only() {
        let group = "certificates.k8s.io";
        let mut case = Case::new(Operation::Create, group, "certificatesigningrequests");
        let forged = || json!({"metadata": {"annotations": {PEER: "10.43.0.1", IN_PROCESS: "true", "a": "b"}}});
        let address = "192.0.2.7".parse().unwrap();
        assert_eq!(admitted(&case, None, forged()).await, json!({"a": "b"}));
        assert_eq!(
            admitted(&case, Some(Peer::Certified(address)), forged()).await,
            json!({PEER: "192.0.2.7", "a": "b"})
        );
        assert_eq!(
            admitted(&case, Some(Peer::InProcess(address)), json!({})).await,
            json!({PEER: "192.0.2.7", IN_PROCESS: "true"})
        );
        assert_eq!(admitted(&case, None, json!({})).await, Value::Null);
        case.operation = Operation::Update;
        case.old = Some(object(
            json!({"metadata": {"annotations": {PEER: "192.0.2.7"}}}),
        ));
        let kept = admitted(&case, Some(Peer::InProcess(address)), forged()).await;
        assert_eq!(kept, json!({PEER: "192.0.2.7", "a": "b"}));
        case.old = Some(object(json!({})));
        assert_eq!(admitted(&case, None, forged()).await, json!({"a": "b"}));
    }
}
