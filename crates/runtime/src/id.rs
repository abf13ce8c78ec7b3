//! Names of sandboxes, containers and processes.

use uuid::Uuid;

/// 64 hexadecimal digits that nothing else has, as other runtimes' ids look.
pub(crate) fn generate() -> String {
    format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}
