//! Expressions of a policy: compiled with its composed variables, evaluated within a cost budget.

use std::{collections::HashMap, sync::Arc};

use cel::{Checked, Decl, DeclKind, Env, Field, JSON_PATCH, ListSemantics, OBJECT, Program, Type};

use super::{
    super::matching::{Variables as Given, environment},
    variables::{Composes, Variables},
};

/// The required result type of an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    Bool,
    Text,
    TextOrNull,
    Anything,
    ApplyConfiguration,
    JsonPatch,
}

impl Output {
    fn types(self) -> Vec<Type> {
        match self {
            Self::Bool => vec![Type::Bool],
            Self::Text => vec![Type::String],
            Self::TextOrNull => vec![Type::String, Type::Null],
            Self::Anything => Vec::new(),
            Self::ApplyConfiguration => vec![Type::Struct(OBJECT.into())],
            Self::JsonPatch => vec![Type::list(Type::Struct(JSON_PATCH.into()))],
        }
    }

    fn check(self, found: &Type) -> Result<(), String> {
        let wanted = self.types();
        if wanted.is_empty() || wanted.contains(found) {
            return Ok(());
        }
        let names: Vec<String> = wanted.iter().map(Type::declared_name).collect();
        let found = found.declared_name();
        Err(match names.as_slice() {
            [one] => format!("must evaluate to {one} but got {found}"),
            many => format!(
                "must evaluate to one of [{}] but got {found}",
                many.join(" ")
            ),
        })
    }

    fn is_patch(self) -> bool {
        matches!(self, Self::ApplyConfiguration | Self::JsonPatch)
    }
}

/// Which optional values an evaluation needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Uses {
    pub(super) request: bool,
    pub(super) namespace: bool,
    pub(super) authorizer: bool,
}

impl Uses {
    fn from_checked(checked: &Checked) -> Self {
        let authorizer = ["authorizer", "authorizer.requestResource"];
        Self {
            request: checked.refers_to("request"),
            namespace: checked.refers_to("namespaceObject"),
            authorizer: authorizer.iter().any(|name| checked.refers_to(name)),
        }
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self {
            request: self.request || other.request,
            namespace: self.namespace || other.namespace,
            authorizer: self.authorizer || other.authorizer,
        }
    }
}

/// An expression and its compiled program.
#[derive(Debug)]
pub(super) struct Expression {
    pub(super) text: String,
    pub(super) compiled: Result<Program, String>,
    pub(super) uses: Uses,
    /// The composed variables it uses.
    pub(super) composes: Composes,
    /// Its result type, if it compiles.
    output: Option<Type>,
}

/// Compiles the expressions of one policy in order: variables are visible to later expressions.
pub(super) struct Compiler {
    params: bool,
    /// The fields of `variables`; `None` if that variable does not exist.
    composed: Option<HashMap<Arc<str>, Field>>,
    variables: Variables,
    /// Cached environments: with the authorizer, without it, for patches.
    environments: [Option<Env>; 3],
}

impl Compiler {
    /// `params`: whether the policy has a paramKind. `composes`: whether `variables` exists.
    pub(super) fn new(params: bool, composes: bool) -> Self {
        Self {
            params,
            composed: composes.then(HashMap::new),
            variables: Variables::default(),
            environments: [const { None }; 3],
        }
    }

    /// Adds a variable; returns its compilation error.
    pub(super) fn compose(&mut self, name: &str, text: &str) -> Result<(), String> {
        let expression = self.compile(text, Output::Anything, true);
        let outcome = expression
            .compiled
            .as_ref()
            .map(|_| ())
            .map_err(Clone::clone);
        let decl = declared(expression.output.as_ref().unwrap_or(&Type::Dyn));
        let name: Arc<str> = name.into();
        let json = name.clone();
        let field = Field { json, decl };
        for env in self.environments.iter_mut().flatten() {
            env.lazy_field(field.clone());
        }
        if let Some(fields) = &mut self.composed {
            fields.insert(name.clone(), field);
        }
        self.variables.push(name, expression);
        outcome
    }

    /// Compiles an expression, with or without the authorizer.
    pub(super) fn compile(&mut self, text: &str, output: Output, authorizer: bool) -> Expression {
        let env = self.environment(output, authorizer);
        let checked = cel::compile(env, text)
            .map_err(|issues| format!("compilation failed: {issues}"))
            .and_then(|checked| output.check(checked.output()).map(|()| checked));
        let uses = checked.as_ref().map(Uses::from_checked).unwrap_or_default();
        let output = checked.as_ref().ok();
        let output = output.map(|checked| checked.output().clone());
        let compiled = checked.and_then(|checked| {
            Program::new(env, &checked)
                .map_err(|error| format!("program instantiation failed: {}", error.message))
        });
        Expression {
            text: text.to_owned(),
            composes: self.variables.used_by(compiled.as_ref().ok()),
            output,
            compiled,
            uses,
        }
    }

    pub(super) fn into_variables(self) -> Variables {
        self.variables
    }

    fn environment(&mut self, output: Output, authorizer: bool) -> &Env {
        let place = match (output.is_patch(), authorizer) {
            (true, _) => 2,
            (false, true) => 0,
            (false, false) => 1,
        };
        let (params, composed) = (self.params, &self.composed);
        self.environments[place].get_or_insert_with(|| {
            let env = environment(Given { params, authorizer });
            let env = match composed {
                Some(fields) => env.lazy("variables", variables_type(fields.clone())),
                None => env,
            };
            match output.is_patch() {
                true => env.with_patches(),
                false => env,
            }
        })
    }
}

/// The type of `variables`.
pub(super) fn variables_type(fields: HashMap<Arc<str>, Field>) -> Arc<Decl> {
    let kind = DeclKind::Object {
        name: "kubernetes.variables".into(),
        fields,
    };
    Arc::new(Decl::new(kind, u64::MAX))
}

/// The declaration of a variable's type. Objects lose their type, as upstream.
pub(super) fn declared(output: &Type) -> Arc<Decl> {
    let kind = match output {
        Type::List(element) => DeclKind::List {
            element: declared(element),
            semantics: ListSemantics::Atomic,
        },
        Type::Map(key, value) if **key == Type::String => DeclKind::map(declared(value)),
        Type::Bool
        | Type::Bytes
        | Type::Double
        | Type::Duration
        | Type::Int
        | Type::Null
        | Type::String
        | Type::Timestamp
        | Type::Uint
        | Type::Map(..) => DeclKind::Plain(output.clone()),
        _ => DeclKind::Dyn,
    };
    Arc::new(Decl::new(kind, u64::MAX))
}

/// The values that these expressions use, also through variables.
pub(super) fn uses<'e>(
    expressions: impl Iterator<Item = &'e Expression>,
    variables: &Variables,
) -> Uses {
    let variables = variables.expressions().map(|expression| expression.uses);
    let own = expressions.map(|expression| expression.uses);
    own.chain(variables).fold(Uses::default(), Uses::and)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_type_of_an_expression_is_checked() {
        let said = |text: &str, output: Output| {
            let expression = Compiler::new(false, false).compile(text, output, true);
            expression.compiled.map(drop).unwrap_err()
        };
        for (text, output, wanted) in [
            ("1", Output::Bool, "must evaluate to bool but got int"),
            (
                "object.a",
                Output::Bool,
                "must evaluate to bool but got dyn",
            ),
            (
                "1u",
                Output::TextOrNull,
                "must evaluate to one of [string null_type] but got uint",
            ),
            (
                "JSONPatch{}",
                Output::JsonPatch,
                "must evaluate to list(JSONPatch) but got JSONPatch",
            ),
            (
                "Object.spec{}",
                Output::ApplyConfiguration,
                "must evaluate to Object but got Object.spec",
            ),
        ] {
            assert_eq!(said(text, output), wanted, "{text}");
        }
        assert!(said("variables.a", Output::Bool).contains("undeclared reference to 'variables'"));
        assert!(said("Object{}", Output::Bool).contains("undeclared reference to 'Object'"));
        assert!(said("jsonpatch.escapeKey('a')", Output::Text).contains("undeclared reference"));
    }
}
