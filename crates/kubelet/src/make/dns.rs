//! A pod's host name, domain and resolver configuration.

use k8s_openapi::api::core::v1::{Pod, PodDNSConfig};

use crate::pod::spec;

/// The name servers, search domains and options of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dns {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

/// The DNS settings of the cluster and the node.
pub struct DnsFacts<'a> {
    pub cluster_dns: &'a [String],
    pub cluster_domain: &'a str,
    /// The node's own resolv.conf.
    pub node: &'a Dns,
}

impl Dns {
    /// Reads a resolv.conf.
    pub fn parse(text: &str) -> Self {
        let mut dns = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => dns.servers.extend(words.next().map(str::to_owned)),
                Some("search" | "domain") => dns.searches = words.map(str::to_owned).collect(),
                Some("options") => dns.options.extend(words.map(str::to_owned)),
                _ => {}
            }
        }
        dns
    }
}

/// The pod's DNS settings by its dnsPolicy, with its dnsConfig.
pub fn dns(pod: &Pod, facts: &DnsFacts) -> Dns {
    let spec = spec::spec(pod);
    let policy = spec.dns_policy.as_deref().unwrap_or("ClusterFirst");
    let on_host = spec::is_host_network(pod);
    let wants_cluster =
        policy == "ClusterFirstWithHostNet" || (policy == "ClusterFirst" && !on_host);
    let base = match policy {
        "None" => Dns::default(),
        _ if wants_cluster && !facts.cluster_dns.is_empty() => cluster(pod, facts),
        _ => facts.node.clone(),
    };
    match &spec.dns_config {
        Some(config) => with_config(base, config),
        None => base,
    }
}

fn cluster(pod: &Pod, facts: &DnsFacts) -> Dns {
    let domain = facts.cluster_domain;
    let namespace = spec::namespace(pod);
    let own = [
        format!("{namespace}.svc.{domain}"),
        format!("svc.{domain}"),
        domain.to_owned(),
    ];
    let node = facts
        .node
        .searches
        .iter()
        .filter(|search| !own.contains(search))
        .cloned();
    Dns {
        servers: facts.cluster_dns.to_vec(),
        searches: own.iter().cloned().chain(node).collect(),
        options: vec!["ndots:5".to_owned()],
    }
}

fn with_config(mut dns: Dns, config: &PodDNSConfig) -> Dns {
    let add = |list: &mut Vec<String>, more: &Option<Vec<String>>| {
        for item in more.iter().flatten() {
            if !list.contains(item) {
                list.push(item.clone());
            }
        }
    };
    add(&mut dns.servers, &config.nameservers);
    add(&mut dns.searches, &config.searches);
    for option in config.options.iter().flatten() {
        let Some(name) = &option.name else { continue };
        dns.options
            .retain(|old| old.split(':').next() != Some(name));
        dns.options.push(match option.value.as_deref() {
            Some(value) if !value.is_empty() => format!("{name}:{value}"),
            _ => name.clone(),
        });
    }
    dns
}

/// The pod's host name and domain; the domain is empty without a subdomain.
pub fn host_and_domain(pod: &Pod, cluster_domain: &str) -> (String, String) {
    let spec = spec::spec(pod);
    if let Some(name) = spec
        .hostname_override
        .as_deref()
        .filter(|name| !name.is_empty())
    {
        return (name.to_owned(), String::new());
    }
    let hostname = match spec.hostname.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => name.to_owned(),
        None => truncate(spec::name(pod)),
    };
    let domain = match spec.subdomain.as_deref().filter(|name| !name.is_empty()) {
        Some(sub) => format!("{sub}.{}.svc.{cluster_domain}", spec::namespace(pod)),
        None => String::new(),
    };
    (hostname, domain)
}

/// Linux allows 64 bytes and DNS labels 63; none may end with a dash or dot.
fn truncate(name: &str) -> String {
    let end = name.len().min(63);
    name[..end].trim_end_matches(['-', '.']).to_owned()
}

/// The kernel's host name: the name, or the FQDN with `setHostnameAsFQDN`.
pub fn kernel_hostname(pod: &Pod, hostname: &str, domain: &str) -> String {
    if spec::spec(pod).set_hostname_as_fqdn == Some(true) && !domain.is_empty() {
        return format!("{hostname}.{domain}");
    }
    hostname.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "web-0", "namespace": "ns"}, "spec": spec}))
        .unwrap()
    }

    fn dns_of_pod(spec: serde_json::Value) -> Dns {
        let node = Dns::parse("nameserver 9.9.9.9\nsearch corp.example\noptions edns0\n");
        let cluster_dns = ["10.43.0.10".to_owned()];
        let facts = DnsFacts {
            cluster_dns: &cluster_dns,
            cluster_domain: "cluster.local",
            node: &node,
        };
        dns(&pod(spec), &facts)
    }

    #[test]
    fn policies_choose_the_cluster_the_node_or_nothing() {
        let cluster = dns_of_pod(serde_json::json!({"containers": []}));
        assert_eq!(cluster.servers, ["10.43.0.10"]);
        let searches = [
            "ns.svc.cluster.local",
            "svc.cluster.local",
            "cluster.local",
            "corp.example",
        ];
        assert_eq!(cluster.searches, searches);
        assert_eq!(cluster.options, ["ndots:5"]);
        let node = dns_of_pod(serde_json::json!({"containers": [], "dnsPolicy": "Default"}));
        assert_eq!(
            (node.servers[0].as_str(), node.options[0].as_str()),
            ("9.9.9.9", "edns0")
        );
        let host = dns_of_pod(serde_json::json!({"containers": [], "hostNetwork": true}));
        assert_eq!(host.servers, ["9.9.9.9"]);
        let both = dns_of_pod(serde_json::json!({"containers": [], "hostNetwork": true,
            "dnsPolicy": "ClusterFirstWithHostNet"}));
        assert_eq!(both.servers, ["10.43.0.10"]);
        let own = dns_of_pod(
            serde_json::json!({"containers": [], "dnsPolicy": "None", "dnsConfig": {
            "nameservers": ["1.1.1.1"], "searches": ["x"], "options": [{"name": "ndots", "value": "2"}]}}),
        );
        assert_eq!(
            (own.servers, own.searches, own.options),
            (
                vec!["1.1.1.1".into()],
                vec!["x".into()],
                vec!["ndots:2".to_owned()]
            )
        );
    }

    #[test]
    fn an_option_of_the_pod_replaces_the_clusters() {
        let dns = dns_of_pod(serde_json::json!({"containers": [], "dnsConfig": {
            "options": [{"name": "ndots", "value": "1"}, {"name": "edns0"}]}}));
        assert_eq!(dns.options, ["ndots:1", "edns0"]);
    }

    #[test]
    fn host_names_come_from_the_spec_or_the_name() {
        let name = |spec| host_and_domain(&pod(spec), "cluster.local");
        assert_eq!(
            name(serde_json::json!({"containers": []})),
            ("web-0".into(), String::new())
        );
        assert_eq!(
            name(serde_json::json!({"containers": [], "hostname": "h", "subdomain": "s"})),
            ("h".into(), "s.ns.svc.cluster.local".into())
        );
        assert_eq!(truncate(&format!("{}-x", "a".repeat(62))), "a".repeat(62));
    }
}
