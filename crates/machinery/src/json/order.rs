//! The entries of a struct in another order.

/// The maximum number of fields of a type.
const FIELDS: usize = 128;

/// The positions of a struct's fields in its map, by rank: present fields are visited in order
/// without sorting.
pub(crate) struct Order {
    there: u128,
    places: [u32; FIELDS],
}

impl Order {
    pub(crate) const fn new() -> Self {
        Self {
            there: 0,
            places: [0; FIELDS],
        }
    }

    /// Records the entry at a position of the map.
    #[inline]
    pub(crate) fn note(&mut self, rank: usize, place: usize) {
        if let Some(room) = self.places.get_mut(rank) {
            *room = place as u32;
            self.there |= 1 << rank;
        }
    }

    /// Ranks and positions, the lowest rank first.
    #[inline]
    pub(crate) fn sorted(&self) -> impl Iterator<Item = (usize, usize)> {
        let mut left = self.there;
        std::iter::from_fn(move || {
            let rank = left.trailing_zeros() as usize;
            let place = self.places.get(rank)?;
            left &= left - 1;
            Some((rank, *place as usize))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_sorted_by_rank() {
        for entries in [0, 1, 2, 63, 64, 65, FIELDS] {
            let mut order = Order::new();
            (0..entries).for_each(|place| order.note(entries - 1 - place, place));
            let sorted: Vec<_> = order.sorted().collect();
            let expected: Vec<_> = (0..entries).map(|at| (at, entries - 1 - at)).collect();
            assert_eq!(sorted, expected);
        }
    }
}
