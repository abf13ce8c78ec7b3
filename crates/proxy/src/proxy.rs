//! The thin shell: informers in, batches out.

use std::{collections::BTreeSet, sync::Arc};

use client::informer::{Informer, Subscription};
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
};
use lifecycle::{Context, Failure, Outcome, Run};
use network::{
    IpNet, conntrack,
    nft::{self, Batch, Nft},
};
use tracing::{debug, warn};

use crate::{
    endpoints::Place,
    rules::contribution,
    ruleset::{Datagrams, Ruleset, ServiceKey},
    service::{Policy, views},
    table::{DnsRedirect, Frame},
};

/// The label that says which service a slice belongs to.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const BY_SERVICE: &str = "service";
/// The well-known label of a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";

/// What the proxy of a node must know.
pub struct Config {
    /// The cluster's id on this machine.
    pub id: String,
    /// Reads Services, EndpointSlices and Nodes.
    pub client: kube::Client,
    /// This node's name.
    pub node_name: String,
    /// The ranges of all pods.
    pub cluster_cidrs: Vec<IpNet>,
    /// The ranges of service addresses.
    pub service_cidrs: Vec<IpNet>,
    /// Leads the cluster's DNS address to the node's server.
    pub dns: Option<DnsRedirect>,
    /// Whether `spec.externalIPs` of Services count.
    pub allow_external_ips: bool,
}

impl Config {
    /// Nothing happens before it runs.
    pub fn build(self, nft: Nft) -> Arc<Proxy> {
        Arc::new(Proxy { config: self, nft })
    }
}

/// The service proxy of a node.
pub struct Proxy {
    config: Config,
    nft: Nft,
}

/// The informers that a run reads.
#[derive(Clone)]
pub struct Sources {
    /// All Services.
    pub services: Informer<Service>,
    /// All EndpointSlices; must come from [`Sources::slices`] for its index.
    pub slices: Informer<EndpointSlice>,
    /// All Nodes.
    pub nodes: Informer<Node>,
}

fn key_of_slice(slice: &EndpointSlice) -> Option<ServiceKey> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
    Some((slice.metadata.namespace.clone()?, name.clone()))
}

fn key_of_service(service: &Service) -> Option<ServiceKey> {
    Some((
        service.metadata.namespace.clone()?,
        service.metadata.name.clone()?,
    ))
}

fn index_of_slice(slice: &EndpointSlice) -> Vec<String> {
    key_of_slice(slice)
        .map(|(namespace, name)| format!("{namespace}/{name}"))
        .into_iter()
        .collect()
}

impl Sources {
    fn start(client: &kube::Client, context: &Context) -> Self {
        let slices = Informer::builder(client.clone()).index(BY_SERVICE, index_of_slice);
        Self {
            services: Informer::builder(client.clone()).start(context),
            slices: slices.start(context),
            nodes: Informer::builder(client.clone()).start(context),
        }
    }

    /// Sources that hold what is put there, and ask no server: for tests.
    pub fn offline(client: &kube::Client) -> Self {
        let slices = Informer::builder(client.clone()).index(BY_SERVICE, index_of_slice);
        Self {
            services: Informer::builder(client.clone()).offline(),
            slices: slices.offline(),
            nodes: Informer::builder(client.clone()).offline(),
        }
    }
}

/// The state of one run.
struct Worker<'a> {
    proxy: &'a Proxy,
    sources: Sources,
    ruleset: Ruleset,
    place: Place,
}

impl Proxy {
    /// Follows the sources until shutdown.
    pub async fn follow(&self, sources: Sources, context: &Context) -> Outcome {
        let mut services = sources.services.subscribe();
        let mut slices = sources.slices.subscribe();
        let mut nodes = sources.nodes.subscribe();
        tokio::join!(
            sources.services.synced(),
            sources.slices.synced(),
            sources.nodes.synced()
        );
        let config = &self.config;
        let frame = Frame {
            id: config.id.clone(),
            cluster_cidrs: config.cluster_cidrs.clone(),
            service_cidrs: config.service_cidrs.clone(),
            dns: config.dns.clone(),
        };
        let place = Place {
            node: config.node_name.clone(),
            zone: None,
        };
        let mut worker = Worker {
            proxy: self,
            sources,
            ruleset: Ruleset::new(frame),
            place,
        };
        // What is there already comes as events too: the first round is the whole table.
        let mut dirty = drain(&mut services, &mut slices);
        worker.nodes_changed(&mut nodes);
        worker.start(&mut dirty).await?;
        context.ready();
        // Its own time: events must not put it off.
        let mut check = tokio::time::interval(nft::CHECK_EVERY);
        check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        check.reset();
        loop {
            tokio::select! {
                event = services.next() => match event {
                    Some(event) => dirty.extend(key_of_service(event.object())),
                    None => return Err(lost()),
                },
                event = slices.next() => match event {
                    Some(event) => {
                        dirty.extend(key_of_slice(event.object()));
                        dirty.extend(event.old().and_then(|old| key_of_slice(old)));
                    }
                    None => return Err(lost()),
                },
                event = nodes.next() => match event {
                    Some(_) => if worker.nodes_changed(&mut nodes) {
                        dirty.extend(worker.ruleset.services().cloned());
                    },
                    None => return Err(lost()),
                },
                _ = check.tick() => worker.repair().await?,
                () = context.shutdown() => return Ok(()),
            }
            dirty.extend(drain(&mut services, &mut slices));
            worker.apply(std::mem::take(&mut dirty)).await?;
        }
    }
}

/// The zone that a node says it is in.
fn zone(node: &Node) -> Option<String> {
    node.metadata.labels.as_ref()?.get(ZONE).cloned()
}

fn lost() -> Failure {
    "an informer ended".into()
}

/// The services that waiting events are about.
fn drain(
    services: &mut Subscription<Service>,
    slices: &mut Subscription<EndpointSlice>,
) -> BTreeSet<ServiceKey> {
    let mut dirty = BTreeSet::new();
    while let Some(event) = services.try_next() {
        dirty.extend(key_of_service(event.object()));
    }
    while let Some(event) = slices.try_next() {
        dirty.extend(key_of_slice(event.object()));
        dirty.extend(event.old().and_then(|old| key_of_slice(old)));
    }
    dirty
}

impl Worker<'_> {
    async fn start(&mut self, dirty: &mut BTreeSet<ServiceKey>) -> Outcome {
        let mut datagrams = Datagrams::new();
        self.decide(std::mem::take(dirty), &mut Batch::new(), &mut datagrams);
        self.proxy.nft.apply(&self.ruleset.full()).await?;
        self.forget(datagrams).await;
        Ok(())
    }

    async fn apply(&mut self, dirty: BTreeSet<ServiceKey>) -> Outcome {
        let (mut batch, mut datagrams) = (Batch::new(), Datagrams::new());
        self.decide(dirty, &mut batch, &mut datagrams);
        if let Err(error) = self.proxy.nft.apply(&batch).await {
            warn!(%error, "writing the table of services anew");
            self.proxy.nft.apply(&self.ruleset.full()).await?;
        }
        self.forget(datagrams).await;
        Ok(())
    }

    /// Writes the table again when another program has removed it.
    async fn repair(&mut self) -> Outcome {
        if !nft::tables()
            .await?
            .contains(&format!("inet {}", self.ruleset.table()))
        {
            warn!("the table of services was removed by somebody: writing it anew");
            self.proxy.nft.apply(&self.ruleset.full()).await?;
        }
        Ok(())
    }

    fn decide(
        &mut self,
        dirty: BTreeSet<ServiceKey>,
        batch: &mut Batch,
        datagrams: &mut Datagrams,
    ) {
        let policy = Policy {
            allow_external_ips: self.proxy.config.allow_external_ips,
        };
        for key in dirty {
            let wanted = match self.sources.services.get(&key.0, &key.1) {
                None => Vec::new(),
                Some(service) => {
                    let slices = self
                        .sources
                        .slices
                        .by_index(BY_SERVICE, &format!("{}/{}", key.0, key.1));
                    let slices: Vec<&EndpointSlice> = slices.iter().map(AsRef::as_ref).collect();
                    views(&service, &slices, &self.place, policy)
                }
            };
            self.ruleset
                .set(&key, contribution(&wanted), batch, datagrams);
        }
    }

    /// True when this node's own place changed.
    fn nodes_changed(&mut self, events: &mut Subscription<Node>) -> bool {
        while events.try_next().is_some() {}
        let own = self.sources.nodes.get("", &self.place.node);
        let zone = own.and_then(|node| zone(&node));
        let moved = self.place.zone != zone;
        self.place.zone = zone;
        moved
    }

    /// Tracked datagram flows to endpoints that do not serve any more would go on for ever.
    async fn forget(&self, datagrams: Datagrams) {
        if datagrams.is_empty() {
            return;
        }
        let stale = move |flow: &conntrack::Flow| {
            let (ip, port) = flow.sent_to;
            let allowed = datagrams.get(&(Some(ip), port)).or_else(|| {
                // A node port is any address of the node; an untranslated flow to the node itself
                // is nobody's endpoint.
                (flow.sent_to != flow.answered_by)
                    .then(|| datagrams.get(&(None, port)))
                    .flatten()
            });
            allowed.is_some_and(|allowed| !allowed.contains(&flow.answered_by))
        };
        match conntrack::forget_udp(stale).await {
            Ok(0) => {}
            Ok(count) => debug!(count, "forgot datagram flows"),
            Err(error) => warn!(%error, "stale datagram flows may go on"),
        }
    }
}

impl lifecycle::Service for Proxy {
    fn name(&self) -> &'static str {
        "proxy"
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            let sources = Sources::start(&self.config.client, &context);
            self.follow(sources, &context).await
        })
    }
}
