//! The pod's hosts file.

use k8s_openapi::api::core::v1::{HostAlias, Pod};

use crate::pod::spec;

const HEADER: &str = "# Kubernetes-managed hosts file.\n";
const HOST_HEADER: &str = "# Kubernetes-managed hosts file (host network).\n";

/// The file's content. `node_hosts` is the node's own file, for pods in its network.
pub fn hosts(pod: &Pod, ips: &[String], hostname: &str, domain: &str, node_hosts: &str) -> String {
    let mut text = if spec::is_host_network(pod) {
        format!("{HOST_HEADER}{node_hosts}")
    } else {
        let mut text = String::from(HEADER);
        text.push_str("127.0.0.1\tlocalhost\n");
        text.push_str("::1\tlocalhost ip6-localhost ip6-loopback\n");
        text.push_str("fe00::0\tip6-localnet\n");
        text.push_str("fe00::0\tip6-mcastprefix\n");
        text.push_str("fe00::1\tip6-allnodes\n");
        text.push_str("fe00::2\tip6-allrouters\n");
        for ip in ips {
            match domain {
                "" => text.push_str(&format!("{ip}\t{hostname}\n")),
                _ => text.push_str(&format!("{ip}\t{hostname}.{domain}\t{hostname}\n")),
            }
        }
        text
    };
    text.push_str(&aliases(
        spec::spec(pod).host_aliases.as_deref().unwrap_or_default(),
    ));
    text
}

fn aliases(aliases: &[HostAlias]) -> String {
    if aliases.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        text.push_str(&format!("{}\t{names}\n", alias.ip));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pod_knows_its_own_name_and_its_aliases() {
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {"containers": [],
            "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a", "b"]}]}}))
        .unwrap();
        let text = hosts(
            &pod,
            &["10.0.0.7".into()],
            "web",
            "sub.ns.svc.cluster.local",
            "",
        );
        assert!(text.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"));
        assert!(text.contains("10.0.0.7\tweb.sub.ns.svc.cluster.local\tweb\n"));
        assert!(text.ends_with("\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n"));
    }
}
