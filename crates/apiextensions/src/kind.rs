//! One version of a custom resource as a kind.

mod behaviour;
mod columns;
mod warnings;

use std::sync::{Arc, LazyLock, OnceLock};

use kinds::{Column, Names, Scope};
use machinery::{Object, Value, decode::Findings, jsonpath::Template};

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::{
    conversion::Conversion,
    rules::Rules,
    scale::ScalePaths,
    schemas::{OpenApis, Schemas, definition_fingerprint, fingerprint},
    structural::Schema,
};
use columns::columns;
use warnings::deprecation;

static ANYTHING: LazyLock<Schema> = LazyLock::new(Schema::default);

/// A served version of a definition.
pub struct CustomKind {
    names: Names,
    scope: Scope,
    api_version: String,
    /// The storage version.
    stored: String,
    schemas: Arc<Schemas>,
    /// The version's rules, compiled when the first object is validated.
    rules: OnceLock<Option<Rules>>,
    /// The version's schema as written, parsed when apply needs it.
    open_api: OnceLock<Value>,
    /// The fingerprint of that schema.
    pub fingerprint: [u8; 32],
    /// The fingerprint of the definition, without its status and most of its metadata.
    definition_fingerprint: [u8; 32],
    /// The fingerprint of the definition's conversion.
    pub conversion_fingerprint: [u8; 32],
    /// The conversion webhook, if any.
    pub conversion: Option<Arc<Conversion>>,
    /// The revision of the definition: objects of earlier revisions may not conform to it.
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
    /// Parses one version of a definition.
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

    /// The schemas, shared with the other versions.
    pub(super) fn schemas(&self) -> &Arc<Schemas> {
        &self.schemas
    }

    /// Takes a later revision of the definition if it does not change the kind.
    pub fn renew(&self, definition: &Value, bytes: &Bytes) -> bool {
        let is_same = definition_fingerprint(definition) == self.definition_fingerprint;
        if is_same {
            self.schemas.renew(bytes.clone());
        }
        is_same
    }

    /// A fingerprint of everything that OpenAPI documents contain about the version.
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

    /// The same with a conversion webhook.
    pub fn converted_by(mut self, conversion: Option<Arc<Conversion>>) -> Self {
        self.conversion = conversion;
        self
    }

    /// Prunes and defaults a stored object by the schema of its own version, before a webhook
    /// converts it.
    pub fn read_own(&self, object: &mut Object) {
        let given = object.get("apiVersion").and_then(Value::as_str);
        let version = given.and_then(|given| given.rsplit('/').next());
        let own = self.schema_of(version.unwrap_or_default());
        let _ = own.shape(object, &mut Findings::default());
        own.fill(object);
    }

    /// Prunes and defaults a converted object by this version's schema.
    pub fn settle_converted(&self, object: &mut Object) -> Result<(), String> {
        self.prune_with_nulls(object, &mut Findings::default())?;
        self.schema().fill(object);
        Ok(())
    }

    /// A name for the serialized form of objects in this version.
    pub fn form(&self) -> String {
        format!("{}@{}", self.api_version, self.since)
    }

    /// The schema as written, cached.
    pub fn open_api(&self) -> &Value {
        self.open_api.get_or_init(|| self.read_open_api())
    }

    /// The schemas of all versions as written, by version, parsed on each call.
    pub fn read_open_apis(&self) -> OpenApis {
        OpenApis::read(&self.schemas)
    }

    /// The schema as written, parsed on each call.
    pub fn read_open_api(&self) -> Value {
        self.read_open_apis().take(self).unwrap_or_default()
    }

    /// The rules of the version, compiled when the first object is validated.
    fn rules(&self) -> Option<&Rules> {
        let rules = self
            .rules
            .get_or_init(|| Rules::read(&self.read_open_api()));
        rules.as_ref()
    }

    /// The storage version.
    pub fn stored(&self) -> &str {
        &self.stored
    }

    fn schema_of(&self, version: &str) -> &Schema {
        // A removed version is treated as the storage version.
        let known = self.schemas.get(version);
        known
            .or_else(|| self.schemas.get(&self.stored))
            .unwrap_or(&ANYTHING)
    }

    fn schema(&self) -> &Schema {
        self.schema_of(&self.names.version)
    }

    /// Prunes fields that are not in the schema.
    pub fn prune(&self, object: &mut Object, findings: &mut Findings) -> Result<(), String> {
        self.schema().shape_but_nulls(object, findings)
    }

    /// As [`CustomKind::prune`], for complete objects from a client: nulls of non-nullable fields
    /// are dropped, too.
    pub fn prune_with_nulls(
        &self,
        object: &mut Object,
        findings: &mut Findings,
    ) -> Result<(), String> {
        self.schema().shape(object, findings)
    }

    /// Drops nulls of non-nullable fields.
    pub fn drop_nulls(&self, object: &mut Object) {
        self.schema().prune_nulls(object);
    }

    /// A stored object, possibly written in another version or under an older schema: it is pruned
    /// and defaulted by the schema of its own version, then pruned to this version.
    pub fn read_stored(&self, mut object: Object) -> Object {
        let given = object.get("apiVersion").and_then(Value::as_str);
        let version = given.and_then(|given| given.rsplit('/').next());
        let version = version.unwrap_or_default().to_owned();
        let mut unsaid = Findings::default();
        let own = self.schema_of(&version);
        // Objects that are invalid under newer rules are kept as they are.
        let _ = own.shape(&mut object, &mut unsaid);
        own.fill(&mut object);
        if version != self.names.version {
            object.insert("apiVersion".to_owned(), self.api_version.clone().into());
            let _ = self.prune_with_nulls(&mut object, &mut unsaid);
        }
        object
    }
}

#[cfg(test)]
mod tests {
    use kinds::Kind;
    use machinery::json::json;

    use super::*;

    #[test]
    fn a_definition_without_objects_keeps_only_its_bytes_in_memory() {
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
