//! A snapshot of the registry. Built-in kinds are shared by all snapshots. Definitions are kept in
//! chunks: a change copies one chunk and the list of chunks, so that adding many definitions takes
//! linear time, and readers take no lock.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use machinery::text;

use crate::Resource;

/// Maximum definitions of a chunk.
const CHUNK: usize = 64;

/// The kinds served in one snapshot.
pub struct Table {
    builtin: Arc<Builtin>,
    custom: Definitions,
    /// All resources by kind, built on the first lookup.
    by_kind: OnceLock<HashMap<String, Vec<Arc<Resource>>>>,
    /// Grows with every change, for ETags.
    pub generation: u64,
}

/// The constant part.
#[derive(Default)]
struct Builtin {
    /// In discovery's order.
    all: Vec<Arc<Resource>>,
    /// By plural, which is nearly unique: every request looks here.
    by_plural: HashMap<String, Vec<Arc<Resource>>>,
    groups: HashSet<String>,
}

impl Builtin {
    fn new(all: Vec<Arc<Resource>>) -> Self {
        let mut builtin = Self::default();
        for resource in &all {
            let plural = resource.plural.clone();
            let same = builtin.by_plural.entry(plural).or_default();
            // The last of the same path replaces earlier ones.
            same.retain(|known| {
                (&known.group, &known.version) != (&resource.group, &resource.version)
            });
            same.push(resource.clone());
            builtin.groups.insert(resource.group.clone());
        }
        builtin.all = all;
        builtin
    }

    fn of_plural(&self, plural: &str) -> &[Arc<Resource>] {
        self.by_plural.get(plural).map_or(&[], Vec::as_slice)
    }
}

/// One custom resource.
#[derive(Clone)]
struct Definition {
    /// Its served versions: at least one.
    versions: Arc<[Arc<Resource>]>,
    /// Whether its definition has the condition Established.
    is_established: bool,
}

fn key(definition: &Definition) -> (&str, &str) {
    let first = definition.versions.first();
    first.map_or(("", ""), |first| (&first.plural, &first.group))
}

/// Custom resources sorted by plural and group. No chunk is empty.
#[derive(Default)]
struct Definitions {
    chunks: Vec<Arc<Vec<Definition>>>,
}

impl Definitions {
    /// The chunk that contains a key, or into which it would be inserted.
    fn chunk(&self, of: (&str, &str)) -> usize {
        let starts_before = |chunk: &Arc<Vec<Definition>>| chunk.first().map(key) <= Some(of);
        self.chunks.partition_point(starts_before).saturating_sub(1)
    }

    fn get(&self, plural: &str, group: &str) -> Option<&Definition> {
        let wanted = (plural, group);
        let chunk = self.chunks.get(self.chunk(wanted))?;
        let at = chunk.binary_search_by(|one| key(one).cmp(&wanted)).ok()?;
        chunk.get(at)
    }

    fn all(&self) -> impl Iterator<Item = &Definition> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    /// The same with other versions of one resource; without versions it is removed.
    fn with(&self, wanted: (&str, &str), definition: Definition) -> Self {
        let mut chunks = self.chunks.clone();
        let at = self.chunk(wanted);
        let mut chunk = chunks.get(at).map(|known| Vec::clone(known));
        let chunk = chunk.get_or_insert_default();
        match chunk.binary_search_by(|one| key(one).cmp(&wanted)) {
            Ok(place) if definition.versions.is_empty() => drop(chunk.remove(place)),
            Ok(place) => chunk[place] = definition,
            Err(_) if definition.versions.is_empty() => {}
            Err(place) => chunk.insert(place, definition),
        }
        let mut parts = vec![std::mem::take(chunk)];
        if parts[0].len() > CHUNK {
            let half = parts[0].split_off(CHUNK / 2);
            parts.push(half);
        }
        parts.retain(|part| !part.is_empty());
        let end = chunks.len().min(at + 1);
        chunks.splice(at..end, parts.into_iter().map(Arc::new));
        Self { chunks }
    }
}

impl Table {
    pub(crate) fn new(builtin: Vec<Arc<Resource>>) -> Self {
        Self {
            builtin: Arc::new(Builtin::new(builtin)),
            custom: Definitions::default(),
            by_kind: OnceLock::new(),
            generation: 1,
        }
    }

    /// The next snapshot, in which a custom resource is served in exactly these versions.
    pub(crate) fn define(
        &self,
        group: &str,
        plural: &str,
        versions: &[Arc<Resource>],
        is_established: bool,
    ) -> Self {
        let definition = Definition {
            versions: versions.into(),
            is_established,
        };
        self.with((plural, group), definition)
    }

    /// The next snapshot, in which a custom resource is listed in discovery; `None` if it is listed already or is not
    /// served.
    pub(crate) fn establish(&self, group: &str, plural: &str) -> Option<Self> {
        let known = self.custom.get(plural, group)?;
        let established = Definition {
            is_established: true,
            ..known.clone()
        };
        (!known.is_established).then(|| self.with((plural, group), established))
    }

    fn with(&self, wanted: (&str, &str), definition: Definition) -> Self {
        Self {
            builtin: self.builtin.clone(),
            custom: self.custom.with(wanted, definition),
            by_kind: OnceLock::new(),
            generation: self.generation + 1,
        }
    }

    /// All resources: built-in ones in discovery's order, then custom ones by name.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        let custom = self.custom.all().flat_map(|one| one.versions.iter());
        self.builtin.all.iter().chain(custom)
    }

    /// The resources of discovery and OpenAPI: as [`Table::all`], but custom ones only once their definitions are
    /// established. Clients that find a resource there may change its definition, and would conflict with the write
    /// of that condition.
    pub fn discoverable(&self) -> impl Iterator<Item = &Arc<Resource>> {
        let custom = self.custom.all().filter(|one| one.is_established);
        let custom = custom.flat_map(|one| one.versions.iter());
        self.builtin.all.iter().chain(custom)
    }

    /// The resources with this plural, in this group and possibly in others.
    fn same<'a>(&'a self, group: &str, plural: &str) -> impl Iterator<Item = &'a Arc<Resource>> {
        let builtin = self.builtin.of_plural(plural).iter();
        let custom = self.custom.get(plural, group);
        builtin.chain(custom.into_iter().flat_map(|one| one.versions.iter()))
    }

    /// The resource at a path.
    pub fn get(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        let mut same = self.same(group, plural);
        same.find(|known| known.version == version && text::same(&known.group, group))
    }

    /// The resource of a kind.
    pub fn of_kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Resource>> {
        let by_kind = self.by_kind.get_or_init(|| {
            let mut by_kind: HashMap<String, Vec<Arc<Resource>>> = HashMap::new();
            for resource in self.all() {
                let kind = resource.kind.names().kind.to_owned();
                by_kind.entry(kind).or_default().push(resource.clone());
            }
            by_kind
        });
        let mut same = by_kind.get(kind)?.iter();
        same.find(|known| known.group == group && known.version == version)
    }

    /// The resource whose objects have a prefix in the store.
    pub(crate) fn by_prefix(
        &self,
        group: &str,
        plural: &str,
        prefix: &str,
    ) -> Option<&Arc<Resource>> {
        let mut same = self.same(group, plural);
        same.find(|known| known.storage.is_none() && known.store_prefix() == prefix)
    }

    /// All resources that serve the same objects, including itself.
    pub fn same_objects<'a>(
        &'a self,
        resource: &'a Resource,
    ) -> impl Iterator<Item = &'a Resource> {
        let same = self.same(&resource.group, &resource.plural);
        same.map(|known| &**known)
            .filter(|known| known.store_prefix() == resource.store_prefix())
    }

    /// All served versions of a resource; for a custom one the storage version comes first if it is
    /// served.
    pub fn versions<'a>(
        &'a self,
        group: &'a str,
        plural: &str,
    ) -> impl Iterator<Item = &'a Arc<Resource>> {
        let same = self.same(group, plural);
        same.filter(move |known| text::same(&known.group, group))
    }

    /// Any served version of a resource.
    pub fn any_version(&self, group: &str, plural: &str) -> Option<&Arc<Resource>> {
        let mut same = self.same(group, plural);
        same.find(|known| text::same(&known.group, group))
    }

    /// Whether a resource is built in, in any version. A definition of the same name would share its objects.
    pub fn is_built_in(&self, group: &str, plural: &str) -> bool {
        let mut same = self.builtin.of_plural(plural).iter();
        same.any(|known| text::same(&known.group, group))
    }

    /// Whether a group is built in: upstream serves its paths by a router.
    pub fn has_router(&self, group: &str) -> bool {
        self.builtin.groups.contains(group)
    }

    /// Whether discovery has a group and version.
    pub fn serves(&self, group: &str, version: &str) -> bool {
        let mut all = self.discoverable();
        all.any(|known| text::same(&known.group, group) && known.version == version)
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::Registry;
    use apiextensions::{CustomKind, Schemas};

    fn define(registry: &Registry, plural: &str, versions: &[&str]) {
        let versions: Vec<_> = versions.iter().map(|name| json!({"name": name})).collect();
        let definition = json!({"spec": {"group": "example.com", "scope": "Cluster",
            "versions": versions, "names": {"kind": plural, "plural": plural}}});
        let schemas = Arc::new(Schemas::new(definition.to_string().into()));
        let read = |version| CustomKind::read(&definition, version, schemas.clone(), "v1", 1);
        let kinds = versions.iter().map(|version| Arc::new(read(version)));
        registry.define(kinds.collect(), true, true);
    }

    fn names(table: &Table) -> Vec<String> {
        let custom = table.all().filter(|one| one.custom);
        let names: Vec<_> = custom
            .map(|one| format!("{}/{}", one.plural, one.version))
            .collect();
        for resource in table.all() {
            let found = table.get(&resource.group, &resource.version, &resource.plural);
            let found = found.unwrap_or_else(|| panic!("{} is not found", resource.plural));
            assert_eq!(found.api_version, resource.api_version);
            let kind = &resource.kind.names().kind;
            let found = table.of_kind(&resource.group, &resource.version, kind);
            assert!(found.is_some_and(|found| found.kind.names().kind == *kind));
        }
        names
    }

    /// Names in no particular order.
    fn plural(n: usize) -> String {
        format!("things{}", n * 7919 % 1000)
    }

    #[test]
    fn definitions_are_added_changed_and_removed_and_readers_keep_their_snapshot() {
        let registry = Registry::builtin();
        let empty = registry.kept_table();
        for n in 0..500 {
            define(&registry, &plural(n), &["v1", "v2"]);
        }
        let full = registry.kept_table();
        let mut expected: Vec<_> = (0..500).map(plural).collect();
        expected.sort();
        let both = |name: &String| [format!("{name}/v1"), format!("{name}/v2")];
        assert_eq!(
            names(&full),
            expected.iter().flat_map(both).collect::<Vec<_>>()
        );
        for n in (0..500).filter(|n| n % 5 != 0) {
            registry.undefine("example.com", &plural(n));
        }
        registry.undefine("example.com", "none");
        define(&registry, &plural(0), &["v1"]);
        let left = names(&registry.table());
        assert_eq!(left.len(), 199);
        assert_eq!(
            registry.table().versions("example.com", &plural(0)).count(),
            1
        );
        assert_eq!(
            names(&full).len(),
            1000,
            "a moment that is kept stays as it is"
        );
        assert!(names(&empty).is_empty());
        for n in (0..500).step_by(5) {
            registry.undefine("example.com", &plural(n));
        }
        assert!(names(&registry.table()).is_empty());
        assert!(registry.table().custom.chunks.is_empty());
    }

    #[test]
    fn a_resource_is_served_before_and_discovered_after_its_definition_is_established() {
        let registry = Registry::builtin();
        let definition = json!({"spec": {"group": "example.com", "scope": "Cluster",
            "names": {"kind": "Thing", "plural": "things"}}});
        let schemas = Arc::new(Schemas::new(definition.to_string().into()));
        let version = json!({"name": "v1"});
        let kind = CustomKind::read(&definition, &version, schemas, "v1", 1);
        registry.define(vec![Arc::new(kind)], true, false);
        let state = || {
            let table = registry.kept_table();
            let custom = |one: &&Arc<Resource>| one.custom;
            assert!(table.get("example.com", "v1", "things").is_some());
            assert_eq!(table.all().filter(custom).count(), 1);
            let found = table.discoverable().filter(custom).count();
            assert_eq!(found == 1, table.serves("example.com", "v1"));
            (found, table.generation)
        };
        let before = state();
        registry.establish("example.com", "others");
        assert_eq!((state(), before.0), (before, 0));
        registry.establish("example.com", "things");
        let after = state();
        assert_eq!(after, (1, before.1 + 1));
        registry.establish("example.com", "things");
        assert_eq!(state(), after);
    }

    #[test]
    fn a_change_copies_one_chunk() {
        let registry = Registry::with([]);
        for n in 0..1000 {
            define(&registry, &plural(n), &["v1"]);
        }
        let before = registry.kept_table();
        define(&registry, "things500", &["v1"]);
        let after = registry.kept_table();
        let chunks = |table: &Table| table.custom.chunks.clone();
        let (before, after) = (chunks(&before), chunks(&after));
        assert!(
            before.len() < 1000 * 2 / CHUNK + 2,
            "{} chunks",
            before.len()
        );
        let same = before.iter().zip(&after).filter(|(a, b)| Arc::ptr_eq(a, b));
        assert_eq!(
            (same.count() + 1, after.len()),
            (before.len(), before.len())
        );
    }
}
