//! Pulls from Debian's docker-registry on a loopback address and from misbehaving registries, and
//! archives.

pub(crate) mod daemon;
mod fake;
mod hostile;
mod protocols;
mod pulls;

use std::{
    fs,
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use runtime::images::{
    Images,
    registry::{Host, Registries},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub(crate) fn digest(bytes: &[u8]) -> String {
    let digits: String = Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{digits}")
}

/// A layer with one file.
pub(crate) fn layer(name: &str, content: &str) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    archive
        .append_data(&mut header, name, content.as_bytes())
        .unwrap();
    archive.into_inner().unwrap()
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut reader = flate2::read::GzEncoder::new(bytes, flate2::Compression::fast());
    std::io::copy(&mut reader, &mut out).unwrap();
    out
}

pub(crate) fn architecture() -> &'static str {
    if std::env::consts::ARCH == "x86_64" {
        "amd64"
    } else {
        "arm64"
    }
}

/// Three layers, each compressed differently; the second deletes a file of the first.
pub(crate) struct Sample {
    pub config: Vec<u8>,
    pub layers: Vec<(&'static str, Vec<u8>)>,
    pub manifest: Vec<u8>,
}

pub(crate) fn sample() -> Sample {
    let plain = [
        layer("base", "one"),
        layer(".wh.base", ""),
        layer("top", "three"),
    ];
    let config = json!({ "Cmd": ["/top"], "Env": ["A=b"], "User": "7" });
    image(&plain, config)
}

/// An image whose layers are gzip, plain and zstd in turn.
pub(crate) fn image(plain: &[Vec<u8>], config: Value) -> Sample {
    let pack = |(number, layer): (usize, &Vec<u8>)| match number % 3 {
        0 => (
            "application/vnd.oci.image.layer.v1.tar+gzip",
            gzip(layer.as_slice()),
        ),
        1 => ("application/vnd.oci.image.layer.v1.tar", layer.clone()),
        _ => (
            "application/vnd.oci.image.layer.v1.tar+zstd",
            zstd::encode_all(layer.as_slice(), 1).unwrap(),
        ),
    };
    let layers: Vec<_> = plain.iter().enumerate().map(pack).collect();
    let diff_ids: Vec<String> = plain.iter().map(|layer| digest(layer)).collect();
    let config = json!({
        "architecture": architecture(), "os": "linux", "config": config,
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
    });
    let config = config.to_string().into_bytes();
    let descriptors: Vec<Value> = layers
        .iter()
        .map(|(kind, bytes)| json!({ "mediaType": kind, "digest": digest(bytes), "size": bytes.len() }))
        .collect();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": digest(&config), "size": config.len(),
        },
        "layers": descriptors,
    });
    Sample {
        config,
        layers,
        manifest: manifest.to_string().into_bytes(),
    }
}

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

impl Sample {
    /// The format of `docker save`.
    pub(crate) fn docker_archive(plain: &[Vec<u8>], config: &[u8], name: &str) -> Vec<u8> {
        let names: Vec<String> = (0..plain.len())
            .map(|index| format!("{index}/layer.tar"))
            .collect();
        let list = json!([{ "Config": "config.json", "RepoTags": [name], "Layers": names }]);
        let mut files: Vec<(&str, &[u8])> = names
            .iter()
            .map(String::as_str)
            .zip(plain.iter().map(Vec::as_slice))
            .collect();
        let list = list.to_string();
        files.push(("config.json", config));
        files.push(("manifest.json", list.as_bytes()));
        let mut out = tar::Builder::new(Vec::new());
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            out.append_data(&mut header, name, bytes).unwrap();
        }
        out.into_inner().unwrap()
    }
}

pub(crate) trait Wire: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send> Wire for T {}

pub(crate) struct Registry {
    pub address: String,
    process: Child,
    authorization: Option<String>,
    ca: Option<String>,
    _dir: tempfile::TempDir,
}

impl Registry {
    pub(crate) fn start(password: bool) -> Self {
        Self::launch(password, false)
    }

    /// With a certificate of its own CA.
    pub(crate) fn with_tls() -> Self {
        Self::launch(false, true)
    }

    fn launch(password: bool, tls: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let address = format!("127.0.0.1:{port}");
        let mut config = format!(
            "version: 0.1\nlog: {{ level: error }}\nstorage: {{ filesystem: {{ rootdirectory: {} }} }}\n\
             http: {{ addr: {address}{} }}\n",
            dir.path().join("data").display(),
            if tls {
                format!(
                    ", tls: {{ certificate: {0}/cert.pem, key: {0}/key.pem }}",
                    dir.path().display()
                )
            } else {
                String::new()
            }
        );
        let ca = tls.then(|| certificate(dir.path()));
        if password {
            // ada, lovelace
            let hash = "ada:$2y$05$OXQqnOkTzC0w2Ly/OxlnT.iknaU92NNNnZ7Lw7mQ9GyKaYOEiCtQW\n";
            fs::write(dir.path().join("users"), hash).unwrap();
            config += &format!(
                "auth: {{ htpasswd: {{ realm: test, path: {} }} }}\n",
                dir.path().join("users").display()
            );
        }
        fs::write(dir.path().join("config.yml"), config).unwrap();
        let process = Command::new("docker-registry")
            .arg("serve")
            .arg(dir.path().join("config.yml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("Debian's package docker-registry is needed");
        let deadline = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(&address).is_err() {
            assert!(Instant::now() < deadline, "the registry does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        let secret = BASE64_STANDARD.encode("ada:lovelace");
        let authorization = password.then(|| format!("Basic {secret}"));
        Self {
            address,
            process,
            authorization,
            ca,
            _dir: dir,
        }
    }

    async fn wire(&self) -> Box<dyn Wire> {
        let stream = tokio::net::TcpStream::connect(&self.address).await.unwrap();
        let Some(ca) = &self.ca else {
            return Box::new(stream);
        };
        let mut roots = rustls::RootCertStore::empty();
        for certificate in rustls_pemfile::certs(&mut ca.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let name = "127.0.0.1".try_into().unwrap();
        Box::new(connector.connect(name, stream).await.unwrap())
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: &[u8],
    ) -> http::Response<Bytes> {
        let stream = self.wire().await;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        let mut request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("host", &self.address);
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let request = request
            .header("content-type", kind)
            .body(Full::new(Bytes::copy_from_slice(body)));
        let answer = sender.send_request(request.unwrap()).await.unwrap();
        let (parts, body) = answer.into_parts();
        http::Response::from_parts(parts, body.collect().await.unwrap().to_bytes())
    }

    pub(crate) async fn push(&self, name: &str, sample: &Sample) {
        let blobs = sample
            .layers
            .iter()
            .map(|(_, bytes)| bytes)
            .chain([&sample.config]);
        for bytes in blobs {
            let begun = self
                .send("POST", &format!("/v2/{name}/blobs/uploads/"), "", b"")
                .await;
            assert_eq!(begun.status(), 202, "{:?}", begun.body());
            let place = begun.headers()["location"].to_str().unwrap().to_owned();
            let path = place
                .split_once(&self.address)
                .map_or(place.as_str(), |(_, path)| path);
            let mark = if path.contains('?') { '&' } else { '?' };
            let path = format!("{path}{mark}digest={}", digest(bytes));
            let done = self
                .send("PUT", &path, "application/octet-stream", bytes)
                .await;
            assert_eq!(done.status(), 201, "{:?}", done.body());
        }
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let done = self
            .send(
                "PUT",
                &format!("/v2/{name}/manifests/v1"),
                kind,
                &sample.manifest,
            )
            .await;
        assert_eq!(done.status(), 201, "{:?}", done.body());
    }

    pub(crate) fn registries(&self) -> Registries {
        let host = Host {
            plain_http: self.ca.is_none(),
            ca: self.ca.clone(),
            ..Host::default()
        };
        Registries {
            hosts: [(self.address.clone(), host)].into(),
        }
    }

    /// Registries configured to use plain HTTP.
    pub(crate) fn plain(&self) -> Registries {
        let host = Host {
            plain_http: true,
            ..Host::default()
        };
        Registries {
            hosts: [(self.address.clone(), host)].into(),
        }
    }
}

/// Writes a certificate and its key for loopback; returns the CA.
fn certificate(dir: &Path) -> String {
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut ca = rcgen::CertificateParams::default();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = ca.self_signed(&ca_key).unwrap();
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let server = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let server = server.signed_by(&key, &issuer).unwrap();
    fs::write(dir.join("cert.pem"), server.pem()).unwrap();
    fs::write(dir.join("key.pem"), key.serialize_pem()).unwrap();
    certificate.pem()
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn store(dir: &Path) -> Arc<Images> {
    Arc::new(Images::open(dir.to_path_buf()).unwrap())
}

pub(crate) fn files(images: &Images, name: &str) -> Vec<Vec<String>> {
    let image = images.need(name).unwrap();
    let names = |dir: &Path| {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    images
        .layer_dirs(&image)
        .iter()
        .map(|dir| names(dir))
        .collect()
}
