//! HTTPS calls to servers that files on disk configure: webhooks in a kubeconfig file, and documents of token issuers.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Uri, header};
use http_body_util::Full;
use hyper_util::{
    client::legacy::Client as Pool,
    rt::{TokioExecutor, TokioTimer},
};

use crate::{
    AGENT, Answer, Call, ClientConfig, Connector, Credentials, Failure, Http, IDLE_CONNECTIONS,
    answer, credentials::Cluster, describe_error, quote, read, tls,
};

/// The maximum number of attempts of a call that fails with a transient error.
const ATTEMPTS: u32 = 5;
/// The wait before the second attempt; it grows by half with each further attempt.
const BACKOFF: Duration = Duration::from_millis(500);

/// A client of the server in a kubeconfig file.
pub struct Remote {
    http: Http,
    url: String,
    authorization: Option<HeaderValue>,
}

impl Remote {
    /// Uses the cluster and the user of the current context.
    pub fn from_kubeconfig(path: &Path) -> Result<Self, String> {
        let failed = |why: String| format!("{}: {why}", path.display());
        let credentials = Credentials::read(path)?;
        let (cluster, shown) = credentials.current().map_err(failed)?;
        let target = target(&cluster.server).map_err(failed)?;
        let name = match cluster.tls_server_name.as_str() {
            "" => target.server_name.as_str(),
            name => name,
        };
        let tls = tls_config(&cluster, shown.identity.as_ref()).map_err(failed)?;
        Ok(Self {
            http: pool(tls, name).map_err(failed)?,
            url: target.url,
            authorization: shown.authorization,
        })
    }

    /// Posts JSON. Transient failures are retried until the call's timeout.
    pub async fn post(&self, call: Call) -> Result<Answer, Failure> {
        let calls = async {
            let mut wait = BACKOFF;
            for _ in 1..ATTEMPTS {
                match self.post_once(&call).await {
                    Err(failure) if may_pass(&failure) => tokio::time::sleep(wait).await,
                    other => return other,
                }
                wait = wait * 3 / 2;
            }
            self.post_once(&call).await
        };
        let answer = tokio::time::timeout(call.timeout, calls).await;
        answer.unwrap_or_else(|_| Err(timed_out("Post", &self.url)))
    }

    async fn post_once(&self, call: &Call) -> Result<Answer, Failure> {
        let mut request = Request::post(&self.url)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, */*")
            .header(header::USER_AGENT, AGENT);
        if let Some(value) = &self.authorization {
            request = request.header(header::AUTHORIZATION, value.clone());
        }
        let request = request.body(Full::new(call.body.clone()));
        exchange(&self.http, "Post", &self.url, request, call.limit).await
    }
}

/// Fetches a document. `ca_bundle` contains CA certificates in PEM; if it is empty, the system's CAs are trusted.
pub async fn get(
    url: &str,
    ca_bundle: &[u8],
    bearer: Option<&str>,
    timeout: Duration,
    limit: usize,
) -> Result<Answer, Failure> {
    let target = target(url).map_err(Failure::unavailable)?;
    let tls = tls::client_config(ca_bundle, None).map_err(Failure::unavailable)?;
    let http = pool(tls, &target.server_name).map_err(Failure::unavailable)?;
    let mut request = Request::get(url).header(header::USER_AGENT, AGENT);
    if let Some(token) = bearer {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Full::new(Bytes::new()));
    let answer = tokio::time::timeout(timeout, exchange(&http, "Get", url, request, limit)).await;
    answer.unwrap_or_else(|_| Err(timed_out("Get", url)))
}

async fn exchange(
    http: &Http,
    verb: &str,
    url: &str,
    request: Result<Request<Full<Bytes>>, http::Error>,
    limit: usize,
) -> Result<Answer, Failure> {
    let failed = |why: &str| Failure::unavailable(format!("{verb} {}: {why}", quote(url)));
    let request = request.map_err(|error| failed(&error.to_string()))?;
    let response = http.request(request).await;
    let response = response.map_err(|error| failed(&describe_error(&error)))?;
    let (parts, body) = response.into_parts();
    answer::read_answer(&parts, read(body, limit).await?)
}

fn may_pass(failure: &Failure) -> bool {
    matches!(failure.code, 429 | 500 | 504) || failure.message.ends_with(": EOF")
}

fn timed_out(verb: &str, url: &str) -> Failure {
    let message = format!("{verb} {}: context deadline exceeded", quote(url));
    Failure {
        timed_out: true,
        ..Failure::unavailable(message)
    }
}

fn target(url: &str) -> Result<crate::config::Target, String> {
    let scheme = url.parse::<Uri>().ok().and_then(|uri| {
        let scheme = uri.scheme_str()?;
        Some(scheme.to_owned())
    });
    if scheme.as_deref() != Some("https") {
        return Err(format!("{url:?} must be a URL that begins with https://"));
    }
    let config = ClientConfig {
        url: Some(url.to_owned()),
        ..ClientConfig::default()
    };
    config.target()
}

fn tls_config(
    cluster: &Cluster,
    identity: Option<&tls::Identity>,
) -> Result<rustls::ClientConfig, String> {
    let mut config = tls::client_config(&cluster.authorities, identity)?;
    if cluster.insecure_skip_tls_verify {
        let any = pki::AnyServer(Arc::new(rustls::crypto::ring::default_provider()));
        config.dangerous().set_certificate_verifier(Arc::new(any));
    }
    Ok(config)
}

fn pool(mut tls: rustls::ClientConfig, server_name: &str) -> Result<Http, String> {
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let connector = Connector::new(tls, server_name, None)?;
    Ok(Pool::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .build(connector))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_https_is_spoken() {
        assert!(target("https://a.example:8443/x").is_ok());
        for url in ["http://a.example", "a.example", "", "https://"] {
            assert!(target(url).is_err(), "{url}");
        }
    }

    #[tokio::test]
    async fn a_kubeconfig_names_its_server_by_the_current_context() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hook.yaml");
        let made = rcgen::generate_simple_self_signed(["hook".to_owned()]).unwrap();
        std::fs::write(directory.path().join("ca.crt"), made.cert.pem()).unwrap();
        let text = "
clusters:
- {name: other, cluster: {server: 'https://127.0.0.1:2/'}}
- {name: hook, cluster: {server: 'https://127.0.0.1:1/review', certificate-authority: ca.crt}}
users: [{name: me, user: {token: secret}}]
contexts: [{name: c, context: {cluster: hook, user: me}}]
current-context: c
";
        std::fs::write(&path, text).unwrap();
        let remote = Remote::from_kubeconfig(&path).unwrap();
        assert_eq!(remote.url, "https://127.0.0.1:1/review");
        let shown = remote.authorization.as_ref().unwrap();
        assert_eq!(shown.to_str().unwrap(), "Bearer secret");
        std::fs::write(&path, text.replace("current-context: c", "")).unwrap();
        let why = Remote::from_kubeconfig(&path).err().unwrap();
        assert!(why.contains("current-context"), "{why}");
    }
}
