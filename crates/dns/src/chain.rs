//! The plugins of a query in CoreDNS' order: `rewrite`, `template`, `hosts`, `kubernetes`,
//! `forward`. One [`Block`] per server block of the Corefile.

use std::{collections::BTreeMap, sync::Arc};

use hickory_proto::{
    op::{Message, Query, ResponseCode},
    rr::{Name, RData, Record, RecordType},
};
use ipnet::IpNet;
use stdx::SystemClock;

use crate::{
    Error,
    cluster::Cluster,
    corefile::{self, LogClasses},
    hosts::{self, Hosts},
    resolvers::Resolvers,
    rewrite::Rewrite,
    template::{Applied, Template},
    upstream::Upstream,
    zone::{Answer, Zone},
};

/// The maximum number of CNAMEs inside the cluster that are followed.
const ALIASES: usize = 8;

/// All blocks.
pub struct Chain {
    /// The generation of the settings.
    pub generation: u64,
    blocks: Vec<Arc<Block>>,
}

/// A server block.
pub struct Block {
    /// Its index among the blocks.
    pub index: usize,
    zones: Vec<Name>,
    /// Which replies are logged.
    pub log: Option<LogClasses>,
    /// Whether errors are logged.
    pub errors: bool,
    /// The rewrite rules.
    pub rewrites: Vec<Rewrite>,
    templates: Vec<Template>,
    hosts: Option<Hosts>,
    zone: Option<Zone>,
    /// The forwarder.
    pub upstream: Upstream,
}

/// A query to forward.
pub struct ForwardQuery {
    /// The block whose servers are asked.
    pub block: Arc<Block>,
    /// The name.
    pub name: Name,
}

impl Chain {
    /// Makes the blocks of a Corefile.
    pub fn new(
        servers: Vec<corefile::Server>,
        generation: u64,
        cluster_domain: &str,
        own_ranges: &[IpNet],
        resolvers: &Arc<Resolvers>,
    ) -> Result<Self, Error> {
        let block = |(index, server): (usize, corefile::Server)| {
            let zone = |settings: &corefile::Kubernetes| {
                Zone::new(cluster_domain, own_ranges.to_vec()).map(|zone| zone.with(settings))
            };
            Ok(Arc::new(Block {
                index,
                zones: server.zones,
                log: server.log,
                errors: server.errors,
                rewrites: server.rewrites,
                templates: server.templates,
                hosts: server.hosts,
                zone: server.kubernetes.as_ref().map(zone).transpose()?,
                upstream: Upstream::new(server.forwards, server.cache, resolvers.clone()),
            }))
        };
        let blocks: Result<_, Error> = servers.into_iter().enumerate().map(block).collect();
        Ok(Self {
            generation,
            blocks: blocks?,
        })
    }

    /// The blocks of a fixed Corefile, with default surroundings; also returns the parts that have
    /// no effect.
    pub fn of_corefile(
        text: &str,
        cluster_domain: &str,
        own_ranges: &[IpNet],
    ) -> Result<(Self, Vec<String>), String> {
        let resolvers = Resolvers::new(Vec::new(), Arc::new(SystemClock), Arc::default());
        let zone = Zone::new(cluster_domain, Vec::new()).map_err(|error| error.to_string())?;
        let around = corefile::ParseContext {
            cluster_domain: zone.origin(),
            files: &BTreeMap::new(),
            resolv_conf: "/etc/resolv.conf".into(),
            own: Vec::new(),
        };
        let parsed = corefile::parse(text, &around).map_err(|error| error.to_string())?;
        let chain = Self::new(parsed.servers, 0, cluster_domain, own_ranges, &resolvers);
        Ok((chain.map_err(|error| error.to_string())?, parsed.problems))
    }

    /// The block of a name: the one with the longest matching zone.
    pub fn block(&self, name: &Name) -> Option<&Arc<Block>> {
        let depth = |block: &Block| {
            let zones = block.zones.iter().filter(|zone| zone.zone_of(name));
            zones.map(Name::num_labels).max()
        };
        let mut best: Option<(u8, &Arc<Block>)> = None;
        for block in &self.blocks {
            if let Some(depth) = depth(block)
                && best.is_none_or(|(known, _)| depth > known)
            {
                best = Some((depth, block));
            }
        }
        best.map(|(_, block)| block)
    }

    /// A block by its index.
    pub fn at(&self, index: usize) -> Option<&Arc<Block>> {
        self.blocks.get(index)
    }

    /// Whether any block logs replies.
    pub fn logs(&self) -> bool {
        self.blocks.iter().any(|block| block.log.is_some())
    }

    /// The number of cached answers.
    pub fn cached(&self) -> usize {
        self.blocks
            .iter()
            .map(|block| block.upstream.cached())
            .sum()
    }

    /// Adds what is known to the reply; returns what must be forwarded.
    pub fn fill(
        &self,
        block: &Arc<Block>,
        cluster: &Cluster,
        question: &Query,
        reply: &mut Message,
    ) -> Option<ForwardQuery> {
        let (mut block, mut name) = (block.clone(), question.name().clone());
        let kind = question.query_type();
        for _ in 0..ALIASES {
            match block.look_up(cluster, &name, kind, reply) {
                Next::Done => return None,
                Next::Forward => return Some(ForwardQuery { block, name }),
                Next::Alias(target) => {
                    name = target;
                    block = match self.block(&name) {
                        Some(block) => block.clone(),
                        None => break,
                    };
                }
            }
        }
        reply.metadata.response_code = ResponseCode::ServFail;
        None
    }
}

/// The next step after a block was asked.
enum Next {
    Done,
    Forward,
    Alias(Name),
}

impl Block {
    fn look_up(
        &self,
        cluster: &Cluster,
        name: &Name,
        kind: RecordType,
        reply: &mut Message,
    ) -> Next {
        if let Some(next) = self.template(name, kind, reply) {
            return next;
        }
        match self.hosts.as_ref().map(|hosts| hosts.answer(name, kind)) {
            Some(hosts::HostLookup::Records(mut records)) => {
                reply.metadata.authoritative = true;
                take_turns(&mut records, reply.metadata.id);
                reply.add_answers(records);
                return Next::Done;
            }
            Some(hosts::HostLookup::Missing) => {
                reply.metadata.response_code = ResponseCode::ServFail;
                return Next::Done;
            }
            Some(hosts::HostLookup::Elsewhere) | None => {}
        }
        if let Some(zone) = &self.zone {
            match zone.answer(cluster, name, kind) {
                Answer::Elsewhere => {}
                Answer::Alias(record, target) => {
                    reply.metadata.authoritative = true;
                    reply.add_answer(*record);
                    return match kind {
                        RecordType::CNAME => Next::Done,
                        _ => Next::Alias(target),
                    };
                }
                answer => {
                    add_answer(zone, answer, reply);
                    return Next::Done;
                }
            }
        }
        if self.upstream.has(name) {
            return Next::Forward;
        }
        reply.metadata.response_code = ResponseCode::ServFail;
        Next::Done
    }

    /// The reply of the first template for a query, if there is one.
    fn template(&self, name: &Name, kind: RecordType, reply: &mut Message) -> Option<Next> {
        for template in &self.templates {
            match template.apply(name, kind) {
                Applied::Elsewhere => {}
                Applied::Unmatched | Applied::Reply(None) => {
                    reply.metadata.response_code = ResponseCode::ServFail;
                    return Some(Next::Done);
                }
                Applied::Reply(Some(sections)) => {
                    reply.metadata.authoritative = true;
                    reply.metadata.response_code = template.code;
                    let target = match sections.answers.as_slice() {
                        [record] if kind != RecordType::CNAME => match &record.data {
                            RData::CNAME(target) => Some(target.0.clone()),
                            _ => None,
                        },
                        _ => None,
                    };
                    reply.add_answers(sections.answers);
                    reply.add_additionals(sections.additionals);
                    reply.add_authorities(sections.authorities);
                    return Some(target.map_or(Next::Done, Next::Alias));
                }
            }
        }
        None
    }
}

fn add_answer(zone: &Zone, answer: Answer, reply: &mut Message) {
    reply.metadata.authoritative = true;
    let Answer::Records {
        mut records,
        additional,
    } = answer
    else {
        reply.metadata.response_code = ResponseCode::NXDomain;
        reply.add_authority(zone.start_of_authority());
        return;
    };
    if records.is_empty() {
        reply.add_authority(zone.start_of_authority());
    }
    take_turns(&mut records, reply.metadata.id);
    reply.add_answers(records);
    reply.add_additionals(additional);
}

/// Rotates the records, since clients tend to use the first.
fn take_turns(records: &mut [Record], id: u16) {
    let turn = usize::from(id) % records.len().max(1);
    records.rotate_left(turn);
}
