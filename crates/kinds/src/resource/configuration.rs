//! Selectors and configuration of devices, in classes, claims and allocations.

use super::check_items;
use super::names;
use crate::tree::{is_set, list, text};
use machinery::Value;
use machinery::field::{Error, Errors, Path};

const SELECTORS_MAX: usize = 32;
const EXPRESSION_MAX: usize = 10 * 1024;
const PARAMETERS_MAX: usize = 10 * 1024;

/// Validates selectors.
pub(super) fn check_selectors(selectors: &Value, path: &Path, errors: &mut Errors) {
    check_items(
        list(selectors),
        SELECTORS_MAX,
        path,
        errors,
        |selector, path, errors| {
            let at = path.child("cel");
            if !is_set(&selector["cel"]) {
                errors.push(Error::required(&at, ""));
            } else if text(&selector["cel"]["expression"]).len() > EXPRESSION_MAX {
                errors.push(Error::too_long(&at.child("expression"), EXPRESSION_MAX));
            }
        },
    );
}

/// Validates a driver's configuration; `stored` ones may be longer.
pub(super) fn check_configuration(config: &Value, stored: bool, path: &Path, errors: &mut Errors) {
    let (opaque, at) = (&config["opaque"], path.child("opaque"));
    if !is_set(opaque) {
        return errors.push(Error::required(&at, ""));
    }
    names::driver(text(&opaque["driver"]), &at.child("driver"), errors);
    check_raw(
        &opaque["parameters"],
        stored,
        PARAMETERS_MAX,
        &at.child("parameters"),
        errors,
    );
}

/// Validates an opaque object.
pub(super) fn check_raw(value: &Value, stored: bool, max: usize, path: &Path, errors: &mut Errors) {
    if !is_set(value) {
        errors.push(Error::required(path, ""));
    } else if !stored && value.to_string().len() > max {
        errors.push(Error::too_long(path, max));
    } else if !value.is_object() {
        errors.push(Error::invalid(
            path,
            "<value omitted>",
            "must be a valid JSON object",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::lines;
    use machinery::json::json;

    #[test]
    fn configurations_name_a_driver_and_carry_an_object() {
        let path = Path::new("c");
        let cases = [
            (
                json!({"opaque": {"driver": "d", "parameters": {"a": 1}}}),
                "",
            ),
            (json!({}), "c.opaque: Required value"),
            (
                json!({"opaque": {"parameters": {}}}),
                "c.opaque.driver: Required value",
            ),
            (
                json!({"opaque": {"driver": "d"}}),
                "c.opaque.parameters: Required value",
            ),
            (
                json!({"opaque": {"driver": "d", "parameters": "x"}}),
                "c.opaque.parameters: Invalid value: \"<value omitted>\": must be a valid JSON object",
            ),
        ];
        for (config, expected) in cases {
            let mut errors = Vec::new();
            check_configuration(&config, false, &path, &mut errors);
            assert_eq!(lines(errors).join(" "), expected, "{config}");
        }
        let long =
            json!({"opaque": {"driver": "d", "parameters": {"a": "x".repeat(PARAMETERS_MAX)}}});
        for (stored, expected) in [(false, 1), (true, 0)] {
            let mut errors = Vec::new();
            check_configuration(&long, stored, &path, &mut errors);
            assert_eq!(errors.len(), expected);
        }
    }

    #[test]
    fn selectors_need_an_expression_and_its_length_is_limited() {
        let path = Path::new("s");
        let mut errors = Vec::new();
        let long = "x".repeat(EXPRESSION_MAX + 1);
        check_selectors(
            &json!([{}, {"cel": {"expression": long}}]),
            &path,
            &mut errors,
        );
        assert_eq!(
            lines(errors),
            [
                "s[0].cel: Required value",
                "s[1].cel.expression: Too long: may not be more than 10240 bytes"
            ]
        );
        let mut errors = Vec::new();
        let many: Vec<_> = (0..33).map(|_| json!({})).collect();
        check_selectors(&json!(many), &path, &mut errors);
        assert_eq!(
            lines(errors),
            ["s: Too many: 33: must have at most 32 items"]
        );
    }
}
