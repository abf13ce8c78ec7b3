//! The versions of a resource, for managers that know its objects by another than the one written.

use std::sync::Arc;

use machinery::{
    Object, Value,
    apply::{self, Root},
    decode::Findings,
    normalise,
};

use crate::Resource;
use registry::Table;

/// A resource and whatever else serves the same objects.
pub(crate) struct Versions {
    own: Arc<Resource>,
    table: Arc<Table>,
}

impl Versions {
    pub(crate) fn of(own: &Arc<Resource>, table: Arc<Table>) -> Self {
        Self {
            own: own.clone(),
            table,
        }
    }

    /// The resource that serves the objects in a version.
    pub(crate) fn find(&self, api_version: &str) -> Option<&Resource> {
        if api_version == self.own.api_version {
            return Some(&self.own);
        }
        let mut same = self.table.same_objects(&self.own);
        same.find(|known| known.api_version == api_version)
    }
}

impl apply::Versions for Versions {
    fn root(&self, api_version: &str) -> Option<Root<'_>> {
        self.find(api_version).map(Resource::root)
    }

    fn convert(&self, object: Object, api_version: &str) -> Object {
        let from = object.get("apiVersion").and_then(Value::as_str);
        let from = from.and_then(|from| self.find(from));
        let (Some(from), Some(to)) = (from, self.find(api_version)) else {
            return object;
        };
        let stored = match &from.storage {
            Some(_) => from.kind.to_stored(object),
            None => object,
        };
        let converted = match &to.storage {
            Some(_) => to.kind.from_stored(stored),
            None => stored,
        };
        // What the other version always writes is there, too.
        let Some(schema) = to.schema else {
            return converted;
        };
        let tree = Value::Object(converted.clone());
        let mut findings = Findings::default();
        normalise::converted(schema, tree, &mut findings).unwrap_or(converted)
    }
}
