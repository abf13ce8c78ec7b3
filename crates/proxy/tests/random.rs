//! Random changes with a seed: every difference must be valid for the kernel's table, and many
//! differences must lead to the same table as writing it from scratch.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, sync::Arc};

use network::{
    Protocol,
    nft::{Batch, Nft},
};
use network_lab as lab;
use proxy::{
    endpoints::{Chosen, Endpoint},
    rules::contribution,
    ruleset::{Datagrams, Ruleset},
    service::PortView,
    sources::SourceRanges,
    table::Frame,
};

const ROUNDS: usize = 150;
const SEED: u64 = 0x006d_6169_6e73_7461;

/// A small generator: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

fn view(random: &mut Random, service: u64) -> PortView {
    let v4 = random.chance(80);
    let cluster_ip = if v4 {
        format!("10.43.0.{service}")
    } else {
        format!("fd00:43::{service}")
    };
    let count = random.below(5);
    let mut endpoints: Vec<Endpoint> = (0..count)
        .map(|_| {
            let host = 1 + random.below(6);
            let ip = if v4 {
                format!("10.42.0.{host}")
            } else {
                format!("fd00:42::{host}")
            };
            Endpoint {
                ip: ip.parse().unwrap(),
                port: 8080,
                local: host < 4,
            }
        })
        .collect();
    endpoints.sort();
    endpoints.dedup();
    let local = endpoints
        .iter()
        .filter(|endpoint| endpoint.local)
        .cloned()
        .collect();
    // Few addresses, so that Services conflict.
    let balancers: Vec<_> = (0..random.below(3))
        .map(|number| {
            if v4 {
                format!("203.0.113.{number}")
            } else {
                format!("2001:db8::{number}")
            }
        })
        .map(|ip| ip.parse().unwrap())
        .collect();
    let ranges: &[&str] = if v4 {
        &["198.51.100.0/24", "192.0.2.0/25"]
    } else {
        &["2001:db8:1::/48"]
    };
    let ranges = &ranges[..usize::try_from(random.below(ranges.len() as u64 + 1)).unwrap()];
    PortView {
        name: format!("default/service-{service}:"),
        protocol: if random.chance(70) {
            Protocol::Tcp
        } else {
            Protocol::Udp
        },
        port: 80,
        cluster_ip: cluster_ip.parse().unwrap(),
        external_ips: balancers.clone(),
        load_balancer_ips: balancers,
        source_ranges: (!ranges.is_empty()).then(|| {
            let ranges = ranges.iter().map(|range| range.parse().unwrap());
            let name = format!("default/service-{service}");
            Arc::new(SourceRanges::new(&name, v4, ranges.collect()))
        }),
        node_port: random
            .chance(50)
            .then(|| 30000 + u16::try_from(random.below(4)).unwrap()),
        affinity_seconds: random
            .chance(30)
            .then(|| 60 * (1 + u32::try_from(random.below(2)).unwrap())),
        internal_local: random.chance(20),
        external_local: random.chance(40),
        endpoints: Chosen {
            cluster: endpoints,
            local,
            ..Chosen::default()
        },
    }
}

/// The table as a set of lines: the order of elements is the kernel's, and unused picking chains
/// may remain.
fn parts() -> BTreeSet<String> {
    let listing = lab::command("nft list table inet mainstay-0123abcd-services");
    let parts = listing.split(['\n', ',']).map(|part| {
        part.trim()
            .trim_start_matches("elements = {")
            .trim_end_matches('}')
            .trim()
            .to_owned()
    });
    let shared = [
        "chain pick-",
        "chain to-",
        "map ",
        "type ",
        "meta nfproto",
        "jump mark-",
        "dnat ip",
        "numgen",
    ];
    let is_choice = |part: &str| {
        part.contains("goto to-") || part.contains("goto pick-") || part.starts_with("set served-")
    };
    parts
        .filter(|part| !shared.iter().any(|start| part.starts_with(start)) && !is_choice(part))
        .collect()
}

#[test]
fn many_differences_give_the_same_table_as_writing_it_at_once() {
    lab::node(|_| async {
        let mut random = Random(SEED);
        let nft = Nft::new();
        let mut ruleset = Ruleset::new(Frame {
            id: "0123abcd".into(),
            cluster_cidrs: vec![
                "10.42.0.0/16".parse().unwrap(),
                "fd00:42::/48".parse().unwrap(),
            ],
            service_cidrs: vec![
                "10.43.0.0/16".parse().unwrap(),
                "fd00:43::/112".parse().unwrap(),
            ],
            dns: None,
            node_port_addresses: Vec::new(),
        });
        nft.apply(&ruleset.full()).await.unwrap();
        for round in 0..ROUNDS {
            let mut batch = Batch::new();
            for _ in 0..=random.below(3) {
                let service = 1 + random.below(8);
                let views: Vec<PortView> = if random.chance(15) {
                    vec![]
                } else {
                    vec![view(&mut random, service)]
                };
                let key = ("default".to_owned(), format!("service-{service}"));
                ruleset.set(
                    &key,
                    contribution(&views),
                    &mut batch,
                    &mut Datagrams::new(),
                );
            }
            if let Err(error) = nft.apply(&batch).await {
                panic!("round {round}: {error}\n{}", batch.statements().join("\n"));
            }
        }
        let stepwise = parts();
        nft.apply(&ruleset.full()).await.unwrap();
        let at_once = parts();
        let different: Vec<_> = stepwise.symmetric_difference(&at_once).collect();
        assert!(different.is_empty(), "{different:#?}");
        assert!(
            stepwise.len() > 60,
            "the last state is worth comparing: {stepwise:#?}"
        );
    });
}
