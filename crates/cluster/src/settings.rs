//! Options with all defaults applied and validated, before anything starts.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;
use jiff::SignedDuration;
use kubelet::configuration::{self, Loaded, Sources};
use runtime::images::registry::Registries;
use sha2::{Digest, Sha256};

use crate::{
    Error, access,
    agent::Facts,
    families::Ranges,
    founding::ServerToken,
    host, kubelet_root,
    options::{CloudProvider, Options, Part},
    storage,
};

/// The resolved settings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Eight hexadecimal digits that identify this cluster's resources on the machine.
    pub id: String,
    pub data_dir: PathBuf,
    /// Sockets, pinned namespaces, and other data that need not survive a reboot.
    pub state_dir: PathBuf,
    pub node_name: String,
    pub node_ip: IpAddr,
    /// This node's known addresses of both IP families.
    host_ips: Vec<IpAddr>,
    /// Every externally reachable address of the machine.
    machine_ips: Vec<IpAddr>,
    /// Whether the machine had a default route at start.
    had_default_route: bool,
    /// Whether `--advertise-address` was given.
    is_advertise_given: bool,
    /// The lifetime of certificates that the cluster signs.
    pub signing_duration: Duration,
    /// The cloud provider's settings.
    pub cloud: Cloud,
    pub https_port: u16,
    pub advertise_address: IpAddr,
    pub cluster_cidr: Ranges,
    /// The prefix lengths of each node's ranges.
    pub node_cidr_masks: Vec<u8>,
    pub service_cidr: Ranges,
    pub cluster_domain: String,
    pub kubeconfig_out: Option<PathBuf>,
    pub storage: storage::Config,
    /// The token of a server that joins a cluster in etcd.
    pub server_token: Option<ServerToken>,
    pub accept_data_loss: bool,
    pub token_auth_file: Option<PathBuf>,
    /// An EncryptionConfiguration for values on disk.
    pub encryption_provider_config: Option<PathBuf>,
    /// Optional authentication and authorization: configuration files and webhooks.
    pub access: apiserver::AccessOptions,
    pub audit: Option<apiserver::audit::Config>,
    pub admission: apiserver::admission::Options,
    /// Group versions that are served in addition to the default ones.
    pub runtime_config: Vec<String>,
    pub kubelet_port: u16,
    /// The kubelet's root directory.
    pub kubelet_root: PathBuf,
    /// The directory of static pod manifests.
    pub static_pod_path: Option<PathBuf>,
    pub allowed_unsafe_sysctls: Vec<String>,
    /// The KubeletConfiguration, with defaults.
    pub kubelet: Loaded,
    /// Whether pods are terminated when the daemon stops.
    pub shutdown_on_stop: bool,
    pub node_ports: RangeInclusive<u16>,
    pub proxy: Proxy,
    /// Addresses for Services of type LoadBalancer; if empty, those of the nodes are used.
    pub load_balancer_pool: controllers::loadbalancer::Pool,
    pub container_runtime_endpoint: Option<PathBuf>,
    pub cri_socket: PathBuf,
    /// OCI runtimes by RuntimeClass handler.
    pub runtime_handlers: BTreeMap<String, PathBuf>,
    /// Image archives in this directory are imported at startup.
    pub image_dir: Option<PathBuf>,
    pub registries: Registries,
    /// A valid KubeSchedulerConfiguration.
    pub scheduler_config: Option<serde_json::Value>,
    /// If set, CNI plugins provide the pod network.
    pub cni: Option<Cni>,
    pub disable: Vec<Part>,
}

/// Settings of the service proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proxy {
    /// Whether `spec.externalIPs` of Services are served.
    pub allow_external_ips: bool,
    /// Node ports are served only at the node's addresses in these ranges; if empty, at all of its addresses.
    pub node_port_addresses: Vec<IpNet>,
}

/// Settings for a cloud controller manager.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cloud {
    /// Whether a cloud controller manager initialises the node.
    pub is_external: bool,
    pub provider_id: Option<String>,
    /// The address given with `--node-ip`.
    pub given_ip: Option<IpAddr>,
}

impl Cloud {
    fn new(options: &Options, node_ip: IpAddr) -> Self {
        Self {
            is_external: options.cloud_provider == Some(CloudProvider::External),
            provider_id: options.provider_id.clone(),
            given_ip: options.node_ip.as_ref().map(|_| node_ip),
        }
    }
}

/// The directories of CNI configuration files and plugins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cni {
    pub conf_dir: PathBuf,
    pub bin_dirs: Vec<PathBuf>,
}

/// Where distributions and other runtimes install CNI plugins.
const CNI_BIN_DIRS: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];

/// The default data directory.
pub const DATA_DIR: &str = "/var/lib/mainstay";

/// The ID of a cluster's resources on this machine, derived from the data directory.
pub fn id(data_dir: &Path) -> String {
    let digest = Sha256::digest(data_dir.as_os_str().as_encoded_bytes());
    digest[..4]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The absolute data directory, without symlinks if it exists.
pub fn data_dir(options: &Options) -> Result<PathBuf, Error> {
    let given = options.data_dir.clone().unwrap_or_else(|| DATA_DIR.into());
    if let Ok(real) = given.canonicalize() {
        return Ok(real);
    }
    std::path::absolute(&given)
        .map_err(|error| Error::Option("data-dir", format!("{}: {error}", given.display())))
}

/// The KubeletConfiguration; fails if the machine does not satisfy it.
fn kubelet_configuration(options: &Options) -> Result<Loaded, Error> {
    let sources = Sources {
        file: options.kubelet_config.clone(),
        drop_ins: options.kubelet_config_dir.clone(),
    };
    let loaded = configuration::load(sources).and_then(|loaded| {
        configuration::check_machine(&loaded.configuration)?;
        Ok(loaded)
    });
    loaded.map_err(|why| Error::Option("kubelet-config", why))
}

/// The socket of an external runtime: the flag takes precedence over the KubeletConfiguration.
fn runtime_endpoint(options: &Options, kubelet: &Loaded) -> Result<Option<PathBuf>, Error> {
    let configured = &kubelet.configuration.container_runtime_endpoint;
    let configured = Some(configured).filter(|endpoint| !endpoint.is_empty());
    let endpoint = options.container_runtime_endpoint.as_ref().or(configured);
    endpoint.map(|endpoint| unix_path(endpoint)).transpose()
}

/// The node's primary address, and its known addresses of both IP families.
fn host_ips(options: &Options) -> Result<(IpAddr, Vec<IpAddr>), Error> {
    if let Some(given) = &options.node_ip {
        let all = given.all().to_vec();
        return Ok((all[0], all));
    }
    let node_ip = host::address()?;
    let all = std::iter::once(node_ip).chain(host::address_v6());
    Ok((node_ip, all.collect()))
}

/// The lifetime of certificates that the cluster signs.
fn signing_duration(text: Option<&str>) -> Result<Duration, Error> {
    const SHORTEST: Duration = Duration::from_secs(30);
    let Some(text) = text else {
        return Ok(pki::csr::LIFE);
    };
    let parsed: Option<SignedDuration> = text.parse().ok();
    let parsed = parsed.and_then(|life| Duration::try_from(life).ok());
    parsed
        .filter(|life| (SHORTEST..=pki::csr::LIFE).contains(life))
        .ok_or_else(|| {
            let why = format!("{text:?} is not a duration between 30s and 8760h");
            Error::Option("cluster-signing-duration", why)
        })
}

/// Whether pods are terminated when the daemon stops, which requires a `shutdownGracePeriod`.
fn shutdown_on_stop(asked: bool, kubelet: &Loaded) -> Result<bool, Error> {
    if asked && kubelet::shutdown_period(&kubelet.configuration).is_zero() {
        let why = "needs a shutdownGracePeriod in the KubeletConfiguration";
        return Err(Error::Option("shutdown-on-stop", why.into()));
    }
    Ok(asked)
}

/// The directory of a cluster's sockets and pinned namespaces.
pub fn state_dir(id: &str) -> PathBuf {
    Path::new("/run/mainstay").join(id)
}

impl Settings {
    /// The name of this server; `None` with the embedded store, which has only one server.
    pub fn server_name(&self) -> Result<Option<String>, Error> {
        if self.storage == storage::Config::Embedded {
            return Ok(None);
        }
        let id = crate::marker::server_id(&self.data_dir)?;
        Ok(Some(format!("{}_{id}", self.node_name)))
    }

    /// Applies defaults, queries the machine where needed, and rejects invalid options.
    pub fn resolve(options: Options) -> Result<Self, Error> {
        let data_dir = data_dir(&options)?;
        let id = id(&data_dir);
        let state_dir = state_dir(&id);
        let (node_ip, host_ips) = host_ips(&options)?;
        let storage = storage::Config::resolve(&options)?;
        let cloud = Cloud::new(&options, node_ip);
        let cluster_cidr = options
            .cluster_cidr
            .clone()
            .unwrap_or_else(|| net([10, 42, 0, 0], 16).into());
        let mask_sizes = (
            options.node_cidr_mask_size,
            options.node_cidr_mask_size_ipv6,
        );
        let (audit, admission) = (audit(&options)?, admission(&options));
        let access = access::options(&options)?;
        let kubelet = kubelet_configuration(&options)?;
        let runtime_endpoint = runtime_endpoint(&options, &kubelet)?;
        let scheduler = options.scheduler_config.as_deref();
        let settings = Self {
            node_name: options.node_name.map_or_else(host::name, Ok)?,
            advertise_address: options.advertise_address.unwrap_or(node_ip),
            is_advertise_given: options.advertise_address.is_some(),
            signing_duration: signing_duration(options.cluster_signing_duration.as_deref())?,
            https_port: options.https_port.unwrap_or(6443),
            node_cidr_masks: node_cidr_masks(mask_sizes, &cluster_cidr)?,
            cluster_cidr,
            service_cidr: options
                .service_cidr
                .unwrap_or_else(|| net([10, 43, 0, 0], 16).into()),
            cluster_domain: options
                .cluster_domain
                .unwrap_or_else(|| "cluster.local".into()),
            kubeconfig_out: options.kubeconfig_out,
            storage,
            server_token: options.server_token,
            accept_data_loss: options.accept_data_loss,
            access,
            encryption_provider_config: options.encryption_provider_config,
            token_auth_file: options.token_auth_file,
            audit,
            admission,
            runtime_config: optional_versions(options.runtime_config.as_deref())?,
            kubelet_port: options
                .kubelet_port
                .unwrap_or_else(|| u16::try_from(kubelet.configuration.port).unwrap_or(10250)),
            static_pod_path: directory("static-pod-path", options.static_pod_path)?,
            kubelet_root: kubelet_root::resolve(options.kubelet_root_dir, &data_dir)?,
            allowed_unsafe_sysctls: sysctls(options.allowed_unsafe_sysctls.unwrap_or_default())?,
            shutdown_on_stop: shutdown_on_stop(options.shutdown_on_stop, &kubelet)?,
            kubelet,
            node_ports: port_range(options.service_node_port_range.as_deref())?,
            proxy: Proxy {
                allow_external_ips: options.allow_service_external_ips,
                node_port_addresses: options.nodeport_addresses.unwrap_or_default(),
            },
            load_balancer_pool: load_balancer_pool(options.load_balancer_pool)?,
            container_runtime_endpoint: runtime_endpoint,
            cri_socket: options
                .cri_socket
                .unwrap_or_else(|| state_dir.join("cri.sock")),
            runtime_handlers: runtime_handlers(options.runtime_handlers.unwrap_or_default())?,
            image_dir: directory("image-dir", options.image_dir)?,
            registries: registries(options.registries.as_deref())?,
            scheduler_config: scheduler.map(own_scheduler_config).transpose()?,
            cni: cni(options.cni_conf_dir, options.cni_bin_dir)?,
            disable: options.disable.unwrap_or_default(),
            id,
            data_dir,
            state_dir,
            node_ip,
            host_ips,
            machine_ips: host::addresses(),
            had_default_route: host::has_default_route(),
            cloud,
        };
        settings.check()?;
        Ok(settings)
    }

    fn check(&self) -> Result<(), Error> {
        if self.image_dir.is_some() && self.container_runtime_endpoint.is_some() {
            let why = "another container runtime keeps images of its own; import them there";
            return Err(Error::Option("image-dir", why.to_owned()));
        }
        let (pods, services) = (&self.cluster_cidr, &self.service_cidr);
        if let Some((service, pod)) = services.overlap(pods) {
            let why = format!("{service} overlaps the cluster CIDR {pod}");
            return Err(Error::Option("service-cidr", why));
        }
        for range in services.all() {
            let same_family = |pods: &IpNet| pods.addr().is_ipv4() == range.addr().is_ipv4();
            if !pods.all().iter().any(same_family) {
                let why = format!("pods have no address of the family of {range}");
                return Err(Error::Option("service-cidr", why));
            }
            if range.prefix_len() + 5 > range.max_prefix_len() {
                return Err(Error::Option(
                    "service-cidr",
                    format!("{range} is too small"),
                ));
            }
        }
        if pods.contains(&self.node_ip) || services.contains(&self.node_ip) {
            let why = format!("{} lies inside {pods} or {services}", self.node_ip);
            return Err(Error::Option("node-ip", why));
        }
        if !is_dns_subdomain(&self.node_name) {
            let why = format!(
                "{:?} is not a DNS name (a-z, 0-9, '-', '.')",
                self.node_name
            );
            return Err(Error::Option("node-name", why));
        }
        Ok(())
    }

    /// The URL of this machine's API server.
    pub fn server_url(&self) -> String {
        let address = SocketAddr::new(self.advertise_address, self.https_port);
        format!("https://{address}")
    }

    /// Adopts the cluster's published settings.
    pub fn adopt(&mut self, facts: &Facts) -> Result<(), Error> {
        self.cluster_cidr.clone_from(&facts.cluster_cidr);
        self.service_cidr.clone_from(&facts.service_cidr);
        self.cluster_domain.clone_from(&facts.cluster_domain);
        self.check()
    }

    /// Every externally reachable address of the machine. Addresses in the pod network come and go with pods and are
    /// excluded: clients do not use them.
    pub fn machine_ips(&self) -> Vec<IpAddr> {
        let is_own = |ip: &&IpAddr| !self.cluster_cidr.contains(ip);
        self.machine_ips.iter().filter(is_own).copied().collect()
    }

    /// These settings with the machine's current addresses. An address from `--node-ip` stays.
    pub fn with_current_addresses(&self) -> Self {
        let settings = self.with_machine_ips(host::addresses());
        if self.cloud.given_ip.is_some() {
            return settings;
        }
        settings.following(&host::Current::read())
    }

    /// Replaces node addresses that the machine no longer has with its current default address of the same IP family.
    /// If there is none, the old address stays; also while the default route is gone: the link may be back soon, and
    /// another interface, such as a bridge of containers, may be out of reach for other machines.
    fn following(self, machine: &host::Current) -> Self {
        if self.had_default_route && !machine.has_default_route {
            return self;
        }
        let is_free =
            |ip: &&IpAddr| !self.cluster_cidr.contains(ip) && !self.service_cidr.contains(ip);
        let chosen: Vec<IpAddr> = machine.preferred.iter().filter(is_free).copied().collect();
        let mut settings = self;
        settings.had_default_route |= machine.has_default_route;
        for gone in settings.host_ips.clone() {
            let mut same_family = chosen.iter().filter(|ip| ip.is_ipv4() == gone.is_ipv4());
            if !machine.all.contains(&gone)
                && let Some(next) = same_family.next()
            {
                settings.replace_ip(gone, *next);
            }
        }
        settings
    }

    /// These settings with other machine addresses.
    pub(crate) fn with_machine_ips(&self, machine_ips: Vec<IpAddr>) -> Self {
        Self {
            machine_ips,
            ..self.clone()
        }
    }

    /// These settings with another node address. The API server's address follows, unless a flag set it.
    #[cfg(test)]
    pub(crate) fn with_node_ip(&self, node_ip: IpAddr) -> Self {
        let mut settings = self.clone();
        settings.replace_ip(self.node_ip, node_ip);
        settings
    }

    fn replace_ip(&mut self, gone: IpAddr, next: IpAddr) {
        for ip in self.host_ips.iter_mut().filter(|ip| **ip == gone) {
            *ip = next;
        }
        if self.node_ip == gone {
            self.node_ip = next;
        }
        if self.advertise_address == gone && !self.is_advertise_given {
            self.advertise_address = next;
        }
    }

    /// This node's addresses in the IP families of the cluster.
    pub fn node_ips(&self) -> Vec<IpAddr> {
        let of_cluster = |ip: &&IpAddr| {
            let ranges = self.cluster_cidr.all().iter();
            let mut families = ranges.map(|range| range.addr().is_ipv4());
            **ip == self.node_ip || families.any(|ipv4| ipv4 == ip.is_ipv4())
        };
        self.host_ips.iter().filter(of_cluster).copied().collect()
    }

    /// The address of the cluster's DNS service.
    pub fn cluster_dns(&self) -> IpAddr {
        nth(self.service_cidr.primary(), 10)
    }

    /// The address of the cluster's DNS service in each IP family.
    pub fn all_cluster_dns(&self) -> Vec<IpAddr> {
        let ranges = self.service_cidr.all().iter();
        ranges.map(|range| nth(*range, 10)).collect()
    }

    /// The address of the `kubernetes` service.
    pub fn api_service(&self) -> IpAddr {
        nth(self.service_cidr.primary(), 1)
    }

    /// Whether a component is enabled.
    pub fn runs(&self, part: Part) -> bool {
        !self.disable.contains(&part)
    }
}

fn load_balancer_pool(
    ranges: Option<Vec<String>>,
) -> Result<controllers::loadbalancer::Pool, Error> {
    let ranges = ranges.unwrap_or_default().join(",");
    let wrong = |why| Error::Option("load-balancer-pool", why);
    ranges.parse().map_err(wrong)
}

/// Checks that a directory exists.
fn directory(option: &'static str, dir: Option<PathBuf>) -> Result<Option<PathBuf>, Error> {
    match dir {
        Some(dir) if !dir.is_dir() => Err(Error::Option(
            option,
            format!("there is no directory {}", dir.display()),
        )),
        dir => Ok(dir),
    }
}

fn sysctls(patterns: Vec<String>) -> Result<Vec<String>, Error> {
    for pattern in &patterns {
        if !kubelet::is_allowable_sysctl(pattern) {
            return Err(Error::Option(
                "allowed-unsafe-sysctls",
                format!("{pattern:?} is not known to be namespaced"),
            ));
        }
    }
    Ok(patterns)
}

/// The node prefix length for each pod range. `size_ipv6` applies to IPv6 ranges, `size` to IPv4 ranges, and to a
/// single IPv6 range if `size_ipv6` is not set.
fn node_cidr_masks(
    (size, size_ipv6): (Option<u8>, Option<u8>),
    cluster: &Ranges,
) -> Result<Vec<u8>, Error> {
    let alone = cluster.all().len() == 1;
    let mask = |range: &IpNet| match range {
        IpNet::V6(_) if !alone || size_ipv6.is_some() => {
            node_cidr_mask("node-cidr-mask-size-ipv6", size_ipv6, *range)
        }
        _ => node_cidr_mask("node-cidr-mask-size", size, *range),
    };
    cluster.all().iter().map(mask).collect()
}

/// The node prefix length for a pod range. Each node's part must have at least two addresses, and the number of parts
/// is limited by the allocator.
fn node_cidr_mask(flag: &'static str, given: Option<u8>, cluster: IpNet) -> Result<u8, Error> {
    let usual = match cluster {
        IpNet::V4(_) => 24,
        IpNet::V6(_) => 64,
    };
    let mask = given.unwrap_or_else(|| usual.max(cluster.prefix_len()));
    let (least, most) = (cluster.prefix_len(), cluster.max_prefix_len() - 1);
    if (least..=most).contains(&mask) && mask - least <= 16 {
        return Ok(mask);
    }
    let most = most.min(least + 16);
    let why =
        format!("{mask} is not between {least} and {most}, as the cluster CIDR {cluster} requires");
    Err(Error::Option(flag, why))
}

fn runtime_handlers(pairs: Vec<String>) -> Result<BTreeMap<String, PathBuf>, Error> {
    let parse = |pair: String| {
        let because = |why: String| Error::Option("runtime-handlers", why);
        let (name, path) = pair
            .split_once('=')
            .filter(|(name, path)| is_dns_subdomain(name) && path.starts_with('/'))
            .ok_or_else(|| because(format!("{pair:?} is not NAME=/PATH")))?;
        if !Path::new(path).is_file() {
            return Err(because(format!("there is no program {path}")));
        }
        Ok((name.to_owned(), path.into()))
    };
    pairs.into_iter().map(parse).collect()
}

fn registries(file: Option<&Path>) -> Result<Registries, Error> {
    let Some(path) = file else {
        return Ok(Registries::default());
    };
    let because =
        |reason: String| Error::Option("registries", format!("{}: {reason}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| because(error.to_string()))?;
    serde_saphyr::from_str(&text).map_err(|error| because(error.to_string()))
}

/// Reads a KubeSchedulerConfiguration and validates it.
pub fn scheduler_config(path: &Path) -> Result<serde_json::Value, Error> {
    let because =
        |reason: String| Error::Option("scheduler-config", format!("{}: {reason}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| because(error.to_string()))?;
    let document = serde_saphyr::from_str(&text).map_err(|error| because(error.to_string()))?;
    scheduler::configuration::parse(&document).map_err(because)?;
    Ok(document)
}

/// The same for this server's built-in scheduler. Leader election and the connection are not configurable there.
fn own_scheduler_config(path: &Path) -> Result<serde_json::Value, Error> {
    let document = scheduler_config(path)?;
    for field in ["leaderElection", "clientConnection"] {
        if document.get(field).is_some() {
            let why = format!(
                "{}: {field}: not supported here, the server's scheduler has its own leader election and connection; use `mainstay scheduler`",
                path.display()
            );
            return Err(Error::Option("scheduler-config", why));
        }
    }
    Ok(document)
}

fn cni(conf_dir: Option<PathBuf>, bin_dirs: Option<Vec<PathBuf>>) -> Result<Option<Cni>, Error> {
    match (conf_dir, bin_dirs) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Error::Option(
            "cni-bin-dir",
            "plugins are used only with --cni-conf-dir".into(),
        )),
        (Some(conf_dir), bin_dirs) => Ok(Some(Cni {
            conf_dir,
            bin_dirs: bin_dirs.unwrap_or_else(|| CNI_BIN_DIRS.map(PathBuf::from).into()),
        })),
    }
}

fn net(octets: [u8; 4], prefix: u8) -> IpNet {
    IpNet::new_assert(IpAddr::V4(Ipv4Addr::from(octets)), prefix)
}

/// The nth address of a network; networks that are too small were rejected before.
fn nth(net: IpNet, n: u8) -> IpAddr {
    match net.network() {
        IpAddr::V4(first) => IpAddr::V4((u32::from(first) + u32::from(n)).into()),
        IpAddr::V6(first) => IpAddr::V6((u128::from(first) + u128::from(n)).into()),
    }
}

/// The audit log requires both a policy and a path.
fn audit(options: &Options) -> Result<Option<apiserver::audit::Config>, Error> {
    let (policy, log) = match (&options.audit_policy_file, &options.audit_log_path) {
        (None, None) => return Ok(None),
        (Some(policy), Some(log)) => (policy.clone(), log.clone()),
        (Some(_), None) => {
            let why = "is needed with --audit-policy-file".to_owned();
            return Err(Error::Option("audit-log-path", why));
        }
        (None, Some(_)) => {
            let why = "is needed with --audit-log-path".to_owned();
            return Err(Error::Option("audit-policy-file", why));
        }
    };
    Ok(Some(apiserver::audit::Config {
        policy,
        log,
        max_size: options.audit_log_maxsize.unwrap_or(100),
        max_backups: options.audit_log_maxbackup.unwrap_or(100),
        max_age: options.audit_log_maxage.unwrap_or(366),
    }))
}

/// The versions that `--runtime-config` switches on, each as VERSION or VERSION=true as for kube-apiserver.
fn optional_versions(given: Option<&[String]>) -> Result<Vec<String>, Error> {
    let known = apiserver::Registry::optional_versions();
    let mut on = Vec::new();
    for entry in given.unwrap_or_default() {
        let (version, value) = entry.split_once('=').unwrap_or((entry, "true"));
        match (known.iter().any(|known| known == version), value) {
            (true, "true") => on.push(version.to_owned()),
            (true, "false") => {}
            _ => {
                let known = known.join(", ");
                let why = format!("{entry:?} is not a version that can be switched on ({known})");
                return Err(Error::Option("runtime-config", why));
            }
        }
    }
    Ok(on)
}

fn admission(options: &Options) -> apiserver::admission::Options {
    apiserver::admission::Options {
        enable: options.enable_admission_plugins.clone().unwrap_or_default(),
        disable: options
            .disable_admission_plugins
            .clone()
            .unwrap_or_default(),
        config_file: options.admission_control_config_file.clone(),
    }
}

fn port_range(text: Option<&str>) -> Result<RangeInclusive<u16>, Error> {
    let Some(text) = text else {
        return Ok(30000..=32767);
    };
    let parsed = text.split_once('-').and_then(|(first, last)| {
        Some(first.trim().parse::<u16>().ok()?..=last.trim().parse::<u16>().ok()?)
    });
    parsed
        .filter(|range| *range.start() > 0 && !range.is_empty())
        .ok_or_else(|| {
            Error::Option(
                "service-node-port-range",
                format!("{text:?} is not FIRST-LAST"),
            )
        })
}

fn unix_path(endpoint: &str) -> Result<PathBuf, Error> {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    if !path.starts_with('/') {
        let why = format!("{endpoint:?} is not unix:///path");
        return Err(Error::Option("container-runtime-endpoint", why));
    }
    Ok(path.into())
}

fn is_dns_subdomain(name: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests;
