//! Scheduler extenders: programs that filter and score nodes, take part in preemption, or bind
//! pods, called over HTTP as `KubeSchedulerConfiguration` describes them.
//!
//! As upstream, a decision waits for their answers: [`Extenders::decide_about`] tells which pods
//! that concerns, and those are scheduled on a thread that may block.

mod settings;
mod wire;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tracing::warn;

use crate::pod::PodInfo;
pub use settings::{ManagedResource, Settings, validate};

/// The plugin name for nodes that an extender rejected.
pub const NAME: &str = "Extender";

/// An extender's maximum score; that of plugins is ten times as much.
const BEST: i64 = 10;

/// Reads the objects that are sent to extenders.
pub trait Objects: Send + Sync {
    /// The pod from the API server.
    fn pod<'a>(&'a self, pod: &'a PodInfo) -> BoxFuture<'a, Result<Value, String>>;

    /// A node from the informer.
    fn node(&self, name: &str) -> Option<Value>;
}

/// A node that an extender rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// The node.
    pub node: String,
    /// Why.
    pub reason: String,
    /// Whether preemption could help.
    pub resolvable: bool,
}

/// The victims on a node, and the number of violated PodDisruptionBudgets.
pub type Victims = (Vec<Arc<PodInfo>>, usize);

struct Extender {
    settings: Settings,
    timeout: Duration,
    client: kube::Client,
}

/// All extenders of a scheduler.
#[derive(Default)]
pub struct Extenders {
    all: Vec<Extender>,
    objects: Option<Arc<dyn Objects>>,
    runtime: Option<tokio::runtime::Handle>,
}

impl Extender {
    fn is_interested(&self, pod: &PodInfo) -> bool {
        let managed = &self.settings.managed_resources;
        let wanted = &pod.template.requests.others;
        managed.is_empty() || managed.iter().any(|one| wanted.contains_key(&one.name))
    }

    async fn send<T: DeserializeOwned>(
        &self,
        verb: &str,
        message: &impl Serialize,
    ) -> Result<T, String> {
        let name = &self.settings.url_prefix;
        let body = serde_json::to_vec(message).map_err(|error| error.to_string())?;
        let request = http::Request::post(format!("/{}", verb.trim_start_matches('/')))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(|error| error.to_string())?;
        let answer = tokio::time::timeout(self.timeout, self.client.request_text(request));
        let answer = answer.await;
        let answer = answer.map_err(|_| format!("extender {name}: {verb}: timed out"))?;
        let answer = answer.map_err(|error| format!("extender {name}: {verb}: {error}"))?;
        serde_json::from_str(&answer).map_err(|error| format!("extender {name}: {verb}: {error}"))
    }

    fn arguments<'a>(
        &self,
        pod: &'a Value,
        names: &'a [&'a str],
        objects: &dyn Objects,
    ) -> wire::Arguments<'a> {
        let cached = self.settings.node_cache_capable;
        let nodes = (!cached).then(|| {
            let nodes = names.iter().filter_map(|name| objects.node(name));
            json!({"metadata": {}, "items": nodes.collect::<Vec<_>>()})
        });
        wire::Arguments {
            pod,
            nodes,
            node_names: cached.then_some(names),
        }
    }
}

impl Extenders {
    /// Creates the extenders. Must be called inside a Tokio runtime.
    pub fn new(settings: &[Settings], objects: Arc<dyn Objects>) -> Result<Self, String> {
        let extender = |settings: &Settings| {
            Ok(Extender {
                timeout: settings.timeout()?,
                client: settings.client()?,
                settings: settings.clone(),
            })
        };
        let all = settings
            .iter()
            .map(extender)
            .collect::<Result<_, String>>()?;
        Ok(Self {
            all,
            objects: Some(objects),
            runtime: Some(tokio::runtime::Handle::current()),
        })
    }

    fn interested<'a>(
        &'a self,
        pod: &'a PodInfo,
        verb: fn(&Settings) -> &str,
    ) -> impl Iterator<Item = &'a Extender> {
        let asked = move |extender: &&Extender| {
            !verb(&extender.settings).is_empty() && extender.is_interested(pod)
        };
        self.all.iter().filter(asked)
    }

    /// Whether an extender is asked about this pod, so that the deciding thread may block.
    pub fn decide_about(&self, pod: &PodInfo) -> bool {
        let verbs: [fn(&Settings) -> &str; 3] = [
            |settings| &settings.filter_verb,
            |settings| &settings.prioritize_verb,
            |settings| &settings.preempt_verb,
        ];
        let mut verbs = verbs.into_iter();
        !self.all.is_empty() && verbs.any(|verb| self.interested(pod, verb).next().is_some())
    }

    /// The pod and the runtime handle for requests; an error without them.
    fn begin(
        &self,
        pod: &PodInfo,
    ) -> Result<(Value, &dyn Objects, &tokio::runtime::Handle), String> {
        let (Some(objects), Some(runtime)) = (self.objects.as_deref(), self.runtime.as_ref())
        else {
            return Err("extenders are not started".to_owned());
        };
        Ok((runtime.block_on(objects.pod(pod))?, objects, runtime))
    }

    /// Keeps the nodes that all extenders accept.
    pub fn filter<'a>(
        &self,
        pod: &PodInfo,
        mut names: Vec<&'a str>,
    ) -> Result<(Vec<&'a str>, Vec<Failed>), String> {
        let mut failed = Vec::new();
        let mut asked = self
            .interested(pod, |settings| &settings.filter_verb)
            .peekable();
        if asked.peek().is_none() || names.is_empty() {
            return Ok((names, failed));
        }
        let (object, objects, runtime) = self.begin(pod)?;
        for extender in asked {
            if names.is_empty() {
                break;
            }
            let arguments = extender.arguments(&object, &names, objects);
            let verb = &extender.settings.filter_verb;
            let answer = runtime.block_on(extender.send::<wire::Filtered>(verb, &arguments));
            let kept = answer.and_then(|answer| nodes_kept(extender, &names, answer, &mut failed));
            match kept {
                Ok(kept) => names = kept,
                Err(error) if extender.settings.ignorable => warn!(error, "extender ignored"),
                Err(error) => return Err(error),
            }
        }
        Ok((names, failed))
    }

    /// The extenders' scores of these nodes. One that does not answer adds nothing.
    pub fn scores(&self, pod: &PodInfo, names: &[&str]) -> HashMap<String, i64> {
        let mut sums = HashMap::new();
        let mut asked = self
            .interested(pod, |settings| &settings.prioritize_verb)
            .peekable();
        if asked.peek().is_none() {
            return sums;
        }
        let (object, objects, runtime) = match self.begin(pod) {
            Ok(begun) => begun,
            Err(error) => {
                warn!(error, "extenders failed to score");
                return sums;
            }
        };
        for extender in asked {
            let arguments = extender.arguments(&object, names, objects);
            let verb = &extender.settings.prioritize_verb;
            let answer: Result<Option<Vec<wire::HostPriority>>, _> =
                runtime.block_on(extender.send(verb, &arguments));
            match answer {
                Ok(answer) => {
                    for one in answer.into_iter().flatten() {
                        let factor = extender.settings.weight * (crate::framework::BEST / BEST);
                        *sums.entry(one.host).or_default() += one.score.saturating_mul(factor);
                    }
                }
                Err(error) => warn!(error, "extender failed to score"),
            }
        }
        sums
    }

    /// Keeps the preemption candidates that all extenders accept, changed as they say. `pods_on`
    /// returns the pods of a node.
    pub fn preempt(
        &self,
        pod: &PodInfo,
        mut victims: BTreeMap<String, Victims>,
        pods_on: impl Fn(&str) -> Vec<Arc<PodInfo>>,
    ) -> Result<BTreeMap<String, Victims>, String> {
        let mut asked = self
            .interested(pod, |settings| &settings.preempt_verb)
            .peekable();
        if asked.peek().is_none() || victims.is_empty() {
            return Ok(victims);
        }
        let (object, objects, runtime) = self.begin(pod)?;
        for extender in asked {
            let ask = async {
                let message = preemption(extender, &object, &victims, objects).await?;
                let verb = &extender.settings.preempt_verb;
                extender.send::<wire::Preempted>(verb, &message).await
            };
            let answer = runtime.block_on(ask);
            let found = answer.and_then(|answer| sacrificed(extender, answer, &pods_on));
            match found {
                Ok(found) => victims = found,
                Err(error) if extender.settings.ignorable => warn!(error, "extender ignored"),
                Err(error) => return Err(error),
            }
            if victims.is_empty() {
                break;
            }
        }
        Ok(victims)
    }

    /// Binds the pod if an extender does that.
    pub(crate) async fn bind(&self, pod: &PodInfo, node: &str) -> Option<Result<(), String>> {
        let extender = self
            .interested(pod, |settings| &settings.bind_verb)
            .next()?;
        let message = wire::Binding {
            pod_name: &pod.name,
            pod_namespace: pod.namespace(),
            pod_uid: &pod.uid,
            node,
        };
        let verb = &extender.settings.bind_verb;
        let bound = extender.send::<wire::Bound>(verb, &message).await;
        Some(bound.and_then(
            |bound| match bound.error.filter(|error| !error.is_empty()) {
                Some(error) => Err(error),
                None => Ok(()),
            },
        ))
    }
}

/// The nodes that a response keeps.
fn nodes_kept<'a>(
    extender: &Extender,
    names: &[&'a str],
    answer: wire::Filtered,
    failed: &mut Vec<Failed>,
) -> Result<Vec<&'a str>, String> {
    if let Some(error) = answer.error.filter(|error| !error.is_empty()) {
        return Err(error);
    }
    let left: Vec<String> = match (answer.node_names, answer.nodes) {
        (Some(names), _) if extender.settings.node_cache_capable => names,
        (_, Some(list)) => {
            let nodes = list.items.unwrap_or_default().into_iter();
            nodes.map(|node| node.metadata.name).collect()
        }
        _ => Vec::new(),
    };
    let find = |left: &String| {
        let known = names.iter().find(|name| **name == left).copied();
        known.ok_or_else(|| {
            let url = &extender.settings.url_prefix;
            format!(
                "extender {url:?} claims a filtered node {left:?} which is not found in the input node list"
            )
        })
    };
    let left = left.iter().map(find).collect::<Result<_, _>>()?;
    for (nodes, resolvable) in [
        (answer.failed_and_unresolvable_nodes, false),
        (answer.failed_nodes, true),
    ] {
        for (node, reason) in nodes.into_iter().flatten() {
            failed.push(Failed {
                node,
                reason,
                resolvable,
            });
        }
    }
    Ok(left)
}

async fn preemption<'a>(
    extender: &Extender,
    pod: &'a Value,
    victims: &'a BTreeMap<String, Victims>,
    objects: &dyn Objects,
) -> Result<wire::Preemption<'a>, String> {
    if extender.settings.node_cache_capable {
        let meta = |(node, (pods, violations)): (&String, &Victims)| {
            let uid = |pod: &Arc<PodInfo>| wire::MetaPod {
                uid: pod.uid.to_string(),
            };
            let victims = wire::MetaVictims {
                pods: Some(pods.iter().map(uid).collect()),
                violations: *violations,
            };
            (node.clone(), victims)
        };
        return Ok(wire::Preemption {
            pod,
            node_name_to_victims: None,
            node_name_to_meta_victims: Some(victims.iter().map(meta).collect()),
        });
    }
    let mut whole = BTreeMap::new();
    for (node, (pods, violations)) in victims {
        let pods = pods.iter().map(|pod| objects.pod(pod));
        let pods = futures::future::try_join_all(pods).await?;
        let victims = wire::Victims {
            pods,
            violations: *violations,
        };
        whole.insert(node.as_str(), victims);
    }
    Ok(wire::Preemption {
        pod,
        node_name_to_victims: Some(whole),
        node_name_to_meta_victims: None,
    })
}

fn sacrificed(
    extender: &Extender,
    answer: wire::Preempted,
    pods_on: &impl Fn(&str) -> Vec<Arc<PodInfo>>,
) -> Result<BTreeMap<String, Victims>, String> {
    let mut found = BTreeMap::new();
    for (node, victims) in answer.nodes.into_iter().flatten() {
        let known = pods_on(&node);
        let find = |meta: wire::MetaPod| {
            let pod = known.iter().find(|pod| *pod.uid == *meta.uid).cloned();
            pod.ok_or_else(|| {
                let url = &extender.settings.url_prefix;
                let uid = meta.uid;
                format!(
                    "extender: {url} claims to preempt pod (UID: {uid}) on node: {node}, \
                     but the pod is not found on that node"
                )
            })
        };
        let pods = victims.pods.unwrap_or_default().into_iter().map(find);
        let pods = pods.collect::<Result<Vec<_>, _>>()?;
        if pods.is_empty() {
            if extender.settings.ignorable {
                continue;
            }
            return Err(format!("expected at least one victim pod on node {node:?}"));
        }
        found.insert(node, (pods, victims.violations));
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
