//! The OpenAPI v2 document in pieces: built-in kinds and aggregated servers are one, and some custom
//! resources each are another: compressed together they are much smaller, since they are alike. When a definition changes,
//! only the piece that it is in is made again.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Weak},
};

use machinery::{Object, Value, json::json};
use sha2::{Digest, Sha256};

use super::{
    Form, Remote, custom,
    document::{Maker, Parsed},
    gnostic, hex,
    packed::{Packed, Segment},
    place, remote,
};
use registry::{Resource, Table};

/// The average number of custom resources in a piece, and the maximum.
const USUAL: u64 = 16;
const MOST: usize = 64;
/// The minimum number of pieces for a separate thread.
const LEAST_SHARE: usize = 2;

/// The inputs of the document, by which its pieces are found.
pub(super) struct Sources {
    /// Custom resources served here, sorted by name, as they are together in pieces.
    custom: Vec<Vec<Arc<Resource>>>,
    /// The hashes of aggregated servers' documents.
    with: Vec<String>,
}

impl Sources {
    pub(super) fn new(table: &Table, remote: &[Remote]) -> Self {
        let served: HashSet<&str> = remote.iter().map(|one| one.place.as_str()).collect();
        let is_own = |one: &&Arc<Resource>| {
            one.custom && (served.is_empty() || !served.contains(&*place(&one.group, &one.version)))
        };
        let mut custom: Vec<_> = table.discoverable().filter(is_own).cloned().collect();
        // The versions of a definition are adjacent: its bytes are parsed once for all of them.
        custom.sort_by(|one, other| {
            let one = (&one.group, &one.plural, &one.version);
            one.cmp(&(&other.group, &other.plural, &other.version))
        });
        let with = remote.iter().map(|one| one.hash.clone()).collect();
        let custom = in_pieces(custom);
        Self { custom, with }
    }

    /// The document's hash, computed without making it.
    pub(super) fn hash(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(super::descriptions::build());
        for with in &self.with {
            hash.update((with.len() as u64).to_le_bytes());
            hash.update(with);
        }
        let all = self.custom.iter().flatten();
        let kinds = all.filter_map(|one| one.definition.as_ref());
        kinds.for_each(|kind| hash.update(kind.published()));
        hex(&hash.finalize())
    }
}

/// Divides sorted resources. Where a piece begins depends on names only, so that a new or removed definition changes one
/// piece, or two.
fn in_pieces(sorted: Vec<Arc<Resource>>) -> Vec<Vec<Arc<Resource>>> {
    let mut pieces: Vec<Vec<Arc<Resource>>> = Vec::new();
    for resource in sorted {
        let is_first = |one: &Arc<Resource>| {
            let mut hash = DefaultHasher::new();
            (&one.group, &one.plural).hash(&mut hash);
            hash.finish().is_multiple_of(USUAL)
        };
        match pieces.last_mut() {
            Some(piece) if is_same_definition(piece, &resource) => piece.push(resource),
            Some(piece) if piece.len() < MOST && !is_first(&resource) => piece.push(resource),
            _ => pieces.push(vec![resource]),
        }
    }
    pieces
}

/// Whether the last resource of a piece is another version of the same definition.
fn is_same_definition(piece: &[Arc<Resource>], resource: &Resource) -> bool {
    let last = piece.last();
    last.is_some_and(|last| last.group == resource.group && last.plural == resource.plural)
}

/// The pieces in one encoding.
#[derive(Default)]
pub(super) struct Pieces {
    base: Option<Arc<Base>>,
    /// By the address of the first resource, which is not reused while the piece refers to it.
    custom: HashMap<usize, Piece>,
}

/// Everything except custom resources.
pub(super) struct Base {
    with: Vec<String>,
    /// The names of definitions and of shared parameters.
    definitions: HashSet<String>,
    parameters: BTreeSet<String>,
    /// The parts before, between and after the paths and definitions of custom resources.
    start: Segment,
    middle: Segment,
    end: Segment,
}

/// The piece of some custom resources.
struct Piece {
    of: Vec<Weak<Resource>>,
    /// Those whose definitions are left out, because the base has others of the same names.
    hidden: HashSet<usize>,
    /// Protobuf uses only the first.
    paths: Segment,
    definitions: Segment,
}

fn address(of: &[Arc<Resource>]) -> usize {
    of.first().map_or(0, |first| Arc::as_ptr(first) as usize)
}

impl Pieces {
    fn piece(&self, of: &[Arc<Resource>]) -> Option<&Piece> {
        let piece = self.custom.get(&address(of))?;
        let mut pairs = piece.of.iter().zip(of);
        let is_same = piece.of.len() == of.len()
            && pairs.all(|(one, other)| std::ptr::eq(one.as_ptr(), Arc::as_ptr(other)));
        is_same.then_some(piece)
    }

    fn base(&self, sources: &Sources) -> Option<&Arc<Base>> {
        self.base.as_ref().filter(|base| base.with == sources.with)
    }

    /// The document, if all its pieces exist.
    pub(super) fn join(&self, sources: &Sources) -> Option<Packed> {
        let base = self.base(sources)?;
        let pieces = sources.custom.iter().map(|one| self.piece(one));
        let pieces: Vec<&Piece> = pieces.collect::<Option<_>>()?;
        let mut segments = vec![base.start.clone()];
        segments.extend(pieces.iter().map(|one| one.paths.clone()));
        segments.push(base.middle.clone());
        segments.extend(pieces.iter().map(|one| one.definitions.clone()));
        segments.push(base.end.clone());
        segments.retain(|segment| !segment.is_empty());
        Some(Packed::Segments(segments.into()))
    }

    /// Stores new pieces, and drops those that these sources do not consist of and those that conflict with the base.
    pub(super) fn take(&mut self, made: Made, sources: &Sources) {
        let base = &made.base;
        let known = sources.custom.iter().filter(|of| self.piece(of).is_some());
        let current: HashSet<usize> = known.map(|of| address(of)).collect();
        self.custom.retain(|address, piece| {
            let mut members = piece.of.iter().enumerate();
            current.contains(address)
                && members.all(|(at, one)| {
                    let one = one.upgrade();
                    one.is_some_and(|one| piece.hidden.contains(&at) == base.has(&one))
                })
        });
        self.base = Some(made.base);
        self.custom.extend(made.custom);
    }

    /// The missing pieces of a document.
    pub(super) fn missing(&self, sources: &Sources) -> Missing {
        let base = self.base(sources).cloned();
        let lacks = |of: &&Vec<Arc<Resource>>| base.is_some() && self.piece(of).is_none();
        let custom = sources.custom.iter().filter(lacks).cloned().collect();
        Missing {
            base,
            custom,
            with: sources.with.clone(),
        }
    }
}

/// The missing pieces; without a base, only the base.
pub(super) struct Missing {
    base: Option<Arc<Base>>,
    custom: Vec<Vec<Arc<Resource>>>,
    with: Vec<String>,
}

/// New pieces.
pub(super) struct Made {
    base: Arc<Base>,
    custom: Vec<(usize, Piece)>,
}

impl Missing {
    pub(super) fn make(self, maker: &Maker<'_>, remote: &[Remote], form: Form) -> Made {
        let base = self
            .base
            .unwrap_or_else(|| Arc::new(Base::make(maker, remote, self.with, form)));
        let pieces = |of: &[Vec<Arc<Resource>>]| -> Vec<(usize, Piece)> {
            let pieces = of.iter().map(|of| {
                let mut schemas = Parsed::default();
                let parts =
                    |one: &Arc<Resource>| maker.custom_v2(one, &mut schemas, &base.parameters);
                (address(of), Piece::new(of, parts, &base, form))
            });
            pieces.collect()
        };
        let custom = side_by_side(&self.custom, pieces);
        Made { base, custom }
    }
}

/// Makes many pieces on all processors, few on this thread.
fn side_by_side<R: Send>(
    all: &[Vec<Arc<Resource>>],
    pieces: impl Fn(&[Vec<Arc<Resource>>]) -> Vec<R> + Sync,
) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = all.len().div_ceil(threads).max(LEAST_SHARE);
    if all.len() <= share {
        return pieces(all);
    }
    std::thread::scope(|scope| {
        let pieces = &pieces;
        let spawned = all.chunks(share).map(|part| {
            let work = scope.spawn(move || pieces(part));
            (part, work)
        });
        let spawned: Vec<_> = spawned.collect();
        let made = spawned.into_iter().flat_map(|(part, work)| {
            // If it panicked, it panics here again, as it would on one thread.
            work.join().unwrap_or_else(|_| pieces(part))
        });
        made.collect()
    })
}

impl Base {
    /// Whether it has a definition of the same name.
    fn has(&self, resource: &Resource) -> bool {
        self.definitions.contains(&custom::name(resource))
    }

    fn make(maker: &Maker<'_>, remote: &[Remote], with: Vec<String>, form: Form) -> Self {
        let mut whole = maker.v2();
        remote::merge(&mut whole, remote);
        let names = |part: &str| {
            let part = whole[part].as_object().into_iter().flatten();
            part.map(|(name, _)| name.to_string())
        };
        let definitions = names("definitions").collect();
        let parameters = names("parameters").collect();
        let [start, middle, end] = match form {
            Form::Protobuf => [gnostic::v2(&whole), Vec::new(), Vec::new()],
            Form::Json => sections(whole),
        };
        Self {
            with,
            definitions,
            parameters,
            start: Segment::new(&start),
            middle: Segment::new(&middle),
            end: Segment::new(&end),
        }
    }
}

/// The text of a document, split where paths and definitions can be added. Both are never empty.
fn sections(mut whole: Value) -> [Vec<u8>; 3] {
    let mut take = |part: &str| whole.as_object_mut().and_then(|it| it.shift_remove(part));
    let (paths, definitions) = (take("paths"), take("definitions"));
    let entries = |part: Option<Value>| inner(&part.unwrap_or_default());
    let rest = inner(&whole);
    [
        format!("{{\"paths\":{{{}", entries(paths)),
        format!("}},\"definitions\":{{{}", entries(definitions)),
        format!("}},{rest}}}"),
    ]
    .map(String::into_bytes)
}

/// The text of an object without its braces.
fn inner(object: &Value) -> String {
    let text = object.to_string();
    let inner = text.strip_prefix('{').and_then(|it| it.strip_suffix('}'));
    inner.unwrap_or_default().to_owned()
}

impl Piece {
    /// `parts` makes the paths and the definitions of a resource.
    fn new(
        of: &[Arc<Resource>],
        mut parts: impl FnMut(&Arc<Resource>) -> (Object, Object),
        base: &Base,
        form: Form,
    ) -> Self {
        let (mut all_paths, mut all_definitions) = (Vec::new(), Vec::new());
        let mut hidden = HashSet::new();
        for (at, resource) in of.iter().enumerate() {
            let (paths, mut definitions) = parts(resource);
            if base.has(resource) {
                hidden.insert(at);
            }
            definitions.retain(|name, _| !base.definitions.contains(name.as_str()));
            match form {
                // Concatenated protobuf messages are merged.
                Form::Protobuf => {
                    let part = json!({"paths": paths, "definitions": definitions});
                    all_paths.extend(gnostic::v2(&part));
                }
                Form::Json => {
                    all_paths.extend(added(paths));
                    all_definitions.extend(added(definitions));
                }
            }
        }
        Self {
            of: of.iter().map(Arc::downgrade).collect(),
            hidden,
            paths: Segment::new(&all_paths),
            definitions: Segment::new(&all_definitions),
        }
    }
}

/// The text of entries appended to others.
fn added(entries: Object) -> Vec<u8> {
    match inner(&Value::Object(entries)) {
        none if none.is_empty() => Vec::new(),
        entries => format!(",{entries}").into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use apiextensions::{CustomKind, Schemas};
    use http::HeaderMap;
    use http_body_util::BodyExt;
    use registry::Registry;
    use request::Query;

    use super::*;
    use crate::{DocumentRequest, Documents};

    fn define(registry: &Registry, group: &str, plural: &str, field: &str) {
        let schema = json!({"type": "object", "properties": {field: {"type": "string"}}});
        let version = json!({"name": "v1", "schema": {"openAPIV3Schema": schema}});
        let definition = json!({"spec": {
            "group": group, "scope": "Namespaced", "versions": [version],
            "names": {"kind": plural.to_uppercase(), "plural": plural},
        }});
        let schemas = Arc::new(Schemas::new(definition.to_string().into()));
        let kind = CustomKind::read(&definition, &version, schemas, "v1", 1);
        registry.define(vec![Arc::new(kind)], true, true);
    }

    async fn get(
        registry: &Registry,
        documents: &Arc<Documents>,
        accept: &str,
    ) -> (String, Vec<u8>) {
        let headers = HeaderMap::from_iter([(http::header::ACCEPT, accept.parse().unwrap())]);
        let ask = DocumentRequest {
            table: registry.kept_table(),
            documents: documents.clone(),
            remote: Vec::new(),
            headers: &headers,
            query: &Query::default(),
            now: 0,
        };
        let answer = ask.serve("/openapi/v2").await.unwrap().unwrap();
        let etag = answer.headers()["etag"].to_str().unwrap().to_owned();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (etag, body.to_vec())
    }

    fn references(value: &Value, found: &mut Vec<String>) {
        if let Some(target) = value.get("$ref").and_then(Value::as_str) {
            found.push(target.to_owned());
        }
        let below = value.as_object().into_iter().flat_map(|it| it.values());
        let items = value.as_array().into_iter().flatten();
        below.chain(items).for_each(|one| references(one, found));
    }

    #[tokio::test]
    async fn pieces_without_changed_definitions_are_not_rendered_again() {
        let (registry, documents) = (Registry::builtin(), Arc::default());
        let changing = |field: &str| define(&registry, "example.com", "changes", field);
        for number in 0..200 {
            define(&registry, "example.com", &format!("stay{number}"), "a");
        }
        changing("before");
        let json = "application/json";
        let (first, _) = get(&registry, &documents, json).await;
        let pieces = |documents: &Documents| {
            let older = documents.older.lock();
            let pieces = older[Form::Json as usize].custom.values();
            let pieces = pieces.map(|one| (one.of.len(), one.definitions.clone()));
            pieces.collect::<Vec<_>>()
        };
        let before = pieces(&documents);
        changing("after");
        let (second, text) = get(&registry, &documents, json).await;
        assert_ne!(first, second);
        let after = pieces(&documents);
        let count = |pieces: &[(usize, Segment)]| {
            let members: usize = pieces.iter().map(|(members, _)| members).sum();
            (pieces.len(), members)
        };
        assert_eq!(count(&before), count(&after), "the older one is forgotten");
        assert_eq!(count(&after).1, 201);
        let is_kept = |new: &&(usize, Segment)| before.iter().any(|old| old.1.is_same(&new.1));
        let kept = after.iter().filter(is_kept).count();
        assert_eq!((kept + 1, after.len() > 5), (after.len(), true));

        let document: Value = machinery::json::from_slice(&text).unwrap();
        let properties = &document["definitions"]["com.example.v1.CHANGES"]["properties"];
        assert!(properties.get("after").is_some() && properties.get("before").is_none());
        let mut found = Vec::new();
        references(&document, &mut found);
        let missing = found.iter().find(|target| {
            let path = target.trim_start_matches('#').split('/').skip(1);
            let mut path = path;
            path.try_fold(&document, |at, part| at.get(part)).is_none()
        });
        assert_eq!(missing, None, "every reference leads somewhere");
    }

    #[tokio::test]
    async fn a_resource_is_in_one_piece_also_if_definitions_come_in_descending_order() {
        let (registry, documents) = (Registry::builtin(), Arc::default());
        for number in (0..40).rev() {
            define(&registry, "example.com", &format!("kind{number:03}"), "a");
            get(&registry, &documents, "application/json").await;
            let older = documents.older.lock();
            let pieces = older[Form::Json as usize].custom.values();
            let members: usize = pieces.map(|piece| piece.of.len()).sum();
            assert_eq!(members, 40 - number);
        }
    }

    #[tokio::test]
    async fn a_definition_name_is_not_used_twice() {
        let (registry, documents) = (Registry::builtin(), Arc::default());
        define(&registry, "apps.api.k8s.io", "PodList", "a");
        let schema = json!({"type": "object"});
        let version = json!({"name": "v1", "schema": {"openAPIV3Schema": schema}});
        let definition = json!({"spec": {"group": "apps.api.k8s.io", "scope": "Namespaced",
            "versions": [version], "names": {"kind": "Deployment", "plural": "deployments"}}});
        let schemas = Arc::new(Schemas::new(definition.to_string().into()));
        let kind = CustomKind::read(&definition, &version, schemas, "v1", 1);
        registry.define(vec![Arc::new(kind)], true, true);
        let (_, text) = get(&registry, &documents, "application/json").await;
        let text = String::from_utf8(text).unwrap();
        let name = "\"io.k8s.api.apps.v1.Deployment\":";
        assert_eq!(text.matches(name).count(), 1);
    }

    #[tokio::test]
    async fn both_forms_have_one_hash_and_the_same_kinds() {
        let (registry, documents) = (Registry::builtin(), Arc::default());
        define(&registry, "example.com", "things", "a");
        let protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
        let (etag, message) = get(&registry, &documents, protobuf).await;
        assert_eq!(etag, get(&registry, &documents, "application/json").await.0);
        assert!(message.starts_with(b"\n\x032.0"));
        let name = b"com.example.v1.THINGS";
        assert!(message.windows(name.len()).any(|part| part == name));
    }

    #[test]
    fn a_new_definition_changes_few_pieces_and_versions_stay_together() {
        let registry = Registry::builtin();
        for number in 0..300 {
            define(&registry, "example.com", &format!("kind{number:03}"), "a");
        }
        let pieces = || Sources::new(&registry.kept_table(), &[]).custom;
        let before = pieces();
        assert!(before.iter().all(|piece| piece.len() <= MOST));
        assert!((5..100).contains(&before.len()), "{}", before.len());
        define(&registry, "example.com", "kind150b", "a");
        let after = pieces();
        let addresses = |pieces: &[Vec<Arc<Resource>>]| -> HashSet<Vec<usize>> {
            let address = |one: &Arc<Resource>| Arc::as_ptr(one) as usize;
            let of =
                |piece: &Vec<Arc<Resource>>| -> Vec<usize> { piece.iter().map(address).collect() };
            pieces.iter().map(of).collect()
        };
        let (old, new) = (addresses(&before), addresses(&after));
        assert!(new.difference(&old).count() <= 2);
    }
}
