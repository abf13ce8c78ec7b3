//! The entries of a map in another order than their own.

/// Entries of nearly every map that is a struct.
const FEW: usize = 32;

/// Places of entries, by rank. Takes no allocation for few of them.
pub(crate) struct Order {
    few: [(u16, u32); FEW],
    many: Vec<(u16, u32)>,
    count: usize,
}

impl Order {
    /// With room for the entries of a map.
    #[inline]
    pub(crate) fn of(entries: usize) -> Self {
        let many = match entries {
            ..=FEW => Vec::new(),
            more => vec![(0, 0); more],
        };
        Self {
            few: [(0, 0); FEW],
            many,
            count: 0,
        }
    }

    #[inline]
    fn room(&mut self) -> &mut [(u16, u32)] {
        match self.many.is_empty() {
            true => &mut self.few,
            false => &mut self.many,
        }
    }

    /// Adds the entry at a place of the map.
    #[inline]
    pub(crate) fn push(&mut self, rank: usize, place: usize) {
        let count = self.count;
        if let Some(room) = self.room().get_mut(count) {
            *room = (rank as u16, place as u32);
            self.count += 1;
        }
    }

    /// Ranks and places, the lowest rank first.
    #[inline]
    pub(crate) fn sorted(&mut self) -> impl Iterator<Item = (usize, usize)> {
        let count = self.count;
        let order = &mut self.room()[..count];
        if !order.is_sorted() {
            order.sort_unstable();
        }
        let entries = order.iter();
        entries.map(|&(rank, place)| (usize::from(rank), place as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_come_out_by_rank() {
        for entries in [0, 1, 2, FEW, FEW + 1, 3 * FEW] {
            let mut order = Order::of(entries);
            (0..entries).for_each(|place| order.push(entries - place, place));
            let sorted: Vec<_> = order.sorted().collect();
            let expected: Vec<_> = (0..entries).rev().map(|at| (entries - at, at)).collect();
            assert_eq!(sorted, expected);
        }
    }
}
