//! The API server alone over the embedded store, for load tests. Takes a directory and an address,
//! writes `admin.kubeconfig` into the directory once it serves, and runs until killed.

use std::{path::PathBuf, sync::Arc};

use apiserver::{Config, Limits, ObjectCodec, Registry};
use lifecycle::{Context, Service};
use pki::{Leaf, Names, Pki};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().ok_or("usage: serve DIRECTORY")?);
    let listen = arguments
        .next()
        .unwrap_or_else(|| "127.0.0.1:0".to_owned())
        .parse()?;
    let pki = Pki::ensure(&directory.join("pki"), &Names::default())?;
    let registry = Registry::builtin();
    let codec = ObjectCodec::new(registry.clone());
    let store = store::embedded::Embedded::open(directory.join("store"), codec)?;
    let config = Config {
        listen,
        advertise: listen,
        server_name: None,
        tls: pki.apiserver_config()?,
        kubelet_tls: None,
        front_proxy: None,
        service_cidrs: vec![("10.43.0.0".parse()?, 16)],
        node_ports: 30000..=32767,
        client_ca: pki.ca().pem().to_owned(),
        front_proxy_ca: pki.front_proxy_ca().pem().to_owned(),
        health: lifecycle::Health::default(),
        clock: Arc::new(stdx::SystemClock),
        limits: Limits::default(),
        name_suffixes: std::sync::Arc::new(apiserver::RandomNameSuffixes),
        token_auth_file: None,
        access: apiserver::AccessOptions::default(),
        audit: None,
        admission: apiserver::admission::Options::default(),
        tokens: None,
    };
    let server = config.build(store, registry)?;
    let context = Context::standalone("apiserver", CancellationToken::new());
    let run = tokio::spawn(server.clone().run(context));
    let kubeconfig = directory.join("admin.kubeconfig");
    let url = format!("https://{}", server.address().await);
    std::fs::write(&kubeconfig, pki.kubeconfig(Leaf::Admin, &url)?)?;
    run.await?
}
