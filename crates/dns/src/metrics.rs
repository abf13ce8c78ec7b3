//! The DNS server's metrics, under CoreDNS' names. Counting takes no lock: labels are array
//! indexes, and a batch of queries is counted at once.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use hickory_proto::op::ResponseCode;
use stdx::exposition::{Counter, Exposition, Family, Histogram};

use crate::reply::Transport;

/// CoreDNS' buckets: from 0.25 ms, doubling.
const BUCKETS: &[f64] = &[
    0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024,
    2.048, 4.096, 8.192,
];
/// CoreDNS' buckets of sizes in bytes.
const SIZES: [f64; 14] = [
    0.0, 100.0, 200.0, 300.0, 400.0, 511.0, 1023.0, 2047.0, 4095.0, 8291.0, 16e3, 32e3, 48e3, 64e3,
];
/// The query types with a label of their own, as in CoreDNS; the last stands for all others.
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
/// The number of response codes in a header.
const CODES: usize = 16;
/// The labels of the server and zone, as CoreDNS has by default.
const SERVER: [(&str, &str); 3] = [("server", "dns://:53"), ("zone", "."), ("view", "")];
const CACHE: [(&str, &str); 3] = [("server", "dns://:53"), ("zones", "."), ("view", "")];

/// The counters of a server.
pub struct Metrics {
    requests: [[[AtomicU64; TYPES.len()]; FAMILIES.len()]; PROTOCOLS.len()],
    responses: [AtomicU64; CODES],
    duration: Durations,
    /// Cache hits: answers with records, and denials.
    hits: [AtomicU64; 2],
    misses: AtomicU64,
    /// Sizes of requests and of replies, by protocol.
    sizes: [[Sizes; PROTOCOLS.len()]; 2],
    /// Answers that were asked for again before they expired, and expired ones that were sent.
    prefetches: Counter,
    stale: Counter,
    /// Queries that were not forwarded since as many as configured were pending.
    rejected: Counter,
    panics: Counter,
    /// How long servers took to answer forwarded queries.
    forwarded: Family<Histogram>,
}

/// Sizes of messages.
#[derive(Default)]
struct Sizes {
    /// Counts per bucket; the last is above all bounds.
    buckets: [AtomicU64; SIZES.len() + 1],
    bytes: AtomicU64,
}

/// Request durations.
#[derive(Default)]
struct Durations {
    /// Counts per bucket; the last is above all bounds.
    buckets: [AtomicU64; BUCKETS.len() + 1],
    nanoseconds: AtomicU64,
}

/// The labels of a request and its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Labels {
    protocol: usize,
    family: usize,
    asked: usize,
    code: usize,
}

/// Replies that are not counted yet.
#[derive(Debug, Default)]
pub struct Tally {
    replies: Vec<(Labels, u64)>,
    /// The numbers of requests and of replies in each bucket of sizes, and their bytes.
    sizes: [([u64; SIZES.len() + 1], u64); 2],
}

/// The bucket of a size.
fn bucket(length: usize) -> usize {
    let place = SIZES.iter().position(|bound| length as f64 <= *bound);
    place.unwrap_or(SIZES.len())
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

fn value(counter: &AtomicU64) -> f64 {
    counter.load(Ordering::Relaxed) as f64
}

impl Labels {
    /// The labels of a reply.
    pub fn new(reply: &[u8], transport: Transport, ipv6: bool) -> Self {
        let asked = question_type(reply).unwrap_or_default();
        let place = TYPES.iter().position(|(number, _)| *number == asked);
        Self {
            protocol: usize::from(transport == Transport::Tcp),
            family: usize::from(ipv6),
            asked: place.unwrap_or(TYPES.len() - 1),
            code: reply.get(3).map_or(0, |flags| usize::from(flags & 0xf)),
        }
    }
}

impl Tally {
    /// Adds the reply to a datagram, with the lengths of both.
    pub fn count(&mut self, labels: Labels, request: usize, reply: usize) {
        for ((buckets, bytes), length) in self.sizes.iter_mut().zip([request, reply]) {
            buckets[bucket(length)] += 1;
            *bytes += length as u64;
        }
        match self.replies.iter_mut().find(|(of, _)| *of == labels) {
            Some((_, count)) => *count += 1,
            None => self.replies.push((labels, 1)),
        }
    }
}

impl Durations {
    fn add(&self, count: u64, each: Duration) {
        let seconds = each.as_secs_f64();
        let place = BUCKETS.iter().position(|bound| seconds <= *bound);
        add(&self.buckets[place.unwrap_or(BUCKETS.len())], count);
        let nanoseconds = u64::try_from(each.as_nanos()).unwrap_or(u64::MAX);
        add(&self.nanoseconds, nanoseconds.saturating_mul(count));
    }

    fn show(&self, page: &mut Exposition, name: &str) {
        let seconds = value(&self.nanoseconds) / 1e9;
        show_histogram(page, name, &SERVER, (BUCKETS, &self.buckets), seconds);
    }
}

/// A histogram of counts for each bucket, of which the last is above all bounds.
fn show_histogram(
    page: &mut Exposition,
    name: &str,
    labels: &[(&str, &str)],
    (bounds, counters): (&[f64], &[AtomicU64]),
    sum: f64,
) {
    let mut below = 0.0;
    let bounds = bounds.iter().map(ToString::to_string);
    for (bound, counter) in bounds.chain(["+Inf".to_owned()]).zip(counters) {
        below += value(counter);
        let labels = [labels, &[("le", &*bound)]].concat();
        page.sample(&format!("{name}_bucket"), &labels, below, None);
    }
    page.sample(&format!("{name}_sum"), labels, sum, None);
    page.sample(&format!("{name}_count"), labels, below, None);
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: Default::default(),
            responses: Default::default(),
            duration: Durations::default(),
            hits: Default::default(),
            misses: AtomicU64::default(),
            sizes: Default::default(),
            prefetches: Counter::default(),
            stale: Counter::default(),
            rejected: Counter::default(),
            panics: Counter::default(),
            forwarded: Family::new(&["proxy_name", "to", "rcode"], || Histogram::new(BUCKETS)),
        }
    }
}

impl Metrics {
    /// Counts requests with these labels, each of this duration.
    pub fn answered(&self, labels: Labels, count: u64, each: Duration) {
        add(
            &self.requests[labels.protocol][labels.family][labels.asked],
            count,
        );
        add(&self.responses[labels.code], count);
        self.duration.add(count, each);
    }

    /// Counts and clears a tally, with this duration per request.
    pub fn add(&self, tally: &mut Tally, each: Duration) {
        for (labels, count) in tally.replies.drain(..) {
            self.answered(labels, count, each);
        }
        for (sizes, (buckets, bytes)) in self.sizes.iter().zip(&mut tally.sizes) {
            // Datagrams.
            let [sizes, _] = sizes;
            for (counter, count) in sizes.buckets.iter().zip(std::mem::take(buckets)) {
                add(counter, count);
            }
            add(&sizes.bytes, std::mem::take(bytes));
        }
    }

    /// Counts the lengths of a request and its reply.
    pub fn sized(&self, labels: Labels, request: usize, reply: usize) {
        for (sizes, length) in self.sizes.iter().zip([request, reply]) {
            let sizes = &sizes[labels.protocol];
            add(&sizes.buckets[bucket(length)], 1);
            add(&sizes.bytes, length as u64);
        }
    }

    /// Counts a server's answer to a forwarded query.
    pub fn forwarded(&self, to: SocketAddr, reply: &[u8], took: Duration) {
        let code = code_name(reply.get(3).map_or(0, |flags| flags & 0xf));
        let labels = ["forward", &to.to_string(), &code];
        self.forwarded.with(&labels).took(took);
    }

    /// Counts an answer that is asked for again before it expires.
    pub fn prefetched(&self) {
        self.prefetches.increment();
    }

    /// Counts an expired answer that is sent.
    pub fn served_stale(&self) {
        self.stale.increment();
    }

    /// Counts a query that is not forwarded since too many are pending.
    pub fn rejected(&self) {
        self.rejected.increment();
    }

    /// Counts a panic while answering.
    pub fn panicked(&self) {
        self.panics.increment();
    }

    /// Counts a cache hit.
    pub fn hit(&self, reply: &[u8]) {
        let code = reply.get(3).map_or(0, |flags| flags & 0xf);
        add(&self.hits[usize::from(code != 0)], 1);
    }

    /// Counts a cache miss.
    pub fn missed(&self) {
        add(&self.misses, 1);
    }

    /// The exposition; `cached` is the number of cached answers.
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
        self.duration.show(&mut page, name);
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
        self.show_more(&mut page);
        page.finish()
    }

    /// Sizes, forwarded queries, and what is rare.
    fn show_more(&self, page: &mut Exposition) {
        let names = [
            ("coredns_dns_request_size_bytes", "Sizes of requests."),
            ("coredns_dns_response_size_bytes", "Sizes of responses."),
        ];
        for ((name, help), sizes) in names.iter().zip(&self.sizes) {
            page.family(name, "histogram", help);
            for (protocol, sizes) in PROTOCOLS.iter().zip(sizes) {
                let labels = [&SERVER[..], &[("proto", *protocol)]].concat();
                let counts = (&SIZES[..], &sizes.buckets[..]);
                show_histogram(page, name, &labels, counts, value(&sizes.bytes));
            }
        }
        let name = "coredns_proxy_request_duration_seconds";
        page.histograms(
            name,
            "How long servers took to answer forwarded queries.",
            &self.forwarded,
        );
        let mut counter = |name, help, labels: &[(&str, &str)], counter: &Counter| {
            page.family(name, "counter", help);
            page.sample(name, labels, counter.get() as f64, None);
        };
        let name = "coredns_cache_prefetch_total";
        let help = "Answers that were asked for again before they expired.";
        counter(name, help, &CACHE, &self.prefetches);
        let name = "coredns_cache_served_stale_total";
        counter(name, "Expired answers that were sent.", &CACHE, &self.stale);
        let name = "coredns_forward_max_concurrent_rejects_total";
        let help = "Queries that were not forwarded since too many were pending.";
        counter(name, help, &[], &self.rejected);
        let name = "coredns_panics_total";
        counter(name, "Panics while answering.", &[], &self.panics);
    }
}

/// Counters of zero are omitted, as in CoreDNS.
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

/// The type of a message's first question.
fn question_type(message: &[u8]) -> Option<u16> {
    let mut at = 12;
    loop {
        match *message.get(at)? {
            0 => break,
            // The first question cannot have a compression pointer.
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
        let mut tally = Tally::default();
        let mut answered = |asked, code| {
            let labels = Labels::new(&reply(asked, code), Transport::Udp, false);
            tally.count(labels, 90, 600);
        };
        answered(RecordType::AAAA, ResponseCode::NoError);
        answered(RecordType::AAAA, ResponseCode::NXDomain);
        answered(RecordType::CAA, ResponseCode::NoError);
        metrics.add(&mut tally, Duration::from_millis(3));
        metrics.add(&mut tally, Duration::from_millis(3));
        metrics.hit(&reply(RecordType::A, ResponseCode::NXDomain));
        metrics.missed();
        let tcp = Labels::new(&[], Transport::Tcp, false);
        metrics.sized(tcp, 30, 70_000);
        let server = "192.0.2.53:53".parse().unwrap();
        let refused = reply(RecordType::A, ResponseCode::Refused);
        metrics.forwarded(server, &refused, Duration::from_millis(3));
        metrics.prefetched();
        metrics.served_stale();
        metrics.rejected();
        metrics.panicked();
        let page = metrics.page(3);
        for line in [
            r#"coredns_dns_requests_total{server="dns://:53",zone=".",view="",proto="udp",family="1",type="AAAA"} 2"#,
            r#"proto="udp",family="1",type="other"} 1"#,
            r#"coredns_dns_responses_total{server="dns://:53",zone=".",view="",rcode="NXDOMAIN",plugin=""} 1"#,
            r#"coredns_dns_request_duration_seconds_count{server="dns://:53",zone=".",view=""} 3"#,
            r#"coredns_dns_request_duration_seconds_bucket{server="dns://:53",zone=".",view="",le="0.002"} 0"#,
            r#"coredns_dns_request_duration_seconds_bucket{server="dns://:53",zone=".",view="",le="0.004"} 3"#,
            r#"coredns_dns_request_duration_seconds_bucket{server="dns://:53",zone=".",view="",le="+Inf"} 3"#,
            r#"coredns_dns_request_duration_seconds_sum{server="dns://:53",zone=".",view=""} 0.009"#,
            r#"coredns_cache_hits_total{server="dns://:53",zones=".",view="",type="denial"} 1"#,
            r#"coredns_cache_misses_total{server="dns://:53",zones=".",view=""} 1"#,
            r#"coredns_cache_entries{server="dns://:53",zones=".",view=""} 3"#,
            r#"coredns_dns_request_size_bytes_bucket{server="dns://:53",zone=".",view="",proto="udp",le="0"} 0"#,
            r#"coredns_dns_request_size_bytes_bucket{server="dns://:53",zone=".",view="",proto="udp",le="100"} 3"#,
            r#"coredns_dns_response_size_bytes_bucket{server="dns://:53",zone=".",view="",proto="udp",le="511"} 0"#,
            r#"coredns_dns_response_size_bytes_sum{server="dns://:53",zone=".",view="",proto="udp"} 1800"#,
            r#"coredns_dns_response_size_bytes_bucket{server="dns://:53",zone=".",view="",proto="tcp",le="64000"} 0"#,
            r#"coredns_dns_response_size_bytes_count{server="dns://:53",zone=".",view="",proto="tcp"} 1"#,
            r#"coredns_proxy_request_duration_seconds_count{proxy_name="forward",to="192.0.2.53:53",rcode="REFUSED"} 1"#,
            r#"coredns_cache_prefetch_total{server="dns://:53",zones=".",view=""} 1"#,
            r#"coredns_cache_served_stale_total{server="dns://:53",zones=".",view=""} 1"#,
            "coredns_forward_max_concurrent_rejects_total 1",
            "coredns_panics_total 1",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
    }

    #[test]
    fn invalid_messages_are_counted_without_type() {
        for bytes in [&[][..], &[0; 12], &[0xff; 40], &[1; 20]] {
            assert_eq!(question_type(bytes), None);
        }
        // Invalid messages are counted, too.
        let metrics = Metrics::default();
        let labels = Labels::new(&[], Transport::Tcp, true);
        metrics.answered(labels, 1, Duration::ZERO);
        assert!(
            metrics
                .page(0)
                .contains(r#"proto="tcp",family="2",type="other"} 1"#)
        );
    }
}
