//! YAML on the way out: the same tree as the JSON.

use machinery::{Status, Value};

/// Rewrites a JSON document.
pub(crate) fn from_json(json: &[u8]) -> Result<String, Status> {
    let value: Value = machinery::json::from_slice(json).map_err(Status::internal)?;
    serde_saphyr::to_string(&value).map_err(Status::internal)
}
