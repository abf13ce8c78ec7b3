//! Which pods of a node are evicted: a verdict for each, and what it prints.

use anyhow::{Error, Result, anyhow};
use serde_json::Value;

use super::Drain;
use crate::{
    error::{self, ErrorList},
    json::{list, str_of},
    session::Session,
};

const DAEMON: &str = "DaemonSet-managed Pods (use --ignore-daemonsets to ignore)";
const DAEMON_IGNORED: &str = "ignoring DaemonSet-managed Pods";
const LOCAL_DATA: &str = "Pods with local storage (use --delete-emptydir-data to override)";
const UNMANAGED: &str = "Pods that declare no controller (use --force to override)";
const UNMANAGED_EVICTED: &str = "deleting Pods that declare no controller";

/// What happens to a pod of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Evict,
    /// The same, with a warning.
    EvictWith(&'static str),
    Skip,
    /// The same, with a warning.
    SkipWith(&'static str),
    Refuse(String),
}

/// What became of the daemon set of a pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Daemon {
    /// The pod is of none.
    None,
    Exists,
    /// It cannot be read, for this reason.
    Unknown {
        is_missing: bool,
        message: String,
    },
}

/// The pods of a node, sorted.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    pub(super) evicted: Vec<Value>,
    warnings: Vec<(String, String)>,
    refused: Vec<(String, String)>,
}

impl Sorted {
    pub(super) fn add(&mut self, pod: &Value, verdict: Verdict) {
        let name = || format!("{}/{}", namespace_of(pod), name_of(pod));
        match &verdict {
            Verdict::EvictWith(why) | Verdict::SkipWith(why) => {
                self.warnings.push(((*why).to_owned(), name()));
            }
            Verdict::Refuse(why) => self.refused.push((why.clone(), name())),
            Verdict::Evict | Verdict::Skip => {}
        }
        if matches!(verdict, Verdict::Evict | Verdict::EvictWith(_)) {
            self.evicted.push(pod.clone());
        }
    }

    /// `why: a, b; other: c`
    pub(super) fn warning(&self) -> Option<String> {
        let lines = grouped(&self.warnings);
        (!lines.is_empty()).then(|| lines.join("; "))
    }

    /// Why nothing may be evicted: one error for each reason.
    pub(super) fn refusal(&self) -> Option<ErrorList> {
        let lines = grouped(&self.refused).into_iter();
        let errors: Vec<Error> = lines.map(|line| anyhow!("cannot delete {line}")).collect();
        (!errors.is_empty()).then_some(ErrorList(errors))
    }
}

/// The names for each reason.
fn grouped(entries: &[(String, String)]) -> Vec<String> {
    let mut reasons: Vec<&str> = entries.iter().map(|(why, _)| why.as_str()).collect();
    reasons.sort_unstable();
    reasons.dedup();
    let line = |why: &str| {
        let names = entries.iter().filter(|(other, _)| other == why);
        let names: Vec<&str> = names.map(|(_, name)| name.as_str()).collect();
        format!("{why}: {}", names.join(", "))
    };
    reasons.into_iter().map(line).collect()
}

impl Drain {
    /// The daemon set of a running pod.
    pub(super) async fn daemon(&self, session: &Session, pod: &Value) -> Result<Daemon> {
        let is_daemon = |owner: &&Value| {
            owner["kind"] == "DaemonSet" && str_of(&owner["apiVersion"]) == "apps/v1"
        };
        let Some(owner) = controller(pod).filter(is_daemon) else {
            return Ok(Daemon::None);
        };
        if has_ended(pod) {
            return Ok(Daemon::None);
        }
        let daemonset = session.discovery.resolve("daemonsets.apps").await?;
        let path = daemonset.object(namespace_of(pod), str_of(&owner["name"]));
        Ok(match session.api.get(&path).await {
            Ok(_) => Daemon::Exists,
            Err(error) => Daemon::Unknown {
                is_missing: error::is_not_found(&error),
                message: error::message(&error),
            },
        })
    }

    /// The verdict about a pod, `now` in seconds. The last filter that lets a pod pass decides about
    /// its warning.
    pub(super) fn verdict(&self, pod: &Value, daemon: &Daemon, now: i64) -> Verdict {
        if self.is_given_up(pod, now) {
            return Verdict::Skip;
        }
        match daemon {
            Daemon::Exists if self.ignore_daemonsets => return Verdict::SkipWith(DAEMON_IGNORED),
            Daemon::Exists => return Verdict::Refuse(DAEMON.to_owned()),
            Daemon::Unknown {
                is_missing,
                message,
            } if !is_missing || !self.force => return Verdict::Refuse(message.clone()),
            Daemon::Unknown { .. } | Daemon::None => {}
        }
        if !pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_null() {
            return Verdict::Skip;
        }
        if has_ended(pod) {
            return Verdict::Evict;
        }
        let has_local_data =
            list(&pod["spec"]["volumes"]).any(|volume| volume["emptyDir"].is_object());
        if has_local_data && !self.delete_emptydir_data {
            return Verdict::Refuse(LOCAL_DATA.to_owned());
        }
        match controller(pod) {
            Some(_) => Verdict::Evict,
            None if self.force => Verdict::EvictWith(UNMANAGED_EVICTED),
            None => Verdict::Refuse(UNMANAGED.to_owned()),
        }
    }

    /// Whether a pod is being deleted for longer than drain is to wait.
    pub(super) fn is_given_up(&self, pod: &Value, now: i64) -> bool {
        let deleted = pod["metadata"]["deletionTimestamp"].as_str();
        let deleted = deleted.and_then(|text| text.parse::<jiff::Timestamp>().ok());
        let patience = self.skip_wait_for_delete_timeout;
        patience > 0 && deleted.is_some_and(|at| now - at.as_second() > patience)
    }
}

fn controller(pod: &Value) -> Option<&Value> {
    list(&pod["metadata"]["ownerReferences"]).find(|owner| owner["controller"] == true)
}

fn has_ended(pod: &Value) -> bool {
    ["Succeeded", "Failed"].contains(&str_of(&pod["status"]["phase"]))
}

pub(super) fn namespace_of(pod: &Value) -> &str {
    str_of(&pod["metadata"]["namespace"])
}

pub(super) fn name_of(pod: &Value) -> &str {
    str_of(&pod["metadata"]["name"])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::tests::drain, *};

    fn pod_of(kind: &str, more: Value) -> Value {
        let mut pod = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {}});
        if !kind.is_empty() {
            pod["metadata"]["ownerReferences"] =
                json!([{"apiVersion": "apps/v1", "kind": kind, "name": "o", "controller": true}]);
        }
        for (key, value) in more.as_object().unwrap() {
            pod[key.as_str()] = value.clone();
        }
        pod
    }

    #[test]
    fn each_pod_is_evicted_skipped_or_refused_as_the_flags_say() {
        let local = || json!({"spec": {"volumes": [{"emptyDir": {}}]}});
        let ended =
            || json!({"status": {"phase": "Failed"}, "spec": {"volumes": [{"emptyDir": {}}]}});
        let mut mirror = pod_of("Node", json!({}));
        mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        let gone = || Daemon::Unknown {
            is_missing: true,
            message: "gone".to_owned(),
        };
        let refused = |why: &str| Verdict::Refuse(why.to_owned());
        let strict = drain();
        let lax = Drain {
            force: true,
            ignore_daemonsets: true,
            delete_emptydir_data: true,
            ..drain()
        };
        for (flags, pod, daemon, expected) in [
            (
                &strict,
                pod_of("ReplicaSet", json!({})),
                Daemon::None,
                Verdict::Evict,
            ),
            (
                &strict,
                pod_of("", json!({})),
                Daemon::None,
                refused(UNMANAGED),
            ),
            (
                &lax,
                pod_of("", json!({})),
                Daemon::None,
                Verdict::EvictWith(UNMANAGED_EVICTED),
            ),
            (
                &strict,
                pod_of("ReplicaSet", local()),
                Daemon::None,
                refused(LOCAL_DATA),
            ),
            // The filter of local data is not the last one.
            (
                &lax,
                pod_of("ReplicaSet", local()),
                Daemon::None,
                Verdict::Evict,
            ),
            (
                &lax,
                pod_of("", local()),
                Daemon::None,
                Verdict::EvictWith(UNMANAGED_EVICTED),
            ),
            (&strict, pod_of("", ended()), Daemon::None, Verdict::Evict),
            (
                &strict,
                pod_of("DaemonSet", json!({})),
                Daemon::Exists,
                refused(DAEMON),
            ),
            (
                &lax,
                pod_of("DaemonSet", json!({})),
                Daemon::Exists,
                Verdict::SkipWith(DAEMON_IGNORED),
            ),
            (
                &strict,
                pod_of("DaemonSet", json!({})),
                gone(),
                refused("gone"),
            ),
            (&lax, pod_of("DaemonSet", json!({})), gone(), Verdict::Evict),
            (&strict, mirror, Daemon::None, Verdict::Skip),
        ] {
            assert_eq!(flags.verdict(&pod, &daemon, 0), expected, "{pod}");
        }
    }

    #[test]
    fn pods_that_take_too_long_to_end_are_skipped_only_if_asked() {
        let mut pod = pod_of("", json!({}));
        pod["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:10Z");
        let patient = Drain {
            skip_wait_for_delete_timeout: 5,
            ..drain()
        };
        assert!(!patient.is_given_up(&pod, 15));
        assert_eq!(patient.verdict(&pod, &Daemon::None, 16), Verdict::Skip);
        assert!(!drain().is_given_up(&pod, 1000));
    }

    #[test]
    fn reasons_are_reported_once_with_their_pods() {
        let mut sorted = Sorted::default();
        for (name, verdict) in [
            ("a", Verdict::Refuse("y".to_owned())),
            ("b", Verdict::Refuse("x".to_owned())),
            ("c", Verdict::Refuse("y".to_owned())),
            ("d", Verdict::SkipWith("s")),
            ("e", Verdict::EvictWith("t")),
        ] {
            let pod = json!({"metadata": {"name": name, "namespace": "n"}});
            sorted.add(&pod, verdict);
        }
        let refusal = sorted.refusal().unwrap();
        assert_eq!(
            refusal.to_string(),
            "cannot delete x: n/b\ncannot delete y: n/a, n/c"
        );
        assert_eq!(
            refusal.in_one_line(),
            "[cannot delete x: n/b, cannot delete y: n/a, n/c]"
        );
        assert_eq!(sorted.warning().unwrap(), "s: n/d; t: n/e");
        assert_eq!(sorted.evicted.len(), 1);
        assert!(Sorted::default().refusal().is_none());
    }
}
