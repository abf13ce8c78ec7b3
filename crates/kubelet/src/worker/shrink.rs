//! Rejects memory limits below the current usage: the kernel would kill processes to enforce them, or would reject
//! them itself.

use cri::v1;
use k8s_openapi::api::core::v1::Pod;

use crate::{
    cgroups,
    core::Core,
    make::resources::Bounds,
    pod::{observed::Container, spec},
};

/// A memory limit that is to be decreased, and the current usage; `None` if the usage is unknown.
struct Shrinking {
    /// `pod`, or `container "NAME"`.
    what: String,
    limit: i64,
    usage: Option<u64>,
}

/// A running container whose memory limit is to be decreased, with the new limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContainerLimit {
    pub id: String,
    pub name: String,
    pub limit: i64,
}

/// The new memory limit of this container, if it is a decrease.
pub(super) fn of_container(
    seen: &Container,
    held: Bounds,
    wanted: Bounds,
) -> Option<ContainerLimit> {
    is_smaller(wanted.memory, held.memory).then(|| ContainerLimit {
        id: seen.id.clone(),
        name: seen.name.clone(),
        limit: wanted.memory,
    })
}

/// Whether a limit is a decrease; zero means no limit.
fn is_smaller(wanted: i64, held: i64) -> bool {
    wanted > 0 && (held <= 0 || wanted < held)
}

/// The reason why the memory limits of the pod and these containers cannot be decreased now.
pub(super) async fn refusal(
    core: &Core,
    pod: &Pod,
    containers: &[ContainerLimit],
) -> Option<String> {
    let mut shrinking = Vec::new();
    if let Some((wanted, held, usage)) = cgroups::memory(core, pod)
        && is_smaller(wanted, held)
    {
        shrinking.push(Shrinking {
            what: "pod".to_owned(),
            limit: wanted,
            usage,
        });
    }
    for container in containers {
        let request = v1::ContainerStatsRequest {
            container_id: container.id.clone(),
        };
        let mut runtime = core.runtime.client.clone().runtime;
        let answer = runtime.container_stats(request).await;
        let stats = answer.ok().and_then(|answer| answer.into_inner().stats);
        let usage = stats.and_then(|stats| stats.memory?.usage_bytes);
        shrinking.push(Shrinking {
            what: format!("container {:?}", container.name),
            limit: container.limit,
            usage: usage.map(|usage| usage.value),
        });
    }
    let refused = describe(&shrinking);
    if let Some(refused) = &refused {
        tracing::warn!(pod = spec::described(pod), refused, "cannot resize");
    }
    refused
}

fn describe(shrinking: &[Shrinking]) -> Option<String> {
    let errors: Vec<String> = shrinking
        .iter()
        .filter_map(|Shrinking { what, limit, usage }| match usage {
            None => Some(format!("missing {what} memory usage")),
            Some(usage) if *usage >= limit.unsigned_abs() => Some(format!(
                "attempting to set {what} memory limit ({limit}) below current usage ({usage})"
            )),
            Some(_) => None,
        })
        .collect();
    let list = match errors.as_slice() {
        [] => return None,
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    Some(format!("cannot decrease memory limits: {list}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shrinking(what: &str, limit: i64, usage: Option<u64>) -> Shrinking {
        Shrinking {
            what: what.to_owned(),
            limit,
            usage,
        }
    }

    #[test]
    fn a_limit_is_smaller_than_a_larger_one_and_than_none() {
        assert!(is_smaller(1, 2) && is_smaller(1, 0));
        assert!(!is_smaller(2, 2) && !is_smaller(3, 2) && !is_smaller(0, 2));
    }

    #[test]
    fn limits_below_the_usage_are_refused() {
        assert_eq!(describe(&[shrinking("pod", 10, Some(9))]), None);
        assert_eq!(
            describe(&[shrinking("pod", 10, Some(10))]).unwrap(),
            "cannot decrease memory limits: attempting to set pod memory limit (10) below current usage (10)"
        );
        let several = [
            shrinking("pod", 10, None),
            shrinking("container \"a\"", 5, Some(7)),
        ];
        assert_eq!(
            describe(&several).unwrap(),
            "cannot decrease memory limits: [missing pod memory usage, attempting to set container \"a\" memory limit (5) below current usage (7)]"
        );
    }
}
