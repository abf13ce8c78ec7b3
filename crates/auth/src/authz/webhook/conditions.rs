//! The match conditions of an authorization webhook: CEL expressions over `request`, the spec of the
//! SubjectAccessReview. The webhook is called only if all of them are true.

use std::sync::{Arc, LazyLock};

use cel::{Decl, DeclKind, Env, Field, ListSemantics, PER_CALL_LIMIT, Program, Type};
use machinery::Value;

/// Compiled match conditions.
#[derive(Debug, Default)]
pub(super) struct Conditions(Vec<(String, Program)>);

impl Conditions {
    pub(super) fn push(&mut self, text: &str) -> Result<(), String> {
        self.0.push((text.to_owned(), compile(text)?));
        Ok(())
    }

    /// Whether all conditions are true. A false condition takes precedence over an evaluation error.
    pub(super) fn are_true(&self, spec: &Value) -> Result<bool, String> {
        if self.0.is_empty() {
            return Ok(true);
        }
        let request = cel::Value::from_json(spec, Some(&*REQUEST.1));
        let request = request.map_err(|error| error.to_string())?;
        let mut failed = None;
        for (text, program) in &self.0 {
            let evaluation = program.evaluate(std::slice::from_ref(&request), PER_CALL_LIMIT);
            match evaluation.result {
                Ok(cel::Value::Bool(true)) => {}
                Ok(cel::Value::Bool(false)) => return Ok(false),
                Ok(_) => failed = Some(format!("match condition '{text}' is not a boolean")),
                Err(error) => {
                    failed = Some(format!("match condition '{text}' failed: {error}"));
                }
            }
        }
        failed.map_or(Ok(true), Err)
    }
}

fn compile(text: &str) -> Result<Program, String> {
    let env = &REQUEST.0;
    let checked =
        cel::compile(env, text).map_err(|issues| format!("compilation failed: {issues}"))?;
    if *checked.output() != Type::Bool {
        return Err("must evaluate to bool".to_owned());
    }
    Program::new(env, &checked).map_err(|error| format!("instantiation failed: {error}"))
}

static REQUEST: LazyLock<(Env, Arc<Decl>)> = LazyLock::new(|| {
    let decl = declaration();
    (Env::new().declared("request", decl.clone()), decl)
});

fn plain(kind: DeclKind) -> Arc<Decl> {
    Arc::new(Decl::new(kind, u64::MAX))
}

fn text() -> Arc<Decl> {
    plain(DeclKind::String)
}

fn list(element: Arc<Decl>) -> Arc<Decl> {
    plain(DeclKind::List {
        element,
        semantics: ListSemantics::Atomic,
    })
}

fn object(name: &str, fields: &[(&str, Arc<Decl>)]) -> Arc<Decl> {
    let fields = fields.iter().map(|(field, decl)| {
        // Upstream escapes no field name here, not even `namespace`, which is a reserved word in CEL.
        let json: Arc<str> = (*field).into();
        let decl = decl.clone();
        (json.clone(), Field { json, decl })
    });
    plain(DeclKind::Object {
        name: format!("kubernetes.{name}").into(),
        fields: fields.collect(),
    })
}

fn declaration() -> Arc<Decl> {
    let selector = |name: &str, requirement: &str| {
        let requirement = object(
            requirement,
            &[
                ("key", text()),
                ("operator", text()),
                ("values", list(text())),
            ],
        );
        object(
            name,
            &[("rawSelector", text()), ("requirements", list(requirement))],
        )
    };
    let resource = object(
        "ResourceAttributes",
        &[
            ("namespace", text()),
            ("verb", text()),
            ("group", text()),
            ("version", text()),
            ("resource", text()),
            ("subresource", text()),
            ("name", text()),
            (
                "fieldSelector",
                selector("FieldSelectorAttributes", "FieldSelectorRequirement"),
            ),
            (
                "labelSelector",
                selector("LabelSelectorAttributes", "LabelSelectorRequirement"),
            ),
        ],
    );
    let path = object(
        "NonResourceAttributes",
        &[("path", text()), ("verb", text())],
    );
    object(
        "SubjectAccessReviewSpec",
        &[
            ("resourceAttributes", resource),
            ("nonResourceAttributes", path),
            ("user", text()),
            ("groups", list(text())),
            ("extra", plain(DeclKind::map(list(text())))),
            ("uid", text()),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinery::json::json;

    #[test]
    fn all_conditions_have_to_hold() {
        let spec = json!({"user": "eve", "groups": ["a"], "resourceAttributes": {"namespace": "kube-system", "verb": "get"}});
        let hold = |texts: &[&str]| {
            let mut conditions = Conditions::default();
            texts.iter().for_each(|text| conditions.push(text).unwrap());
            conditions.are_true(&spec)
        };
        assert_eq!(hold(&[]), Ok(true));
        let inside = "has(request.resourceAttributes) && request.resourceAttributes.namespace == 'kube-system'";
        assert_eq!(
            hold(&[inside, "!('system:masters' in request.groups)"]),
            Ok(true)
        );
        assert_eq!(hold(&[inside, "request.user == 'bob'"]), Ok(false));
        assert!(hold(&["request.uid == 'x'"]).is_err(), "it is not set");
        assert_eq!(hold(&["request.uid == 'x'", "false"]), Ok(false));
    }

    #[test]
    fn what_is_no_condition_is_refused() {
        let push = |text: &str| Conditions::default().push(text).unwrap_err();
        assert_eq!(push("request.user"), "must evaluate to bool");
        assert!(push("request.name == 'x'").contains("undefined field 'name'"));
    }
}
