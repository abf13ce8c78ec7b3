//! Validates the rules of a definition: expressions that do not compile, have the wrong type, or
//! may cost too much.

use machinery::{
    Object, Value,
    field::{Error, Errors, Path, PathBuf},
    json::json,
};

use super::{
    compile::{Compiled, Rule},
    declare::{Declared, declare, is_embedded},
};

/// The maximum estimated cost of one rule, and of all rules of a schema.
const RULE_LIMIT: u64 = 10_000_000;
const SCHEMA_LIMIT: u64 = 100_000_000;
/// Rules below this share of the total are not named if the total is too expensive.
const NAMED_SHARE: u64 = 100;
const NAMED: usize = 4;

/// The errors in the rules of a definition whose schemas are structural. Rules that `old` has, too,
/// are kept.
pub fn check(definition: &Object, old: Option<&Object>) -> Errors {
    let mut errors = Errors::new();
    let versions = versions(definition);
    let schema = |version: &Value| version["schema"]["openAPIV3Schema"].clone();
    let path = Path::new("spec.versions");
    // A schema that all versions share is reported at the top level.
    let shared = versions.windows(2).all(|w| schema(&w[0]) == schema(&w[1]));
    for (i, version) in versions.iter().enumerate() {
        let at = path.index(i);
        let at = match shared {
            true => Path::new("spec.validation"),
            false => at.child("schema"),
        };
        let root = schema(version);
        let unchanged =
            old.is_some_and(|old| self::versions(old).iter().any(|v| schema(v) == root));
        if root.is_object() && !unchanged {
            check_schema(&root, &at.child("openAPIV3Schema"), &mut errors);
        }
        if shared {
            break;
        }
    }
    errors
}

fn versions(definition: &Object) -> &[Value] {
    let spec = definition.get("spec").unwrap_or(&Value::Null);
    spec["versions"].as_array().map_or(&[][..], Vec::as_slice)
}

/// Accumulates costs over a schema.
struct Walk<'e> {
    total: u64,
    expensive: Vec<(PathBuf, u64)>,
    errors: &'e mut Errors,
}

/// A position in a schema.
struct SchemaPosition<'p> {
    path: &'p Path<'p>,
    root: bool,
    /// The maximum number of values; `None` if unbounded.
    cardinality: Option<u64>,
    /// The enclosing schema in which old values cannot be correlated.
    uncorrelatable: Option<&'p Path<'p>>,
}

impl<'p> SchemaPosition<'p> {
    fn below(
        path: &'p Path<'p>,
        cardinality: Option<u64>,
        uncorrelatable: Option<&'p Path<'p>>,
    ) -> Self {
        Self {
            path,
            root: false,
            cardinality,
            uncorrelatable,
        }
    }
}

fn check_schema(schema: &Value, path: &Path, errors: &mut Errors) {
    let mut walk = Walk {
        total: 0,
        expensive: Vec::new(),
        errors,
    };
    let place = SchemaPosition {
        path,
        root: true,
        cardinality: Some(1),
        uncorrelatable: None,
    };
    walk.schema(schema, &place);
    if walk.total > SCHEMA_LIMIT {
        walk.expensive
            .sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
        for (path, _) in walk.expensive.iter().take(NAMED) {
            let detail = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            walk.errors.push(Error::forbidden(&path.as_path(), detail));
        }
        let name = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        let detail = too_expensive(name, walk.total, SCHEMA_LIMIT);
        walk.errors.push(Error::forbidden(path, detail));
    }
}

impl Walk<'_> {
    fn schema(&mut self, schema: &Value, place: &SchemaPosition<'_>) {
        let factor = elements(schema);
        let cardinality = match (place.cardinality, factor) {
            (Some(count), Some(factor)) => Some(count.saturating_mul(factor)),
            _ => None,
        };
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let path = place.path.child("properties");
            let path = path.key(name);
            self.schema(
                property,
                &SchemaPosition::below(&path, cardinality, place.uncorrelatable),
            );
        }
        let others = &schema["additionalProperties"];
        if others.is_object() {
            let path = place.path.child("additionalProperties");
            self.schema(
                others,
                &SchemaPosition::below(&path, cardinality, place.uncorrelatable),
            );
        }
        let items = &schema["items"];
        if items.is_object() {
            let path = place.path.child("items");
            let keyed = schema["x-kubernetes-list-type"] == "map";
            let uncorrelatable = place.uncorrelatable.or((!keyed).then_some(place.path));
            self.schema(
                items,
                &SchemaPosition::below(&path, cardinality, uncorrelatable),
            );
        }
        let rules = schema["x-kubernetes-validations"].as_array();
        let rules = rules.map_or(&[][..], Vec::as_slice);
        if rules.is_empty() {
            return;
        }
        let at = place.path.child("x-kubernetes-validations");
        let root = place.root || is_embedded(schema);
        let Some(declared) = declare(schema, root, "selfType") else {
            let detail = "internal error: failed to construct type information for x-kubernetes-validations rules: unable to convert structural schema to CEL declarations";
            self.errors.push(Error::internal(&at, detail));
            return;
        };
        for (i, rule) in rules.iter().enumerate() {
            // Empty rules are reported by the kind itself.
            if rule["rule"]
                .as_str()
                .is_some_and(|text| !text.trim().is_empty())
            {
                self.rule(rule, &at.index(i), &declared, place);
            }
        }
    }

    fn rule(&mut self, given: &Value, at: &Path, declared: &Declared, place: &SchemaPosition<'_>) {
        let rule = Rule::read(given, Some(&declared.decl));
        let times = place
            .cardinality
            .unwrap_or_else(|| declared.most_in_request());
        let path = at.child("rule");
        match &rule.compiled {
            Err(detail) => {
                self.errors
                    .push(Error::invalid(&path, as_go_type(given), detail.as_str()))
            }
            Ok(compiled) => {
                let cost = compiled.max_cost.saturating_mul(times);
                self.observe(&path, cost, "estimated rule cost");
            }
        }
        let path = at.child("messageExpression");
        match &rule.message_expression {
            Some(Err(detail)) if rule.compiled.is_ok() => {
                self.errors
                    .push(Error::invalid(&path, as_go_type(given), detail.as_str()));
            }
            Some(Ok(compiled)) => {
                self.observe(&path, compiled.max_cost, "estimated messageExpression cost");
            }
            _ => {}
        }
        self.old_self(given, at, rule.compiled.as_ref().ok(), place);
    }

    fn old_self(
        &mut self,
        given: &Value,
        at: &Path,
        compiled: Option<&Compiled>,
        place: &SchemaPosition<'_>,
    ) {
        if compiled.is_some_and(|compiled| compiled.uses_old_self) {
            if let Some(within) = place.uncorrelatable {
                let detail = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {within}"
                );
                let text = given["rule"].clone();
                self.errors
                    .push(Error::invalid(&at.child("rule"), text, detail));
            }
        } else if !given["optionalOldSelf"].is_null() {
            let detail = "may not be set if oldSelf is not used in rule";
            let value = given["optionalOldSelf"].clone();
            let path = at.child("optionalOldSelf");
            self.errors.push(Error::invalid(&path, value, detail));
        }
    }

    fn observe(&mut self, path: &Path, cost: u64, name: &str) {
        if cost > RULE_LIMIT {
            let detail = too_expensive(name, cost, RULE_LIMIT);
            self.errors.push(Error::forbidden(path, detail));
        }
        self.total = self.total.saturating_add(cost);
        if cost >= SCHEMA_LIMIT / NAMED_SHARE {
            self.expensive.push((path.to_path_buf(), cost));
        }
    }
}

/// A rule as upstream shows it in errors: with the names and the empty fields of the Go type.
fn as_go_type(rule: &Value) -> Value {
    let text = |key: &str| rule[key].as_str().unwrap_or_default();
    json!({
        "Rule": text("rule"),
        "Message": text("message"),
        "MessageExpression": text("messageExpression"),
        "Reason": rule["reason"],
        "FieldPath": text("fieldPath"),
        "OptionalOldSelf": rule["optionalOldSelf"],
    })
}

/// The maximum number of elements of a schema; `None` if unbounded.
fn elements(schema: &Value) -> Option<u64> {
    let limit = |key: &str| schema[key].as_i64().map(|n| u64::try_from(n).unwrap_or(0));
    match schema["type"].as_str() {
        Some("object") if !schema["additionalProperties"].is_null() => limit("maxProperties"),
        Some("array") => limit("maxItems"),
        _ => Some(1),
    }
}

fn too_expensive(name: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = match factor {
        factor if factor > 100.0 => "more than 100x".to_owned(),
        factor if factor < 1.5 => format!("{factor:.6}x"),
        factor => format!("{factor:.1}x"),
    };
    format!(
        "{name} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}
