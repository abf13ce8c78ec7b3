//! The `Kind` trait, implemented by the schema of a version.

use std::borrow::Cow;

use kinds::{Column, Context, Kind, Names, Scope, Subresource, SubresourceInfo, tree};
use machinery::{
    Object, Value,
    decode::Findings,
    field,
    jsonpath::{Found, Template},
};

use super::{
    CustomKind,
    columns::cell,
    warnings::{finalizer_warnings, finalizers},
};
use crate::validate;

const STATUS: SubresourceInfo = SubresourceInfo {
    name: "status",
    group: "",
    version: "",
    kind: "",
    verbs: &["get", "patch", "update"],
};
const SCALE: SubresourceInfo = SubresourceInfo {
    name: "scale",
    group: "autoscaling",
    version: "v1",
    kind: "Scale",
    verbs: &["get", "patch", "update"],
};

/// In discovery's order, which differs from that of built-in kinds.
const VERBS: &[&str] = &[
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "create",
    "update",
    "watch",
];

impl Kind for CustomKind {
    fn names(&self) -> &Names {
        &self.names
    }

    fn scope(&self) -> Scope {
        self.scope
    }

    fn schema(&self) -> Option<&'static str> {
        None
    }

    fn subresources(&self) -> &[&'static str] {
        &self.subresources
    }

    fn subresource_info(&self, name: &str) -> Option<&'static SubresourceInfo> {
        match name {
            "status" => Some(&STATUS),
            "scale" => Some(&SCALE),
            _ => None,
        }
    }

    fn to_stored(&self, mut object: Object) -> Object {
        let stored = format!("{}/{}", self.names.group, self.stored);
        object.insert("apiVersion".to_owned(), stored.into());
        let schema = self.schema_of(&self.stored);
        let _ = schema.shape(&mut object, &mut Findings::default());
        schema.fill(&mut object);
        object
    }

    fn from_stored(&self, object: Object) -> Object {
        self.read_stored(object)
    }

    fn default(&self, object: &mut Object) {
        self.schema().fill(object);
    }

    fn prepare_create(&self, object: &mut Object, _: &Context<'_>) {
        if self.has_status {
            object.shift_remove("status");
        }
    }

    fn prepare_update(
        &self,
        object: &mut Object,
        old: &Object,
        subresource: Subresource<'_>,
        _: &Context<'_>,
    ) {
        if subresource == Some("status") {
            let status = object.shift_remove("status");
            let managers = tree::child_or_new(object, "metadata").shift_remove("managedFields");
            *object = old.clone();
            object.shift_remove("status");
            let metadata = tree::child_or_new(object, "metadata");
            metadata.shift_remove("managedFields");
            metadata.extend(managers.map(|managers| ("managedFields".to_owned(), managers)));
            object.extend(status.map(|status| ("status".to_owned(), status)));
        } else if self.has_status {
            object.shift_remove("status");
            object.extend(
                old.get("status")
                    .map(|status| ("status".to_owned(), status.clone())),
            );
        }
    }

    fn resets(&self, subresource: Subresource<'_>) -> &'static [&'static [&'static str]] {
        match subresource {
            Some("status") => &[&["metadata"], &["spec"]],
            _ if self.has_status => &[&["status"]],
            _ => &[],
        }
    }

    fn validate_create(&self, object: &Object) -> field::Errors {
        validate::object(self.schema(), self.rules(), self.scale.as_ref(), object)
    }

    fn validate_update(
        &self,
        object: &Object,
        old: &Object,
        subresource: Subresource<'_>,
    ) -> field::Errors {
        self.check_update(object, old, subresource).0
    }

    fn check_update(
        &self,
        object: &Object,
        old: &Object,
        subresource: Subresource<'_>,
    ) -> (field::Errors, Vec<String>) {
        let check = match subresource {
            Some("status") => validate::status,
            _ => validate::update,
        };
        check(
            self.schema(),
            self.rules(),
            self.scale.as_ref(),
            object,
            old,
        )
    }

    fn warnings(&self, object: &Object, old: Option<&Object>) -> Vec<String> {
        let before = old.map(finalizers).unwrap_or_default();
        let mut new: Vec<&str> = finalizers(object);
        new.retain(|name| !before.contains(name));
        new.sort_unstable();
        new.dedup();
        new.into_iter().flat_map(finalizer_warnings).collect()
    }

    fn deprecation(&self) -> Option<Cow<'_, str>> {
        self.deprecation.as_deref().map(Cow::Borrowed)
    }

    fn status_warnings(&self, _: &Object, _: &Object) -> Vec<String> {
        Vec::new()
    }

    fn verbs(&self) -> &'static [&'static str] {
        VERBS
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn allows_unconditional_update(&self) -> bool {
        false
    }

    fn selectable_fields(&self, object: &Object) -> Vec<(Cow<'static, str>, String)> {
        if self.selectable.is_empty() {
            return Vec::new();
        }
        let value = Value::Object(object.clone());
        let of = |(name, path): &(String, Template)| {
            let found = path.first(&value).map(Found::into_value);
            let text = found.as_ref().map(machinery::text::plain);
            (name.clone().into(), text.unwrap_or_default())
        };
        self.selectable.iter().map(of).collect()
    }

    fn selectable_names(&self) -> Vec<&str> {
        self.selectable
            .iter()
            .map(|(name, _)| name.as_str())
            .collect()
    }

    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn row(&self, object: &Object, now: i64) -> Vec<Value> {
        let value = Value::Object(object.clone());
        let columns = self.columns.iter().zip(&self.cells);
        columns
            .map(|(column, path)| match path {
                None if column.format == "name" => value["metadata"]["name"].clone(),
                None => Value::Null,
                Some(path) => cell(&column.kind, path.first(&value), now),
            })
            .collect()
    }
}
