//! The `runtimeConfig` of a pod, by the plugins' capabilities.

use serde_json::{Map, Value, json};

use crate::{
    AttachRequest,
    shape::{EGRESS, INGRESS},
};

/// The annotations with the requested addresses, separated by commas, and hardware address.
const IPS: &str = "cni.mainstay.local/ips";
const MAC: &str = "cni.mainstay.local/mac";

/// Plugins store bursts in 32 bits.
const BURST: u64 = i32::MAX as u64;

pub(super) fn runtime_config(request: &AttachRequest) -> Value {
    let mut offered = Map::new();
    let mut offer = |name: &str, value: Value| {
        offered.insert(name.to_owned(), value);
    };
    if !request.port_mappings.is_empty() {
        let mappings = request.port_mappings.iter().map(|mapping| {
            json!({
                "hostPort": mapping.host_port,
                "containerPort": mapping.container_port,
                "protocol": mapping.protocol.as_str(),
                "hostIP": mapping.host_ip.map(|ip| ip.to_string()).unwrap_or_default(),
            })
        });
        offer("portMappings", mappings.collect());
    }
    if let Some(bandwidth) = bandwidth(request) {
        offer("bandwidth", bandwidth);
    }
    if let Some(ips) = request.annotations.get(IPS) {
        offer("ips", ips.split(',').map(str::trim).collect());
    }
    if let Some(mac) = request.annotations.get(MAC) {
        offer("mac", json!(mac));
    }
    let dns = &request.dns;
    if !dns.servers.is_empty() || !dns.searches.is_empty() || !dns.options.is_empty() {
        offer(
            "dns",
            json!({ "servers": dns.servers, "searches": dns.searches, "options": dns.options }),
        );
    }
    if !request.cgroup_path.is_empty() {
        offer("cgroupPath", json!(request.cgroup_path));
    }
    offer(
        "io.kubernetes.cri.pod-annotations",
        json!(request.annotations),
    );
    Value::Object(offered)
}

fn bandwidth(request: &AttachRequest) -> Option<Value> {
    let rate = |name: &str| bits(request.annotations.get(name)?);
    let (ingress, egress) = (rate(INGRESS), rate(EGRESS));
    let mut bandwidth = Map::new();
    let mut limit = |name: &str, rate: Option<u64>| {
        if let Some(rate) = rate {
            bandwidth.insert(format!("{name}Rate"), json!(rate));
            bandwidth.insert(format!("{name}Burst"), json!(BURST));
        }
    };
    limit("ingress", ingress);
    limit("egress", egress);
    (!bandwidth.is_empty()).then_some(Value::Object(bandwidth))
}

/// A whole quantity of bits: `10M`, `1Gi`, `500000`. Invalid values mean no limit.
pub(crate) fn bits(text: &str) -> Option<u64> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor: u64 = match unit {
        "" => 1,
        "k" => 1000,
        "M" => 1000_u64.pow(2),
        "G" => 1000_u64.pow(3),
        "T" => 1000_u64.pow(4),
        "P" => 1000_u64.pow(5),
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        _ => return None,
    };
    let value = number.parse::<f64>().ok()? * factor as f64;
    (value >= 1.0).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DnsSettings, PortMapping, Protocol};

    #[test]
    fn runtime_config_has_every_capability_of_the_pod() {
        let annotations = [
            (INGRESS, "10M"),
            (EGRESS, "1.5Ki"),
            (IPS, "10.1.2.3/16, fd00::3"),
            (MAC, "c2:b0:57:49:47:f1"),
        ];
        let request = AttachRequest {
            annotations: annotations
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            port_mappings: vec![PortMapping {
                protocol: Protocol::Udp,
                container_port: 53,
                host_port: 5353,
                host_ip: None,
            }],
            dns: DnsSettings {
                servers: vec!["10.43.0.10".into()],
                searches: vec!["svc".into()],
                options: vec![],
            },
            cgroup_path: "/pods/a".into(),
            ..AttachRequest::default()
        };
        let mut offered = runtime_config(&request);
        let seen = offered["io.kubernetes.cri.pod-annotations"].take();
        assert_eq!(seen[MAC], "c2:b0:57:49:47:f1");
        let expected = json!({
            "portMappings": [{ "hostPort": 5353, "containerPort": 53, "protocol": "udp", "hostIP": "" }],
            "bandwidth": {
                "ingressRate": 10_000_000, "ingressBurst": BURST,
                "egressRate": 1536, "egressBurst": BURST,
            },
            "ips": ["10.1.2.3/16", "fd00::3"],
            "mac": "c2:b0:57:49:47:f1",
            "dns": { "servers": ["10.43.0.10"], "searches": ["svc"], "options": [] },
            "cgroupPath": "/pods/a",
            "io.kubernetes.cri.pod-annotations": null,
        });
        assert_eq!(offered, expected);
    }

    #[test]
    fn rates_are_quantities() {
        for (text, expected) in [("5", Some(5)), ("1k", Some(1000)), ("2Gi", Some(2 << 30))] {
            assert_eq!(bits(text), expected);
        }
        for text in ["", "fast", "-1", "0", "1X", "5m"] {
            assert_eq!(bits(text), None, "{text}");
        }
    }
}
