//! A fake registry that misbehaves as told: requires tokens, closes connections, serves wrong
//! content.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use base64::{Engine, prelude::BASE64_STANDARD};
use parking_lot::Mutex;
use runtime::images::registry::{Host, Registries};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

use super::{MANIFEST, Sample, digest};

#[derive(Default)]
pub(super) struct Manners {
    /// Requires `Authorization: Bearer` with this token, which `/token` returns to ada or for
    /// `refresh`.
    pub token: Option<&'static str>,
    /// How many blob responses are cut off after this many bytes.
    pub cuts: AtomicUsize,
    pub cut_after: usize,
    /// Blob responses pause halfway until this is notified.
    pub stall: Option<Arc<Notify>>,
    /// Blobs are redirected to this URL.
    pub redirect: Option<String>,
    /// Wrong content by digest.
    pub lies: HashMap<String, Vec<u8>>,
}

pub(super) struct Fake {
    pub address: String,
    state: Arc<State>,
}

struct State {
    address: String,
    manners: Manners,
    /// By tag and by digest, with their media types.
    manifests: Mutex<HashMap<String, (String, Vec<u8>)>>,
    blobs: Mutex<HashMap<String, Vec<u8>>>,
    seen: Mutex<Vec<String>>,
    stalled: Notify,
}

impl Fake {
    pub(super) async fn start(manners: Manners) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(State {
            address: address.clone(),
            manners,
            manifests: Mutex::default(),
            blobs: Mutex::default(),
            seen: Mutex::default(),
            stalled: Notify::new(),
        });
        let serving = state.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = serving.clone();
                tokio::spawn(async move { state.serve(stream).await });
            }
        });
        Self { address, state }
    }

    pub(super) fn put(&self, tag: &str, sample: &Sample) {
        for bytes in sample
            .layers
            .iter()
            .map(|(_, bytes)| bytes)
            .chain([&sample.config])
        {
            self.state.blobs.lock().insert(digest(bytes), bytes.clone());
        }
        self.put_manifest(tag, MANIFEST, &sample.manifest);
    }

    pub(super) fn put_manifest(&self, tag: &str, kind: &str, bytes: &[u8]) {
        let entry = (kind.to_owned(), bytes.to_vec());
        let mut manifests = self.state.manifests.lock();
        manifests.insert(tag.to_owned(), entry.clone());
        manifests.insert(digest(bytes), entry);
    }

    pub(super) fn registries(&self) -> Registries {
        let host = Host {
            plain_http: true,
            ..Host::default()
        };
        Registries {
            hosts: [(self.address.clone(), host)].into(),
        }
    }

    pub(super) fn name(&self, rest: &str) -> String {
        format!("{}/{rest}", self.address)
    }

    /// Requests so far: path, range and authorization.
    pub(super) fn seen(&self) -> Vec<String> {
        self.state.seen.lock().clone()
    }

    /// Waits until a client has half a blob.
    pub(super) async fn stalled(&self) {
        self.state.stalled.notified().await;
    }
}

struct Head {
    path: String,
    headers: HashMap<String, String>,
    body: String,
}

async fn read(stream: &mut TcpStream) -> Option<Head> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(stream.read_u8().await.ok()?);
    }
    let text = String::from_utf8(bytes).unwrap();
    let mut lines = text.lines();
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let headers: HashMap<_, _> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let length = headers
        .get("content-length")
        .map_or(0, |n| n.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    let body = String::from_utf8(body).unwrap();
    Some(Head {
        path,
        headers,
        body,
    })
}

fn answer(status: &str, more: &str, body: &[u8]) -> Vec<u8> {
    let mut out = format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\n{more}Content-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    out.extend_from_slice(body);
    out
}

impl State {
    /// The answer of the token service, or of the registry to a request without a token; `None` if the
    /// request may proceed.
    fn token_or_challenge(&self, head: &Head) -> Option<Vec<u8>> {
        let authorization = head.headers.get("authorization");
        let authorization = authorization.map(String::as_str).unwrap_or_default();
        if head.path.starts_with("/token") {
            let ada = format!("Basic {}", BASE64_STANDARD.encode("ada:lovelace"));
            let known = authorization == ada || head.body.contains("refresh_token=old%2Ftoken");
            if !known {
                return Some(answer("401 Unauthorized", "", b""));
            }
            let token = self.manners.token.unwrap_or_default();
            let body = format!(r#"{{"token":"{token}"}}"#);
            return Some(answer("200 OK", "", body.as_bytes()));
        }
        let token = self.manners.token?;
        if authorization == format!("Bearer {token}") {
            return None;
        }
        let challenge = format!(
            "WWW-Authenticate: Bearer realm=\"http://{}/token\",service=\"fake\",scope=\"repository:app:pull\"\r\n",
            self.address
        );
        Some(answer("401 Unauthorized", &challenge, b""))
    }

    async fn serve(&self, mut stream: TcpStream) {
        let Some(head) = read(&mut stream).await else {
            return;
        };
        let header = |name: &str| head.headers.get(name).cloned().unwrap_or_default();
        let line = format!(
            "{} {} {}",
            head.path,
            header("range"),
            header("authorization")
        );
        self.seen.lock().push(line.trim_end().to_owned());
        if let Some(out) = self.token_or_challenge(&head) {
            let _ = stream.write_all(&out).await;
            return;
        }
        let last = head.path.rsplit('/').next().unwrap_or_default().to_owned();
        if head.path.contains("/manifests/") {
            let found = self.manifests.lock().get(&last).cloned();
            let out = match found {
                Some((kind, bytes)) => {
                    answer("200 OK", &format!("Content-Type: {kind}\r\n"), &bytes)
                }
                None => answer("404 Not Found", "", b""),
            };
            let _ = stream.write_all(&out).await;
            return;
        }
        if let Some(elsewhere) = &self.manners.redirect {
            let to = format!("Location: {elsewhere}{}\r\n", head.path);
            let _ = stream
                .write_all(&answer("307 Temporary Redirect", &to, b""))
                .await;
            return;
        }
        let blob = self.manners.lies.get(&last).cloned();
        let Some(blob) = blob.or_else(|| self.blobs.lock().get(&last).cloned()) else {
            let _ = stream.write_all(&answer("404 Not Found", "", b"")).await;
            return;
        };
        let range = header("range");
        let from: usize = range
            .strip_prefix("bytes=")
            .and_then(|range| range.split('-').next()?.parse().ok())
            .unwrap_or(0);
        let status = if range.is_empty() {
            "200 OK"
        } else {
            "206 Partial Content"
        };
        let out = answer(status, "", &blob[from..]);
        let body_at = out.len() - (blob.len() - from);
        let spend = |left: usize| left.checked_sub(1);
        if blob.len() > self.manners.cut_after
            && self
                .manners
                .cuts
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend)
                .is_ok()
        {
            let end = (body_at + self.manners.cut_after).min(out.len());
            let _ = stream.write_all(&out[..end]).await;
            return;
        }
        if let Some(stall) = &self.manners.stall
            && from == 0
            && blob.len() > self.manners.cut_after
        {
            let end = body_at + self.manners.cut_after;
            let _ = stream.write_all(&out[..end]).await;
            self.stalled.notify_one();
            stall.notified().await;
            return;
        }
        let _ = stream.write_all(&out).await;
    }
}
