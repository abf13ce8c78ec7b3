//! One object of an informer. An object from an API server in the same process stays in its stored
//! form, shared with the store, and is decoded when it is read; unused decoded forms are dropped.
//! An object from a connection is decoded once and kept.

use std::{
    any::Any,
    borrow::Cow,
    collections::VecDeque,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;

use super::{AnyObject, Labelled, Object, cache::Named};

/// The size of the objects that an informer keeps decoded, in bytes of their stored form: about 2000 pods.
/// The decoded forms take two to three times as much.
const DECODED: usize = 8 << 20;
/// The same at most, while readers come back to more objects than that.
const DECODED_IN_USE: usize = 12 * DECODED;

pub(super) struct Slot {
    form: Form,
    /// What [`Decoded::summarize`] returned for the object.
    summary: Option<Summary>,
}

/// The part of an object that readers need without decoding it.
pub(super) type Summary = Box<dyn Any + Send + Sync>;
/// Returns the summary of an object.
pub(super) type Summarize = Box<dyn Fn(&dyn AnyObject) -> Option<Summary> + Send + Sync>;

enum Form {
    Typed(Arc<dyn AnyObject>),
    Stored(Stored),
}

struct Stored {
    object: feed::Object,
    /// Whether only the metadata is decoded.
    metadata_only: bool,
    /// Whether the object was read since the last sweep.
    is_used: AtomicBool,
    /// Guards the decoded form; held while decoding, so that it happens once.
    decoded: Mutex<Option<Arc<dyn AnyObject>>>,
}

impl Slot {
    pub(super) fn typed(object: Arc<dyn AnyObject>, decoded: &Decoded) -> Arc<Self> {
        Arc::new(Self {
            summary: decoded.summary(&*object),
            form: Form::Typed(object),
        })
    }

    pub(super) fn detached(object: Arc<dyn AnyObject>, summary: Summary) -> Arc<Self> {
        Arc::new(Self {
            form: Form::Typed(object),
            summary: Some(summary),
        })
    }

    /// An object shared with the store; an error if it cannot be decoded.
    pub(super) fn stored(
        object: feed::Object,
        metadata_only: bool,
        decoded: &Decoded,
    ) -> Result<Arc<Self>, serde_json::Error> {
        let first = (decoded.decode)(&text(&*object, metadata_only))?;
        let slot = Arc::new(Self {
            summary: decoded.summary(&*first),
            form: Form::Stored(Stored {
                object,
                metadata_only,
                is_used: AtomicBool::new(false),
                decoded: Mutex::new(Some(first)),
            }),
        });
        decoded.add(&slot);
        Ok(slot)
    }

    /// The object, for a reader of the informer.
    pub(super) fn read(self: &Arc<Self>, decoded: &Decoded) -> Arc<dyn AnyObject> {
        if let Form::Stored(stored) = &self.form {
            stored.is_used.store(true, Ordering::Relaxed);
        }
        self.peek(decoded)
    }

    /// The object, for the cache itself: does not mark the object as used.
    pub(super) fn peek(self: &Arc<Self>, decoded: &Decoded) -> Arc<dyn AnyObject> {
        let stored = match &self.form {
            Form::Typed(object) => return object.clone(),
            Form::Stored(stored) => stored,
        };
        let mut form = stored.decoded.lock();
        if let Some(object) = &*form {
            return object.clone();
        }
        let object = (decoded.decode)(&text(&*stored.object, stored.metadata_only));
        // The same bytes were decoded when the slot was made.
        let object = object.expect("bytes that were decoded before");
        *form = Some(object.clone());
        drop(form);
        decoded.missed(self);
        object
    }

    /// What the informer's builder summarizes of the object.
    pub(super) fn summary(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.summary.as_deref()
    }

    /// The resourceVersion; empty if there is none.
    pub(super) fn version(&self) -> Cow<'_, str> {
        match &self.form {
            Form::Typed(object) => {
                let version = object.meta().resource_version.as_deref();
                version.unwrap_or_default().into()
            }
            Form::Stored(stored) => stored.object.revision().to_string().into(),
        }
    }

    /// Whether both are versions of one object: they have the same uid. Stored objects are not decoded for it.
    pub(super) fn is_same_object(&self, other: &Self) -> bool {
        match (&self.form, &other.form) {
            (Form::Stored(one), Form::Stored(other)) => one.object.uid() == other.object.uid(),
            _ => self.uid() == other.uid(),
        }
    }

    /// The uid; empty if there is none.
    pub(super) fn uid(&self) -> Vec<u8> {
        match &self.form {
            Form::Typed(object) => {
                let uid = object.meta().uid.as_deref();
                uid.unwrap_or_default().into()
            }
            Form::Stored(stored) => stored.object.uid().into(),
        }
    }

    /// The size of the stored form, which determines that of the decoded one.
    fn size(&self) -> usize {
        match &self.form {
            Form::Typed(_) => 0,
            Form::Stored(stored) => stored.object.size(),
        }
    }

    /// Whether it was read since the last call.
    fn was_used(&self) -> bool {
        match &self.form {
            Form::Typed(_) => true,
            Form::Stored(stored) => stored.is_used.swap(false, Ordering::Relaxed),
        }
    }

    #[cfg(test)]
    pub(super) fn is_decoded(&self) -> bool {
        match &self.form {
            Form::Typed(_) => true,
            Form::Stored(stored) => stored.decoded.lock().is_some(),
        }
    }

    /// Drops the decoded form if the object is shared with the store.
    pub(super) fn drop_decoded(&self) {
        if let Form::Stored(stored) = &self.form {
            stored.decoded.lock().take();
        }
    }
}

impl Labelled for Slot {
    fn label(&self, key: &str) -> Option<&str> {
        match &self.form {
            Form::Typed(object) => {
                let labels = object.meta().labels.as_ref()?;
                labels.get(key).map(String::as_str)
            }
            Form::Stored(stored) => stored.object.label(key),
        }
    }
}

impl Named for Slot {
    fn key(&self) -> (&str, &str) {
        match &self.form {
            Form::Typed(object) => {
                let meta = object.meta();
                (
                    meta.namespace.as_deref().unwrap_or_default(),
                    meta.name.as_deref().unwrap_or_default(),
                )
            }
            Form::Stored(stored) => (stored.object.namespace(), stored.object.name()),
        }
    }
}

/// The slots of an informer that are decoded.
pub(super) struct Decoded {
    /// Guards the queue. Never locked while a slot's own lock is held.
    queue: Mutex<Queue>,
    /// The limit of the queue's size after a sweep.
    limit: usize,
    /// Decodes an object of the informer's kind.
    pub(super) decode: Decode,
    /// Summarizes an object when it arrives.
    pub(super) summarize: Option<Summarize>,
}

/// Decodes an object without its managedFields.
pub(super) type Decode = fn(&str) -> Result<Arc<dyn AnyObject>, serde_json::Error>;

fn decode<K: Object>(text: &str) -> Result<Arc<dyn AnyObject>, serde_json::Error> {
    let mut object = K::from_json(text)?;
    object.meta_mut().managed_fields = None;
    Ok(Arc::new(object))
}

/// Slots in the order in which they were decoded, with their sizes. It does not keep replaced slots
/// alive.
struct Queue {
    slots: VecDeque<(Weak<Slot>, usize)>,
    size: usize,
    /// The size above which decoded forms are dropped.
    limit: usize,
}

impl Decoded {
    /// For objects of this kind.
    pub(super) fn new<K: Object>() -> Self {
        let queue = Queue {
            slots: VecDeque::new(),
            size: 0,
            limit: DECODED,
        };
        Self {
            queue: Mutex::new(queue),
            limit: DECODED,
            decode: decode::<K>,
            summarize: None,
        }
    }

    fn summary(&self, object: &dyn AnyObject) -> Option<Summary> {
        (self.summarize.as_ref()?)(object)
    }

    /// Records a decoded slot, and drops decoded forms above the limit: the oldest first that were
    /// not read since the last check.
    fn add(&self, slot: &Arc<Slot>) {
        self.push(&mut self.queue.lock(), slot);
    }

    /// Records a slot that had to be decoded again, and raises the limit by its size: a controller that reads more
    /// objects each time than the limit allows would decode all of them each time.
    fn missed(&self, slot: &Arc<Slot>) {
        let mut queue = self.queue.lock();
        queue.limit = (queue.limit + slot.size()).min(DECODED_IN_USE.max(self.limit));
        self.push(&mut queue, slot);
    }

    fn push(&self, queue: &mut Queue, slot: &Arc<Slot>) {
        let size = slot.size();
        queue.slots.push_back((Arc::downgrade(slot), size));
        queue.size += size;
        // Checks each at most twice.
        let mut looks = 2 * queue.slots.len();
        while queue.size > queue.limit && looks > 0 {
            looks -= 1;
            let Some((oldest, size)) = queue.slots.pop_front() else {
                return;
            };
            match oldest.upgrade() {
                Some(slot) if slot.was_used() => {
                    queue.slots.push_back((oldest, size));
                    continue;
                }
                Some(slot) => slot.drop_decoded(),
                None => {}
            }
            queue.size -= size;
        }
    }

    /// Drops all decoded forms that were not read since the last sweep, and lowers the limit to what is left.
    pub(super) fn sweep(&self) {
        let mut queue = self.queue.lock();
        let mut size = 0;
        queue.slots.retain(|(slot, own)| {
            let Some(slot) = slot.upgrade() else {
                return false;
            };
            let keep = slot.was_used();
            if keep {
                size += own;
            } else {
                slot.drop_decoded();
            }
            keep
        });
        queue.size = size;
        queue.limit = self.limit.max(size);
        let left = queue.slots.len();
        queue.slots.shrink_to(2 * left);
    }
}

/// The JSON of an object without its managedFields: no component reads them, and parsing them takes as
/// long as the rest.
fn text(object: &dyn feed::Stored, metadata_only: bool) -> String {
    let (bytes, place) = (object.bytes(), object.metadata());
    let metadata = &bytes[place.clone()];
    let (before, after) = match managed_fields(metadata) {
        Some(cut) => (&metadata[..cut.start], &metadata[cut.end..]),
        None => (metadata, &[][..]),
    };
    let (head, tail): (&[u8], &[u8]) = match metadata_only {
        false => (&bytes[..place.start], &bytes[place.end..]),
        true => (b"{\"metadata\":", b"}"),
    };
    let text = [head, before, after, tail].concat();
    // The store holds JSON, which is UTF-8, and the cuts are at ASCII characters.
    match String::from_utf8(text) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }
}

const MANAGED_FIELDS: &[u8] = b",\"managedFields\":[";

/// The place of `,"managedFields":[…]` in canonical metadata. Quotes inside strings are escaped and no
/// other field of metadata has this name, so that the first match is the field. It is the last field of
/// canonical metadata, so that its end need not be searched.
fn managed_fields(metadata: &[u8]) -> Option<std::ops::Range<usize>> {
    let start = memchr::memmem::find(metadata, MANAGED_FIELDS)?;
    let end = metadata.len() - 1;
    debug_assert_eq!(scan_managed_fields(metadata, start), Some(start..end));
    metadata.ends_with(b"]}").then_some(start..end)
}

/// The same by reading to the end of the list.
fn scan_managed_fields(metadata: &[u8], start: usize) -> Option<std::ops::Range<usize>> {
    let open = start + MANAGED_FIELDS.len() - 1;
    let (mut depth, mut in_string, mut is_escaped) = (0, false, false);
    for (at, byte) in metadata.iter().enumerate().skip(open) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(start..at + 1);
        }
    }
    None
}

#[cfg(test)]
pub(super) mod tests {
    use bytes::Bytes;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::{DynamicObject, PartialObjectMeta};

    use super::*;
    use crate::FromJson;

    /// A stored object for tests.
    pub(in crate::informer) struct Fake {
        text: String,
        name: String,
        revision: u64,
        metadata: std::ops::Range<usize>,
    }

    impl Fake {
        pub(in crate::informer) fn object(name: &str, revision: u64, rest: &str) -> feed::Object {
            let metadata = format!(
                r#"{{"name":"{name}","namespace":"d","uid":"{name}","resourceVersion":"{revision}","labels":{{"app":"x"}},"managedFields":[{{"manager":"a]\"}}","fieldsV1":{{"f:data":{{}}}}}}]}}"#
            );
            let text = format!(r#"{{"kind":"ConfigMap","metadata":{metadata}{rest}}}"#);
            let at = text.find(&metadata).unwrap();
            Arc::new(Self {
                metadata: at..at + metadata.len(),
                text,
                name: name.to_owned(),
                revision,
            })
        }
    }

    impl feed::Stored for Fake {
        fn namespace(&self) -> &str {
            "d"
        }
        fn name(&self) -> &str {
            &self.name
        }
        fn uid(&self) -> Bytes {
            self.name.clone().into()
        }
        fn field(&self, _: &str) -> Option<&str> {
            None
        }
        fn revision(&self) -> u64 {
            self.revision
        }
        fn bytes(&self) -> Bytes {
            self.text.clone().into()
        }
        fn size(&self) -> usize {
            self.text.len()
        }
        fn metadata(&self) -> std::ops::Range<usize> {
            self.metadata.clone()
        }
        fn label(&self, key: &str) -> Option<&str> {
            (key == "app").then_some("x")
        }
    }

    #[test]
    fn objects_are_decoded_without_their_managed_fields() {
        let object = Fake::object("a", 7, r#","data":{"k":"v"}"#);
        let map = ConfigMap::from_json(&text(&*object, false)).unwrap();
        assert_eq!(map.metadata.name.as_deref(), Some("a"));
        assert_eq!(map.metadata.resource_version.as_deref(), Some("7"));
        assert!(map.metadata.managed_fields.is_none());
        assert_eq!(map.data.unwrap()["k"], "v");
        let meta = decode::<PartialObjectMeta<DynamicObject>>(&text(&*object, true)).unwrap();
        let meta = meta.meta().clone();
        assert_eq!(meta.labels.unwrap()["app"], "x");
    }

    #[test]
    fn forms_that_are_not_read_are_dropped_and_made_again() {
        let decoded = Decoded::new::<ConfigMap>();
        let slot = Slot::stored(Fake::object("a", 7, ""), false, &decoded).unwrap();
        assert!(slot.is_decoded());
        decoded.sweep();
        assert!(!slot.is_decoded());
        let (one, other) = (slot.read(&decoded), slot.read(&decoded));
        assert!(Arc::ptr_eq(&one, &other));
        assert_eq!(one.meta().name.as_deref(), Some("a"));
        decoded.sweep();
        assert!(slot.is_decoded(), "it was read");
    }

    #[test]
    fn decoded_forms_are_bounded_and_those_in_use_stay() {
        let one = Fake::object("used", 1, "").bytes().len();
        let decoded = Decoded {
            limit: 4 * one,
            ..Decoded::new::<ConfigMap>()
        };
        let make = |name: &str| Slot::stored(Fake::object(name, 1, ""), false, &decoded).unwrap();
        let used = make("used");
        decoded.sweep();
        let others: Vec<_> = (0..20)
            .map(|number| {
                used.read(&decoded);
                make(&number.to_string())
            })
            .collect();
        assert!(used.is_decoded());
        let kept = others.iter().filter(|slot| slot.is_decoded()).count();
        assert!(kept <= 4, "{kept}");
        let queue = decoded.queue.lock();
        assert!(queue.size <= queue.limit);
    }

    #[test]
    fn objects_above_the_limit_that_are_read_again_and_again_are_decoded_once() {
        let one = Fake::object("10", 1, "").bytes().len();
        let decoded = Decoded {
            limit: 4 * one,
            ..Decoded::new::<ConfigMap>()
        };
        decoded.sweep();
        let slots: Vec<_> = (10..30)
            .map(|number| Fake::object(&number.to_string(), 1, ""))
            .map(|object| Slot::stored(object, false, &decoded).unwrap())
            .collect();
        let read = || slots.iter().map(|slot| slot.read(&decoded)).collect();
        let _first: Vec<_> = read();
        let (second, third): (Vec<_>, Vec<_>) = (read(), read());
        let is_kept = |(one, other): (&Arc<_>, &Arc<_>)| Arc::ptr_eq(one, other);
        assert!(second.iter().zip(&third).all(is_kept));
        decoded.sweep();
        decoded.sweep();
        assert_eq!(decoded.queue.lock().limit, 4 * one);
    }

    #[test]
    fn an_object_that_cannot_be_decoded_gets_no_slot() {
        let object = Fake::object("a", 7, r#","data":7"#);
        assert!(Slot::stored(object, false, &Decoded::new::<ConfigMap>()).is_err());
    }
}
