//! The options: each is a flag and a key of the YAML file given with `--config`. A flag takes precedence over the file,
//! the file over the default.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use serde::Deserialize;

use crate::{
    Error,
    families::{Addresses, Ranges},
    founding::ServerToken,
};

/// The common flags of `up`, `server` and `agent`. Everything is optional here; [`crate::Settings`]
/// has the values with their defaults.
#[derive(Debug, Clone, Default, PartialEq, Args, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Options {
    /// Directory for all data of the cluster and of this node [default: /var/lib/mainstay]
    #[arg(long, value_name = "DIR", env = "MAINSTAY_DATA_DIR", global = true)]
    pub data_dir: Option<PathBuf>,
    /// Read options from this YAML file; its keys are the names of the flags
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Name of this node [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// IP address of this node, or one IPv4 and one IPv6 address [default: that of the interface with the default route]
    #[arg(long, value_name = "ADDRESS[,ADDRESS]")]
    pub node_ip: Option<Addresses>,
    /// `external`: a cloud controller manager initialises this node and sets its addresses
    #[arg(long, value_name = "PROVIDER")]
    pub cloud_provider: Option<CloudProvider>,
    /// ID of this machine at the cloud provider, for the Node's spec.providerID
    #[arg(long, value_name = "ID")]
    pub provider_id: Option<String>,
    /// Port of the API server [default: 6443]
    #[arg(long, value_name = "PORT")]
    pub https_port: Option<u16>,
    /// Address at which clients and nodes reach the API server [default: the node's IP address]
    #[arg(long, value_name = "ADDRESS")]
    pub advertise_address: Option<IpAddr>,
    /// CIDR of pod IP addresses; one IPv4 and one IPv6 CIDR for dual stack [default: 10.42.0.0/16]
    #[arg(long, value_name = "CIDR[,CIDR]")]
    pub cluster_cidr: Option<Ranges>,
    /// Prefix length of each node's pod CIDR [default: 24, or 64 for IPv6]
    #[arg(long, value_name = "BITS")]
    pub node_cidr_mask_size: Option<u8>,
    /// Prefix length of each node's IPv6 pod CIDR in a dual-stack cluster [default: 64]
    #[arg(long, value_name = "BITS")]
    pub node_cidr_mask_size_ipv6: Option<u8>,
    /// CIDR of Service cluster IPs; one IPv4 and one IPv6 CIDR for dual stack [default: 10.43.0.0/16]
    #[arg(long, value_name = "CIDR[,CIDR]")]
    pub service_cidr: Option<Ranges>,
    /// DNS domain of the cluster [default: cluster.local]
    #[arg(long, value_name = "DOMAIN")]
    pub cluster_domain: Option<String>,
    /// Also write the administrator's kubeconfig to this file
    #[arg(long, value_name = "PATH")]
    pub kubeconfig_out: Option<PathBuf>,
    /// Store for API objects [default: embedded]
    #[arg(long, value_name = "KIND")]
    pub store: Option<StoreKind>,
    /// Endpoints of the etcd cluster, as http://HOST:PORT or https://HOST:PORT
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub etcd_endpoints: Option<Vec<String>>,
    /// CA certificate that etcd's certificates are verified against
    #[arg(long, value_name = "FILE")]
    pub etcd_cafile: Option<PathBuf>,
    /// Client certificate for etcd
    #[arg(long, value_name = "FILE")]
    pub etcd_certfile: Option<PathBuf>,
    /// Private key of the client certificate for etcd
    #[arg(long, value_name = "FILE")]
    pub etcd_keyfile: Option<PathBuf>,
    /// Join an etcd-backed cluster as a further server with this token (see `mainstay token server`)
    #[arg(
        long,
        value_name = "TOKEN",
        env = "MAINSTAY_SERVER_TOKEN",
        hide_env_values = true
    )]
    pub server_token: Option<ServerToken>,
    /// Start even if files of the embedded store are missing or truncated, or etcd no longer contains the cluster; what they held is lost
    #[arg(long)]
    #[serde(default)]
    pub accept_data_loss: bool,
    /// Validity of certificates that the cluster signs, such as 720h [default: 8760h]
    #[arg(long, value_name = "DURATION")]
    pub cluster_signing_duration: Option<String>,
    /// CSV file of static bearer tokens, one per line: token,user,uid,"group1,group2"
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// AuthenticationConfiguration file (apiserver.config.k8s.io/v1): JWT authenticators and anonymous requests
    #[arg(long, value_name = "FILE")]
    pub authentication_config: Option<PathBuf>,
    /// Kubeconfig of the webhook that authenticates bearer tokens
    #[arg(long, value_name = "FILE")]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    /// API version of the TokenReviews sent to the authentication webhook: v1 or v1beta1 [default: v1beta1]
    #[arg(long, value_name = "VERSION")]
    pub authentication_token_webhook_version: Option<String>,
    /// How long responses of the authentication webhook are cached [default: 2m]
    #[arg(long, value_name = "DURATION")]
    pub authentication_token_webhook_cache_ttl: Option<String>,
    /// AuthorizationConfiguration file (apiserver.config.k8s.io/v1): the authorizers, in order
    #[arg(long, value_name = "FILE")]
    pub authorization_config: Option<PathBuf>,
    /// Kubeconfig of the authorization webhook, which is called after Node and RBAC
    #[arg(long, value_name = "FILE")]
    pub authorization_webhook_config_file: Option<PathBuf>,
    /// API version of the SubjectAccessReviews sent to the authorization webhook: v1 or v1beta1 [default: v1beta1]
    #[arg(long, value_name = "VERSION")]
    pub authorization_webhook_version: Option<String>,
    /// How long `allowed` responses of the authorization webhook are cached [default: 5m]
    #[arg(long, value_name = "DURATION")]
    pub authorization_webhook_cache_authorized_ttl: Option<String>,
    /// How long other responses of the authorization webhook are cached [default: 30s]
    #[arg(long, value_name = "DURATION")]
    pub authorization_webhook_cache_unauthorized_ttl: Option<String>,
    /// EncryptionConfiguration file (apiserver.config.k8s.io/v1): the resources to encrypt at rest
    #[arg(long, value_name = "FILE")]
    pub encryption_provider_config: Option<PathBuf>,
    /// Audit policy file (audit.k8s.io/v1 Policy): the requests to log and how much of each
    #[arg(long, value_name = "FILE")]
    pub audit_policy_file: Option<PathBuf>,
    /// File of the audit log; - is standard output
    #[arg(long, value_name = "FILE")]
    pub audit_log_path: Option<PathBuf>,
    /// Size in megabytes at which the audit log is rotated [default: 100]
    #[arg(long, value_name = "MEGABYTES")]
    pub audit_log_maxsize: Option<u64>,
    /// Number of rotated audit logs to keep; 0 keeps all [default: 100]
    #[arg(long, value_name = "COUNT")]
    pub audit_log_maxbackup: Option<usize>,
    /// Days to keep rotated audit logs; 0 keeps them forever [default: 366]
    #[arg(long, value_name = "DAYS")]
    pub audit_log_maxage: Option<u64>,
    /// API versions to serve in addition to the default ones, such as storagemigration.k8s.io/v1beta1
    #[arg(long, value_name = "VERSION", value_delimiter = ',')]
    pub runtime_config: Option<Vec<String>>,
    /// Admission plugins to enable in addition to the default ones
    #[arg(long, value_name = "PLUGIN", value_delimiter = ',')]
    pub enable_admission_plugins: Option<Vec<String>>,
    /// Admission plugins to disable
    #[arg(long, value_name = "PLUGIN", value_delimiter = ',')]
    pub disable_admission_plugins: Option<Vec<String>>,
    /// AdmissionConfiguration file (apiserver.config.k8s.io/v1): configuration of admission plugins
    #[arg(long, value_name = "FILE")]
    pub admission_control_config_file: Option<PathBuf>,
    /// Port of the kubelet [default: 10250]
    #[arg(long, value_name = "PORT")]
    pub kubelet_port: Option<u16>,
    /// Root directory of the kubelet, with pod volumes and plugin sockets [default: DATA-DIR/kubelet]
    #[arg(long, value_name = "DIR")]
    pub kubelet_root_dir: Option<PathBuf>,
    /// Directory of static pod manifests; changes in it are applied
    #[arg(long, value_name = "DIR")]
    pub static_pod_path: Option<PathBuf>,
    /// Unsafe sysctls that pods may set, such as kernel.msg*,net.core.somaxconn
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub allowed_unsafe_sysctls: Option<Vec<String>>,
    /// KubeletConfiguration file (kubelet.config.k8s.io/v1beta1) of this node
    #[arg(long, value_name = "FILE")]
    pub kubelet_config: Option<PathBuf>,
    /// Directory of drop-in files (*.conf) for the KubeletConfiguration
    #[arg(long, value_name = "DIR")]
    pub kubelet_config_dir: Option<PathBuf>,
    /// Terminate this node's pods within the KubeletConfiguration's shutdownGracePeriod when mainstay is
    /// stopped, as on a shutdown of the machine
    #[arg(long)]
    pub shutdown_on_stop: bool,
    /// Port range of services of type NodePort [default: 30000-32767]
    #[arg(long, value_name = "FIRST-LAST")]
    pub service_node_port_range: Option<String>,
    /// Serve NodePorts only at this node's addresses in these CIDRs [default: at all of them]
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub nodeport_addresses: Option<Vec<IpNet>>,
    /// Route traffic for externalIPs of services: users who may write services can then intercept any address
    #[arg(long)]
    #[serde(default)]
    pub allow_service_external_ips: bool,
    /// IP addresses for services of type LoadBalancer, such as 192.0.2.10-192.0.2.20,192.0.2.64/28 [default: those of the nodes]
    #[arg(long, value_name = "RANGE", value_delimiter = ',')]
    pub load_balancer_pool: Option<Vec<String>>,
    /// Endpoint of a container runtime to use instead of the built-in one (unix:///path)
    #[arg(long, value_name = "ENDPOINT")]
    pub container_runtime_endpoint: Option<String>,
    /// Socket at which the built-in container runtime serves CRI [default: in the state directory]
    #[arg(long, value_name = "PATH")]
    pub cri_socket: Option<PathBuf>,
    /// OCI runtimes by RuntimeClass handler, such as runc=/usr/sbin/runc
    #[arg(long, value_name = "NAME=PATH", value_delimiter = ',')]
    pub runtime_handlers: Option<Vec<String>>,
    /// Import the image archives in this directory at start, in addition to those in DATA-DIR/images
    #[arg(long, value_name = "DIR")]
    pub image_dir: Option<PathBuf>,
    /// YAML file with mirrors, CA certificates and credentials of image registries, by host
    #[arg(long, value_name = "FILE")]
    pub registries: Option<PathBuf>,
    /// Directory of the CNI configuration to use instead of the built-in pod network
    #[arg(long, value_name = "DIR")]
    pub cni_conf_dir: Option<PathBuf>,
    /// Directories of CNI plugin binaries [default: /opt/cni/bin,/usr/lib/cni]
    #[arg(long, value_name = "DIR", value_delimiter = ',')]
    pub cni_bin_dir: Option<Vec<PathBuf>>,
    /// KubeSchedulerConfiguration file, as YAML or JSON
    #[arg(long, value_name = "FILE")]
    pub scheduler_config: Option<PathBuf>,
    /// Components not to run: scheduler, controllers, proxy, dns, network-policy, load-balancer, local-path
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    pub disable: Option<Vec<Part>>,
    /// Log level (error, warn, info, debug, trace), or a filter such as apiserver=debug [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Log format [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

/// The role of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Control plane and node in one process.
    Up,
    /// The control plane without a node.
    Server,
    /// A node of another cluster.
    Agent,
}

impl Role {
    /// The command of `mainstay` that starts it.
    pub fn command(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Server => "server",
            Self::Agent => "agent",
        }
    }
}

/// A component that can be disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    Scheduler,
    Controllers,
    Proxy,
    Dns,
    LocalPath,
    NetworkPolicy,
    LoadBalancer,
}

/// The cloud provider's integration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CloudProvider {
    /// A cloud controller manager in the cluster.
    External,
}

/// The store for API objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreKind {
    /// In the data directory.
    #[default]
    Embedded,
    /// In an etcd cluster.
    Etcd,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

impl Options {
    /// Rejects options that have no effect in this role.
    pub fn check(&self, role: Role) -> Result<(), Error> {
        let (given, where_else) = match role {
            Role::Up => return Ok(()),
            Role::Server => (self.of_nodes(), "`mainstay up` and `mainstay agent`"),
            Role::Agent => (self.of_servers(), "`mainstay up` and `mainstay server`"),
        };
        match given.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(Error::Option(flag, format!("is an option of {where_else}"))),
            None => Ok(()),
        }
    }

    fn of_nodes(&self) -> Vec<(&'static str, bool)> {
        let parts = [Part::Proxy, Part::Dns, Part::NetworkPolicy];
        vec![
            ("kubelet-port", self.kubelet_port.is_some()),
            ("cloud-provider", self.cloud_provider.is_some()),
            ("provider-id", self.provider_id.is_some()),
            ("nodeport-addresses", self.nodeport_addresses.is_some()),
            (
                "allow-service-external-ips",
                self.allow_service_external_ips,
            ),
            (
                "container-runtime-endpoint",
                self.container_runtime_endpoint.is_some(),
            ),
            ("kubelet-root-dir", self.kubelet_root_dir.is_some()),
            ("static-pod-path", self.static_pod_path.is_some()),
            (
                "allowed-unsafe-sysctls",
                self.allowed_unsafe_sysctls.is_some(),
            ),
            ("kubelet-config", self.kubelet_config.is_some()),
            ("kubelet-config-dir", self.kubelet_config_dir.is_some()),
            ("shutdown-on-stop", self.shutdown_on_stop),
            ("cri-socket", self.cri_socket.is_some()),
            ("runtime-handlers", self.runtime_handlers.is_some()),
            ("image-dir", self.image_dir.is_some()),
            ("registries", self.registries.is_some()),
            ("cni-conf-dir", self.cni_conf_dir.is_some()),
            ("cni-bin-dir", self.cni_bin_dir.is_some()),
            ("disable", self.disables(&parts)),
        ]
    }

    fn of_servers(&self) -> Vec<(&'static str, bool)> {
        let parts = [
            Part::Scheduler,
            Part::Controllers,
            Part::LocalPath,
            Part::LoadBalancer,
        ];
        vec![
            ("https-port", self.https_port.is_some()),
            ("scheduler-config", self.scheduler_config.is_some()),
            ("advertise-address", self.advertise_address.is_some()),
            ("cluster-cidr", self.cluster_cidr.is_some()),
            ("node-cidr-mask-size", self.node_cidr_mask_size.is_some()),
            (
                "node-cidr-mask-size-ipv6",
                self.node_cidr_mask_size_ipv6.is_some(),
            ),
            ("service-cidr", self.service_cidr.is_some()),
            ("cluster-domain", self.cluster_domain.is_some()),
            ("kubeconfig-out", self.kubeconfig_out.is_some()),
            ("store", self.store.is_some()),
            ("etcd-endpoints", self.etcd_endpoints.is_some()),
            ("etcd-cafile", self.etcd_cafile.is_some()),
            ("etcd-certfile", self.etcd_certfile.is_some()),
            ("etcd-keyfile", self.etcd_keyfile.is_some()),
            ("server-token", self.server_token.is_some()),
            ("accept-data-loss", self.accept_data_loss),
            (
                "cluster-signing-duration",
                self.cluster_signing_duration.is_some(),
            ),
            (
                "service-node-port-range",
                self.service_node_port_range.is_some(),
            ),
            ("load-balancer-pool", self.load_balancer_pool.is_some()),
            ("disable", self.disables(&parts)),
        ]
        .into_iter()
        .chain(self.of_access())
        .collect()
    }

    /// Whether each option of authentication, authorization, encryption, audit and admission is set.
    fn of_access(&self) -> Vec<(&'static str, bool)> {
        vec![
            ("token-auth-file", self.token_auth_file.is_some()),
            (
                "authentication-config",
                self.authentication_config.is_some(),
            ),
            (
                "authentication-token-webhook-config-file",
                self.authentication_token_webhook_config_file.is_some(),
            ),
            (
                "authentication-token-webhook-version",
                self.authentication_token_webhook_version.is_some(),
            ),
            (
                "authentication-token-webhook-cache-ttl",
                self.authentication_token_webhook_cache_ttl.is_some(),
            ),
            ("authorization-config", self.authorization_config.is_some()),
            (
                "authorization-webhook-config-file",
                self.authorization_webhook_config_file.is_some(),
            ),
            (
                "authorization-webhook-version",
                self.authorization_webhook_version.is_some(),
            ),
            (
                "authorization-webhook-cache-authorized-ttl",
                self.authorization_webhook_cache_authorized_ttl.is_some(),
            ),
            (
                "authorization-webhook-cache-unauthorized-ttl",
                self.authorization_webhook_cache_unauthorized_ttl.is_some(),
            ),
            (
                "encryption-provider-config",
                self.encryption_provider_config.is_some(),
            ),
            ("audit-policy-file", self.audit_policy_file.is_some()),
            ("audit-log-path", self.audit_log_path.is_some()),
            ("audit-log-maxsize", self.audit_log_maxsize.is_some()),
            ("audit-log-maxbackup", self.audit_log_maxbackup.is_some()),
            ("audit-log-maxage", self.audit_log_maxage.is_some()),
            ("runtime-config", self.runtime_config.is_some()),
            (
                "enable-admission-plugins",
                self.enable_admission_plugins.is_some(),
            ),
            (
                "disable-admission-plugins",
                self.disable_admission_plugins.is_some(),
            ),
            (
                "admission-control-config-file",
                self.admission_control_config_file.is_some(),
            ),
        ]
    }

    fn disables(&self, parts: &[Part]) -> bool {
        let disabled = self.disable.iter().flatten();
        disabled.into_iter().any(|part| parts.contains(part))
    }

    /// Reads the file of `--config`, if any. Flags take precedence over it.
    pub fn with_file(self) -> Result<Self, Error> {
        let Some(path) = &self.config else {
            return Ok(self);
        };
        let file = read(path)?;
        Ok(self.over(file))
    }

    fn over(self, file: Self) -> Self {
        // A struct literal: a field that is missing in the list below does not compile.
        macro_rules! merge {
            (values: [$($value:ident,)*], switches: [$($switch:ident,)*]) => {
                Self {
                    config: self.config,
                    $($value: self.$value.or(file.$value),)*
                    $($switch: self.$switch || file.$switch,)*
                }
            };
        }
        merge! {
            values: [
                data_dir, node_name, node_ip, cloud_provider, provider_id, https_port, advertise_address,
                cluster_cidr, node_cidr_mask_size, node_cidr_mask_size_ipv6, service_cidr, cluster_domain,
                kubeconfig_out, store, etcd_endpoints, etcd_cafile, etcd_certfile, etcd_keyfile,
                server_token, cluster_signing_duration, token_auth_file, authentication_config,
                authentication_token_webhook_config_file, authentication_token_webhook_version,
                authentication_token_webhook_cache_ttl, authorization_config,
                authorization_webhook_config_file, authorization_webhook_version,
                authorization_webhook_cache_authorized_ttl, authorization_webhook_cache_unauthorized_ttl,
                encryption_provider_config, audit_policy_file, audit_log_path, audit_log_maxsize,
                audit_log_maxbackup, audit_log_maxage, runtime_config, enable_admission_plugins, disable_admission_plugins,
                admission_control_config_file, kubelet_port, kubelet_root_dir, static_pod_path,
                allowed_unsafe_sysctls, kubelet_config, kubelet_config_dir, service_node_port_range,
                nodeport_addresses, load_balancer_pool, container_runtime_endpoint, cri_socket,
                runtime_handlers, image_dir, registries, cni_conf_dir, cni_bin_dir, scheduler_config,
                disable, log_level, log_format,
            ],
            switches: [
                accept_data_loss, shutdown_on_stop, allow_service_external_ips,
            ]
        }
    }
}

fn read(path: &Path) -> Result<Options, Error> {
    let because = |reason: String| Error::ConfigFile {
        path: path.to_owned(),
        reason,
    };
    let text = std::fs::read_to_string(path).map_err(|error| because(error.to_string()))?;
    // A file with only comments is valid, although it is not a map.
    let is_blank = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    if text.lines().all(is_blank) {
        return Ok(Options::default());
    }
    serde_saphyr::from_str(&text).map_err(|error| because(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_file(text: &str, flags: Options) -> Result<Options, Error> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Options {
            config: Some(file.path().to_owned()),
            ..flags
        }
        .with_file()
    }

    #[test]
    fn a_flag_wins_over_the_file() {
        let flags = Options {
            https_port: Some(7443),
            ..Options::default()
        };
        let options = with_file("https-port: 8443\nnode-name: one\n", flags).unwrap();
        assert_eq!(options.https_port, Some(7443));
        assert_eq!(options.node_name.as_deref(), Some("one"));
    }

    #[test]
    fn an_unknown_key_is_refused_by_name() {
        let error = with_file("https-prot: 8443\n", Options::default()).unwrap_err();
        assert!(error.to_string().contains("https-prot"), "{error}");
    }

    #[test]
    fn each_half_refuses_the_options_of_the_other() {
        let agent = Options {
            etcd_endpoints: Some(vec!["http://a:2379".into()]),
            ..Options::default()
        };
        let refused = agent.check(Role::Agent).unwrap_err().to_string();
        assert!(refused.starts_with("--etcd-endpoints: "), "{refused}");
        assert!(agent.check(Role::Server).is_ok() && agent.check(Role::Up).is_ok());
        let server = Options {
            disable: Some(vec![Part::Dns]),
            ..Options::default()
        };
        let refused = server.check(Role::Server).unwrap_err().to_string();
        assert!(refused.starts_with("--disable: "), "{refused}");
        assert!(server.check(Role::Agent).is_ok());
    }

    #[test]
    fn a_file_without_keys_changes_nothing() {
        for text in ["", "\n", "# https-port: 8443\n\n  # node-name: one\n"] {
            let options = with_file(text, Options::default()).unwrap();
            assert_eq!(options.https_port, None);
        }
    }
}
