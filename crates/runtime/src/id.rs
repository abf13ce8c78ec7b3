//! Ids of sandboxes, containers and processes.

use uuid::Uuid;

/// 64 random hexadecimal digits, as other runtimes use.
pub(crate) fn generate() -> String {
    format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}
