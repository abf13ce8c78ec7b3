//! An ordered map with O(1) immutable clones that can count the keys before a key, so that lists
//! know how many keys remain without iterating.
//!
//! A B+ tree of shared nodes: a change copies the nodes on its path that a clone still shares, and
//! changes the others in place. Values contain their key, so that a leaf is only pointers and the
//! heads of their keys. Small nodes are merged with a neighbour if both fit into one.

use std::sync::Arc;

use super::heads::{Heads, make_room};
use crate::Key;

/// The maximum number of values of a leaf and of children of a branch.
const FANOUT: usize = 32;

/// A value that contains its key. Clones are cheap.
pub(crate) trait Keyed: Clone {
    /// The key, which never changes.
    fn key(&self) -> &Key;
}

/// The map.
pub(crate) struct Tree<V> {
    root: Arc<Node<V>>,
    len: usize,
}

#[derive(Clone)]
enum Node<V> {
    Leaf(Leaf<V>),
    Branch(Branch<V>),
}

#[derive(Clone)]
struct Leaf<V> {
    heads: Heads,
    values: Vec<V>,
}

#[derive(Clone)]
struct Branch<V> {
    /// Of all children but the first, which has everything below them.
    heads: Heads,
    children: Vec<Child<V>>,
}

#[derive(Clone)]
struct Child<V> {
    /// At most the smallest key in it, and above every key of the previous child.
    first: Key,
    /// The number of values in it.
    count: usize,
    node: Arc<Node<V>>,
}

impl<V> Clone for Tree<V> {
    fn clone(&self) -> Self {
        Self {
            root: self.root.clone(),
            len: self.len,
        }
    }
}

impl<V> Default for Tree<V> {
    fn default() -> Self {
        Self {
            root: Arc::new(Node::Leaf(Leaf {
                heads: Heads::default(),
                values: Vec::new(),
            })),
            len: 0,
        }
    }
}

impl<V: Keyed> Tree<V> {
    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The value at a key.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&V> {
        let mut node = &*self.root;
        loop {
            match node {
                Node::Leaf(leaf) => return leaf.position(key).ok().map(|at| &leaf.values[at]),
                Node::Branch(branch) => node = &branch.children[branch.child_of(key)].node,
            }
        }
    }

    /// How many keys are below this one.
    pub(crate) fn rank(&self, key: &[u8]) -> usize {
        let (mut node, mut below) = (&*self.root, 0);
        loop {
            match node {
                Node::Leaf(leaf) => {
                    return below + leaf.position(key).unwrap_or_else(|before| before);
                }
                Node::Branch(branch) => {
                    let (at, children) = (branch.child_of(key), &branch.children);
                    below += children[..at]
                        .iter()
                        .map(|child| child.count)
                        .sum::<usize>();
                    node = &children[at].node;
                }
            }
        }
    }

    /// The values from a key on, in order.
    pub(crate) fn from(&self, key: &[u8]) -> Iter<'_, V> {
        let (mut node, mut above) = (&*self.root, Vec::new());
        loop {
            match node {
                Node::Leaf(leaf) => {
                    let at = leaf.position(key).unwrap_or_else(|before| before);
                    let leaf = leaf.values[at..].iter();
                    return Iter { above, leaf };
                }
                Node::Branch(branch) => {
                    let (at, children) = (branch.child_of(key), &branch.children);
                    above.push(children[at + 1..].iter());
                    node = &children[at].node;
                }
            }
        }
    }

    /// All values, in order.
    pub(crate) fn values(&self) -> Iter<'_, V> {
        self.from(&[])
    }

    /// Puts the value that `make` returns for the current one, and returns the current one.
    pub(crate) fn upsert(&mut self, key: &[u8], make: impl FnOnce(Option<&V>) -> V) -> Option<V> {
        let (previous, split) = upsert(&mut self.root, key, make);
        if previous.is_none() {
            self.len += 1;
        }
        if let Some(right) = split {
            let left = Child {
                first: Key::new(),
                count: self.len - right.count,
                node: self.root.clone(),
            };
            self.root = Arc::new(Node::branch(vec![left, right]));
        }
        previous
    }

    /// Puts a value at its key and returns the previous one.
    pub(crate) fn insert(&mut self, value: V) -> Option<V> {
        let key = value.key().clone();
        self.upsert(&key, |_| value)
    }

    /// Removes the value at a key.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<V> {
        // Looks it up first, so that nothing is copied for an absent key.
        self.get(key)?;
        let removed = remove(&mut self.root, key)?;
        self.len -= 1;
        while let Node::Branch(branch) = &*self.root
            && let [only] = &branch.children[..]
        {
            self.root = only.node.clone();
        }
        Some(removed)
    }
}

impl<V: Keyed> Leaf<V> {
    /// The index of a key, or where it would be inserted.
    fn position(&self, key: &[u8]) -> Result<usize, usize> {
        self.heads.find(key, |at| self.values[at].key())
    }
}

impl<V> Branch<V> {
    /// The child that a key belongs to.
    fn child_of(&self, key: &[u8]) -> usize {
        let found = self.heads.find(key, |at| &self.children[at + 1].first);
        found.map_or_else(|before| before, |at| at + 1)
    }
}

impl<V: Keyed> Node<V> {
    fn leaf(values: Vec<V>) -> Self {
        let heads = Heads::new(values.len(), |at| values[at].key());
        Self::Leaf(Leaf { heads, values })
    }
}

impl<V> Node<V> {
    fn branch(children: Vec<Child<V>>) -> Self {
        let others = children.len().saturating_sub(1);
        let heads = Heads::new(others, |at| &children[at + 1].first);
        Self::Branch(Branch { heads, children })
    }

    fn len(&self) -> usize {
        match self {
            Self::Leaf(leaf) => leaf.values.len(),
            Self::Branch(branch) => branch.children.len(),
        }
    }
}

/// Where a full node is split: in the middle, but near the end if keys are inserted in ascending
/// order, so that nodes get full.
fn split_at(len: usize, inserted: usize) -> usize {
    if inserted + 1 == len {
        len - 1
    } else {
        len / 2
    }
}

fn upsert<V: Keyed>(
    node: &mut Arc<Node<V>>,
    key: &[u8],
    make: impl FnOnce(Option<&V>) -> V,
) -> (Option<V>, Option<Child<V>>) {
    let node = Arc::make_mut(node);
    match node {
        Node::Leaf(Leaf { heads, values }) => {
            let at = match heads.find(key, |at| values[at].key()) {
                Ok(at) => {
                    let value = make(Some(&values[at]));
                    return (Some(std::mem::replace(&mut values[at], value)), None);
                }
                Err(at) => at,
            };
            make_room(values);
            values.insert(at, make(None));
            if values.len() <= FANOUT {
                heads.insert(at, |at| values[at].key());
                return (None, None);
            }
            let mut left = std::mem::take(values);
            let right = left.split_off(split_at(left.len(), at));
            *node = Node::leaf(left);
            let split = Child {
                first: right[0].key().clone(),
                count: right.len(),
                node: Arc::new(Node::leaf(right)),
            };
            (None, Some(split))
        }
        Node::Branch(branch) => {
            let at = branch.child_of(key);
            let Branch { heads, children } = branch;
            let (previous, split) = upsert(&mut children[at].node, key, make);
            if previous.is_none() {
                children[at].count += 1;
            }
            let Some(split) = split else {
                return (previous, None);
            };
            children[at].count -= split.count;
            make_room(children);
            children.insert(at + 1, split);
            if children.len() <= FANOUT {
                heads.insert(at, |at| &children[at + 1].first);
                return (previous, None);
            }
            let mut left = std::mem::take(children);
            let right = left.split_off(split_at(left.len(), at + 1));
            *node = Node::branch(left);
            let split = Child {
                first: right[0].first.clone(),
                count: right.iter().map(|child| child.count).sum(),
                node: Arc::new(Node::branch(right)),
            };
            (previous, Some(split))
        }
    }
}

fn remove<V: Keyed>(node: &mut Arc<Node<V>>, key: &[u8]) -> Option<V> {
    match Arc::make_mut(node) {
        Node::Leaf(leaf) => {
            let at = leaf.position(key).ok()?;
            leaf.heads.remove(at);
            Some(leaf.values.remove(at))
        }
        Node::Branch(branch) => {
            let at = branch.child_of(key);
            let child = &mut branch.children[at];
            let removed = remove(&mut child.node, key)?;
            child.count -= 1;
            if child.node.len() < FANOUT / 4 && merge(&mut branch.children, at) {
                let children = std::mem::take(&mut branch.children);
                *Arc::make_mut(node) = Node::branch(children);
            }
            Some(removed)
        }
    }
}

/// Merges a small child with a neighbour, if both fit into one node with room to spare. Returns
/// whether a child was removed.
fn merge<V: Keyed>(children: &mut Vec<Child<V>>, at: usize) -> bool {
    if children[at].count == 0 && children.len() > 1 {
        let gone = children.remove(at);
        if at == 0 {
            // Later keys of that range belong to this child now.
            children[0].first = gone.first;
        }
        return true;
    }
    for left in [at, at.wrapping_sub(1)] {
        let (Some(one), Some(two)) = (children.get(left), children.get(left.wrapping_add(1)))
        else {
            continue;
        };
        if one.node.len() + two.node.len() > FANOUT * 3 / 4 {
            continue;
        }
        let right = children.remove(left + 1);
        let one = &mut children[left];
        one.count += right.count;
        let merged = match (&*one.node, &*right.node) {
            (Node::Leaf(one), Node::Leaf(more)) => {
                Node::leaf([&one.values[..], &more.values].concat())
            }
            (Node::Branch(one), Node::Branch(more)) => {
                Node::branch([&one.children[..], &more.children].concat())
            }
            // All leaves have the same depth.
            _ => return true,
        };
        one.node = Arc::new(merged);
        return true;
    }
    false
}

/// Values in order.
pub(crate) struct Iter<'a, V> {
    /// The rest of the branches above the leaf, the lowest last.
    above: Vec<std::slice::Iter<'a, Child<V>>>,
    leaf: std::slice::Iter<'a, V>,
}

impl<'a, V> Iterator for Iter<'a, V> {
    type Item = &'a V;

    fn next(&mut self) -> Option<&'a V> {
        loop {
            if let Some(value) = self.leaf.next() {
                return Some(value);
            }
            let mut node = loop {
                match self.above.last_mut()?.next() {
                    Some(child) => break &*child.node,
                    None => self.above.pop(),
                };
            };
            loop {
                match node {
                    Node::Leaf(leaf) => {
                        self.leaf = leaf.values.iter();
                        break;
                    }
                    Node::Branch(branch) => {
                        let mut rest = branch.children.iter();
                        let Some(first) = rest.next() else { break };
                        self.above.push(rest);
                        node = &first.node;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Value(Key, u32);

    impl Keyed for Value {
        fn key(&self) -> &Key {
            &self.0
        }
    }

    /// Checks that counts are right, keys ascend, and no node is too large.
    fn check(node: &Node<Value>, above: &[u8], depth: usize) -> (usize, usize) {
        match node {
            Node::Leaf(Leaf { values, .. }) => {
                assert!(values.len() <= FANOUT);
                assert!(values.windows(2).all(|pair| pair[0].0 < pair[1].0));
                assert!(values.first().is_none_or(|value| value.0[..] >= *above));
                (values.len(), depth)
            }
            Node::Branch(Branch { children, .. }) => {
                assert!((1..=FANOUT).contains(&children.len()));
                let mut depths = Vec::new();
                let mut total = 0;
                for child in children {
                    let (count, below) = check(&child.node, &child.first, depth + 1);
                    assert_eq!(count, child.count);
                    total += count;
                    depths.push(below);
                }
                assert!(depths.iter().all(|one| *one == depths[0]));
                (total, depths[0])
            }
        }
    }

    fn key(number: u16) -> Key {
        // Of different lengths, so that some are prefixes of others.
        Key::from(format!("{number:b}"))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_tree_is_an_ordered_map_and_clones_are_snapshots(
            ops in prop::collection::vec((0_u16..900, any::<u32>(), 0..3), 0..3000),
            ascending in any::<bool>(),
        ) {
            let (mut tree, mut model) = (Tree::default(), BTreeMap::new());
            let mut kept = Vec::new();
            for (step, (number, content, kind)) in ops.into_iter().enumerate() {
                let number = if ascending { step as u16 } else { number };
                let at = key(number);
                if kind == 0 {
                    prop_assert_eq!(tree.remove(&at), model.remove(&at));
                } else {
                    let value = Value(at.clone(), content);
                    prop_assert_eq!(tree.insert(value.clone()), model.insert(at, value));
                }
                if step % 500 == 0 {
                    kept.push((tree.clone(), model.clone()));
                }
            }
            kept.push((tree, model));
            for (tree, model) in kept {
                prop_assert_eq!(check(&tree.root, &[], 0).0, model.len());
                prop_assert_eq!(tree.len(), model.len());
                prop_assert!(tree.values().eq(model.values()));
                for number in (0..1000).step_by(37) {
                    let at = key(number);
                    prop_assert_eq!(tree.get(&at), model.get(&at));
                    prop_assert_eq!(tree.rank(&at), model.range(..at.clone()).count());
                    prop_assert!(tree.from(&at).eq(model.range(at.clone()..).map(|(_, value)| value)));
                }
            }
        }
    }

    #[test]
    fn ascending_keys_fill_the_leaves() {
        let mut tree = Tree::default();
        for number in 0..10_000 {
            tree.insert(Value(Key::from(format!("{number:05}")), number));
        }
        fn leaves(node: &Node<Value>) -> usize {
            match node {
                Node::Leaf(_) => 1,
                Node::Branch(branch) => {
                    let children = branch.children.iter();
                    children.map(|child| leaves(&child.node)).sum()
                }
            }
        }
        assert!(leaves(&tree.root) <= 10_000 / FANOUT + 2);
    }

    #[test]
    fn an_emptied_tree_is_one_leaf_again() {
        let mut tree = Tree::default();
        for number in 0..2000 {
            tree.insert(Value(key(number), 0));
        }
        for number in 0..2000 {
            assert!(tree.remove(&key(number)).is_some());
        }
        assert!(matches!(&*tree.root, Node::Leaf(leaf) if leaf.values.is_empty()));
        assert_eq!(tree.remove(b"none"), None);
    }
}
