//! Device selectors: their results, and their maximum costs as estimated by upstream.

use cel::{Device, DeviceSelector, SelectorError};
use machinery::json::{Value, json};

fn found(text: &str, driver: &str, device: &Value) -> (Result<bool, String>, u64) {
    let selector = DeviceSelector::compile(text).expect(text);
    let selected = Device::new(driver, device)
        .and_then(|device| selector.matches(&device))
        .map_err(|error| error.message);
    (selected, selector.max_cost())
}

const DRIVER: &str = "dra.example.com";

fn device() -> Value {
    json!({
        "attributes": {
            "bool": {"bool": true},
            "int": {"int": 1},
            "string": {"string": "fish"},
            "version": {"version": "1.0.0"},
            "services": {"string": "some_example_value"},
            "other.example.com/name": {"bool": true}
        },
        "capacity": {"memory": {"value": "1Mi"}}
    })
}

#[test]
fn selectors_see_what_a_device_offers() {
    let own = "device.attributes[\"dra.example.com\"]";
    let memory = "device.capacity[\"dra.example.com\"]";
    let yes = |text: String, cost: u64| (text, Ok(true), cost);
    let no = |text: &str, cost: u64| (text.to_owned(), Ok(false), cost);
    let missing = |text: String, cost| (text, Err("no such key: noSuchAttr".to_owned()), cost);
    let none = "device.attributes[\"no-such-domain\"]";
    let cases = [
        yes("true".into(), 0),
        no("false", 0),
        missing(
            format!("{none}.noSuchAttr.isGreaterThan(quantity(\"0\"))"),
            6,
        ),
        missing(
            format!("{none}[\"noSuchAttr\"].isGreaterThan(quantity(\"0\"))"),
            6,
        ),
        no("\"no-such-domain\" in device.attributes", 3),
        yes("\"dra.example.com\" in device.attributes".into(), 3),
        yes("device.driver == \"dra.example.com\"".into(), 4),
        yes(format!("{own}.bool"), 4),
        yes(format!("{own}[\"bool\"]"), 4),
        yes(format!("cel.bind(dra, {own}, dra.bool)"), 15),
        yes("device.attributes[\"other.example.com\"].name".into(), 4),
        yes(format!("{own}.int > 0"), 5),
        yes(format!("{own}.string == \"fish\""), 5),
        yes(format!("{own}.version.isGreaterThan(semver(\"0.0.1\"))"), 6),
        yes(
            format!(
                "{own}.version.isGreaterThan(semver(\"v0.0.1\", true)) && isSemver(\"v1.0.0\", true)"
            ),
            7,
        ),
        yes(
            format!("{memory}.memory.isGreaterThan(quantity(\"1Ki\"))"),
            6,
        ),
        yes(
            format!("\"memory\" in {memory} && {memory}.memory.isGreaterThan(quantity(\"1Ki\"))"),
            10,
        ),
        yes(
            format!("!(\"name\" in {memory}) || {memory}.name.isGreaterThan(quantity(\"1Ki\"))"),
            11,
        ),
        yes(format!("{own}.bool && {own}.bool && {own}.bool"), 12),
        yes(
            "device.attributes.exists_one(x, x == \"dra.example.com\")".into(),
            164,
        ),
        yes(format!("{own}.exists_one(x, x == \"services\")"), 133),
        yes(format!("{own}.services.split(\"example\").size() >= 2"), 19),
        yes(format!("{own}.services.matches(\"[^a]?ample\")"), 25),
        yes(
            "device.capacity.exists_one(x, x == \"dra.example.com\")".into(),
            164,
        ),
        yes(format!("{memory}.exists_one(x, x == \"memory\")"), 133),
        yes("device.allowMultipleAllocations == false".into(), 3),
    ];
    for (text, expected, cost) in cases {
        assert_eq!(found(&text, DRIVER, &device()), (expected, cost), "{text}");
    }
}

#[test]
fn a_selector_that_never_ends_is_too_expensive() {
    let digits = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]";
    let loops: String = (0..7).map(|i| format!("{digits}.all(z{i}, ")).collect();
    let text = format!("{loops}int('1'.find('[0-9]*')) < 100{}", ")".repeat(7));
    let (selected, cost) = found(&text, DRIVER, &json!({}));
    assert_eq!(cost, 85_555_551);
    let error = selected.expect_err("the limit ends it");
    assert!(error.contains("actual cost limit exceeded"), "{error}");
}

#[test]
fn what_does_not_decide_is_no_selector() {
    let invalid = |text: &str| match DeviceSelector::compile(text) {
        Err(SelectorError::Invalid(why)) => why,
        other => panic!("{text}: {other:?}"),
    };
    for (text, expected) in [
        ("1", "must evaluate to bool or the unknown type, not int"),
        (
            "dyn(true)",
            "must evaluate to bool or the unknown type, not dyn",
        ),
        (
            "device.attributes['d']",
            "must evaluate to bool or the unknown type, not map(string, google.protobuf.Any)",
        ),
        (
            "device.name",
            "compilation failed: ERROR: <input>:1:7: undefined field 'name'\n | device.name\n | ......^",
        ),
        (
            "device.attributes['d'].names.exists(x, x > 0)",
            "compilation failed: ERROR: <input>:1:23: expression of type 'any' cannot be range of a comprehension (must be list, map, or dynamic)\n | device.attributes['d'].names.exists(x, x > 0)\n | ......................^",
        ),
        (
            "device.attributes['d'].name.includes('fish')",
            "compilation failed: ERROR: <input>:1:37: undeclared reference to 'includes' (in container '')\n | device.attributes['d'].name.includes('fish')\n | ....................................^",
        ),
        (
            "cel.bind(1, true, true)",
            "compilation failed: ERROR: <input>:1:10: cel.bind() variable names must be simple identifiers\n | cel.bind(1, true, true)\n | .........^",
        ),
    ] {
        assert_eq!(invalid(text), expected, "{text}");
    }
}

#[test]
fn what_is_no_device_matches_nothing() {
    let cases = [
        (
            json!({"attributes": {"a": {}}}),
            "attribute a: unsupported attribute value",
        ),
        (
            json!({"attributes": {"a": {"version": "1"}}}),
            "attribute a: parse semantic version: No Major.Minor.Patch elements found",
        ),
    ];
    for (device, expected) in cases {
        assert_eq!(found("true", DRIVER, &device).0, Err(expected.to_owned()));
    }
    let text = "device.attributes[\"dra.example.com\"].string";
    assert_eq!(
        found(text, DRIVER, &device()).0,
        Err("CEL result of type string could not be converted to bool".to_owned())
    );
}
