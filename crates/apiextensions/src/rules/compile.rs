//! CEL rules compiled into programs, in a tree of the same shape as their schema.

use std::{collections::BTreeMap, sync::Arc};

use cel::{Decl, DeclKind, Env, Program, Type, compile, cost::estimate::estimate};
use machinery::Value;

use super::declare::{Declared, declare, is_embedded};

/// The rules of a schema and of its subschemas; nodes without rules are absent.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(super) rules: Vec<Rule>,
    /// The type of the schema, as errors show it.
    pub(super) schema_type: String,
    pub(super) decl: Option<Arc<Decl>>,
    pub(super) properties: BTreeMap<String, Rules>,
    pub(super) items: Option<Box<Rules>>,
    pub(super) others: Option<Box<Rules>>,
    /// Rules in `allOf`, on the same value.
    pub(super) all_of: Vec<Rules>,
}

/// A rule and its compiled program.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) rule: String,
    pub(super) message: String,
    pub(super) message_expression: Option<Result<Compiled, String>>,
    /// The text of the message expression.
    pub(super) message_text: String,
    pub(super) reason: Option<String>,
    /// The relative path of the invalid field.
    pub(super) field_path: Vec<Step>,
    pub(super) optional_old_self: bool,
    pub(super) compiled: Result<Compiled, String>,
}

#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) program: Program,
    pub(super) uses_old_self: bool,
    pub(super) max_cost: u64,
}

impl Rules {
    /// The rules of a version's schema.
    pub(crate) fn read(schema: &Value) -> Option<Self> {
        if !mentions_rules(schema) {
            return None;
        }
        let declared = declare(schema, true, "selfType");
        Some(Self::node(schema, schema, declared.as_ref()))
    }

    /// `validations` is the schema itself, or a branch of its `allOf`.
    fn node(validations: &Value, schema: &Value, declared: Option<&Declared>) -> Self {
        let decl = declared.map(|declared| declared.decl.clone());
        let rules = validations["x-kubernetes-validations"].as_array();
        let rules = rules.into_iter().flatten();
        let rules = rules.map(|rule| Rule::read(rule, decl.as_ref())).collect();
        let below = |key: &str, name: &str| {
            let (validations, schema) = (&validations[key], &schema[key]);
            if !validations.is_object() || !schema.is_object() || !mentions_rules(validations) {
                return None;
            }
            let declared = declare(schema, is_embedded(schema), name);
            Some(Box::new(Self::node(validations, schema, declared.as_ref())))
        };
        let properties = validations["properties"].as_object().into_iter().flatten();
        let properties = properties.filter(|(_, property)| mentions_rules(property));
        let properties = properties.filter_map(|(name, property)| {
            let own = schema["properties"].get(name.as_str())?;
            let declared = declare(own, is_embedded(own), name)?;
            let rules = Self::node(property, own, Some(&declared));
            Some((name.to_string(), rules))
        });
        let all_of = validations["allOf"].as_array().into_iter().flatten();
        let all_of = all_of.filter(|branch| mentions_rules(branch));
        Self {
            rules,
            schema_type: schema["type"].as_str().unwrap_or_default().to_owned(),
            properties: properties.collect(),
            items: below("items", "items"),
            others: below("additionalProperties", "values"),
            all_of: all_of
                .map(|branch| Self::node(branch, schema, declared))
                .collect(),
            decl,
        }
    }
}

/// Whether there is a rule anywhere in a schema.
fn mentions_rules(schema: &Value) -> bool {
    let any = |value: &Value| match value {
        Value::Object(map) => map.values().any(mentions_rules),
        Value::Array(list) => list.iter().any(mentions_rules),
        _ => false,
    };
    let rules = schema["x-kubernetes-validations"].as_array();
    rules.is_some_and(|rules| !rules.is_empty())
        || ["properties", "items", "additionalProperties", "allOf"]
            .iter()
            .any(|key| match &schema[*key] {
                Value::Object(map) if *key == "properties" => map.values().any(mentions_rules),
                Value::Object(_) => mentions_rules(&schema[*key]),
                list => any(list),
            })
}

/// A part of a field path.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Property(String),
    /// Of a map.
    Key(String),
}

/// A field path by its schema: keys of maps and properties, however they were written.
fn by_schema(path: &str, decl: Option<&Arc<Decl>>) -> Vec<Step> {
    let mut decl = decl.cloned();
    let steps = names(path).map(|(name, is_quoted)| {
        let (is_key, below) = match decl.as_deref().map(|decl| &decl.kind) {
            Some(DeclKind::Map { value, .. }) => (true, Some(value.clone())),
            Some(DeclKind::Object { fields, .. }) => {
                let mut fields = fields.values();
                let field = fields.find(|field| *field.json == *name);
                (false, field.map(|field| field.decl.clone()))
            }
            _ => (is_quoted, None),
        };
        decl = below;
        match is_key {
            true => Step::Key(name),
            false => Step::Property(name),
        }
    });
    steps.collect()
}

/// The names of a path such as `.a['b.c']`, and whether each is quoted.
fn names(path: &str) -> impl Iterator<Item = (String, bool)> {
    let mut rest = path;
    std::iter::from_fn(move || {
        let (name, after, is_quoted) = match rest.strip_prefix("['") {
            Some(quoted) => {
                let (name, after) = unquoted(quoted);
                (name, after.strip_prefix(']').unwrap_or(after), true)
            }
            None if rest.is_empty() => return None,
            None => {
                let name = rest.strip_prefix('.').unwrap_or(rest);
                // The first character belongs to the name, whatever it is.
                let mut others = name.char_indices().skip(1);
                let end = others.find(|(_, c)| matches!(c, '.' | '['));
                let (name, after) = name.split_at(end.map_or(name.len(), |(at, _)| at));
                (name.to_owned(), after, false)
            }
        };
        rest = after;
        Some((name, is_quoted))
    })
}

/// A quoted name without its escapes, and what follows its last quote.
fn unquoted(quoted: &str) -> (String, &str) {
    let (mut name, mut is_escaped) = (String::new(), false);
    for (at, c) in quoted.char_indices() {
        match (is_escaped, c) {
            (false, '\\') => is_escaped = true,
            (false, '\'') => return (name, &quoted[at + 1..]),
            (was_escaped, c) => {
                if was_escaped && !matches!(c, '\'' | '\\') {
                    name.push('\\');
                }
                name.push(c);
                is_escaped = false;
            }
        }
    }
    (name, "")
}

impl Rule {
    pub(super) fn read(rule: &Value, decl: Option<&Arc<Decl>>) -> Self {
        let text = |key: &str| rule[key].as_str().unwrap_or_default();
        let given = |key: &str| Some(text(key)).filter(|text| !text.is_empty());
        let optional_old_self = rule["optionalOldSelf"] == true;
        let expression = |text: &str, output: Type, prefix: &str, noun: &str| {
            let decl = decl.ok_or("failed to convert to declType for CEL validation rules")?;
            compile_one(decl, optional_old_self, text, output, prefix, noun)
        };
        Self {
            compiled: expression(text("rule"), Type::Bool, "", "cel expression"),
            message_expression: given("messageExpression").map(|text| {
                let noun = "messageExpression";
                expression(text, Type::String, "messageExpression ", noun)
            }),
            message_text: text("messageExpression").to_owned(),
            rule: text("rule").trim().to_owned(),
            message: text("message").trim().to_owned(),
            reason: given("reason").map(str::to_owned),
            field_path: by_schema(text("fieldPath"), decl),
            optional_old_self,
        }
    }

    /// The rule's message or, without one, its text.
    pub(super) fn shown(&self) -> &str {
        match self.message.is_empty() {
            true => &self.rule,
            false => &self.message,
        }
    }
}

fn compile_one(
    decl: &Arc<Decl>,
    optional_old_self: bool,
    text: &str,
    output: Type,
    prefix: &str,
    noun: &str,
) -> Result<Compiled, String> {
    let env = Env::new()
        .declared("self", decl.clone())
        .sized_by(decl.clone());
    let env = match optional_old_self {
        true => env.declared_optional("oldSelf", decl.clone()),
        false => env.declared("oldSelf", decl.clone()),
    };
    let checked =
        compile(&env, text).map_err(|issues| format!("{prefix}compilation failed: {issues}"))?;
    if *checked.output() != output {
        let article = if output == Type::Bool {
            "a bool"
        } else {
            "a string"
        };
        return Err(format!("{noun} must evaluate to {article}"));
    }
    let failed = |error: cel::Error| match prefix {
        "" => format!("program instantiation failed: {}", error.message),
        _ => format!("{prefix}instantiation failed: {}", error.message),
    };
    Ok(Compiled {
        uses_old_self: checked.refers_to("oldSelf"),
        max_cost: estimate(&env, &checked).max,
        program: Program::new(&env, &checked).map_err(failed)?,
    })
}

#[cfg(test)]
mod tests {
    use cel::Field;

    use super::*;

    #[test]
    fn field_paths_have_the_form_of_their_schema() {
        let decl = |kind| Arc::new(Decl::new(kind, u64::MAX));
        let object = |name: &str, fields: Vec<(&str, Arc<Decl>)>| {
            let fields = fields.into_iter().map(|(json, decl)| {
                let json: Arc<str> = json.into();
                (json.clone(), Field { json, decl })
            });
            let (name, fields) = (name.into(), fields.collect());
            decl(DeclKind::Object { name, fields })
        };
        let text = || decl(DeclKind::String);
        let root = object(
            "selfType",
            vec![
                ("a", object("selfType.a", vec![("b", text())])),
                ("m", decl(DeclKind::map(text()))),
            ],
        );
        let shown = |path: &str, decl| -> String {
            let steps = by_schema(path, decl).into_iter().map(|step| match step {
                Step::Property(name) => format!(".{name}"),
                Step::Key(name) => format!("[{name}]"),
            });
            steps.collect()
        };
        for (given, expected) in [
            (".a.b", ".a.b"),
            (".a['b']", ".a.b"),
            ("['a']", ".a"),
            (".m.k", ".m[k]"),
            (".m['k.l']", ".m[k.l]"),
            (r".m['it\'s']", ".m[it's]"),
            (r".m['a\\b\c']", r".m[a\b\c]"),
            ("", ""),
            // No brackets that could be a name end the path.
            (".[", ".["),
            (".m.[", ".m[[]"),
            ("[", ".["),
            (".", "."),
            ("['", "."),
            (r"['a\'][x']", ".a'][x"),
            (".m.é.ü", ".m[é].ü"),
        ] {
            assert_eq!(shown(given, Some(&root)), expected, "{given}");
        }
        assert_eq!(shown(".m['k'].x", None), ".m[k].x");
    }
}
