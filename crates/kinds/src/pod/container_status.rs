//! Validation of container statuses.

use crate::check;
use crate::tree::{entries, int, is_set, list, text};
use machinery::Value;
use machinery::field::{Error, Errors, Path};
use machinery::format;

const LISTS: [(&str, &str); 3] = [
    ("containerStatuses", "containers"),
    ("initContainerStatuses", "initContainers"),
    ("ephemeralContainerStatuses", ""),
];

/// Validates users first, then allocated resources.
pub(super) fn check_containers(status: &Value, spec: &Value, path: &Path, errors: &mut Errors) {
    for (statuses, _) in LISTS {
        for (i, container) in list(&status[statuses]).iter().enumerate() {
            let at = path.child(statuses);
            let at = at.index(i);
            let at = at.child("user.linux");
            check_user(&container["user"]["linux"], spec, &at, errors);
        }
    }
    for (statuses, containers) in LISTS {
        for (i, container) in list(&status[statuses]).iter().enumerate() {
            let at = path.child(statuses);
            let at = at.index(i);
            let at = at.child("allocatedResourcesStatus");
            let allocated = list(&container["allocatedResourcesStatus"]);
            if !containers.is_empty() {
                let of = list(&spec[containers]).iter();
                let of = of.clone().find(|c| c["name"] == container["name"]);
                check_allocated(allocated, of, &at, errors);
            } else if !allocated.is_empty() {
                let detail = "must not be specified in container status";
                errors.push(Error::forbidden(&at, detail));
            }
        }
    }
}

fn check_user(user: &Value, spec: &Value, path: &Path, errors: &mut Errors) {
    if !is_set(user) {
        return;
    }
    match spec["os"]["name"].as_str() {
        Some("windows") => errors.push(Error::forbidden(path, "cannot be set for a windows pod")),
        None | Some("linux") => {
            let mut check = |id: &Value, at: &Path| {
                for complaint in format::in_range(int(id), 0, i64::from(i32::MAX)) {
                    errors.push(Error::invalid(at, int(id), complaint));
                }
            };
            check(&user["uid"], &path.child("uid"));
            check(&user["gid"], &path.child("gid"));
            for (i, group) in list(&user["supplementalGroups"]).iter().enumerate() {
                check(group, &path.child("supplementalGroups").index(i));
            }
        }
        Some(_) => {}
    }
}

/// Allocated devices must be of resources that the container requests, unique, with a known health.
fn check_allocated(
    allocated: &[Value],
    container: Option<&Value>,
    path: &Path,
    errors: &mut Errors,
) {
    for (i, resource) in allocated.iter().enumerate() {
        let at = path.index(i);
        let name = text(&resource["name"]);
        if let Some(container) = container {
            check_name(name, &container["resources"], &at.child("name"), errors);
        }
        let mut seen = Vec::new();
        for (k, device) in list(&resource["resources"]).iter().enumerate() {
            let at = at.child("resources");
            let at = at.index(k);
            let states = ["Healthy", "Unhealthy", "Unknown"];
            check::one_of(&device["health"], &states, &at.child("health"), errors);
            match device["message"].as_str() {
                Some("") => {
                    let detail = "must be non-empty if specified";
                    errors.push(Error::required(&at.child("message"), detail));
                }
                Some(message) if message.len() > MESSAGE_MAX => {
                    errors.push(Error::too_long(&at.child("message"), MESSAGE_MAX));
                }
                _ => {}
            }
            let id = text(&device["resourceID"]);
            if seen.contains(&id) {
                errors.push(Error::duplicate(&at.child("resourceID"), id));
            } else {
                seen.push(id);
            }
        }
    }
}

const MESSAGE_MAX: usize = 1024;

fn check_name(name: &str, resources: &Value, path: &Path, errors: &mut Errors) {
    let (is_known, detail) = match name.strip_prefix("claim:") {
        Some(claim) => {
            let named = |c: &Value| match text(&c["request"]) {
                "" => claim == text(&c["name"]),
                request => claim == format!("{}/{request}", text(&c["name"])),
            };
            (
                list(&resources["claims"]).iter().any(named),
                "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty",
            )
        }
        None => (
            entries(&resources["requests"]).any(|(key, _)| key == name),
            "must match one of the container's resource requests",
        ),
    };
    if !is_known {
        errors.push(Error::invalid(path, name, detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::lines;
    use machinery::json::json;

    #[test]
    fn allocated_resources_status_must_name_resources_of_the_container() {
        let spec = json!({"containers": [{"name": "c", "resources": {
            "requests": {"e.io/x": "1"}, "claims": [{"name": "r", "request": "q"}, {"name": "s"}]}}]});
        let reported = |allocated: Value| {
            let status = json!({"containerStatuses": [{"name": "c", "allocatedResourcesStatus": allocated}]});
            let mut errors = Vec::new();
            check_containers(&status, &spec, &Path::new("status"), &mut errors);
            lines(errors)
        };
        let at = "status.containerStatuses[0].allocatedResourcesStatus";
        assert_eq!(
            reported(json!([{"name": "e.io/x"}, {"name": "claim:r/q"}, {"name": "claim:s"}])),
            [""; 0]
        );
        assert_eq!(
            reported(json!([{"name": "e.io/y"}])),
            [format!(
                "{at}[0].name: Invalid value: \"e.io/y\": must match one of the container's resource requests"
            )]
        );
        assert!(reported(json!([{"name": "claim:r"}]))[0].contains("resource claims in a format"));
        assert_eq!(
            reported(json!([{"name": "e.io/x", "resources": [
                {"resourceID": "a", "health": "Fine"}, {"resourceID": "a", "health": "Unknown", "message": ""}]}])),
            [
                format!(
                    "{at}[0].resources[0].health: Unsupported value: \"Fine\": supported values: \"Healthy\", \"Unhealthy\", \"Unknown\""
                ),
                format!(
                    "{at}[0].resources[1].message: Required value: must be non-empty if specified"
                ),
                format!("{at}[0].resources[1].resourceID: Duplicate value: \"a\""),
            ]
        );
    }

    #[test]
    fn debugging_has_no_devices_and_users_have_numbers() {
        let status = json!({"ephemeralContainerStatuses": [{"name": "e",
            "user": {"linux": {"uid": -1, "gid": 0, "supplementalGroups": [2147483648_i64]}},
            "allocatedResourcesStatus": [{"name": "x"}]}]});
        let mut errors = Vec::new();
        check_containers(&status, &json!({}), &Path::new("status"), &mut errors);
        assert_eq!(
            lines(errors),
            [
                "status.ephemeralContainerStatuses[0].user.linux.uid: Invalid value: -1: must be between 0 and 2147483647, inclusive",
                "status.ephemeralContainerStatuses[0].user.linux.supplementalGroups[0]: Invalid value: 2147483648: must be between 0 and 2147483647, inclusive",
                "status.ephemeralContainerStatuses[0].allocatedResourcesStatus: Forbidden: must not be specified in container status",
            ]
        );
    }
}
