//! Publishes a ConfigMap with the CA of the API server's certificate to every namespace, and
//! restores it when it is changed.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use client::Informer;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::ObjectMeta;
use reconcile::{Action, Controller, Error, Key, Writer};

use crate::shared::{Shared, is_active_namespace};

/// The name in [`crate::ALL`].
pub const NAME: &str = "root-ca-certificate";
const ACCOUNT: &str = "root-ca-cert-publisher";
const CONFIG_MAP: &str = "kube-root-ca.crt";
const ABOUT: &str = "kubernetes.io/description";

struct Publisher {
    shared: Arc<Shared>,
    namespaces: Informer<Namespace>,
    maps: Writer<ConfigMap>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    // Watches only this ConfigMap of each namespace.
    let maps = Informer::builder(shared.reader())
        .fields(format!("metadata.name={CONFIG_MAP}"))
        .start(&shared.context);
    let controller = Arc::new(Publisher {
        shared: shared.clone(),
        namespaces: shared.informer(),
        maps: Writer::new(shared.client(ACCOUNT), maps),
    });
    shared
        .controller(&controller)
        .watches(&controller.namespaces)
        .watches_with(controller.maps.cache(), |event| {
            let namespace = event.object().metadata.namespace.clone();
            let namespace = namespace.into_iter();
            namespace.map(|namespace| Key::new("", namespace)).collect()
        })
        .workers(8)
        .start();
}

impl Controller for Publisher {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let namespace = self.namespaces.get("", &key.name);
        if !namespace.is_some_and(|namespace| is_active_namespace(&namespace)) {
            return Ok(Action::Done);
        }
        let (begun, metrics) = (Instant::now(), &self.shared.metrics);
        let known = self.maps.cache().get(&key.name, CONFIG_MAP);
        let outcome = match decide(known.as_deref(), &key.name, &self.shared.config.cluster_ca) {
            Change::Nothing => return Ok(Action::Done),
            Change::Create(map) => self.maps.create(&key.name, &map).await,
            Change::Update(map) => self.maps.update(&key.name, &map).await,
        };
        let code = match &outcome {
            Err(Error::Api(kube::Error::Api(status))) => status.code.to_string(),
            Err(_) => "500".to_owned(),
            Ok(_) => "200".to_owned(),
        };
        metrics.root_ca_syncs.add([("code", &code)], 1);
        let seconds = &metrics.root_ca_seconds;
        seconds.took([("code", &code)], begun.elapsed());
        match outcome {
            Ok(_) => Ok(Action::Done),
            Err(error) if error.is_namespace_terminating() => Ok(Action::Done),
            Err(error) => Err(error),
        }
    }
}

#[derive(Debug, PartialEq)]
enum Change {
    Nothing,
    Create(Box<ConfigMap>),
    Update(Box<ConfigMap>),
}

fn decide(known: Option<&ConfigMap>, namespace: &str, authority: &str) -> Change {
    let data: BTreeMap<String, String> = [("ca.crt".to_owned(), authority.to_owned())].into();
    let about = "The authority that signs the API server's certificate inside the cluster.";
    match known {
        Some(map) if map.data.as_ref() == Some(&data) => Change::Nothing,
        Some(map) => Change::Update(Box::new(ConfigMap {
            data: Some(data),
            ..map.clone()
        })),
        None => {
            let metadata = ObjectMeta {
                name: Some(CONFIG_MAP.to_owned()),
                namespace: Some(namespace.to_owned()),
                annotations: Some([(ABOUT.to_owned(), about.to_owned())].into()),
                ..Default::default()
            };
            Change::Create(Box::new(ConfigMap {
                metadata,
                data: Some(data),
                ..Default::default()
            }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_is_made_once_and_a_change_of_it_is_undone() {
        let Change::Create(made) = decide(None, "web", "PEM") else {
            panic!("not made")
        };
        assert_eq!(made.metadata.namespace.as_deref(), Some("web"));
        assert_eq!(decide(Some(&made), "web", "PEM"), Change::Nothing);
        let mut changed = (*made).clone();
        changed
            .data
            .as_mut()
            .unwrap()
            .insert("ca.crt".into(), "other".into());
        assert_eq!(decide(Some(&changed), "web", "PEM"), Change::Update(made));
    }
}
