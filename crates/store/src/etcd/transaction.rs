//! Translates a commit to an etcd transaction, and its response to a result. Pure.

use super::client::Effect;
use super::proto::{
    etcdserverpb::{
        Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, ResponseOp, TxnRequest,
        compare::{CompareResult, CompareTarget, TargetUnion},
        request_op::Request,
        response_op::Response,
    },
    mvccpb::KeyValue,
};
use crate::{Action, Codec, Error, Key, Op, Precondition, Revision};

/// The transaction. `leases` has one lease per operation, 0 for none.
pub(super) fn request<C: Codec>(codec: &C, ops: &[Op<C::Draft>], leases: &[i64]) -> TxnRequest {
    let mut compare = Vec::new();
    let mut success = Vec::new();
    let mut failure = Vec::new();
    for (op, lease) in ops.iter().zip(leases) {
        compare.extend(compares(op));
        failure.push(operation(Request::RequestRange(RangeRequest {
            key: op.key.clone(),
            keys_only: true,
            ..RangeRequest::default()
        })));
        let request = match &op.action {
            Action::Put { draft, .. } => Request::RequestPut(PutRequest {
                key: op.key.clone(),
                value: codec.seal(&op.key, codec.bytes(draft)).into_owned(),
                lease: *lease,
                prev_kv: true,
                ..PutRequest::default()
            }),
            Action::Delete => Request::RequestDeleteRange(DeleteRangeRequest {
                key: op.key.clone(),
                prev_kv: true,
                ..DeleteRangeRequest::default()
            }),
            Action::Check => continue,
        };
        success.push(operation(request));
    }
    TxnRequest {
        compare,
        success,
        failure,
    }
}

/// Whether a commit can be applied twice. A key that is changed at a given revision never has that
/// revision again. A key that must be absent can be absent again.
pub(super) fn effect<D>(ops: &[Op<D>]) -> Effect {
    let is_guard = |op: &Op<D>| {
        let is_change = !matches!(op.action, Action::Check);
        is_change && matches!(op.precondition, Precondition::Revision(_))
    };
    match ops.iter().any(is_guard) {
        true => Effect::Once,
        false => Effect::Repeatable,
    }
}

fn operation(request: Request) -> RequestOp {
    RequestOp {
        request: Some(request),
    }
}

/// etcd uses revision 0 for a key that does not exist.
fn compares<D>(op: &Op<D>) -> Vec<Compare> {
    let compare = |result: CompareResult, revision: Revision| Compare {
        result: result.into(),
        target: CompareTarget::Mod.into(),
        key: op.key.clone(),
        range_end: Key::new(),
        target_union: Some(TargetUnion::ModRevision(revision as i64)),
    };
    let exists = compare(CompareResult::Greater, 0);
    match op.precondition {
        Precondition::Any => vec![],
        Precondition::Absent => vec![compare(CompareResult::Equal, 0)],
        Precondition::Exists => vec![exists],
        Precondition::Revision(revision) => {
            vec![exists, compare(CompareResult::Equal, revision)]
        }
    }
}

/// The previous entry of each operation's key, from an accepted transaction.
pub(super) fn previous<D>(
    ops: &[Op<D>],
    responses: Vec<ResponseOp>,
) -> Result<Vec<Option<KeyValue>>, Error> {
    let mut responses = responses.into_iter();
    let mut next = || responses.next().and_then(|response| response.response);
    ops.iter()
        .map(|op| match op.action {
            Action::Check => Ok(None),
            _ => match next() {
                Some(Response::ResponsePut(put)) => Ok(put.prev_kv),
                Some(Response::ResponseDeleteRange(deleted)) => {
                    Ok(deleted.prev_kvs.into_iter().next())
                }
                _ => Err(Error::Unavailable(
                    "etcd's response does not match the request".into(),
                )),
            },
        })
        .collect()
}

/// The first failed precondition, from the current revisions of the keys.
pub(super) fn conflict<D>(ops: &[Op<D>], responses: Vec<ResponseOp>) -> Error {
    for (op, response) in ops.iter().zip(responses) {
        let Some(Response::ResponseRange(range)) = response.response else {
            continue;
        };
        let current = range.kvs.first().map(|kv| kv.mod_revision as Revision);
        let holds = match op.precondition {
            Precondition::Any => true,
            Precondition::Absent => current.is_none(),
            Precondition::Exists => current.is_some(),
            Precondition::Revision(revision) => current == Some(revision),
        };
        if !holds {
            return Error::Conflict {
                key: op.key.clone(),
                current,
            };
        }
    }
    Error::Unavailable(
        "the objects of this etcd were moved, or are being moved: restart this server where they are now".into(),
    )
}
