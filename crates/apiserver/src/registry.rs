//! The kinds that are served, by group, version and plural name. Built-in kinds come from
//! `kinds`; others can be added and removed while the server runs: readers see one table or
//! the next, never a mixture.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Deref,
    sync::Arc,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use kinds::{Kind, Scope};
use machinery::schema::{self, Type};
use store::Key;

/// Where all objects live in the store.
const ROOT: &str = "/registry/";

/// A kind, built in or made at run time.
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

/// A kind as it is served.
pub struct Resource {
    pub kind: KindRef,
    pub group: String,
    pub version: String,
    pub plural: String,
    /// `v1` or `apps/v1`.
    pub api_version: String,
    /// Whether items of a list carry apiVersion and kind, as those of custom resources do.
    pub custom: bool,
    /// The kind's type in the schema table; `None` for custom resources.
    pub schema: Option<&'static Type>,
    prefix: String,
}

impl Resource {
    fn new(kind: KindRef, custom: bool) -> Self {
        let names = kind.names().clone();
        let group = if names.group.is_empty() {
            "core"
        } else {
            &names.group
        };
        Self {
            prefix: format!("{ROOT}{group}/{}/", names.plural),
            schema: kind.schema().and_then(schema::lookup),
            api_version: api_version(&names.group, &names.version),
            group: names.group,
            version: names.version,
            plural: names.plural,
            custom,
            kind,
        }
    }

    /// Whether objects live in namespaces.
    pub fn namespaced(&self) -> bool {
        self.kind.scope() == Scope::Namespaced
    }

    /// The key of one object.
    pub fn key(&self, namespace: &str, name: &str) -> Key {
        let slash = if self.namespaced() { "/" } else { "" };
        let namespace = if self.namespaced() { namespace } else { "" };
        Bytes::from([&self.prefix, namespace, slash, name].concat())
    }

    /// The prefix of all objects, or of those in one namespace.
    pub fn prefix(&self, namespace: &str) -> Key {
        if namespace.is_empty() || !self.namespaced() {
            Bytes::from(self.prefix.clone())
        } else {
            self.key(namespace, "")
        }
    }

    /// `deployments.apps`, as messages name it.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
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

/// One moment of the registry.
#[derive(Default)]
pub struct Table {
    /// In the order they were added, which is discovery's order.
    all: Vec<Arc<Resource>>,
    by_path: HashMap<String, HashMap<String, HashMap<String, Arc<Resource>>>>,
    by_prefix: BTreeMap<String, Arc<Resource>>,
    /// Grows with every change, for ETags.
    pub generation: u64,
}

impl Table {
    fn of(all: Vec<Arc<Resource>>, generation: u64) -> Self {
        let mut table = Self {
            generation,
            ..Self::default()
        };
        for resource in &all {
            let versions = table.by_path.entry(resource.group.clone()).or_default();
            let resources = versions.entry(resource.version.clone()).or_default();
            resources.insert(resource.plural.clone(), resource.clone());
            table
                .by_prefix
                .entry(resource.prefix.clone())
                .or_insert_with(|| resource.clone());
        }
        table.all = all;
        table
    }

    /// All resources, in discovery's order.
    pub fn all(&self) -> &[Arc<Resource>] {
        &self.all
    }

    /// The resource at a path.
    pub fn get(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.by_path.get(group)?.get(version)?.get(plural)
    }

    /// Any served version of a resource.
    pub fn any_version(&self, group: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.by_path
            .get(group)?
            .values()
            .find_map(|resources| resources.get(plural))
    }

    /// Whether a group (in a version) is served at all.
    pub fn serves(&self, group: &str, version: &str) -> bool {
        self.by_path
            .get(group)
            .is_some_and(|versions| versions.contains_key(version))
    }
}

/// The served kinds, changing over time.
pub struct Registry {
    table: ArcSwap<Table>,
}

impl Registry {
    /// The built-in kinds.
    pub fn builtin() -> Arc<Self> {
        Self::with(kinds::all().iter().copied())
    }

    /// Exactly these kinds.
    pub fn with(kinds: impl IntoIterator<Item = &'static dyn Kind>) -> Arc<Self> {
        let of = |kind| Arc::new(Resource::new(KindRef::Static(kind), false));
        let all = kinds.into_iter().map(of).collect();
        Arc::new(Self {
            table: ArcSwap::from_pointee(Table::of(all, 1)),
        })
    }

    /// The table of this moment.
    pub fn table(&self) -> arc_swap::Guard<Arc<Table>> {
        self.table.load()
    }

    /// The resource at a path.
    pub fn get(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.table().get(group, version, plural).cloned()
    }

    /// The resource a store key belongs to.
    pub(crate) fn by_key(&self, key: &[u8]) -> Option<Arc<Resource>> {
        let text = std::str::from_utf8(key).ok()?;
        let mut slashes = text[ROOT.len().min(text.len())..].match_indices('/');
        let end = ROOT.len() + slashes.nth(1)?.0 + 1;
        self.table().by_prefix.get(text.get(..end)?).cloned()
    }

    /// Adds a kind made at run time, replacing one of the same group, version and plural.
    pub fn insert(&self, kind: Arc<dyn Kind>) {
        let added = Arc::new(Resource::new(KindRef::Shared(kind), true));
        self.table.rcu(|table| {
            let mut all: Vec<_> = table
                .all
                .iter()
                .filter(|other| !same(other, &added))
                .cloned()
                .collect();
            all.push(added.clone());
            Table::of(all, table.generation + 1)
        });
    }

    /// Removes a kind made at run time.
    pub fn remove(&self, group: &str, version: &str, plural: &str) {
        self.table.rcu(|table| {
            let keep = |other: &&Arc<Resource>| {
                !(other.custom
                    && other.group == group
                    && other.version == version
                    && other.plural == plural)
            };
            Table::of(
                table.all.iter().filter(keep).cloned().collect(),
                table.generation + 1,
            )
        });
    }
}

fn same(one: &Resource, other: &Resource) -> bool {
    (&one.group, &one.version, &one.plural) == (&other.group, &other.version, &other.plural)
}
