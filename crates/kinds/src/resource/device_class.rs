//! DeviceClass: a kind of device that can be asked for.

use crate::Scope;
use crate::builtin::Builtin;
use crate::metadata::Check;

pub const KIND: Builtin = Builtin {
    group: "resource.k8s.io",
    kind: "DeviceClass",
    plural: "deviceclasses",
    scope: Scope::Cluster,
    schema: "resource/v1.DeviceClass",
    has_generation: true,
    metadata_checks: &[Check::Whole, Check::Change],
    ..Builtin::EMPTY
};
