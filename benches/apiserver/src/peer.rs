//! Plain HTTP/1.1 connections to the server of a kubeconfig.

use std::{path::Path, sync::Arc};

use anyhow::{Context, ensure};
use bytes::Bytes;
use client::Kubeconfig;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::{net::TcpStream, task::JoinHandle};
use tokio_rustls::TlsConnector;

/// A server, and how to reach it.
#[derive(Clone)]
pub struct Peer {
    address: String,
    name: ServerName<'static>,
    tls: Arc<rustls::ClientConfig>,
    token: Option<String>,
}

/// One connection.
pub struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
    host: String,
    token: Option<String>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Peer {
    /// The current context of a kubeconfig.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let config = Kubeconfig::read(path)?;
        let (_, cluster, user) = config.resolve(None)?;
        let mut tls = config.tls(cluster, user)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let server = cluster.server.trim_end_matches('/');
        let address = server
            .strip_prefix("https://")
            .context("the server must speak HTTPS")?;
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        Ok(Self {
            address: address.to_owned(),
            name: ServerName::try_from(host)?,
            tls: Arc::new(tls),
            token: user.token.clone(),
        })
    }

    /// A new connection.
    pub async fn connect(&self) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let tls = TlsConnector::from(self.tls.clone())
            .connect(self.name.clone(), stream)
            .await?;
        let (sender, connection) = http1::handshake(TokioIo::new(tls)).await?;
        let driver = tokio::spawn(async move {
            // Its end shows in the requests.
            let _ = connection.await;
        });
        let (host, token) = (self.address.clone(), self.token.clone());
        Ok(Connection {
            sender,
            driver,
            host,
            token,
        })
    }
}

impl Connection {
    /// Sends a request and waits for the beginning of its answer.
    pub async fn begin(
        &mut self,
        method: &str,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<Response<Incoming>> {
        let mut request = Request::builder().method(method).uri(path);
        request = request.header(header::HOST, &self.host);
        request = request.header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        self.sender.ready().await?;
        Ok(self
            .sender
            .send_request(request.body(Full::new(body))?)
            .await?)
    }

    /// Sends a request, checks its answer's code, and counts the answer's bytes.
    pub async fn exchange(&mut self, method: &str, path: &str, body: Bytes) -> anyhow::Result<u64> {
        let response = self.begin(method, path, body).await?;
        let code = response.status();
        let mut body = response.into_body();
        let mut count = 0;
        let mut refusal = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else {
                continue;
            };
            count += data.len() as u64;
            if !code.is_success() {
                refusal.extend_from_slice(&data);
            }
        }
        let refusal = String::from_utf8_lossy(&refusal);
        ensure!(code.is_success(), "{method} {path}: {code} {refusal}");
        Ok(count)
    }
}
