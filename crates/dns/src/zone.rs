//! Answers names of the cluster's zone, by the Kubernetes DNS specification. Pure.

use std::{
    collections::{BTreeSet, HashSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use hickory_proto::rr::{
    Name, RData, Record, RecordType,
    rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT},
};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Service, ServicePort};

use crate::{
    Error,
    cluster::{Cluster, cluster_ips, endpoint_label, is_headless, is_published, owner},
    corefile::Kubernetes,
    hosts::within,
};

/// The default TTL in seconds. Short, since endpoints change.
pub const TTL: u32 = 5;
/// Namespace and name of the cluster's DNS Service.
const DNS_SERVICE: (&str, &str) = ("kube-system", "kube-dns");
/// The version of the specification.
const SPECIFICATION: &str = "1.1.0";

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// These records; empty if the name exists without records of this type. `additional` are
    /// addresses of SRV targets.
    Records {
        /// The answer section.
        records: Vec<Record>,
        /// The additional section.
        additional: Vec<Record>,
    },
    /// A CNAME to this name.
    Alias(Box<Record>, Name),
    /// The name does not exist.
    NoName,
    /// Not a name of this zone.
    Elsewhere,
}

impl Answer {
    fn records(records: Vec<Record>) -> Self {
        Self::Records {
            records,
            additional: Vec::new(),
        }
    }

    fn nothing() -> Self {
        Self::records(Vec::new())
    }
}

/// The zone of a cluster.
#[derive(Debug, Clone)]
pub struct Zone {
    origin: Name,
    /// Ranges whose reverse names are never forwarded.
    own_ranges: Vec<IpNet>,
    settings: Kubernetes,
}

/// A question about a Service's name or one below it.
struct ServiceQuestion<'a> {
    name: &'a Name,
    kind: RecordType,
    namespace: &'a str,
    service: &'a str,
}

impl Zone {
    /// A zone at `domain`, e.g. `cluster.local`. `own_ranges` are the pod and service CIDRs.
    pub fn new(domain: &str, own_ranges: Vec<IpNet>) -> Result<Self, Error> {
        let wrong = || Error::Domain(domain.into());
        let mut origin = Name::from_ascii(domain.to_lowercase()).map_err(|_| wrong())?;
        origin.set_fqdn(true);
        if origin.is_root() {
            return Err(wrong());
        }
        let settings = Kubernetes {
            ttl: TTL,
            pods: true,
            pod_names: false,
            fallthrough: Vec::new(),
        };
        Ok(Self {
            origin,
            own_ranges,
            settings,
        })
    }

    /// The zone's name.
    pub fn origin(&self) -> &Name {
        &self.origin
    }

    /// The same zone with other settings.
    #[must_use]
    pub fn with(mut self, settings: &Kubernetes) -> Self {
        self.settings = settings.clone();
        self
    }

    /// Answers a question.
    pub fn answer(&self, cluster: &Cluster, name: &Name, kind: RecordType) -> Answer {
        let name = fully_qualified(name);
        let mut answer = self.look_up(cluster, &name, kind);
        match &mut answer {
            Answer::Records {
                records,
                additional,
            } => {
                for record in records.iter_mut().chain(additional) {
                    record.ttl = self.settings.ttl;
                }
            }
            Answer::Alias(record, _) => record.ttl = self.settings.ttl,
            // Reverse names of our own ranges are never forwarded, whatever the settings.
            Answer::NoName
                if within(&self.settings.fallthrough, &name)
                    && address_of_reverse(&name).is_none() =>
            {
                return Answer::Elsewhere;
            }
            Answer::NoName | Answer::Elsewhere => {}
        }
        answer
    }

    fn look_up(&self, cluster: &Cluster, name: &Name, kind: RecordType) -> Answer {
        let name = name.clone();
        if let Some(ip) = address_of_reverse(&name) {
            return self.reverse(cluster, &name, kind, ip);
        }
        if !self.origin.zone_of(&name) {
            return Answer::Elsewhere;
        }
        let below = usize::from(name.num_labels() - self.origin.num_labels());
        let labels: Option<Vec<String>> = name
            .iter()
            .take(below)
            .map(|label| std::str::from_utf8(label).ok().map(str::to_lowercase))
            .collect();
        let Some(labels) = labels else {
            return Answer::NoName;
        };
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        match labels.as_slice() {
            [] => self.apex(&name, kind),
            ["svc" | "pod"] => Answer::nothing(),
            ["dns-version"] => version(&name, kind),
            ["ns", "dns"] => name_server(cluster, &name, kind),
            [namespace, "svc"] => existing(cluster.has_services_in(namespace)),
            [namespace, "pod"] => existing(cluster.has_services_in(namespace)),
            [_, _, "pod"] if !self.settings.pods => Answer::NoName,
            [address, _, "pod"] => pod(&name, kind, address),
            [below @ .., service, namespace, "svc"] => {
                let asked = ServiceQuestion {
                    name: &name,
                    kind,
                    namespace,
                    service,
                };
                self.service(cluster, &asked, below)
            }
            _ => Answer::NoName,
        }
    }

    /// The SOA record, which says how long denials may be cached.
    pub fn start_of_authority(&self) -> Record {
        let server = self.below(&["ns", "dns"]);
        let mailbox = self.below(&["hostmaster"]);
        // There are no zone transfers: serial and intervals are irrelevant.
        let ttl = self.settings.ttl;
        let soa = SOA::new(server, mailbox, 1, 7200, 1800, 86400, ttl);
        Record::from_rdata(self.origin.clone(), ttl, RData::SOA(soa))
    }

    fn below(&self, labels: &[&str]) -> Name {
        let own = Name::from_labels(labels.iter().map(|label| label.as_bytes()));
        own.and_then(|own| own.append_domain(&self.origin))
            .unwrap_or_else(|_| self.origin.clone())
    }

    fn apex(&self, name: &Name, kind: RecordType) -> Answer {
        match kind {
            RecordType::SOA => Answer::records(vec![self.start_of_authority()]),
            RecordType::NS => {
                let server = RData::NS(NS(self.below(&["ns", "dns"])));
                Answer::records(vec![Record::from_rdata(name.clone(), TTL, server)])
            }
            _ => Answer::nothing(),
        }
    }

    fn service(&self, cluster: &Cluster, asked: &ServiceQuestion<'_>, below: &[&str]) -> Answer {
        let Some(service) = cluster.services.get(asked.namespace, asked.service) else {
            return Answer::NoName;
        };
        if let Some(target) = external_name(&service) {
            return match below {
                [] => alias(asked.name, &target),
                _ => Answer::NoName,
            };
        }
        let backends = self.backends(cluster, asked, &service);
        match below {
            [] => self.service_itself(asked, &service, &backends),
            [protocol] if is_protocol(protocol) => {
                existing(ports(&service).any(|port| protocol_label(port) == **protocol))
            }
            [port, protocol] if is_protocol(protocol) => {
                self.named_port(asked, &service, &backends, port, protocol)
            }
            // Also for a Service with a cluster IP, as CoreDNS does.
            [label] => endpoint(asked, &self.endpoints(cluster, asked), label),
            _ => Answer::NoName,
        }
    }

    /// The targets of a Service's name: the Service itself, or each published endpoint of a
    /// headless one.
    fn backends(
        &self,
        cluster: &Cluster,
        asked: &ServiceQuestion<'_>,
        service: &Service,
    ) -> Vec<Backend> {
        let own = self.below(&[asked.service, asked.namespace, "svc"]);
        if !is_headless(service) {
            let ips = cluster_ips(service);
            return vec![Backend {
                label: String::new(),
                name: own,
                ips,
                ports: None,
            }];
        }
        self.endpoints(cluster, asked)
    }

    /// The published endpoints of a Service.
    fn endpoints(&self, cluster: &Cluster, asked: &ServiceQuestion<'_>) -> Vec<Backend> {
        let mut backends: Vec<Backend> = Vec::new();
        for slice in cluster.slices_of(asked.namespace, asked.service) {
            let numbers: Vec<(String, String, u16)> = slice
                .ports
                .iter()
                .flatten()
                .filter_map(|port| {
                    let name = port.name.clone().unwrap_or_default();
                    let protocol = port.protocol.as_deref().unwrap_or("TCP").to_lowercase();
                    Some((name, protocol, u16::try_from(port.port?).ok()?))
                })
                .collect();
            for endpoint in slice
                .endpoints
                .iter()
                .flatten()
                .filter(|endpoint| is_published(endpoint))
            {
                let ips = endpoint
                    .addresses
                    .iter()
                    .filter_map(|ip| ip.parse::<IpAddr>().ok());
                for ip in ips {
                    let label = endpoint_label(endpoint, ip, self.settings.pod_names);
                    let name = self.below(&[&label, asked.service, asked.namespace, "svc"]);
                    backends.push(Backend {
                        label,
                        name,
                        ips: vec![ip],
                        ports: Some(numbers.clone()),
                    });
                }
            }
        }
        backends
    }

    fn service_itself(
        &self,
        asked: &ServiceQuestion<'_>,
        service: &Service,
        backends: &[Backend],
    ) -> Answer {
        if asked.kind == RecordType::SRV {
            let wanted: Vec<(String, String)> = ports(service)
                .map(|port| (port.name.clone().unwrap_or_default(), protocol_of(port)))
                .collect();
            return srv(asked.name, service, backends, &wanted);
        }
        if backends.is_empty() {
            // A headless Service without published endpoints does not resolve.
            return Answer::NoName;
        }
        let ips: BTreeSet<IpAddr> = backends
            .iter()
            .flat_map(|backend| &backend.ips)
            .copied()
            .collect();
        Answer::records(addresses(asked.name, asked.kind, ips))
    }

    fn named_port(
        &self,
        asked: &ServiceQuestion<'_>,
        service: &Service,
        backends: &[Backend],
        port: &str,
        protocol: &str,
    ) -> Answer {
        let (Some(port), Some(protocol)) = (port.strip_prefix('_'), protocol.strip_prefix('_'))
        else {
            return Answer::NoName;
        };
        let known = ports(service)
            .any(|known| known.name.as_deref() == Some(port) && protocol_of(known) == protocol);
        match (known && !backends.is_empty(), asked.kind) {
            (false, _) => Answer::NoName,
            (true, RecordType::SRV) => srv(
                asked.name,
                service,
                backends,
                &[(port.to_owned(), protocol.to_owned())],
            ),
            (true, _) => Answer::nothing(),
        }
    }

    fn reverse(&self, cluster: &Cluster, name: &Name, kind: RecordType, ip: IpAddr) -> Answer {
        let mut targets: BTreeSet<Name> = BTreeSet::new();
        for service in cluster.services_at(ip) {
            let meta = &service.metadata;
            if let (Some(service), Some(namespace)) = (&meta.name, &meta.namespace) {
                targets.insert(self.below(&[service, namespace, "svc"]));
            }
        }
        for slice in cluster.slices_at(ip) {
            let (Some(service), Some(namespace)) = (owner(&slice), &slice.metadata.namespace)
            else {
                continue;
            };
            if !cluster
                .services
                .get(namespace, service)
                .is_some_and(|service| is_headless(&service))
            {
                continue;
            }
            for endpoint in slice
                .endpoints
                .iter()
                .flatten()
                .filter(|endpoint| is_published(endpoint))
            {
                if endpoint
                    .addresses
                    .iter()
                    .any(|address| address.parse() == Ok(ip))
                {
                    let label = endpoint_label(endpoint, ip, self.settings.pod_names);
                    targets.insert(self.below(&[&label, service, namespace, "svc"]));
                }
            }
        }
        if targets.is_empty() {
            let ours = self.own_ranges.iter().any(|range| range.contains(&ip));
            return if ours {
                Answer::NoName
            } else {
                Answer::Elsewhere
            };
        }
        if !matches!(kind, RecordType::PTR | RecordType::ANY) {
            return Answer::nothing();
        }
        let record = |target| Record::from_rdata(name.clone(), TTL, RData::PTR(PTR(target)));
        Answer::records(targets.into_iter().map(record).collect())
    }
}

/// A target of a Service's name.
struct Backend {
    label: String,
    name: Name,
    ips: Vec<IpAddr>,
    /// Name, protocol and number of its ports; `None` for the Service's own.
    ports: Option<Vec<(String, String, u16)>>,
}

fn existing(exists: bool) -> Answer {
    if exists {
        Answer::nothing()
    } else {
        Answer::NoName
    }
}

fn fully_qualified(name: &Name) -> Name {
    let mut name = name.clone();
    name.set_fqdn(true);
    name
}

fn version(name: &Name, kind: RecordType) -> Answer {
    if kind != RecordType::TXT {
        return Answer::nothing();
    }
    let text = RData::TXT(TXT::new(vec![SPECIFICATION.into()]));
    Answer::records(vec![Record::from_rdata(name.clone(), TTL, text)])
}

/// The addresses of the name in the zone's NS record: those of the cluster's DNS Service.
fn name_server(cluster: &Cluster, name: &Name, kind: RecordType) -> Answer {
    let (namespace, service) = DNS_SERVICE;
    let service = cluster.services.get(namespace, service);
    let ips = service.map(|service| cluster_ips(&service));
    Answer::records(addresses(name, kind, ips.unwrap_or_default()))
}

fn addresses(name: &Name, kind: RecordType, ips: impl IntoIterator<Item = IpAddr>) -> Vec<Record> {
    let data = ips.into_iter().filter_map(|ip| match (ip, kind) {
        (IpAddr::V4(ip), RecordType::A | RecordType::ANY) => Some(RData::A(A(ip))),
        (IpAddr::V6(ip), RecordType::AAAA | RecordType::ANY) => Some(RData::AAAA(AAAA(ip))),
        _ => None,
    });
    data.map(|data| Record::from_rdata(name.clone(), TTL, data))
        .collect()
}

/// The address in `1-2-3-4.NAMESPACE.pod`.
fn pod(name: &Name, kind: RecordType, label: &str) -> Answer {
    let v4 = label.replace('-', ".").parse::<Ipv4Addr>().map(IpAddr::V4);
    let v6 = || label.replace('-', ":").parse::<Ipv6Addr>().map(IpAddr::V6);
    match v4.or_else(|_| v6()) {
        Ok(ip) => Answer::records(addresses(name, kind, [ip])),
        Err(_) => Answer::NoName,
    }
}

fn endpoint(asked: &ServiceQuestion<'_>, backends: &[Backend], label: &str) -> Answer {
    let named: Vec<&Backend> = backends
        .iter()
        .filter(|backend| backend.label == label)
        .collect();
    if named.is_empty() {
        return Answer::NoName;
    }
    let ips: BTreeSet<IpAddr> = named
        .iter()
        .flat_map(|backend| &backend.ips)
        .copied()
        .collect();
    Answer::records(addresses(asked.name, asked.kind, ips))
}

fn external_name(service: &Service) -> Option<String> {
    let spec = service.spec.as_ref()?;
    (spec.type_.as_deref() == Some("ExternalName"))
        .then(|| spec.external_name.clone().unwrap_or_default())
}

fn alias(name: &Name, target: &str) -> Answer {
    match Name::from_ascii(target.to_lowercase()) {
        Ok(target) if !target.is_root() && !target.is_empty() => {
            let target = fully_qualified(&target);
            let data = RData::CNAME(CNAME(target.clone()));
            Answer::Alias(
                Box::new(Record::from_rdata(name.clone(), TTL, data)),
                target,
            )
        }
        _ => Answer::nothing(),
    }
}

fn ports(service: &Service) -> impl Iterator<Item = &ServicePort> {
    service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten())
}

fn protocol_of(port: &ServicePort) -> String {
    port.protocol.as_deref().unwrap_or("TCP").to_lowercase()
}

fn protocol_label(port: &ServicePort) -> String {
    format!("_{}", protocol_of(port))
}

fn is_protocol(label: &str) -> bool {
    matches!(label, "_tcp" | "_udp" | "_sctp")
}

/// Service records for ports, with the addresses of their targets.
fn srv(
    name: &Name,
    service: &Service,
    backends: &[Backend],
    wanted: &[(String, String)],
) -> Answer {
    let mut targets: Vec<(u16, &Backend)> = Vec::new();
    for (port, protocol) in wanted {
        let own = ports(service)
            .find(|known| {
                known.name.as_deref().unwrap_or_default() == port && protocol_of(known) == *protocol
            })
            .and_then(|known| u16::try_from(known.port).ok());
        for backend in backends {
            let number = match &backend.ports {
                None => own,
                Some(numbers) => numbers
                    .iter()
                    .find(|(known, of, _)| known == port && of == protocol)
                    .map(|(_, _, number)| *number),
            };
            targets.extend(number.map(|number| (number, backend)));
        }
    }
    let weight = u16::try_from(100 / targets.len().max(1))
        .unwrap_or(1)
        .max(1);
    let record = |(number, backend): &(u16, &Backend)| {
        let data = SRV::new(0, weight, *number, backend.name.clone());
        Record::from_rdata(name.clone(), TTL, RData::SRV(data))
    };
    let records = targets.iter().map(record).collect();
    let mut additional: Vec<Record> = Vec::new();
    let mut seen = HashSet::new();
    for (_, backend) in &targets {
        let new = backend.ips.iter().copied();
        let new = new.filter(|ip| seen.insert((&backend.name, *ip)));
        additional.extend(addresses(&backend.name, RecordType::ANY, new));
    }
    Answer::Records {
        records,
        additional,
    }
}

/// The address of a complete reverse name; `None` for other names.
pub(crate) fn address_of_reverse(name: &Name) -> Option<IpAddr> {
    let range = name.parse_arpa_name().ok()?;
    (range.prefix_len() == range.max_prefix_len()).then(|| range.addr())
}
