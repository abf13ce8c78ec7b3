//! Numbers and their limits. A limit is a float; for an integer it is converted as Go does.

use machinery::Value;
use machinery::json::Number;
use machinery::text::float;

use super::{ValidationResult, Wrong};
use crate::structural::Schema;

/// The largest integer that a float represents exactly.
const WHOLE_MAX: f64 = 9_007_199_254_740_991.0;

/// Whether a float is an integer, within a small tolerance.
pub(super) fn is_whole(f: f64) -> bool {
    let near = f.round();
    f.abs() <= WHOLE_MAX && (f == near || (f - near).abs() / (f.abs() + near.abs()) < 1e-9)
}

/// The type in which a number or a limit is compared.
#[derive(Clone, Copy)]
enum Native {
    Int(i64),
    Float(f64),
}

impl Native {
    fn from_number(number: &Number) -> Self {
        match (number.as_i64(), number.as_f64()) {
            (Some(i), _) => Self::Int(i),
            (None, f) => Self::Float(f.unwrap_or_default()),
        }
    }

    fn as_f64(self) -> f64 {
        match self {
            Self::Int(i) => i as f64,
            Self::Float(f) => f,
        }
    }

    /// A limit converted for this number: an integer for an integer.
    fn beside(self, limit: f64) -> Self {
        match self {
            Self::Int(_) if limit.abs() < 2f64.powi(63) => Self::Int(limit as i64),
            // Go's result for a float that is too large.
            Self::Int(_) => Self::Int(i64::MIN),
            Self::Float(_) => Self::Float(limit),
        }
    }

    fn text(self) -> String {
        match self {
            Self::Int(i) => i.to_string(),
            Self::Float(f) => float(f),
        }
    }

    fn value(self) -> Value {
        match self {
            Self::Int(i) => i.into(),
            Self::Float(f) => f.into(),
        }
    }
}

impl PartialEq for Native {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(std::cmp::Ordering::Equal)
    }
}

impl PartialOrd for Native {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => a.partial_cmp(b),
            (a, b) => a.as_f64().partial_cmp(&b.as_f64()),
        }
    }
}

pub(super) fn check(schema: &Schema, number: &Number, path: &str, found: &mut ValidationResult) {
    let limits = &schema.limits;
    let native = Native::from_number(number);
    let range = Range::from_schema(schema);
    range.check(native, "Checked", path, found);
    if let Some(step) = limits.multiple_of {
        let (number, step) = range.beside(native, step, "MultipleOf", path, found);
        check_multiple(number, step, path, found);
    }
    if let Some(least) = limits.minimum {
        let (number, least) = range.beside(native, least, "Minimum boundary", path, found);
        let than = match limits.exclusive_minimum {
            true if number <= least => "greater than",
            false if number < least => "greater than or equal to",
            _ => "",
        };
        refuse(number, than, least, path, found);
    }
    if let Some(most) = limits.maximum {
        let (number, most) = range.beside(native, most, "Maximum boundary", path, found);
        let than = match limits.exclusive_maximum {
            true if number >= most => "less than",
            false if number > most => "less than or equal to",
            _ => "",
        };
        refuse(number, than, most, path, found);
    }
}

fn refuse(number: Native, than: &str, limit: Native, path: &str, found: &mut ValidationResult) {
    if !than.is_empty() {
        let message = format!("{path} in body should be {than} {}", limit.text());
        found.add(path, Wrong::Value(number.value()), message);
    }
}

fn check_multiple(number: Native, step: Native, path: &str, found: &mut ValidationResult) {
    if step <= Native::Int(0) {
        let step_text = step.text();
        let message =
            format!("factor MultipleOf declared for {path} must be positive: {step_text}");
        return found.add(path, Wrong::Value(step.value()), message);
    }
    let fits = match (number, step) {
        (Native::Int(number), Native::Int(step)) => number % step == 0,
        (number, step) if step.as_f64() < 1.0 => is_whole(1.0 / step.as_f64() * number.as_f64()),
        (number, step) => is_whole(number.as_f64() / step.as_f64()),
    };
    if !fits {
        let message = format!("{path} in body should be a multiple of {}", step.text());
        found.add(path, Wrong::Value(number.value()), message);
    }
}

/// The range of a type.
struct Range<'a> {
    kind: &'a str,
    format: &'a str,
}

impl<'a> Range<'a> {
    fn from_schema(schema: &'a Schema) -> Self {
        let (kind, format) = match schema.types[..] {
            [kind @ ("integer" | "number")] => (kind, schema.limits.format.as_str()),
            _ => ("", ""),
        };
        Self { kind, format }
    }

    fn holds(&self, number: Native) -> bool {
        let whole = |min: f64, max: f64| match number {
            Native::Int(i) => (min..=max).contains(&(i as f64)),
            Native::Float(f) => f.fract() == 0.0 && f >= min && f <= max,
        };
        match (self.kind, self.format) {
            ("integer", "int32") => whole(i32::MIN.into(), i32::MAX.into()),
            ("integer", _) => match number {
                Native::Int(_) => true,
                Native::Float(f) => {
                    f.fract() == 0.0 && (-2f64.powi(63)..2f64.powi(63)).contains(&f)
                }
            },
            ("number", "float") => (number.as_f64() as f32).is_finite(),
            _ => true,
        }
    }

    /// A number and a limit in comparable form. A limit outside of the type's range is reported,
    /// and compared as a float.
    fn beside(
        &self,
        number: Native,
        limit: f64,
        name: &str,
        path: &str,
        found: &mut ValidationResult,
    ) -> (Native, Native) {
        if self.check(Native::Float(limit), name, path, found) {
            (number, number.beside(limit))
        } else {
            (Native::Float(number.as_f64()), Native::Float(limit))
        }
    }

    fn check(&self, number: Native, name: &str, path: &str, found: &mut ValidationResult) -> bool {
        let holds = self.holds(number);
        if !holds {
            let format = match self.format {
                "" => " (default format)".to_owned(),
                format => format!(" with format {format}"),
            };
            let kind = self.kind;
            found.push(format!(
                "{name} value must be of type {kind}{format} in {path}"
            ));
        }
        holds
    }
}
