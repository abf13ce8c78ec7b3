//! PodMetrics: the usage of a pod's containers, averaged over a window.

use super::{COLUMNS, sum};
use crate::builtin::Builtin;
use crate::columns::name_cell;
use crate::tree::{get, list};
use crate::{Answers, ServerSide};

pub const KIND: Builtin = Builtin {
    group: "metrics.k8s.io",
    version: "v1beta1",
    kind: "PodMetrics",
    plural: "pods",
    schema: "metrics/v1beta1.PodMetrics",
    verbs: &["get", "list"],
    is_virtual: true,
    server_side: ServerSide {
        answers: Answers::Usage,
        ..ServerSide::NONE
    },
    columns: COLUMNS,
    row: |object, _| {
        let containers = || list(get(object, "containers")).iter();
        let used = |resource| sum(containers().map(|one| &one["usage"]), resource);
        vec![
            name_cell(object),
            used("cpu"),
            used("memory"),
            get(object, "window").clone(),
        ]
    },
    ..Builtin::EMPTY
};
