//! The IO part: informers in, batches out.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use client::informer::{Event, Informer, Subscription};
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
};
use lifecycle::{Context, Failure, Outcome, Run};
use network::{
    CheckTimer, IpNet, conntrack,
    nft::{Batch, Nft},
};
use stdx::Clock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    budgets::Budget,
    endpoints::{NodeTopology, is_proxied, local_addresses},
    health::{Check, Health},
    health_server::{Listen, Page, serve, serve_checks},
    host_ports::{self, ListeningPort, NodeAddresses},
    metrics::{Metrics, Sync},
    rules::contribution,
    ruleset::{Datagrams, Ruleset, ServiceKey},
    service::{
        Policy, PortView, announced_by, health_check_port, is_from_pool, source_range_count, views,
    },
    stale_flows::StaleFlows,
    table::{DnsRedirect, Frame},
};

/// The label with the Service of an EndpointSlice.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const BY_SERVICE: &str = "service";
/// The annotation with the time of the change that an EndpointSlice was written for.
const LAST_CHANGE_TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// The well-known label of a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";

/// The maximum number of sets for session affinity. A user chooses how many ports and endpoints a Service has, and with
/// each thousand sets every change of a node's rules takes a millisecond longer.
const AFFINITY_SETS: usize = 4000;
/// The maximum number of source ranges of load balancers: a node writes as many in half a second.
const SOURCE_RANGES: usize = 20_000;
/// How long to wait for the node's link.
const ANNOUNCE_AGAIN: Duration = Duration::from_secs(5);

/// The configuration of a node's proxy.
pub struct Config {
    /// The cluster's id on this machine.
    pub id: String,
    /// A client that reads Services, EndpointSlices and Nodes.
    pub client: kube::Client,
    /// This node's name.
    pub node_name: String,
    /// The cluster CIDRs.
    pub cluster_cidrs: Vec<IpNet>,
    /// The service CIDRs.
    pub service_cidrs: Vec<IpNet>,
    /// Redirects the cluster's DNS address to the node's DNS server.
    pub dns: Option<DnsRedirect>,
    /// Whether `spec.externalIPs` of Services are used.
    pub allow_external_ips: bool,
    /// Where `/healthz` and `/livez` are served.
    pub health: Option<SocketAddr>,
    /// Where `/metrics` is served.
    pub metrics: Option<SocketAddr>,
    /// This node's own addresses: load balancer addresses are announced on their link; if empty,
    /// nowhere.
    pub node_ips: Vec<IpAddr>,
    /// Node ports are served only at the node's addresses in these ranges; at all of them if empty.
    pub node_port_addresses: Vec<IpNet>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

impl Config {
    /// Makes the proxy without starting it.
    pub fn build(self, nft: Nft) -> Arc<Proxy> {
        let has_family = |v4: bool| {
            let mut cidrs = self.cluster_cidrs.iter();
            cidrs.any(|cidr| cidr.addr().is_ipv4() == v4)
        };
        let metrics = Metrics::new([has_family(true), has_family(false)]);
        let health = Arc::new(Health::new(self.clock.clone(), metrics));
        Arc::new(Proxy {
            config: self,
            nft,
            health,
        })
    }
}

/// The service proxy of a node.
pub struct Proxy {
    config: Config,
    nft: Nft,
    health: Arc<Health>,
}

/// The informers that a run reads.
#[derive(Clone)]
pub struct Sources {
    /// All Services.
    pub services: Informer<Service>,
    /// All EndpointSlices; from [`Sources::slices`], which adds the index.
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

    /// Informers without a server, for tests.
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
    place: NodeTopology,
    /// Load balancer addresses that this node announces.
    announced: BTreeMap<ServiceKey, Vec<IpAddr>>,
    /// Load balancers, and the ports that processes of this node keep.
    balancers: BTreeMap<ServiceKey, Vec<ListeningPort>>,
    announcements: watch::Sender<BTreeSet<IpAddr>>,
    /// Whether these addresses changed since they were last published.
    is_moved: bool,
    /// The sets that Services with session affinity need.
    affinity: Budget,
    /// The source ranges of load balancers.
    source_ranges: Budget,
    /// Deletes entries of removed endpoints.
    stale_flows: Arc<StaleFlows>,
    /// When the run began.
    begun: Timestamp,
}

impl Proxy {
    fn serve_health(&self, context: &Context) {
        let pages = [
            (self.config.health, Page::Health),
            (self.config.metrics, Page::Metrics),
        ];
        for (address, page) in pages {
            let Some(address) = address else { continue };
            let (health, until) = (self.health.clone(), CancellationToken::new());
            let server = serve(health, Listen::at(address), page, context.clone(), until);
            context.spawn("health", server);
        }
        context.spawn(
            "health checks",
            serve_checks(
                self.health.clone(),
                self.config.node_port_addresses.clone().into(),
                context.clone(),
            ),
        );
    }

    /// Announces load balancer addresses; retries while the link is gone.
    fn announce(&self, context: &Context) -> watch::Sender<BTreeSet<IpAddr>> {
        let (sender, receiver) = watch::channel(BTreeSet::new());
        let (node_ips, clock) = (self.config.node_ips.clone(), self.config.clock.clone());
        if node_ips.is_empty() {
            return sender;
        }
        context.spawn("announcements", async move {
            while let Err(error) = network::announce::run(&node_ips, receiver.clone()).await {
                warn!(%error, "cannot announce load balancer addresses");
                clock.sleep(ANNOUNCE_AGAIN).await;
            }
        });
        sender
    }

    /// Follows the informers until shutdown.
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
            node_port_addresses: config.node_port_addresses.clone(),
        };
        let place = NodeTopology {
            node: config.node_name.clone(),
            zone: None,
        };
        let mut worker = Worker {
            proxy: self,
            sources,
            ruleset: Ruleset::new(frame),
            place,
            announced: BTreeMap::new(),
            balancers: BTreeMap::new(),
            announcements: self.announce(context),
            is_moved: true,
            affinity: Budget::new(AFFINITY_SETS),
            source_ranges: Budget::new(SOURCE_RANGES),
            stale_flows: StaleFlows::start(self.health.clone(), context),
            begun: config.clock.now(),
        };
        // Existing objects arrive as events, too: the first round writes the whole table.
        let mut changes = Changes::default();
        changes.drain(&mut services, &mut slices);
        worker.nodes_changed(&mut nodes);
        worker.start(std::mem::take(&mut changes.dirty)).await?;
        worker.publish();
        context.ready();
        self.serve_health(context);
        let mut check = CheckTimer::start();
        loop {
            tokio::select! {
                event = services.next() => match event {
                    Some(event) => changes.service(&event),
                    None => return Err(lost()),
                },
                event = slices.next() => match event {
                    Some(event) => changes.slice(&event),
                    None => return Err(lost()),
                },
                event = nodes.next() => match event {
                    Some(_) => if worker.nodes_changed(&mut nodes) {
                        changes.dirty.extend(worker.ruleset.services().cloned());
                    },
                    None => return Err(lost()),
                },
                () = check.due() => {
                    worker.repair().await?;
                    // Listening sockets change without an event.
                    changes.dirty.extend(worker.balancers.keys().cloned());
                }
                () = context.shutdown() => return Ok(()),
            }
            changes.drain(&mut services, &mut slices);
            worker.apply(std::mem::take(&mut changes)).await?;
            worker.publish();
        }
    }
}

/// The node's zone label.
fn zone(node: &Node) -> Option<String> {
    node.metadata.labels.as_ref()?.get(ZONE).cloned()
}

fn lost() -> Failure {
    "an informer ended".into()
}

/// The events since the last batch.
#[derive(Default)]
struct Changes {
    /// The Services that they concern.
    dirty: BTreeSet<ServiceKey>,
    services: usize,
    slices: usize,
    /// When the causes of changed EndpointSlices happened, and whether these have IPv4 addresses.
    triggers: Vec<(bool, Timestamp)>,
}

impl Changes {
    fn service(&mut self, event: &Event<Service>) {
        self.services += 1;
        self.dirty.extend(key_of_service(event.object()));
    }

    fn slice(&mut self, event: &Event<EndpointSlice>) {
        self.slices += 1;
        self.dirty.extend(key_of_slice(event.object()));
        let old = event.old().and_then(|old| key_of_slice(old));
        self.dirty.extend(old);
        if let Event::Modified { new, .. } | Event::Added(new) = event {
            self.triggers.extend(trigger(new));
        }
    }

    /// Takes the pending events.
    fn drain(
        &mut self,
        services: &mut Subscription<Service>,
        slices: &mut Subscription<EndpointSlice>,
    ) {
        while let Some(event) = services.try_next() {
            self.service(&event);
        }
        while let Some(event) = slices.try_next() {
            self.slice(&event);
        }
    }
}

/// Whether a slice has IPv4 addresses, and when the change happened that it was written for.
fn trigger(slice: &EndpointSlice) -> Option<(bool, Timestamp)> {
    let annotations = slice.metadata.annotations.as_ref()?;
    let time = annotations.get(LAST_CHANGE_TRIGGER)?.parse().ok()?;
    Some((slice.address_type == "IPv4", time))
}

impl Worker<'_> {
    async fn start(&mut self, dirty: BTreeSet<ServiceKey>) -> Outcome {
        let (begun, mut datagrams) = (Instant::now(), Datagrams::new());
        self.decide(dirty, &mut Batch::new(), &mut datagrams);
        self.proxy.nft.apply(&self.ruleset.full()).await?;
        self.proxy.health.updated(Sync::Full, begun.elapsed());
        // The kernel has these settings once a rule looks at connections.
        conntrack::set_timeouts();
        conntrack::raise_limit();
        self.stale_flows.add(datagrams);
        Ok(())
    }

    async fn apply(&mut self, changes: Changes) -> Outcome {
        if changes.dirty.is_empty() {
            return Ok(());
        }
        self.proxy.health.queued(changes.services, changes.slices);
        let begun = Instant::now();
        let (mut batch, mut datagrams) = (Batch::new(), Datagrams::new());
        self.decide(changes.dirty, &mut batch, &mut datagrams);
        let (health, mut sync) = (&self.proxy.health, Sync::Partial);
        if let Err(error) = self.proxy.nft.apply(&batch).await {
            health.metrics.failed();
            warn!(%error, "rewriting the nftables table of services");
            self.proxy.nft.apply(&self.ruleset.full()).await?;
            sync = Sync::Full;
        }
        health.updated(sync, begun.elapsed());
        let now = self.proxy.config.clock.now();
        for (is_ipv4, trigger) in changes.triggers {
            // Slices of the time before this run, and of a clock that is ahead, say nothing about its speed.
            if trigger > self.begun
                && let Ok(after) = Duration::try_from(now.duration_since(trigger))
            {
                health.metrics.programmed(is_ipv4, after);
            }
        }
        self.stale_flows.add(datagrams);
        Ok(())
    }

    /// Writes the table again if another program has changed or removed it.
    async fn repair(&mut self) -> Outcome {
        let (nft, table) = (&self.proxy.nft, self.ruleset.table());
        if let Some(full) = nft.find_drift(&table, || self.ruleset.full()).await? {
            warn!("nftables table of services was changed, rewriting it");
            self.proxy.nft.apply(&full).await?;
        }
        Ok(())
    }

    fn decide(
        &mut self,
        dirty: BTreeSet<ServiceKey>,
        batch: &mut Batch,
        datagrams: &mut Datagrams,
    ) {
        let mut nodes = None;
        let mut all: Vec<_> = dirty
            .iter()
            .map(|key| self.views_of(key, &mut nodes))
            .collect();
        for (key, views) in dirty.iter().zip(&all) {
            let sets = views.iter().map(PortView::affinity_sets).sum();
            self.affinity.set(key, sets);
            self.source_ranges.set(key, source_range_count(views));
        }
        let changed = self.decide_budgets();
        let others = self.ruleset.services();
        let others = others.filter(|key| changed.contains(&key.0) && !dirty.contains(*key));
        let others: Vec<ServiceKey> = others.cloned().collect();
        all.extend(others.iter().map(|key| self.views_of(key, &mut nodes)));
        for (key, mut views) in dirty.iter().chain(&others).zip(all) {
            for view in &mut views {
                if self.affinity.is_over(key) {
                    view.affinity_seconds = None;
                }
                if self.source_ranges.is_over(key) {
                    view.admit_no_source();
                }
            }
            self.ruleset
                .set(key, contribution(&views), batch, datagrams);
        }
    }

    /// Decides which namespaces need too much; returns those where that changed.
    fn decide_budgets(&mut self) -> BTreeSet<String> {
        let mut changed = self.affinity.decide();
        if !changed.is_empty() {
            let namespaces = self.affinity.over();
            warn!(
                ?namespaces,
                "Services of namespaces with too many endpoints for it have no session affinity"
            );
        }
        let others = self.source_ranges.decide();
        if !others.is_empty() {
            let namespaces = self.source_ranges.over();
            warn!(
                ?namespaces,
                "load balancers of namespaces with too many source ranges admit no source"
            );
        }
        changed.extend(others);
        changed
    }

    /// A Service's views; also updates everything but the rules.
    fn views_of(&mut self, key: &ServiceKey, nodes: &mut Option<NodeAddresses>) -> Vec<PortView> {
        let policy = Policy {
            allow_external_ips: self.proxy.config.allow_external_ips,
        };
        let service = self.sources.services.get(&key.0, &key.1);
        self.note_announced(key, service.as_deref(), nodes);
        let from_pool = service.as_deref().is_some_and(is_from_pool);
        let (mut wanted, check) = match service {
            None => (Vec::new(), None),
            Some(service) => {
                let slices = self
                    .sources
                    .slices
                    .by_index(BY_SERVICE, &format!("{}/{}", key.0, key.1));
                let slices = slices.iter().map(AsRef::as_ref);
                let slices: Vec<_> = slices.filter(|slice| is_proxied(slice)).collect();
                let check = health_check_port(&service).map(|port| Check {
                    port,
                    local_endpoints: local_addresses(&slices, &self.place.node).len(),
                });
                (views(&service, &slices, &self.place, policy), check)
            }
        };
        if wanted.iter().any(|view| !view.load_balancer_ips.is_empty()) {
            let nodes = nodes.get_or_insert_with(|| self.node_addresses());
            match from_pool {
                true => self.keep_host_ports(key, &mut wanted, &nodes.only_own()),
                false => self.keep_host_ports(key, &mut wanted, nodes),
            }
        } else {
            self.balancers.remove(key);
        }
        self.proxy.health.set_check(key, check);
        self.proxy.health.metrics.set_service(key, &wanted);
        wanted
    }

    fn node_addresses(&self) -> NodeAddresses {
        let nodes = self.sources.nodes.list();
        let own = &self.proxy.config.node_ips;
        NodeAddresses::new(nodes.iter().map(AsRef::as_ref), &self.place.node, own)
    }

    fn keep_host_ports(&mut self, key: &ServiceKey, views: &mut [PortView], nodes: &NodeAddresses) {
        let kept = host_ports::keep_host_ports(views, nodes, |(address, protocol)| {
            network::is_free(address, protocol)
        });
        let before = self.balancers.insert(key.clone(), kept.clone());
        if !kept.is_empty() && before.as_ref() != Some(&kept) {
            let (namespace, name) = key;
            warn!(namespace, name, ports = ?kept, "local processes listen on ports of the load balancer and keep them");
        }
    }

    fn note_announced(
        &mut self,
        key: &ServiceKey,
        service: Option<&Service>,
        nodes: &mut Option<NodeAddresses>,
    ) {
        let node = &self.place.node;
        let mut addresses = service
            .map(|service| announced_by(service, node))
            .unwrap_or_default();
        if !addresses.is_empty() {
            // Only a node itself may announce its addresses. Addresses of the pool belong to no
            // node.
            let nodes = nodes.get_or_insert_with(|| self.node_addresses());
            let from_pool = service.is_some_and(is_from_pool);
            addresses
                .retain(|ip| !nodes.own.contains(ip) && (from_pool || !nodes.others.contains(ip)));
        }
        let before = match addresses.is_empty() {
            true => self.announced.remove(key),
            false => self.announced.insert(key.clone(), addresses.clone()),
        };
        self.is_moved |= !addresses.is_empty() || before.is_some();
    }

    /// Announces the addresses of this node, after its rules for them are in place.
    fn publish(&mut self) {
        if !std::mem::take(&mut self.is_moved) {
            return;
        }
        let all: BTreeSet<IpAddr> = self.announced.values().flatten().copied().collect();
        self.announcements.send_if_modified(|announced| {
            let is_changed = *announced != all;
            *announced = all;
            is_changed
        });
    }

    /// Returns whether this node's zone changed.
    fn nodes_changed(&mut self, events: &mut Subscription<Node>) -> bool {
        while events.try_next().is_some() {}
        let own = self.sources.nodes.get("", &self.place.node);
        self.proxy.health.set_node(own.as_deref());
        let zone = own.and_then(|node| zone(&node));
        let moved = self.place.zone != zone;
        self.place.zone = zone;
        moved
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
