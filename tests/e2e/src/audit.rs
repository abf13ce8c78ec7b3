//! Leaders and their writes, from the audit logs of all servers: checks from outside that no two
//! lead at once.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::Value;

/// Logs what the controllers create, and the Leases of their terms.
pub const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: RequestResponse
  verbs: [create]
  userGroups: ["system:serviceaccounts:kube-system"]
- level: RequestResponse
  verbs: [create, update]
  users: ["system:kube-controller-manager"]
  resources: [{group: coordination.k8s.io, resources: [leases]}]
- level: None
"#;

/// A term of the controllers' leader.
struct Term {
    number: u64,
    server: usize,
}

/// Panics if a server has created something in another one's term. Returns the number of terms and
/// of checked objects.
pub fn check_terms(logs: &[std::path::PathBuf]) -> (usize, usize) {
    let (mut terms, mut created) = (BTreeMap::new(), Vec::new());
    for (server, log) in logs.iter().enumerate() {
        for event in events(log) {
            let object = &event["responseObject"];
            let Some(revision) = revision(&event, object) else {
                continue;
            };
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            if object["kind"] != "Lease" {
                created.push((
                    revision,
                    server,
                    object["kind"].to_string(),
                    name.to_owned(),
                ));
            } else if name == "kube-controller-manager-term" {
                let number = object["spec"]["leaseTransitions"].as_u64().unwrap_or(0);
                terms.insert(revision, Term { number, server });
            }
        }
    }
    assert!(!terms.is_empty(), "the audit logs hold no term");
    let mut looked_at = 0;
    for (revision, server, kind, name) in created {
        let mut before = terms.range(..revision);
        let (Some((_, term)), after) = (before.next_back(), terms.range(revision..).next()) else {
            continue;
        };
        // A killed server may not have logged the start of its term.
        if after.is_some_and(|(_, after)| after.number > term.number + 1) {
            continue;
        }
        assert_eq!(
            server, term.server,
            "{kind} {name} at {revision} in term {}",
            term.number
        );
        looked_at += 1;
    }
    (terms.len(), looked_at)
}

/// A log's events; the last line of a killed server may be torn.
fn events(log: &Path) -> Vec<Value> {
    let text = fs::read_to_string(log).expect("an audit log");
    let lines = text.lines();
    lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// The revision of an accepted write.
fn revision(event: &Value, object: &Value) -> Option<u64> {
    let code = event["responseStatus"]["code"].as_u64()?;
    let version = object["metadata"]["resourceVersion"].as_str()?;
    (200..300)
        .contains(&code)
        .then(|| version.parse().ok())
        .flatten()
}
