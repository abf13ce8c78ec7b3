//! ResourceClaim: requested devices, and in its status the allocated ones.

use super::claim_spec::{
    CONFIG_MAX, check_claim_spec, check_references, default_claim_spec, default_tolerations,
    requested_admin_access, visit_claim_selectors,
};
use super::configuration::{check_configuration, check_raw};
use super::device::check_binding_conditions;
use super::names::{self, Requests};
use super::{check_items, check_set};
use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::equal::equal;
use crate::internal::internal;
use crate::metadata::Check;
use crate::pod::check_node_selector;
use crate::tree::{child, child_or_new, each, get, is_set, list, text, truth};
use crate::unenforced::REQUESTS_DEVICES;
use crate::{Column, Expressions, ServerSide, Subresource};
use machinery::field::{Error, Errors, Path, PathBuf};
use machinery::json::json;
use machinery::{Object, Value};
use std::collections::BTreeSet;

const RESULTS_MAX: usize = 32;
const RESERVED_MAX: usize = 256;
const CONDITIONS_MAX: usize = 8;
const DATA_MAX: usize = 10 * 1024;
const ADDRESSES_MAX: usize = 16;
const INTERFACE_MAX: usize = 256;
const HARDWARE_MAX: usize = 128;

const ALLOCATION: &str = "resource/v1.AllocationResult";

pub const KIND: Builtin = Builtin {
    group: "resource.k8s.io",
    kind: "ResourceClaim",
    plural: "resourceclaims",
    unenforced: REQUESTS_DEVICES,
    server_side: ServerSide {
        expressions: Expressions::DeviceSelectors(visit_selectors),
        admin_access,
        guards_devices: true,
        ..ServerSide::NONE
    },
    returns_deleted: true,
    schema: "resource/v1.ResourceClaim",
    subresources: &[STATUS],
    has_status: true,
    default: |object| {
        default_claim_spec(child_or_new(object, "spec"));
        let devices = child(object, "status")
            .and_then(|status| child(status, "allocation"))
            .and_then(|allocation| child(allocation, "devices"));
        if let Some(devices) = devices {
            each(devices, "results").for_each(default_tolerations);
        }
    },
    prepare_update: |object, old, subresource, _| {
        if subresource.is_some() {
            drop_deallocated(object, old);
        }
    },
    validate_create: |object| {
        let mut errors = Vec::new();
        check_claim_spec(get(object, "spec"), &Path::new("spec"), &mut errors);
        errors
    },
    validate_update: |object, old, subresource: Subresource<'_>| match subresource {
        None => immutable(object, old),
        Some(_) => validate_status(object, old),
    },
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Whole, Check::Change],
    status_resets: &[&["metadata"], &["spec"]],
    ..Builtin::EMPTY
};

/// The spec of a claim is immutable, so its selectors are checked only on create.
fn visit_selectors(
    object: &Object,
    old: Option<&Object>,
    visit: &mut dyn FnMut(&Path<'_>, &Value),
) {
    if old.is_none() {
        visit_claim_selectors(get(object, "spec"), &Path::new("spec"), visit);
    }
}

/// A new claim may request administrative access, and a status may newly grant it.
fn admin_access(
    object: &Object,
    old: Option<&Object>,
    subresource: Subresource<'_>,
) -> Option<PathBuf> {
    match (subresource, old) {
        (None, None) => requested_admin_access(&get(object, "spec")["devices"]),
        (Some("status"), Some(old)) => granted_admin_access(object, old),
        _ => None,
    }
}

/// The path of an allocation result that newly grants administrative access.
fn granted_admin_access(object: &Object, old: &Object) -> Option<PathBuf> {
    let result = |claim: &Object| {
        let allocation = &get(claim, "status")["allocation"];
        list(&allocation["devices"]["results"])
            .iter()
            .position(|result| truth(&result["adminAccess"]))
    };
    let (now, before) = (result(object), result(old));
    let at = Path::new("status.allocation.devices.results");
    now.filter(|_| before.is_none())
        .map(|i| at.index(i).child("adminAccess").to_path_buf())
}

const COLUMNS: &[Column] = &[
    NAME,
    column("State", "string", "State of the allocation."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let status = get(object, "status");
    let ending = is_set(&get(object, "metadata")["deletionTimestamp"]);
    let mut states = Vec::new();
    if ending {
        states.push("deleted");
    }
    if is_set(&status["allocation"]) {
        states.push("allocated");
        if !list(&status["reservedFor"]).is_empty() {
            states.push("reserved");
        }
    } else if !ending {
        states.push("pending");
    }
    vec![name_cell(object), states.join(",").into(), age(object, now)]
}

fn immutable(object: &Object, old: &Object) -> Errors {
    const SPEC: &str = "resource/v1.ResourceClaimSpec";
    if equal(SPEC, get(object, "spec"), get(old, "spec")) {
        return Vec::new();
    }
    let shown = internal(SPEC, get(object, "spec"));
    vec![Error::invalid(&Path::new("spec"), shown, check::IMMUTABLE)]
}

/// The identity of a device, or of a share of one, in results and device statuses.
fn device_key(device: &Value) -> Value {
    let part = |name: &str| text(&device[name]);
    json!({
        "Driver": part("driver"),
        "Pool": part("pool"),
        "Device": part("device"),
        "ShareID": part("shareID"),
    })
}

fn allocated(claim: &Object) -> BTreeSet<String> {
    let allocation = &get(claim, "status")["allocation"];
    list(&allocation["devices"]["results"])
        .iter()
        .map(|result| device_key(result).to_string())
        .collect()
}

/// Drops the status of devices that are no longer allocated.
fn drop_deallocated(object: &mut Object, old: &Object) {
    let (before, now) = (allocated(old), allocated(object));
    let gone = |key: &str| before.contains(key) && !now.contains(key);
    let Some(status) = child(object, "status") else {
        return;
    };
    if let Some(Value::Array(devices)) = status.get_mut("devices") {
        devices.retain(|device| !gone(&device_key(device).to_string()));
        if devices.is_empty() {
            status.shift_remove("devices");
        }
    }
}

fn validate_status(object: &Object, old: &Object) -> Errors {
    let mut errors = Vec::new();
    let (status, was) = (get(object, "status"), get(old, "status"));
    let path = Path::new("status");
    let (reserved, at_reserved) = (list(&status["reservedFor"]), path.child("reservedFor"));
    let uid = |consumer: &Value| Value::from(text(&consumer["uid"]));
    check_set(
        reserved,
        RESERVED_MAX,
        uid,
        &at_reserved,
        &mut errors,
        |consumer, path, errors| {
            for field in ["resource", "name", "uid"] {
                check::required(&consumer[field], &path.child(field), errors);
            }
        },
    );
    let given = allocated(object);
    let (devices, at) = (list(&status["devices"]), path.child("devices"));
    check_set(
        devices,
        usize::MAX,
        device_key,
        &at,
        &mut errors,
        |device, path, errors| {
            check_device_status(device, &given, path, errors);
        },
    );
    let (allocation, at) = (&status["allocation"], path.child("allocation"));
    if !reserved.is_empty() && !is_set(allocation) {
        let detail = "may not be specified when `allocated` is not set";
        errors.push(Error::forbidden(&at_reserved, detail));
    } else if is_set(&get(object, "metadata")["deletionTimestamp"])
        && reserved
            .iter()
            .any(|consumer| !list(&was["reservedFor"]).contains(consumer))
    {
        let detail = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
        errors.push(Error::forbidden(&at_reserved, detail));
    }
    if !is_set(allocation) {
        return errors;
    }
    if !is_set(&was["allocation"]) {
        let requests = Requests::from_devices(&get(object, "spec")["devices"]);
        check_allocation(allocation, &requests, &at, &mut errors);
    } else if !equal(ALLOCATION, allocation, &was["allocation"]) {
        let shown = internal(ALLOCATION, allocation);
        errors.push(Error::invalid(&at, shown, check::IMMUTABLE));
    }
    errors
}

fn check_allocation(allocation: &Value, requests: &Requests<'_>, path: &Path, errors: &mut Errors) {
    let (devices, at) = (&allocation["devices"], path.child("devices"));
    let (results, at_results) = (list(&devices["results"]), at.child("results"));
    check_items(
        results,
        RESULTS_MAX,
        &at_results,
        errors,
        |result, path, errors| {
            requests.check(text(&result["request"]), &path.child("request"), errors);
            check_device_name(result, path, errors);
            check_binding_conditions(result, path, errors);
            check_share(result, path, errors);
        },
    );
    // From the class and from the claim.
    let (config, at_config) = (list(&devices["config"]), at.child("config"));
    check_items(
        config,
        2 * CONFIG_MAX,
        &at_config,
        errors,
        |config, path, errors| {
            let sources = ["FromClaim", "FromClass"];
            check::known(&config["source"], &sources, &path.child("source"), errors);
            check_references(
                &config["requests"],
                requests,
                &path.child("requests"),
                errors,
            );
            check_configuration(config, false, path, errors);
        },
    );
    if is_set(&allocation["nodeSelector"]) {
        check_node_selector(
            &allocation["nodeSelector"],
            &path.child("nodeSelector"),
            errors,
        );
    }
}

fn check_device_name(device: &Value, path: &Path, errors: &mut Errors) {
    names::driver(text(&device["driver"]), &path.child("driver"), errors);
    names::pool(text(&device["pool"]), &path.child("pool"), errors);
    names::label(text(&device["device"]), &path.child("device"), errors);
}

fn check_share(device: &Value, path: &Path, errors: &mut Errors) {
    if let Some(share) = device["shareID"].as_str() {
        names::share(share, &path.child("shareID"), errors);
    }
}

fn check_device_status(device: &Value, given: &BTreeSet<String>, path: &Path, errors: &mut Errors) {
    check_device_name(device, path, errors);
    check_share(device, path, errors);
    let key = device_key(device);
    if !given.contains(&key.to_string()) {
        errors.push(Error::invalid(
            path,
            key,
            "must be an allocated device in the claim",
        ));
    }
    let (conditions, at) = (&device["conditions"], path.child("conditions"));
    if list(conditions).len() > CONDITIONS_MAX {
        errors.push(Error::too_many(&at, list(conditions).len(), CONDITIONS_MAX));
    }
    check::conditions(conditions, &at, errors);
    if is_set(&device["data"]) {
        check_raw(
            &device["data"],
            false,
            DATA_MAX,
            &path.child("data"),
            errors,
        );
    }
    check_network_data(&device["networkData"], &path.child("networkData"), errors);
}

fn check_network_data(data: &Value, path: &Path, errors: &mut Errors) {
    for (field, max) in [
        ("interfaceName", INTERFACE_MAX),
        ("hardwareAddress", HARDWARE_MAX),
    ] {
        if text(&data[field]).len() > max {
            errors.push(Error::too_long(&path.child(field), max));
        }
    }
    let at = path.child("ips");
    check_set(
        list(&data["ips"]),
        ADDRESSES_MAX,
        Value::clone,
        &at,
        errors,
        |address, path, errors| {
            check_interface_address(text(address), path, errors);
        },
    );
}

/// An address with its prefix length, in canonical form.
fn check_interface_address(value: &str, path: &Path, errors: &mut Errors) {
    let Some((address, length)) = check::loose_network(value) else {
        let detail = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
        return errors.push(Error::invalid(path, value, detail));
    };
    // The prefix length of an IPv4-mapped address includes the 96 bits before it.
    let length = if address.is_ipv4() && length > 32 {
        length - 96
    } else {
        length
    };
    let canonical = format!("{address}/{length}");
    if value != canonical {
        let detail = format!("must be in canonical form ({canonical:?})");
        errors.push(Error::invalid(path, value, detail));
    }
}

#[cfg(test)]
mod tests;
