//! Allocation results, as they are written to the claims' status.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm},
        resource::v1::{
            AllocationResult, DeviceAllocationConfiguration, DeviceAllocationResult,
            DeviceRequestAllocationResult,
        },
    },
    apimachinery::pkg::api::resource::Quantity,
};

use super::{
    plan::{Alternative, Plan},
    pools::Found,
    search::{Chosen, Solution},
    slices::Nodes,
};
use crate::cluster::NodeInfo;

/// The results of all claims.
pub(super) fn results(
    solution: &Solution<'_, '_>,
    node: &NodeInfo,
    share_id: &mut impl FnMut() -> String,
) -> Vec<AllocationResult> {
    let claims = solution.plans.iter().zip(solution.chosen);
    let claims = claims.map(|(plan, chosen)| {
        let found = chosen.iter().map(|one| solution.devices[one.device]);
        let found: Vec<Found<'_>> = found.collect();
        let results = chosen.iter().zip(&found);
        let results = results.map(|(one, found)| device(plan, one, found, share_id));
        AllocationResult {
            allocation_timestamp: None,
            devices: Some(DeviceAllocationResult {
                results: Some(results.collect()),
                config: Some(configuration(plan, chosen)).filter(|all| !all.is_empty()),
            }),
            node_selector: node_selector(&found, &node.name),
        }
    });
    claims.collect()
}

fn alternative<'p, 'a>(plan: &'p Plan<'a>, chosen: &Chosen) -> &'p Alternative<'a> {
    &plan.requests[chosen.request][chosen.alternative]
}

fn device(
    plan: &Plan<'_>,
    chosen: &Chosen,
    found: &Found<'_>,
    share_id: &mut impl FnMut() -> String,
) -> DeviceRequestAllocationResult {
    let (alternative, device) = (alternative(plan, chosen), found.device);
    let some = |list: &[String]| Some(list.to_vec()).filter(|list| !list.is_empty());
    let tolerations = Some(alternative.tolerations.to_vec());
    let consumed = chosen.share.iter().flatten();
    let consumed = consumed.map(|(name, amount)| (name.clone(), Quantity(amount.to_string())));
    let consumed: BTreeMap<String, Quantity> = consumed.collect();
    DeviceRequestAllocationResult {
        request: alternative.whole_name.clone(),
        driver: device.id.pool.driver.to_string(),
        pool: device.id.pool.pool.to_string(),
        device: device.id.device.to_string(),
        admin_access: alternative.has_admin_access.then_some(true),
        tolerations: tolerations.filter(|list| !list.is_empty()),
        share_id: chosen.share.as_ref().map(|_| share_id()),
        consumed_capacity: Some(consumed).filter(|all| !all.is_empty()),
        binding_conditions: some(&device.binding_conditions),
        binding_failure_conditions: some(&device.binding_failure_conditions),
    }
}

/// The configuration of the classes, each once with its requests, then that of the claim.
fn configuration(plan: &Plan<'_>, chosen: &[Chosen]) -> Vec<DeviceAllocationConfiguration> {
    let picked = |request: usize| {
        let mut chosen = chosen.iter();
        let one = chosen.find(|one| one.request == request);
        let first = plan.requests[request].first();
        one.map(|one| alternative(plan, one)).or(first)
    };
    let picked: Vec<&Alternative<'_>> = (0..plan.requests.len()).filter_map(picked).collect();
    let mut all = Vec::new();
    let mut classes: Vec<&str> = Vec::new();
    for one in &picked {
        let class = one.class.metadata.name.as_deref().unwrap_or_default();
        if classes.contains(&class) {
            continue;
        }
        classes.push(class);
        let of_class = picked
            .iter()
            .filter(|other| std::ptr::eq(other.class, one.class));
        let requests: Vec<String> = of_class.map(|other| other.whole_name.clone()).collect();
        let configuration = one.class.spec.config.iter().flatten();
        all.extend(configuration.map(|one| DeviceAllocationConfiguration {
            source: "FromClass".into(),
            requests: Some(requests.clone()),
            opaque: one.opaque.clone(),
        }));
    }
    let devices = plan.claim.spec.devices.iter();
    let configuration = devices.flat_map(|devices| devices.config.iter().flatten());
    for one in configuration {
        let requests = one.requests.as_deref().unwrap_or_default();
        let concerned = |other: &&Alternative<'_>| {
            let named = |name: &String| name == other.request || *name == other.whole_name;
            requests.iter().any(named)
        };
        if requests.is_empty() || picked.iter().any(concerned) {
            all.push(DeviceAllocationConfiguration {
                source: "FromClaim".into(),
                requests: one.requests.clone(),
                opaque: one.opaque.clone(),
            });
        }
    }
    all
}

/// The nodes that can use all devices; `None` for all nodes.
fn node_selector(devices: &[Found<'_>], node: &str) -> Option<NodeSelector> {
    let mut term = NodeSelectorTerm::default();
    for found in devices {
        let terms = match found.nodes() {
            Nodes::Named(_) => return Some(only(node)),
            _ if found.device.binds_to_node => return Some(only(node)),
            Nodes::Selected(terms) => terms,
            _ => continue,
        };
        // The API server rejects selectors with several terms.
        for one in terms {
            extend(&mut term.match_fields, one.match_fields.as_ref());
            extend(&mut term.match_expressions, one.match_expressions.as_ref());
        }
    }
    let is_empty = term.match_fields.is_none() && term.match_expressions.is_none();
    (!is_empty).then(|| NodeSelector {
        node_selector_terms: vec![term],
    })
}

fn only(node: &str) -> NodeSelector {
    let name = NodeSelectorRequirement {
        key: "metadata.name".into(),
        operator: "In".into(),
        values: Some(vec![node.to_owned()]),
    };
    NodeSelector {
        node_selector_terms: vec![NodeSelectorTerm {
            match_fields: Some(vec![name]),
            match_expressions: None,
        }],
    }
}

/// Adds the requirements that are not there yet.
fn extend(
    all: &mut Option<Vec<NodeSelectorRequirement>>,
    more: Option<&Vec<NodeSelectorRequirement>>,
) {
    for one in more.into_iter().flatten() {
        let all = all.get_or_insert_default();
        if !all.contains(one) {
            all.push(one.clone());
        }
    }
}
