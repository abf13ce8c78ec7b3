//! An index of a map's names in one word: for short maps a bit set that excludes most absent names,
//! for long maps a hash table of positions.

use super::Key;
use std::collections::HashMap;
use std::ptr::NonNull;

type Places = HashMap<Key, u32>;

/// Either a bit set, with the lowest bit set, or a pointer to the hash table, whose lowest bit
/// never is.
pub(super) struct Index(NonNull<Places>);

// SAFETY: the owned table is Send and Sync.
unsafe impl Send for Index {}
// SAFETY: as above.
unsafe impl Sync for Index {}

/// The bit of a name: one of 63, or the one that is always set.
#[inline]
fn mark(name: &str) -> usize {
    let bytes = name.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return 1;
    };
    let said = bytes.len() as u32 | u32::from(*first) << 8 | u32::from(*last) << 16;
    1 << (said.wrapping_mul(0x9e37_79b1) >> (32 - usize::BITS.ilog2()))
}

impl Index {
    /// The index of an empty map.
    pub(super) const EMPTY: Self =
        Self(NonNull::without_provenance(std::num::NonZero::<usize>::MIN));

    /// The index of a short map.
    pub(super) fn short<'a>(names: impl Iterator<Item = &'a Key>) -> Self {
        let mut index = Self::EMPTY;
        names.for_each(|name| index.note(name));
        index
    }

    /// The index of a long map.
    pub(super) fn long(places: Places) -> Self {
        Self(NonNull::from(Box::leak(Box::new(places))))
    }

    #[inline]
    fn is_long(&self) -> bool {
        self.0.addr().get() & 1 == 0
    }

    /// The positions of a long map's names.
    #[inline]
    pub(super) fn places(&self) -> Option<&Places> {
        if !self.is_long() {
            return None;
        }
        // SAFETY: a value that is not a bit set is a pointer from a box that this index owns.
        Some(unsafe { self.0.as_ref() })
    }

    /// The same, mutable.
    pub(super) fn places_mut(&mut self) -> Option<&mut Places> {
        if !self.is_long() {
            return None;
        }
        // SAFETY: as above, and the index is borrowed exclusively.
        Some(unsafe { self.0.as_mut() })
    }

    /// Whether the name may be present.
    #[inline]
    pub(super) fn may_have(&self, name: &str) -> bool {
        let marks = self.0.addr().get();
        marks & mark(name) != 0 || marks & 1 == 0
    }

    /// Adds a name of a short map.
    #[inline]
    pub(super) fn note(&mut self, name: &str) {
        if !self.is_long() {
            self.0 = NonNull::without_provenance(self.0.addr() | mark(name));
        }
    }
}

impl Drop for Index {
    #[inline]
    fn drop(&mut self) {
        if self.is_long() {
            // SAFETY: the pointer is from a box and dropped once.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

impl Clone for Index {
    #[inline]
    fn clone(&self) -> Self {
        match self.places() {
            Some(places) => Self::long(places.clone()),
            None => Self(self.0),
        }
    }
}

impl Default for Index {
    fn default() -> Self {
        Self::EMPTY
    }
}

const _: () = assert!(align_of::<Places>() > 1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_was_noted_may_be_there() {
        let names = ["", "a", "spec", "spec ", "metadata", "ä", "a/b"].map(Key::from);
        let index = Index::short(names.iter());
        assert!(names.iter().all(|name| index.may_have(name)));
        assert!(!Index::EMPTY.may_have("spec"));
        let same = index.clone();
        assert!(names.iter().all(|name| same.may_have(name)) && same.places().is_none());
    }

    #[test]
    fn most_absent_names_are_known_to_be_absent() {
        let fields: Vec<_> = crate::schema::lookup("core/v1.PodSpec")
            .unwrap()
            .fields
            .iter()
            .map(|field| Key::fixed(field.name))
            .collect();
        let index = Index::short(fields[..12].iter());
        let doubted = fields[12..]
            .iter()
            .filter(|name| index.may_have(name))
            .count();
        assert!(doubted < fields.len() / 3, "{doubted} of {}", fields.len());
    }

    #[test]
    fn places_are_found_copied_and_changed() {
        let mut index = Index::long(HashMap::from([(Key::fixed("a"), 7)]));
        let copy = index.clone();
        index.note("b");
        assert!(index.may_have("b") && index.may_have("c"));
        index.places_mut().unwrap().insert(Key::fixed("b"), 8);
        assert_eq!(index.places().unwrap().len(), 2);
        assert_eq!(copy.places().unwrap().get("a"), Some(&7));
        assert_eq!(copy.places().unwrap().len(), 1);
    }
}
