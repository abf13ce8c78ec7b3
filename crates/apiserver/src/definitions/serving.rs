//! From a definition to the kinds that the registry serves.

use std::sync::Arc;

use apiextensions::{Conversion, CustomKind, Schemas, conditions::holds, fingerprint};
use bytes::Bytes;
use kinds::Kind;
use machinery::Value;
use store::Revision;

use super::{DefinitionContext, id};
use crate::Registry;

/// Registers the served versions, the storage version first. A change that does not concern the
/// kinds keeps the registered ones with their compiled schemas. `now` is the first revision whose
/// objects are written by the definition's schemas, if these are new. Discovery lists the
/// versions once the stored definition is established.
pub(super) fn serve(context: &DefinitionContext, definition: &Value, bytes: &Bytes, now: Revision) {
    let is_established = holds(definition, "Established");
    if renew(&context.writes.registry, definition, bytes) {
        if is_established {
            let (group, plural) = id(definition);
            context.writes.registry.establish(&group, &plural);
        }
        return;
    }
    let versions = definition["spec"]["versions"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let Some(stored) = versions.iter().find(|version| version["storage"] == true) else {
        return;
    };
    let stored_name = stored["name"].as_str().unwrap_or_default();
    let since = known_since(&context.writes.registry, definition).unwrap_or(now);
    let schemas = Arc::new(Schemas::new(bytes.clone()));
    let (client, metrics) = (&context.conversion, &context.metrics);
    let conversion = Conversion::read(&definition["spec"], client, metrics).map(Arc::new);
    let read = |version: &Value| {
        let schemas = schemas.clone();
        let kind = CustomKind::read(definition, version, schemas, stored_name, since);
        Arc::new(kind.converted_by(conversion.clone()))
    };
    let mut kinds = vec![read(stored)];
    let others = versions.iter().filter(|version| version["storage"] != true);
    kinds.extend(others.filter(|version| version["served"] == true).map(read));
    context
        .writes
        .registry
        .define(kinds, stored["served"] == true, is_established);
}

fn renew(registry: &Registry, definition: &Value, bytes: &Bytes) -> bool {
    let (group, plural) = id(definition);
    let table = registry.table();
    // All versions of a definition share its serialized bytes.
    let known = table.any_version(&group, &plural);
    let known = known.and_then(|known| known.definition.as_ref());
    known.is_some_and(|known| known.renew(definition, bytes))
}

/// The first revision whose objects are written by the definition's schemas, if these are the ones
/// served already.
fn known_since(registry: &Registry, definition: &Value) -> Option<Revision> {
    let (group, plural) = id(definition);
    let spec = &definition["spec"];
    let table = registry.table();
    let known = table.versions(&group, &plural).filter(|known| known.custom);
    let mut known = known
        .filter_map(|known| known.definition.as_ref())
        .peekable();
    let since = known.peek()?.since;
    let conversion = fingerprint(&spec["conversion"]);
    let mut same = known.map(|kind| {
        if kind.conversion_fingerprint != conversion {
            return false;
        }
        let mut versions = spec["versions"].as_array().into_iter().flatten();
        let stored =
            |version: &Value| version["storage"] == true && version["name"] == *kind.stored();
        versions.clone().any(stored)
            && versions.any(|version| {
                version["name"] == kind.names().version
                    && fingerprint(&version["schema"]["openAPIV3Schema"]) == kind.fingerprint
            })
    });
    same.all(|is_same| is_same).then_some(since)
}
