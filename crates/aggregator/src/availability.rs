//! Availability of an aggregated API server: its Service exists, has the port and ready endpoints,
//! and a backend answers for its group and version.

use std::time::Duration;

use apiextensions::conditions::condition;
use kinds::tree;
use machinery::{Object, Value};

use crate::{Link, Target};

pub(crate) const AVAILABLE: &str = "Available";
/// Concurrent probes: a Service may have backends that are gone but still listed.
const PROBES: usize = 5;
const PROBE: Duration = Duration::from_secs(5);

/// The Service of an APIService.
pub(crate) struct View<'a> {
    pub(crate) target: &'a Target,
    pub(crate) service: Option<&'a Object>,
    pub(crate) slices: &'a [Object],
}

/// The result of checking the Service.
#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    Unavailable(Value),
    /// A backend must be probed.
    Probe,
}

pub(crate) fn local() -> Value {
    let message = "Local APIServices are always available";
    condition(AVAILABLE, true, "Local", message)
}

pub(crate) fn passed() -> Value {
    condition(AVAILABLE, true, "Passed", "all checks passed")
}

pub(crate) fn failed(reason: &str, message: &str) -> Value {
    condition(AVAILABLE, false, reason, message)
}

/// Checks the Service before any backend is probed.
pub(crate) fn decide(view: &View<'_>) -> Verdict {
    let Target {
        namespace,
        name,
        port,
        ..
    } = view.target;
    let unavailable =
        |reason: &str, message: String| Verdict::Unavailable(failed(reason, &message));
    let Some(service) = view.service else {
        let message = format!("service/{name} in {namespace:?} is not present");
        return unavailable("ServiceNotFound", message);
    };
    let spec = tree::get(service, "spec");
    // Other types may be outside of the cluster.
    if !matches!(tree::text(&spec["type"]), "" | "ClusterIP") {
        return Verdict::Probe;
    }
    let mut ports = tree::list(&spec["ports"]).iter();
    let Some(listening) = ports.find(|known| known["port"].as_u64() == Some((*port).into())) else {
        let message = format!("service/{name} in {namespace:?} is not listening on port {port}");
        return unavailable("ServicePortError", message);
    };
    if view.slices.is_empty() {
        let message = format!("cannot find endpointslices for service/{name} in {namespace:?}");
        return unavailable("EndpointsNotFound", message);
    }
    let port_name = tree::text(&listening["name"]);
    if !view.slices.iter().any(|slice| is_ready(slice, port_name)) {
        let message = format!(
            "endpointslices for service/{name} in {namespace:?} have no addresses with port name {port_name:?}"
        );
        return unavailable("MissingEndpoints", message);
    }
    Verdict::Probe
}

/// Whether a slice has a ready endpoint with a port.
fn is_ready(slice: &Object, port_name: &str) -> bool {
    let mut endpoints = tree::list(tree::get(slice, "endpoints")).iter();
    let mut ports = tree::list(tree::get(slice, "ports")).iter();
    endpoints.any(|one| one["conditions"]["ready"] != Value::Bool(false))
        && ports.any(|port| tree::text(&port["name"]) == port_name && !port["port"].is_null())
}

/// Probes backends for the group and version; one success suffices.
pub(crate) async fn probe(link: &Link, path: &str) -> Result<(), String> {
    use futures::{StreamExt, stream::FuturesUnordered};
    let mut probes: FuturesUnordered<_> = (0..PROBES).map(|_| probe_one(link, path)).collect();
    let mut failures = Vec::new();
    while let Some(result) = probes.next().await {
        match result {
            Ok(()) => return Ok(()),
            Err(why) => failures.push(why),
        }
    }
    // Always the same one, so that the condition does not change with the order of responses.
    Err(failures.into_iter().min().unwrap_or_default())
}

async fn probe_one(link: &Link, path: &str) -> Result<(), String> {
    let authority = link.resolve().await?;
    let url = format!("https://{authority}{path}");
    let problem = match link.status(&authority, path, PROBE).await {
        Ok(code) if code.is_success() => return Ok(()),
        Ok(code) => format!("bad status from {url}: {}", code.as_u16()),
        Err(why) => why,
    };
    Err(format!("failing or missing response from {url}: {problem}"))
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    fn object(value: Value) -> Object {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn a_service_is_judged_before_its_backends_are_asked() {
        let spec = json!({"service": {"namespace": "ns", "name": "s", "port": 443}});
        let target = Target::read(&spec).unwrap();
        let service = |kind: &str, port: i64| {
            object(json!({"spec": {"type": kind, "ports": [{"name": "https", "port": port}]}}))
        };
        let slice = |ready: Value, name: &str| {
            object(json!({"ports": [{"name": name, "port": 1}],
                "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}]}))
        };
        let ready = || slice(json!(true), "https");
        for (service, slices, expected) in [
            (None, vec![], "ServiceNotFound"),
            (Some(service("ClusterIP", 80)), vec![], "ServicePortError"),
            (Some(service("ClusterIP", 443)), vec![], "EndpointsNotFound"),
            (
                Some(service("ClusterIP", 443)),
                vec![slice(json!(false), "https")],
                "MissingEndpoints",
            ),
            (
                Some(service("ClusterIP", 443)),
                vec![slice(json!(true), "other")],
                "MissingEndpoints",
            ),
            (Some(service("ClusterIP", 443)), vec![ready()], "probe"),
            (
                Some(service("ClusterIP", 443)),
                vec![slice(Value::Null, "https")],
                "probe",
            ),
            (Some(service("ExternalName", 80)), vec![], "probe"),
            (Some(service("NodePort", 80)), vec![], "probe"),
        ] {
            let view = View {
                target: &target,
                service: service.as_ref(),
                slices: &slices,
            };
            let said = match decide(&view) {
                Verdict::Probe => "probe".to_owned(),
                Verdict::Unavailable(condition) => {
                    assert_eq!(condition["status"], "False");
                    tree::text(&condition["reason"]).to_owned()
                }
            };
            assert_eq!(said, expected, "{service:?} {slices:?}");
        }
    }

    #[test]
    fn the_condition_message_names_the_service() {
        let spec = json!({"service": {"namespace": "ns", "name": "s"}});
        let target = Target::read(&spec).unwrap();
        let view = View {
            target: &target,
            service: None,
            slices: &[],
        };
        let Verdict::Unavailable(condition) = decide(&view) else {
            panic!("there is no Service");
        };
        assert_eq!(condition["message"], "service/s in \"ns\" is not present");
    }
}
