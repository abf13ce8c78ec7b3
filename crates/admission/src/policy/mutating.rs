//! Evaluates a MutatingAdmissionPolicy for one object with one parameter. Pure.

use cel::{
    JSON_PATCH, Meter, OBJECT, Value as Cel,
    value::{List, Map},
};
use kinds::tree;
use machinery::{
    Object, Value,
    apply::{self, Root},
    patch::{failure::describe, json},
    schema,
    text::quote,
};

use super::{
    super::matching::{Activation, Attributes},
    expression::{Compiler, Expression, Output, Uses, uses},
    native,
    variables::{BUDGET, EXHAUSTED, Exhausted, Limits, Run, Variables},
};

/// The compiled part of a policy.
#[derive(Debug)]
pub(super) struct Mutating {
    variables: Variables,
    mutations: Vec<Mutation>,
    /// Whether it is invoked again if the object changes after it.
    pub(super) is_reinvocable: bool,
    pub(super) uses: Uses,
}

#[derive(Debug)]
enum Mutation {
    ApplyConfiguration(Expression),
    JsonPatch(Expression),
}

/// An object after a mutation.
#[derive(Debug, PartialEq)]
pub(super) enum Mutated {
    /// Unchanged: a `test` of the patch failed.
    Same,
    /// To be decoded as its type.
    Patched(Object),
    /// To be decoded as its type; unknown fields were rejected already.
    Merged(Object),
    /// To be refused with an internal error, whatever the failure policy.
    OfOtherKind(String),
}

impl Mutating {
    pub(super) fn compile(spec: &Value) -> Self {
        let mut compiler = Compiler::new(tree::is_set(&spec["paramKind"]), true);
        for variable in tree::list(&spec["variables"]) {
            let text = |key: &str| tree::text(&variable[key]);
            // The error is reported where the variable is used.
            let _ = compiler.compose(text("name"), text("expression"));
        }
        let mutations = tree::list(&spec["mutations"]).iter();
        let mutations: Vec<Mutation> = mutations
            .map(|mutation| {
                let text = |key: &str| tree::text(&mutation[key]["expression"]);
                match mutation["patchType"].as_str() {
                    Some("JSONPatch") => Mutation::JsonPatch(compiler.compile(
                        text("jsonPatch"),
                        Output::JsonPatch,
                        true,
                    )),
                    _ => Mutation::ApplyConfiguration(compiler.compile(
                        text("applyConfiguration"),
                        Output::ApplyConfiguration,
                        true,
                    )),
                }
            })
            .collect();
        let variables = compiler.into_variables();
        Self {
            uses: uses(mutations.iter().map(Mutation::expression), &variables),
            variables,
            mutations,
            is_reinvocable: spec["reinvocationPolicy"] == "IfNeeded",
        }
    }

    /// The number of mutations, which are applied one after the other.
    pub(super) fn len(&self) -> usize {
        self.mutations.len()
    }

    /// The result of one mutation of the object in `activation`.
    pub(super) fn mutate<'a>(
        &'a self,
        at: usize,
        attributes: &Attributes<'_>,
        activation: &Activation<'a>,
        root: Root<'_>,
    ) -> Result<Mutated, String> {
        let (Some(mutation), Some(live)) = (self.mutations.get(at), activation.object) else {
            return Ok(Mutated::Same);
        };
        let expression = mutation.expression();
        if let Err(why) = &expression.compiled {
            return Err(why.clone());
        }
        let values = activation
            .values(attributes)
            .map_err(|error| error.message)?;
        let mut run = Run::new(values, &self.variables, Limits::Full, BUDGET);
        let value = match run.evaluate(expression) {
            Ok(result) => result?,
            Err(Exhausted) => return Err(EXHAUSTED.to_owned()),
        };
        match mutation {
            Mutation::ApplyConfiguration(_) => apply_configuration(&value, live, root),
            Mutation::JsonPatch(_) => json_patch(&value, live),
        }
    }
}

impl Mutation {
    fn expression(&self) -> &Expression {
        match self {
            Self::ApplyConfiguration(expression) | Self::JsonPatch(expression) => expression,
        }
    }
}

/// Merges an apply configuration into the object.
fn apply_configuration(value: &Cel<'_>, live: &Object, root: Root<'_>) -> Result<Mutated, String> {
    if object_type(value) != Some(OBJECT) {
        return Err(format!(
            "unsupported return type from ApplyConfiguration expression: {}",
            value.type_of()
        ));
    }
    let convert = || {
        check_types(value)?;
        native::configuration(value)
    };
    // Values may contain others many times.
    let config = Meter::default().count(convert)?;
    let mut config = config.as_object().cloned().unwrap_or_default();
    if tree::get(&config, "metadata")
        .get("managedFields")
        .is_some()
    {
        return Err("error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .metadata.managedFields".to_owned());
    }
    keep_type(live, &mut config);
    apply::merged(root, live, &config)
        .map(Mutated::Merged)
        .map_err(|why| format!("error applying patch: {why}"))
}

/// A mutation cannot change apiVersion and kind.
fn keep_type(live: &Object, mutated: &mut Object) {
    for key in ["apiVersion", "kind"] {
        match live.get(key) {
            Some(value) => drop(mutated.insert(key.to_owned(), value.clone())),
            None => drop(mutated.shift_remove(key)),
        }
    }
}

/// Applies a JSON patch to the object.
fn json_patch(value: &Cel<'_>, live: &Object) -> Result<Mutated, String> {
    let Cel::List(list) = value else {
        return Err("type mismatch: JSONPatchType.expression should evaluate to array".to_owned());
    };
    let convert = || {
        list.iter()
            .map(|item| operation(&item.map_err(|error| error.message)?))
            .collect::<Result<Vec<_>, String>>()
    };
    // All operations together: values may contain others many times.
    let operations: Value = Meter::default().count(convert)?.into();
    match json::apply(live, &operations) {
        Ok(mut object) => {
            if let Some(why) = other_kind(live, &object) {
                return Ok(Mutated::OfOtherKind(why));
            }
            keep_type(live, &mut object);
            Ok(Mutated::Patched(object))
        }
        // A patch whose test fails is not applied.
        Err(json::Error::TestFailed(_)) => Ok(Mutated::Same),
        Err(error) => {
            let why = describe(live, &operations, &error);
            Err(format!("JSON Patch: {why}"))
        }
    }
}

/// Why a built-in kind cannot become another one. The error does not depend on the failure policy.
fn other_kind(live: &Object, mutated: &Object) -> Option<String> {
    let version = tree::text(tree::get(live, "apiVersion"));
    let (group, name) = version.split_once('/').unwrap_or(("", version));
    let is_known = |version: &str, kind: &str| {
        let (group, name) = version.split_once('/').unwrap_or(("", version));
        schema::lookup_kind(group, name, kind).is_some()
    };
    let own = tree::text(tree::get(live, "kind"));
    // An empty one has its default.
    let given = |key: &str, own| match tree::text(tree::get(mutated, key)) {
        "" => own,
        given => given,
    };
    let (other_version, other) = (given("apiVersion", version), given("kind", own));
    if (other_version, other) == (version, own) || !is_known(version, own) {
        return None;
    }
    if !is_known(other_version, other) {
        let (other, version) = (quote(other), quote(other_version));
        return Some(format!(
            "no kind {other} is registered for version {version}"
        ));
    }
    if other_version != version {
        let (other, own) = (quote(other_version), quote(version));
        return Some(format!("an object of {own} cannot become one of {other}"));
    }
    let package = match group.split('.').next() {
        None | Some("") => "core",
        Some(package) => package,
    };
    Some(format!(
        "failed to convert object: converting ({name}.{other}) to ({package}.{own}): unknown conversion"
    ))
}

/// One operation of a patch as JSON.
fn operation(item: &Cel<'_>) -> Result<Value, String> {
    if object_type(item) != Some(JSON_PATCH) {
        return Err(format!(
            "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch, got element of {}",
            item.type_of()
        ));
    }
    let field = |name: &'static str| item.lookup(&Cel::text(name)).map_err(|error| error.message);
    native::charge(0)?;
    let mut operation = Object::new();
    for name in ["op", "path", "from"] {
        let text = match field(name)? {
            Some(Cel::String(text)) => {
                native::charge(text.len())?;
                text.to_string()
            }
            _ => String::new(),
        };
        if name != "from" || !text.is_empty() {
            operation.insert(name.to_owned(), text.into());
        }
    }
    if let Some(value) = field("value")? {
        if object_type(&value).is_some() {
            check_types(&value)?;
        }
        let value = native::patch_value(&value).map_err(|why| {
            format!(
                "JSONPath valueExpression evaluated to a type that could not marshal to JSON: {why}"
            )
        })?;
        operation.insert("value".to_owned(), value);
    }
    Ok(Value::Object(operation))
}

/// The type of an object constructed by an expression.
fn object_type<'v>(value: &'v Cel<'_>) -> Option<&'v str> {
    match value {
        Cel::Map(Map::Owned(map)) => map.object().map(|name| &**name),
        _ => None,
    }
}

/// More errors about types than this are not shown.
const SHOWN: usize = 100;

/// `Object.spec{}` is valid only in the field `spec` of an `Object{}`.
fn check_types(value: &Cel<'_>) -> Result<(), String> {
    let mut wrong = Vec::new();
    let root = object_type(value).unwrap_or_default().to_owned();
    find_misplaced(value, &root, &mut wrong)?;
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!("type mismatch: {}", wrong.join("\n"))),
    }
}

fn find_misplaced(value: &Cel<'_>, place: &str, wrong: &mut Vec<String>) -> Result<(), String> {
    native::charge(place.len())?;
    match value {
        Cel::Map(map @ Map::Owned(_)) => {
            let object = object_type(value);
            if let Some(name) = object.filter(|name| *name != place && wrong.len() < SHOWN) {
                wrong.push(format!(
                    "unexpected type name {}, expected {}, which matches field name path from root Object type",
                    quote(name),
                    quote(place)
                ));
            }
            for entry in map.iter() {
                let (key, below) = entry.map_err(|error| error.message)?;
                match (object, key) {
                    (Some(_), Cel::String(key)) => {
                        find_misplaced(&below, &format!("{place}.{}", &*key), wrong)?;
                    }
                    _ => find_misplaced(&below, place, wrong)?,
                }
            }
        }
        Cel::List(list @ (List::Owned(_) | List::Joined(_))) => {
            for item in list.iter() {
                find_misplaced(&item.map_err(|error| error.message)?, place, wrong)?;
            }
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::{
        Operation,
        testing::{Case, object},
    };

    fn mutated(mutation: Value) -> Result<Mutated, String> {
        let more = json!([{"name": "more", "expression": "object.spec.replicas + 4"}]);
        mutated_with(more, mutation)
    }

    fn mutated_with(variables: Value, mutation: Value) -> Result<Mutated, String> {
        let case = Case::new(Operation::Create, "apps", "deployments").named("here", "web");
        let given = case.attributes();
        let live = object(json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "labels": {"a/b": "x"}, "annotations": {"long": "x".repeat(100_000)}},
            "spec": {"replicas": 1, "template": {"spec": {"containers": [{"name": "main", "image": "i"}]}}}}));
        let attributes = Attributes::new(&given, Some(&live));
        let request = attributes.request(&attributes.own());
        let activation = Activation {
            object: Some(&live),
            old: None,
            namespace: None,
            request: &request,
            params: None,
            authorizer: None,
        };
        let spec = json!({"variables": variables, "mutations": [mutation]});
        let root = Root::Typed(schema::lookup("apps/v1.Deployment").unwrap());
        Mutating::compile(&spec).mutate(0, &attributes, &activation, root)
    }

    fn applied(text: &str) -> Result<Value, String> {
        let mutation =
            json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": text}});
        match mutated(mutation)? {
            Mutated::Merged(object) => Ok(Value::Object(object)),
            other => panic!("{other:?}"),
        }
    }

    fn patched(text: &str) -> Result<Option<Value>, String> {
        let mutation = json!({"patchType": "JSONPatch", "jsonPatch": {"expression": text}});
        Ok(match mutated(mutation)? {
            Mutated::Patched(object) => Some(Value::Object(object)),
            Mutated::Same => None,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn configurations_are_merged_as_server_side_apply_merges() {
        let object = applied(
            "Object{spec: Object.spec{replicas: variables.more, template: Object.spec.template{spec: \
             Object.spec.template.spec{containers: [Object.spec.template.spec.containers{name: 'side', image: 'j'}]}}}}",
        )
        .unwrap();
        assert_eq!(object["spec"]["replicas"], 5);
        let containers = &object["spec"]["template"]["spec"]["containers"];
        assert_eq!(
            *containers,
            json!([{"name": "main", "image": "i"}, {"name": "side", "image": "j"}])
        );
        let optional =
            "Object{metadata: Object.metadata{labels: {'k': 'v'}}, ?spec: optional.none()}";
        let object = applied(optional).unwrap();
        assert_eq!(object["metadata"]["labels"], json!({"a/b": "x", "k": "v"}));
    }

    #[test]
    fn configurations_that_cannot_be_applied_are_refused() {
        for (text, why) in [
            (
                "Object{spec: Object.spec{selector: Object.spec.selector{matchLabels: {'a': 'b'}}}}",
                "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.selector",
            ),
            (
                "Object{spec: Object.spec{replicaz: 1}}",
                "error applying patch: failed to convert patch object to typed object: .spec.replicaz: field not declared in schema",
            ),
            (
                "Object{spec: Object.metadata{}}",
                "type mismatch: unexpected type name \"Object.metadata\", expected \"Object.spec\", which matches field name path from root Object type",
            ),
            (
                "Object{spec: Object.spec{replicas: object.nothing}}",
                "expression 'Object{spec: Object.spec{replicas: object.nothing}}' resulted in error: no such key: nothing",
            ),
        ] {
            assert_eq!(applied(text).unwrap_err(), why, "{text}");
        }
        let broken = applied("Object{").unwrap_err();
        assert!(
            broken.starts_with("compilation failed: ERROR: <input>:1:"),
            "{broken}"
        );
    }

    #[test]
    fn patches_are_made_and_a_failing_test_leaves_everything() {
        let object = patched(
            "[JSONPatch{op: 'test', path: '/spec/replicas', value: 1}, \
              JSONPatch{op: 'replace', path: '/spec/replicas', value: variables.more}, \
              JSONPatch{op: 'remove', path: '/metadata/labels/' + jsonpatch.escapeKey('a/b')}, \
              JSONPatch{op: 'add', path: '/metadata/annotations', value: {'k': 'v'}}, \
              JSONPatch{op: 'add', path: '/spec/template/spec/containers/-', value: Object.spec{name: 'x'}}]",
        );
        let object = object.unwrap().unwrap();
        assert_eq!(object["spec"]["replicas"], 5);
        assert_eq!(
            object["metadata"],
            json!({"name": "web", "labels": {}, "annotations": {"k": "v"}})
        );
        assert_eq!(
            object["spec"]["template"]["spec"]["containers"][1],
            json!({"name": "x"})
        );
        let failing = "[JSONPatch{op: 'test', path: '/spec/replicas', value: 9}, JSONPatch{op: 'remove', path: '/spec'}]";
        assert_eq!(patched(failing).unwrap(), None);
        let lost = patched("[JSONPatch{op: 'remove', path: '/spec/nothing'}]").unwrap_err();
        assert!(lost.starts_with("JSON Patch: "), "{lost}");
    }

    #[test]
    fn a_patch_to_another_kind_is_an_error_of_its_own() {
        for (kind, why) in [
            (
                "Other",
                Some("no kind \"Other\" is registered for version \"apps/v1\""),
            ),
            (
                "DaemonSet",
                Some(
                    "failed to convert object: converting (v1.DaemonSet) to (apps.Deployment): unknown conversion",
                ),
            ),
            ("Deployment", None),
            ("", None),
        ] {
            let text = format!("[JSONPatch{{op: 'replace', path: '/kind', value: '{kind}'}}]");
            let mutation = json!({"patchType": "JSONPatch", "jsonPatch": {"expression": text}});
            let found = mutated(mutation).unwrap();
            match why {
                Some(why) => assert_eq!(found, Mutated::OfOtherKind(why.to_owned()), "{kind}"),
                None => assert!(matches!(found, Mutated::Patched(_)), "{kind}: {found:?}"),
            }
        }
        for (version, why) in [
            (
                "v1",
                Some("no kind \"Deployment\" is registered for version \"v1\""),
            ),
            (
                "a/b/c",
                Some("no kind \"Deployment\" is registered for version \"a/b/c\""),
            ),
            ("", None),
        ] {
            let text =
                format!("[JSONPatch{{op: 'replace', path: '/apiVersion', value: '{version}'}}]");
            let mutation = json!({"patchType": "JSONPatch", "jsonPatch": {"expression": text}});
            let found = mutated(mutation).unwrap();
            match why {
                Some(why) => assert_eq!(found, Mutated::OfOtherKind(why.to_owned()), "{version}"),
                None => assert!(matches!(found, Mutated::Patched(_)), "{version}: {found:?}"),
            }
        }
    }

    /// `v0` is `leaf`, `v1` a list of it 10 times, `v7` of 10,000,000 times. `many` has 1,000 elements.
    fn multiplied(leaf: &str) -> Value {
        let variable =
            |name: String, expression: String| json!({"name": name, "expression": expression});
        let mut variables = vec![variable("v0".to_owned(), leaf.to_owned())];
        for at in 1..8 {
            let before = format!("variables.v{}", at - 1);
            let ten = vec![before; 10].join(", ");
            variables.push(variable(format!("v{at}"), format!("[{ten}]")));
        }
        let many = vec!["1"; 1000].join(", ");
        variables.push(variable("many".to_owned(), format!("[{many}]")));
        variables.into()
    }

    fn multiplied_error(leaf: &str, is_patch: bool, text: &str) -> String {
        let mutation = match is_patch {
            true => json!({"patchType": "JSONPatch", "jsonPatch": {"expression": text}}),
            false => {
                json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": text}})
            }
        };
        mutated_with(multiplied(leaf), mutation).unwrap_err()
    }

    #[test]
    fn values_that_contain_others_too_many_times_are_refused() {
        let ten = "[x, x, x, x, x, x, x, x, x, x]";
        let mut objects = "[Object.b{}]".to_owned();
        for _ in 0..7 {
            objects = format!("{objects}.map(x, {ten})");
        }
        let patch = |value: &str| format!("[JSONPatch{{op: 'add', path: '/x', value: {value}}}]");
        for (leaf, is_patch, text) in [
            // Also after a value without a form in JSON.
            ("1", true, patch("[dyn(b'\\xff'), dyn(variables.v7)]")),
            ("1", true, patch("{'a': variables.v7}")),
            ("1", true, patch("Object{a: type(1), b: variables.v7}")),
            ("1", true, patch(&format!("Object{{a: type(1), b: {objects}}}"))),
            ("1", false, format!("Object{{a: type(1), b: {objects}}}")),
            // Copies of parts of the object.
            ("object.metadata", true, patch("variables.v3")),
            ("object.metadata", true, patch("Object{a: variables.many.map(x, object.metadata)}")),
            ("1", false, "Object{a: variables.many.map(x, object.metadata)}".to_owned()),
            // All operations together.
            (
                "1",
                true,
                "variables.many.map(x, JSONPatch{op: 'add', path: '/x', value: variables.v5})".to_owned(),
            ),
            (
                "1",
                true,
                "variables.many.map(x, JSONPatch{op: 'add', path: object.metadata.annotations.long})".to_owned(),
            ),
        ] {
            let why = multiplied_error(leaf, is_patch, &text);
            let is_limit = why.ends_with("operation cancelled: actual cost limit exceeded")
                && !why.contains("resulted in error");
            assert!(is_limit, "{text}: {}", why.chars().take(500).collect::<String>());
        }
    }

    #[test]
    fn only_the_first_misplaced_types_are_shown() {
        let text = "Object{a: variables.many.map(x, Object.b{})}";
        let why = multiplied_error("1", false, text);
        assert_eq!(why.lines().count(), SHOWN);
    }
}
