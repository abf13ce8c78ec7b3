//! Which clients a load balancer admits: the ranges of a Service, in a set and a chain of its own. Pure.
//!
//! The ranges of a Service are in the kernel once for each family, whatever the number of its ports and addresses: a user
//! chooses how many there are of all three. The names of set and chain contain a hash of the ranges, so that changed ranges
//! are another set.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Service;
use network::{IpNet, names::object_hash};

use crate::rules::Object;

/// The deprecated annotation for source ranges.
const ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// The sources that a Service admits to its load balancer's addresses of a family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceRanges {
    hash: String,
    v4: bool,
    /// Sorted, without overlaps, which the kernel would reject. No source is admitted if it is empty.
    ranges: Vec<IpNet>,
}

impl SourceRanges {
    /// Those of a Service for a family; `None` if it admits all.
    pub fn of_service(service: &Service, v4: bool) -> Option<Arc<Self>> {
        let spec = service.spec.as_ref();
        let given = spec.and_then(|spec| spec.load_balancer_source_ranges.as_ref());
        let is_given = given.is_some_and(|ranges| !ranges.is_empty());
        let ranges = given.into_iter().flatten();
        let annotation = service.metadata.annotations.as_ref();
        let annotation = annotation.and_then(|all| all.get(ANNOTATION));
        let annotated = annotation.filter(|_| !is_given).into_iter();
        let annotated = annotated.flat_map(|ranges| ranges.split(','));
        let ranges = ranges.map(String::as_str).chain(annotated);
        let parsed = ranges.filter_map(|range| range.trim().parse::<IpNet>().ok());
        let of_family = parsed.filter(|range| range.addr().is_ipv4() == v4);
        let ranges = IpNet::aggregate(&of_family.map(|range| range.trunc()).collect());
        if ranges.is_empty() {
            return None;
        }
        let (namespace, name) = (&service.metadata.namespace, &service.metadata.name);
        Some(Arc::new(Self::new(
            &format!("{namespace:?}/{name:?}"),
            v4,
            ranges,
        )))
    }

    /// The ranges of the Service with this name.
    pub fn new(service: &str, v4: bool, ranges: Vec<IpNet>) -> Self {
        let hash = object_hash(&format!("{service}/{v4}/{ranges:?}"));
        Self { hash, v4, ranges }
    }

    /// The number of ranges.
    pub fn count(&self) -> usize {
        self.ranges.len()
    }

    /// What happens to a client's packet. The rules are added to the objects of the Service.
    pub fn verdict(self: &Arc<Self>, objects: &mut BTreeMap<String, Object>) -> String {
        if self.ranges.is_empty() {
            return "drop".to_owned();
        }
        let (set, chain) = (
            format!("sources-{}", self.hash),
            format!("guard-{}", self.hash),
        );
        if !objects.contains_key(&chain) {
            let family = if self.v4 { "ip" } else { "ip6" };
            let rules = vec![format!("{family} saddr @{set} return"), "drop".to_owned()];
            objects.insert(chain.clone(), Object::Chain(rules));
            objects.insert(set, Object::Ranges(self.clone()));
        }
        format!("goto {chain}")
    }

    /// The declaration of the set.
    pub fn declaration(&self) -> &'static str {
        match self.v4 {
            true => "{ type ipv4_addr; flags interval; }",
            false => "{ type ipv6_addr; flags interval; }",
        }
    }

    /// Its elements.
    pub fn elements(&self) -> Vec<String> {
        self.ranges.iter().map(ToString::to_string).collect()
    }
}
