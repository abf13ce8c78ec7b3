//! The built-in pod network: one routed link per pod, addresses from the node's pod CIDR.
//!
//! As a service it prepares the node (forwarding, the route of service addresses, its nftables
//! table) before the runtime starts; attaching prepares it, too, if it comes first.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use ipnet::IpNet;
use lifecycle::{Context, Run, Service};
use parking_lot::Mutex;
use rtnetlink::packet_route::route::RouteScope;
use tokio::sync::OnceCell;
use tracing::{info, warn};

use crate::{
    AttachRequest, Attachment, CheckTimer, Error, PodNetwork, PortMapping, Protocol, Result,
    Status, VXLAN_PORT, conntrack, firewalls, host_ports,
    ipam::{Ipam, Record},
    is_free,
    links::{self, POD_LINK, PodLink},
    names,
    netns::{Netlink, answered, answered_within},
    nft::{self, Batch, Nft},
    notices::AddressNotices,
    pod_link, rules,
    shape::{self, Limits},
    sysctl,
    unlink::Removals,
};

/// The loopback link's index in every namespace.
const LOOPBACK_INDEX: u32 = 1;
/// The links of many pods may be removed together.
const REMOVED_WITHIN: Duration = Duration::from_secs(60);

/// The configuration of a node's pod network.
#[derive(Debug, Clone)]
pub struct Config {
    /// The cluster's id on this machine: eight hexadecimal digits.
    pub id: String,
    /// The directory of address records; best on a tmpfs, as pods do not survive a reboot.
    pub state_dir: PathBuf,
    /// The cluster CIDRs, at most one per family.
    pub cluster_cidrs: Vec<IpNet>,
    /// The service CIDRs, at most one per family.
    pub service_cidrs: Vec<IpNet>,
    /// This node's own addresses.
    pub node_ips: Vec<IpAddr>,
    /// The MTU of pods' links if no link has the node's address; otherwise that link's MTU is used.
    pub mtu: u32,
}

impl Config {
    /// Reads the records of an earlier run; changes nothing on the machine yet.
    pub fn build(self, nft: Nft) -> Result<Arc<RoutedNetwork>> {
        let ipam = Ipam::open(self.state_dir.join("addresses"))?;
        Ok(Arc::new(RoutedNetwork {
            node_ips: Mutex::new(self.node_ips.clone()),
            ruling: tokio::sync::Mutex::default(),
            routing: tokio::sync::Mutex::default(),
            config: self,
            nft,
            ipam: Mutex::new(ipam),
            prepared: OnceCell::new(),
            removals: Removals::default(),
        }))
    }
}

/// The built-in pod network.
pub struct RoutedNetwork {
    config: Config,
    nft: Nft,
    /// Guards the address assignments; never held across an await.
    ipam: Mutex<Ipam>,
    /// Guards the node's current addresses; never held across an await.
    node_ips: Mutex<Vec<IpAddr>>,
    /// Held while the table is read or written, so that it has all records of that time.
    ruling: tokio::sync::Mutex<()>,
    /// Held while all routes are written, so that the last writer has the newest addresses.
    routing: tokio::sync::Mutex<()>,
    /// Set once the node is prepared.
    prepared: OnceCell<Prepared>,
    removals: Removals,
}

struct Prepared {
    mtu: u32,
}

impl RoutedNetwork {
    async fn prepare(&self) -> Result<&Prepared> {
        self.prepared
            .get_or_try_init(|| async {
                sysctl::set("net/ipv4/ip_forward", "1")?;
                if self
                    .config
                    .cluster_cidrs
                    .iter()
                    .any(|cidr| matches!(cidr, IpNet::V6(_)))
                {
                    sysctl::set("net/ipv6/conf/all/forwarding", "1")?;
                }
                let netlink = Netlink::here()?;
                answered("add routes of services", self.route_services(&netlink)).await?;
                self.rewrite_rules().await?;
                firewalls::pass(&self.nft, &self.config.id, &nft::tables().await?).await?;
                let mtu = links::mtu(&netlink, &self.config.node_ips, self.config.mtu);
                let mtu = answered("look for the node's link", mtu).await?;
                Ok(Prepared { mtu })
            })
            .await
    }

    /// Adds a route to service addresses, so that the node can send to them without a default route
    /// and with its own source address; nftables translates the packets before.
    async fn route_services(&self, netlink: &Netlink) -> Result<()> {
        let node_ips = self.node_ips();
        for cidr in &self.config.service_cidrs {
            let same_family = |ip: &&IpAddr| ip.is_ipv4() == cidr.addr().is_ipv4();
            let route = || {
                links::route_to(cidr.network(), cidr.prefix_len(), LOOPBACK_INDEX)
                    .scope(RouteScope::Link)
                    .priority(names::route_metric(&self.config.id))
            };
            let what = format!("route of service addresses {cidr}");
            if let Some(source) = node_ips.iter().find(same_family)
                && let Ok(preferred) = route().pref_source(*source)
            {
                match links::add_route(netlink, preferred.build(), &what).await {
                    Ok(()) => continue,
                    Err(error) => warn!(%source, %error, "node address not usable as source"),
                }
            }
            links::add_route(netlink, route().build(), &what).await?;
        }
        Ok(())
    }

    fn node_ips(&self) -> Vec<IpAddr> {
        self.node_ips.lock().clone()
    }

    /// Sets the node's addresses, the source of its traffic to services and pods.
    pub async fn set_node_ips(&self, node_ips: Vec<IpAddr>) -> Result<()> {
        *self.node_ips.lock() = node_ips;
        self.route_all().await
    }

    /// Writes the routes to services and pods. The kernel removes routes whose source address is
    /// removed, even if it is added again.
    async fn route_all(&self) -> Result<()> {
        let _routing = self.routing.lock().await;
        let node_ips = self.node_ips();
        let Prepared { mtu } = self.prepare().await?;
        let netlink = Netlink::here()?;
        answered("add routes of services", self.route_services(&netlink)).await?;
        let records: Vec<Record> = self.ipam.lock().records().cloned().collect();
        for record in records {
            let link = PodLink {
                host_link: record.host_link.clone(),
                addresses: record.addresses.clone(),
                mtu: *mtu,
                node_ips: node_ips.clone(),
            };
            let led = links::lead_to_link(&netlink, &link);
            if let Err(error) = answered("add the route to a pod", led).await {
                // Most likely its pod is being detached.
                warn!(link = record.host_link, %error, "cannot add the route to a pod");
            }
        }
        Ok(())
    }

    async fn rewrite_rules(&self) -> Result<()> {
        let _ruling = self.ruling.lock().await;
        self.nft.apply(&self.all_rules()).await
    }

    /// The whole table.
    fn all_rules(&self) -> Batch {
        let records: Vec<Record> = self.ipam.lock().records().cloned().collect();
        let Config {
            id,
            cluster_cidrs,
            service_cidrs,
            ..
        } = &self.config;
        rules::full(id, cluster_cidrs, service_cidrs, &records)
    }

    /// All other attached sandboxes.
    fn others(&self, record: &Record) -> Vec<Record> {
        let ipam = self.ipam.lock();
        let others = ipam.records();
        others
            .filter(|other| {
                other.sandbox_id != record.sandbox_id && !other.port_mappings.is_empty()
            })
            .cloned()
            .collect()
    }

    /// Applies a small change for a pod, or writes the whole table if it does not fit the current one.
    async fn change_rules(
        &self,
        change: fn(&str, &Record, &[Record]) -> Batch,
        record: &Record,
    ) -> Result<()> {
        let _ruling = self.ruling.lock().await;
        let batch = change(&self.config.id, record, &self.others(record));
        if let Err(error) = self.nft.apply(&batch).await {
            warn!(%error, "rewriting the nftables table of the pod network");
            self.nft.apply(&self.all_rules()).await?;
        }
        Ok(())
    }

    /// Restores what another program changed or removed: a firewall that reloads can flush every table, and
    /// Docker may have started after us.
    pub async fn repair(&self) -> Result<()> {
        self.repair_rules().await?;
        firewalls::pass(&self.nft, &self.config.id, &nft::tables().await?).await
    }

    async fn repair_rules(&self) -> Result<()> {
        let _ruling = self.ruling.lock().await;
        let table = names::table(&self.config.id);
        if let Some(full) = self.nft.find_drift(&table, || self.all_rules()).await? {
            warn!("nftables table of the pod network was changed, rewriting it");
            self.nft.apply(&full).await?;
        }
        Ok(())
    }

    /// The host side link of a sandbox.
    pub fn host_link(&self, sandbox_id: &str) -> Option<String> {
        let ipam = self.ipam.lock();
        ipam.get(sandbox_id).map(|record| record.host_link.clone())
    }

    /// The MTU of pods' links.
    pub async fn mtu(&self) -> Result<u32> {
        Ok(self.prepare().await?.mtu)
    }

    /// What is missing of a sandbox's link, if anything; repairs nothing.
    pub async fn missing_link(&self, sandbox_id: &str, netns: &Path) -> Result<Option<String>> {
        let Some(record) = self.ipam.lock().get(sandbox_id).cloned() else {
            return Ok(Some(format!("sandbox {sandbox_id}")));
        };
        let Prepared { mtu } = self.prepare().await?;
        let link = PodLink {
            host_link: record.host_link.clone(),
            addresses: record.addresses.clone(),
            mtu: *mtu,
            node_ips: self.node_ips(),
        };
        let host = Netlink::here()?;
        answered("check a link", links::missing(&host, netns, &link)).await
    }

    /// Removes links with our prefix but without a record: their state was lost, and with it their
    /// pods.
    async fn remove_unknown_links(&self) -> Result<()> {
        self.prepare().await?;
        let host = Netlink::here()?;
        let overlay = names::vxlan_link(&self.config.id);
        let prefix = names::link_prefix(&self.config.id);
        let links = answered("list links", links::with_prefix(&host, &prefix)).await?;
        for (_, name) in links {
            if name != overlay && !self.ipam.lock().link_taken(&name) {
                info!(link = name, "removing a link without a pod");
                answered("remove a link", links::disconnect(&host, &name)).await?;
            }
        }
        Ok(())
    }

    fn record_for(&self, request: &AttachRequest) -> Result<Record> {
        let mut ipam = self.ipam.lock();
        if let Some(record) = ipam.get(&request.sandbox_id) {
            return Ok(record.clone());
        }
        check_host_ports(&request.port_mappings, &self.node_ips())?;
        let limits = Limits::from_annotations(&request.annotations)?;
        let free_link = |word: &str| {
            let mut names = (0..).map(|attempt| names::host_link(&self.config.id, word, attempt));
            names
                .find(|name| !ipam.link_taken(name))
                .unwrap_or_default()
        };
        let host_link = free_link(&request.sandbox_id);
        let egress_link = limits
            .egress
            .map(|_| free_link(&format!("{}/egress", request.sandbox_id)));
        ipam.assign(Record {
            sandbox_id: request.sandbox_id.clone(),
            namespace: request.namespace.clone(),
            name: request.name.clone(),
            uid: request.uid.clone(),
            host_link,
            addresses: Vec::new(),
            port_mappings: request.port_mappings.clone(),
            attached_at: now_nanos(),
            limits,
            egress_link,
        })
    }

    async fn connect(&self, request: &AttachRequest, record: &Record) -> Result<()> {
        let Prepared { mtu } = self.prepare().await?;
        let link = PodLink {
            host_link: record.host_link.clone(),
            addresses: record.addresses.clone(),
            mtu: *mtu,
            node_ips: self.node_ips(),
        };
        let through = record.egress_link.as_deref().unwrap_or_default();
        let linked = async {
            pod_link::connect(&request.netns, link).await?;
            if record.limits == Limits::default() {
                return Ok(());
            }
            let host = Netlink::here()?;
            let limited = shape::limit(&host, &record.host_link, through, &record.limits);
            answered("limit bandwidth", limited).await
        };
        // The rules name only addresses. Both end before an error is handled, and before the pod has a container.
        let ruled = self.change_rules(host_ports::add_pod, record);
        let (linked, ruled) = tokio::join!(linked, ruled);
        linked.and(ruled)
    }
}

/// Rejects host ports that processes of the node listen on: a pod must not receive the connections
/// of the kubelet, of the API server or of other programs, nor the packets that other nodes send through the overlay,
/// whose device may not exist yet.
fn check_host_ports(ports: &[PortMapping], node_ips: &[IpAddr]) -> Result<()> {
    for port in ports.iter().filter(|port| port.host_port != 0) {
        if (port.protocol, port.host_port) == (Protocol::Udp, VXLAN_PORT) {
            return Err(Error::PortInUse(port.host_port, port.protocol.as_str()));
        }
        let given = port.host_ip.filter(|ip| !ip.is_unspecified());
        let addresses = match &given {
            Some(ip) => std::slice::from_ref(ip),
            None => node_ips,
        };
        let mut addresses = addresses.iter();
        let is_free = |ip: &IpAddr| is_free(SocketAddr::new(*ip, port.host_port), port.protocol);
        if !addresses.all(is_free) {
            return Err(Error::PortInUse(port.host_port, port.protocol.as_str()));
        }
    }
    Ok(())
}

fn now_nanos() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Deletes conntrack entries of the pod's UDP host ports, so that datagrams reach the next pod.
async fn forget_datagrams(record: Record) -> Result<()> {
    if record
        .port_mappings
        .iter()
        .all(|port| port.protocol != Protocol::Udp)
    {
        return Ok(());
    }
    conntrack::forget_udp(move |flow| record.addresses.contains(&flow.answered_by.0)).await?;
    Ok(())
}

fn attachment(record: &Record) -> Attachment {
    Attachment {
        addresses: record.addresses.clone(),
        interface: POD_LINK.into(),
    }
}

#[async_trait]
impl PodNetwork for RoutedNetwork {
    async fn attach(&self, request: AttachRequest) -> Result<Attachment> {
        let record = self.record_for(&request)?;
        if let Err(error) = self.connect(&request, &record).await {
            if let Err(undo) = self.detach(&request.sandbox_id, None).await {
                warn!(sandbox = request.sandbox_id, error = %undo, "cannot undo a partial attachment");
            }
            return Err(error);
        }
        Ok(attachment(&record))
    }

    async fn attachment(&self, sandbox_id: &str) -> Option<Attachment> {
        self.ipam.lock().get(sandbox_id).map(attachment)
    }

    async fn detach(&self, sandbox_id: &str, _netns: Option<&Path>) -> Result<()> {
        let Some(record) = self.ipam.lock().get(sandbox_id).cloned() else {
            return Ok(());
        };
        self.prepare().await?;
        let links = [Some(&record.host_link), record.egress_link.as_ref()];
        for link in links.into_iter().flatten() {
            let removed = self.removals.remove(link);
            answered_within(REMOVED_WITHIN, "remove a link", removed).await?;
        }
        // The record is removed first: if the table is rewritten, these ports are not in it.
        self.ipam.lock().release(sandbox_id)?;
        self.change_rules(host_ports::remove_pod, &record).await?;
        forget_datagrams(record).await
    }

    async fn retain(&self, alive: &BTreeSet<String>) -> Result<()> {
        let gone: Vec<String> = {
            let ipam = self.ipam.lock();
            ipam.records()
                .map(|record| &record.sandbox_id)
                .filter(|id| !alive.contains(*id))
                .cloned()
                .collect()
        };
        for sandbox_id in gone {
            info!(sandbox = sandbox_id, "detaching removed sandbox");
            self.detach(&sandbox_id, None).await?;
        }
        self.remove_unknown_links().await
    }

    async fn set_pod_cidrs(&self, cidrs: Vec<IpNet>) -> Result<()> {
        if self.ipam.lock().set_cidrs(cidrs.clone())? {
            info!(?cidrs, "pod CIDRs set");
        }
        Ok(())
    }

    async fn status(&self) -> Status {
        if self.ipam.lock().cidrs().is_empty() {
            return Status::NotReady("the node has no pod CIDR yet".into());
        }
        Status::Ready
    }
}

impl Service for RoutedNetwork {
    fn name(&self) -> &'static str {
        "network"
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            self.prepare().await?;
            let mut notices = AddressNotices::subscribe()?;
            context.ready();
            let mut check = CheckTimer::start();
            loop {
                tokio::select! {
                    noticed = notices.changed() => {
                        noticed?;
                        self.route_all().await?;
                    }
                    () = check.due() => self.repair().await?,
                    () = context.shutdown() => return Ok(()),
                }
            }
        })
    }
}
