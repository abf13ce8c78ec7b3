//! Reports parts of the Corefile in the ConfigMap `kube-system/coredns` that have no effect. Nodes
//! log it too; an Event is visible to those who edit the ConfigMap.

use std::{collections::BTreeMap, sync::Arc};

use client::{Informer, kube};
use dns::corefile::{self, ParseContext};
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use lifecycle::{Context, Run, Service};
use reconcile::{Kind, Recorder};

use crate::Settings;

/// Parses each Corefile as the nodes do.
pub(crate) struct CorefileReport {
    pub client: kube::Client,
    pub settings: Settings,
}

impl Service for CorefileReport {
    fn name(&self) -> &'static str {
        "corefile-report"
    }

    fn after(&self) -> &'static [&'static str] {
        &["apiserver"]
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            let (namespace, name) = dns::cluster::SETTINGS;
            let maps = Informer::<ConfigMap>::builder(self.client.clone())
                .namespace(namespace)
                .fields(format!("metadata.name={name}"))
                .start(&context);
            let recorder = Recorder::start(&context, self.client.clone(), "dns");
            let mut events = maps.subscribe();
            context.ready();
            loop {
                tokio::select! {
                    event = events.next() => match event {
                        None => return Err("the informer of the Corefile ended".into()),
                        Some(_) => if let Some(map) = maps.get(namespace, name) {
                            let domain = &self.settings.cluster_domain;
                            for (reason, message) in findings(&map, domain) {
                                let about = reference(&map);
                                recorder.event(&about, Kind::Warning, reason, message);
                            }
                        },
                    },
                    () = context.shutdown() => return Ok(()),
                }
            }
        })
    }
}

fn reference(map: &ConfigMap) -> ObjectReference {
    let meta = map.metadata.clone();
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("ConfigMap".into()),
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        resource_version: meta.resource_version,
        ..ObjectReference::default()
    }
}

/// Reasons and messages of the parts without effect.
fn findings(map: &ConfigMap, cluster_domain: &str) -> Vec<(&'static str, String)> {
    let none = BTreeMap::new();
    let files = map.data.as_ref().unwrap_or(&none);
    let Some(text) = files.get(corefile::KEY) else {
        let message = format!("no key {:?}: using the default", corefile::KEY);
        return vec![("CorefileMissing", message)];
    };
    let zone = dns::zone::Zone::new(cluster_domain, Vec::new());
    let Ok(zone) = zone else {
        return Vec::new();
    };
    let around = ParseContext {
        cluster_domain: zone.origin(),
        files,
        resolv_conf: "/etc/resolv.conf".into(),
        own: Vec::new(),
    };
    match corefile::parse(text, &around) {
        Err(error) => vec![("CorefileRefused", error.to_string())],
        Ok(parsed) => {
            let problems = parsed.problems.into_iter();
            problems
                .map(|problem| ("CorefileDirectiveIgnored", problem))
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corefile_settings_without_effect_are_reported() {
        let reasons = |text: Option<&str>| {
            let data = text.map(|text| BTreeMap::from([("Corefile".to_owned(), text.to_owned())]));
            let map = ConfigMap {
                data,
                ..ConfigMap::default()
            };
            let found = findings(&map, "cluster.local");
            found.iter().map(|(reason, _)| *reason).collect::<Vec<_>>()
        };
        assert_eq!(reasons(None), ["CorefileMissing"]);
        assert_eq!(reasons(Some(". {")), ["CorefileRefused"]);
        let text = ". {\n autopath @kubernetes\n kubernetes cluster.local\n}\n";
        assert_eq!(reasons(Some(text)), ["CorefileDirectiveIgnored"]);
        let default = corefile::default_text("cluster.local");
        assert_eq!(reasons(Some(&default)), [""; 0]);
    }
}
