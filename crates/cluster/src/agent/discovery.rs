//! Discovery of the CA: the public ConfigMap kube-public/cluster-info holds the cluster's CA and is
//! signed with every bootstrap token. It is fetched from an untrusted server, and trusted if the
//! token's signature is valid and, if a hash is given, the CA matches it. kubeadm does the same.

use std::{collections::BTreeMap, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use client::{
    Kubeconfig,
    kube::{self, client::Body, core::Status},
};
use http::Request;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use k8s_openapi::api::core::v1::ConfigMap;

use super::{Token, join::check_pins};
use crate::Error;

/// The path of the ConfigMap.
const PATH: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
/// How long a server may take to answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of the answer of a server that is not trusted yet.
const MAX_SIZE: usize = 1 << 20;

/// The cluster's CA, as PEM.
pub(super) async fn authority(
    server: &str,
    token: &Token,
    pins: &[String],
) -> Result<String, Error> {
    let tls = (*pki::unverified_client_config()?).clone();
    let client = client::https(server, tls, client::Options::default())?;
    let read = tokio::time::timeout(REQUEST_TIMEOUT, read(&client)).await;
    let map =
        read.unwrap_or_else(|_| Err(failed(format!("no answer within {REQUEST_TIMEOUT:?}"))))?;
    verify(&map.data.unwrap_or_default(), token, pins)
}

/// Whether a server answers like this during its first start, before it has written its roles and cluster-info, or before
/// a new token has signed it.
pub(super) fn may_be_starting(error: &Error) -> bool {
    match error {
        Error::NotSigned(_) => true,
        Error::Api(kube::Error::Api(status)) => matches!(status.code, 401 | 403 | 404),
        _ => false,
    }
}

/// What an answer means that is not about the token: that was not sent yet.
pub(super) fn explain(error: Error) -> Error {
    let Error::Api(kube::Error::Api(status)) = &error else {
        return error;
    };
    let message = &status.message;
    match status.code {
        401 | 403 => Error::Join(format!(
            "the server does not let machines that have not joined read the ConfigMap cluster-info in kube-public, which \
             they need to verify it: {message}; allow anonymous requests to it, and RBAC's role for it"
        )),
        404 => Error::Join(format!(
            "the server has no ConfigMap cluster-info in kube-public, so machines cannot join: {message}"
        )),
        _ => error,
    }
}

/// An error after which the server is asked again.
fn failed(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Api(kube::Error::Service(why.into()))
}

/// Reads cluster-info, and no more than that.
async fn read(client: &kube::Client) -> Result<ConfigMap, Error> {
    let request = Request::get(PATH).body(Body::empty());
    let answer = client.send(request.map_err(failed)?).await?;
    let code = answer.status();
    let body = Limited::new(answer.into_body(), MAX_SIZE).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => Error::Join(format!(
            "the server's answer is larger than {MAX_SIZE} bytes"
        )),
        false => failed(error),
    })?;
    let body = body.to_bytes();
    if code.is_success() {
        // A load balancer may answer for a server that is starting.
        let map = serde_json::from_slice(&body);
        return map.map_err(|error| failed(format!("cluster-info: {error}")));
    }
    let status = serde_json::from_slice(&body).unwrap_or_else(|_| Status {
        message: format!("the server answered with {code}"),
        ..Status::default()
    });
    let code = code.as_u16();
    Err(kube::Error::Api(Box::new(Status { code, ..status })).into())
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
        return Err(Error::NotSigned(format!(
            "the cluster does not know the token {}: it has expired, was deleted, has no usage \"signing\", or belongs \
             to another cluster",
            token.id
        )));
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
    use std::sync::Arc;

    use tokio::{io::AsyncWriteExt, net::TcpListener};
    use tokio_rustls::TlsAcceptor;

    use super::{super::join, *};

    fn info(pki: &pki::Pki, token: &Token) -> BTreeMap<String, String> {
        let text = pki.cluster_info("https://192.0.2.1:6443");
        let signature = pki::detached_signature(&text, &token.id, &token.secret);
        BTreeMap::from([
            ("kubeconfig".to_owned(), text),
            (format!("jws-kubeconfig-{}", token.id), signature),
        ])
    }

    /// A TLS listener for HTTP/1, and its URL.
    async fn listen() -> (TlsAcceptor, TcpListener, String) {
        let dir = tempfile::tempdir().unwrap();
        let pki = pki::Pki::ensure(dir.path(), &pki::Names::default()).unwrap();
        let mut tls = (*pki.apiserver_config().unwrap()).clone();
        tls.alpn_protocols.clear();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("https://{}", listener.local_addr().unwrap());
        (TlsAcceptor::from(Arc::new(tls)), listener, server)
    }

    #[tokio::test]
    async fn an_answer_that_is_not_json_passes() {
        let (acceptor, listener, server) = listen().await;
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = acceptor.accept(stream).await.unwrap();
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>";
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        });
        let token = Token::parse("abcdef.0123456789abcdef").unwrap();
        let error = authority(&server, &token, &[]).await.unwrap_err();
        assert!(join::is_passing(&error), "{error}");
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn a_server_that_is_not_trusted_yet_cannot_send_without_end() {
        let (acceptor, listener, server) = listen().await;
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = acceptor.accept(stream).await.unwrap();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"a\":\"";
            let mut sent = stream.write_all(head.as_bytes()).await;
            while sent.is_ok() {
                sent = stream.write_all(&[b'x'; 4096]).await;
            }
        });
        let token = Token::parse("abcdef.0123456789abcdef").unwrap();
        let refused = authority(&server, &token, &[]).await.unwrap_err();
        assert!(refused.to_string().contains("larger than"), "{refused}");
        // The connection was closed.
        serving.await.unwrap();
    }

    #[test]
    fn an_answer_before_the_token_is_sent_is_not_blamed_on_it() {
        for (code, starting, expected) in [
            (401, true, "allow anonymous requests"),
            (403, true, "allow anonymous requests"),
            (404, true, "no ConfigMap cluster-info"),
            (410, false, "API: gone"),
        ] {
            let status = Status {
                code,
                message: "gone".to_owned(),
                ..Status::default()
            };
            let error = Error::Api(kube::Error::Api(Box::new(status)));
            assert_eq!(may_be_starting(&error), starting, "{code}");
            let why = explain(error).to_string();
            assert!(why.contains(expected) && !why.contains("token"), "{why}");
        }
        assert!(!may_be_starting(&Error::Join("no".into())));
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
        // The pinned CA, and the CA of another server that knows the token.
        let foreign = pki::Pki::ensure(&dir.path().join("foreign"), &pki::Names::default());
        let foreign = foreign.unwrap();
        let encode = |pem: &str| BASE64_STANDARD.encode(pem);
        let both = encode(&[pki.ca().pem(), foreign.ca().pem()].concat());
        let text = data["kubeconfig"].replace(&encode(pki.ca().pem()), &both);
        assert!(text.contains(&both));
        let signature = pki::detached_signature(&text, &token.id, &token.secret);
        let mut bundle = data.clone();
        bundle.insert("kubeconfig".to_owned(), text);
        bundle.insert("jws-kubeconfig-abcdef".to_owned(), signature);
        assert!(refused(&bundle, &token, &pins).contains("--ca-hash"));
        let all = [&pins[..], &[foreign.ca().public_key_hash()]].concat();
        assert!(verify(&bundle, &token, &all).is_ok());
        let other = Token::parse("fedcba.0123456789abcdef").unwrap();
        assert!(refused(&data, &other, &[]).contains("does not know the token fedcba"));
        let wrong = Token::parse("abcdef.0123456789abcdeX".to_lowercase().as_str()).unwrap();
        assert!(refused(&data, &wrong, &[]).contains("not signed"));
        let mut changed = data.clone();
        changed.get_mut("kubeconfig").unwrap().push(' ');
        assert!(refused(&changed, &token, &[]).contains("not signed"));
    }
}
