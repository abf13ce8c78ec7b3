//! The kubelet as a service: starts its parts in order and is ready once the API shows its node as
//! ready.

use std::{collections::HashSet, sync::Arc, time::Duration};

use client::Informer;
use k8s_openapi::api::core::v1::{Node, Pod, Service as KubeService};
use lifecycle::{Context, Outcome, Run, Service};
use reconcile::{Kind, Recorder};
use stdx::Backoff;
use tokio::sync::watch;
use tracing::warn;
use volume::LinuxMounter;

use crate::{
    Config, Error, Result, cgroups, collect,
    core::Core,
    dispatch,
    events::Events,
    node::{lease, machine::Machine, register, status},
    pod::spec,
    registry::Registry,
    rotate,
    runtime::Runtime,
    server,
    sources::Sources,
    static_pods,
};

/// The node's agent.
pub struct Kubelet {
    config: Arc<Config>,
}

impl Kubelet {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config: Arc::new(config),
        }
    }
}

impl Service for Kubelet {
    fn name(&self) -> &'static str {
        "kubelet"
    }

    fn after(&self) -> &'static [&'static str] {
        self.config.after
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move { run(self.config.clone(), context).await })
    }
}

async fn run(config: Arc<Config>, context: Context) -> Outcome {
    for dir in [config.root_dir.join("pods"), config.pod_logs_dir.clone()] {
        std::fs::create_dir_all(&dir).map_err(Error::io(&dir))?;
    }
    cgroups::ensure_classes(&config.cgroup_root)?;
    let core = Arc::new(core(&config, &context));
    let listener = server::bind(&core).await?;
    context.spawn("server", server::serve(core.clone(), listener));

    let node = retry(&config, "cannot register the node", || {
        register::register(&config)
    })
    .await;
    core.events
        .node(Kind::Normal, "Starting", "Starting kubelet.");
    let own = format!("metadata.name={}", config.node_name);
    let nodes = Informer::<Node>::builder(config.client.clone())
        .fields(own)
        .start(&context);
    let (ready, mut is_ready) = watch::channel(false);
    context.spawn(
        "node status",
        status::run(core.clone(), node.clone(), nodes.subscribe(), ready),
    );
    let holder = config.clone();
    context.spawn("lease", async move { lease::run(&holder, &node).await });

    start_pods(&core, &context).await;
    tokio::select! {
        ready = is_ready.wait_for(|ready| *ready) => if ready.is_ok() {
            context.ready();
        },
        () = context.shutdown() => return Ok(()),
    }
    context.shutdown().await;
    Ok(())
}

/// Pods begin once both the API's and the runtime's view of them are here.
async fn start_pods(core: &Arc<Core>, context: &Context) {
    let config = &core.config;
    let mine = format!("spec.nodeName={}", config.node_name);
    let pods = Informer::<Pod>::builder(config.client.clone())
        .fields(mine)
        .start(context);
    pods.synced().await;
    core.services.synced().await;
    let listed: Vec<Arc<Pod>> = pods.list();
    let files = static_pods::read_all(core);
    let mut wanted: HashSet<String> = listed.iter().map(|pod| spec::uid(pod).to_owned()).collect();
    wanted.extend(files.iter().map(|pod| spec::uid(pod).to_owned()));
    context.spawn("static pods", static_pods::follow(core.clone(), files));
    context.spawn("pods", dispatch::follow_api(core.clone(), pods));
    dispatch::adopt_orphans(core, &wanted).await;
    context.spawn("runtime events", dispatch::follow_runtime(core.clone()));
    context.spawn("garbage", collect::run(core.clone()));
    context.spawn("logs", rotate::run(core.clone()));
}

fn core(config: &Arc<Config>, context: &Context) -> Core {
    let client = config.client.clone();
    let recorder = Recorder::from_host(context, client.clone(), "kubelet", &config.node_name);
    let registry = Registry::default();
    Core {
        runtime: Runtime {
            client: cri::connect(&config.cri_socket),
        },
        events: Events::new(recorder, &config.node_name),
        sources: Sources::new(client.clone(), context.clone(), registry.clone()),
        services: Informer::<KubeService>::builder(client).start(context),
        registry,
        machine: Machine::read(&config.root_dir),
        mounter: LinuxMounter,
        context: context.clone(),
        config: config.clone(),
    }
}

/// Until it works.
async fn retry<T, F>(config: &Config, what: &str, mut attempt: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T>>,
{
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
    loop {
        match attempt().await {
            Ok(value) => return value,
            Err(error) => warn!(%error, "{what}"),
        }
        config.clock.sleep(backoff.step()).await;
    }
}
