//! Expressions of a policy: compiled with the variables that it composes, evaluated within a budget.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    sync::Arc,
};

use cel::{
    Checked, Decl, DeclKind, Env, Error, Field, JSON_PATCH, Lazy, ListSemantics, OBJECT,
    PER_CALL_LIMIT, Program, Type, Value as Cel,
};

use super::super::matching::{Variables, environment};

/// What all expressions of one kind may cost together for one binding and one parameter.
pub(super) const BUDGET: u64 = 10_000_000;
/// Says that it is used up.
pub(super) const EXHAUSTED: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// What an expression has to come to.
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

/// Which values an evaluation needs that are not at hand anyway.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Uses {
    pub(super) request: bool,
    pub(super) namespace: bool,
    pub(super) authorizer: bool,
}

impl Uses {
    fn of(checked: &Checked) -> Self {
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

/// An expression as it was written, and what it compiles to.
#[derive(Debug)]
pub(super) struct Expression {
    pub(super) text: String,
    pub(super) compiled: Result<Program, String>,
    pub(super) uses: Uses,
    /// What it comes to, where it compiles.
    output: Option<Type>,
}

/// A variable that a policy composes: evaluated when it is used, once for each run.
#[derive(Debug)]
pub(super) struct Variable {
    name: Arc<str>,
    expression: Expression,
}

/// Compiles the expressions of one policy, in their order: variables are known to what comes after them.
pub(super) struct Compiler {
    params: bool,
    /// The fields of `variables`; `None` where there is no such variable.
    composed: Option<HashMap<Arc<str>, Field>>,
    variables: Vec<Variable>,
    /// Environments that were made already: with the authorizer, without it, for patches.
    environments: [Option<Env>; 3],
}

impl Compiler {
    /// `params`: whether the policy has a paramKind. `composes`: whether `variables` exists.
    pub(super) fn new(params: bool, composes: bool) -> Self {
        Self {
            params,
            composed: composes.then(HashMap::new),
            variables: Vec::new(),
            environments: [const { None }; 3],
        }
    }

    /// Adds a variable; the error of one that does not compile.
    pub(super) fn compose(&mut self, name: &str, text: &str) -> Result<(), String> {
        let expression = self.compile(text, Output::Anything, true);
        let outcome = expression
            .compiled
            .as_ref()
            .map(|_| ())
            .map_err(Clone::clone);
        let decl = declared(expression.output.as_ref().unwrap_or(&Type::Dyn));
        let name: Arc<str> = name.into();
        if let Some(fields) = &mut self.composed {
            let json = name.clone();
            fields.insert(name.clone(), Field { json, decl });
        }
        // A later variable of the same name takes the place of an earlier one.
        self.variables.retain(|variable| variable.name != name);
        self.variables.push(Variable { name, expression });
        self.environments = [const { None }; 3];
        outcome
    }

    /// Compiles an expression, with or without the authorizer.
    pub(super) fn compile(&mut self, text: &str, output: Output, authorizer: bool) -> Expression {
        let env = self.environment(output, authorizer);
        let checked = cel::compile(env, text)
            .map_err(|issues| format!("compilation failed: {issues}"))
            .and_then(|checked| output.check(checked.output()).map(|()| checked));
        let uses = checked.as_ref().map(Uses::of).unwrap_or_default();
        Expression {
            text: text.to_owned(),
            output: checked
                .as_ref()
                .ok()
                .map(|checked| checked.output().clone()),
            compiled: checked.map(|checked| Program::new(env, &checked)),
            uses,
        }
    }

    pub(super) fn into_variables(self) -> Vec<Variable> {
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
            let env = environment(Variables { params, authorizer });
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

/// The declaration of what a variable comes to. Objects lose their type, as upstream has it.
pub(super) fn declared(output: &Type) -> Arc<Decl> {
    let kind = match output {
        Type::List(element) => DeclKind::List {
            element: declared(element),
            semantics: ListSemantics::Atomic,
        },
        Type::Map(key, value) if **key == Type::String => DeclKind::Map {
            value: declared(value),
        },
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

/// What all these expressions use, through variables too.
pub(super) fn uses<'e>(
    expressions: impl Iterator<Item = &'e Expression>,
    variables: &[Variable],
) -> Uses {
    let variables = variables.iter().map(|variable| variable.expression.uses);
    let own = expressions.map(|expression| expression.uses);
    own.chain(variables).fold(Uses::default(), Uses::and)
}

/// The budget is used up: no expression is evaluated any more.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Exhausted;

/// Evaluates expressions over one set of values within one budget. Variables are worked out once.
pub(super) struct Run<'a> {
    composed: Composed<'a>,
    pub(super) budget: u64,
}

/// The values of a run, and those of its variables that were used.
struct Composed<'a> {
    values: Vec<Cel<'a>>,
    variables: &'a [Variable],
    known: RefCell<Vec<Option<Result<Cel<'a>, Error>>>>,
    /// What variables have cost since the last expression.
    cost: Cell<u64>,
}

impl<'a> Lazy<'a> for Composed<'a> {
    fn field(&self, name: &str) -> Result<Cel<'a>, Error> {
        let place = self.variables.iter().position(|v| &*v.name == name);
        let place = place.ok_or_else(|| Error::no_such_key(name))?;
        if let Some(known) = &self.known.borrow()[place] {
            return known.clone();
        }
        let value = self.evaluate(&self.variables[place]);
        self.known.borrow_mut()[place] = Some(value.clone());
        value
    }
}

impl<'a> Composed<'a> {
    fn evaluate(&self, variable: &'a Variable) -> Result<Cel<'a>, Error> {
        let failed = |how: &str, why: &str| {
            Error::new(format!(
                "composited variable {} fails to {how}: {why}",
                machinery::text::quote(&variable.name)
            ))
        };
        let program = match &variable.expression.compiled {
            Ok(program) => program,
            Err(why) => return Err(failed("compile", why)),
        };
        let evaluation = program.evaluate_with(&self.values, self, PER_CALL_LIMIT);
        self.cost
            .set(self.cost.get().saturating_add(evaluation.cost));
        evaluation
            .result
            .map_err(|error| failed("evaluate", &error.message))
    }
}

impl<'a> Run<'a> {
    pub(super) fn new(values: Vec<Cel<'a>>, variables: &'a [Variable], budget: u64) -> Self {
        let composed = Composed {
            values,
            variables,
            known: RefCell::new(vec![None; variables.len()]),
            cost: Cell::new(0),
        };
        Self { composed, budget }
    }

    /// What an expression comes to, or what went wrong.
    pub(super) fn evaluate(
        &mut self,
        expression: &'a Expression,
    ) -> Result<Result<Cel<'a>, String>, Exhausted> {
        let program = match &expression.compiled {
            Ok(program) => program,
            Err(why) => return Ok(Err(format!("compilation error: {why}"))),
        };
        let composed = &self.composed;
        let evaluation = program.evaluate_with(&composed.values, composed, PER_CALL_LIMIT);
        let cost = composed.cost.take().saturating_add(evaluation.cost);
        self.budget = self.budget.checked_sub(cost).ok_or(Exhausted)?;
        Ok(evaluation.result.map_err(|error| {
            format!(
                "expression '{}' resulted in error: {error}",
                expression.text
            )
        }))
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::{Value, json};

    use super::*;

    fn compiler(variables: &[(&str, &str)]) -> Compiler {
        let mut compiler = Compiler::new(false, true);
        for (name, text) in variables {
            compiler.compose(name, text).unwrap();
        }
        compiler
    }

    /// Evaluates with `object`; the result as JSON, or what went wrong.
    fn evaluated(variables: &[(&str, &str)], text: &str, budget: u64) -> (String, u64) {
        let mut compiler = compiler(variables);
        let expression = compiler.compile(text, Output::Anything, true);
        let variables = compiler.into_variables();
        let object = json!({"spec": {"replicas": 3, "names": ["a", "b"]}});
        let values = vec![Cel::from_json(&object, None).unwrap()];
        let mut run = Run::new(values, &variables, budget);
        let shown = match run.evaluate(&expression) {
            Err(Exhausted) => "exhausted".to_owned(),
            Ok(Err(why)) => why,
            Ok(Ok(value)) => value.to_json().unwrap_or(Value::Null).to_string(),
        };
        (shown, run.budget)
    }

    #[test]
    fn variables_are_typed_lazy_and_know_those_before_them() {
        let variables = [
            ("replicas", "object.spec.replicas"),
            ("double", "variables.replicas * 2"),
            ("text", "'a'"),
            ("broken", "object.spec.nothing"),
        ];
        for (text, wanted) in [
            ("variables.double == 6", "true"),
            (
                "has(variables.text) && variables.?text.orValue('') == 'a'",
                "true",
            ),
            ("true || variables.broken == 1", "true"),
            (
                "variables.broken",
                "expression 'variables.broken' resulted in error: composited variable \"broken\" fails to evaluate: no such key: nothing",
            ),
        ] {
            assert_eq!(evaluated(&variables, text, BUDGET).0, wanted, "{text}");
        }
        let said = |text: &str| {
            let expression = compiler(&variables).compile(text, Output::Bool, true);
            expression.compiled.unwrap_err()
        };
        assert!(said("variables.text == 1").contains("found no matching overload for '_==_'"));
        assert!(said("variables.other").contains("undefined field 'other'"));
    }

    #[test]
    fn variables_are_worked_out_once_and_paid_from_the_budget() {
        let variables = [("many", "object.spec.names.map(n, n + n)")];
        let (_, once) = evaluated(&variables, "variables.many.size() == 2", BUDGET);
        let (_, twice) = evaluated(
            &variables,
            "variables.many.size() == 2 && variables.many.size() == 2",
            BUDGET,
        );
        let (first, second) = (BUDGET - once, BUDGET - twice);
        assert!(first > 20 && second < 2 * first, "{first} {second}");
        assert_eq!(
            evaluated(&variables, "variables.many == []", first - 1).0,
            "exhausted"
        );
    }

    #[test]
    fn what_an_expression_comes_to_is_checked() {
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

    #[test]
    fn an_expression_stops_at_its_limit_and_the_rest_of_the_budget_stays() {
        let endless = "[0,1,2,3,4,5,6,7,8,9].all(a, [0,1,2,3,4,5,6,7,8,9].all(b, \
            [0,1,2,3,4,5,6,7,8,9].all(c, [0,1,2,3,4,5,6,7,8,9].all(d, [0,1,2,3,4,5,6,7,8,9].all(e, \
            [0,1,2,3,4,5,6,7,8,9].all(f, a + b + c + d + e + f >= 0))))))";
        let (shown, left) = evaluated(&[], endless, BUDGET);
        assert!(
            shown.ends_with("resulted in error: operation cancelled: actual cost limit exceeded"),
            "{shown}"
        );
        assert!(left > BUDGET / 2);
    }
}
