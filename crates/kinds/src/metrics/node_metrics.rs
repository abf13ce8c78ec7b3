//! NodeMetrics: the usage of a node, averaged over a window.

use super::{COLUMNS, sum};
use crate::builtin::Builtin;
use crate::columns::name_cell;
use crate::tree::get;
use crate::{Answers, Scope, ServerSide};

pub const KIND: Builtin = Builtin {
    group: "metrics.k8s.io",
    version: "v1beta1",
    kind: "NodeMetrics",
    plural: "nodes",
    scope: Scope::Cluster,
    schema: "metrics/v1beta1.NodeMetrics",
    verbs: &["get", "list"],
    is_virtual: true,
    server_side: ServerSide {
        answers: Answers::Usage,
        ..ServerSide::NONE
    },
    columns: COLUMNS,
    row: |object, _| {
        let used = |resource| sum([get(object, "usage")].into_iter(), resource);
        vec![
            name_cell(object),
            used("cpu"),
            used("memory"),
            get(object, "window").clone(),
        ]
    },
    ..Builtin::EMPTY
};
