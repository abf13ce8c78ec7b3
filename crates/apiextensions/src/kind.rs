//! One version of a custom resource as a kind like any other.

use std::{
    borrow::Cow,
    sync::{Arc, LazyLock, OnceLock},
};

use kinds::{Column, Context, Kind, Names, Scope, Subresource, SubresourceInfo, tree};
use machinery::{
    Object, Value,
    decode::Findings,
    field::{self, Path},
    jsonpath::{Found, Template},
};

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::{
    conversion::Conversion,
    ratchet::Was,
    rules::Rules,
    scale::ScalePaths,
    schemas::{OpenApis, Schemas, definition_fingerprint, fingerprint},
    structural::Schema,
    validate, versions,
    view::View,
};

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

/// In discovery's order, which for custom resources is another than for built-in ones.
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

static ANYTHING: LazyLock<Schema> = LazyLock::new(Schema::default);

/// A served version of a definition.
pub struct CustomKind {
    names: Names,
    scope: Scope,
    api_version: String,
    /// The version that objects are stored in.
    stored: String,
    schemas: Arc<Schemas>,
    /// The version's rules, once an object is judged by them.
    rules: OnceLock<Option<Rules>>,
    /// The version's schema as it was written, once apply needs it.
    open_api: OnceLock<Value>,
    /// Of that schema.
    pub fingerprint: [u8; 32],
    /// Of everything that the definition says, but for its status and the most of its metadata.
    definition_fingerprint: [u8; 32],
    /// Of what the definition says about conversion.
    pub conversion_fingerprint: [u8; 32],
    /// The webhook that converts objects between versions, where one does.
    pub conversion: Option<Arc<Conversion>>,
    /// The definition's state: objects of earlier revisions may not have its shape.
    pub since: u64,
    /// Whether the definition is being deleted.
    pub leaving: bool,
    has_status: bool,
    pub scale: Option<ScalePaths>,
    subresources: Vec<&'static str>,
    columns: Vec<Column>,
    cells: Vec<Option<Template>>,
    selectable: Vec<(String, Template)>,
    deprecation: Option<String>,
}

impl CustomKind {
    /// Reads one version of a definition.
    pub fn read(
        definition: &Value,
        version: &Value,
        schemas: Arc<Schemas>,
        stored: &str,
        since: u64,
    ) -> Self {
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
        let scale = sub.get("scale").and_then(ScalePaths::read);
        let has_status = sub.get("status").is_some();
        let mut subresources = Vec::new();
        subresources.extend(has_status.then_some("status"));
        subresources.extend(scale.is_some().then_some("scale"));
        let (columns, cells) = columns(&version["additionalPrinterColumns"]);
        let selectable = version["selectableFields"].as_array().into_iter().flatten();
        let selectable: Vec<(String, Template)> = selectable
            .filter_map(|field| {
                let path = field["jsonPath"].as_str()?;
                let name = path.strip_prefix('.').unwrap_or(path);
                Some((name.to_owned(), Template::path(path).ok()?))
            })
            .collect();
        let warning = version["deprecated"].as_bool().unwrap_or(false).then(|| {
            let usual = || deprecation(&names, &spec["versions"]);
            let given = version["deprecationWarning"].as_str();
            given.map_or_else(usual, str::to_owned)
        });
        Self {
            api_version: format!("{}/{}", names.group, names.version),
            stored: stored.to_owned(),
            scope: match spec["scope"].as_str() {
                Some("Namespaced") => Scope::Namespaced,
                _ => Scope::Cluster,
            },
            schemas,
            rules: OnceLock::new(),
            open_api: OnceLock::new(),
            fingerprint: fingerprint(&version["schema"]["openAPIV3Schema"]),
            definition_fingerprint: definition_fingerprint(definition),
            conversion_fingerprint: fingerprint(&spec["conversion"]),
            conversion: None,
            since,
            leaving: definition["metadata"]["deletionTimestamp"].is_string(),
            names,
            has_status,
            scale,
            subresources,
            columns,
            cells,
            selectable,
            deprecation: warning,
        }
    }

    /// The schemas that it shares with the other versions.
    pub(super) fn schemas(&self) -> &Arc<Schemas> {
        &self.schemas
    }

    /// Takes a later revision of its definition if that changes nothing for the kind.
    pub fn renew(&self, definition: &Value, bytes: &Bytes) -> bool {
        let is_same = definition_fingerprint(definition) == self.definition_fingerprint;
        if is_same {
            self.schemas.renew(bytes.clone());
        }
        is_same
    }

    /// Changes with everything that OpenAPI documents say about the version.
    pub fn published(&self) -> [u8; 32] {
        let names = &self.names;
        let scope = match self.scope {
            Scope::Namespaced => "Namespaced",
            Scope::Cluster => "Cluster",
        };
        let mut hash = Sha256::new();
        let mut add = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        let own = [&names.group, &names.version, &names.kind, &names.plural];
        own.into_iter().for_each(|text| add(text));
        add(scope);
        self.subresources.iter().for_each(|name| add(name));
        self.selectable.iter().for_each(|(name, _)| add(name));
        hash.update(self.fingerprint);
        hash.finalize().into()
    }

    /// The same, with a webhook that converts objects.
    pub fn converted_by(mut self, conversion: Option<Arc<Conversion>>) -> Self {
        self.conversion = conversion;
        self
    }

    /// An object of the store as the schema of its own version reads it, for a webhook to convert.
    pub fn read_own(&self, object: &mut Object) {
        let given = object.get("apiVersion").and_then(Value::as_str);
        let version = given.and_then(|given| given.rsplit('/').next());
        let own = self.schema_of(version.unwrap_or_default());
        let _ = own.shape(object, &mut Findings::default());
        own.fill(object);
    }

    /// What a webhook made of an object, cut to what this version knows.
    pub fn settle_converted(&self, object: &mut Object) -> Result<(), String> {
        self.settle(object, &mut Findings::default())?;
        self.schema().fill(object);
        Ok(())
    }

    /// The name of the form that this version gives to objects.
    pub fn form(&self) -> String {
        format!("{}@{}", self.api_version, self.since)
    }

    /// The schema as it was written, cached.
    pub fn open_api(&self) -> &Value {
        self.open_api.get_or_init(|| self.read_open_api())
    }

    /// The schemas of all versions of the definition as they were written, by version, parsed anew.
    pub fn read_open_apis(&self) -> OpenApis {
        OpenApis::read(&self.schemas)
    }

    /// The schema as it was written, parsed anew.
    pub fn read_open_api(&self) -> Value {
        self.read_open_apis().take(self).unwrap_or_default()
    }

    /// The rules of the version, compiled when the first object is judged.
    fn rules(&self) -> Option<&Rules> {
        let rules = self
            .rules
            .get_or_init(|| Rules::read(&self.read_open_api()));
        rules.as_ref()
    }

    /// Warnings of rules that an unchanged value breaks.
    fn ratcheted(&self, object: &Object, old: &Object) -> Vec<String> {
        let Some(rules) = self.rules() else {
            return Vec::new();
        };
        let was = Was::new(self.schema(), View::Map(object), View::Map(old));
        rules.warnings(was, &Path::new(""))
    }

    /// The version that objects are stored in.
    pub fn stored(&self) -> &str {
        &self.stored
    }

    fn schema_of(&self, version: &str) -> &Schema {
        // A version that is gone is taken for the one that objects are stored in now.
        let known = self.schemas.get(version);
        known
            .or_else(|| self.schemas.get(&self.stored))
            .unwrap_or(&ANYTHING)
    }

    fn schema(&self) -> &Schema {
        self.schema_of(&self.names.version)
    }

    /// Drops what the schema does not know.
    pub fn prune(&self, object: &mut Object, findings: &mut Findings) -> Result<(), String> {
        self.schema().shape_but_nulls(object, findings)
    }

    /// As [`CustomKind::prune`], for what a client sent whole: nulls that mean nothing go, too.
    pub fn settle(&self, object: &mut Object, findings: &mut Findings) -> Result<(), String> {
        self.schema().shape(object, findings)
    }

    /// Drops nulls that mean nothing.
    pub fn drop_nulls(&self, object: &mut Object) {
        self.schema().prune_nulls(object);
    }

    /// An object of the store, which another version or an older schema may have left there: it is
    /// what the schema of its own version makes of it, cut to what this one knows.
    pub fn read_stored(&self, mut object: Object) -> Object {
        let given = object.get("apiVersion").and_then(Value::as_str);
        let version = given.and_then(|given| given.rsplit('/').next());
        let version = version.unwrap_or_default().to_owned();
        let mut unsaid = Findings::default();
        let own = self.schema_of(&version);
        // What cannot be read was written before there was a rule; it stays.
        let _ = own.shape(&mut object, &mut unsaid);
        own.fill(&mut object);
        if version != self.names.version {
            object.insert("apiVersion".to_owned(), self.api_version.clone().into());
            let _ = self.settle(&mut object, &mut unsaid);
        }
        object
    }
}

/// What to say about a deprecated version: which one is newer and not deprecated.
fn deprecation(names: &Names, versions: &Value) -> String {
    let Names {
        group,
        kind,
        version,
        ..
    } = names;
    let rank = |version: &str| {
        (
            versions::priority(version),
            std::cmp::Reverse(version.to_owned()),
        )
    };
    let all = versions.as_array().into_iter().flatten();
    let newer = all
        .filter(|other| other["served"] == true && other["deprecated"] != true)
        .filter_map(|other| other["name"].as_str())
        .filter(|other| rank(other) > rank(version))
        .max_by_key(|other| rank(other));
    let instead = newer.map(|newer| format!("; use {group}/{newer} {kind}"));
    format!(
        "{group}/{version} {kind} is deprecated{}",
        instead.unwrap_or_default()
    )
}

/// The names of an object's finalizers.
fn finalizers(object: &Object) -> Vec<&str> {
    let finalizers = tree::list(&tree::get(object, "metadata")["finalizers"]).iter();
    finalizers.filter_map(Value::as_str).collect()
}

/// A finalizer should say whose it is.
fn finalizer_warnings(name: &str) -> Vec<String> {
    let at = "metadata.finalizers";
    let quoted = machinery::text::quote(name);
    let complaints = machinery::format::qualified_name(name);
    let mut found: Vec<String> = complaints
        .iter()
        .map(|why| format!("{at}: {quoted}: {why}"))
        .collect();
    let standard = ["orphan", "foregroundDeletion", "kubernetes"];
    if !name.contains('/') && !standard.contains(&name) {
        let path = if name.contains('.') {
            " including a path (/)"
        } else {
            ""
        };
        found.push(format!(
            "{at}: {quoted}: prefer a domain-qualified finalizer name{path} to avoid accidental conflicts with other finalizer writers"
        ));
    }
    found
}

/// The columns and where their cells stand; the name has none of its own.
fn columns(given: &Value) -> (Vec<Column>, Vec<Option<Template>>) {
    let column = |name: &str, kind: &str, format: &str, about: &str, priority: i64| Column {
        name: name.to_owned().into(),
        kind: kind.to_owned().into(),
        format: format.to_owned().into(),
        description: about.to_owned().into(),
        priority: priority as i32,
    };
    let mut columns = vec![kinds::columns::NAME];
    let mut cells = vec![None];
    let given = given.as_array().filter(|given| !given.is_empty());
    for one in given.into_iter().flatten() {
        let text = |key: &str| one[key].as_str().unwrap_or_default();
        let priority = one["priority"].as_i64().unwrap_or(0);
        let path = Template::path(text("jsonPath")).ok();
        if path.is_none() {
            // From a path that cannot be read on there are no more columns.
            break;
        }
        let usual = || {
            format!(
                "Custom resource definition column (in JSONPath format): {}",
                text("jsonPath")
            )
        };
        let about = match text("description") {
            "" => usual(),
            about => about.to_owned(),
        };
        columns.push(column(
            text("name"),
            text("type"),
            text("format"),
            &about,
            priority,
        ));
        cells.push(path);
    }
    if given.is_none() {
        let about = kinds::columns::AGE.description;
        columns.push(column("Age", "date", "", &about, 0));
        cells.push(Template::path(".metadata.creationTimestamp").ok());
    }
    (columns, cells)
}

/// A cell: what the path leads to first, if it is of the column's type. Dates are shown as ages.
fn cell(kind: &str, found: Option<Found<'_, Value>>, now: i64) -> Value {
    let Some(found) = found else {
        return Value::Null;
    };
    let value = found.into_value();
    match (kind, value) {
        ("string", Value::Null) => "<no value>".into(),
        ("string", Value::String(text)) => text.into(),
        ("string", mut value @ (Value::Object(_) | Value::Array(_))) => {
            machinery::normalise::sort(&mut value);
            machinery::text::json(&value).into()
        }
        ("string", value) => machinery::text::plain(&value).into(),
        ("integer", value) => match (value.as_i64(), value.as_f64()) {
            (Some(i), _) => i.into(),
            // What does not fit is the least there is, as processors have it.
            (None, Some(f)) if f >= i64::MAX as f64 || f.is_nan() => i64::MIN.into(),
            (None, Some(f)) => (f as i64).into(),
            (None, None) => Value::Null,
        },
        ("number", value @ Value::Number(_)) => value,
        ("boolean", value @ Value::Bool(_)) => value,
        ("date", Value::String(at)) => age(&at, now).into(),
        _ => Value::Null,
    }
}

fn age(at: &str, now: i64) -> String {
    match at {
        "" | "null" => "<unknown>".to_owned(),
        at => match machinery::time::parse(at) {
            Ok(moment) => machinery::time::human_duration(now - moment.seconds),
            Err(_) => "<invalid>".to_owned(),
        },
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
        let mut warnings: Vec<String> = new.into_iter().flat_map(finalizer_warnings).collect();
        if let Some(old) = old {
            warnings.extend(self.ratcheted(object, old));
        }
        warnings
    }

    fn deprecation(&self) -> Option<Cow<'_, str>> {
        self.deprecation.as_deref().map(Cow::Borrowed)
    }

    fn status_warnings(&self, object: &Object, old: &Object) -> Vec<String> {
        self.ratcheted(object, old)
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

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    #[test]
    fn a_cell_is_of_its_columns_type_or_empty() {
        for (kind, value, shown) in [
            ("string", json!("a"), json!("a")),
            (
                "string",
                json!({"b": 1, "a": [2]}),
                json!("{\"a\":[2],\"b\":1}"),
            ),
            ("string", json!(2.5), json!("2.5")),
            ("string", json!(null), json!("<no value>")),
            ("integer", json!(2.5), json!(2)),
            ("integer", json!(1e21), json!(i64::MIN)),
            ("integer", json!("a"), json!(null)),
            ("number", json!(3), json!(3)),
            ("boolean", json!(true), json!(true)),
            ("boolean", json!(1), json!(null)),
            ("date", json!("1970-01-01T00:00:00Z"), json!("10s")),
            ("date", json!("soon"), json!("<invalid>")),
            ("date", json!(""), json!("<unknown>")),
        ] {
            let found = Some(Found::Part(&value));
            assert_eq!(cell(kind, found, 10), shown, "{kind} {value}");
        }
        assert_eq!(cell("string", None, 10), json!(null));
    }

    #[test]
    fn of_a_definition_without_objects_nothing_but_its_bytes_is_kept() {
        let schema = json!({
            "type": "object",
            "properties": {"a": {"type": "string", "maxLength": 9, "pattern": "^b"}},
            "x-kubernetes-validations": [{"rule": "self.a != 'bad'"}],
        });
        let version = json!({"name": "v1", "schema": {"openAPIV3Schema": schema}});
        let definition = json!({"spec": {
            "group": "example.com", "scope": "Cluster", "versions": [version],
            "names": {"kind": "Thing", "plural": "things"},
        }});
        let schemas = Arc::new(Schemas::new(definition.to_string().into()));
        let kind = CustomKind::read(&definition, &version, schemas, "v1", 1);
        let is_read = || {
            let schemas = kind.schemas.read.get().is_some();
            [
                schemas,
                kind.rules.get().is_some(),
                kind.open_api.get().is_some(),
            ]
        };
        assert_eq!(is_read(), [false; 3]);
        let object = json!({"apiVersion": "example.com/v1", "kind": "Thing", "a": "bad"});
        let object = object.as_object().unwrap();
        let errors = kind.validate_create(object);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(is_read(), [true, true, false]);
    }

    #[test]
    fn a_change_that_is_not_about_the_kind_leaves_it_as_it_is() {
        let version = json!({"name": "v1", "schema": {"openAPIV3Schema": {"type": "object"}}});
        let definition = json!({"metadata": {"uid": "1"}, "spec": {
            "group": "example.com", "scope": "Cluster", "versions": [version],
            "names": {"kind": "Thing", "plural": "things"},
        }});
        let schemas = Arc::new(Schemas::new(definition.to_string().into()));
        let kind = CustomKind::read(&definition, &version, schemas, "v1", 1);
        for (path, value, expected) in [
            ("/status", json!({"conditions": []}), true),
            ("/metadata/resourceVersion", json!("7"), true),
            (
                "/metadata/deletionTimestamp",
                json!("2026-01-01T00:00:00Z"),
                false,
            ),
            ("/metadata/uid", json!("2"), false),
            ("/spec/versions", json!([]), false),
            ("/spec/names/shortNames", json!(["t"]), false),
        ] {
            let mut changed = definition.clone();
            let (parent, key) = path.rsplit_once('/').unwrap();
            match parent {
                "" => changed[key] = value,
                parent => changed.pointer_mut(parent).unwrap()[key] = value,
            }
            let bytes = Bytes::from(changed.to_string());
            assert_eq!(kind.renew(&changed, &bytes), expected, "{path}");
            let is_kept = kind.schemas.bytes().as_ptr() == bytes.as_ptr();
            assert_eq!(is_kept, expected, "{path}");
        }
    }
}
