//! Node ports, including health check node ports.

use std::{collections::HashMap, ops::RangeInclusive};

use machinery::json::json;
use machinery::{
    Object, Status, Value,
    field::{Error, Path},
};
use rand::Rng;
use store::Op;

use super::{Allocations, Owner, port_key, put, text};
use registry::Draft;

const ALLOCATED: &str = "provided port is already allocated";
/// A dry run shows node ports above this.
const AFTER_DEFAULT_RANGE: i64 = 32768;

impl Owner<'_> {
    pub(super) async fn ports(
        &self,
        spec: &mut Object,
        old: Option<&Object>,
        before: &Allocations,
        ops: &mut Vec<Op<Draft>>,
    ) -> Result<(), Status> {
        if matches!(text(spec, "type"), "NodePort" | "LoadBalancer") {
            match old {
                None => self.new_ports(spec, ops).await?,
                Some(_) => self.changed_ports(spec, before, ops).await?,
            }
        }
        if needs_health_check(spec) && !old.is_some_and(needs_health_check) {
            self.health_check_port(spec, ops).await?;
        }
        Ok(())
    }

    /// Ports with the same number but different protocols share a node port.
    async fn new_ports(&self, spec: &mut Object, ops: &mut Vec<Op<Draft>>) -> Result<(), Status> {
        let gives = gives_node_ports(spec);
        let numbers = ports(spec);
        let mut given: HashMap<i64, i64> = HashMap::new();
        for (index, &(number, asked)) in numbers.iter().enumerate() {
            if asked == 0 && !gives {
                continue;
            }
            let node_port = match given.get(&number) {
                Some(&shared) if asked == 0 || asked == shared => shared,
                Some(_) => self.claim_port(index, asked, ops).await?,
                None => {
                    let wanted = numbers.iter().find(|(n, node)| *n == number && *node != 0);
                    let node_port = match wanted {
                        Some(&(_, wanted)) => self.claim_port(index, wanted, ops).await?,
                        None => self.pick_port(ops).await?,
                    };
                    given.insert(number, node_port);
                    node_port
                }
            };
            set_node_port(spec, index, node_port);
        }
        Ok(())
    }

    async fn changed_ports(
        &self,
        spec: &mut Object,
        before: &Allocations,
        ops: &mut Vec<Op<Draft>>,
    ) -> Result<(), Status> {
        let gives = gives_node_ports(spec);
        let mut taken: Vec<(String, i64)> = Vec::new();
        let protocols = protocols(spec);
        for (index, ((_, asked), protocol)) in ports(spec).into_iter().zip(protocols).enumerate() {
            if asked == 0 && !gives {
                continue;
            }
            let held = before.ports.iter().any(|port| i64::from(*port) == asked);
            let node_port = match asked {
                0 => self.pick_port(ops).await?,
                asked if held || taken.iter().any(|port| port.1 == asked) => asked,
                asked => self.claim_port(index, asked, ops).await?,
            };
            set_node_port(spec, index, node_port);
            let port = (protocol, node_port);
            if taken.contains(&port) {
                let why = format!("duplicate nodePort: {{{} {node_port}}}", port.0);
                return Err(Status::unknown(why));
            }
            taken.push(port);
        }
        Ok(())
    }

    async fn health_check_port(
        &self,
        spec: &mut Object,
        ops: &mut Vec<Op<Draft>>,
    ) -> Result<(), Status> {
        let asked = spec.get("healthCheckNodePort").and_then(Value::as_i64);
        let number = match asked.unwrap_or(0) {
            0 => self.pick_port(ops).await?,
            asked => self.take_port(asked, ops).await?.map_err(|why| {
                Status::internal(format!(
                    "failed to allocate requested HealthCheck NodePort {asked}: {why}"
                ))
            })?,
        };
        spec.insert("healthCheckNodePort".to_owned(), number.into());
        Ok(())
    }

    async fn pick_port(&self, ops: &mut Vec<Op<Draft>>) -> Result<i64, Status> {
        if self.dry_run {
            // A dry run allocates nothing.
            let mut given = self.dry_run_ports.lock();
            let next = given.iter().max().unwrap_or(&AFTER_DEFAULT_RANGE) + 1;
            given.push(next);
            return Ok(next);
        }
        for number in candidates(&self.allocator.node_ports) {
            let key = port_key(number);
            if ops.iter().all(|op| op.key != key) && self.is_free(&key).await? {
                ops.push(put_port(&self.namespace, &self.name, number)?);
                return Ok(number.into());
            }
        }
        Err(Status::internal(
            "failed to allocate a nodePort: range is full",
        ))
    }

    async fn claim_port(
        &self,
        index: usize,
        number: i64,
        ops: &mut Vec<Op<Draft>>,
    ) -> Result<i64, Status> {
        self.take_port(number, ops).await?.map_err(|why| {
            let path = Path::new("spec.ports");
            let path = path.index(index);
            let error = Error::invalid(&path.child("nodePort"), number, why);
            self.invalid(&[error])
        })
    }

    /// Allocates the requested port, or returns why it cannot.
    async fn take_port(
        &self,
        number: i64,
        ops: &mut Vec<Op<Draft>>,
    ) -> Result<Result<i64, String>, Status> {
        let range = &self.allocator.node_ports;
        let port = u16::try_from(number).ok().filter(|n| range.contains(n));
        if self.dry_run {
            return self.dry_run_port(number, port).await;
        }
        let Some(port) = port else {
            return Ok(Err(format!(
                "provided port is not in the valid range. The range of valid ports is {}-{}",
                range.start(),
                range.end()
            )));
        };
        let key = port_key(port);
        if ops.iter().any(|op| op.key == key) || !self.is_free(&key).await? {
            return Ok(Err(ALLOCATED.to_owned()));
        }
        ops.push(put_port(&self.namespace, &self.name, port)?);
        Ok(Ok(number))
    }

    /// Checks a requested port without allocating it. A port outside of the range is accepted.
    async fn dry_run_port(
        &self,
        number: i64,
        port: Option<u16>,
    ) -> Result<Result<i64, String>, Status> {
        let free = match port {
            Some(port) => self.is_free(&port_key(port)).await?,
            None => true,
        };
        let mut given = self.dry_run_ports.lock();
        if !free || given.contains(&number) {
            return Ok(Err(ALLOCATED.to_owned()));
        }
        given.push(number);
        Ok(Ok(number))
    }
}

/// Whether ports without a node port get one.
fn gives_node_ports(spec: &Object) -> bool {
    match text(spec, "type") {
        "NodePort" => true,
        "LoadBalancer" => spec.get("allocateLoadBalancerNodePorts") != Some(&Value::Bool(false)),
        _ => false,
    }
}

fn needs_health_check(spec: &Object) -> bool {
    text(spec, "type") == "LoadBalancer" && text(spec, "externalTrafficPolicy") == "Local"
}

/// Each port's number and its node port.
fn ports(spec: &Object) -> Vec<(i64, i64)> {
    let ports = spec.get("ports").and_then(Value::as_array);
    let number = |port: &Value, key: &str| port.get(key).and_then(Value::as_i64).unwrap_or(0);
    let ports = ports.into_iter().flatten();
    ports
        .map(|port| (number(port, "port"), number(port, "nodePort")))
        .collect()
}

/// Each port's protocol.
fn protocols(spec: &Object) -> Vec<String> {
    let ports = spec.get("ports").and_then(Value::as_array);
    let protocol = |port: &Value| port["protocol"].as_str().unwrap_or_default().to_owned();
    ports.into_iter().flatten().map(protocol).collect()
}

fn set_node_port(spec: &mut Object, index: usize, node_port: i64) {
    let port = spec
        .get_mut("ports")
        .and_then(|ports| ports.get_mut(index)?.as_object_mut());
    if let Some(port) = port {
        port.insert("nodePort".to_owned(), node_port.into());
    }
}

/// The key that records which Service holds a port.
pub(super) fn put_port(namespace: &str, name: &str, number: u16) -> Result<Op<Draft>, Status> {
    let object = json!({
        "apiVersion": "v1",
        "kind": "NodePort",
        "metadata": {"name": number.to_string()},
        "service": {"namespace": namespace, "name": name},
    });
    put(port_key(number), object)
}

/// Every port once: from a random position on, with the lower band last, which is reserved for
/// requested ports as long as the rest lasts.
fn candidates(range: &RangeInclusive<u16>) -> impl Iterator<Item = u16> + Send + use<> {
    let (first, last) = (*range.start(), *range.end());
    let size = range.len();
    let reserved = if size <= 16 {
        0
    } else {
        (size / 32).clamp(16, 128)
    };
    let upper = first + reserved as u16;
    let turned = |band: RangeInclusive<u16>| {
        let from = if band.is_empty() {
            *band.start()
        } else {
            rand::rng().random_range(band.clone())
        };
        (from..=*band.end()).chain(*band.start()..from)
    };
    let lower = first..=upper.saturating_sub(1);
    turned(upper..=last).chain(turned(lower))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_port_is_a_candidate_once_and_the_start_comes_last() {
        for range in [30000..=32767, 30000..=30009, 30000..=30000] {
            let all: Vec<u16> = candidates(&range).collect();
            let distinct: HashSet<u16> = all.iter().copied().collect();
            assert_eq!((all.len(), distinct.len()), (range.len(), range.len()));
            assert!(all.iter().all(|port| range.contains(port)));
        }
        let all: Vec<u16> = candidates(&(30000..=32767)).collect();
        assert!(
            all[2767 - 85..].iter().all(|port| *port < 30086),
            "the start comes last"
        );
    }
}
