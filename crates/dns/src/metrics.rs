//! What the DNS server counts, under CoreDNS' names. Counting takes no lock but the histogram's: the labels of a
//! question are places in arrays.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use hickory_proto::op::ResponseCode;
use stdx::exposition::{Exposition, Histogram};

use crate::reply::Transport;

/// CoreDNS' buckets: from a quarter of a millisecond on, each twice the one before.
const BUCKETS: &[f64] = &[
    0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024,
    2.048, 4.096, 8.192,
];
/// The types of questions that are told apart, as CoreDNS does; the last stands for all others.
const TYPES: [(u16, &str); 14] = [
    (1, "A"),
    (2, "NS"),
    (5, "CNAME"),
    (6, "SOA"),
    (12, "PTR"),
    (15, "MX"),
    (16, "TXT"),
    (28, "AAAA"),
    (33, "SRV"),
    (43, "DS"),
    (48, "DNSKEY"),
    (64, "SVCB"),
    (65, "HTTPS"),
    (0, "other"),
];
const PROTOCOLS: [&str; 2] = ["udp", "tcp"];
const FAMILIES: [&str; 2] = ["1", "2"];
/// Codes of replies that fit into a header.
const CODES: usize = 16;
/// The one server and zone that there are, as CoreDNS shows its usual ones.
const SERVER: [(&str, &str); 3] = [("server", "dns://:53"), ("zone", "."), ("view", "")];
const CACHE: [(&str, &str); 3] = [("server", "dns://:53"), ("zones", "."), ("view", "")];

/// Counts of one server.
pub struct Metrics {
    requests: [[[AtomicU64; TYPES.len()]; FAMILIES.len()]; PROTOCOLS.len()],
    responses: [AtomicU64; CODES],
    duration: Histogram,
    /// Answers from the cache: names that exist, and names that do not.
    hits: [AtomicU64; 2],
    misses: AtomicU64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: Default::default(),
            responses: Default::default(),
            duration: Histogram::new(BUCKETS),
            hits: Default::default(),
            misses: AtomicU64::default(),
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn value(counter: &AtomicU64) -> f64 {
    counter.load(Ordering::Relaxed) as f64
}

impl Metrics {
    /// A request was answered with this reply.
    pub fn answered(&self, reply: &[u8], transport: Transport, from: SocketAddr, begun: Instant) {
        let protocol = usize::from(transport == Transport::Tcp);
        let family = usize::from(from.is_ipv6());
        let asked = question_type(reply).unwrap_or_default();
        let place = TYPES.iter().position(|(number, _)| *number == asked);
        count(&self.requests[protocol][family][place.unwrap_or(TYPES.len() - 1)]);
        let code = reply.get(3).map_or(0, |flags| usize::from(flags & 0xf));
        count(&self.responses[code]);
        self.duration.took(begun.elapsed());
    }

    /// A question for others was answered from the cache.
    pub fn hit(&self, reply: &[u8]) {
        let code = reply.get(3).map_or(0, |flags| flags & 0xf);
        count(&self.hits[usize::from(code != 0)]);
    }

    /// A question for others was not in the cache.
    pub fn missed(&self) {
        count(&self.misses);
    }

    /// The page; `cached` is the number of answers in the cache.
    pub fn page(&self, cached: usize) -> String {
        let mut page = Exposition::default();
        let name = "coredns_dns_requests_total";
        page.family(name, "counter", "Counter of DNS requests by type.");
        for (protocol, of_protocol) in PROTOCOLS.iter().zip(&self.requests) {
            for (family, of_family) in FAMILIES.iter().zip(of_protocol) {
                for ((_, asked), counter) in TYPES.iter().zip(of_family) {
                    let labels = [("proto", *protocol), ("family", *family), ("type", *asked)];
                    let labels = [&SERVER[..], &labels].concat();
                    show(&mut page, name, &labels, counter);
                }
            }
        }
        let name = "coredns_dns_responses_total";
        page.family(name, "counter", "Counter of DNS responses by code.");
        for (code, counter) in self.responses.iter().enumerate() {
            let code = code_name(u8::try_from(code).unwrap_or_default());
            let labels = [&SERVER[..], &[("rcode", &*code), ("plugin", "")]].concat();
            show(&mut page, name, &labels, counter);
        }
        let name = "coredns_dns_request_duration_seconds";
        page.family(name, "histogram", "How long each request took.");
        page.histogram(name, &SERVER, &self.duration);
        let name = "coredns_cache_hits_total";
        page.family(name, "counter", "Questions answered from the cache.");
        for (kind, counter) in ["success", "denial"].iter().zip(&self.hits) {
            let labels = [&CACHE[..], &[("type", *kind)]].concat();
            page.sample(name, &labels, value(counter), None);
        }
        let name = "coredns_cache_misses_total";
        page.family(name, "counter", "Questions that were not in the cache.");
        page.sample(name, &CACHE, value(&self.misses), None);
        let requests = value(&self.misses) + self.hits.iter().map(value).sum::<f64>();
        let name = "coredns_cache_requests_total";
        page.family(name, "counter", "Questions that the cache was asked for.");
        page.sample(name, &CACHE, requests, None);
        let name = "coredns_cache_entries";
        page.family(name, "gauge", "Answers in the cache.");
        page.sample(name, &CACHE, cached as f64, None);
        page.finish()
    }
}

/// What never happened is left out, as CoreDNS leaves it out.
fn show(page: &mut Exposition, name: &str, labels: &[(&str, &str)], counter: &AtomicU64) {
    if value(counter) > 0.0 {
        page.sample(name, labels, value(counter), None);
    }
}

fn code_name(code: u8) -> String {
    match ResponseCode::from_low(code) {
        ResponseCode::NoError => "NOERROR".to_owned(),
        ResponseCode::FormErr => "FORMERR".to_owned(),
        ResponseCode::ServFail => "SERVFAIL".to_owned(),
        ResponseCode::NXDomain => "NXDOMAIN".to_owned(),
        ResponseCode::NotImp => "NOTIMP".to_owned(),
        ResponseCode::Refused => "REFUSED".to_owned(),
        other => u16::from(other).to_string(),
    }
}

/// The type of the first question of a message.
fn question_type(message: &[u8]) -> Option<u16> {
    let mut at = 12;
    loop {
        match *message.get(at)? {
            0 => break,
            // A first question points nowhere.
            length if length >= 64 => return None,
            length => at += usize::from(length) + 1,
        }
    }
    let bytes = message.get(at + 1..at + 3)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

#[cfg(test)]
mod tests {
    use hickory_proto::{
        op::{Message, MessageType, OpCode, Query},
        rr::{Name, RecordType},
    };

    use super::*;

    fn reply(asked: RecordType, code: ResponseCode) -> Vec<u8> {
        let mut message = Message::new(7, MessageType::Response, OpCode::Query);
        let name: Name = "a.b.example.".parse().unwrap();
        message.add_query(Query::query(name, asked));
        message.metadata.response_code = code;
        message.to_vec().unwrap()
    }

    #[test]
    fn answers_are_counted_by_type_and_code() {
        let metrics = Metrics::default();
        let from = "192.0.2.1:5".parse().unwrap();
        let answered = |asked, code| {
            let reply = reply(asked, code);
            metrics.answered(&reply, Transport::Udp, from, Instant::now());
        };
        answered(RecordType::AAAA, ResponseCode::NoError);
        answered(RecordType::AAAA, ResponseCode::NXDomain);
        answered(RecordType::CAA, ResponseCode::NoError);
        metrics.hit(&reply(RecordType::A, ResponseCode::NXDomain));
        metrics.missed();
        let page = metrics.page(3);
        for line in [
            r#"coredns_dns_requests_total{server="dns://:53",zone=".",view="",proto="udp",family="1",type="AAAA"} 2"#,
            r#"proto="udp",family="1",type="other"} 1"#,
            r#"coredns_dns_responses_total{server="dns://:53",zone=".",view="",rcode="NXDOMAIN",plugin=""} 1"#,
            r#"coredns_dns_request_duration_seconds_count{server="dns://:53",zone=".",view=""} 3"#,
            r#"coredns_cache_hits_total{server="dns://:53",zones=".",view="",type="denial"} 1"#,
            r#"coredns_cache_misses_total{server="dns://:53",zones=".",view=""} 1"#,
            r#"coredns_cache_entries{server="dns://:53",zones=".",view=""} 3"#,
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
    }

    #[test]
    fn what_is_no_message_has_no_type() {
        for bytes in [&[][..], &[0; 12], &[0xff; 40], &[1; 20]] {
            assert_eq!(question_type(bytes), None);
        }
        // Nothing of it makes counting fail.
        let from = "[2001:db8::1]:5".parse().unwrap();
        let metrics = Metrics::default();
        metrics.answered(&[], Transport::Tcp, from, Instant::now());
        assert!(
            metrics
                .page(0)
                .contains(r#"proto="tcp",family="2",type="other"} 1"#)
        );
    }
}
