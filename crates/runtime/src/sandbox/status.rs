//! CRI messages about sandboxes.

use std::collections::BTreeMap;

use cri::v1;

use super::{Sandbox, namespace_options};
use crate::{engine::Engine, matching};

impl Sandbox {
    /// The entry in a list.
    pub(crate) fn summary(&self) -> v1::PodSandbox {
        v1::PodSandbox {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.cri_state().into(),
            created_at: self.facts.created_at,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: self.facts.handler.clone(),
        }
    }

    /// The full status.
    pub(crate) fn status(&self) -> v1::PodSandboxStatus {
        let mut addresses = self
            .state()
            .addresses
            .into_iter()
            .map(|address| address.to_string());
        let network = v1::PodSandboxNetworkStatus {
            ip: addresses.next().unwrap_or_default(),
            additional_ips: addresses.map(|ip| v1::PodIp { ip }).collect(),
        };
        let namespaces = v1::Namespace {
            options: Some(namespace_options(&self.config)),
        };
        v1::PodSandboxStatus {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.cri_state().into(),
            created_at: self.facts.created_at,
            network: Some(network),
            linux: Some(v1::LinuxPodSandboxStatus {
                namespaces: Some(namespaces),
            }),
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: self.facts.handler.clone(),
        }
    }

    /// The `verbose` information.
    pub(crate) fn info(&self) -> BTreeMap<String, String> {
        let info = serde_json::json!({
            "pins": self.facts.pins,
            "cgroupParent": self.facts.cgroup_parent,
            "phase": self.state().phase,
        });
        BTreeMap::from([("info".to_owned(), info.to_string())])
    }
}

impl Engine {
    /// The sandboxes that a filter matches.
    pub(crate) fn list_sandboxes(
        &self,
        filter: Option<v1::PodSandboxFilter>,
    ) -> Vec<v1::PodSandbox> {
        let filter = filter.unwrap_or_default();
        let all: Vec<_> = self.sandboxes.read().values().cloned().collect();
        let summaries = all.iter().map(|sandbox| sandbox.summary());
        summaries
            .filter(|sandbox| {
                let state = filter
                    .state
                    .as_ref()
                    .is_none_or(|wanted| wanted.state == sandbox.state);
                let id = filter.id.is_empty() || sandbox.id.starts_with(&filter.id);
                state && id && matching::labels(&filter.label_selector, &sandbox.labels)
            })
            .collect()
    }
}
