//! One version of a custom resource as a kind like any other.

use std::{
    collections::HashSet,
    sync::{LazyLock, Mutex, PoisonError},
};

use kinds::{Column, Context, Kind, Names, Scope, Subresource, SubresourceInfo};
use machinery::{Object, Value, decode::Findings, field};

use store::Revision;

use super::{path::Path, structural::Schema, validate};
use crate::meta;

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

/// Where a Scale's numbers stand in the object.
#[derive(Debug, Clone)]
pub(crate) struct ScalePaths {
    pub(crate) spec: Path,
    pub(crate) status: Path,
    pub(crate) selector: Option<Path>,
}

impl ScalePaths {
    /// The number of replicas that an object asks for, if it says so.
    pub(crate) fn wanted(&self, object: &Object) -> Option<i64> {
        let names = self.spec.names();
        let (first, rest) = names.split_first()?;
        let value = rest
            .iter()
            .try_fold(object.get(first)?, |value, name| value.get(name));
        value?.as_i64()
    }

    /// The path of the replicas as it was written.
    pub(crate) fn spec_text(&self) -> String {
        format!(".{}", self.spec.names().join("."))
    }
}

/// A served version of a definition.
pub(crate) struct CustomKind {
    names: Names,
    scope: Scope,
    api_version: String,
    stored_api_version: String,
    schema: Schema,
    open_api: Value,
    /// The definition's state: objects of earlier revisions may not have its shape.
    pub(crate) since: Revision,
    has_status: bool,
    pub(crate) scale: Option<ScalePaths>,
    subresources: Vec<&'static str>,
    columns: Vec<Column>,
    cells: Vec<Option<Path>>,
    selectable: Vec<(&'static str, Path)>,
    selectable_names: Vec<&'static str>,
    warning: Option<String>,
}

/// Texts that kinds keep for the life of the process. Each is kept once, however often a
/// definition changes.
fn intern(text: &str) -> &'static str {
    static KNOWN: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);
    // The set is whole after every insert, also when a thread died meanwhile.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = known.get(text) {
        return text;
    }
    let text: &'static str = Box::leak(text.to_owned().into_boxed_str());
    known.insert(text);
    text
}

impl CustomKind {
    /// Reads one version of a definition.
    pub(crate) fn read(definition: &Value, version: &Value, stored: &str, since: Revision) -> Self {
        let spec = &definition["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let list = |value: &Value| -> Vec<String> {
            value.as_array().into_iter().flatten().map(text).collect()
        };
        let accepted = &spec["names"];
        let names = Names {
            group: text(&spec["group"]),
            version: text(&version["name"]),
            kind: text(&accepted["kind"]),
            list_kind: text(&accepted["listKind"]),
            plural: text(&accepted["plural"]),
            singular: text(&accepted["singular"]),
            short_names: list(&accepted["shortNames"]),
            categories: list(&accepted["categories"]),
        };
        let sub = &version["subresources"];
        let scale = sub.get("scale").and_then(|scale| {
            Some(ScalePaths {
                spec: Path::parse(scale["specReplicasPath"].as_str()?)?,
                status: Path::parse(scale["statusReplicasPath"].as_str()?)?,
                selector: scale["labelSelectorPath"].as_str().and_then(Path::parse),
            })
        });
        let has_status = sub.get("status").is_some();
        let mut subresources = Vec::new();
        subresources.extend(has_status.then_some("status"));
        subresources.extend(scale.is_some().then_some("scale"));
        let (columns, cells) = columns(&version["additionalPrinterColumns"]);
        let selectable = version["selectableFields"].as_array().into_iter().flatten();
        let selectable: Vec<(&'static str, Path)> = selectable
            .filter_map(|field| {
                let path = field["jsonPath"].as_str()?;
                Some((intern(path.trim_start_matches('.')), Path::parse(path)?))
            })
            .collect();
        let selectable_names: Vec<&'static str> =
            selectable.iter().map(|(name, _)| *name).collect();
        let warning = version["deprecated"].as_bool().unwrap_or(false).then(|| {
            let usual = format!(
                "{}/{} {} is deprecated",
                names.group, names.version, names.kind
            );
            version["deprecationWarning"]
                .as_str()
                .map_or(usual, str::to_owned)
        });
        Self {
            api_version: format!("{}/{}", names.group, names.version),
            stored_api_version: format!("{}/{stored}", names.group),
            scope: match spec["scope"].as_str() {
                Some("Namespaced") => Scope::Namespaced,
                _ => Scope::Cluster,
            },
            schema: Schema::read(&version["schema"]["openAPIV3Schema"]),
            open_api: version["schema"]["openAPIV3Schema"].clone(),
            since,
            selectable_names,
            names,
            has_status,
            scale,
            subresources,
            columns,
            cells,
            selectable,
            warning,
        }
    }

    /// The name of the form that this version gives to objects.
    pub(crate) fn form(&self) -> String {
        format!("{}@{}", self.api_version, self.since)
    }

    /// The schema as it was written.
    pub(crate) fn open_api(&self) -> &Value {
        &self.open_api
    }

    /// Drops what the schema does not know.
    pub(crate) fn prune(&self, object: &mut Object, findings: &mut Findings) {
        self.schema.prune(object, findings);
    }

    /// As [`CustomKind::prune`], for what a client sent whole: nulls that mean nothing go, too.
    pub(crate) fn settle(&self, object: &mut Object, findings: &mut Findings) {
        self.schema.prune(object, findings);
        self.schema.drop_nulls(object);
    }

    /// Drops nulls that mean nothing.
    pub(crate) fn drop_nulls(&self, object: &mut Object) {
        self.schema.drop_nulls(object);
    }
}

/// The columns and where their cells stand; the name has none of its own.
fn columns(given: &Value) -> (Vec<Column>, Vec<Option<Path>>) {
    let column = |name: &str, kind: &str, format: &str, about: &str, priority: i64| Column {
        name: intern(name),
        kind: intern(kind),
        format: intern(format),
        description: intern(about),
        priority: priority as i32,
    };
    let mut columns = vec![column("Name", "string", "name", "The name.", 0)];
    let mut cells = vec![None];
    let given = given.as_array().filter(|given| !given.is_empty());
    for one in given.into_iter().flatten() {
        let text = |key: &str| one[key].as_str().unwrap_or_default();
        let priority = one["priority"].as_i64().unwrap_or(0);
        columns.push(column(
            text("name"),
            text("type"),
            text("format"),
            text("description"),
            priority,
        ));
        cells.push(Path::parse(text("jsonPath")));
    }
    if given.is_none() {
        columns.push(column(
            "Age",
            "date",
            "",
            "The time since it was created.",
            0,
        ));
        cells.push(Path::parse(".metadata.creationTimestamp"));
    }
    (columns, cells)
}

/// A cell's value: dates as ages, everything else as it stands.
fn cell(kind: &str, value: Option<&Value>, now: i64) -> Value {
    match (kind, value) {
        ("date", Some(at)) => kinds::columns::since(at, now).into(),
        ("date", None) => "<unknown>".into(),
        ("integer", Some(value)) => value.as_i64().map_or(Value::Null, Value::from),
        ("string", Some(value)) if !value.is_string() => value.to_string().into(),
        (_, Some(value)) => value.clone(),
        (_, None) => Value::Null,
    }
}

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
        object.insert(
            "apiVersion".to_owned(),
            self.stored_api_version.clone().into(),
        );
        object
    }

    fn from_stored(&self, mut object: Object) -> Object {
        object.insert("apiVersion".to_owned(), self.api_version.clone().into());
        object
    }

    fn default(&self, object: &mut Object) {
        self.schema.fill(object);
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
            let managers = meta::of_mut(object).shift_remove("managedFields");
            *object = old.clone();
            object.shift_remove("status");
            meta::set(object, "managedFields", managers.unwrap_or_default());
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
        validate::object(&self.schema, object)
    }

    fn validate_update(&self, object: &Object, old: &Object, _: Subresource<'_>) -> field::Errors {
        validate::update(&self.schema, object, old)
    }

    fn warnings(&self, _: &Object, _: Option<&Object>) -> Vec<String> {
        self.warning.iter().cloned().collect()
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn allows_unconditional_update(&self) -> bool {
        false
    }

    fn selectable_fields(&self, object: &Object) -> Vec<(&'static str, String)> {
        if self.selectable.is_empty() {
            return Vec::new();
        }
        let value = Value::Object(object.clone());
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let of = |(name, path): &(&'static str, Path)| {
            (*name, path.first(&value).map(text).unwrap_or_default())
        };
        self.selectable.iter().map(of).collect()
    }

    fn selectable_names(&self) -> &[&'static str] {
        &self.selectable_names
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
                Some(path) => cell(column.kind, path.first(&value), now),
            })
            .collect()
    }
}
