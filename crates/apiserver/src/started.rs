//! Progress of the server's startup: upstream's post-start hooks, mapped to the parts of this
//! server's start.

use std::sync::atomic::{AtomicBool, Ordering};

/// A part of the startup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
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
pub(crate) const HOOKS: &[(&str, Part)] = &[
    (
        "poststarthook/start-apiserver-admission-initializer",
        Part::Plugins,
    ),
    (
        "poststarthook/generic-apiserver-start-informers",
        Part::Plugins,
    ),
    (
        "poststarthook/priority-and-fairness-config-consumer",
        Part::FlowControl,
    ),
    (
        "poststarthook/priority-and-fairness-filter",
        Part::FlowControl,
    ),
    (
        "poststarthook/start-apiextensions-informers",
        Part::Definitions,
    ),
    (
        "poststarthook/start-apiextensions-controllers",
        Part::Definitions,
    ),
    ("poststarthook/crd-informer-synced", Part::Definitions),
    (
        "poststarthook/start-system-namespaces-controller",
        Part::Objects,
    ),
    (
        "poststarthook/start-cluster-authentication-info-controller",
        Part::Objects,
    ),
    (
        "poststarthook/start-kube-apiserver-identity-lease-controller",
        Part::Identity,
    ),
    (
        "poststarthook/start-kube-apiserver-identity-lease-garbage-collector",
        Part::Identity,
    ),
    (
        "poststarthook/start-service-ip-repair-controllers",
        Part::Addresses,
    ),
    ("poststarthook/rbac/bootstrap-roles", Part::Roles),
    (
        "poststarthook/scheduling/bootstrap-system-priority-classes",
        Part::Objects,
    ),
    (
        "poststarthook/priority-and-fairness-config-producer",
        Part::FlowControl,
    ),
    ("poststarthook/bootstrap-controller", Part::Objects),
    (
        "poststarthook/start-kubernetes-service-cidr-controller",
        Part::Objects,
    ),
    (
        "poststarthook/start-kube-aggregator-informers",
        Part::ApiServices,
    ),
    (
        "poststarthook/apiservice-status-local-available-controller",
        Part::ApiServices,
    ),
    (
        "poststarthook/apiservice-status-remote-available-controller",
        Part::ApiServices,
    ),
    (
        "poststarthook/apiservice-registration-controller",
        Part::ApiServices,
    ),
    (
        "poststarthook/apiservice-discovery-controller",
        Part::ApiServices,
    ),
    (
        "poststarthook/kube-apiserver-autoregistration",
        Part::ApiServices,
    ),
    ("autoregister-completion", Part::ApiServices),
    (
        "poststarthook/apiservice-openapi-controller",
        Part::ApiServices,
    ),
    (
        "poststarthook/apiservice-openapiv3-controller",
        Part::ApiServices,
    ),
];

/// The parts that are done.
#[derive(Default)]
pub(crate) struct Started([AtomicBool; 8]);

impl Started {
    pub(crate) fn finish(&self, part: Part) {
        self.0[part as usize].store(true, Ordering::Release);
    }

    pub(crate) fn is_finished(&self, part: Part) -> bool {
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
