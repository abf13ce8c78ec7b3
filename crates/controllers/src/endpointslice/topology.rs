//! Topology hints for `service.kubernetes.io/topology-mode: Auto`: every zone gets endpoints in
//! proportion to the CPUs of its nodes, preferably its own. Endpoints keep their hints while the
//! proportions allow. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use client::Event;
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::{Endpoint, EndpointHints, EndpointSlice, ForZone},
};
use machinery::quantity::Quantity;

use super::pack::identity;

const MODE: &str = "service.kubernetes.io/topology-mode";
/// The annotation's deprecated name, which takes precedence.
const OLDER: &str = "service.kubernetes.io/topology-aware-hints";
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
const CONTROL_PLANE: [&str; 2] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];
/// How far the load of a zone's endpoints may exceed its proportion.
const OVERLOAD: f64 = 0.2;

const NO_NODE_INFO: &str =
    "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes";
const FEW_ENDPOINTS: &str = "Insufficient number of endpoints";
const OVERLOADED: &str = "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold";
const NO_ZONE: &str = "One or more endpoints do not have a zone specified";

/// Each zone's fraction of all CPUs.
pub(super) type Shares = BTreeMap<String, f64>;

/// The proportions of zones, as long as no node changes them.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// `None` if they must be computed.
    pub(super) shares: Option<Option<Arc<Shares>>>,
    /// How often nodes changed them.
    pub(super) changes: u64,
}

impl Known {
    /// A node has changed them.
    pub(super) fn forget(&mut self) {
        self.shares = None;
        self.changes += 1;
    }

    /// Keeps what was computed after this number of changes, unless there was another one meanwhile.
    pub(super) fn keep(&mut self, changes: u64, shares: Option<Arc<Shares>>) {
        if self.changes == changes {
            self.shares = Some(shares);
        }
    }
}

/// Whether a Service has the annotation.
pub(super) fn is_enabled(service: &Service) -> bool {
    let annotations = service.metadata.annotations.as_ref();
    let mode = annotations.and_then(|all| all.get(OLDER).or_else(|| all.get(MODE)));
    matches!(mode.map(String::as_str), Some("Auto" | "auto"))
}

/// Zone and millicores of a node; `None` if the node does not count.
fn capacity(node: &Node) -> Option<(Option<&str>, i64)> {
    let labels = node.metadata.labels.as_ref();
    let label = |name: &str| labels.and_then(|labels| labels.get(name));
    if CONTROL_PLANE.iter().any(|name| label(name).is_some()) {
        return None;
    }
    let status = node.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let ready = conditions.find(|condition| condition.type_ == "Ready")?;
    if ready.status != "True" {
        return None;
    }
    let cpu = status.allocatable.as_ref().and_then(|all| all.get("cpu"));
    let cpu = cpu.and_then(|cpu| cpu.0.parse::<Quantity>().ok());
    let zone = label(ZONE).map(String::as_str);
    Some((
        zone.filter(|zone| !zone.is_empty()),
        cpu.map_or(0, Quantity::millis),
    ))
}

/// Whether a node's event may change the proportions of zones.
pub(super) fn concerns_shares(event: &Event<Node>) -> bool {
    match event {
        Event::Modified { old, new } => capacity(old) != capacity(new),
        _ => capacity(event.object()).is_some(),
    }
}

/// The proportions of zones; `None` if there are fewer than two, or a node's zone or CPUs are
/// unknown.
pub(super) fn shares(nodes: &[Arc<Node>]) -> Option<Shares> {
    let mut by_zone: BTreeMap<String, i64> = BTreeMap::new();
    for (zone, cpu) in nodes.iter().filter_map(|node| capacity(node)) {
        let zone = zone.filter(|_| cpu > 0)?;
        *by_zone.entry(zone.to_owned()).or_default() += cpu;
    }
    let total: i64 = by_zone.values().sum();
    let share = |(zone, cpu)| (zone, cpu as f64 / total as f64);
    (by_zone.len() >= 2).then(|| by_zone.into_iter().map(share).collect())
}

/// The number of endpoints of a zone.
struct Allocation {
    minimum: usize,
    maximum: usize,
    desired: f64,
}

fn allocate(shares: Option<&Shares>, count: usize) -> Result<BTreeMap<&str, Allocation>, String> {
    let shares = shares.ok_or_else(|| NO_NODE_INFO.to_owned())?;
    let described =
        |problem: &str| format!("{problem} ({count} endpoints, {} zones)", shares.len());
    if shares.len() > count {
        return Err(described(FEW_ENDPOINTS));
    }
    let wanted = |share: &f64| {
        let exact = share * count as f64;
        let minimum = (exact * (1.0 / (1.0 + OVERLOAD))).ceil() as usize;
        (minimum, exact.max(minimum as f64))
    };
    let minima: usize = shares.values().map(|share| wanted(share).0).sum();
    if minima > count {
        return Err(described(OVERLOADED));
    }
    let all = shares.iter().map(|(zone, share)| {
        let (minimum, desired) = wanted(share);
        let maximum = minimum + count - minima;
        let allocation = Allocation {
            minimum,
            maximum,
            desired,
        };
        (zone.as_str(), allocation)
    });
    Ok(all.collect())
}

fn is_ready(endpoint: &Endpoint) -> bool {
    let conditions = endpoint.conditions.as_ref();
    conditions.and_then(|conditions| conditions.ready) == Some(true)
}

fn hinted_zone(endpoint: &Endpoint) -> Option<&str> {
    let zones = endpoint.hints.as_ref()?.for_zones.as_ref()?;
    zones.first().map(|zone| zone.name.as_str())
}

/// The zone hints of existing endpoints.
pub(super) fn known_hints(slices: &[Arc<EndpointSlice>], family: &str) -> HashMap<String, String> {
    let slices = slices.iter().filter(|slice| slice.address_type == family);
    let endpoints = slices.flat_map(|slice| slice.endpoints.iter().flatten());
    let hinted = endpoints
        .filter_map(|endpoint| Some((identity(endpoint), hinted_zone(endpoint)?.to_owned())));
    hinted.collect()
}

fn count(zones: &[String]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for zone in zones {
        *counts.entry(zone.as_str()).or_default() += 1;
    }
    counts
}

/// Sets the hints of one address family's endpoints; fails with the reason if none can be set.
pub(super) fn hint(
    endpoints: &mut [&mut Endpoint],
    shares: Option<&Shares>,
    known: &HashMap<String, String>,
) -> Result<(), String> {
    for endpoint in endpoints.iter_mut() {
        endpoint.hints = None;
    }
    let mut ready: Vec<&mut &mut Endpoint> = endpoints
        .iter_mut()
        .filter(|endpoint| is_ready(endpoint))
        .collect();
    let allocations = allocate(shares, ready.len())?;
    let own: Option<Vec<String>> = ready.iter().map(|endpoint| endpoint.zone.clone()).collect();
    let own = own.ok_or_else(|| NO_ZONE.to_owned())?;
    let kept = ready.iter().zip(&own).map(|(endpoint, own)| {
        let known = known.get(&identity(endpoint));
        let known = known.filter(|zone| allocations.contains_key(zone.as_str()));
        known.unwrap_or(own).clone()
    });
    let kept: Vec<String> = kept.collect();
    let counts = count(&kept);
    let fits = allocations.iter().all(|(zone, allocation)| {
        let count = counts.get(zone).copied().unwrap_or_default();
        (allocation.minimum..=allocation.maximum).contains(&count)
    });
    let mut zones = if fits { kept } else { own };
    redistribute(&mut zones, &allocations);
    for (endpoint, name) in ready.iter_mut().zip(zones) {
        endpoint.hints = Some(EndpointHints {
            for_zones: Some(vec![ForZone { name }]),
            for_nodes: None,
        });
    }
    Ok(())
}

/// Moves endpoints from zones with too many to zones with too few, one by one.
fn redistribute(zones: &mut [String], allocations: &BTreeMap<&str, Allocation>) {
    let counts = count(zones);
    let surplus = allocations.iter().map(|(zone, allocation)| {
        let count = counts.get(zone).copied().unwrap_or_default();
        ((*zone).to_owned(), count as f64 - allocation.desired)
    });
    let mut surplus: BTreeMap<String, f64> = surplus.collect();
    loop {
        // Of equal zones the first by name.
        let most = |sign: f64| {
            let mut best: Option<(&String, f64)> = None;
            for (zone, surplus) in &surplus {
                let amount = surplus * sign;
                if amount > best.map_or(0.0, |(_, best)| best) {
                    best = Some((zone, amount));
                }
            }
            best.map(|(zone, amount)| (zone.clone(), amount))
        };
        let (Some((from, give)), Some((to, take))) = (most(1.0), most(-1.0)) else {
            return;
        };
        if (give < 1.0 && take < 1.0) || give < 0.5 || take < 0.5 {
            return;
        }
        let Some(moved) = zones.iter_mut().find(|zone| **zone == from) else {
            return;
        };
        moved.clone_from(&to);
        for (zone, change) in [(from, -1.0), (to, 1.0)] {
            *surplus.entry(zone).or_default() += change;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(zone: &str, cpu: &str) -> Arc<Node> {
        let node = json!({"metadata": {"name": zone, "labels": {ZONE: zone}},
            "status": {"allocatable": {"cpu": cpu}, "conditions": [{"type": "Ready", "status": "True"}]}});
        Arc::new(serde_json::from_value(node).unwrap())
    }

    fn endpoint(uid: usize, zone: &str) -> Endpoint {
        let endpoint = json!({"addresses": [format!("10.0.0.{uid}")], "conditions": {"ready": true},
            "zone": zone, "targetRef": {"uid": uid.to_string()}});
        serde_json::from_value(endpoint).unwrap()
    }

    fn endpoints(zones: &[&str]) -> Vec<Endpoint> {
        let numbered = zones.iter().enumerate();
        numbered.map(|(uid, zone)| endpoint(uid, zone)).collect()
    }

    fn hinted(
        endpoints: &mut [Endpoint],
        shares: Option<&Shares>,
        known: &HashMap<String, String>,
    ) -> Result<String, String> {
        let mut all: Vec<&mut Endpoint> = endpoints.iter_mut().collect();
        let result = hint(&mut all, shares, known);
        let zones = endpoints.iter().map(|endpoint| hinted_zone(endpoint));
        let zones: Vec<&str> = zones.map(|zone| zone.unwrap_or("-")).collect();
        result.map(|()| zones.concat())
    }

    fn two(left: &str, right: &str) -> Option<Shares> {
        shares(&[node("a", left), node("b", right)])
    }

    #[test]
    fn zones_get_endpoints_in_proportion_to_their_cpus() {
        for (shares, zones, expected) in [
            (two("4", "4"), &["a", "a", "b", "b"][..], "aabb"),
            // Half of the endpoints get hints for the other zone.
            (two("4", "4"), &["a", "a", "a", "a"], "bbaa"),
            (two("2", "6"), &["a", "a", "b", "b"], "babb"),
            // Within the allowed overload nothing moves.
            (
                two("1", "1"),
                &["a", "a", "a", "a", "b", "b", "b"],
                "aaaabbb",
            ),
        ] {
            let found = hinted(&mut endpoints(zones), shares.as_ref(), &HashMap::new());
            assert_eq!(found.as_deref(), Ok(expected), "{zones:?}");
        }
    }

    #[test]
    fn hints_stay_while_the_shares_allow_it() {
        let known = |zones: &str| -> HashMap<String, String> {
            let numbered = zones.chars().enumerate();
            numbered
                .map(|(uid, zone)| (uid.to_string(), zone.to_string()))
                .collect()
        };
        let equal = two("1", "1");
        let all = ["a", "a", "a", "a"];
        for (before, expected) in [
            ("baba", "baba"),
            ("aabb", "aabb"),
            ("aaaa", "bbaa"),
            ("cccc", "bbaa"),
        ] {
            let found = hinted(&mut endpoints(&all), equal.as_ref(), &known(before));
            assert_eq!(found.as_deref(), Ok(expected), "{before}");
        }
    }

    #[test]
    fn without_enough_knowledge_or_endpoints_there_are_no_hints_and_a_reason() {
        let none = HashMap::new();
        let unknown: Arc<Node> = Arc::new(
            serde_json::from_value(json!({"metadata": {"name": "x"},
            "status": {"allocatable": {"cpu": "1"}, "conditions": [{"type": "Ready", "status": "True"}]}}))
            .unwrap(),
        );
        assert_eq!(shares(&[node("a", "1")]), None);
        assert_eq!(shares(&[node("a", "1"), node("b", "1"), unknown]), None);
        let mut one = endpoints(&["a"]);
        assert_eq!(hinted(&mut one, None, &none), Err(NO_NODE_INFO.to_owned()));
        let few = hinted(&mut one, two("1", "1").as_ref(), &none);
        assert_eq!(few, Err(format!("{FEW_ENDPOINTS} (1 endpoints, 2 zones)")));
        let uneven = shares(&[node("a", "1"), node("b", "1"), node("c", "1")]);
        let overloaded = hinted(
            &mut endpoints(&["a", "b", "c", "a"]),
            uneven.as_ref(),
            &none,
        );
        assert_eq!(
            overloaded,
            Err(format!("{OVERLOADED} (4 endpoints, 3 zones)"))
        );
        let mut nowhere = endpoints(&["a", "b"]);
        nowhere[0].zone = None;
        nowhere[1].hints = Some(EndpointHints::default());
        let found = hinted(&mut nowhere, two("1", "1").as_ref(), &none);
        assert_eq!(found, Err(NO_ZONE.to_owned()));
        assert_eq!(nowhere[1].hints, None);
    }

    #[test]
    fn nodes_of_the_control_plane_and_nodes_that_are_not_ready_do_not_count() {
        let mut control = node("c", "64");
        let labels = &mut Arc::make_mut(&mut control).metadata.labels;
        let role = CONTROL_PLANE[0].to_owned();
        labels.get_or_insert_default().insert(role, String::new());
        let mut away = node("d", "64");
        let status = Arc::make_mut(&mut away).status.as_mut().unwrap();
        status.conditions.as_mut().unwrap()[0].status = "Unknown".into();
        let found = shares(&[node("a", "1"), node("b", "3"), control, away]).unwrap();
        assert_eq!(
            found,
            Shares::from([("a".into(), 0.25), ("b".into(), 0.75)])
        );
    }

    #[test]
    fn the_annotation_has_two_names_and_two_spellings() {
        for (annotations, expected) in [
            (json!({}), false),
            (json!({MODE: "Auto"}), true),
            (json!({MODE: "auto"}), true),
            (json!({MODE: "Disabled"}), false),
            (json!({OLDER: "auto"}), true),
            (json!({OLDER: "Disabled", MODE: "Auto"}), false),
        ] {
            let service = json!({"metadata": {"annotations": annotations}});
            let service: Service = serde_json::from_value(service).unwrap();
            assert_eq!(is_enabled(&service), expected, "{annotations}");
        }
    }

    #[test]
    fn proportions_are_kept_until_a_node_changes_them() {
        let mut known = Known::default();
        known.keep(0, None);
        assert!(known.shares.is_some());
        known.forget();
        assert!(known.shares.is_none());
        // A node changed while they were computed.
        known.keep(0, None);
        assert!(known.shares.is_none());
        known.keep(1, None);
        assert!(known.shares.is_some());
    }
}
