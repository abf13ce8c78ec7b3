//! Packs objects that have not changed for a while, kind by kind, to save memory in large clusters (see
//! [`crate::packed`]). Secrets are not packed: a dictionary would keep bytes of deleted Secrets in memory.

use std::{collections::HashMap, sync::Arc, time::Duration};

use store::Key;

use crate::{Reader, Resource, Stored, packed::Index};

/// The interval between passes. A pass packs the objects that have not changed since the previous one.
const EVERY: Duration = Duration::from_secs(30);
/// The minimum number of objects to build a dictionary from.
const MIN_OBJECTS: usize = 16;
/// The number of objects that two dictionaries are compared with.
const COMPARED: usize = 16;

/// Packs objects until the future is dropped.
pub async fn pack_at_rest(reader: Reader) {
    let mut packers: HashMap<Key, Packer> = HashMap::new();
    let mut unchanged_since = 0;
    loop {
        tokio::time::sleep(EVERY).await;
        let Ok(now) = reader.revision().await else {
            continue;
        };
        let mut known = std::mem::take(&mut packers);
        for resource in kinds(&reader) {
            let key = resource.prefix("");
            if packers.contains_key(&key) {
                continue;
            }
            let packer = known.remove(&key).unwrap_or_default();
            let packer = pack_kind(&reader, &resource, packer, unchanged_since).await;
            packers.insert(key, packer);
        }
        unchanged_since = now;
    }
}

fn kinds(reader: &Reader) -> Vec<Arc<Resource>> {
    let table = reader.table();
    let wanted = table.all().filter(|resource| !is_secret(resource));
    wanted.cloned().collect()
}

fn is_secret(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.plural == "secrets"
}

async fn pack_kind(
    reader: &Reader,
    resource: &Resource,
    packer: Packer,
    unchanged_since: u64,
) -> Packer {
    let listed = reader.list_readable(&resource.group, &resource.plural);
    let Ok(readable) = listed.await else {
        return packer;
    };
    let objects = at_rest(readable.objects(), unchanged_since);
    if objects.is_empty() {
        return packer;
    }
    // Packing takes CPU time: do not block the threads that serve requests.
    let work = tokio::task::spawn_blocking(move || packer.pack(objects));
    work.await.unwrap_or_default()
}

/// Of these objects those at rest that can be packed. None of those at rest keeps its protobuf message.
fn at_rest(mut objects: Vec<Arc<Stored>>, unchanged_since: u64) -> Vec<Arc<Stored>> {
    objects.retain(|object| object.revision <= unchanged_since);
    for object in &objects {
        object.forget_message();
    }
    objects.retain(|object| object.is_loose());
    objects
}

/// Packs the objects of one kind.
#[derive(Default)]
struct Packer {
    /// The most recent dictionary of the kind.
    dictionary: Option<Arc<[u8]>>,
}

impl Packer {
    /// Packs objects with the current dictionary, or with one built from these objects if that packs them better.
    /// If neither fits many of them, another dictionary is built from those.
    fn pack(mut self, mut loose: Vec<Arc<Stored>>) -> Self {
        let Some(index) = self.choose(&loose) else {
            return self;
        };
        loose.retain(|object| !object.pack(&index));
        self.dictionary = Some(index.dictionary().clone());
        if loose.len() < MIN_OBJECTS {
            return self;
        }
        let index = of_samples(&loose);
        for object in loose {
            if !object.pack(&index) {
                object.leave_loose();
            }
        }
        self.dictionary = Some(index.dictionary().clone());
        self
    }

    /// The dictionary to pack these objects with; `None` if there is none and they are too few to build one from. The
    /// current one may be from objects that were still new and had, for example, no status.
    fn choose(&self, loose: &[Arc<Stored>]) -> Option<Index> {
        let current = self.dictionary.clone().map(Index::new);
        if loose.len() < MIN_OBJECTS {
            return current;
        }
        let fresh = of_samples(loose);
        let Some(current) = current else {
            return Some(fresh);
        };
        let step = loose.len().div_ceil(COMPARED);
        // Not the objects that the new dictionary was built from.
        let compared = loose.iter().skip(step / 2).step_by(step);
        let (old, new) = compared.fold((0, 0), |(old, new), object| {
            let bytes = object.bytes();
            (
                old + current.packed_size(&bytes),
                new + fresh.packed_size(&bytes),
            )
        });
        // Objects that share a dictionary save the memory of another one.
        Some(if 4 * new < 3 * old { fresh } else { current })
    }
}

fn of_samples(objects: &[Arc<Stored>]) -> Index {
    let samples: Vec<_> = objects.iter().map(|object| object.bytes()).collect();
    Index::of_samples(&samples)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::Draft;

    fn stored(number: usize, filler: &str) -> Arc<Stored> {
        let json = format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"p{number}","uid":"{number:036}"}},"spec":{{"a":"{filler}"}}}}"#
        );
        let draft = Draft::from_bytes(Bytes::from(json), |_| Vec::new()).unwrap();
        Arc::new(Stored::stamp(draft, 7000 + number as u64))
    }

    #[test]
    fn objects_at_rest_are_packed_and_read_as_before() {
        let (one, other) = ("some text of this kind ".repeat(20), "another ".repeat(60));
        let objects = |filler: &str| -> Vec<_> { (0..40).map(|n| stored(n, filler)).collect() };
        let (first, second) = (objects(&one), objects(&other));
        let packer = Packer::default().pack(first.clone());
        let before = packer.dictionary.clone().unwrap();
        let packer = packer.pack(second.clone());
        assert_ne!(packer.dictionary.unwrap(), before, "another kind of object");
        for (objects, filler) in [(first, &one), (second, &other)] {
            for (number, object) in objects.iter().enumerate() {
                assert!(!object.is_loose());
                let plain = stored(number, filler);
                assert_eq!(object.bytes(), plain.bytes());
                assert_eq!(object.size(), plain.size());
                assert_eq!(object.metadata(), plain.metadata());
                assert_eq!(object.item(), plain.item());
                assert_eq!(object.unstamped(), plain.unstamped());
                assert_eq!(object.parse(), plain.parse());
            }
        }
    }

    #[test]
    fn a_dictionary_of_new_objects_is_replaced_when_they_have_grown() {
        let (spec, status) = ("a part that all have ".repeat(20), "status ".repeat(40));
        let objects = |filler: &str| -> Vec<_> { (0..40).map(|n| stored(n, filler)).collect() };
        let packer = Packer::default().pack(objects(&spec));
        let before = packer.dictionary.clone().unwrap();
        let grown = objects(&format!("{spec}{status}"));
        let size = Index::new(before.clone()).packed_size(&grown[1].bytes());
        assert!(
            size < grown[1].size() / 2,
            "the first dictionary would do: {size}"
        );
        let packer = packer.pack(grown);
        let after = packer.dictionary.clone().unwrap();
        assert_ne!(after, before);
        let packer = packer.pack(objects(&format!("{spec}{status}")));
        assert_eq!(packer.dictionary.unwrap(), after, "it packs them as well");
    }

    #[test]
    fn objects_at_rest_keep_no_protobuf_message() {
        let objects: Vec<_> = (0..3).map(|n| stored(n, &"text".repeat(200))).collect();
        let schema = machinery::schema::lookup("core/v1.Pod").unwrap();
        let messages: Vec<_> = objects.iter().map(|one| one.message(schema)).collect();
        assert!(objects.iter().all(|object| object.keeps_message()));
        assert_eq!(at_rest(objects.clone(), 7001).len(), 2);
        let kept: Vec<_> = objects
            .iter()
            .map(|object| object.keeps_message())
            .collect();
        assert_eq!(kept, [false, false, true]);
        assert_eq!(objects[0].message(schema), messages[0]);
    }

    #[test]
    fn a_few_objects_stay_as_they_are() {
        let objects: Vec<_> = (0..3).map(|n| stored(n, &"text".repeat(200))).collect();
        assert!(Packer::default().pack(objects.clone()).dictionary.is_none());
        assert!(objects.iter().all(|object| object.is_loose()));
    }
}
