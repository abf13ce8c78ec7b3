//! Validates the expressions of a written policy: all of them must compile.

use kinds::tree;
use machinery::{
    Object, Value,
    field::{Error, Errors, Path},
};

use super::{
    super::matching::{Variables, check_conditions},
    expression::{Compiler, Output},
};

/// The errors in a policy's expressions; `old` is the stored policy.
pub fn check(is_mutating: bool, object: &Object, old: Option<&Object>) -> Errors {
    let spec = tree::get(object, "spec");
    let mut errors = Errors::new();
    if old.is_none_or(|old| conditions_change(spec, tree::get(old, "spec"))) {
        let variables = Variables {
            params: tree::is_set(&spec["paramKind"]),
            authorizer: true,
        };
        let path = Path::new("spec.matchConditions");
        errors.extend(check_conditions(&spec["matchConditions"], variables, &path));
    }
    let mut checker = Checker::new(spec, is_mutating);
    match is_mutating {
        false => checker.validating(spec, &mut errors),
        true => checker.mutating(spec, &mut errors),
    }
    errors
}

/// Whether match conditions must be compiled: unchanged ones are not checked again.
fn conditions_change(new: &Value, old: &Value) -> bool {
    let changed = |key: &str| !tree::same(&new[key], &old[key]);
    changed("paramKind") || changed("matchConditions")
}

/// The error of an expression. As upstream, one that compiles but has no program is an internal error.
pub(crate) fn refused(path: &Path, expression: &str, why: String) -> Error {
    match why.starts_with("program instantiation failed") {
        true => Error::internal(path, why),
        false => Error::invalid(path, expression, why),
    }
}

struct Checker {
    compiler: Compiler,
}

impl Checker {
    fn new(spec: &Value, mutating: bool) -> Self {
        let composes = mutating || !tree::list(&spec["variables"]).is_empty();
        let params = tree::is_set(&spec["paramKind"]);
        Self {
            compiler: Compiler::new(params, composes),
        }
    }

    fn variables(&mut self, spec: &Value, errors: &mut Errors) {
        for (i, variable) in tree::list(&spec["variables"]).iter().enumerate() {
            let text = tree::text(&variable["expression"]);
            if let Err(why) = self.compiler.compose(tree::text(&variable["name"]), text) {
                let path = Path::new("spec.variables");
                let path = path.index(i);
                errors.push(refused(&path.child("expression"), text, why));
            }
        }
    }

    fn compile(
        &mut self,
        text: &str,
        output: Output,
        authorizer: bool,
        path: &Path,
        errors: &mut Errors,
    ) {
        let expression = self.compiler.compile(text, output, authorizer);
        if let Err(why) = expression.compiled {
            errors.push(refused(path, text, why));
        }
    }

    fn validating(&mut self, spec: &Value, errors: &mut Errors) {
        self.variables(spec, errors);
        let path = Path::new("spec");
        for (i, validation) in tree::list(&spec["validations"]).iter().enumerate() {
            let at = path.child("validations");
            let at = at.index(i);
            let text = |key: &str| tree::text(&validation[key]);
            self.compile(
                text("expression"),
                Output::Bool,
                true,
                &at.child("expression"),
                errors,
            );
            if !text("messageExpression").trim().is_empty() {
                let at = at.child("messageExpression");
                self.compile(text("messageExpression"), Output::Text, false, &at, errors);
            }
        }
        for (i, annotation) in tree::list(&spec["auditAnnotations"]).iter().enumerate() {
            let at = path.child("auditAnnotations");
            let at = at.index(i);
            let given = tree::text(&annotation["valueExpression"]);
            let expression = self
                .compiler
                .compile(given.trim(), Output::TextOrNull, true);
            if let Err(why) = expression.compiled {
                errors.push(refused(&at.child("valueExpression"), given, why));
            }
        }
    }

    fn mutating(&mut self, spec: &Value, errors: &mut Errors) {
        self.variables(spec, errors);
        for (i, mutation) in tree::list(&spec["mutations"]).iter().enumerate() {
            let (key, output) = match mutation["patchType"].as_str() {
                Some("JSONPatch") => ("jsonPatch", Output::JsonPatch),
                _ => ("applyConfiguration", Output::ApplyConfiguration),
            };
            let path = Path::new("spec.mutations");
            let path = path.index(i);
            let path = path.child(key);
            let text = tree::text(&mutation[key]["expression"]).trim();
            self.compile(text, output, true, &path.child("expression"), errors);
        }
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::testing::object;

    fn said(is_mutating: bool, spec: Value, old: Option<Value>) -> Vec<String> {
        let policy = |spec: Value| object(json!({"metadata": {"name": "p"}, "spec": spec}));
        let old = old.map(policy);
        let errors = check(is_mutating, &policy(spec), old.as_ref());
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_expression_of_a_validating_policy_compiles() {
        let validating = |spec: Value| said(false, spec, None);
        let fine = json!({
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConditions": [{"name": "a", "expression": "params != null"}],
            "variables": [{"name": "a", "expression": "object.spec"}, {"name": "b", "expression": "variables.a.b"}],
            "validations": [{"expression": "variables.b == 1 && authorizer.path('/a').check('get').allowed()",
                             "messageExpression": "'b is ' + string(variables.b) + request.namespace"}],
            "auditAnnotations": [{"key": "k", "valueExpression": "namespaceObject.metadata.name"}],
        });
        assert_eq!(validating(fine), [""; 0]);
        for (spec, wanted) in [
            (
                json!({"validations": [{"expression": "object.spec.replicas"}]}),
                "spec.validations[0].expression: Invalid value: \"object.spec.replicas\": must evaluate to bool but got dyn",
            ),
            (
                json!({"validations": [{"expression": "params.a == 1"}]}),
                "spec.validations[0].expression: Invalid value: \"params.a == 1\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'params' (in container '')\n | params.a == 1\n | ^",
            ),
            (
                json!({"validations": [{"expression": "true", "messageExpression": "1"}]}),
                "spec.validations[0].messageExpression: Invalid value: \"1\": must evaluate to string but got int",
            ),
            (
                json!({"variables": [{"name": "a", "expression": "b"}]}),
                "spec.variables[0].expression: Invalid value: \"b\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'b' (in container '')\n | b\n | ^",
            ),
            (
                json!({"auditAnnotations": [{"key": "k", "valueExpression": " 1 "}]}),
                "spec.auditAnnotations[0].valueExpression: Invalid value: \" 1 \": must evaluate to one of [string null_type] but got int",
            ),
            (
                json!({"matchConditions": [{"name": "a", "expression": "1"}]}),
                "spec.matchConditions[0].expression: Invalid value: \"1\": must evaluate to bool but got int",
            ),
        ] {
            assert_eq!(validating(spec.clone()), [wanted], "{spec}");
        }
        let authorizer = json!({"validations": [{"expression": "true",
            "messageExpression": "string(authorizer.path('/').check('get').allowed())"}]});
        let found = validating(authorizer);
        assert!(
            found[0].contains("undeclared reference to 'authorizer'"),
            "{found:?}"
        );
    }

    #[test]
    fn conditions_that_stay_as_they_were_are_not_looked_at_again() {
        let spec = json!({"matchConditions": [{"name": "a", "expression": "1"}]});
        let said = said(false, spec.clone(), Some(spec));
        assert_eq!(said, [""; 0]);
    }

    #[test]
    fn every_expression_of_a_mutating_policy_compiles() {
        let mutating = |mutation: Value| said(true, json!({"mutations": [mutation]}), None);
        let apply = |text: &str| {
            mutating(
                json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": text}}),
            )
        };
        let patch = |text: &str| {
            mutating(json!({"patchType": "JSONPatch", "jsonPatch": {"expression": text}}))
        };
        assert_eq!(apply("Object{spec: Object.spec{replicas: 3}}"), [""; 0]);
        assert_eq!(
            patch("[JSONPatch{op: 'add', path: '/a/' + jsonpatch.escapeKey('b/c'), value: 1}]"),
            [""; 0]
        );
        assert_eq!(
            apply("{}"),
            [
                "spec.mutations[0].applyConfiguration.expression: Invalid value: \"{}\": must evaluate to Object but got map(dyn, dyn)"
            ]
        );
        let wrong = patch("[JSONPatch{op: 1}]");
        assert!(
            wrong[0].contains("expected type of field 'op' is 'string' but provided type is 'int'"),
            "{wrong:?}"
        );
        let unknown = apply("variables.a");
        assert!(unknown[0].contains("undefined field 'a'"), "{unknown:?}");
    }

    #[test]
    fn an_expression_without_a_program_is_an_internal_error() {
        let spec = json!({"mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration":
            {"expression": "Object{spec: Object.spec{replicas: int('x')}}"}}]});
        assert_eq!(
            said(true, spec, None),
            [
                "spec.mutations[0].applyConfiguration.expression: Internal error: program instantiation failed: type conversion error from 'string' to 'int'"
            ]
        );
    }
}
