//! The kinds of resource.k8s.io: devices, and claims to them. What they mean is for a later
//! scheduler; here is their form.

pub mod device_class;
pub mod resource_claim;
pub mod resource_slice;

use crate::check;
use crate::tree::{child, default_empty, each, get, is_set, list, text};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};
use std::collections::BTreeSet;

/// Defaults of the requests in a claim's spec.
fn default_claim_spec(spec: &mut Object) {
    let Some(devices) = child(spec, "devices") else {
        return;
    };
    let count = |request: &mut Object| {
        default_empty(request, "allocationMode", "ExactCount");
        if get(request, "allocationMode") == "ExactCount" {
            default_empty(request, "count", 1);
        }
    };
    for request in each(devices, "requests") {
        if let Some(exactly) = child(request, "exactly") {
            count(exactly);
        }
        each(request, "firstAvailable").for_each(count);
    }
}

fn check_claim_spec(spec: &Value, path: &Path, errors: &mut Errors) {
    let mut names = BTreeSet::new();
    for (i, request) in list(&spec["devices"]["requests"]).iter().enumerate() {
        let at = path.child("devices").child("requests").index(i);
        let name = text(&request["name"]);
        if name.is_empty() {
            errors.push(Error::required(&at.child("name"), ""));
        } else {
            check::form(format::dns1123_label(name), name, &at.child("name"), errors);
        }
        if !names.insert(name) {
            errors.push(Error::duplicate(&at.child("name"), name));
        }
        let (exactly, first) = (
            is_set(&request["exactly"]),
            !list(&request["firstAvailable"]).is_empty(),
        );
        if exactly == first {
            let detail = if exactly {
                "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set"
            } else {
                "exactly one of `exactly` or `firstAvailable` is required"
            };
            let error = if exactly {
                Error::invalid(&at, "", detail)
            } else {
                Error::required(&at, detail)
            };
            errors.push(error);
        }
        if exactly {
            let at = at.child("exactly");
            check::required(
                &request["exactly"]["deviceClassName"],
                &at.child("deviceClassName"),
                errors,
            );
            let modes = ["All", "ExactCount"];
            let mode = &request["exactly"]["allocationMode"];
            check::one_of(mode, &modes, &at.child("allocationMode"), errors);
        }
    }
}
