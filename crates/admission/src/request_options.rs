//! The options of a request: `CreateOptions`, `UpdateOptions` or `DeleteOptions`, as webhooks and policies see them.

use machinery::{Value, json::json};
use serde::Deserialize;

use super::Operation;

/// The options of a delete.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeleteOptions {
    pub grace_period_seconds: Option<i64>,
    pub preconditions: Option<Preconditions>,
    pub orphan_dependents: Option<bool>,
    pub propagation_policy: Option<String>,
    pub dry_run: Vec<String>,
}

/// Preconditions of a delete.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Preconditions {
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

/// The options as the client sent them, without defaults.
#[derive(Debug, Clone, Default)]
pub struct RequestOptions {
    pub dry_run: bool,
    pub field_manager: Option<String>,
    pub field_validation: Option<String>,
    /// The options of a delete.
    pub delete: Option<DeleteOptions>,
}

impl RequestOptions {
    /// The options object; null for connections. A patch has those of an update or a create.
    pub fn to_json(&self, operation: Operation) -> Value {
        let kind = match operation {
            Operation::Create => "CreateOptions",
            Operation::Update => "UpdateOptions",
            Operation::Delete => "DeleteOptions",
            Operation::Connect => return Value::Null,
        };
        let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
        let mut set = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                options[key] = value;
            }
        };
        if self.dry_run {
            set("dryRun", Some(json!(["All"])));
        }
        if operation != Operation::Delete {
            set("fieldManager", self.field_manager.clone().map(Value::from));
            set(
                "fieldValidation",
                self.field_validation.clone().map(Value::from),
            );
            return options;
        }
        let given = self.delete.clone().unwrap_or_default();
        set(
            "gracePeriodSeconds",
            given.grace_period_seconds.map(Value::from),
        );
        set("orphanDependents", given.orphan_dependents.map(Value::from));
        set(
            "propagationPolicy",
            given.propagation_policy.map(Value::from),
        );
        if let Some(wanted) = given.preconditions {
            let mut preconditions = json!({});
            for (key, value) in [
                ("uid", wanted.uid),
                ("resourceVersion", wanted.resource_version),
            ] {
                if let Some(value) = value {
                    preconditions[key] = value.into();
                }
            }
            set("preconditions", Some(preconditions));
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_of_the_operation() {
        let mut options = RequestOptions {
            dry_run: true,
            field_manager: Some("me".to_owned()),
            field_validation: None,
            delete: None,
        };
        assert_eq!(
            options.to_json(Operation::Create),
            json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "dryRun": ["All"], "fieldManager": "me"})
        );
        options.delete = Some(DeleteOptions {
            grace_period_seconds: Some(0),
            ..DeleteOptions::default()
        });
        assert_eq!(
            options.to_json(Operation::Delete),
            json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "dryRun": ["All"], "gracePeriodSeconds": 0})
        );
        assert!(options.to_json(Operation::Connect).is_null());
    }
}
