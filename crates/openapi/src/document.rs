//! The documents: paths of resources, other paths, and all referenced definitions.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use apiextensions::{CustomKind, OpenApis};
use machinery::json::json;
use machinery::{
    Object, Value,
    openapi::{self, Dialect},
    schema::{self, Type},
};

use super::{
    custom,
    descriptions::{All, describe},
    operation::path_item,
    paths::{self, DELETE_OPTIONS, WATCH_EVENT},
    place, plain, shared,
};
use registry::{Resource, Table};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
pub(super) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
pub(super) const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
/// Kinds of the core group that are not resources.
const PLAIN_KINDS: [&str; 5] = [
    "APIGroup",
    "APIGroupList",
    "APIResourceList",
    "APIVersions",
    "Status",
];
/// The definition whose descriptions are used for the common object fields.
const ANY_KIND: &str = "io.k8s.api.core.v1.Pod";

/// Every group version, or only those of built-in kinds.
fn group_versions(table: &Table, builtin: bool) -> BTreeSet<(&str, &str)> {
    let of = table.discoverable().filter(|one| !builtin || !one.custom);
    of.map(|one| (one.group.as_str(), one.version.as_str()))
        .collect()
}

/// The paths of documents that are not only of custom resources.
fn builtin_places(table: &Table) -> BTreeSet<String> {
    let mut all: BTreeSet<String> = plain::PLACES.iter().map(|&place| place.into()).collect();
    for (group, version) in group_versions(table, true) {
        if !group.is_empty() {
            all.insert(format!("apis/{group}"));
        }
        all.insert(place(group, version));
    }
    all
}

/// The paths of all documents.
pub(super) fn places(table: &Table) -> BTreeSet<String> {
    let mut all = builtin_places(table);
    let versions = group_versions(table, false).into_iter();
    all.extend(versions.map(|(group, version)| place(group, version)));
    all
}

/// A cache for schemas of definitions. Versions of a definition are adjacent, so its bytes are
/// parsed once.
#[derive(Default)]
pub(super) struct Parsed(Option<OpenApis>);

impl Parsed {
    fn take(&mut self, kind: &CustomKind) -> Value {
        let known = self.0.as_mut().and_then(|known| known.take(kind));
        known.unwrap_or_else(|| {
            let read = self.0.insert(kind.read_open_apis());
            read.take(kind).unwrap_or_default()
        })
    }
}

/// The inputs for making documents.
pub(super) struct Maker<'a> {
    table: &'a Table,
    all: All<'a>,
    /// The types of the schema table by the names of their definitions.
    types: HashMap<String, &'static Type>,
}

impl<'a> Maker<'a> {
    pub(super) fn new(table: &'a Table, all: All<'a>) -> Self {
        let named = |schema: &'static Type| (openapi::name(schema), schema);
        let types = schema::all().iter().map(named).collect();
        Self { table, all, types }
    }

    /// The document at a path below `/openapi/v3`.
    pub(super) fn v3(&self, place: &str, members: &[Arc<Resource>]) -> Value {
        let mut paths = self.paths(Dialect::V3, members);
        let custom = members.iter().any(|resource| resource.custom);
        if !custom {
            paths.extend(plain::path(Dialect::V3, place));
        }
        let mut components = Object::new();
        let schemas = self.definitions(Dialect::V3, members, &paths);
        if !schemas.is_empty() {
            components.insert("schemas".to_owned(), Value::Object(schemas));
        }
        if !custom {
            components.insert("securitySchemes".to_owned(), security());
        }
        json!({
            "openapi": "3.0.0",
            "info": match custom {
                true => json!({"title": "Kubernetes CRD Swagger", "version": "v0.1.0"}),
                false => info(),
            },
            "paths": paths,
            "components": components,
        })
    }

    /// The OpenAPI v2 document without custom resources.
    pub(super) fn v2(&self) -> Value {
        let members: Vec<Arc<Resource>> = self
            .table
            .all()
            .filter(|resource| !resource.custom)
            .cloned()
            .collect();
        let mut paths = self.paths(Dialect::V2, &members);
        for place in builtin_places(self.table) {
            paths.extend(plain::path(Dialect::V2, &place));
        }
        let definitions = self.definitions(Dialect::V2, &members, &paths);
        let mut paths: Object = paths.into_iter().collect();
        let parameters = shared::parameters(&mut paths);
        json!({
            "swagger": "2.0",
            "info": info(),
            "paths": paths,
            "definitions": definitions,
            "parameters": parameters,
            "securityDefinitions": security(),
            "security": [{"BearerToken": []}],
        })
    }

    /// The paths and definitions of a custom resource in the OpenAPI v2 document. Parameters that
    /// the document already has are referenced.
    pub(super) fn custom_v2(
        &self,
        resource: &Arc<Resource>,
        schemas: &mut Parsed,
        parameters: &BTreeSet<String>,
    ) -> (Object, Object) {
        let paths = self.paths(Dialect::V2, std::slice::from_ref(resource));
        let mut paths: Object = paths.into_iter().collect();
        shared::refer(&mut paths, parameters);
        let definitions = self.custom_definitions(Dialect::V2, resource, schemas);
        (paths, definitions.into_iter().flatten().collect())
    }

    fn paths(&self, dialect: Dialect, members: &[Arc<Resource>]) -> BTreeMap<String, Value> {
        let all = members
            .iter()
            .flat_map(|resource| paths::paths_of_resource(resource));
        all.map(|(path, operations)| (path, path_item(dialect, operations)))
            .collect()
    }

    /// The definitions that paths reference, transitively.
    fn definitions(
        &self,
        dialect: Dialect,
        members: &[Arc<Resource>],
        paths: &BTreeMap<String, Value>,
    ) -> Object {
        let mut names = BTreeSet::new();
        paths.values().for_each(|item| references(item, &mut names));
        let customs = members.iter().filter(|resource| resource.custom);
        if customs.clone().next().is_some() {
            names.extend([OBJECT_META.to_owned(), LIST_META.to_owned()]);
        }
        if names.contains(WATCH_EVENT) {
            names.insert(plain::RAW.to_owned());
        }
        let plain = names.iter().filter_map(|name| {
            let definition = plain::definition(dialect, name)?;
            Some((name.clone(), definition))
        });
        let mut definitions: BTreeMap<String, Value> = plain.collect();
        let types = names.iter().filter_map(|name| self.types.get(name));
        definitions.extend(openapi::definitions(dialect, types.copied()));
        describe(&mut definitions, &self.all);
        self.describe_lists(&mut definitions);
        self.mark_kinds(&mut definitions, dialect, members);
        let mut schemas = Parsed::default();
        let customs = customs.filter_map(|one| self.custom_definitions(dialect, one, &mut schemas));
        definitions.extend(customs.flatten());
        definitions.into_iter().collect()
    }

    /// The definitions of a custom resource and of its lists, with their names.
    fn custom_definitions(
        &self,
        dialect: Dialect,
        resource: &Resource,
        schemas: &mut Parsed,
    ) -> Option<[(String, Value); 2]> {
        let schema = schemas.take(resource.definition.as_ref()?);
        let about = |field: &str| self.about(field);
        let whole = custom::definition(dialect, resource, &schema, &about);
        let list = custom::list(dialect, resource, &about);
        let name = custom::name(resource);
        Some([(format!("{name}List"), list), (name, whole)])
    }

    /// All lists have the same description.
    fn describe_lists(&self, definitions: &mut BTreeMap<String, Value>) {
        for (name, definition) in definitions {
            let Some(kind) = name
                .rsplit('.')
                .next()
                .and_then(|it| it.strip_suffix("List"))
            else {
                continue;
            };
            let words = [
                ("apiVersion", self.about("apiVersion")),
                ("kind", self.about("kind")),
                ("metadata", "Metadata of the list.".into()),
                ("items", format!("The objects, each a {kind}.").into()),
            ];
            for (field, text) in words {
                let property = definition.pointer_mut(&format!("/properties/{field}"));
                let property = property.and_then(Value::as_object_mut);
                if let Some(property) = property.filter(|it| !it.contains_key("description")) {
                    property.insert("description".to_owned(), text);
                }
            }
            if definition.get("description").is_none() {
                definition["description"] = format!("A list of objects, each a {kind}.").into();
            }
        }
    }

    fn about(&self, field: &str) -> Value {
        let text = self.all.get(ANY_KIND).and_then(|fields| fields.get(field));
        text.map_or(Value::Null, |text| (*text).into())
    }

    /// Adds `x-kubernetes-group-version-kind`.
    fn mark_kinds(
        &self,
        definitions: &mut BTreeMap<String, Value>,
        dialect: Dialect,
        members: &[Arc<Resource>],
    ) {
        let mut mark = |name: &str, kinds: Value| {
            if let Some(definition) = definitions.get_mut(name) {
                definition["x-kubernetes-group-version-kind"] = kinds;
            }
        };
        let one = |group: &str, version: &str, kind: &str| json!([{"group": group, "kind": kind, "version": version}]);
        for resource in self.table.all() {
            let Some(schema) = resource.schema else {
                continue;
            };
            let name = openapi::name(schema);
            let kind = resource.kind.names().kind.as_str();
            let (group, version) = (resource.group.as_str(), resource.version.as_str());
            mark(&name, one(group, version, kind));
            mark(
                &format!("{name}List"),
                one(group, version, &format!("{kind}List")),
            );
            for (name, kind) in paths::kinds_of_subresources(resource) {
                mark(&name, json!([kind.json()]));
            }
        }
        for kind in PLAIN_KINDS {
            mark(&format!("{META}.{kind}"), one("", "v1", kind));
        }
        let mut builtin = group_versions(self.table, true);
        // A v3 document of a built-in version lists only its own and the core group's kinds.
        let own = members
            .iter()
            .find(|one| !one.custom && dialect == Dialect::V3);
        if let Some(own) = own {
            builtin.retain(|(group, version)| {
                group.is_empty() || *group == own.group && *version == own.version
            });
        }
        for (name, kind) in [
            (DELETE_OPTIONS, "DeleteOptions"),
            (WATCH_EVENT, "WatchEvent"),
        ] {
            let every = builtin
                .iter()
                .map(|(group, version)| json!({"group": group, "kind": kind, "version": version}));
            mark(name, every.collect());
        }
    }
}

fn info() -> Value {
    let version = stdx::Version::own().release_line();
    json!({"title": "Kubernetes", "version": version})
}

fn security() -> Value {
    json!({"BearerToken": {
        "description": "Bearer Token authentication",
        "in": "header",
        "name": "authorization",
        "type": "apiKey",
    }})
}

/// The names of the definitions that a value refers to.
fn references(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            if let Some(target) = object.get("$ref").and_then(Value::as_str)
                && let Some((_, name)) = target.rsplit_once('/')
            {
                names.insert(name.to_owned());
            }
            object.values().for_each(|value| references(value, names));
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, names)),
        _ => {}
    }
}
