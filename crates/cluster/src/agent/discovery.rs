//! Discovery of the CA: the public ConfigMap kube-public/cluster-info holds the cluster's CA and is
//! signed with every bootstrap token. It is fetched from an untrusted server, and trusted if the
//! token's signature is valid and, if a hash is given, the CA matches it. kubeadm does the same.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use client::{Api, Kubeconfig};
use k8s_openapi::api::core::v1::ConfigMap;

use super::{Token, join::check_pins};
use crate::Error;

/// The cluster's CA, as PEM.
pub(super) async fn authority(
    server: &str,
    token: &Token,
    pins: &[String],
) -> Result<String, Error> {
    let tls = (*pki::unverified_client_config()?).clone();
    let client = client::https(server, tls, client::Options::default())?;
    let maps: Api<ConfigMap> = Api::namespaced(client, "kube-public");
    let map = maps.get("cluster-info").await?;
    verify(&map.data.unwrap_or_default(), token, pins)
}

/// Verifies the data of cluster-info.
fn verify(
    data: &BTreeMap<String, String>,
    token: &Token,
    pins: &[String],
) -> Result<String, Error> {
    let refuse = |why: String| Err(Error::Join(why));
    let Some(kubeconfig) = data.get("kubeconfig") else {
        return refuse("cluster-info has no kubeconfig".to_owned());
    };
    let Some(signature) = data.get(&format!("jws-kubeconfig-{}", token.id)) else {
        return refuse(format!(
            "the cluster does not know the token {}: it has expired, was deleted, or belongs to another cluster",
            token.id
        ));
    };
    let expected = pki::detached_signature(kubeconfig, &token.id, &token.secret);
    if !constant_time_eq(signature.as_bytes(), expected.as_bytes()) {
        return refuse(format!(
            "cluster-info is not signed with the token {}: its secret is wrong, or this is another cluster",
            token.id
        ));
    }
    let parsed = Kubeconfig::parse(kubeconfig)?;
    let cluster = parsed.clusters.first();
    let encoded = cluster.and_then(|cluster| cluster.cluster.certificate_authority_data.clone());
    let pem = encoded.and_then(|encoded| BASE64_STANDARD.decode(encoded).ok());
    let Some(pem) = pem.and_then(|pem| String::from_utf8(pem).ok()) else {
        return refuse("cluster-info has no CA certificate".to_owned());
    };
    check_pins(&pem, pins)?;
    Ok(pem)
}

/// Constant-time comparison.
fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(pki: &pki::Pki, token: &Token) -> BTreeMap<String, String> {
        let text = pki.cluster_info("https://192.0.2.1:6443");
        let signature = pki::detached_signature(&text, &token.id, &token.secret);
        BTreeMap::from([
            ("kubeconfig".to_owned(), text),
            (format!("jws-kubeconfig-{}", token.id), signature),
        ])
    }

    #[test]
    fn cluster_info_is_trusted_only_with_the_right_signature_and_pin() {
        let dir = tempfile::tempdir().unwrap();
        let pki = pki::Pki::ensure(dir.path(), &pki::Names::default()).unwrap();
        let token = Token::parse("abcdef.0123456789abcdef").unwrap();
        let data = info(&pki, &token);
        let pin = pki.ca().public_key_hash();
        assert_eq!(verify(&data, &token, &[]).unwrap(), pki.ca().pem());
        let pins = ["sha256:00".to_owned(), pin];
        assert!(verify(&data, &token, &pins).is_ok());

        let refused = |data: &BTreeMap<String, String>, token: &Token, pins: &[String]| {
            verify(data, token, pins).unwrap_err().to_string()
        };
        let why = refused(&data, &token, &pins[..1]);
        assert!(why.contains("--ca-hash"), "{why}");
        let other = Token::parse("fedcba.0123456789abcdef").unwrap();
        assert!(refused(&data, &other, &[]).contains("does not know the token fedcba"));
        let wrong = Token::parse("abcdef.0123456789abcdeX".to_lowercase().as_str()).unwrap();
        assert!(refused(&data, &wrong, &[]).contains("not signed"));
        let mut changed = data.clone();
        changed.get_mut("kubeconfig").unwrap().push(' ');
        assert!(refused(&changed, &token, &[]).contains("not signed"));
    }
}
