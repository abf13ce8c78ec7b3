//! Reports parts of the Corefile in the ConfigMap `kube-system/coredns` that have no effect. Nodes
//! log it too; an Event is visible to those who edit the ConfigMap.

use std::{collections::BTreeMap, sync::Arc};

use client::{Informer, kube};
use dns::{
    cluster::CUSTOM,
    corefile::{self, ParseContext},
};
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
            let follow = |name: &str| {
                Informer::<ConfigMap>::builder(self.client.clone())
                    .namespace(namespace)
                    .fields(format!("metadata.name={name}"))
                    .start(&context)
            };
            let (maps, customs) = (follow(name), follow(CUSTOM));
            let recorder = Recorder::start(&context, self.client.clone(), "dns");
            let (mut events, mut others) = (maps.subscribe(), customs.subscribe());
            context.ready();
            let synced = async { tokio::join!(maps.synced(), customs.synced()) };
            tokio::select! {
                ((), ()) = synced => {},
                () = context.shutdown() => return Ok(()),
            }
            loop {
                let event = tokio::select! {
                    event = events.next() => event,
                    event = others.next() => event,
                    () = context.shutdown() => return Ok(()),
                };
                if event.is_none() {
                    return Err("the informer of the Corefile ended".into());
                }
                if let Some(map) = maps.get(namespace, name) {
                    let custom = customs.get(namespace, CUSTOM);
                    let files = dns::cluster::files(Some(&map), custom.as_deref());
                    for (reason, message) in findings(&files, &self.settings.cluster_domain) {
                        let about = reference(&map);
                        recorder.event(&about, Kind::Warning, reason, message);
                    }
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
fn findings(files: &BTreeMap<String, String>, cluster_domain: &str) -> Vec<(&'static str, String)> {
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
            let file = text.map(|text| ("Corefile".to_owned(), text.to_owned()));
            let found = findings(&file.into_iter().collect(), "cluster.local");
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
