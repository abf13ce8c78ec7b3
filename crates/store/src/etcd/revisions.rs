//! Revisions of a store that was migrated to etcd keep their numbers. etcd counts from its own
//! beginning, so that its revisions and those of the store differ: copied objects keep their
//! revision by a table, and later revisions differ by a constant. A store that was created in etcd
//! has etcd's own revisions.
//!
//! Requests and responses are translated at the boundary ([`super::client`] and the watch);
//! everything else sees only the store's revisions. Pure.

use super::proto::{
    etcdserverpb::{
        RangeResponse, ResponseHeader, TxnRequest, TxnResponse, WatchResponse,
        compare::TargetUnion, response_op::Response,
    },
    mvccpb::KeyValue,
};

/// Bytes of a pair in the table.
const PAIR: usize = 16;
/// A revision that no key has in etcd.
const NEVER: i64 = i64::MAX;

/// The mapping of revisions. The default is the identity, for a store that was created in etcd.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Revisions {
    /// Pairs of etcd's and the store's revisions of copied objects, ordered by etcd's.
    inward: Vec<(i64, i64)>,
    /// The reverse pairs, ordered by the store's.
    outward: Vec<(i64, i64)>,
    /// etcd's revision when everything was copied.
    last: i64,
    /// The store's newest revision at that time.
    newest: i64,
}

impl Revisions {
    /// From pairs of revisions of etcd and of the store.
    pub(super) fn new(mut pairs: Vec<(i64, i64)>, last: i64, newest: i64) -> Self {
        let mut outward: Vec<(i64, i64)> = pairs.iter().map(|(etcd, own)| (*own, *etcd)).collect();
        pairs.sort_unstable();
        outward.sort_unstable();
        Self {
            inward: pairs,
            outward,
            last,
            newest,
        }
    }

    /// The store's revision for one of etcd's.
    pub(super) fn inward(&self, etcd: i64) -> i64 {
        match etcd {
            0 => 0,
            later if later > self.last => later - self.last + self.newest,
            copied => find(&self.inward, copied).unwrap_or(self.newest),
        }
    }

    /// etcd's revision of a key that has this one in the store.
    fn outward(&self, own: i64) -> i64 {
        match own {
            0 => 0,
            copied if copied <= self.newest => find(&self.outward, copied).unwrap_or(NEVER),
            later => later - self.newest + self.last,
        }
    }

    /// etcd's revision for a read at a revision of the store; `None` for one from before the
    /// migration, which etcd never had.
    pub(super) fn moment(&self, own: i64) -> Option<i64> {
        (own == 0 || own > self.newest).then(|| self.outward(own))
    }

    fn is_identity(&self) -> bool {
        self.last == self.newest && self.inward.is_empty()
    }

    fn translate_header(&self, header: &mut Option<ResponseHeader>) {
        if let Some(header) = header {
            header.revision = self.inward(header.revision);
        }
    }

    fn translate_key(&self, kv: &mut KeyValue) {
        kv.mod_revision = self.inward(kv.mod_revision);
        kv.create_revision = self.inward(kv.create_revision);
    }

    /// Translates the response of a range request.
    pub(super) fn translate_range(&self, answer: &mut RangeResponse) {
        if self.is_identity() {
            return;
        }
        self.translate_header(&mut answer.header);
        answer.kvs.iter_mut().for_each(|kv| self.translate_key(kv));
    }

    /// Translates a transaction request.
    pub(super) fn translate_request(&self, request: &mut TxnRequest) {
        for compare in &mut request.compare {
            if let Some(TargetUnion::ModRevision(revision)) = &mut compare.target_union {
                *revision = self.outward(*revision);
            }
        }
    }

    /// Translates the response of a transaction.
    pub(super) fn translate_transaction(&self, answer: &mut TxnResponse) {
        if self.is_identity() {
            return;
        }
        self.translate_header(&mut answer.header);
        for response in &mut answer.responses {
            match &mut response.response {
                Some(Response::ResponseRange(range)) => self.translate_range(range),
                Some(Response::ResponsePut(put)) => {
                    put.prev_kv.iter_mut().for_each(|kv| self.translate_key(kv));
                }
                Some(Response::ResponseDeleteRange(deleted)) => {
                    let before = &mut deleted.prev_kvs;
                    before.iter_mut().for_each(|kv| self.translate_key(kv));
                }
                Some(Response::ResponseTxn(_)) | None => {}
            }
        }
    }

    /// Translates a watch response.
    pub(super) fn translate_watch(&self, answer: &mut WatchResponse) {
        if self.is_identity() {
            return;
        }
        self.translate_header(&mut answer.header);
        for event in &mut answer.events {
            event.kv.iter_mut().for_each(|kv| self.translate_key(kv));
        }
    }
}

fn find(pairs: &[(i64, i64)], first: i64) -> Option<i64> {
    let at = pairs.binary_search_by_key(&first, |pair| pair.0).ok()?;
    Some(pairs[at].1)
}

/// Encodes pairs for a record.
pub(super) fn encode(pairs: &[(i64, i64)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(pairs.len() * PAIR);
    for (etcd, own) in pairs {
        bytes.extend_from_slice(&etcd.to_le_bytes());
        bytes.extend_from_slice(&own.to_le_bytes());
    }
    bytes
}

/// Decodes them; `None` if the bytes are invalid.
pub(super) fn decode(bytes: &[u8]) -> Option<Vec<(i64, i64)>> {
    let number = |bytes: &[u8]| Some(i64::from_le_bytes(bytes.try_into().ok()?));
    let pair = |bytes: &[u8]| Some((number(&bytes[..8])?, number(&bytes[8..])?));
    let whole = bytes.len().is_multiple_of(PAIR);
    whole.then(|| bytes.chunks_exact(PAIR).map(pair).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_began_in_etcd_has_etcds_numbers() {
        let revisions = Revisions::default();
        for number in [0, 1, 77] {
            assert_eq!(revisions.inward(number), number);
            assert_eq!(revisions.outward(number), number);
            assert_eq!(revisions.moment(number), Some(number));
        }
    }

    #[test]
    fn copied_objects_keep_their_revisions_and_later_ones_are_larger() {
        // Copied out of order, as by concurrent transactions.
        let pairs = vec![(4, 12), (3, 900), (5, 7)];
        assert_eq!(decode(&encode(&pairs)), Some(pairs.clone()));
        assert_eq!(decode(b"too short"), None);
        let revisions = Revisions::new(pairs.clone(), 6, 1000);
        for (etcd, own) in pairs {
            assert_eq!(
                (revisions.inward(etcd), revisions.outward(own)),
                (own, etcd)
            );
        }
        for (etcd, own) in [(7, 1001), (8, 1002), (100, 1094)] {
            assert_eq!(
                (revisions.inward(etcd), revisions.outward(own)),
                (own, etcd)
            );
            assert_eq!(revisions.moment(own), Some(etcd));
        }
        // No object has this revision, and the store cannot be read at it.
        assert_eq!(revisions.outward(13), NEVER);
        assert_eq!(revisions.moment(1000), None);
        assert_eq!((revisions.inward(0), revisions.outward(0)), (0, 0));
    }
}
