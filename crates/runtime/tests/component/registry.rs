//! Pulls from Debian's docker-registry on a loopback address, with and without a password, and
//! archives in and out.

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
    Images, Reference,
    registry::{Credentials, Host, Registries},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

fn digest(bytes: &[u8]) -> String {
    let digits: String = Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{digits}")
}

/// A layer with one file.
fn layer(name: &str, content: &str) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    archive
        .append_data(&mut header, name, content.as_bytes())
        .unwrap();
    archive.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut reader = flate2::read::GzEncoder::new(bytes, flate2::Compression::fast());
    std::io::copy(&mut reader, &mut out).unwrap();
    out
}

fn architecture() -> &'static str {
    if std::env::consts::ARCH == "x86_64" {
        "amd64"
    } else {
        "arm64"
    }
}

/// Three layers, each packed differently; the second hides a file of the first.
struct Sample {
    config: Vec<u8>,
    layers: Vec<(&'static str, Vec<u8>)>,
    manifest: Vec<u8>,
}

fn sample() -> Sample {
    let plain = [
        layer("base", "one"),
        layer(".wh.base", ""),
        layer("top", "three"),
    ];
    let diff_ids: Vec<String> = plain.iter().map(|layer| digest(layer)).collect();
    let layers = vec![
        (
            "application/vnd.oci.image.layer.v1.tar+gzip",
            gzip(&plain[0]),
        ),
        ("application/vnd.oci.image.layer.v1.tar", plain[1].clone()),
        (
            "application/vnd.oci.image.layer.v1.tar+zstd",
            zstd::encode_all(plain[2].as_slice(), 1).unwrap(),
        ),
    ];
    let config = json!({
        "architecture": architecture(), "os": "linux",
        "config": { "Cmd": ["/top"], "Env": ["A=b"], "User": "7" },
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
    });
    let config = config.to_string().into_bytes();
    let descriptors: Vec<Value> = layers
        .iter()
        .map(|(kind, bytes)| json!({ "mediaType": kind, "digest": digest(bytes), "size": bytes.len() }))
        .collect();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
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

struct Registry {
    address: String,
    process: Child,
    authorization: Option<String>,
    _dir: tempfile::TempDir,
}

impl Registry {
    fn start(password: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let address = format!("127.0.0.1:{port}");
        let mut config = format!(
            "version: 0.1\nlog: {{ level: error }}\nstorage: {{ filesystem: {{ rootdirectory: {} }} }}\n\
             http: {{ addr: {address} }}\n",
            dir.path().join("data").display()
        );
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
            _dir: dir,
        }
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: &[u8],
    ) -> http::Response<Bytes> {
        let stream = tokio::net::TcpStream::connect(&self.address).await.unwrap();
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

    async fn push(&self, name: &str, sample: &Sample) {
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

    fn registries(&self) -> Registries {
        let host = Host {
            plain_http: true,
            ..Host::default()
        };
        Registries {
            hosts: [(self.address.clone(), host)].into(),
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn store(dir: &Path) -> Arc<Images> {
    Arc::new(Images::open(dir.to_path_buf()).unwrap())
}

fn files(images: &Images, name: &str) -> Vec<Vec<String>> {
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

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_pulled_by_tag_and_by_digest_continued_and_removed() {
    let (registry, sample, dir) = (
        Registry::start(false),
        sample(),
        tempfile::tempdir().unwrap(),
    );
    registry.push("team/app", &sample).await;
    let images = store(dir.path());
    let name = format!("{}/team/app:v1", registry.address);
    let reference = Reference::parse(&name).unwrap();
    let nobody = Credentials::default();

    // A download that was cut off is continued, not begun anew.
    let (_, first) = &sample.layers[0];
    let part = dir
        .path()
        .join("staging")
        .join(format!("{}.part", digest(first).replace(':', "-")));
    fs::write(&part, &first[..10]).unwrap();
    let image = images
        .pull(&reference, &registry.registries(), &nobody)
        .await
        .unwrap();
    assert_eq!(image.id, digest(&sample.config));
    assert_eq!(
        (image.config.user.as_str(), image.config.cmd.as_slice()),
        ("7", &["/top".to_owned()][..])
    );
    assert_eq!(files(&images, &name), [["top"], ["base"], ["base"]]);

    let by_digest = format!("{}/team/app@{}", registry.address, digest(&sample.manifest));
    let (exact, registries) = (Reference::parse(&by_digest).unwrap(), registry.registries());
    let again = images.pull(&exact, &registries, &nobody).await;
    assert_eq!(again.unwrap().id, image.id);
    let wrong = format!("{}/team/app@sha256:{}", registry.address, "0".repeat(64));
    let wrong = images
        .pull(
            &Reference::parse(&wrong).unwrap(),
            &registry.registries(),
            &nobody,
        )
        .await;
    assert!(wrong.is_err());

    // Out and in again, in another store.
    let mut archive = Vec::new();
    images.export(&name, &mut archive).unwrap();
    let other = tempfile::tempdir().unwrap();
    let imported = store(other.path()).import(archive.as_slice()).unwrap();
    assert_eq!(imported[0].id, image.id);
    assert_eq!(
        files(&store(other.path()), &name),
        [["top"], ["base"], ["base"]]
    );

    images.remove(&image.id).unwrap();
    assert!(images.list().unwrap().is_empty());
    assert_eq!(
        fs::read_dir(dir.path().join("layers")).unwrap().count(),
        0,
        "layers are swept"
    );
    assert_eq!(
        fs::read_dir(dir.path().join("blobs/sha256"))
            .unwrap()
            .count(),
        0,
        "blobs are swept"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_opens_a_private_registry_and_mirrors_are_tried_first() {
    let (registry, sample, dir) = (
        Registry::start(true),
        sample(),
        tempfile::tempdir().unwrap(),
    );
    registry.push("app", &sample).await;
    let images = store(dir.path());
    let reference = Reference::parse(&format!("{}/app:v1", registry.address)).unwrap();
    let refused = images
        .pull(&reference, &registry.registries(), &Credentials::default())
        .await;
    assert!(refused.unwrap_err().to_string().contains("401"));
    let ada = Credentials {
        username: "ada".into(),
        password: "lovelace".into(),
        ..Default::default()
    };
    images
        .pull(&reference, &registry.registries(), &ada)
        .await
        .unwrap();

    // A name whose registry does not exist comes from its mirror.
    let mirrored = Reference::parse("registry.invalid/app:v1").unwrap();
    let host = Host {
        mirrors: vec![format!("http://{}", registry.address)],
        ..Host::default()
    };
    let registries = Registries {
        hosts: [("registry.invalid".to_owned(), host)].into(),
    };
    let image = images.pull(&mirrored, &registries, &ada).await.unwrap();
    assert!(
        image.tags.contains("registry.invalid/app:v1"),
        "{:?}",
        image.tags
    );
}

#[test]
fn archives_of_docker_are_imported_and_lies_are_refused() {
    let sample = sample();
    let plain: Vec<Vec<u8>> = vec![
        layer("base", "one"),
        layer(".wh.base", ""),
        layer("top", "three"),
    ];
    let archive = |config: &[u8], layers: &[Vec<u8>]| {
        let mut out = tar::Builder::new(Vec::new());
        let mut add = |name: &str, bytes: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            out.append_data(&mut header, name, bytes).unwrap();
        };
        let names: Vec<String> = (0..layers.len())
            .map(|index| format!("{index}/layer.tar"))
            .collect();
        for (name, bytes) in names.iter().zip(layers) {
            add(name, bytes);
        }
        add("config.json", config);
        let list = json!([{ "Config": "config.json", "RepoTags": ["app:old"], "Layers": names }]);
        add("manifest.json", list.to_string().as_bytes());
        out.into_inner().unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    let images = store(dir.path());
    let imported = images
        .import(gzip(&archive(&sample.config, &plain)).as_slice())
        .unwrap();
    assert_eq!(imported[0].id, digest(&sample.config));
    assert!(images.get("app:old").unwrap().is_some());

    let mut swapped = plain.clone();
    swapped.swap(0, 2);
    let empty = tempfile::tempdir().unwrap();
    let images = store(empty.path());
    let refused = images
        .import(archive(&sample.config, &swapped).as_slice())
        .unwrap_err();
    assert!(refused.to_string().contains("unpacks to"), "{refused}");
    assert!(images.list().unwrap().is_empty(), "nothing looks complete");
    let elsewhere = String::from_utf8(sample.config.clone())
        .unwrap()
        .replace("linux", "plan9");
    let refused = images
        .import(archive(elsewhere.as_bytes(), &plain).as_slice())
        .unwrap_err();
    assert!(refused.to_string().contains("plan9"), "{refused}");
    assert!(images.import(&b"not an archive at all"[..]).is_err());
}
