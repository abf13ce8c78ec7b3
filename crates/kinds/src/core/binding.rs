//! Binding: assigns a pod to a node. Never stored: creating one binds the pod.

use crate::builtin::Builtin;
use crate::{Answers, ServerSide};

pub const KIND: Builtin = Builtin {
    kind: "Binding",
    plural: "bindings",
    schema: "core/v1.Binding",
    verbs: &["create"],
    is_virtual: true,
    server_side: ServerSide {
        answers: Answers::Binding,
        ..ServerSide::NONE
    },
    ..Builtin::EMPTY
};
