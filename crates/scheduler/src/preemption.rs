//! Preemption: which pods of lower priority would have to be deleted so that a pod fits, and where
//! that costs least. Tried by changing columns and states and restoring them.

use std::{
    borrow::Cow,
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use reconcile::Selector;

use crate::{
    cluster::{Cluster, Slot},
    cycle::{Cycle, Failure, SeededRng},
    extender,
    framework::{
        PostFilter,
        candidates::{Candidates, histogram},
    },
    pod::PodInfo,
};

const NO_VICTIMS: &str = "No preemption victims found for incoming pod";
const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";

/// PodDisruptionBudgets by namespace and name.
#[derive(Debug, Default)]
pub struct Budgets(HashMap<String, BTreeMap<String, Budget>>);

#[derive(Debug)]
struct Budget {
    selector: Selector,
    allowed: i64,
    /// Pods whose disruption was already counted.
    disrupted: HashSet<String>,
}

impl Budgets {
    /// Stores a budget, or removes it with `None`.
    pub fn put(&mut self, namespace: &str, name: &str, budget: Option<&PodDisruptionBudget>) {
        let budgets = self.0.entry(namespace.to_owned()).or_default();
        let Some(budget) = budget else {
            budgets.remove(name);
            return;
        };
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let status = budget.status.as_ref();
        let allowed = status.and_then(|status| status.disruptions_allowed);
        let disrupted = status.and_then(|status| status.disrupted_pods.as_ref());
        let budget = Budget {
            selector: Selector::from_label_selector(selector),
            allowed: allowed.map_or(0, i64::from),
            disrupted: disrupted
                .into_iter()
                .flatten()
                .map(|(name, _)| name.clone())
                .collect(),
        };
        budgets.insert(name.to_owned(), budget);
    }

    /// Splits pods into those whose budgets would be violated, and the others; keeps the order.
    fn divide(&self, pods: Vec<Arc<PodInfo>>) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
        let mut left: HashMap<(&str, &str), i64> = HashMap::new();
        pods.into_iter().partition(|pod| {
            let labels = &pod.label_set.labels;
            let mut violated = false;
            let budgets = self.0.get(&**pod.namespace());
            for (name, budget) in budgets.into_iter().flatten() {
                let counts = !labels.is_empty()
                    && !budget.selector.is_everything()
                    && budget.selector.matches(Some(labels))
                    && !budget.disrupted.contains(&*pod.name);
                if counts {
                    // Use the key of the budgets, which live longer than the pods.
                    let namespace = self.0.get_key_value(&**pod.namespace());
                    let namespace = namespace.map_or("", |(namespace, _)| namespace.as_str());
                    let left = left.entry((namespace, name)).or_insert(budget.allowed);
                    *left -= 1;
                    violated |= *left < 0;
                }
            }
            violated
        })
    }
}

/// How many nodes are tried.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// In percent of those where preemption could help.
    pub percentage: usize,
    /// The minimum number.
    pub absolute: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            percentage: 10,
            absolute: 100,
        }
    }
}

/// A node and its victims, in descending order of importance.
#[derive(Debug)]
struct Candidate {
    slot: Slot,
    victims: Vec<Arc<PodInfo>>,
    violations: usize,
}

impl Candidate {
    /// The candidate of least cost is chosen: fewest violated budgets, lowest highest priority,
    /// lowest sum of priorities, fewest victims, and then the latest start time.
    fn cost(&self) -> (usize, i32, i64, usize, Reverse<Timestamp>) {
        let priorities = || self.victims.iter().map(|victim| victim.priority());
        let highest = priorities().max().unwrap_or(i32::MIN);
        let foremost = self
            .victims
            .iter()
            .filter(|victim| victim.priority() == highest);
        let started = foremost.map(|victim| began(victim)).min();
        // All made positive, so that fewer pods cost less even if their priorities are negative.
        let sum = priorities()
            .map(|priority| i64::from(priority) + (1 << 31))
            .sum();
        let started = started.unwrap_or(Timestamp::MAX);
        (
            self.violations,
            highest,
            sum,
            self.victims.len(),
            Reverse(started),
        )
    }
}

/// A pod that has not started counts as starting now.
fn began(pod: &PodInfo) -> Timestamp {
    pod.started.unwrap_or(Timestamp::MAX)
}

/// Why this pod may not preempt others now.
fn ineligible(pod: &PodInfo, cluster: &Cluster, failure: &Failure) -> Option<&'static str> {
    if pod.template.never_preempts {
        return Some("not eligible due to preemptionPolicy=Never.");
    }
    let known = cluster
        .nominated
        .node_of(&pod.uid)
        .or(pod.nominated.as_ref());
    let slot = cluster.slot(known?)?;
    // A nominated node where preemption can no longer help does not block the pod.
    let rejection = failure
        .rejected
        .iter()
        .find(|rejection| rejection.slot == slot);
    if failure.before_nodes.is_some() || rejection.is_some_and(|rejection| !rejection.resolvable) {
        return None;
    }
    let mut pods = cluster.pods[slot].iter();
    let leaving = pods.any(|other| other.priority() < pod.priority() && other.preempted);
    leaving.then_some("not eligible due to a terminating pod on the nominated node.")
}

/// Finds the candidate of least cost.
pub fn find(
    cycle: &mut Cycle<'_>,
    cluster: &mut Cluster,
    failure: &Failure,
    dice: &mut SeededRng,
    limits: Limits,
) -> PostFilter {
    if let Some(why) = ineligible(cycle.pod, cluster, failure) {
        return PostFilter::Nothing {
            message: format!("preemption: {why}"),
            clear: false,
        };
    }
    let resolvable = failure
        .rejected
        .iter()
        .filter(|rejection| rejection.resolvable);
    let nodes: Vec<Slot> = resolvable.map(|rejection| rejection.slot).collect();
    let mut reasons = Reasons::new();
    let (candidates, tried) = dry_run(cycle, cluster, &nodes, dice, limits, &mut reasons);
    let candidates = match ask_extenders(cycle, cluster, candidates) {
        Ok(candidates) => candidates,
        Err(error) => {
            return PostFilter::Nothing {
                message: format!("preemption: {error}"),
                clear: false,
            };
        }
    };
    match candidates.into_iter().min_by_key(Candidate::cost) {
        Some(Candidate { slot, victims, .. }) => PostFilter::Nominate { slot, victims },
        None => {
            let rest = failure.total.saturating_sub(tried);
            let unhelpful = (rest > 0).then_some((NOT_HELPFUL, rest));
            let counted = reasons.iter().map(|(reason, count)| (&**reason, *count));
            let message = histogram(failure.total, counted.chain(unhelpful));
            PostFilter::Nothing {
                message: format!("preemption: {message}"),
                clear: true,
            }
        }
    }
}

/// Keeps the candidates that extenders accept.
fn ask_extenders(
    cycle: &Cycle<'_>,
    cluster: &Cluster,
    candidates: Vec<Candidate>,
) -> Result<Vec<Candidate>, String> {
    if !cycle.extenders.decide_about(cycle.pod) {
        return Ok(candidates);
    }
    let named = |candidate: Candidate| {
        let node = cluster.names[candidate.slot].to_string();
        (node, (candidate.victims, candidate.violations))
    };
    let victims = candidates.into_iter().map(named).collect();
    let pods_on = |node: &str| {
        let slot = cluster.slot(node);
        slot.map_or_else(Vec::new, |slot| cluster.pods[slot].clone())
    };
    let left = cycle.extenders.preempt(cycle.pod, victims, pods_on)?;
    let candidate = |(node, (victims, violations)): (String, extender::Victims)| {
        Some(Candidate {
            slot: cluster.slot(&node)?,
            victims,
            violations,
        })
    };
    Ok(left.into_iter().filter_map(candidate).collect())
}

/// Tries nodes from a random one on until there are enough candidates.
fn dry_run(
    cycle: &mut Cycle<'_>,
    cluster: &mut Cluster,
    nodes: &[Slot],
    dice: &mut SeededRng,
    limits: Limits,
    reasons: &mut Reasons,
) -> (Vec<Candidate>, usize) {
    let wanted = (nodes.len() * limits.percentage / 100)
        .max(limits.absolute)
        .min(nodes.len());
    let (mut found, mut tried, mut clean) = (Vec::new(), 0, false);
    if nodes.is_empty() {
        return (found, 0);
    }
    let offset = dice.below(nodes.len());
    if !cluster.has_less_important(cycle.pod) {
        reasons.push((NO_VICTIMS.into(), nodes.len()));
        return (found, nodes.len());
    }
    for at in 0..nodes.len() {
        let slot = nodes[(offset + at) % nodes.len()];
        match on_node(cycle, cluster, slot) {
            Ok(candidate) => {
                clean |= candidate.violations == 0;
                found.push(candidate);
                if clean && found.len() >= wanted {
                    break;
                }
            }
            Err(why) => {
                tried += 1;
                reasons.extend(why.into_iter().map(|reason| (reason, 1)));
            }
        }
    }
    (found, tried)
}

/// Why nodes are no candidates, with the number of nodes.
type Reasons = Vec<(Cow<'static, str>, usize)>;

fn fits(
    cycle: &mut Cycle<'_>,
    cluster: &mut Cluster,
    slot: Slot,
) -> Result<(), Arc<[Cow<'static, str>]>> {
    let mut alone = Candidates::new(vec![slot]);
    cycle.filter(cluster, &mut alone);
    match alone.rejected().first() {
        None => Ok(()),
        Some(rejection) => Err(rejection.reasons.clone()),
    }
}

/// Removes all pods of lower priority from a node and adds back as many as possible: first those
/// whose budgets would be violated, in each group the more important and longer running first.
fn on_node(
    cycle: &mut Cycle<'_>,
    cluster: &mut Cluster,
    slot: Slot,
) -> Result<Candidate, Vec<Cow<'static, str>>> {
    let pods = cluster.pods[slot].iter();
    let lesser = pods.filter(|other| other.priority() < cycle.pod.priority());
    let mut lesser: Vec<Arc<PodInfo>> = lesser.cloned().collect();
    if lesser.is_empty() {
        return Err(vec![NO_VICTIMS.into()]);
    }
    for victim in &lesser {
        cycle.shift(cluster, victim, slot, -1);
    }
    if let Err(reasons) = fits(cycle, cluster, slot) {
        for victim in &lesser {
            cycle.shift(cluster, victim, slot, 1);
        }
        return Err(reasons.to_vec());
    }
    let importance = |pod: &Arc<PodInfo>| (Reverse(pod.priority()), began(pod));
    lesser.sort_by_key(importance);
    let (violating, others) = cluster.budgets.divide(lesser);
    let mut victims = Vec::new();
    let mut violations = 0;
    for (pods, violates) in [(violating, true), (others, false)] {
        for pod in pods {
            cycle.shift(cluster, &pod, slot, 1);
            if fits(cycle, cluster, slot).is_err() {
                cycle.shift(cluster, &pod, slot, -1);
                victims.push(pod);
                violations += usize::from(violates);
            }
        }
    }
    for victim in &victims {
        cycle.shift(cluster, victim, slot, 1);
    }
    if victims.is_empty() {
        let node = &cluster.names[slot];
        let why = format!("expected at least one victim pod on node \"{node}\"");
        return Err(vec![why.into()]);
    }
    victims.sort_by_key(importance);
    Ok(Candidate {
        slot,
        victims,
        violations,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        cycle::{Outcome, Scheduling},
        framework::profile::Profile,
        samples::{self, prioritised},
    };

    fn scheduling(nodes: &[(&str, &str)], pods: &[(&str, Arc<PodInfo>)]) -> Scheduling {
        let mut scheduling = Scheduling::new(1);
        for (name, cpu) in nodes {
            scheduling.cluster.put_node(samples::node(name, cpu, "1Gi"));
        }
        for (node, pod) in pods {
            scheduling.cluster.put_pod(node, pod.clone());
        }
        scheduling
    }

    fn sacrifice(scheduling: &mut Scheduling, pod: &Arc<PodInfo>) -> Result<Vec<String>, String> {
        let profile = Profile::default_scheduler();
        let used = scheduling.cluster.cpu.used.clone();
        let failure = match scheduling.schedule(&profile, pod) {
            Outcome::Failed(failure) => failure,
            Outcome::Node { .. } => panic!("it fits"),
        };
        let found = scheduling.post_filter(&profile, pod, &failure);
        assert_eq!(scheduling.cluster.cpu.used, used, "trying changed nothing");
        match found.nominated {
            Some((_, victims)) => Ok(victims
                .iter()
                .map(|victim| victim.name.to_string())
                .collect()),
            None => Err(found.messages.join(", ")),
        }
    }

    fn started(name: &str, priority: i32, second: i64) -> Arc<PodInfo> {
        let mut pod = samples::api_pod(name, &[("app", "web")]);
        pod.spec = prioritised_spec(priority);
        let time = samples::time(second);
        pod.status = serde_json::from_value(json!({"startTime": time})).unwrap();
        Arc::new(PodInfo::new(&pod))
    }

    fn prioritised_spec(priority: i32) -> Option<k8s_openapi::api::core::v1::PodSpec> {
        let container = json!({"name": "c", "resources": {"requests": {"cpu": "1"}}});
        let spec = json!({"priority": priority, "containers": [container]});
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn the_fewest_victims_of_lowest_priority_are_chosen() {
        let pods = [("low", 1), ("middle", 5), ("high", 50)]
            .map(|(name, priority)| ("n1", prioritised(name, "1", priority)));
        let mut scheduling = scheduling(&[("n1", "3")], &pods);
        let mut victims = |cpu| sacrifice(&mut scheduling, &prioritised("new", cpu, 10)).unwrap();
        assert_eq!(victims("1"), ["low"]);
        assert_eq!(victims("2"), ["middle", "low"]);
    }

    #[test]
    fn the_node_with_the_least_important_victims_is_chosen() {
        let pods = [
            ("n1", prioritised("five", "1", 5)),
            ("n2", prioritised("one", "1", 1)),
        ];
        let mut scheduling = scheduling(&[("n1", "1"), ("n2", "1")], &pods);
        assert_eq!(
            sacrifice(&mut scheduling, &prioritised("new", "1", 10)).unwrap(),
            ["one"]
        );
    }

    #[test]
    fn few_victims_cost_less_than_many_also_with_negative_priorities() {
        let pods = [
            ("n1", prioritised("a", "1", -5)),
            ("n1", prioritised("b", "1", -5)),
            ("n2", prioritised("c", "2", -5)),
        ];
        let mut scheduling = scheduling(&[("n1", "2"), ("n2", "2")], &pods);
        assert_eq!(
            sacrifice(&mut scheduling, &prioritised("new", "2", 10)).unwrap(),
            ["c"]
        );
    }

    #[test]
    fn of_equals_the_pod_that_began_last_goes() {
        let pods = [
            ("n1", started("old", 1, 10)),
            ("n2", started("young", 1, 20)),
        ];
        let mut scheduling = scheduling(&[("n1", "1"), ("n2", "1")], &pods);
        assert_eq!(
            sacrifice(&mut scheduling, &prioritised("new", "1", 10)).unwrap(),
            ["young"]
        );
        let pods = [
            ("n1", started("old", 1, 10)),
            ("n1", started("young", 1, 20)),
        ];
        let mut scheduling = self::scheduling(&[("n1", "2")], &pods);
        assert_eq!(
            sacrifice(&mut scheduling, &prioritised("new", "1", 10)).unwrap(),
            ["young"]
        );
    }

    #[test]
    fn budgets_are_respected_where_that_is_possible() {
        let budget = |allowed: i32| {
            let budget = json!({
                "spec": {"selector": {"matchLabels": {"app": "web"}}},
                "status": {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1,
                    "expectedPods": 1},
            });
            serde_json::from_value::<PodDisruptionBudget>(budget).unwrap()
        };
        let protected = started("protected", 1, 10);
        let pods = [
            ("n1", protected.clone()),
            ("n2", prioritised("free", "1", 5)),
        ];
        let mut scheduling = scheduling(&[("n1", "1"), ("n2", "1")], &pods);
        let new = prioritised("new", "1", 10);
        assert_eq!(sacrifice(&mut scheduling, &new).unwrap(), ["protected"]);
        scheduling
            .cluster
            .budgets
            .put("default", "b", Some(&budget(0)));
        assert_eq!(sacrifice(&mut scheduling, &new).unwrap(), ["free"]);
        scheduling
            .cluster
            .budgets
            .put("default", "b", Some(&budget(1)));
        assert_eq!(sacrifice(&mut scheduling, &new).unwrap(), ["protected"]);
        // On one node the pod with a budget is added back first, despite its lower priority.
        let pods = [("n1", protected), ("n1", prioritised("free", "1", 5))];
        let mut scheduling = self::scheduling(&[("n1", "2")], &pods);
        scheduling
            .cluster
            .budgets
            .put("default", "b", Some(&budget(0)));
        assert_eq!(sacrifice(&mut scheduling, &new).unwrap(), ["free"]);
        // If nothing else helps, the budget is violated.
        assert_eq!(
            sacrifice(&mut scheduling, &prioritised("new", "2", 10)).unwrap(),
            ["free", "protected"]
        );
    }

    #[test]
    fn reasons_against_preemption_are_counted_by_node() {
        let mut scheduling = scheduling(&[("n1", "1")], &[("n1", prioritised("equal", "1", 10))]);
        scheduling.cluster.put_node(samples::cordoned("n2"));
        let why = sacrifice(&mut scheduling, &prioritised("new", "1", 10)).unwrap_err();
        let expected = "no new claims to deallocate, preemption: 0/2 nodes are available";
        assert_eq!(why, format!("{expected}: 1 {NO_VICTIMS}, 1 {NOT_HELPFUL}."));
    }

    #[test]
    fn a_pod_that_never_preempts_or_waits_for_its_victims_takes_no_more() {
        let mut going = samples::api_pod("going", &[]);
        going.spec = prioritised_spec(1);
        going.metadata.deletion_timestamp = Some(samples::time(1));
        going.status = serde_json::from_value(json!({"conditions": [{"type": "DisruptionTarget",
            "status": "True", "reason": "PreemptionByScheduler"}]}))
        .unwrap();
        let pods = [
            ("n1", Arc::new(PodInfo::new(&going))),
            ("n2", prioritised("other", "1", 1)),
        ];
        let mut scheduling = scheduling(&[("n1", "1"), ("n2", "1")], &pods);
        let new = prioritised("new", "1", 10);
        scheduling.cluster.nominated.put(new.clone(), "n1".into());
        let why = sacrifice(&mut scheduling, &new).unwrap_err();
        assert_eq!(
            why,
            "no new claims to deallocate, preemption: not eligible due to a terminating pod on the nominated node."
        );
        let never = samples::pod_asking("never", "1", "1", |spec| {
            spec.priority = Some(10);
            spec.preemption_policy = Some("Never".into());
        });
        let why = sacrifice(&mut scheduling, &never).unwrap_err();
        assert_eq!(
            why,
            "no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never."
        );
    }
}
