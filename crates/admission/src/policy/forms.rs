//! The versions of a request: a policy may match another version of the same objects, and sees them
//! in that version.

use std::sync::Arc;

use machinery::{Object, Status};
use registry::Table;

use super::super::{
    Attributes,
    matching::{GroupVersionKind, GroupVersionResource, Matched},
};
use crate::{Resource, Versions};

/// The resource of a request, and all others that serve the same objects.
pub(super) struct Forms {
    table: Arc<Table>,
    /// `None` if the request is not for a stored resource.
    resource: Option<Arc<Resource>>,
    /// Empty for the object itself.
    subresource: String,
    /// Whether the body is an object of the resource, not of a subresource's kind.
    pub(super) is_whole: bool,
}

impl Forms {
    pub(super) fn new(attributes: &Attributes<'_>) -> Self {
        let table = attributes.reader.table();
        let resource = table.get(attributes.group, attributes.version, attributes.resource);
        let resource = resource.cloned();
        let is_whole = resource.as_ref().is_some_and(|resource| {
            resource.kind.names().kind == attributes.kind
                && resource.api_version == attributes.api_version
        });
        Self {
            is_whole,
            resource,
            subresource: attributes.subresource.to_owned(),
            table,
        }
    }

    /// The resource in the matched version.
    pub(super) fn matched(&self, matched: &Matched<'_>) -> Option<&Arc<Resource>> {
        let GroupVersionResource {
            group,
            version,
            resource,
        } = matched.resource;
        self.table.get(group, version, resource)
    }

    /// All versions of the request: a version may lack the subresource. The kind of a subresource is the same in all of
    /// them.
    pub(super) fn equivalents<'a>(&'a self, own: &Matched<'a>) -> Vec<Matched<'a>> {
        let Some(resource) = &self.resource else {
            return Vec::new();
        };
        let same = self.table.same_objects(resource);
        let name = self.subresource.as_str();
        let same =
            same.filter(|other| name.is_empty() || other.kind.subresources().contains(&name));
        same.map(|other| Matched {
            resource: GroupVersionResource {
                group: &other.group,
                version: &other.version,
                resource: &other.plural,
            },
            kind: match self.is_whole {
                true => GroupVersionKind::new(&other.api_version, &other.kind.names().kind),
                false => own.kind,
            },
        })
        .collect()
    }

    /// Converts an object to the matched version; `None` if that is its own.
    pub(super) async fn convert(
        &self,
        object: &Object,
        to: &Matched<'_>,
    ) -> Result<Option<Object>, String> {
        if self.is_own(to) {
            return Ok(None);
        }
        self.between(object, self.resource.as_ref(), self.matched(to))
            .await
    }

    /// Converts an object from the matched version back to the request's; `None` if that is the
    /// same.
    pub(super) async fn convert_back(
        &self,
        object: &Object,
        from: &Matched<'_>,
    ) -> Result<Option<Object>, String> {
        if self.is_own(from) {
            return Ok(None);
        }
        self.between(object, self.matched(from), self.resource.as_ref())
            .await
    }

    /// Whether the request itself matched.
    fn is_own(&self, matched: &Matched<'_>) -> bool {
        self.resource.as_ref().is_some_and(|own| {
            let GroupVersionResource {
                group,
                version,
                resource,
            } = matched.resource;
            own.version == version && own.plural == resource && own.group == group
        })
    }

    async fn between(
        &self,
        object: &Object,
        from: Option<&Arc<Resource>>,
        to: Option<&Arc<Resource>>,
    ) -> Result<Option<Object>, String> {
        let (Some(from), Some(to)) = (from, to) else {
            return Ok(None);
        };
        if !self.is_whole || Arc::ptr_eq(from, to) {
            return Ok(None);
        }
        let versions = Versions::new(from, self.table.clone());
        if !versions.asks() {
            return Ok(Some(converted(object, from, to)));
        }
        let made = versions.converted(object.clone(), &to.api_version).await;
        let failed =
            |status: Status| format!("failed to convert object version: {}", status.message);
        made.map(Some).map_err(failed)
    }
}

/// Converts through the storage version.
fn converted(object: &Object, from: &Resource, to: &Resource) -> Object {
    let stored = match from.storage {
        Some(_) => from.kind.to_stored(object.clone()),
        None => object.clone(),
    };
    match (&to.storage, &to.definition) {
        (None, _) => stored,
        (Some(_), Some(definition)) => definition.read_stored(stored),
        (Some(_), None) => to.kind.from_stored(stored),
    }
}
