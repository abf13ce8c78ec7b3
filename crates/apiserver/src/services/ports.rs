//! Node ports, health check ports among them.

use machinery::{
    Object, Status, Value,
    field::{Error, Path},
};
use rand::Rng;
use serde_json::json;
use store::Op;

use super::{Held, Owner, PICKS, port_key, put, text, wants_node_ports};
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
        for _ in 0..PICKS {
            let number = rand::rng().random_range(self.write.core.config.node_ports.clone());
            let key = port_key(number);
            if ops.iter().all(|op| op.key != key) && self.is_free(&key).await? {
                ops.push(self.put_port(number)?);
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
        ops.push(self.put_port(number)?);
        Ok(number)
    }

    fn put_port(&self, number: u16) -> Result<Op<Draft>, Status> {
        let object = json!({
            "apiVersion": "v1",
            "kind": "NodePort",
            "metadata": {"name": number.to_string()},
            "service": {"namespace": self.namespace, "name": self.name},
        });
        put(port_key(number), object)
    }
}
