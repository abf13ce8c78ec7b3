//! Type checking of ValidatingAdmissionPolicies: expressions are compiled again with the types of
//! the matched kinds. Errors are only warnings, because objects are dynamically typed at run time.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use cel::{Env, Field, Type};
use kinds::tree;
use machinery::{Object, Value, json::json};
use registry::Table;

use super::{
    super::matching::{Variables, environment},
    declared_types::of_resource,
    expression::{declared, variables_type},
};
use crate::Resource;

/// The maximum number of types of one rule; a rule with as many is the last one that counts.
const MOST_TYPES: usize = 10;

/// `status.typeChecking` of a policy.
pub fn check(policy: &Object, table: &Table) -> Value {
    let spec = tree::get(policy, "spec");
    let checker = Checker::new(spec, table);
    let mut warnings = Vec::new();
    let mut warn = |at: String, warning: Option<String>| {
        warnings.extend(warning.map(|warning| json!({"fieldRef": at, "warning": warning})));
    };
    for (i, validation) in tree::list(&spec["validations"]).iter().enumerate() {
        for key in ["expression", "messageExpression"] {
            let text = tree::text(&validation[key]);
            if !text.is_empty() {
                let at = format!("spec.validations[{i}].{key}");
                warn(at, checker.warning(text));
            }
        }
    }
    match warnings.is_empty() {
        true => json!({}),
        false => json!({"expressionWarnings": warnings}),
    }
}

struct Checker {
    /// The environment of each kind, by name.
    environments: Vec<(String, Env)>,
}

impl Checker {
    fn new(spec: &Value, table: &Table) -> Self {
        let param_kind = &spec["paramKind"];
        let has_params = tree::is_set(param_kind);
        let params = table.all().find(|resource| {
            has_params
                && resource.api_version == tree::text(&param_kind["apiVersion"])
                && resource.kind.names().kind == tree::text(&param_kind["kind"])
        });
        let params = params.and_then(|resource| of_resource(resource));
        let matched = matched_resources(spec, table);
        let environments = matched.iter().filter_map(|resource| {
            let object = of_resource(resource)?;
            let variables = Variables {
                params: has_params,
                authorizer: true,
            };
            // As upstream, which does not declare it here.
            let mut env = environment(variables)
                .without("authorizer.requestResource")
                .redeclare("object", &object)
                .redeclare("oldObject", &object);
            if let Some(params) = &params {
                env = env.redeclare("params", params);
            }
            let names = resource.kind.names();
            let kind = format!("{}/{}, Kind={}", names.group, names.version, names.kind);
            Some((kind, with_variables(env, spec)))
        });
        Self {
            environments: environments.collect(),
        }
    }

    /// The warning about an expression, for all kinds.
    fn warning(&self, text: &str) -> Option<String> {
        let found = self.environments.iter().filter_map(|(kind, env)| {
            let issues = cel::compile(env, text).err()?;
            Some(format!("{kind}: {issues}\n"))
        });
        let found: Vec<String> = found.collect();
        (!found.is_empty()).then(|| found.join("\n"))
    }
}

/// Adds the policy's variables, whose types depend on those of the objects.
fn with_variables(env: Env, spec: &Value) -> Env {
    let mut env = env.lazy("variables", variables_type(HashMap::new()));
    for variable in tree::list(&spec["variables"]) {
        let checked = cel::compile(&env, tree::text(&variable["expression"]));
        let output = checked.map_or(Type::Dyn, |checked| checked.output().clone());
        env.lazy_field(Field {
            json: tree::text(&variable["name"]).into(),
            decl: declared(&output),
        });
    }
    env
}

/// The resources that rules name without wildcards, sorted by group, version and kind.
fn matched_resources<'t>(spec: &Value, table: &'t Table) -> Vec<&'t Arc<Resource>> {
    let mut found: Vec<&Arc<Resource>> = Vec::new();
    for rule in tree::list(&spec["matchConstraints"]["resourceRules"]) {
        let names = |key: &str| {
            let all = tree::list(&rule[key]).iter().filter_map(Value::as_str);
            all.collect::<BTreeSet<&str>>()
        };
        let (groups, versions) = (names("apiGroups"), names("apiVersions"));
        if groups.contains("*") || versions.contains("*") {
            continue;
        }
        let resources = names("resources");
        let resources = || resources.iter().filter(|name| !name.contains(['*', '/']));
        let all = groups.iter().flat_map(|group| {
            let versions = versions.iter();
            versions.flat_map(move |version| resources().map(move |name| (group, version, name)))
        });
        let all = all.filter_map(|(group, version, name)| table.get(group, version, name));
        let before = found.len();
        found.extend(all.take(MOST_TYPES));
        if found.len() - before == MOST_TYPES {
            break;
        }
    }
    let key = |resource: &&Arc<Resource>| {
        let names = resource.kind.names();
        (
            names.group.clone(),
            names.version.clone(),
            names.kind.clone(),
        )
    };
    found.sort_by_key(key);
    found.dedup_by_key(|resource| key(resource));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;
    use registry::Registry;

    fn warnings(change: Value) -> Vec<(String, String)> {
        let registry = Registry::builtin();
        let mut spec = json!({"matchConstraints": {"resourceRules": [
            {"operations": ["*"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments", "deployments/scale"]}]}});
        if let (Value::Object(spec), Value::Object(change)) = (&mut spec, change) {
            spec.extend(change);
        }
        let policy = object(json!({"metadata": {"name": "p"}, "spec": spec}));
        let checked = check(&policy, &registry.table());
        let warnings = tree::list(&checked["expressionWarnings"]).iter();
        let text = |value: &Value| tree::text(value).to_owned();
        warnings
            .map(|warning| (text(&warning["fieldRef"]), text(&warning["warning"])))
            .collect()
    }

    #[test]
    fn mistakes_are_found_with_the_types_of_the_kinds() {
        let fine = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "variables": [{"name": "containers", "expression": "object.spec.template.spec.containers"}],
            "validations": [
                {"expression": "object.spec.replicas > 1 && variables.containers.all(c, c.name != '')"},
                {"expression": "object.metadata.?labels['a'].orValue('') == params.data['a']"},
                {"expression": "object.metadata.creationTimestamp < timestamp('2026-01-01T00:00:00Z')"},
                {"expression": "has(oldObject.spec.strategy.rollingUpdate.maxSurge) && request.name == object.metadata.name",
                 "messageExpression": "string(object.spec.replicas)"}]});
        assert_eq!(warnings(fine), []);
        let found = warnings(json!({"validations": [
            {"expression": "object.replicas > 1"},
            {"expression": "true", "messageExpression": "object.spec.replicas + ''"}]}));
        assert_eq!(
            found[0],
            (
                "spec.validations[0].expression".to_owned(),
                "apps/v1, Kind=Deployment: ERROR: <input>:1:7: undefined field 'replicas'\n | object.replicas > 1\n | ......^\n".to_owned()
            )
        );
        assert_eq!(
            found[1].0,
            "spec.validations[0].messageExpression".replace("[0]", "[1]")
        );
        assert!(
            found[1]
                .1
                .contains("found no matching overload for '_+_' applied to '(int, string)'")
        );
    }

    #[test]
    fn a_rule_with_ten_types_is_the_last_one_that_counts() {
        let core = [
            "configmaps",
            "endpoints",
            "events",
            "limitranges",
            "namespaces",
            "nodes",
            "persistentvolumeclaims",
            "persistentvolumes",
            "pods",
            "resourcequotas",
            "secrets",
        ];
        for (count, expected) in [(9, true), (10, false), (11, false)] {
            let rules = json!([
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": core[..count].to_vec()},
                {"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]}]);
            let found = warnings(json!({"matchConstraints": {"resourceRules": rules},
                "validations": [{"expression": "object.nonsense == 1"}]}));
            assert!(found[0].1.contains("v1, Kind=ConfigMap"), "{found:?}");
            assert!(!found[0].1.contains("Kind=Secret"), "{found:?}");
            assert_eq!(found[0].1.contains("Kind=Deployment"), expected, "{count}");
        }
    }

    #[test]
    fn the_authorizer_is_known_and_the_check_of_the_request_is_not() {
        let found = warnings(json!({"validations": [
            {"expression": "authorizer.group('apps').resource('deployments').check('get').allowed()"},
            {"expression": "authorizer.requestResource.check('get').allowed()"}]}));
        assert_eq!(
            found,
            [(
                "spec.validations[1].expression".to_owned(),
                "apps/v1, Kind=Deployment: ERROR: <input>:1:11: unexpected failed resolution of \
                 'kubernetes.authorization.Authorizer'\n | authorizer.requestResource.check('get').allowed()\n | ..........^\n"
                    .to_owned()
            )]
        );
    }

    #[test]
    fn wildcards_and_kinds_that_are_not_served_are_passed_over() {
        for rule in [
            json!({"apiGroups": ["*"], "apiVersions": ["v1"], "resources": ["deployments"]}),
            json!({"apiGroups": ["apps"], "apiVersions": ["*"], "resources": ["deployments"]}),
            json!({"apiGroups": ["example.com"], "apiVersions": ["v1"], "resources": ["things"]}),
            json!({"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["*", "deployments/scale"]}),
        ] {
            let found = warnings(json!({"matchConstraints": {"resourceRules": [rule]},
                "validations": [{"expression": "object.nonsense"}]}));
            assert_eq!(found, [], "{rule}");
        }
    }
}
