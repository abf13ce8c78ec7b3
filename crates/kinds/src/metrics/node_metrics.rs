//! NodeMetrics: the usage of a node, averaged over a window.

use super::{COLUMNS, sum};
use crate::Scope;
use crate::builtin::Builtin;
use crate::columns::name_cell;
use crate::tree::get;

pub const KIND: Builtin = Builtin {
    group: "metrics.k8s.io",
    version: "v1beta1",
    kind: "NodeMetrics",
    plural: "nodes",
    scope: Scope::Cluster,
    schema: "metrics/v1beta1.NodeMetrics",
    verbs: &["get", "list"],
    is_virtual: true,
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
