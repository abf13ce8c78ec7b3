//! ComponentStatus: the health of the control plane's components. Computed, never stored.

use crate::builtin::Builtin;
use crate::columns::{NAME, column, name_cell};
use crate::tree::{get, list, text};
use crate::{Answers, Scope, ServerSide};

pub const KIND: Builtin = Builtin {
    kind: "ComponentStatus",
    plural: "componentstatuses",
    deprecation: Some("v1 ComponentStatus is deprecated in v1.19+"),
    short_names: &["cs"],
    scope: Scope::Cluster,
    schema: "core/v1.ComponentStatus",
    verbs: &["get", "list"],
    is_virtual: true,
    server_side: ServerSide {
        answers: Answers::ComponentHealth,
        ..ServerSide::NONE
    },
    columns: &[
        NAME,
        column("Status", "string", "Whether it is healthy."),
        column("Message", "string", "Message of the component."),
        column("Error", "string", "What went wrong."),
    ],
    row: |object, _| {
        let healthy = list(get(object, "conditions"))
            .iter()
            .find(|c| c["type"] == "Healthy");
        let (status, message, error) = match healthy {
            Some(c) if c["status"] == "True" => ("Healthy", text(&c["message"]), text(&c["error"])),
            Some(c) => ("Unhealthy", text(&c["message"]), text(&c["error"])),
            None => ("Unknown", "", ""),
        };
        vec![
            name_cell(object),
            status.into(),
            message.into(),
            error.into(),
        ]
    },
    ..Builtin::EMPTY
};
