//! The request policy of a consumable capacity: certain values, or a range with steps.

use super::check_set;
use crate::tree::{is_set, list, text};
use machinery::Value;
use machinery::field::{Error, Errors, Path};
use machinery::quantity::Quantity;

const VALUES_MAX: usize = 10;

/// A quantity; decoding has rejected invalid ones.
fn quantity(value: &Value) -> Quantity {
    text(value).parse().unwrap_or(Quantity::ZERO)
}

/// Validates the policy of a capacity of this size.
pub(super) fn check_request_policy(
    policy: &Value,
    capacity: &Value,
    path: &Path,
    errors: &mut Errors,
) {
    let (values, range) = (list(&policy["validValues"]), &policy["validRange"]);
    let capacity = quantity(capacity);
    let form = match (values, is_set(range)) {
        ([], false) => return,
        ([], true) => "validRange",
        (_, false) => "validValues",
        (_, true) => {
            let detail = r#"exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time"#;
            return errors.push(Error::forbidden(path, detail));
        }
    };
    if !is_set(&policy["default"]) {
        let detail = format!("required when {form} is defined");
        return errors.push(Error::required(&path.child("default"), detail));
    }
    let (default, at) = (quantity(&policy["default"]), path.child(form));
    match form {
        "validRange" => check_range(range, default, capacity, &at, errors),
        _ => check_values(values, default, capacity, &at, errors),
    }
}

fn check_values(
    values: &[Value],
    default: Quantity,
    capacity: Quantity,
    path: &Path,
    errors: &mut Errors,
) {
    for (i, pair) in values.windows(2).enumerate() {
        if quantity(&pair[0]) > quantity(&pair[1]) {
            let shown = quantity(&pair[1]).to_string();
            let detail = "values must be sorted in ascending order";
            errors.push(Error::invalid(&path.index(i + 1), shown, detail));
        }
    }
    let mut has_default = false;
    let key = |value: &Value| Value::from(quantity(value).value().to_string());
    check_set(
        values,
        VALUES_MAX,
        key,
        path,
        errors,
        |value, path, errors| {
            let value = quantity(value);
            has_default |= value == default;
            if value > capacity {
                let detail = format!("option is larger than capacity value: {capacity}");
                errors.push(Error::invalid(path, value.to_string(), detail));
            }
        },
    );
    if !has_default {
        let detail = "default value is not valid according to the requestPolicy";
        errors.push(Error::invalid(path, default.to_string(), detail));
    }
}

fn check_range(
    range: &Value,
    default: Quantity,
    capacity: Quantity,
    path: &Path,
    errors: &mut Errors,
) {
    let at_min = path.child("min");
    if !is_set(&range["min"]) {
        return errors.push(Error::required(
            &at_min,
            "required when validRange is defined",
        ));
    }
    let min = quantity(&range["min"]);
    let max = is_set(&range["max"]).then(|| quantity(&range["max"]));
    if min > capacity {
        let detail = format!("min is larger than capacity value: {capacity}");
        errors.push(Error::invalid(&at_min, min.to_string(), detail));
    }
    if default < min {
        let detail = format!("default is less than min: {min}");
        errors.push(Error::invalid(&at_min, default.to_string(), detail));
    }
    if let Some(max) = max {
        let at = path.child("max");
        if min > max {
            let detail = format!("min is larger than max: {max}");
            errors.push(Error::invalid(&at, min.to_string(), detail));
        }
        if max > capacity {
            let detail = format!("max is larger than capacity value: {capacity}");
            errors.push(Error::invalid(&at, max.to_string(), detail));
        }
        if default > max {
            let detail = format!("default is more than max: {max}");
            errors.push(Error::invalid(&at, default.to_string(), detail));
        }
    }
    if is_set(&range["step"]) {
        let (step, at) = (quantity(&range["step"]), path.child("step"));
        let first = min.plus(step);
        if first > capacity {
            let detail = format!("one step {first} is larger than capacity value: {capacity}");
            errors.push(Error::invalid(&at, step.to_string(), detail));
        }
        for value in [Some(default), max].into_iter().flatten() {
            let way = value.value().wrapping_sub(min.value());
            if way.checked_rem(step.value()) != Some(0) {
                let detail =
                    format!("value is not a multiple of a given step ({step}) from ({min})");
                errors.push(Error::invalid(&at, value.to_string(), detail));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::lines;
    use machinery::json::json;

    #[test]
    fn request_policies_stay_within_the_capacity() {
        let cases = [
            (json!({}), vec![]),
            (json!({"default": "1", "validValues": ["1", "2"]}), vec![]),
            (
                json!({"default": "2", "validRange": {"min": "1", "max": "10", "step": "1"}}),
                vec![],
            ),
            (
                json!({"validValues": ["1"], "validRange": {"min": "1"}}),
                vec![
                    r#"p: Forbidden: exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time"#,
                ],
            ),
            (
                json!({"validValues": ["1"]}),
                vec!["p.default: Required value: required when validValues is defined"],
            ),
            (
                json!({"validRange": {}}),
                vec!["p.default: Required value: required when validRange is defined"],
            ),
            (
                json!({"default": "3", "validValues": ["2", "1", "2", "11"]}),
                vec![
                    "p.validValues[1]: Invalid value: \"1\": values must be sorted in ascending order",
                    "p.validValues[3]: Invalid value: \"11\": option is larger than capacity value: 10",
                    "p.validValues[2]: Duplicate value: \"2\"",
                    "p.validValues: Invalid value: \"3\": default value is not valid according to the requestPolicy",
                ],
            ),
            (
                json!({"default": "1", "validRange": {"max": "1"}}),
                vec!["p.validRange.min: Required value: required when validRange is defined"],
            ),
            (
                json!({"default": "12", "validRange": {"min": "13", "max": "11"}}),
                vec![
                    "p.validRange.min: Invalid value: \"13\": min is larger than capacity value: 10",
                    "p.validRange.min: Invalid value: \"12\": default is less than min: 13",
                    "p.validRange.max: Invalid value: \"13\": min is larger than max: 11",
                    "p.validRange.max: Invalid value: \"11\": max is larger than capacity value: 10",
                    "p.validRange.max: Invalid value: \"12\": default is more than max: 11",
                ],
            ),
            (
                json!({"default": "2", "validRange": {"min": "1", "max": "9", "step": "10"}}),
                vec![
                    "p.validRange.step: Invalid value: \"10\": one step 11 is larger than capacity value: 10",
                    "p.validRange.step: Invalid value: \"2\": value is not a multiple of a given step (10) from (1)",
                    "p.validRange.step: Invalid value: \"9\": value is not a multiple of a given step (10) from (1)",
                ],
            ),
            (
                json!({"default": "2", "validRange": {"min": "1", "step": "0"}}),
                vec![
                    "p.validRange.step: Invalid value: \"2\": value is not a multiple of a given step (0) from (1)",
                ],
            ),
        ];
        for (policy, expected) in cases {
            let mut errors = Vec::new();
            check_request_policy(&policy, &json!("10"), &Path::new("p"), &mut errors);
            assert_eq!(lines(errors), expected, "{policy}");
        }
    }
}
