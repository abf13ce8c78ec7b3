//! The server's own state: where it is reached, and how far its start is. Upstream's post-start hooks are mapped to the
//! parts of this server's start.

use std::{
    net::SocketAddr,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::watch;

/// This server: where it is reached, and how far its start is.
pub(crate) struct ServerState {
    /// The port that the server listens on, once known.
    pub(crate) port: OnceLock<u16>,
    /// The address at which clients reach the server now.
    pub(crate) advertised: watch::Sender<SocketAddr>,
    /// Which parts of the startup are done.
    pub(crate) started: Started,
}

impl ServerState {
    pub(crate) fn new(advertise: SocketAddr) -> Self {
        Self {
            port: OnceLock::new(),
            advertised: watch::Sender::new(advertise),
            started: Started::default(),
        }
    }

    /// The address at which clients reach the server now.
    pub(crate) fn advertise(&self) -> SocketAddr {
        *self.advertised.borrow()
    }
}

/// A part of the startup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartupPart {
    /// Authenticators, authorizers and admission plugins have started their informers.
    Plugins,
    /// Namespaces, priority classes, service CIDRs and the authentication ConfigMap exist.
    Objects,
    /// Default roles and bindings exist.
    Roles,
    FlowControl,
    /// Custom resource definitions have been listed and are served.
    Definitions,
    /// Every group and version of this server has its APIService.
    ApiServices,
    /// This server's Lease exists.
    Identity,
    /// Addresses and ports of Services have been checked once.
    Addresses,
}

/// Health checks other than those of the store, by upstream's names, with the part that each
/// reports.
pub(crate) const HOOKS: &[(&str, StartupPart)] = &[
    (
        "poststarthook/start-apiserver-admission-initializer",
        StartupPart::Plugins,
    ),
    (
        "poststarthook/generic-apiserver-start-informers",
        StartupPart::Plugins,
    ),
    (
        "poststarthook/priority-and-fairness-config-consumer",
        StartupPart::FlowControl,
    ),
    (
        "poststarthook/priority-and-fairness-filter",
        StartupPart::FlowControl,
    ),
    (
        "poststarthook/start-apiextensions-informers",
        StartupPart::Definitions,
    ),
    (
        "poststarthook/start-apiextensions-controllers",
        StartupPart::Definitions,
    ),
    (
        "poststarthook/crd-informer-synced",
        StartupPart::Definitions,
    ),
    (
        "poststarthook/start-system-namespaces-controller",
        StartupPart::Objects,
    ),
    (
        "poststarthook/start-cluster-authentication-info-controller",
        StartupPart::Objects,
    ),
    (
        "poststarthook/start-kube-apiserver-identity-lease-controller",
        StartupPart::Identity,
    ),
    (
        "poststarthook/start-kube-apiserver-identity-lease-garbage-collector",
        StartupPart::Identity,
    ),
    (
        "poststarthook/start-service-ip-repair-controllers",
        StartupPart::Addresses,
    ),
    ("poststarthook/rbac/bootstrap-roles", StartupPart::Roles),
    (
        "poststarthook/scheduling/bootstrap-system-priority-classes",
        StartupPart::Objects,
    ),
    (
        "poststarthook/priority-and-fairness-config-producer",
        StartupPart::FlowControl,
    ),
    ("poststarthook/bootstrap-controller", StartupPart::Objects),
    (
        "poststarthook/start-kubernetes-service-cidr-controller",
        StartupPart::Objects,
    ),
    (
        "poststarthook/start-kube-aggregator-informers",
        StartupPart::ApiServices,
    ),
    (
        "poststarthook/apiservice-status-local-available-controller",
        StartupPart::ApiServices,
    ),
    (
        "poststarthook/apiservice-status-remote-available-controller",
        StartupPart::ApiServices,
    ),
    (
        "poststarthook/apiservice-registration-controller",
        StartupPart::ApiServices,
    ),
    (
        "poststarthook/apiservice-discovery-controller",
        StartupPart::ApiServices,
    ),
    (
        "poststarthook/kube-apiserver-autoregistration",
        StartupPart::ApiServices,
    ),
    ("autoregister-completion", StartupPart::ApiServices),
    (
        "poststarthook/apiservice-openapi-controller",
        StartupPart::ApiServices,
    ),
    (
        "poststarthook/apiservice-openapiv3-controller",
        StartupPart::ApiServices,
    ),
];

/// The parts that are done.
#[derive(Default)]
pub(crate) struct Started([AtomicBool; 8]);

impl Started {
    pub(crate) fn finish(&self, part: StartupPart) {
        self.0[part as usize].store(true, Ordering::Release);
    }

    pub(crate) fn is_finished(&self, part: StartupPart) -> bool {
        self.0[part as usize].load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_post_start_hook_has_a_health_check() {
        let started = Started::default();
        for (name, part) in HOOKS {
            started.finish(*part);
            assert!(started.is_finished(*part), "{name}");
        }
        assert!(
            started.0.iter().all(|part| part.load(Ordering::Relaxed)),
            "a part without a check"
        );
    }
}
