//! Validation of claims and their status.

use super::*;
use crate::testing::{lines, object};

const CLAIM: &str =
    r#"{"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}}"#;

fn with_status(status: Value) -> Object {
    let mut claim = object(CLAIM);
    claim.insert("status", status);
    claim
}

fn result(fields: Value) -> Value {
    let mut result = json!({"request": "r", "driver": "d", "pool": "p", "device": "x"});
    for (key, value) in fields.as_object().unwrap() {
        result
            .as_object_mut()
            .unwrap()
            .insert(key.clone(), value.clone());
    }
    result
}

fn messages(status: Value) -> Vec<String> {
    lines((KIND.validate_update)(
        &with_status(status),
        &object(CLAIM),
        Some("status"),
    ))
}

#[test]
fn the_spec_stays_as_it_is() {
    let old = object(CLAIM);
    let mut new = old.clone();
    assert_eq!(lines((KIND.validate_update)(&new, &old, None)), [""; 0]);
    new.insert("spec", json!({}));
    assert_eq!(
        lines((KIND.validate_update)(&new, &old, None)),
        [
            r#"spec: Invalid value: {"Devices":{"Requests":null,"Constraints":null,"Config":null}}: field is immutable"#
        ]
    );
}

#[test]
fn results_answer_requests_with_devices() {
    let at = "status.allocation.devices.results[0]";
    let unknown = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
    let cases = [
        (result(json!({})), vec![]),
        (
            result(json!({"request": "s"})),
            vec![format!("{at}.request: Invalid value: \"s\": {unknown}")],
        ),
        (
            result(json!({"driver": "", "pool": ""})),
            vec![
                format!("{at}.driver: Required value"),
                format!("{at}.pool: Required value"),
            ],
        ),
        (
            result(json!({"shareID": "a"})),
            vec![format!(
                "{at}.shareID: Invalid value: \"a\": error validating uid: invalid UUID length: 1"
            )],
        ),
        (
            result(json!({"bindingConditions": ["a"]})),
            vec![format!(
                "{at}.bindingFailureConditions: Invalid value: null: bindingFailureConditions are required to use bindingConditions"
            )],
        ),
    ];
    for (result, expected) in cases {
        let status = json!({"allocation": {"devices": {"results": [result]}}});
        assert_eq!(messages(status), expected, "{result}");
    }
    let config = json!([{}, {"source": "Nowhere", "requests": ["r"], "opaque": {"driver": "d", "parameters": {}}}]);
    assert_eq!(
        messages(json!({"allocation": {"devices": {"config": config}}})),
        [
            "status.allocation.devices.config[0].source: Required value",
            "status.allocation.devices.config[0].opaque: Required value",
            "status.allocation.devices.config[1].source: Unsupported value: \"Nowhere\": supported values: \"FromClaim\", \"FromClass\"",
        ]
    );
}

#[test]
fn an_allocation_is_immutable_but_can_be_removed() {
    let one = with_status(json!({"allocation": {"devices": {"results": [result(json!({}))]}}}));
    let other = with_status(json!({"allocation": {"devices": {"results": []}}}));
    let none = with_status(json!({}));
    assert_eq!(
        lines((KIND.validate_update)(&other, &one, Some("status"))),
        [
            r#"status.allocation: Invalid value: {"Devices":{"Results":[],"Config":null},"NodeSelector":null,"AllocationTimestamp":null}: field is immutable"#
        ]
    );
    assert_eq!(
        lines((KIND.validate_update)(&none, &one, Some("status"))),
        [""; 0]
    );
}

#[test]
fn only_allocated_claims_are_reserved_for_consumers() {
    let consumer = |uid: &str| json!({"resource": "pods", "name": "p", "uid": uid});
    assert_eq!(
        messages(json!({"reservedFor": [consumer("u"), consumer("u"), {}]})),
        [
            "status.reservedFor[2].resource: Required value",
            "status.reservedFor[2].name: Required value",
            "status.reservedFor[2].uid: Required value",
            "status.reservedFor[1]: Duplicate value: \"u\"",
            "status.reservedFor: Forbidden: may not be specified when `allocated` is not set",
        ]
    );
    let allocation = json!({"devices": {}});
    let old = with_status(json!({"allocation": allocation, "reservedFor": [consumer("u")]}));
    let mut new = with_status(
        json!({"allocation": allocation, "reservedFor": [consumer("u"), consumer("v")]}),
    );
    assert_eq!(
        lines((KIND.validate_update)(&new, &old, Some("status"))),
        [""; 0]
    );
    new.insert(
        "metadata",
        json!({"deletionTimestamp": "2020-01-01T00:00:00Z"}),
    );
    assert_eq!(
        lines((KIND.validate_update)(&new, &old, Some("status"))),
        [
            "status.reservedFor: Forbidden: new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        ]
    );
}

#[test]
fn statuses_are_of_allocated_devices() {
    let device = |fields: Value| {
        json!({
            "allocation": {"devices": {"results": [result(json!({}))]}},
            "devices": [result(fields)]
        })
    };
    let at = "status.devices[0]";
    let cases = [
        (json!({}), vec![]),
        (
            json!({"device": "y"}),
            vec![format!(
                "{at}: Invalid value: {{\"Driver\":\"d\",\"Pool\":\"p\",\"Device\":\"y\",\"ShareID\":\"\"}}: must be an allocated device in the claim"
            )],
        ),
        (
            json!({"data": [1]}),
            vec![format!(
                "{at}.data: Invalid value: \"<value omitted>\": must be a valid JSON object"
            )],
        ),
        (
            json!({"networkData": {"ips": ["10.9.8.7/24", "10.9.8.07/24", "x", "::ffff:1.2.3.4/120"]}}),
            vec![
                format!(
                    "{at}.networkData.ips[1]: Invalid value: \"10.9.8.07/24\": must be in canonical form (\"10.9.8.7/24\")"
                ),
                format!(
                    "{at}.networkData.ips[2]: Invalid value: \"x\": must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)"
                ),
                format!(
                    "{at}.networkData.ips[3]: Invalid value: \"::ffff:1.2.3.4/120\": must be in canonical form (\"1.2.3.4/24\")"
                ),
            ],
        ),
        (
            json!({"networkData": {"interfaceName": "x".repeat(257), "hardwareAddress": "x".repeat(129)}}),
            vec![
                format!("{at}.networkData.interfaceName: Too long: may not be more than 256 bytes"),
                format!(
                    "{at}.networkData.hardwareAddress: Too long: may not be more than 128 bytes"
                ),
            ],
        ),
    ];
    for (fields, expected) in cases {
        assert_eq!(messages(device(fields.clone())), expected, "{fields}");
    }
}

#[test]
fn the_status_of_a_device_goes_with_it() {
    let old = with_status(json!({
        "allocation": {"devices": {"results": [result(json!({})), result(json!({"device": "y"}))]}},
        "devices": [result(json!({})), result(json!({"device": "y"}))]
    }));
    let mut new = with_status(json!({
        "allocation": {"devices": {"results": [result(json!({}))]}},
        "devices": [result(json!({})), result(json!({"device": "y"}))]
    }));
    drop_deallocated(&mut new, &old);
    assert_eq!(list(&get(&new, "status")["devices"]).len(), 1);
    let mut none = with_status(json!({"devices": [result(json!({}))]}));
    drop_deallocated(&mut none, &old);
    assert!(get(&none, "status")["devices"].is_null());
}
