//! No secret reaches the log, at any level: secrets, tokens and keys are placed everywhere a server
//! sees them, and the whole log is searched for them.

use std::{
    io::Write,
    sync::{Arc, Mutex},
};

use apiserver::User;
use base64::{Engine, prelude::BASE64_STANDARD};
use machinery::json::{Value, json};
use tracing_subscriber::fmt::MakeWriter;

use crate::{
    security::regressions::{over_tls, without_credentials},
    support::{Server, admin, send},
};

const STATIC_TOKEN: &str = "planted-static-token-0001";
const BOOTSTRAP: &str = "plante.dplanteddplanted";
const WRONG_TOKEN: &str = "planted-wrong-token-0002";
const PASSWORD: &str = "planted-password-0003";
const SECRET: &str = "planted-secret-value-0004";
const BODY: &str = "planted-in-a-broken-body-0005";
const QUERY: &str = "planted-in-a-query-0006";

/// Everything that was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// A line from the middle of every private key of the cluster.
fn keys(server: &Server) -> Vec<String> {
    let files = std::fs::read_dir(server.directory().join("pki")).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let keys = files.filter(|path| path.extension().is_some_and(|end| end == "key"));
    let keys: Vec<String> = keys
        .map(|path| {
            let pem = std::fs::read_to_string(path).unwrap();
            pem.lines().nth(1).unwrap().to_owned()
        })
        .collect();
    assert!(keys.len() > 5, "{}", keys.len());
    keys
}

async fn bearer(server: &Server, token: &str) -> u16 {
    let value = format!("Bearer {token}");
    let headers = [("authorization", value.as_str())];
    let path = format!("/apis/apps/v1?token={QUERY}");
    let answer = over_tls(
        server,
        without_credentials(server),
        "GET",
        &path,
        &headers,
        "",
    )
    .await;
    answer.unwrap().code
}

fn encode(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

/// Secrets: create, read, update, reject, watch, in bodies that are broken.
async fn send_secrets(server: &Server) {
    let secrets = "/api/v1/namespaces/default/secrets";
    let secret = json!({"metadata": {"name": "s"}, "data": {"k": encode(SECRET)}});
    let created = admin(server, "POST", secrets, secret.clone()).await;
    assert_eq!(created.code, 201);
    assert_eq!(admin(server, "POST", secrets, secret).await.code, 409);
    let one = format!("{secrets}/s");
    let patch = json!({"stringData": {"other": SECRET}, "type": SECRET});
    assert_eq!(admin(server, "PATCH", &one, patch).await.code, 422);
    assert_eq!(admin(server, "GET", &one, Value::Null).await.code, 200);
    let watch = format!("{secrets}?watch=1&timeoutSeconds=1&resourceVersion=0");
    assert_eq!(admin(server, "GET", &watch, Value::Null).await.code, 200);
    let broken = format!("{{\"data\": {{\"k\": \"{BODY}\"");
    let ops = User::new("ops", ["system:masters"]);
    for media in [
        "application/json",
        "application/yaml",
        "application/vnd.kubernetes.protobuf",
    ] {
        let headers = [("content-type", media)];
        let body = broken.clone();
        let answer = send(server, ops.clone(), "POST", secrets, &headers, body).await;
        assert!(answer.code >= 400, "{media}");
    }
}

/// Tokens from the file, of an account, of a bootstrap secret, and invalid ones. Returns that of
/// the account.
async fn send_bearer_tokens(server: &Server) -> String {
    let (id, rest) = BOOTSTRAP.split_once('.').unwrap();
    let data = json!({"token-id": encode(id), "token-secret": encode(rest),
                      "usage-bootstrap-authentication": encode("true")});
    let token = json!({"metadata": {"name": format!("bootstrap-token-{id}")},
                       "type": "bootstrap.kubernetes.io/token", "data": data});
    let system = "/api/v1/namespaces/kube-system/secrets";
    let made = admin(server, "POST", system, token).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let account = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let issued = admin(server, "POST", account, json!({"spec": {}})).await;
    let issued = issued.json()["status"]["token"]
        .as_str()
        .unwrap()
        .to_owned();
    for (token, code) in [
        (STATIC_TOKEN, 200),
        (BOOTSTRAP, 200),
        (issued.as_str(), 200),
        (WRONG_TOKEN, 401),
        (&issued[..issued.len() - 2], 401),
    ] {
        assert_eq!(bearer(server, token).await, code);
    }
    issued
}

/// Credentials in other places: basic authentication, a WebSocket's protocol, a cookie, a review.
async fn send_other_credentials(server: &Server) {
    let basic = format!("Basic {}", encode(&format!("eve:{PASSWORD}")));
    let protocol = format!(
        "base64url.bearer.authorization.k8s.io.{}, v4.channel.k8s.io",
        base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(WRONG_TOKEN)
    );
    for headers in [
        [("authorization", basic.as_str())],
        [("sec-websocket-protocol", protocol.as_str())],
        [("cookie", PASSWORD)],
    ] {
        let (path, client) = ("/api/v1/nodes", without_credentials(server));
        let answer = over_tls(server, client, "GET", path, &headers, "").await;
        answer.unwrap();
    }
    let review = json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1",
                        "spec": {"token": WRONG_TOKEN}});
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    assert_eq!(admin(server, "POST", reviews, review).await.code, 201);
}

/// Everything that was sent, also encoded.
fn planted(issued: &str) -> Vec<String> {
    let (_, bootstrap_secret) = BOOTSTRAP.split_once('.').unwrap();
    let signature = issued.rsplit('.').next().unwrap();
    let planted = [
        STATIC_TOKEN,
        BOOTSTRAP,
        bootstrap_secret,
        WRONG_TOKEN,
        PASSWORD,
        SECRET,
        BODY,
        QUERY,
        signature,
    ];
    let mut planted: Vec<String> = planted.iter().map(|&text| text.to_owned()).collect();
    planted.extend([SECRET, WRONG_TOKEN, PASSWORD, bootstrap_secret].map(encode));
    planted
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_token_or_key_is_ever_logged() {
    let log = Log::default();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(log.clone())
        .try_init()
        .unwrap();
    let server = Server::configured(|config, directory| {
        let tokens = directory.join("tokens.csv");
        std::fs::write(&tokens, format!("{STATIC_TOKEN},eve,u1,dev\n")).unwrap();
        config.token_auth_file = Some(tokens);
    })
    .await;
    send_secrets(&server).await;
    let issued = send_bearer_tokens(&server).await;
    send_other_credentials(&server).await;
    // Renewing all certificates writes new keys.
    let keys_before = keys(&server);
    let later = jiff::Timestamp::now() + std::time::Duration::from_secs(300 * 24 * 3600);
    assert!(!server.pki.renew(later).unwrap().is_empty());
    let logged = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(
        logged.contains("refused"),
        "the log shows what happens at all"
    );
    let mut planted = planted(&issued);
    planted.extend(keys_before);
    planted.extend(keys(&server));
    for text in planted {
        let shown: Vec<&str> = logged.lines().filter(|line| line.contains(&text)).collect();
        assert!(shown.is_empty(), "{text} is in the log: {shown:?}");
    }
}
