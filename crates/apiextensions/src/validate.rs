//! Validates a custom object by its schema, with the messages of Kubernetes' OpenAPI library, and
//! in its order: types, combinations, strings, numbers, lists, enumerations, objects. All checks
//! run, also after errors.

mod numbers;

use machinery::{
    Object, Value,
    field::{Error, ErrorKind, Errors, Path},
};

use super::scale::ScalePaths;
use super::{
    embedded, formats, list_types,
    ratchet::{CorrelatedItems, CorrelatedValue},
    rules::Rules,
    scale,
    structural::{AdditionalProperties, Schema},
    view::View,
};

/// The most errors that one check keeps. An object can have millions of them: each of its items may be wrong.
pub(crate) const MAX_ERRORS: usize = 1000;

/// The errors of a new object.
pub(crate) fn object(
    schema: &Schema,
    rules: Option<&Rules>,
    scale: Option<&ScalePaths>,
    object: &Object,
) -> Errors {
    let mut errors = check(schema, View::Map(object), None, "").into_errors(&Path::new(""));
    scale::check_spec(scale, object, &mut errors);
    scale::check_status(scale, object, &mut errors);
    embedded::check(schema, View::Map(object), &Path::new(""), &mut errors);
    list_types::check(schema, object, &mut errors);
    if let Some(rules) = applicable(rules, &mut errors) {
        rules.check(View::Map(object), &Path::new(""), &mut errors);
    }
    errors
}

/// The rules, unless there are errors after which they cannot be evaluated: rules rely on the declared types and sizes.
fn applicable<'r>(rules: Option<&'r Rules>, errors: &mut Errors) -> Option<&'r Rules> {
    use ErrorKind::{NotSupported, Required, TooLong, TooMany, TypeInvalid};
    let rules = rules?;
    let blocks = |error: &Error| {
        matches!(
            error.kind,
            NotSupported | Required | TooLong | TooMany | TypeInvalid
        )
    };
    if !errors.iter().any(blocks) {
        return Some(rules);
    }
    let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
    errors.push(Error::invalid(&Path::new(""), Value::Null, detail));
    None
}

/// The errors of an update, and warnings of rules that unchanged values violate: these are kept, so that a schema may
/// become stricter while objects exist.
pub(crate) fn update(
    schema: &Schema,
    rules: Option<&Rules>,
    scale: Option<&ScalePaths>,
    object: &Object,
    old: &Object,
) -> (Errors, Vec<String>) {
    let was = CorrelatedValue::new(schema, View::Map(object), View::Map(old));
    let mut errors = check(schema, View::Map(object), Some(was), "").into_errors(&Path::new(""));
    scale::check_spec(scale, object, &mut errors);
    scale::check_status(scale, object, &mut errors);
    embedded::check(schema, View::Map(object), &Path::new(""), &mut errors);
    list_types::check_update(schema, object, old, &mut errors);
    let mut warnings = Vec::new();
    if let Some(rules) = applicable(rules, &mut errors) {
        warnings = rules.check_update(was, &Path::new(""), &mut errors);
    }
    (errors, warnings)
}

/// The same for an update of the status.
pub(crate) fn status(
    schema: &Schema,
    rules: Option<&Rules>,
    scale: Option<&ScalePaths>,
    object: &Object,
    old: &Object,
) -> (Errors, Vec<String>) {
    let mut errors = Errors::new();
    let whole = CorrelatedValue::new(schema, View::Map(object), View::Map(old));
    if let (Some(status), Some(below)) = (object.get("status"), schema.properties.get("status")) {
        let found = check(below, status.into(), whole.key("status"), "");
        errors = found.into_errors(&Path::new("status"));
    }
    scale::check_status(scale, object, &mut errors);
    list_types::check_update(schema, object, old, &mut errors);
    let mut warnings = Vec::new();
    if let Some(rules) = applicable(rules, &mut errors) {
        warnings = rules.check_update(whole, &Path::new(""), &mut errors);
    }
    (errors, warnings)
}

/// The errors of a single value, at a path.
pub(crate) fn value(schema: &Schema, value: &Value, path: &Path) -> Errors {
    check(schema, value.into(), None, "").into_errors(path)
}

/// The deduplicated errors, at most [`MAX_ERRORS`], and how many checks passed: of several failed alternatives, the
/// one with the most matches is reported.
#[derive(Default)]
struct ValidationResult {
    complaints: Vec<Complaint>,
    matches: usize,
}

/// The error, its path and its message.
struct Complaint {
    path: String,
    what: Wrong,
    message: String,
}

enum Wrong {
    /// Only the message.
    Said,
    Type(Value),
    Value(Value),
    Missing,
    Unsupported(Value, Vec<Value>),
    TooLong(i64),
    TooMany(usize, i64),
}

impl ValidationResult {
    fn add(&mut self, path: &str, what: Wrong, message: String) {
        let is_full = self.complaints.len() >= MAX_ERRORS;
        if !is_full && !self.complaints.iter().any(|c| c.message == message) {
            self.complaints.push(Complaint {
                path: path.to_owned(),
                what,
                message,
            });
        }
    }

    fn push(&mut self, message: String) {
        self.add("", Wrong::Said, message);
    }

    fn merge(&mut self, other: Self) {
        self.matches += other.matches;
        for complaint in other.complaints {
            self.add(&complaint.path, complaint.what, complaint.message);
        }
    }

    fn is_valid(&self) -> bool {
        self.complaints.is_empty()
    }

    /// As field errors below a path.
    fn into_errors(self, root: &Path) -> Errors {
        self.complaints
            .into_iter()
            .map(|c| c.into_error(root))
            .collect()
    }
}

impl Complaint {
    fn into_error(self, root: &Path) -> Error {
        let path = match self.path.trim_start_matches('.') {
            "" => *root,
            below => root.child(below),
        };
        match self.what {
            Wrong::Said => Error::invalid(root, "", self.message),
            Wrong::Type(value) => Error::type_invalid(&path, value, self.message),
            Wrong::Value(value) => Error::invalid(&path, value, self.message),
            Wrong::Missing => Error::required(&path, ""),
            Wrong::Unsupported(value, allowed) => {
                let text = |value: &Value| match value {
                    Value::String(text) => text.clone(),
                    other => machinery::text::json(other),
                };
                let allowed: Vec<String> = allowed.iter().map(text).collect();
                let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
                Error::not_supported(&path, value, &allowed)
            }
            Wrong::TooLong(most) => Error::too_long(&path, most as usize),
            Wrong::TooMany(count, most) => Error::too_many(&path, count, most as usize),
        }
    }
}

/// Validates the value of a field or item; `was` is its old value, if known.
fn check(
    schema: &Schema,
    value: View<'_>,
    was: Option<CorrelatedValue<'_>>,
    path: &str,
) -> ValidationResult {
    let mut found = check_value(schema, value, was.as_ref(), path);
    if !found.is_valid() && was.is_some_and(|was| was.is_same()) {
        found.complaints.clear();
    }
    found
}

fn check_value(
    schema: &Schema,
    value: View<'_>,
    was: Option<&CorrelatedValue<'_>>,
    path: &str,
) -> ValidationResult {
    let mut found = ValidationResult::default();
    let limits = &schema.limits;
    if let View::Null = value {
        match schema.types.is_empty() || schema.nullable {
            true => found.matches += 1,
            false => wrong_type(path, &schema.types.join(","), "null", &mut found),
        }
        check_enum(schema, value, path, &mut found);
        return found;
    }
    if !schema.types.is_empty() || !limits.format.is_empty() {
        check_type(schema, value, path, &mut found);
        found.matches += 1;
    }
    check_combinations(schema, value, was, path, &mut found);
    found.matches += 1;
    match value {
        View::Text(text) => {
            check_text(schema, text, path, &mut found);
            found.matches += 1;
            if formats::is_known(&limits.format) {
                if !formats::has(&limits.format, text) {
                    wrong_type(path, &limits.format, text, &mut found);
                }
                found.matches += 1;
            }
        }
        View::Number(number) => {
            numbers::check(schema, number, path, &mut found);
            found.matches += 2;
        }
        View::List(items) => {
            check_items(schema, items, was, path, &mut found);
            found.matches += 2;
        }
        _ => {}
    }
    check_enum(schema, value, path, &mut found);
    found.matches += 1;
    if let View::Map(object) = value {
        check_object(schema, object, was, path, &mut found);
        found.matches += 1;
    }
    found.matches += 1;
    found
}

fn wrong_type(path: &str, wanted: &str, given: &str, found: &mut ValidationResult) {
    let message = format!(
        "{path} in body must be of type {wanted}: {}",
        machinery::text::quote(given)
    );
    found.add(path, Wrong::Type(given.into()), message);
}

fn check_type(schema: &Schema, value: View<'_>, path: &str, found: &mut ValidationResult) {
    let format = schema.limits.format.as_str();
    let has = |name: &str| schema.types.contains(&name);
    let (kind, detail) = value.kind();
    let whole = matches!(value, View::Number(n) if !n.is_i64() && n.as_f64().is_some_and(numbers::is_whole));
    let fits = has(kind)
        || (kind == "number" && whole && has("integer"))
        || (kind == "integer" && has("number"));
    let listed = matches!(value, View::Text(_) | View::List(_));
    if !listed && !format.is_empty() && !fits && format != detail {
        return wrong_type(path, format, detail, found);
    }
    // Strings, and oddly lists, are left to the format.
    let by_format = listed && !format.is_empty() && !has("number") && !has("integer");
    if by_format || fits {
        found.matches += 1;
    } else {
        wrong_type(path, &schema.types.join(","), kind, found);
    }
}

fn check_enum(schema: &Schema, value: View<'_>, path: &str, found: &mut ValidationResult) {
    let allowed = &schema.limits.allowed;
    if allowed.is_empty() || allowed.iter().any(|allowed| value.is_like(allowed)) {
        return;
    }
    let names: Vec<String> = allowed.iter().map(machinery::text::plain).collect();
    let message = format!("{path} in body should be one of [{}]", names.join(" "));
    let what = Wrong::Unsupported(value.to_value(), allowed.clone());
    found.add(path, what, message);
}

/// Reports the first of the three checks that fails.
fn check_text(schema: &Schema, text: &str, path: &str, found: &mut ValidationResult) {
    let limits = &schema.limits;
    let length = text.chars().count() as i64;
    if let Some(most) = limits.length.most.filter(|most| length > *most) {
        let message = format!("{path} in body should be at most {most} chars long");
        return found.add(path, Wrong::TooLong(most), message);
    }
    if let Some(least) = limits.length.least.filter(|least| length < *least) {
        let message = format!("{path} in body should be at least {least} chars long");
        return found.add(path, Wrong::Value(text.into()), message);
    }
    let Some(pattern) = &limits.pattern else {
        return;
    };
    if !pattern.is_match(text) {
        let message = format!("{path} in body should match '{}'", pattern.text);
        found.add(path, Wrong::Value(text.into()), message);
    }
}

fn check_items(
    schema: &Schema,
    items: &[Value],
    was: Option<&CorrelatedValue<'_>>,
    path: &str,
    found: &mut ValidationResult,
) {
    if let Some(below) = &schema.items {
        let mut old = was.and_then(CorrelatedValue::items);
        for (index, item) in items.iter().enumerate() {
            let was = old
                .as_mut()
                .and_then(|old: &mut CorrelatedItems| old.get(index));
            let path = format!("{path}[{index}]");
            found.merge(check(below, item.into(), was, &path));
        }
    }
    let (range, count) = (&schema.limits.items, items.len());
    if let Some(least) = range.least.filter(|least| (count as i64) < *least) {
        let message = format!("{path} in body should have at least {least} items");
        found.add(path, Wrong::Value(count.into()), message);
    }
    if let Some(most) = range.most.filter(|most| count as i64 > *most) {
        let message = format!("{path} in body should have at most {most} items");
        found.add(path, Wrong::TooMany(count, most), message);
    }
}

fn check_object(
    schema: &Schema,
    object: &Object,
    was: Option<&CorrelatedValue<'_>>,
    path: &str,
    found: &mut ValidationResult,
) {
    let (range, count) = (&schema.limits.properties, object.len());
    if let Some(least) = range.least.filter(|least| (count as i64) < *least) {
        let message = format!("{path} in body should have at least {least} properties");
        found.add(path, Wrong::Value(count.into()), message);
    }
    if let Some(most) = range.most.filter(|most| count as i64 > *most) {
        let message = format!("{path} in body should have at most {most} properties");
        found.add(path, Wrong::TooMany(count, most), message);
    }
    let below = |key: &str| was.and_then(|was| was.key(key));
    let others = object
        .iter()
        .filter(|(key, _)| !schema.properties.contains_key(key.as_str()));
    match &schema.others {
        AdditionalProperties::Never => {
            for (key, _) in others {
                let message = format!("{path}.{key} in body is a forbidden property");
                found.add(path, Wrong::Value(key.as_str().into()), message);
            }
        }
        AdditionalProperties::Of(schema) => {
            for (key, value) in others {
                let path = format!("{path}.{key}");
                found.merge(check(schema, value.into(), below(key), &path));
            }
        }
        AdditionalProperties::Unsaid | AdditionalProperties::Any => {}
    }
    for (key, schema) in &schema.properties {
        if let Some(value) = object.get(key) {
            let at = match path {
                "" => key.clone(),
                path => format!("{path}.{key}"),
            };
            found.merge(check(schema, value.into(), below(key), &at));
        }
    }
    for name in &schema.limits.required {
        if !object.contains_key(name) {
            let at = format!("{path}.{name}");
            let message = format!("{at} in body is required");
            found.add(&at, Wrong::Missing, message);
        }
    }
}

/// Subschemas know the old value only through the fields of the whole.
fn check_combinations(
    schema: &Schema,
    value: View<'_>,
    was: Option<&CorrelatedValue<'_>>,
    path: &str,
    found: &mut ValidationResult,
) {
    let part = |part: &Schema| check_value(part, value, was, path);
    let name = || machinery::text::quote(path);
    check_any(schema, &part, &name, found);
    check_one(schema, &part, &name, found);
    let mut right = 0;
    for one in &schema.all_of {
        let result = part(one);
        right += usize::from(result.is_valid());
        found.merge(result);
    }
    if right < schema.all_of.len() {
        let none = if right == 0 { ". None validated" } else { "" };
        found.push(format!(
            "{} must validate all the schemas (allOf){none}",
            name()
        ));
    }
    if schema
        .not
        .as_deref()
        .is_some_and(|not| part(not).is_valid())
    {
        found.push(format!("{} must not validate the schema (not)", name()));
    }
    found.matches += 1;
}

/// Tries subschemas until one matches, or all of them: returns how many match, and the first match
/// or the best mismatch.
fn best(
    parts: &[Schema],
    part: &dyn Fn(&Schema) -> ValidationResult,
    all: bool,
) -> (usize, Option<ValidationResult>) {
    let mut right = 0;
    let mut kept: Option<ValidationResult> = None;
    for one in parts {
        let result = part(one);
        if result.is_valid() {
            right += 1;
            if right == 1 {
                kept = Some(result);
            }
            if !all {
                break;
            }
        } else if right == 0
            && kept
                .as_ref()
                .is_none_or(|best| result.matches > best.matches)
        {
            kept = Some(result);
        }
    }
    (right, kept)
}

fn check_any(
    schema: &Schema,
    part: &dyn Fn(&Schema) -> ValidationResult,
    name: &dyn Fn() -> String,
    found: &mut ValidationResult,
) {
    if schema.any_of.is_empty() {
        return;
    }
    let (right, kept) = best(&schema.any_of, part, false);
    if right == 0 {
        found.push(format!(
            "{} must validate at least one schema (anyOf)",
            name()
        ));
    }
    found.merge(kept.unwrap_or_default());
}

fn check_one(
    schema: &Schema,
    part: &dyn Fn(&Schema) -> ValidationResult,
    name: &dyn Fn() -> String,
    found: &mut ValidationResult,
) {
    if schema.one_of.is_empty() {
        return;
    }
    let (right, kept) = best(&schema.one_of, part, true);
    let how_many = match right {
        1 => return found.merge(kept.unwrap_or_default()),
        0 => "Found none valid".to_owned(),
        right => format!("Found {right} valid alternatives"),
    };
    found.push(format!(
        "{} must validate one and only one schema (oneOf). {how_many}",
        name()
    ));
    if right == 0 {
        found.merge(kept.unwrap_or_default());
    }
}

#[cfg(test)]
mod tests;
