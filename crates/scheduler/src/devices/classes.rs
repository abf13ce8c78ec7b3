//! Device classes, and the extended resources that they stand for.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::resource::v1::DeviceClass;

/// The prefix of the extended resource that every class stands for.
pub const CLASS_RESOURCE: &str = "deviceclass.resource.kubernetes.io/";

/// All device classes.
#[derive(Debug, Default)]
pub struct Classes {
    by_name: BTreeMap<String, Arc<DeviceClass>>,
    /// The class of each extended resource that a class names.
    by_resource: BTreeMap<String, Arc<DeviceClass>>,
}

impl Classes {
    /// Stores a class, or removes it with `None`. Returns whether a class has begun or ceased to
    /// stand for an extended resource.
    pub fn put(&mut self, name: &str, class: Option<&Arc<DeviceClass>>) -> bool {
        let was_there = match class {
            Some(class) => self
                .by_name
                .insert(name.to_owned(), class.clone())
                .is_some(),
            None => self.by_name.remove(name).is_some(),
        };
        let before = std::mem::take(&mut self.by_resource);
        for class in self.by_name.values() {
            let Some(resource) = &class.spec.extended_resource_name else {
                continue;
            };
            // While one class replaces another the newer one counts, then the first by name.
            let created = |class: &DeviceClass| {
                let time = class.metadata.creation_timestamp.as_ref();
                time.map(|time| time.0)
            };
            let known = self.by_resource.get(resource);
            if known.is_none_or(|known| created(class) > created(known)) {
                self.by_resource.insert(resource.clone(), class.clone());
            }
        }
        was_there != class.is_some() || !before.keys().eq(self.by_resource.keys())
    }

    /// A class by name.
    pub fn get(&self, name: &str) -> Option<&Arc<DeviceClass>> {
        self.by_name.get(name)
    }

    /// The class that an extended resource stands for.
    pub fn for_resource(&self, resource: &str) -> Option<&Arc<DeviceClass>> {
        match resource.strip_prefix(CLASS_RESOURCE) {
            Some(class) => self.by_name.get(class),
            None => self.by_resource.get(resource),
        }
    }
}
