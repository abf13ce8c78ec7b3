//! Services and controllers of pods: pods without spread constraints are spread with the others of
//! their Services and controller.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use reconcile::Selector;

use crate::{
    matching::{Labels, SelectorIndex},
    pod::PodInfo,
};

/// Selectors by namespace and name.
#[derive(Debug, Default)]
pub struct Workloads {
    services: HashMap<String, Services>,
    controllers: HashMap<(&'static str, String, String), Selector>,
}

/// The Services of a namespace. Each is small: a map with one label would take half a kilobyte.
#[derive(Debug, Default)]
struct Services {
    selectors: BTreeMap<Arc<str>, PackedLabels>,
    index: SelectorIndex<Arc<str>>,
}

/// Labels, sorted by key.
type PackedLabels = Box<[(Box<str>, Box<str>)]>;

fn packed(labels: &Labels) -> PackedLabels {
    let labels = labels.iter();
    labels
        .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
        .collect()
}

fn unpacked(labels: &PackedLabels) -> Labels {
    let labels = labels.iter();
    labels
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .collect()
}

/// The supported controllers, with their API versions.
pub const CONTROLLERS: [(&str, &str); 3] = [
    ("v1", "ReplicationController"),
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "StatefulSet"),
];

impl Workloads {
    /// Stores a Service's selector; `None` if it is gone or has none.
    pub fn put_service(&mut self, namespace: &str, name: &str, selector: Option<Labels>) {
        let services = self.services.entry(namespace.to_owned()).or_default();
        if let Some((name, old)) = services.selectors.remove_entry(name) {
            let old = Selector::labels(&unpacked(&old));
            services.index.remove(&old, &name);
        }
        if let Some(labels) = selector {
            let name: Arc<str> = name.into();
            let compiled = Selector::labels(&labels);
            services.index.insert(&compiled, name.clone());
            services.selectors.insert(name, packed(&labels));
        } else if services.selectors.is_empty() {
            self.services.remove(namespace);
        }
    }

    /// Stores a controller's selector; `None` if it is gone.
    pub fn put_controller(
        &mut self,
        kind: &'static str,
        namespace: &str,
        name: &str,
        selector: Option<Selector>,
    ) {
        let key = (kind, namespace.to_owned(), name.to_owned());
        match selector {
            Some(selector) => self.controllers.insert(key, selector),
            None => self.controllers.remove(&key),
        };
    }

    /// The combined selector of the pod's Services and controller; `None` if nothing selects it.
    pub fn selector_for(&self, pod: &PodInfo) -> Option<Selector> {
        let namespace = &**pod.namespace();
        let mut merged = Labels::new();
        if let Some(services) = self.services.get(namespace) {
            let labels = &pod.label_set.labels;
            let mut names: Vec<&Arc<str>> = services.index.candidates(labels).collect();
            names.sort_unstable();
            for name in names {
                let selector = &services.selectors[name];
                let matches = |(key, value): &(Box<str>, Box<str>)| {
                    labels
                        .get(&**key)
                        .is_some_and(|own| own.as_str() == &**value)
                };
                if selector.iter().all(matches) {
                    merged.extend(unpacked(selector));
                }
            }
        }
        let selector = Selector::labels(&merged);
        let owned = pod.template.owner.as_ref().and_then(|owner| {
            let known = (owner.api_version.as_str(), owner.kind.as_str());
            let (_, kind) = CONTROLLERS
                .iter()
                .find(|controller| **controller == known)?;
            let key = (*kind, namespace.to_owned(), owner.name.clone());
            self.controllers.get(&key)
        });
        let selector = owned.map_or_else(|| selector.clone(), |owned| selector.and(owned));
        (!selector.is_everything()).then_some(selector)
    }
}
