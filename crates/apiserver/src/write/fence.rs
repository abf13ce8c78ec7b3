//! The fence of a leader: a precondition on every commit of its writes. The Lease of the leader's
//! term is written once, when the term begins; the next leader writes it again. From then on every
//! commit of the previous leader fails in the store itself, however late it arrives.

use machinery::Status;
use store::{Action, Key, Op, Precondition, Revision};

use crate::Draft;

/// The Lease of a term, as the leader wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    key: Key,
    revision: Revision,
    /// For messages.
    lease: String,
}

impl Fence {
    /// Requires that the Lease of this namespace and name still has this resourceVersion.
    pub fn lease(namespace: &str, name: &str, resource_version: &str) -> Option<Self> {
        Some(Self {
            key: registry::object_key("coordination.k8s.io", "leases", namespace, name),
            revision: resource_version.parse().ok()?,
            lease: format!("{namespace}/{name}"),
        })
    }

    /// Adds the precondition, unless the commit writes the Lease itself.
    pub(super) fn add_precondition(&self, ops: &mut Vec<Op<Draft>>) {
        if ops.iter().any(|op| op.key == self.key) {
            return;
        }
        ops.push(Op {
            key: self.key.clone(),
            precondition: Precondition::Revision(self.revision),
            action: Action::Check,
        });
    }

    pub(super) fn is_at(&self, key: &Key) -> bool {
        self.key == *key
    }

    /// The error for a leader whose term is over. Retrying is of no use.
    pub(super) fn leader_replaced(&self) -> Status {
        let lease = &self.lease;
        let why = format!("this leader was replaced: another holder wrote the Lease {lease}");
        Status::failure(403, "Forbidden", why)
    }
}
