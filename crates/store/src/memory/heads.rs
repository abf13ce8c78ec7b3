//! What is compared in a node of the tree: a part of each key, stored contiguously, instead of the
//! keys, which are scattered in memory. Keys of one node have a long common prefix; a head is the
//! eight bytes after it. Only equal heads need a comparison of the keys.

/// The heads of some keys in ascending order.
#[derive(Clone, Default)]
pub(super) struct Heads {
    /// The length of the keys' common prefix.
    shared: usize,
    /// In ascending order, as the keys.
    heads: Vec<u64>,
}

impl Heads {
    /// The heads of keys in ascending order.
    pub(super) fn new<'a>(count: usize, key: impl Fn(usize) -> &'a [u8]) -> Self {
        if count == 0 {
            return Self::default();
        }
        let shared = common(key(0), key(count - 1));
        let heads = (0..count).map(|at| head(&key(at)[shared..])).collect();
        Self { shared, heads }
    }

    /// The index of a key, or where it would be inserted.
    pub(super) fn find<'a>(
        &self,
        key: &[u8],
        at: impl Fn(usize) -> &'a [u8],
    ) -> Result<usize, usize> {
        let Some(last) = self.heads.len().checked_sub(1) else {
            return Err(0);
        };
        // Usually it exists, and is the only one with its head.
        if let Some(tail) = key.get(self.shared..) {
            let wanted = head(tail);
            let place = self.heads.partition_point(|head| *head < wanted);
            if place <= last && self.heads[place] == wanted && at(place) == key {
                return Ok(place);
            }
        }
        let beginning = &at(0)[..self.shared];
        let same = key.get(..self.shared).unwrap_or(key);
        if same != beginning {
            return Err(if same < beginning { 0 } else { last + 1 });
        }
        let wanted = head(&key[self.shared..]);
        let mut low = self.heads.partition_point(|head| *head < wanted);
        let mut high = low + self.heads[low..].partition_point(|head| *head == wanted);
        while low < high {
            let middle = low.midpoint(high);
            match at(middle).cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Adds the head of a key inserted at `place`; `at` returns all keys, including this one.
    pub(super) fn insert<'a>(&mut self, place: usize, at: impl Fn(usize) -> &'a [u8]) {
        let count = self.heads.len() + 1;
        let key = at(place);
        let neighbour = if place == 0 { count - 1 } else { 0 };
        if count == 1 || common(key, at(neighbour)) < self.shared {
            *self = Self::new(count, at);
        } else {
            make_room(&mut self.heads);
            self.heads.insert(place, head(&key[self.shared..]));
        }
    }

    /// Removes the head at `place`.
    pub(super) fn remove(&mut self, place: usize) {
        self.heads.remove(place);
    }
}

/// Makes room for one more, without doubling, which would waste half of every leaf.
pub(super) fn make_room<T>(items: &mut Vec<T>) {
    if items.len() == items.capacity() {
        items.reserve_exact(4);
    }
}

/// The length of the common prefix of two keys.
fn common(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

/// The first bytes as a number in the same order; missing bytes are 0.
fn head(tail: &[u8]) -> u64 {
    match tail.first_chunk() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 8];
            bytes[..tail.len()].copy_from_slice(tail);
            u64::from_be_bytes(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        // Long common prefixes, zeros, and keys that are prefixes of others.
        let tail = prop::collection::vec(prop::sample::select(vec![0, 1, b'a', 255]), 0..12);
        (0..3_usize, tail).prop_map(|(beginning, tail)| {
            let beginning = [&b""[..], b"/registry/pods/", b"/registry/pods/default/"][beginning];
            [beginning, &tail].concat()
        })
    }

    proptest! {
        #[test]
        fn keys_are_found_as_by_comparing_them_all(
            keys in prop::collection::vec(key(), 0..40),
            wanted in prop::collection::vec(key(), 1..20),
        ) {
            let (mut heads, mut sorted) = (Heads::default(), Vec::<Vec<u8>>::new());
            for key in keys {
                let place = sorted.binary_search(&key);
                prop_assert_eq!(heads.find(&key, |at| &sorted[at]), place);
                if let Err(place) = place {
                    sorted.insert(place, key);
                    heads.insert(place, |at| &sorted[at]);
                }
            }
            for (n, key) in wanted.iter().enumerate() {
                prop_assert_eq!(heads.find(key, |at| &sorted[at]), sorted.binary_search(key));
                if !sorted.is_empty() {
                    let place = n * 7 % sorted.len();
                    sorted.remove(place);
                    heads.remove(place);
                }
            }
        }
    }
}
