//! What pods add to the nftables table of the pod network: their host ports, and what they may send to themselves. Pure:
//! builds batches, applies nothing.

use std::collections::BTreeMap;

use crate::{ipam::Record, names, nft::Batch};

/// Adds all pods to a table that has none.
pub(crate) fn add_all(batch: &mut Batch, table: &str, records: &[Record]) {
    change(batch, table, &Elements::new(), &elements(records));
}

/// Adds a pod: its host ports, unless another pod has them, and the connections that it may send errors about.
pub(crate) fn add_pod(id: &str, record: &Record, others: &[Record]) -> Batch {
    let (without, with) = beside(record, others);
    let mut batch = Batch::new();
    change(&mut batch, &names::table(id), &without, &with);
    batch
}

/// Removes a pod. A host port that another pod waits for becomes that pod's.
pub(crate) fn remove_pod(id: &str, record: &Record, others: &[Record]) -> Batch {
    let (without, with) = beside(record, others);
    let mut batch = Batch::new();
    change(&mut batch, &names::table(id), &with, &without);
    batch
}

/// Elements of maps and sets: the set and key, and the value.
type Elements = BTreeMap<(String, String), Option<String>>;

fn beside(record: &Record, others: &[Record]) -> (Elements, Elements) {
    let mut all = others.to_vec();
    let without = elements(&all);
    all.push(record.clone());
    (without, elements(&all))
}

/// The elements for these records. A host port leads to the pod that was attached first.
fn elements(records: &[Record]) -> Elements {
    let mut records: Vec<&Record> = records.iter().collect();
    records.sort_by_key(|record| (record.attached_at, &record.sandbox_id));
    let mut all = Elements::new();
    for record in records {
        let ports = record.port_mappings.iter();
        let ports: Vec<_> = ports.filter(|port| port.host_port != 0).collect();
        for address in &record.addresses {
            let suffix = if address.is_ipv4() { "4" } else { "6" };
            let itself = format!("{address} . {address}");
            all.insert((format!("itself{suffix}"), itself.clone()), None);
            if ports.is_empty() {
                continue;
            }
            for port in &ports {
                let key = format!("{} . {}", port.protocol.as_str(), port.host_port);
                let (map, key) = match port.host_ip.filter(|ip| !ip.is_unspecified()) {
                    None => ("hostports", key),
                    Some(ip) if ip.is_ipv4() != address.is_ipv4() => continue,
                    Some(ip) => ("hostports-at", format!("{ip} . {key}")),
                };
                let target = format!("{address} . {}", port.container_port);
                all.entry((format!("{map}{suffix}"), key))
                    .or_insert(Some(target));
            }
            all.insert((format!("hairpin{suffix}"), itself), None);
        }
    }
    all
}

fn change(batch: &mut Batch, table: &str, before: &Elements, after: &Elements) {
    let mut push = |verb: &str, (map, key): &(String, String), value: &Option<String>| {
        let value = value.as_ref().map(|value| format!(" : {value}"));
        let value = value.unwrap_or_default();
        batch.push(format!(
            "{verb} element inet {table} {map} {{ {key}{value} }}"
        ));
    };
    for (key, value) in before
        .iter()
        .filter(|(key, value)| after.get(*key) != Some(value))
    {
        push("delete", key, value);
    }
    for (key, value) in after
        .iter()
        .filter(|(key, value)| before.get(*key) != Some(value))
    {
        push("add", key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PortMapping, Protocol, rules::full};

    fn record(host_ip: Option<&str>) -> Record {
        Record {
            sandbox_id: "s".into(),
            namespace: "default".into(),
            name: "web".into(),
            uid: "1".into(),
            host_link: "m0123abcdaaaaaa".into(),
            addresses: vec!["10.42.0.5".parse().unwrap()],
            port_mappings: vec![PortMapping {
                protocol: Protocol::Tcp,
                container_port: 80,
                host_port: 8080,
                host_ip: host_ip.map(|ip| ip.parse().unwrap()),
            }],
            attached_at: 1,
            limits: Default::default(),
            egress_link: None,
        }
    }

    /// The statement about a pod and itself in a set.
    fn itself(verb: &str, set: &str, last: u8) -> String {
        format!(
            "{verb} element inet mainstay-0123abcd {set}4 {{ 10.42.0.{last} . 10.42.0.{last} }}"
        )
    }

    #[test]
    fn the_second_pod_with_a_host_port_gets_it_after_the_first_is_removed() {
        let (first, mut second) = (record(None), record(None));
        second.sandbox_id = "a".into();
        second.addresses = vec!["10.42.0.6".parse().unwrap()];
        second.attached_at = 2;
        let table = "inet mainstay-0123abcd";
        let both = |verb: &str, last: u8| {
            ["hairpin", "itself"]
                .map(|set| itself(verb, set, last))
                .to_vec()
        };
        let added = add_pod("0123abcd", &second, std::slice::from_ref(&first));
        assert_eq!(added.statements(), both("add", 6));
        let leads = |verb: &str, last: u8| {
            format!("{verb} element {table} hostports4 {{ tcp . 8080 : 10.42.0.{last} . 80 }}")
        };
        let removed = remove_pod("0123abcd", &first, &[second.clone()]);
        let [hairpin, own] = ["hairpin", "itself"].map(|set| itself("delete", set, 5));
        assert_eq!(
            removed.statements(),
            [hairpin, leads("delete", 5), own, leads("add", 6)]
        );
        let removed = remove_pod("0123abcd", &second, std::slice::from_ref(&first));
        assert_eq!(removed.statements(), both("delete", 6));
        let whole = full("0123abcd", &[], &[], &[second, first]);
        let ports = whole.statements().iter().filter(|s| s.contains("8080"));
        assert_eq!(ports.collect::<Vec<_>>(), [&leads("add", 5)]);
    }

    #[test]
    fn a_host_port_leads_to_the_pod_and_back_to_itself() {
        assert_eq!(
            add_pod("0123abcd", &record(None), &[]).statements(),
            [
                itself("add", "hairpin", 5),
                "add element inet mainstay-0123abcd hostports4 { tcp . 8080 : 10.42.0.5 . 80 }"
                    .into(),
                itself("add", "itself", 5),
            ]
        );
    }

    #[test]
    fn a_host_address_limits_the_port() {
        let batch = remove_pod("0123abcd", &record(Some("192.0.2.7")), &[]);
        assert_eq!(
            batch.statements()[1],
            "delete element inet mainstay-0123abcd hostports-at4 { 192.0.2.7 . tcp . 8080 : 10.42.0.5 . 80 }"
        );
    }

    #[test]
    fn a_pod_without_ports_may_only_send_errors_about_its_own_connections() {
        let mut record = record(None);
        record.port_mappings.clear();
        let added = add_pod("0123abcd", &record, &[]);
        assert_eq!(added.statements(), [itself("add", "itself", 5)]);
    }
}
