//! Runs our API server as a separate process, optionally with our scheduler and controllers; or our
//! scheduler as a client with a kubeconfig.

use std::{
    io::Write,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use apiserver::{ApiServer, ObjectCodec, Registry, User};
use lifecycle::{Context, Health, Service, Supervisor};
use pki::{Leaf, Names, Pki};
use stdx::SystemClock;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio_util::sync::CancellationToken;

/// Kubeconfigs that [`serve`] writes into its directory.
pub(crate) const ADMIN: &str = "admin.kubeconfig";
pub(crate) const SCHEDULER: &str = "scheduler.kubeconfig";
const CONTROLLERS: &str = "controllers.kubeconfig";

/// Serves until the process is killed. Prints a line when the server is ready. A line on stdin starts
/// the scheduler, unless it was started at once.
pub(crate) async fn serve(directory: &Path, schedules: bool, controls: bool) -> Result<()> {
    // As the server does.
    allocator::purge_in_background();
    let pki = Arc::new(Pki::ensure(&directory.join("pki"), &Names::default())?);
    let (server, supervisor) = assemble(directory, &pki, controls)?;
    let talk = async {
        let address = server.address().await;
        let url = format!("https://{address}");
        for (file, leaf) in [
            (ADMIN, Leaf::Admin),
            (SCHEDULER, Leaf::Scheduler),
            (CONTROLLERS, Leaf::ControllerManager),
        ] {
            std::fs::write(directory.join(file), pki.kubeconfig(leaf, &url)?)?;
        }
        println!("ready");
        std::io::stdout().flush()?;
        let mut line = String::new();
        if !schedules {
            let mut input = BufReader::new(tokio::io::stdin());
            input.read_line(&mut line).await?;
        }
        if schedules || !line.is_empty() {
            let user = User::new("system:kube-scheduler", [""; 0]);
            let client = client::in_process(server.connect(user));
            run_scheduler(client).await?;
        }
        std::future::pending::<Result<()>>().await
    };
    let (_, talked) = tokio::join!(supervisor.run(CancellationToken::new()), talk);
    talked
}

fn assemble(
    directory: &Path,
    pki: &Arc<Pki>,
    controls: bool,
) -> Result<(Arc<ApiServer>, Supervisor)> {
    let health = Health::default();
    let registry = Registry::builtin();
    let codec = ObjectCodec::new(registry.clone());
    let store = store::embedded::Embedded::open(directory.join("store"), codec)?;
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let config = apiserver::Config {
        listen,
        advertise: listen,
        server_name: None,
        tls: pki.apiserver_config()?,
        kubelet_tls: None,
        front_proxy: None,
        service_cidrs: vec![(IpAddr::V4(Ipv4Addr::new(10, 43, 0, 0)), 16)],
        node_ports: 30000..=32767,
        client_ca: pki.ca().pem().to_owned(),
        front_proxy_ca: pki.front_proxy_ca().pem().to_owned(),
        health: health.clone(),
        clock: Arc::new(SystemClock),
        limits: apiserver::Limits::default(),
        name_suffixes: Arc::new(apiserver::RandomNameSuffixes),
        token_auth_file: None,
        access: apiserver::AccessOptions::default(),
        audit: None,
        admission: apiserver::admission::Options::default(),
        tokens: None,
    };
    let server = config.build(store, registry)?;
    let mut services: Vec<Arc<dyn Service>> = vec![server.clone()];
    if controls {
        services.push(Arc::new(controllers(&server, pki)));
    }
    let supervisor = Supervisor::new(services, Duration::from_secs(5), health)?;
    Ok((server, supervisor))
}

/// All controllers, each as its own account.
fn controllers(server: &Arc<ApiServer>, pki: &Arc<Pki>) -> controllers::Controllers {
    let server = server.clone();
    let connect = move |name: &str| {
        let account = name.strip_prefix("system:serviceaccount:");
        let user = match account.and_then(|rest| rest.split_once(':')) {
            Some((namespace, account)) => User::service_account(namespace, account),
            None => User::new(name, [""; 0]),
        };
        client::in_process(server.connect(user).agent("kube-controller-manager"))
    };
    let config = controllers::Config {
        cluster_ca: pki.ca().pem().to_owned(),
        cluster_cidr: "10.0.0.0/8".to_owned(),
        authority: Some(controllers::Authority(pki.clone())),
        ..controllers::Config::default()
    };
    config.build(Arc::new(connect))
}

/// Our scheduler, as a client of any cluster.
pub(crate) async fn schedule(kubeconfig: &Path) -> Result<()> {
    // As the server does.
    allocator::purge_in_background();
    run_scheduler(client::from_kubeconfig(kubeconfig)?).await
}

async fn run_scheduler(client: kube::Client) -> Result<()> {
    let context = Context::standalone("scheduler", CancellationToken::new());
    let scheduler = Arc::new(scheduler::Config::new(client).build());
    let outcome = scheduler.run(context).await;
    outcome.map_err(|error| anyhow::anyhow!("{error}"))
}
