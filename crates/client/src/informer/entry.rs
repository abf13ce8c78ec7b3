//! Objects of an informer that are not decoded: their names, labels and summaries.

use std::{marker::PhantomData, sync::Arc};

use super::{
    Labelled, Object, any,
    cache::Named,
    slot::{Slot, Summarize, Summary},
};

/// One version of an object. [`super::Informer::read_entry`] decodes it.
pub struct Entry<K> {
    pub(super) slot: Arc<Slot>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Entry<K> {
    fn clone(&self) -> Self {
        Self::new(self.slot.clone())
    }
}

impl<K> Entry<K> {
    pub(super) fn new(slot: Arc<Slot>) -> Self {
        let kind = PhantomData;
        Self { slot, kind }
    }

    /// An entry of an object that is in no informer.
    pub fn detached<S: Send + Sync + 'static>(object: Arc<K>, summary: S) -> Self
    where
        K: Object,
    {
        Self::new(Slot::detached(object, Box::new(summary)))
    }

    /// Empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        self.slot.key().0
    }

    /// The object's name.
    pub fn name(&self) -> &str {
        self.slot.key().1
    }

    /// The object's uid; empty if it has none.
    pub fn uid(&self) -> String {
        String::from_utf8_lossy(&self.slot.uid()).into_owned()
    }

    /// The object's summary; `None` if the informer has none of this type.
    pub fn summary<S: 'static>(&self) -> Option<&S> {
        self.slot.summary()?.downcast_ref()
    }
}

impl<K> Labelled for Entry<K> {
    fn label(&self, key: &str) -> Option<&str> {
        self.slot.label(key)
    }
}

/// The summary of objects of any type.
pub(super) fn erased_summary<K: Object, S: Send + Sync + 'static>(
    summarize: fn(&K) -> S,
) -> Summarize {
    Box::new(move |object| {
        let summary: Summary = Box::new(summarize(any(object)?));
        Some(summary)
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::{
        super::{cache::Cache, slot::tests::Fake},
        *,
    };

    #[test]
    fn an_entry_has_the_summary_of_its_version_without_being_decoded() {
        let mut cache = Cache::new::<ConfigMap>();
        cache.summarize(erased_summary(|map: &ConfigMap| {
            map.data.as_ref().map_or(0, |data| data.len())
        }));
        let put = |cache: &mut Cache, revision, data: &str| {
            let object = Fake::object("a", revision, data);
            let slot = Slot::stored(object, false, &cache.decoded).unwrap();
            // Without subscribers the decoded form is dropped.
            cache.upsert(slot);
            Entry::<ConfigMap>::new(cache.get("d", "a").unwrap())
        };
        let first = put(&mut cache, 1, "");
        let second = put(&mut cache, 2, r#","data":{"x":"y"}"#);
        for (entry, expected) in [(&first, 0_usize), (&second, 1)] {
            assert_eq!(entry.summary(), Some(&expected));
            assert_eq!((entry.namespace(), entry.name()), ("d", "a"));
            assert_eq!(entry.label("app"), Some("x"));
            assert_eq!(entry.summary::<String>(), None);
            assert!(!entry.slot.is_decoded());
        }
    }
}
