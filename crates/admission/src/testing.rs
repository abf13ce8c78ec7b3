//! Requests for the unit tests of plugins.

use machinery::Object;
pub(crate) use registry_testing::World;

use crate::{Attributes, Effects, Operation, RequestOptions, User};

pub(crate) use registry_testing::object;

/// A request for plugins.
pub(crate) struct Case {
    pub(crate) world: World,
    pub(crate) user: User,
    pub(crate) operation: Operation,
    group: &'static str,
    resource: &'static str,
    pub(crate) subresource: &'static str,
    namespace: String,
    name: String,
    pub(crate) old: Option<Object>,
    pub(crate) options: RequestOptions,
    pub(crate) effects: Effects,
}

impl Case {
    pub(crate) fn new(operation: Operation, group: &'static str, resource: &'static str) -> Self {
        Self {
            world: World::new(),
            user: User::new("eve", [""; 0]),
            operation,
            group,
            resource,
            subresource: "",
            namespace: String::new(),
            name: String::new(),
            old: None,
            options: RequestOptions::default(),
            effects: Effects::default(),
        }
    }

    pub(crate) fn named(mut self, namespace: &str, name: &str) -> Self {
        self.namespace = namespace.to_owned();
        self.name = name.to_owned();
        self
    }

    pub(crate) fn attributes(&self) -> Attributes<'_> {
        Attributes {
            user: &self.user,
            peer: None,
            operation: self.operation,
            group: self.group,
            version: "v1",
            api_version: "v1",
            kind: "",
            resource: self.resource,
            subresource: self.subresource,
            namespace: &self.namespace,
            name: &self.name,
            generate_name: "",
            dry_run: false,
            options: &self.options,
            old: self.old.as_ref(),
            reader: &self.world.reader,
            effects: &self.effects,
        }
    }
}
