//! ServiceAccount: an identity for processes in pods.

use crate::SubresourceInfo;
use crate::builtin::Builtin;

pub const KIND: Builtin = Builtin {
    kind: "ServiceAccount",
    plural: "serviceaccounts",
    short_names: &["sa"],
    schema: "core/v1.ServiceAccount",
    subresources: &[SubresourceInfo {
        name: "token",
        group: "authentication.k8s.io",
        version: "v1",
        kind: "TokenRequest",
        verbs: &["create"],
    }],
    ..Builtin::EMPTY
};
