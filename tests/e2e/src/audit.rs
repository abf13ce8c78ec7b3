//! Leaders and their writes, from the audit logs of all servers: checks from outside that no two
//! lead at once.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::Value;

/// Logs what the controllers and the scheduler write, and the Leases of their terms.
pub const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: RequestResponse
  verbs: [create, update, patch, delete]
  userGroups: ["system:serviceaccounts:kube-system"]
- level: RequestResponse
  verbs: [create, update, patch, delete]
  users: ["system:kube-scheduler"]
- level: RequestResponse
  verbs: [create, update]
  users: ["system:kube-controller-manager"]
  resources: [{group: coordination.k8s.io, resources: [leases]}]
- level: None
"#;

/// The Leases of terms, by the component that is elected.
const TERMS: [&str; 2] = ["kube-controller-manager-term", "kube-scheduler-term"];

/// A leader's term.
struct Term {
    number: u64,
    server: usize,
    /// When its Lease was written.
    begun: String,
}

/// An accepted write of a leader.
struct Write {
    server: usize,
    /// When the request was received.
    received: String,
    /// The revision of the response, if that is the written object.
    revision: Option<u64>,
    what: String,
}

/// The checked writes.
#[derive(Debug, Default, Clone, Copy)]
pub struct Checked {
    pub terms: usize,
    /// Objects whose revision tells the term in which they were created or changed.
    pub written: usize,
    /// Deletes and bindings, which have only a time.
    pub timed: usize,
    /// The bindings among them.
    pub bindings: usize,
}

/// Panics if a server has written something as a leader in another one's term.
pub fn check_terms(logs: &[std::path::PathBuf]) -> [Checked; 2] {
    let events: Vec<Vec<Value>> = logs.iter().map(|log| events(log)).collect();
    [0, 1].map(|component| check(component, &events))
}

fn check(component: usize, logs: &[Vec<Value>]) -> Checked {
    let (mut terms, mut writes) = (BTreeMap::new(), Vec::new());
    let mut checked = Checked::default();
    for (server, event) in logs.iter().enumerate().flat_map(|(server, events)| {
        let events = events.iter();
        events.map(move |event| (server, event))
    }) {
        if !is_accepted(event) || component_of(event) != component {
            continue;
        }
        let object = &event["objectRef"];
        let revision = revision(event);
        if object["resource"] == "leases" {
            let name = event["responseObject"]["metadata"]["name"].as_str();
            if let Some(revision) = revision.filter(|_| name == Some(TERMS[component])) {
                let spec = &event["responseObject"]["spec"];
                let term = Term {
                    number: spec["leaseTransitions"].as_u64().unwrap_or(0),
                    server,
                    begun: text(&event["stageTimestamp"]),
                };
                terms.insert(revision, term);
            }
            continue;
        }
        let is_binding = object["subresource"] == "binding";
        // Other requests without an object are reviews, which write nothing.
        if revision.is_none() && !is_binding && event["verb"] != "delete" {
            continue;
        }
        checked.bindings += usize::from(is_binding);
        writes.push(Write {
            server,
            received: text(&event["requestReceivedTimestamp"]),
            // A deleted object has the revision of its last change.
            revision: revision.filter(|_| event["verb"] != "delete"),
            what: format!("{} {object}", event["verb"]),
        });
    }
    assert!(
        !terms.is_empty(),
        "the audit logs hold no term of {}",
        TERMS[component]
    );
    checked.terms = terms.len();
    for write in writes {
        check_write(&write, &terms, &mut checked);
    }
    checked
}

fn check_write(write: &Write, terms: &BTreeMap<u64, Term>, checked: &mut Checked) {
    // The newest term that had begun for certain when the request was received.
    let begun = terms.iter().filter(|(_, term)| term.begun < write.received);
    let Some((since, current)) = begun.max_by_key(|(revision, _)| **revision) else {
        return;
    };
    let Some(revision) = write.revision else {
        assert_eq!(
            write.server, current.server,
            "{} in term {}",
            write.what, current.number
        );
        checked.timed += 1;
        return;
    };
    // An update that changed nothing has the object's earlier revision.
    if revision <= *since {
        return;
    }
    let mut before = terms.range(..revision);
    let (Some((_, term)), after) = (before.next_back(), terms.range(revision..).next()) else {
        return;
    };
    // A killed server may not have logged the start of its term.
    if after.is_some_and(|(_, after)| after.number > term.number + 1) {
        return;
    }
    assert_eq!(
        write.server, term.server,
        "{} at {revision} in term {}",
        write.what, term.number
    );
    checked.written += 1;
}

/// The component that made a request: an index of [`TERMS`].
fn component_of(event: &Value) -> usize {
    usize::from(event["user"]["username"] == "system:kube-scheduler")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A log's events; the last line of a killed server may be torn.
fn events(log: &Path) -> Vec<Value> {
    let text = fs::read_to_string(log).expect("an audit log");
    let lines = text.lines();
    lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

fn is_accepted(event: &Value) -> bool {
    let code = event["responseStatus"]["code"].as_u64();
    code.is_some_and(|code| (200..300).contains(&code))
}

/// The revision of the object in a response.
fn revision(event: &Value) -> Option<u64> {
    let version = event["responseObject"]["metadata"]["resourceVersion"].as_str()?;
    version.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(user: &str, verb: &str, at: u64, object: Value, response: Value) -> Value {
        json!({
            "user": {"username": user}, "verb": verb, "objectRef": object,
            "requestReceivedTimestamp": format!("2026-01-01T00:00:{at:02}.000000Z"),
            "stageTimestamp": format!("2026-01-01T00:00:{at:02}.500000Z"),
            "responseStatus": {"code": 200}, "responseObject": response,
        })
    }

    /// Terms 1 to 3 of servers 0, 1 and 0, at revisions 10, 20 and 30.
    fn logs(user: &str, lease: &str) -> Vec<Vec<Value>> {
        let mut logs = vec![Vec::new(), Vec::new()];
        for (number, server) in [(1, 0), (2, 1), (3, 0)] {
            let spec = json!({"leaseTransitions": number});
            let metadata = json!({"name": lease, "resourceVersion": (10 * number).to_string()});
            let lease = json!({"metadata": metadata, "spec": spec});
            let term = event(
                user,
                "update",
                10 * number,
                json!({"resource": "leases"}),
                lease,
            );
            logs[server].push(term);
        }
        logs
    }

    fn object(revision: u64) -> Value {
        json!({"metadata": {"resourceVersion": revision.to_string()}})
    }

    #[test]
    fn a_write_in_the_term_of_another_server_is_found() {
        let (controllers, scheduler) = (
            "system:serviceaccount:kube-system:x",
            "system:kube-scheduler",
        );
        let pods = || json!({"resource": "pods"});
        let bindings = || json!({"resource": "pods", "subresource": "binding"});
        let status = || json!({"kind": "Status"});
        for (verb, at, of, response, server, fits) in [
            ("create", 15, pods(), object(12), 0, true),
            ("create", 15, pods(), object(22), 0, false),
            ("patch", 25, pods(), object(22), 1, true),
            ("patch", 25, pods(), object(22), 0, false),
            // Unchanged since before the term.
            ("patch", 25, pods(), object(12), 1, true),
            ("update", 35, pods(), object(31), 1, false),
            ("delete", 25, pods(), object(12), 1, true),
            ("delete", 25, pods(), object(12), 0, false),
            ("create", 25, bindings(), status(), 1, true),
            ("create", 25, bindings(), status(), 0, false),
            // A review.
            (
                "create",
                25,
                json!({"resource": "subjectaccessreviews"}),
                json!({}),
                0,
                true,
            ),
            // Before the first known term.
            ("create", 5, bindings(), status(), 1, true),
        ] {
            for (component, user, lease_user) in [
                (0, controllers, "system:kube-controller-manager"),
                (1, scheduler, scheduler),
            ] {
                let mut logs = logs(lease_user, TERMS[component]);
                logs[server].push(event(user, verb, at, of.clone(), response.clone()));
                let checked = std::panic::catch_unwind(|| check(component, &logs));
                assert_eq!(checked.is_ok(), fits, "{user} {verb} {at} {of} {response}");
            }
        }
    }
}
