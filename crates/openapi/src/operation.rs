//! One operation of a path, in both document versions.

use machinery::json::json;
use machinery::{Object, Value, openapi::Dialect};

use super::parameters::Parameter;

/// One method of a path.
#[derive(Default)]
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) id: String,
    pub(super) tag: String,
    pub(super) description: String,
    pub(super) consumes: &'static [&'static str],
    pub(super) produces: Vec<&'static str>,
    pub(super) parameters: Vec<Parameter>,
    pub(super) body: Option<Body>,
    pub(super) answer: Answer,
    /// Codes other than 200 with the same response.
    pub(super) codes: &'static [(&'static str, &'static str)],
    /// The action and the kind of the request; `None` for discovery and the like.
    pub(super) action: Option<(&'static str, GroupVersionKind)>,
}

/// The request body.
pub(super) struct Body {
    pub(super) definition: String,
    pub(super) required: bool,
}

/// The response body.
#[derive(Default)]
pub(super) enum Answer {
    #[default]
    Text,
    Of(String),
}

#[derive(Clone)]
pub(super) struct GroupVersionKind {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) kind: String,
}

impl GroupVersionKind {
    pub(super) fn json(&self) -> Value {
        json!({"group": self.group, "kind": self.kind, "version": self.version})
    }
}

/// A path with its operations; common parameters are listed once.
pub(super) fn path_item(dialect: Dialect, mut operations: Vec<Operation>) -> Value {
    let everywhere = |parameter: &Parameter| {
        let has = |operation: &Operation| operation.parameters.contains(parameter);
        operations.iter().all(has)
    };
    let first = operations.first().map(|first| first.parameters.clone());
    let mut common = first.unwrap_or_default();
    common.retain(everywhere);
    for operation in &mut operations {
        operation.parameters.retain(|own| !common.contains(own));
    }
    let mut item = Object::new();
    for operation in operations {
        item.insert(operation.method.to_owned(), operation.json(dialect));
    }
    if !common.is_empty() {
        item.insert("parameters".to_owned(), list(dialect, &mut common));
    }
    Value::Object(item)
}

fn list(dialect: Dialect, parameters: &mut [Parameter]) -> Value {
    parameters.sort_by(|one, other| (one.name, one.place).cmp(&(other.name, other.place)));
    parameters.iter().map(|one| one.json(dialect)).collect()
}

pub(super) fn reference(dialect: Dialect, definition: &str) -> Value {
    let place = match dialect {
        Dialect::V2 => "definitions",
        Dialect::V3 => "components/schemas",
    };
    json!({"$ref": format!("#/{place}/{definition}")})
}

impl Operation {
    fn json(mut self, dialect: Dialect) -> Value {
        let mut out = Object::new();
        let mut put = |name: &str, value: Value| {
            out.insert(name.to_owned(), value);
        };
        put("tags", json!([self.tag]));
        put("description", self.description.as_str().into());
        put("operationId", self.id.as_str().into());
        let mut parameters = list(dialect, &mut self.parameters);
        if dialect == Dialect::V2 {
            if !self.consumes.is_empty() {
                put("consumes", json!(self.consumes));
            }
            put("produces", json!(self.produces));
            put("schemes", json!(["https"]));
            if let (Some(body), Value::Array(parameters)) = (&self.body, &mut parameters) {
                let at = parameters.iter().position(|other| {
                    let name = other.get("name").and_then(Value::as_str);
                    name.is_some_and(|name| name > "body")
                });
                parameters.insert(at.unwrap_or(parameters.len()), body.parameter());
            }
        } else if let Some(body) = &self.body {
            put("requestBody", body.content(self.consumes));
        }
        if parameters.as_array().is_some_and(|list| !list.is_empty()) {
            put("parameters", parameters);
        }
        put("responses", self.responses(dialect));
        if let Some((action, kind)) = &self.action {
            put("x-kubernetes-action", (*action).into());
            put("x-kubernetes-group-version-kind", kind.json());
        }
        Value::Object(out)
    }

    fn responses(&self, dialect: Dialect) -> Value {
        let schema = match &self.answer {
            Answer::Text => json!({"type": "string"}),
            Answer::Of(definition) => reference(dialect, definition),
        };
        let mut out = Object::new();
        for (code, text) in [("200", "OK")].iter().chain(self.codes) {
            let mut response = json!({"description": text});
            match dialect {
                Dialect::V2 => response["schema"] = schema.clone(),
                Dialect::V3 => response["content"] = content(&self.produces, &schema),
            }
            out.insert((*code).to_owned(), response);
        }
        out.insert("401".to_owned(), json!({"description": "Unauthorized"}));
        Value::Object(out)
    }
}

/// The same schema in every media type.
fn content(media: &[&'static str], schema: &Value) -> Value {
    let mut media = media.to_vec();
    media.sort_unstable();
    let each = |media: &&str| ((*media).to_owned(), json!({"schema": schema}));
    Value::Object(media.iter().map(each).collect())
}

impl Body {
    fn parameter(&self) -> Value {
        let mut out = json!({"in": "body", "name": "body"});
        if self.required {
            out["required"] = true.into();
        }
        out["schema"] = reference(Dialect::V2, &self.definition);
        out
    }

    fn content(&self, consumes: &[&'static str]) -> Value {
        let schema = reference(Dialect::V3, &self.definition);
        let mut out = json!({"content": content(consumes, &schema)});
        if self.required {
            out["required"] = true.into();
        }
        out
    }
}
