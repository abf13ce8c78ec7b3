//! Amounts of resources as integers: what a node has, what a pod asks for.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use machinery::quantity;

/// A container that asks for nothing is still counted as something when nodes are compared.
const DEFAULT_MILLI_CPU: i64 = 100;
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

type Quantities = BTreeMap<String, Quantity>;

/// Amounts. CPU is in thousandths; everything else in whole units.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// Thousandths of a CPU.
    pub cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes.
    pub ephemeral: i64,
    /// Extended resources and huge pages.
    pub others: BTreeMap<String, i64>,
}

fn parse(quantity: &Quantity) -> Option<quantity::Quantity> {
    quantity.0.parse().ok()
}

impl Resources {
    /// From the API's form; what cannot be parsed counts as nothing.
    pub fn of(quantities: Option<&Quantities>) -> Self {
        let mut resources = Self::default();
        for (name, quantity) in quantities.into_iter().flatten() {
            let Some(quantity) = parse(quantity) else {
                continue;
            };
            match name.as_str() {
                "cpu" => resources.cpu = quantity.millis(),
                "memory" => resources.memory = quantity.value(),
                "ephemeral-storage" => resources.ephemeral = quantity.value(),
                "pods" => {}
                other => {
                    resources.others.insert(other.to_owned(), quantity.value());
                }
            }
        }
        resources
    }

    fn add(&mut self, other: &Self) {
        self.cpu += other.cpu;
        self.memory += other.memory;
        self.ephemeral += other.ephemeral;
        for (name, amount) in &other.others {
            *self.others.entry(name.clone()).or_default() += amount;
        }
    }

    fn max(&mut self, other: &Self) {
        self.cpu = self.cpu.max(other.cpu);
        self.memory = self.memory.max(other.memory);
        self.ephemeral = self.ephemeral.max(other.ephemeral);
        for (name, amount) in &other.others {
            let entry = self.others.entry(name.clone()).or_default();
            *entry = (*entry).max(*amount);
        }
    }
}

/// What a node must have free for the pod: its containers and sidecars together, or its hungriest
/// init container with the sidecars before it, whichever is more; and the overhead. What the pod
/// asks for as a whole wins over its containers' sum.
pub fn requests(spec: &PodSpec) -> Resources {
    total(spec, |container| {
        Resources::of(asked(container.resources.as_ref()))
    })
}

/// The same with an assumption for containers that ask for nothing: for comparing nodes.
pub fn weights(spec: &PodSpec) -> Resources {
    total(spec, |container| {
        let asked = asked(container.resources.as_ref());
        let mut resources = Resources::of(asked);
        let names = |name: &str| asked.is_some_and(|asked| asked.contains_key(name));
        if !names("cpu") {
            resources.cpu = DEFAULT_MILLI_CPU;
        }
        if !names("memory") {
            resources.memory = DEFAULT_MEMORY;
        }
        resources
    })
}

fn asked(resources: Option<&ResourceRequirements>) -> Option<&Quantities> {
    resources.and_then(|resources| resources.requests.as_ref())
}

fn total(spec: &PodSpec, of: impl Fn(&Container) -> Resources) -> Resources {
    let mut sum = Resources::default();
    for container in &spec.containers {
        sum.add(&of(container));
    }
    let (mut sidecars, mut peak) = (Resources::default(), Resources::default());
    for container in spec.init_containers.iter().flatten() {
        let own = of(container);
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars.add(&own);
            peak.max(&sidecars);
        } else {
            let mut during = sidecars.clone();
            during.add(&own);
            peak.max(&during);
        }
    }
    sum.add(&sidecars);
    sum.max(&peak);
    if let Some(whole) = asked(spec.resources.as_ref()) {
        let told = Resources::of(Some(whole));
        let has = |name: &str| whole.contains_key(name);
        sum.cpu = if has("cpu") { told.cpu } else { sum.cpu };
        sum.memory = if has("memory") {
            told.memory
        } else {
            sum.memory
        };
        sum.others.extend(told.others);
    }
    sum.add(&Resources::of(spec.overhead.as_ref()));
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(cpu: &str, restart: Option<&str>) -> Container {
        let requests = [("cpu".to_owned(), Quantity(cpu.to_owned()))].into();
        Container {
            restart_policy: restart.map(Into::into),
            resources: Some(ResourceRequirements {
                requests: Some(requests),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn the_hungriest_moment_of_a_pods_life_counts() {
        let spec = |containers, init| PodSpec {
            containers,
            init_containers: Some(init),
            ..Default::default()
        };
        let cpu = |spec: &PodSpec| requests(spec).cpu;
        let main = || vec![container("500m", None), container("500m", None)];
        assert_eq!(cpu(&spec(main(), vec![])), 1000);
        assert_eq!(cpu(&spec(main(), vec![container("2", None)])), 2000);
        let sidecar = container("300m", Some("Always"));
        assert_eq!(cpu(&spec(main(), vec![sidecar.clone()])), 1300);
        assert_eq!(
            cpu(&spec(main(), vec![sidecar, container("2", None)])),
            2300
        );
    }

    #[test]
    fn a_container_that_asks_for_nothing_still_weighs_something() {
        let spec = PodSpec {
            containers: vec![Container::default()],
            ..Default::default()
        };
        assert_eq!(requests(&spec), Resources::default());
        assert_eq!(weights(&spec).cpu, 100);
        assert_eq!(weights(&spec).memory, 200 << 20);
    }
}
