//! Results of ADD, in the formats of all versions.

use std::net::IpAddr;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{plugin::PluginFailure, version::Version};
use crate::IpNet;

/// Completes a result with its version, which some plugins omit.
pub(super) fn complete(
    mut answer: Value,
    plugin: &str,
    version: Version,
) -> Result<Value, PluginFailure> {
    let Some(fields) = answer.as_object_mut() else {
        return Err(PluginFailure {
            plugin: plugin.to_owned(),
            command: "ADD",
            message: "no result".into(),
        });
    };
    if !fields.contains_key("cniVersion") {
        fields.insert("cniVersion".into(), json!(version.to_string()));
    }
    Ok(answer)
}

/// The addresses of the pod's interface, in the order of the result.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Addresses(pub Vec<IpAddr>);

/// Since 0.3.0, `ips` with their interfaces; before, one of each family.
#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    interfaces: Option<Vec<Link>>,
    #[serde(default)]
    ips: Option<Vec<Ip>>,
    ip4: Option<OldIp>,
    ip6: Option<OldIp>,
}

#[derive(Deserialize)]
struct Link {
    #[serde(default)]
    name: String,
    #[serde(default)]
    sandbox: String,
}

#[derive(Deserialize)]
struct Ip {
    address: IpNet,
    interface: Option<usize>,
}

#[derive(Deserialize)]
struct OldIp {
    ip: IpNet,
}

impl Addresses {
    pub(super) fn from_result(result: &Value, interface: &str) -> Result<Self, String> {
        let result: Answer = serde_json::from_value(result.clone())
            .map_err(|error| format!("cannot decode the result: {error}"))?;
        let links = result.interfaces.unwrap_or_default();
        let ips = result.ips.unwrap_or_default();
        // Skip addresses of a host interface, or of another interface of the pod.
        let own = |ip: &&Ip| match ip.interface.and_then(|at| links.get(at)) {
            Some(link) => link.name == interface && !link.sandbox.is_empty(),
            None => ip.interface.is_none(),
        };
        let mut addresses: Vec<IpAddr> =
            ips.iter().filter(own).map(|ip| ip.address.addr()).collect();
        let old = [result.ip4, result.ip6].into_iter().flatten();
        addresses.extend(old.map(|old| old.ip.addr()));
        Ok(Self(addresses))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_the_forms_of_every_version() {
        let cases = [
            (
                json!({ "ip4": { "ip": "10.1.0.5/16", "gateway": "10.1.0.1" }, "ip6": { "ip": "fd00::5/64" } }),
                "10.1.0.5 fd00::5",
            ),
            (
                json!({ "cniVersion": "0.3.1", "ips": [{ "version": "4", "address": "10.1.0.6/16" }] }),
                "10.1.0.6",
            ),
            (
                json!({
                    "cniVersion": "0.4.0",
                    "interfaces": [
                        { "name": "cni0" }, { "name": "veth1" },
                        { "name": "eth0", "sandbox": "/run/netns/x" }, { "name": "net1", "sandbox": "/run/netns/x" },
                    ],
                    "ips": [
                        { "version": "6", "address": "fd00::7/64", "interface": 2 },
                        { "version": "4", "address": "10.1.0.7/16", "interface": 2 },
                        { "version": "4", "address": "10.1.0.1/16", "interface": 0 },
                        { "version": "4", "address": "10.9.0.1/16", "interface": 3 },
                    ],
                }),
                "fd00::7 10.1.0.7",
            ),
            (
                json!({
                    "cniVersion": "1.1.0",
                    "interfaces": [{ "name": "eth0", "sandbox": "/x", "mtu": 1400, "socketPath": "" }],
                    "ips": [{ "address": "10.1.0.8/16", "gateway": "10.1.0.1", "interface": 0 }],
                    "routes": [{ "dst": "0.0.0.0/0", "mtu": 1400, "table": 1 }],
                }),
                "10.1.0.8",
            ),
            (
                json!({ "cniVersion": "1.0.0", "ips": null, "interfaces": null }),
                "",
            ),
            (
                json!({ "cniVersion": "1.0.0", "ips": [{ "address": "10.1.0.9/8", "interface": 5 }] }),
                "",
            ),
        ];
        for (result, expected) in cases {
            let found = Addresses::from_result(&result, "eth0").unwrap();
            let words: Vec<String> = found.0.iter().map(ToString::to_string).collect();
            assert_eq!(words.join(" "), expected, "{result}");
        }
        let wrong = json!({ "ips": [{ "address": "nowhere" }] });
        assert!(Addresses::from_result(&wrong, "eth0").is_err());
    }

    #[test]
    fn a_result_is_an_object_with_a_version() {
        let completed = complete(json!({ "ips": [] }), "x", Version::V0_4_0).unwrap();
        assert_eq!(completed["cniVersion"], "0.4.0");
        let kept = complete(json!({ "cniVersion": "1.0.0" }), "x", Version::V0_4_0).unwrap();
        assert_eq!(kept["cniVersion"], "1.0.0");
        assert!(complete(Value::Null, "x", Version::V0_4_0).is_err());
    }
}
