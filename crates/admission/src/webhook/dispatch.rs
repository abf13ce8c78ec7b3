//! Which webhooks are called for a request, and in which version.

use std::{sync::Arc, time::Instant};

use machinery::{Object, Status};
use registry::Table;
use tokio::sync::OnceCell;

use super::{Shared, hooks::Hook, metrics::Observed};
use crate::{
    Attributes as Given, Resource, Stored, Versions,
    matching::{
        Activation, Attributes, Checks, GroupVersionKind, GroupVersionResource, Matched, Outcome,
    },
};

/// Data read for a request, at most once and only if a webhook needs it.
pub(super) struct Dispatch<'a> {
    pub(super) shared: &'a Shared,
    pub(super) given: &'a Given<'a>,
    pub(super) table: Arc<Table>,
    namespace: OnceCell<Option<Arc<Stored>>>,
    checks: Arc<Checks>,
    /// `admit` or `validating`.
    r#type: &'static str,
}

/// The objects of a request in a version.
#[derive(Clone)]
pub(super) struct Versioned {
    pub(super) object: Option<Object>,
    pub(super) old: Option<Object>,
}

impl<'a> Dispatch<'a> {
    pub(super) fn new(shared: &'a Shared, given: &'a Given<'a>, r#type: &'static str) -> Self {
        Self {
            shared,
            given,
            table: shared.reader.table(),
            namespace: OnceCell::new(),
            checks: Arc::default(),
            r#type,
        }
    }

    pub(super) fn observed<'h>(&self, hook: &'h Hook) -> Observed<'h> {
        Observed {
            name: &hook.name,
            r#type: self.r#type,
            operation: self.given.operation.name(),
        }
    }

    /// The version in which a webhook is called; `None` if it is not.
    pub(super) async fn find<'t>(
        &'t self,
        hook: &Hook,
        attributes: &Attributes<'t>,
    ) -> Result<Option<Matched<'t>>, Status> {
        let equivalents = || equivalents(&self.table, attributes);
        let Some(matched) = hook.rules.find(attributes, hook.policy, equivalents) else {
            return Ok(None);
        };
        let namespace = match hook.selectors.reads_namespace(attributes) {
            true => Some(self.namespace(attributes.namespace).await?),
            false => None,
        };
        let namespace = namespace.as_deref().map(Stored::parsed);
        let selected = hook.selectors.matches(attributes, namespace);
        if !selected.map_err(Status::internal)? {
            return Ok(None);
        }
        if hook.conditions.is_empty() {
            return Ok(Some(matched));
        }
        let matches = self.conditions(hook, attributes, &matched).await?;
        Ok(matches.then_some(matched))
    }

    /// The request's Namespace.
    async fn namespace(&self, name: &str) -> Result<Arc<Stored>, Status> {
        let read = || self.shared.reader.get("", "namespaces", "", name);
        let found = self.namespace.get_or_try_init(read).await?;
        found
            .clone()
            .ok_or_else(|| Status::not_found("", "namespaces", name))
    }

    async fn conditions(
        &self,
        hook: &Hook,
        attributes: &Attributes<'_>,
        matched: &Matched<'_>,
    ) -> Result<bool, Status> {
        let versioned = self.versioned(attributes, matched.kind).await?;
        let request = attributes.request(matched);
        let activation = Activation {
            object: versioned.object.as_ref(),
            old: versioned.old.as_ref(),
            namespace: None,
            request: &request,
            params: None,
            authorizer: Some(self.checks.clone()),
        };
        let begun = Instant::now();
        let authorizers = &self.shared.authorizers;
        let outcome = hook
            .conditions
            .evaluate(attributes, &activation, authorizers)
            .await;
        let (errors, excluded) = match &outcome {
            Outcome::Match => (0, false),
            Outcome::Excluded(_) => (0, true),
            Outcome::Failed(_, errors) => (*errors, hook.ignores_failures),
        };
        let (metrics, what) = (&self.shared.metrics, self.observed(hook));
        metrics.conditions(&what, begun.elapsed(), errors, excluded);
        match outcome {
            Outcome::Match => Ok(true),
            Outcome::Excluded(_) => Ok(false),
            Outcome::Failed(..) if hook.ignores_failures => Ok(false),
            Outcome::Failed(why, _) => {
                tracing::warn!(webhook = hook.name, why, "match conditions failed closed");
                let GroupVersionResource {
                    group, resource, ..
                } = attributes.resource;
                Err(Status::forbidden(group, resource, attributes.name, &why))
            }
        }
    }

    /// The objects of the request in the version of a kind.
    pub(super) async fn versioned(
        &self,
        attributes: &Attributes<'_>,
        kind: GroupVersionKind<'_>,
    ) -> Result<Versioned, Status> {
        let mut converted = Versioned {
            object: attributes.object.cloned(),
            old: attributes.old.cloned(),
        };
        if kind != attributes.kind {
            let version = api_version(kind);
            for object in [&mut converted.object, &mut converted.old] {
                if let Some(original) = object.take() {
                    *object = Some(self.convert(attributes, original, &version).await?);
                }
            }
        }
        Ok(converted)
    }

    /// An object in another version of its resource.
    pub(super) async fn convert(
        &self,
        attributes: &Attributes<'_>,
        object: Object,
        version: &str,
    ) -> Result<Object, Status> {
        let GroupVersionResource {
            group,
            version: own,
            resource,
        } = attributes.resource;
        let Some(resource) = self.table.get(group, own, resource) else {
            return Ok(object);
        };
        let versions = Versions::new(resource, self.table.clone());
        versions.converted(object, version).await
    }
}

pub(super) fn api_version(kind: GroupVersionKind<'_>) -> String {
    registry::api_version(kind.group, kind.version)
}

/// All versions and groups that serve the objects of a request.
fn equivalents<'t>(table: &'t Table, attributes: &Attributes<'t>) -> Vec<Matched<'t>> {
    let GroupVersionResource {
        group,
        version,
        resource,
    } = attributes.resource;
    let Some(own) = table.get(group, version, resource) else {
        return Vec::new();
    };
    let same = table.same_objects(own);
    same.filter_map(|known| matched(known, attributes.subresource))
        .collect()
}

/// The resource and kind of a resource's objects and subresources.
fn matched<'t>(known: &'t Resource, subresource: &str) -> Option<Matched<'t>> {
    let own = GroupVersionKind::new(&known.api_version, &known.kind.names().kind);
    let kind = match subresource {
        "" => own,
        name if !known.kind.subresources().contains(&name) => return None,
        name => match known.kind.subresource_info(name) {
            Some(info) if !info.kind.is_empty() => GroupVersionKind {
                group: info.group,
                version: info.version,
                kind: info.kind,
            },
            _ => own,
        },
    };
    Some(Matched {
        resource: GroupVersionResource {
            group: &known.group,
            version: &known.version,
            resource: &known.plural,
        },
        kind,
    })
}
