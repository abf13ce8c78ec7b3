//! Builds the CRI configuration of a pod's sandbox.

use cri::v1;
use k8s_openapi::api::core::v1::Pod;

use super::{
    cgroups::CgroupRoot,
    dns, labels,
    resources::{self, CfsQuota},
    security,
};
use crate::pod::spec;

/// The node's settings for a sandbox.
pub struct Inputs<'a> {
    pub dns: dns::DnsFacts<'a>,
    pub pod_logs_dir: &'a str,
    pub cgroup_root: &'a CgroupRoot,
    pub cfs: CfsQuota,
    pub seccomp: security::Seccomp<'a>,
}

/// The pod's log directory.
pub fn log_directory(pod_logs_dir: &str, pod: &Pod) -> String {
    let (namespace, name, uid) = (spec::namespace(pod), spec::name(pod), spec::uid(pod));
    format!("{pod_logs_dir}/{namespace}_{name}_{uid}")
}

/// The sandbox's configuration.
pub fn config(pod: &Pod, attempt: u32, inputs: &Inputs) -> v1::PodSandboxConfig {
    let (hostname, domain) = dns::host_and_domain(pod, inputs.dns.cluster_domain);
    let dns = dns::dns(pod, &inputs.dns);
    let on_host = spec::is_host_network(pod);
    let (resources, overhead) = resources::of_sandbox(pod, inputs.cfs);
    let sysctls = spec::spec(pod)
        .security_context
        .iter()
        .flat_map(|context| context.sysctls.iter().flatten())
        .map(|sysctl| (sysctl.name.clone(), sysctl.value.clone()));
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: spec::name(pod).into(),
            uid: spec::uid(pod).into(),
            namespace: spec::namespace(pod).into(),
            attempt,
        }),
        hostname: if on_host {
            String::new()
        } else {
            dns::kernel_hostname(pod, &hostname, &domain)
        },
        log_directory: log_directory(inputs.pod_logs_dir, pod),
        dns_config: Some(v1::DnsConfig {
            servers: dns.servers,
            searches: dns.searches,
            options: dns.options,
        }),
        port_mappings: if on_host { vec![] } else { port_mappings(pod) },
        labels: labels::of_sandbox(pod),
        annotations: pod
            .metadata
            .annotations
            .clone()
            .unwrap_or_default()
            .into_iter()
            .collect(),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: inputs.cgroup_root.pod(pod),
            security_context: Some(security::of_sandbox(pod, inputs.seccomp)),
            sysctls: sysctls.collect(),
            resources: Some(resources),
            overhead: Some(overhead),
        }),
        ..Default::default()
    }
}

fn port_mappings(pod: &Pod) -> Vec<v1::PortMapping> {
    let sidecars = spec::init_containers(pod)
        .iter()
        .filter(|c| spec::is_sidecar(c));
    let ports = sidecars
        .chain(&spec::spec(pod).containers)
        .flat_map(|container| container.ports.iter().flatten());
    ports
        .map(|port| v1::PortMapping {
            protocol: match port.protocol.as_deref() {
                Some("UDP") => v1::Protocol::Udp,
                Some("SCTP") => v1::Protocol::Sctp,
                _ => v1::Protocol::Tcp,
            } as i32,
            container_port: port.container_port,
            host_port: port.host_port.unwrap_or(0),
            host_ip: port.host_ip.clone().unwrap_or_default(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::make::cgroups::Driver;

    #[test]
    fn a_sandbox_carries_the_pods_identity_name_and_ports() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u", "labels": {"app": "x"}},
            "spec": {"containers": [{"name": "a", "ports": [{"containerPort": 80, "hostPort": 8080}]}]}}))
        .unwrap();
        let node = dns::Dns::default();
        let inputs = Inputs {
            dns: dns::DnsFacts {
                cluster_dns: &[],
                cluster_domain: "cluster.local",
                node: &node,
            },
            pod_logs_dir: "/logs",
            cgroup_root: &CgroupRoot {
                path: "/m".into(),
                driver: Driver::Cgroupfs,
            },
            cfs: CfsQuota::default(),
            seccomp: security::Seccomp {
                root: "/s",
                by_default: false,
            },
        };
        let made = config(&pod, 2, &inputs);
        assert_eq!(made.hostname, "web");
        assert_eq!(made.log_directory, "/logs/ns_web_u");
        assert_eq!(made.metadata.unwrap().attempt, 2);
        assert_eq!(made.labels["app"], "x");
        assert_eq!(made.labels[labels::POD_UID], "u");
        assert_eq!(
            (
                made.port_mappings[0].container_port,
                made.port_mappings[0].host_port
            ),
            (80, 8080)
        );
    }
}
