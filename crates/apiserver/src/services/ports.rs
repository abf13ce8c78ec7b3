//! Node ports, health check ports among them.

use std::ops::RangeInclusive;

use machinery::json::json;
use machinery::{
    Object, Status, Value,
    field::{Error, Path},
};
use rand::Rng;
use store::Op;

use super::{Held, Owner, port_key, put, text, wants_node_ports};
use crate::Draft;

impl Owner<'_> {
    pub(super) async fn ports(
        &self,
        spec: &mut Object,
        before: &Held,
        ops: &mut Vec<Op<Draft>>,
    ) -> Result<(), Status> {
        let wanted = wants_node_ports(spec);
        let mut taken: Vec<(u16, String)> = Vec::new();
        let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
        for (index, port) in ports.into_iter().flatten().enumerate() {
            let Some(port) = port.as_object_mut() else {
                continue;
            };
            if !wanted {
                port.shift_remove("nodePort");
                continue;
            }
            let protocol = text(port, "protocol").to_owned();
            let number = port.get("nodePort").and_then(Value::as_u64).unwrap_or(0) as u16;
            let shared = |(taken, other): &(u16, String)| *taken == number && *other != protocol;
            let number = match number {
                0 => self.pick_port(ops).await?,
                held if before.ports.contains(&held) || taken.iter().any(shared) => held,
                asked => self.claim_port(index, asked, ops).await?,
            };
            taken.push((number, protocol));
            port.insert("nodePort".to_owned(), number.into());
        }
        self.health_check_port(spec, before, ops).await
    }

    async fn health_check_port(
        &self,
        spec: &mut Object,
        before: &Held,
        ops: &mut Vec<Op<Draft>>,
    ) -> Result<(), Status> {
        let needed =
            text(spec, "type") == "LoadBalancer" && text(spec, "externalTrafficPolicy") == "Local";
        if !needed {
            spec.shift_remove("healthCheckNodePort");
            return Ok(());
        }
        let number = spec
            .get("healthCheckNodePort")
            .and_then(Value::as_u64)
            .unwrap_or(0) as u16;
        let number = match number {
            0 => self.pick_port(ops).await?,
            held if before.ports.contains(&held) => held,
            asked => self.claim_port(usize::MAX, asked, ops).await?,
        };
        spec.insert("healthCheckNodePort".to_owned(), number.into());
        Ok(())
    }

    async fn pick_port(&self, ops: &mut Vec<Op<Draft>>) -> Result<u16, Status> {
        for number in candidates(&self.write.core.config.node_ports) {
            let key = port_key(number);
            if ops.iter().all(|op| op.key != key) && self.is_free(&key).await? {
                ops.push(put_port(&self.namespace, &self.name, number)?);
                return Ok(number);
            }
        }
        Err(Status::internal(
            "failed to allocate a nodePort: range is full",
        ))
    }

    async fn claim_port(
        &self,
        index: usize,
        number: u16,
        ops: &mut Vec<Op<Draft>>,
    ) -> Result<u16, Status> {
        let spec = Path::new("spec");
        let path = if index == usize::MAX {
            spec.child("healthCheckNodePort")
        } else {
            spec.child("ports").index(index).child("nodePort")
        };
        let refuse = |why: String| {
            Err(self
                .write
                .invalid(&self.name, &[Error::invalid(&path, number, why)]))
        };
        let range = &self.write.core.config.node_ports;
        if !range.contains(&number) {
            return refuse(format!(
                "provided port is not in the valid range. The range of valid ports is {}-{}",
                range.start(),
                range.end()
            ));
        }
        let key = port_key(number);
        if ops.iter().any(|op| op.key == key) || !self.is_free(&key).await? {
            return refuse("provided port is already allocated".to_owned());
        }
        ops.push(put_port(&self.namespace, &self.name, number)?);
        Ok(number)
    }
}

/// The key that says which Service holds a port.
pub(super) fn put_port(namespace: &str, name: &str, number: u16) -> Result<Op<Draft>, Status> {
    let object = json!({
        "apiVersion": "v1",
        "kind": "NodePort",
        "metadata": {"name": number.to_string()},
        "service": {"namespace": namespace, "name": name},
    });
    put(port_key(number), object)
}

/// Every port once: from a random place on, the start last, which is kept for those who name one as
/// long as the rest lasts.
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
