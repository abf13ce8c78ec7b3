//! A runtime's call of a CNI plugin, and its errors, as in the specification.

use std::{collections::BTreeMap, fmt::Display, net::IpAddr, path::PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::VERSIONS;
use crate::{
    AttachRequest, PortMapping, Protocol,
    links::POD_LINK,
    shape::{EGRESS, INGRESS},
};

/// The specification's error codes.
pub(super) const INCOMPATIBLE_VERSION: u32 = 1;
pub(super) const UNKNOWN_CONTAINER: u32 = 3;
pub(super) const INVALID_ENVIRONMENT: u32 = 4;
pub(super) const IO: u32 = 5;
pub(super) const DECODING: u32 = 6;
pub(super) const INVALID_CONFIG: u32 = 7;
pub(super) const TRY_AGAIN: u32 = 11;
pub(super) const NOT_AVAILABLE: u32 = 50;
/// The first code for plugins' own errors.
pub(super) const NETWORK: u32 = 100;

/// The maximum length of an id, which becomes a file name.
const LONGEST_ID: usize = 200;
/// The names of Kubernetes' arguments.
const POD_NAMESPACE: &str = "K8S_POD_NAMESPACE";
const POD_NAME: &str = "K8S_POD_NAME";
const POD_UID: &str = "K8S_POD_UID";

/// A failed command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub code: u32,
    pub msg: String,
    pub details: String,
}

impl Failure {
    /// A failure with its code.
    pub fn new(code: u32, message: impl Into<String>, details: impl Display) -> Self {
        Self {
            code,
            msg: message.into(),
            details: details.to_string(),
        }
    }

    /// The JSON form of an error.
    pub fn shown(&self, config: &[u8]) -> Value {
        let config: Value = serde_json::from_slice(config).unwrap_or_default();
        let asked = config["cniVersion"].as_str();
        let version = asked.filter(|version| VERSIONS.contains(version));
        json!({"cniVersion": version.unwrap_or("1.1.0"), "code": self.code, "msg": self.msg, "details": self.details})
    }
}

/// One command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    pub command: String,
    pub container_id: String,
    pub netns: Option<PathBuf>,
    pub arguments: BTreeMap<String, String>,
    pub config: Value,
}

/// The supported parts of `runtimeConfig`.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeConfig {
    port_mappings: Vec<Mapping>,
    bandwidth: Bandwidth,
}

/// containerd writes Go's field names, which Go's plugins accept as well.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    #[serde(alias = "HostPort")]
    host_port: u16,
    #[serde(alias = "ContainerPort")]
    container_port: u16,
    #[serde(default, alias = "Protocol")]
    protocol: String,
    #[serde(default, rename = "hostIP", alias = "HostIP")]
    host_ip: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Bandwidth {
    #[serde(alias = "IngressRate")]
    ingress_rate: u64,
    #[serde(alias = "EgressRate")]
    egress_rate: u64,
}

impl Call {
    /// Parses a command from the configuration and the environment.
    pub fn new(input: &[u8], variable: impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let config: Value = serde_json::from_slice(input).map_err(|error| {
            Failure::new(DECODING, "cannot decode the network configuration", error)
        })?;
        let version = config["cniVersion"].as_str().unwrap_or("0.1.0");
        if !VERSIONS.contains(&version) {
            let details = format!("{version}; supported are {}", VERSIONS.join(", "));
            return Err(Failure::new(
                INCOMPATIBLE_VERSION,
                "unknown CNI version",
                details,
            ));
        }
        if config["name"].as_str().is_none_or(str::is_empty) {
            let details = "the network has no name";
            return Err(Failure::new(
                INVALID_CONFIG,
                "invalid network configuration",
                details,
            ));
        }
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let call = Self {
            command: set("CNI_COMMAND").unwrap_or_default(),
            container_id: set("CNI_CONTAINERID").unwrap_or_default(),
            netns: set("CNI_NETNS").map(PathBuf::from),
            arguments: arguments(&set("CNI_ARGS").unwrap_or_default()),
            config,
        };
        call.require(set("CNI_IFNAME").as_deref())?;
        call.check_id()?;
        Ok(call)
    }

    /// Checks the variables that a command requires.
    fn require(&self, link: Option<&str>) -> Result<(), Failure> {
        let needed: &[&str] = match self.command.as_str() {
            "ADD" | "CHECK" => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
            "DEL" => &["CNI_CONTAINERID", "CNI_IFNAME"],
            "GC" | "STATUS" => &[],
            other => {
                let details = format!("CNI_COMMAND={other:?}");
                return Err(Failure::new(
                    INVALID_ENVIRONMENT,
                    "unknown command",
                    details,
                ));
            }
        };
        let missing = |name: &&&str| match **name {
            "CNI_CONTAINERID" => self.container_id.is_empty(),
            "CNI_NETNS" => self.netns.is_none(),
            _ => link.is_none(),
        };
        let missing: Vec<&str> = needed.iter().filter(missing).copied().collect();
        if !missing.is_empty() {
            let details = missing.join(", ");
            return Err(Failure::new(
                INVALID_ENVIRONMENT,
                "variables are missing",
                details,
            ));
        }
        if link.is_some_and(|link| link != POD_LINK) && !needed.is_empty() {
            let details = format!("CNI_IFNAME must be {POD_LINK}: a pod has one link");
            return Err(Failure::new(
                INVALID_ENVIRONMENT,
                "unsupported link name",
                details,
            ));
        }
        Ok(())
    }

    /// The id becomes a file name: rejects what the specification does not allow.
    pub fn check_id(&self) -> Result<(), Failure> {
        let id = self.container_id.as_bytes();
        let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-".contains(byte);
        let begins_well = id.first().is_none_or(u8::is_ascii_alphanumeric);
        if begins_well && id.iter().all(is_allowed) && id.len() <= LONGEST_ID {
            return Ok(());
        }
        let details = format!("CNI_CONTAINERID={:?}", self.container_id);
        let message = "invalid characters in the container's id";
        Err(Failure::new(INVALID_ENVIRONMENT, message, details))
    }

    /// The version of the response.
    pub fn version(&self) -> &str {
        self.config["cniVersion"].as_str().unwrap_or("1.1.0")
    }

    /// The attach request.
    pub fn request(&self) -> Result<AttachRequest, Failure> {
        let asked = match &self.config["runtimeConfig"] {
            Value::Null => RuntimeConfig::default(),
            asked => serde_json::from_value(asked.clone())
                .map_err(|error| Failure::new(INVALID_CONFIG, "invalid runtimeConfig", error))?,
        };
        let argument = |name: &str| self.arguments.get(name).cloned().unwrap_or_default();
        let mappings = asked
            .port_mappings
            .iter()
            .filter(|mapping| mapping.host_port != 0);
        let port_mappings: Result<Vec<PortMapping>, Failure> = mappings.map(mapping).collect();
        let mut annotations = BTreeMap::new();
        let rates = [
            (INGRESS, asked.bandwidth.ingress_rate),
            (EGRESS, asked.bandwidth.egress_rate),
        ];
        for (name, rate) in rates.into_iter().filter(|(_, rate)| *rate > 0) {
            annotations.insert(name.to_owned(), rate.to_string());
        }
        Ok(AttachRequest {
            sandbox_id: self.container_id.clone(),
            netns: self.netns.clone().unwrap_or_default(),
            namespace: argument(POD_NAMESPACE),
            name: argument(POD_NAME),
            uid: argument(POD_UID),
            port_mappings: port_mappings?,
            annotations,
            ..AttachRequest::default()
        })
    }

    /// The attachments to keep, for GC.
    pub fn valid_attachments(&self) -> Result<Vec<String>, Failure> {
        let listed = self.config["cni.dev/valid-attachments"].as_array();
        let listed = listed.ok_or_else(|| {
            Failure::new(INVALID_CONFIG, "GC without cni.dev/valid-attachments", "")
        })?;
        let named = listed.iter().map(|entry| entry["containerID"].as_str());
        let named: Option<Vec<String>> = named.map(|id| id.map(str::to_owned)).collect();
        named.ok_or_else(|| Failure::new(INVALID_CONFIG, "an attachment without containerID", ""))
    }
}

fn mapping(mapping: &Mapping) -> Result<PortMapping, Failure> {
    let invalid = |what: &str| Failure::new(INVALID_CONFIG, "invalid port mapping", what);
    let protocol = Protocol::from_kubernetes(Some(&mapping.protocol.to_uppercase()));
    let host_ip: Option<IpAddr> = match mapping.host_ip.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|_| invalid(text))?),
    };
    Ok(PortMapping {
        protocol: protocol.ok_or_else(|| invalid(&mapping.protocol))?,
        container_port: mapping.container_port,
        host_port: mapping.host_port,
        host_ip,
    })
}

/// `A=1;B=2`.
fn arguments(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split(';').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(config: &Value, variables: &[(&str, &str)]) -> Result<Call, Failure> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Call::new(config.to_string().as_bytes(), variable)
    }

    const ADD: [(&str, &str); 5] = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/run/netns/x"),
        ("CNI_IFNAME", "eth0"),
        (
            "CNI_ARGS",
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_UID=u",
        ),
    ];

    #[test]
    fn a_request_has_the_pod_its_ports_and_its_limits() {
        let config = json!({"cniVersion": "1.0.0", "name": "n", "runtimeConfig": {
            "portMappings": [
                {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"},
                {"hostPort": 53, "containerPort": 53, "protocol": "UDP"},
                {"hostPort": 0, "containerPort": 81, "protocol": "tcp"}],
            "bandwidth": {"ingressRate": 1000, "ingressBurst": 2000}}});
        let request = call(&config, &ADD).unwrap().request().unwrap();
        assert_eq!(
            (request.namespace.as_str(), request.name.as_str()),
            ("ns", "p")
        );
        assert_eq!(
            (request.uid.as_str(), request.sandbox_id.as_str()),
            ("u", "c1")
        );
        assert_eq!(request.port_mappings.len(), 2);
        assert_eq!(request.port_mappings[0].host_ip, "192.0.2.1".parse().ok());
        assert_eq!(request.port_mappings[1].protocol, Protocol::Udp);
        let limits: Vec<_> = request.annotations.into_iter().collect();
        assert_eq!(limits, [(INGRESS.to_owned(), "1000".to_owned())]);
    }

    #[test]
    fn ports_and_limits_may_be_spelled_as_containerd_does() {
        let config = json!({"cniVersion": "1.0.0", "name": "n", "runtimeConfig": {
            "portMappings": [{"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": "192.0.2.1"}],
            "bandwidth": {"IngressRate": 1000, "IngressBurst": 1, "EgressRate": 0, "EgressBurst": 0}}});
        let request = call(&config, &ADD).unwrap().request().unwrap();
        assert_eq!(request.port_mappings[0].host_port, 8080);
        assert_eq!(request.port_mappings[0].container_port, 80);
        assert_eq!(request.port_mappings[0].host_ip, "192.0.2.1".parse().ok());
        let limits: Vec<_> = request.annotations.into_iter().collect();
        assert_eq!(limits, [(INGRESS.to_owned(), "1000".to_owned())]);
    }

    #[test]
    fn invalid_calls_have_the_error_codes_of_the_specification() {
        let good = json!({"cniVersion": "1.1.0", "name": "n"});
        let code =
            |config: &Value, variables: &[(&str, &str)]| call(config, variables).unwrap_err().code;
        assert_eq!(
            code(&json!({"cniVersion": "9.0.0", "name": "n"}), &ADD),
            INCOMPATIBLE_VERSION
        );
        assert_eq!(code(&json!({"cniVersion": "1.1.0"}), &ADD), INVALID_CONFIG);
        assert_eq!(code(&good, &ADD[..2]), INVALID_ENVIRONMENT);
        assert_eq!(code(&good, &[("CNI_COMMAND", "JUMP")]), INVALID_ENVIRONMENT);
        for id in ["../x", "a/b", ".hidden", "a b", "a\n", "ü"] {
            let mut other = ADD;
            other[1] = ("CNI_CONTAINERID", id);
            assert_eq!(code(&good, &other), INVALID_ENVIRONMENT, "{id}");
        }
        let mut other = ADD;
        other[3] = ("CNI_IFNAME", "net1");
        assert_eq!(code(&good, &other), INVALID_ENVIRONMENT);
        let failure = Call::new(b"{", |_| None).unwrap_err();
        assert_eq!(failure.code, DECODING);
        assert_eq!(failure.shown(b"{")["cniVersion"], "1.1.0");
        let ports = json!({"cniVersion": "1.1.0", "name": "n", "runtimeConfig":
            {"portMappings": [{"hostPort": 1, "containerPort": 1, "protocol": "icmp"}]}});
        let failure = call(&ports, &ADD).unwrap().request().unwrap_err();
        assert_eq!(failure.code, INVALID_CONFIG);
        let collect = call(&good, &[("CNI_COMMAND", "GC")]).unwrap();
        assert_eq!(
            collect.valid_attachments().unwrap_err().code,
            INVALID_CONFIG
        );
    }
}
