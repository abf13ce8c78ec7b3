//! The names and addresses under which the cluster and its node are reached.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// The names of the serving certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// The node in this process, if any: its kubelet's certificates are created too.
    pub node_name: Option<String>,
    /// Addresses of this host.
    pub node_ips: Vec<IpAddr>,
    /// Names of this host, and any other name clients use.
    pub host_names: Vec<String>,
    /// The address of the Service `kubernetes`, and others that lead to the API server.
    pub service_ips: Vec<IpAddr>,
    /// The cluster's DNS domain.
    pub cluster_domain: String,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            node_name: None,
            node_ips: Vec::new(),
            host_names: Vec::new(),
            service_ips: vec![IpAddr::V4(Ipv4Addr::new(10, 43, 0, 1))],
            cluster_domain: "cluster.local".to_owned(),
        }
    }
}

/// Subject alternative names in a comparable form.
pub(crate) type AltNames = BTreeSet<String>;

impl Names {
    /// Every name and address of the API server's certificate, as text.
    pub fn of_apiserver(&self) -> AltNames {
        let service = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        let mut names: AltNames = service.iter().map(|name| (*name).to_owned()).collect();
        names.insert(format!("kubernetes.default.svc.{}", self.cluster_domain));
        names.extend(self.service_ips.iter().map(IpAddr::to_string));
        names.extend(self.of_host());
        names
    }

    pub(crate) fn of_kubelet(&self) -> AltNames {
        self.of_host()
    }

    fn of_host(&self) -> AltNames {
        let mut names = AltNames::from(["localhost".to_owned()]);
        names.insert(Ipv4Addr::LOCALHOST.to_string());
        names.insert(Ipv6Addr::LOCALHOST.to_string());
        names.extend(self.node_ips.iter().map(IpAddr::to_string));
        let hosts = self.host_names.iter().chain(&self.node_name);
        names.extend(hosts.map(|name| name.to_ascii_lowercase()));
        names
    }
}
