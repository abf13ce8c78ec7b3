//! The served kinds, by group, version and plural name. Built-in kinds come from `kinds`; others
//! can be added and removed at run time: readers see one complete table or the next.

use std::{
    collections::BTreeSet,
    ops::Deref,
    sync::{Arc, atomic::AtomicUsize},
};

use apiextensions::{CustomKind, ScalePaths};
use arc_swap::ArcSwap;
use bytes::Bytes;
use kinds::{Kind, Scope};
use machinery::{
    Object, Status, Value,
    apply::Root,
    encode,
    schema::{self, Type},
};
use store::Key;

use crate::{Draft, Shared, Stored, conversions::Conversions, store_metrics::Stores, table::Table};

/// The root of all objects in the store.
const ROOT: &str = "/registry/";

/// The prefix of the store keys of all objects of a resource.
pub fn key_prefix(group: &str, plural: &str) -> String {
    let group = if group.is_empty() { "core" } else { group };
    format!("{ROOT}{group}/{plural}/")
}

/// The store key of one object; `namespace` is empty for cluster-scoped ones.
pub fn object_key(group: &str, plural: &str, namespace: &str, name: &str) -> Key {
    let slash = if namespace.is_empty() { "" } else { "/" };
    Bytes::from([&key_prefix(group, plural), namespace, slash, name].concat())
}

/// A kind, built in or created at run time.
#[derive(Clone)]
pub enum KindRef {
    Static(&'static dyn Kind),
    Shared(Arc<dyn Kind>),
}

impl Deref for KindRef {
    type Target = dyn Kind;

    fn deref(&self) -> &(dyn Kind + 'static) {
        match self {
            Self::Static(kind) => *kind,
            Self::Shared(kind) => &**kind,
        }
    }
}

/// A served kind.
pub struct Resource {
    pub kind: KindRef,
    pub group: String,
    pub version: String,
    pub plural: String,
    /// `v1` or `apps/v1`.
    pub api_version: String,
    /// Whether items of a list have apiVersion and kind, as those of custom resources do.
    pub custom: bool,
    /// The kind's type in the schema table; `None` for custom resources.
    pub schema: Option<&'static Type>,
    /// The resource of the storage version, if it is another one: an older version or another group
    /// of the same objects.
    pub storage: Option<Arc<Resource>>,
    /// The custom resource's kind; `None` for built-in kinds.
    pub definition: Option<Shared<CustomKind>>,
    /// The names as metric labels.
    pub labels: Arc<Labels>,
    /// The store metrics.
    pub stores: Stores,
    /// The number of current watchers.
    pub watchers: Arc<AtomicUsize>,
    conversions: Conversions,
    prefix: String,
}

/// Names, shared instead of copied.
#[derive(Debug, PartialEq, Eq)]
pub struct Labels {
    pub group: Arc<str>,
    pub version: Arc<str>,
    pub resource: Arc<str>,
}

impl Resource {
    fn new(kind: KindRef, custom: bool, storage: Option<Arc<Resource>>) -> Self {
        let names = kind.names().clone();
        Self {
            prefix: match &storage {
                Some(storage) => storage.prefix.clone(),
                None => key_prefix(&names.group, &names.plural),
            },
            storage,
            definition: None,
            labels: Arc::new(Labels {
                group: names.group.as_str().into(),
                version: names.version.as_str().into(),
                resource: names.plural.as_str().into(),
            }),
            stores: Stores::default(),
            watchers: Arc::default(),
            conversions: Conversions::default(),
            schema: kind.schema().and_then(schema::lookup),
            api_version: api_version(&names.group, &names.version),
            group: names.group,
            version: names.version,
            plural: names.plural,
            custom,
            kind,
        }
    }

    fn custom(kind: Arc<CustomKind>, storage: Option<Arc<Resource>>) -> Self {
        let mut resource = Self::new(KindRef::Shared(kind.clone()), true, storage);
        resource.definition = Some(kind.into());
        resource
    }

    /// Whether objects are namespaced.
    pub fn namespaced(&self) -> bool {
        self.kind.scope() == Scope::Namespaced
    }

    /// The key of one object.
    pub fn key(&self, namespace: &str, name: &str) -> Key {
        let slash = if self.namespaced() { "/" } else { "" };
        let namespace = if self.namespaced() { namespace } else { "" };
        Bytes::from([&self.prefix, namespace, slash, name].concat())
    }

    /// The prefix of all objects in the store.
    pub(crate) fn store_prefix(&self) -> &str {
        &self.prefix
    }

    /// The prefix of all objects, or of those in one namespace.
    pub fn prefix(&self, namespace: &str) -> Key {
        if namespace.is_empty() || !self.namespaced() {
            Bytes::from(self.prefix.clone())
        } else {
            self.key(namespace, "")
        }
    }

    /// A stored object as this resource serves it. Converted forms are cached with the stored one,
    /// so that readers of the same version share them.
    pub fn serve<'a>(&self, object: &'a Stored) -> Served<'a> {
        if !self.reshapes(object) {
            return Served::Stored(object);
        }
        let convert = || {
            let mut converted = self.parse(object);
            if self.storage.is_none() && converted == object.parse() {
                return None;
            }
            if let Some(metadata) = converted.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.shift_remove("resourceVersion");
            }
            let encoded = encode::object(self.schema, &converted);
            // Conversion without a webhook keeps metadata and adds defaults at most.
            let draft = Draft::converted(object, encoded).ok()?;
            Some(Arc::new(Stored::stamp(draft, object.revision)))
        };
        let made = match &self.definition {
            // A different schema of the same version is a different form.
            Some(kind) => object.converted(&kind.form(), convert),
            None => object.converted(&self.api_version, convert),
        };
        made.map_or(Served::Stored(object), Served::Converted)
    }

    /// Whether an object may differ from its stored form: another version, or a custom resource
    /// from before its definition changed.
    fn reshapes(&self, object: &Stored) -> bool {
        if object.is_converted() {
            return false;
        }
        let older = |kind: &Shared<CustomKind>| object.revision < kind.since;
        self.storage.is_some() || self.definition.as_ref().is_some_and(older)
    }

    /// Whether an object is served exactly as stored.
    pub fn serves_as_stored(&self, object: &Stored) -> bool {
        !self.reshapes(object)
    }

    /// The topology for managedFields and apply.
    pub fn root(&self) -> Root<'_> {
        match (self.schema, &self.definition) {
            (Some(schema), _) => Root::Typed(schema),
            (None, Some(definition)) => Root::Custom(definition.open_api()),
            (None, None) => Root::Unknown,
        }
    }

    /// The paths of a custom resource's Scale.
    pub fn scale(&self) -> Option<ScalePaths> {
        self.definition.as_ref()?.scale.clone()
    }

    /// A stored object, parsed, as this resource serves it.
    pub fn parse(&self, object: &Stored) -> Object {
        let parsed = object.parse();
        match &self.definition {
            Some(kind) if self.reshapes(object) => kind.read_stored(parsed),
            _ if self.storage.is_some() => self.kind.from_stored(parsed),
            _ => parsed,
        }
    }

    /// The discovery data of a subresource: group and version if they differ from the resource's,
    /// kind, verbs.
    pub fn subresource(
        &self,
        name: &str,
    ) -> (&'static str, &'static str, &str, &'static [&'static str]) {
        let own = self.kind.names().kind.as_str();
        match self.kind.subresource_info(name) {
            Some(info) => {
                let kind = if info.kind.is_empty() { own } else { info.kind };
                (info.group, info.version, kind, info.verbs)
            }
            None => ("", "", own, &["get", "patch", "update"]),
        }
    }

    /// Stored objects as this resource serves them, where [`Resource::serve`] does not suffice: a
    /// webhook converts them, or fields of this version are selectable.
    pub async fn convert_all(
        &self,
        mut objects: Vec<Arc<Stored>>,
    ) -> Result<Vec<Arc<Stored>>, Status> {
        let Some(kind) = self.definition.as_ref().filter(|_| self.converts()) else {
            return Ok(objects);
        };
        let form = kind.form();
        let mut places = Vec::new();
        for (place, object) in objects.iter_mut().enumerate() {
            if object.is_converted() || object.is_of(&self.api_version) {
                continue;
            }
            match object
                .known_form(&form)
                .filter(|known| known.is_converted())
            {
                Some(known) => *object = known,
                None => places.push(place),
            }
        }
        let others: Vec<Arc<Stored>> = places.iter().map(|at| objects[*at].clone()).collect();
        if others.is_empty() {
            return Ok(objects);
        }
        let convert = |others| self.convert_stored(kind, others);
        let made = self.conversions.share(&form, &others, convert).await?;
        for (place, made) in places.into_iter().zip(made) {
            objects[place] = made;
        }
        Ok(objects)
    }

    /// Stored objects of other versions in this one.
    async fn convert_stored(
        &self,
        kind: &CustomKind,
        objects: Vec<Arc<Stored>>,
    ) -> Result<Vec<Arc<Stored>>, Status> {
        let form = kind.form();
        let given = objects.iter().map(|object| {
            let mut object = object.parse();
            kind.read_own(&mut object);
            object
        });
        let made = self.convert(given.collect()).await?;
        let pairs = objects.iter().zip(made);
        let made = pairs.map(|(stored, made)| {
            let made = Arc::new(self.converted_form(stored, made)?);
            stored.keep_form(&form, &made);
            Ok(made)
        });
        made.collect()
    }

    /// As [`Resource::convert_all`], for one object.
    pub async fn convert_one(&self, object: Arc<Stored>) -> Result<Arc<Stored>, Status> {
        if !self.converts() {
            return Ok(object);
        }
        let mut objects = self.convert_all(vec![object]).await?;
        objects
            .pop()
            .ok_or_else(|| Status::internal("an object is lost"))
    }

    /// A stored object, parsed, as this resource serves it; by a conversion webhook if there is
    /// one.
    pub async fn parse_converted(&self, object: &Arc<Stored>) -> Result<Object, Status> {
        if !self.converts() {
            return Ok(self.parse(object));
        }
        let object = self.convert_one(object.clone()).await?;
        Ok(self.parse(&object))
    }

    /// Whether objects of other versions are converted individually.
    pub fn converts(&self) -> bool {
        self.definition.as_ref().is_some_and(|kind| {
            let selects = self.storage.is_some() && !kind.selectable_names().is_empty();
            kind.conversion.is_some() || selects
        })
    }

    /// Converts objects of other versions to this one.
    pub async fn convert(&self, objects: Vec<Object>) -> Result<Vec<Object>, Status> {
        let Some(kind) = self.definition.as_ref().filter(|_| !objects.is_empty()) else {
            return Ok(objects);
        };
        let Some(conversion) = &kind.conversion else {
            let read = objects.into_iter().map(|object| kind.read_stored(object));
            return Ok(read.collect());
        };
        let from = objects[0].get("apiVersion").and_then(Value::as_str);
        let from = from.unwrap_or_default().to_owned();
        let mut made = conversion
            .convert(objects, &from, &self.api_version)
            .await?;
        for object in &mut made {
            kind.settle_converted(object).map_err(Status::internal)?;
        }
        Ok(made)
    }

    /// The stored form of a converted object.
    fn converted_form(&self, stored: &Stored, mut made: Object) -> Result<Stored, Status> {
        if let Some(metadata) = made.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.shift_remove("resourceVersion");
        }
        let encoded = encode::object(self.schema, &made);
        let fields = self.kind.selectable_fields(&made);
        let draft = Draft::encoded(&made, encoded, fields).map_err(Status::internal)?;
        Ok(Stored::stamp(draft, stored.revision).marked_converted())
    }

    /// `deployments.apps`, as in messages.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }
}

/// A stored object, or its form in another version.
pub enum Served<'a> {
    Stored(&'a Stored),
    Converted(Arc<Stored>),
}

impl Deref for Served<'_> {
    type Target = Stored;

    fn deref(&self) -> &Stored {
        match self {
            Self::Stored(object) => object,
            Self::Converted(object) => object,
        }
    }
}

/// `v1` for the core group, `group/version` for others.
pub fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

/// The served kinds, which change over time.
pub struct Registry {
    table: ArcSwap<Table>,
}

impl Registry {
    /// The built-in kinds that are served by default.
    pub fn builtin() -> Arc<Self> {
        Self::builtin_and(&[])
    }

    /// The built-in kinds that are served by default, and those of these group versions.
    pub fn builtin_and(optional: &[String]) -> Arc<Self> {
        let all = kinds::all().iter().copied();
        Self::with(
            all.filter(|kind| kind.is_on_by_default() || optional.contains(&version_of(*kind))),
        )
    }

    /// The group versions that are not served by default.
    pub fn optional_versions() -> Vec<String> {
        let kinds = kinds::all().iter().copied();
        let optional = kinds.filter(|kind| !kind.is_on_by_default());
        let versions: BTreeSet<String> = optional.map(version_of).collect();
        versions.into_iter().collect()
    }

    /// Exactly these kinds.
    pub fn with(kinds: impl IntoIterator<Item = &'static dyn Kind>) -> Arc<Self> {
        let all = builtin(&kinds.into_iter().collect::<Vec<_>>());
        Arc::new(Self {
            table: ArcSwap::from_pointee(Table::new(all)),
        })
    }

    /// The current table.
    pub fn table(&self) -> arc_swap::Guard<Arc<Table>> {
        self.table.load()
    }

    /// The current table, owned.
    pub fn kept_table(&self) -> Arc<Table> {
        self.table.load_full()
    }

    /// The resource at a path.
    pub fn get(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.table().get(group, version, plural).cloned()
    }

    /// The resource of a store key.
    pub fn by_key(&self, key: &[u8]) -> Option<Arc<Resource>> {
        let text = std::str::from_utf8(key).ok()?;
        let mut parts = text.strip_prefix(ROOT)?.splitn(3, '/');
        let (group, plural, rest) = (parts.next()?, parts.next()?, parts.next()?);
        let prefix = &text[..text.len() - rest.len()];
        let group = if group == "core" { "" } else { group };
        self.table().by_prefix(group, plural, prefix).cloned()
    }

    /// Serves the versions of a custom resource instead of its previous ones; the first is the
    /// storage version, and is served only if `serves_stored`. They are listed in discovery if
    /// the definition is established.
    pub fn define(
        &self,
        versions: Vec<Arc<CustomKind>>,
        serves_stored: bool,
        is_established: bool,
    ) {
        let Some((first, others)) = versions.split_first() else {
            return;
        };
        let stored = Arc::new(Resource::custom(first.clone(), None));
        let mut added: Vec<Arc<Resource>> = Vec::new();
        added.extend(serves_stored.then(|| stored.clone()));
        for version in others {
            added.push(Arc::new(Resource::custom(
                version.clone(),
                Some(stored.clone()),
            )));
        }
        self.table
            .rcu(|table| table.define(&stored.group, &stored.plural, &added, is_established));
    }

    /// Lists a custom resource in discovery, if it is served.
    pub fn establish(&self, group: &str, plural: &str) {
        self.table
            .rcu(|table| match table.establish(group, plural) {
                Some(next) => Arc::new(next),
                None => table.clone(),
            });
    }

    /// Stops serving a custom resource.
    pub fn undefine(&self, group: &str, plural: &str) {
        self.table
            .rcu(|table| table.define(group, plural, &[], false));
    }
}

fn version_of(kind: &dyn Kind) -> String {
    let names = kind.names();
    api_version(&names.group, &names.version)
}

/// Built-in kinds in order, linked to their storage versions.
fn builtin(kinds: &[&'static dyn Kind]) -> Vec<Arc<Resource>> {
    let stored = |name: &str| {
        kinds
            .iter()
            .copied()
            .find(|kind| kind.schema() == Some(name))
    };
    let of = |kind: &&'static dyn Kind| {
        let storage = kind.stored_as().and_then(stored);
        let storage =
            storage.map(|kind| Arc::new(Resource::new(KindRef::Static(kind), false, None)));
        Arc::new(Resource::new(KindRef::Static(*kind), false, storage))
    };
    kinds.iter().map(of).collect()
}
