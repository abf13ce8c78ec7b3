//! The apiVersion and kind of a body, or Kubernetes' error.

use super::{Format, tree};
use crate::{Value, patch::json::go_kind};

/// `apiVersion` and `kind` of a body; empty where they are missing.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct TypeMeta {
    pub api_version: String,
    pub kind: String,
}

impl TypeMeta {
    /// From JSON.
    pub fn from_json(bytes: &[u8]) -> Result<Self, String> {
        let (value, ..) = tree(Format::Json, bytes).map_err(parse_error)?;
        Self::from_value(value)
    }

    /// From a parsed body.
    pub fn from_value(value: Value) -> Result<Self, String> {
        let map = match value {
            Value::Null => return Ok(Self::default()),
            Value::Object(map) => map,
            other => {
                return Err(parse_error(format!(
                    r#"json: cannot unmarshal {} into Go value of type struct {{ APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }}"#,
                    go_kind(&other)
                )));
            }
        };
        let text = |key: &str| match map.get(key) {
            None | Some(Value::Null) => Ok(String::new()),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(other) => Err(parse_error(format!(
                "json: cannot unmarshal {} into Go struct field .{key} of type string",
                go_kind(other)
            ))),
        };
        let meta = Self {
            api_version: text("apiVersion")?,
            kind: text("kind")?,
        };
        if meta.api_version.matches('/').count() > 1 {
            let version = &meta.api_version;
            return Err(format!("unexpected GroupVersion string: {version}"));
        }
        Ok(meta)
    }
}

fn parse_error(why: String) -> String {
    format!("couldn't get version/kind; json parse error: {why}")
}
