//! Probes and lifecycle handlers.

use super::container::check_number;
use crate::check;
use crate::core::service::port_or_name;
use crate::tree::{int, is_set, list, text};
use machinery::field::{Error, Errors, Path};
use machinery::{Value, format};

pub(super) fn check_lifecycle(container: &Value, spec: &Value, path: &Path, errors: &mut Errors) {
    for name in ["postStart", "preStop"] {
        let handler = &container["lifecycle"][name];
        if is_set(handler) {
            let at = path.child("lifecycle");
            let at = at.child(name);
            let kinds = ["exec", "httpGet", "tcpSocket", "sleep"];
            check_handler(handler, &kinds, spec, &at, errors);
        }
    }
}

pub(super) fn check_probes(container: &Value, spec: &Value, path: &Path, errors: &mut Errors) {
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = &container[name];
        if !is_set(probe) {
            continue;
        }
        let at = path.child(name);
        let kinds = ["exec", "httpGet", "tcpSocket", "grpc"];
        check_handler(probe, &kinds, spec, &at, errors);
        for field in [
            "initialDelaySeconds",
            "timeoutSeconds",
            "periodSeconds",
            "successThreshold",
            "failureThreshold",
        ] {
            check::non_negative(&probe[field], &at.child(field), errors);
        }
        let grace = &probe["terminationGracePeriodSeconds"];
        let grace_path = at.child("terminationGracePeriodSeconds");
        if is_set(grace) && int(grace) <= 0 {
            let detail = "must be greater than 0";
            errors.push(Error::invalid(&grace_path, int(grace), detail));
        }
        let successes = int(&probe["successThreshold"]);
        if name == "readinessProbe" {
            if is_set(grace) {
                let detail = "must not be set for readinessProbes";
                errors.push(Error::invalid(&grace_path, int(grace), detail));
            }
        } else if successes != 1 {
            let at = at.child("successThreshold");
            errors.push(Error::invalid(&at, successes, "must be 1"));
        }
    }
}

fn check_handler(handler: &Value, kinds: &[&str], spec: &Value, path: &Path, errors: &mut Errors) {
    let mut found = false;
    for name in kinds {
        let action = &handler[*name];
        if !is_set(action) {
            continue;
        }
        let at = path.child(name);
        if found {
            let detail = "may not specify more than 1 handler type";
            errors.push(Error::forbidden(&at, detail));
            continue;
        }
        found = true;
        match *name {
            "exec" => {
                if list(&action["command"]).is_empty() {
                    errors.push(Error::required(&at.child("command"), ""));
                }
            }
            "httpGet" => check_http(action, &at, errors),
            "tcpSocket" => port_or_name(&action["port"], &at.child("port"), errors),
            "grpc" => check_number(int(&action["port"]), &at.child("port"), errors),
            _ => check_sleep(action, spec, &at, errors),
        }
    }
    if !found {
        errors.push(Error::required(path, "must specify a handler type"));
    }
}

fn check_http(action: &Value, path: &Path, errors: &mut Errors) {
    check::required(&action["path"], &path.child("path"), errors);
    port_or_name(&action["port"], &path.child("port"), errors);
    let schemes = ["HTTP", "HTTPS"];
    check::one_of(&action["scheme"], &schemes, &path.child("scheme"), errors);
    for header in list(&action["httpHeaders"]) {
        let name = text(&header["name"]);
        let at = path.child("httpHeaders");
        check::form(format::http_header(name), name, &at, errors);
    }
}

fn check_sleep(action: &Value, spec: &Value, path: &Path, errors: &mut Errors) {
    let seconds = int(&action["seconds"]);
    if let Some(grace) = spec["terminationGracePeriodSeconds"].as_i64()
        && !(0..=grace).contains(&seconds)
    {
        let detail =
            format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        errors.push(Error::invalid(path, seconds, detail));
    }
}
