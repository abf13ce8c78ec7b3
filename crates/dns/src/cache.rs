//! The cache of forwarded answers, for as long as their TTLs allow. Pure but for its clock.
//!
//! An expired answer is served for a while with a short TTL if it cannot be renewed, and a popular
//! one is prefetched before it expires. Replies are kept as bytes: a hit changes the id, the case
//! of the question's name and the TTLs in place.

use std::{collections::HashMap, hash::Hash, sync::Arc, time::Duration};

use hickory_proto::{
    op::{Message, ResponseCode},
    rr::{Name, RData, RecordType},
};
use jiff::Timestamp;
use parking_lot::Mutex;
use stdx::Clock;

use crate::{
    corefile::{Cache as Settings, CacheSettings},
    hosts::within,
};

/// The interval of walks over all answers of a full cache.
const SWEEP_SECONDS: i64 = 1;
/// The TTL of a stale answer.
const STALE_TTL: u32 = 30;
/// How long a stale answer is served at once after it could not be renewed.
const RENEW_AGAIN_SECONDS: i64 = 10;
/// Longer replies are not cached, which bounds the memory of the cache: the server of a name chooses
/// their length. Replies over UDP are rarely longer.
const LONGEST_REPLY: usize = 4096;

/// The result of a lookup.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CacheLookup {
    /// An answer.
    Fresh(Vec<u8>),
    /// An answer that should be prefetched after it was sent.
    Ending(Vec<u8>),
    /// An expired answer to send at once, and whether to ask for it again after it was sent.
    Expired { reply: Vec<u8>, renew: bool },
    /// An expired answer, to use if no server answers.
    Stale(Vec<u8>),
    /// Nothing.
    Nothing,
}

struct Entry {
    reply: Box<[u8]>,
    /// The offsets of the TTLs.
    ttls: Box<[usize]>,
    stored: Timestamp,
    life: u32,
    hits: u32,
    /// When it could not be renewed last.
    failed: Option<Timestamp>,
    /// Whether it is a denial (no records).
    denial: bool,
}

struct Entries<K> {
    by_key: HashMap<K, Entry>,
    /// The number of answers with records, and of denials.
    counts: [usize; 2],
    /// When expired answers were dropped last.
    swept: Timestamp,
}

/// The cache.
pub(crate) struct Cache<K> {
    clock: Arc<dyn Clock>,
    settings: Settings,
    /// Guards all answers; held only briefly.
    entries: Mutex<Entries<K>>,
}

impl<K: Hash + Eq + Clone> Cache<K> {
    /// An empty cache.
    pub(crate) fn new(clock: Arc<dyn Clock>, settings: Settings) -> Self {
        let entries = Entries {
            by_key: HashMap::new(),
            counts: [0; 2],
            swept: Timestamp::UNIX_EPOCH,
        };
        Self {
            clock,
            settings,
            entries: Mutex::new(entries),
        }
    }

    /// The number of answers.
    pub(crate) fn len(&self) -> usize {
        self.entries.lock().by_key.len()
    }

    /// Looks an answer up; it still has the id of the server's reply.
    pub(crate) fn find<Q>(&self, key: &Q) -> CacheLookup
    where
        K: std::borrow::Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let now = self.clock.now();
        let mut entries = self.entries.lock();
        let Some(entry) = entries.by_key.get_mut(key) else {
            return CacheLookup::Nothing;
        };
        let age = now.duration_since(entry.stored).as_secs().max(0);
        let age = u32::try_from(age).unwrap_or(u32::MAX);
        let Some(left) = entry.life.checked_sub(age).filter(|left| *left > 0) else {
            let over = Duration::from_secs(u64::from(age - entry.life));
            if over >= self.settings.stale {
                entries.remove(key);
                return CacheLookup::Nothing;
            }
            let since = entry.failed.map(|failed| now.duration_since(failed));
            if since.is_some_and(|since| (0..RENEW_AGAIN_SECONDS).contains(&since.as_secs())) {
                return CacheLookup::Expired {
                    reply: entry.reply_with(|_| STALE_TTL),
                    renew: false,
                };
            }
            return match self.settings.stale_at_once {
                true => CacheLookup::Expired {
                    reply: entry.reply_with(|_| 0),
                    renew: true,
                },
                false => CacheLookup::Stale(entry.reply_with(|_| STALE_TTL)),
            };
        };
        entry.hits = entry.hits.saturating_add(1);
        let longest = self.settings.keeping(entry.denial).longest;
        let reply = entry.reply_with(|ttl| ttl.min(longest).saturating_sub(age));
        let often = self.settings.prefetch != 0 && entry.hits >= self.settings.prefetch;
        if often && left <= entry.life * self.settings.prefetch_percent / 100 {
            // Once: concurrent queries do not prefetch it, too.
            entry.hits = 0;
            return CacheLookup::Ending(reply);
        }
        CacheLookup::Fresh(reply)
    }

    /// Records that an answer could not be renewed: if it is stale, it is served at once for a while.
    pub(crate) fn failed<Q>(&self, key: &Q)
    where
        K: std::borrow::Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let now = self.clock.now();
        if let Some(entry) = self.entries.lock().by_key.get_mut(key) {
            entry.failed = Some(now);
        }
    }

    /// Stores a reply about a name, if it may be cached.
    pub(crate) fn keep(&self, key: &K, name: &Name, reply: &[u8]) {
        if reply.len() > LONGEST_REPLY {
            return;
        }
        let Some((denial, life, ttls)) = life(reply) else {
            return;
        };
        let keeping = self.settings.keeping(denial);
        let outside = !self.settings.zones.is_empty() && !within(&self.settings.zones, name);
        let life = life.clamp(keeping.shortest, keeping.longest.max(keeping.shortest));
        if outside || within(&keeping.disabled, name) || keeping.capacity == 0 || life == 0 {
            return;
        }
        let mut entries = self.entries.lock();
        entries.remove(key);
        if entries.counts[usize::from(denial)] >= keeping.capacity {
            entries.make_room(denial, keeping.capacity, self.clock.now());
        }
        entries.counts[usize::from(denial)] += 1;
        let entry = Entry {
            reply: reply.into(),
            ttls: ttls.into(),
            stored: self.clock.now(),
            life,
            hits: 0,
            failed: None,
            denial,
        };
        entries.by_key.insert(key.clone(), entry);
    }
}

impl Settings {
    fn keeping(&self, denial: bool) -> &CacheSettings {
        if denial { &self.denial } else { &self.success }
    }
}

impl<K: Hash + Eq + Clone> Entries<K> {
    fn remove<Q>(&mut self, key: &Q)
    where
        K: std::borrow::Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if let Some(entry) = self.by_key.remove(key) {
            self.counts[usize::from(entry.denial)] -= 1;
        }
    }

    /// Drops expired answers; if there are none, any one. All clients wait meanwhile, so that a client that fills the
    /// cache with names of its own causes a walk over all answers at most once a second.
    fn make_room(&mut self, denial: bool, capacity: usize, now: Timestamp) {
        let since = now.duration_since(self.swept);
        if since.is_negative() || since.as_secs() >= SWEEP_SECONDS {
            self.swept = now;
            self.drop_expired(denial, now);
        }
        if self.counts[usize::from(denial)] >= capacity {
            let mut same = self
                .by_key
                .iter()
                .filter(|(_, entry)| entry.denial == denial);
            if let Some(any) = same.next().map(|(key, _)| key.clone()) {
                self.remove(&any);
            }
        }
    }
}

impl<K> Entries<K> {
    fn drop_expired(&mut self, denial: bool, now: Timestamp) {
        let count = &mut self.counts[usize::from(denial)];
        self.by_key.retain(|_, entry| {
            let age = now.duration_since(entry.stored).as_secs();
            let is_over = entry.denial == denial && age >= i64::from(entry.life);
            *count -= usize::from(is_over);
            !is_over
        });
    }
}

impl Entry {
    fn reply_with(&self, change: impl Fn(u32) -> u32) -> Vec<u8> {
        let mut reply = self.reply.to_vec();
        for at in &self.ttls {
            if let Some(bytes) = reply.get_mut(*at..).and_then(<[u8]>::first_chunk_mut::<4>) {
                *bytes = change(u32::from_be_bytes(*bytes)).to_be_bytes();
            }
        }
        reply
    }
}

/// Whether a reply is a denial, how long it may be cached, and the offsets of its TTLs; `None` if
/// it may not be cached.
fn life(reply: &[u8]) -> Option<(bool, u32, Vec<usize>)> {
    let message = Message::from_vec(reply).ok()?;
    let code = message.metadata.response_code;
    let cacheable = matches!(code, ResponseCode::NoError | ResponseCode::NXDomain);
    if !cacheable || message.metadata.truncation || message.queries.len() != 1 {
        return None;
    }
    let records = message.answers.iter().chain(&message.authorities);
    let shortest = records.map(|record| record.ttl).min();
    let denial = message.answers.is_empty() || code == ResponseCode::NXDomain;
    let life = if denial {
        // The zone's SOA says how long a denial may be cached.
        let soa = message
            .authorities
            .iter()
            .find_map(|record| match &record.data {
                RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
                _ => None,
            });
        soa?.min(shortest?)
    } else {
        shortest?
    };
    Some((denial, life, ttl_places(reply)?))
}

/// The offsets of all TTLs except in the OPT record, whose field means something else.
fn ttl_places(reply: &[u8]) -> Option<Vec<usize>> {
    let half = |at: usize| {
        let bytes = reply.get(at..)?.first_chunk::<2>()?;
        Some(u16::from_be_bytes(*bytes))
    };
    let mut at = 12;
    for _ in 0..half(4)? {
        at = after_name(reply, at)? + 4;
    }
    let records = usize::from(half(6)?) + usize::from(half(8)?) + usize::from(half(10)?);
    let mut places = Vec::new();
    for _ in 0..records {
        at = after_name(reply, at)?;
        if half(at)? != u16::from(RecordType::OPT) {
            places.push(at + 4);
        }
        at += 10 + usize::from(half(at + 8)?);
    }
    (at <= reply.len()).then_some(places)
}

/// The end of a name: at its empty label, or after a pointer.
fn after_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length if length & 0xc0 == 0xc0 => return Some(at + 2),
            length => at += 1 + usize::from(length & 0x3f),
        }
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::{
        op::{MessageType, OpCode, Query},
        rr::{
            Record,
            rdata::{A, SOA},
        },
    };
    use stdx::FakeClock;

    use super::*;

    const LONGEST_ABSENCE: u32 = 300;
    const OFTEN: u32 = 3;
    const STALE: Duration = Duration::from_secs(3600);

    fn cache() -> (Cache<&'static str>, FakeClock) {
        let clock = FakeClock::at(Timestamp::UNIX_EPOCH);
        let keeping = |longest| CacheSettings {
            capacity: 3,
            longest,
            shortest: 0,
            disabled: Vec::new(),
        };
        let settings = Settings {
            success: keeping(3600),
            denial: keeping(LONGEST_ABSENCE),
            prefetch: OFTEN,
            stale: STALE,
            ..Settings::default()
        };
        (Cache::new(Arc::new(clock.clone()), settings), clock)
    }

    fn keep(cache: &Cache<&'static str>, key: &'static str, reply: &[u8]) {
        cache.keep(&key, &name(), reply);
    }

    fn name() -> Name {
        Name::from_ascii("www.example.com.").unwrap()
    }

    fn reply(ttls: &[u32]) -> Message {
        let mut message = Message::new(7, MessageType::Response, OpCode::Query);
        message.add_query(Query::query(name(), RecordType::A));
        for ttl in ttls {
            let data = RData::A(A::new(192, 0, 2, 1));
            message.answers.push(Record::from_rdata(name(), *ttl, data));
        }
        message
    }

    fn absence(minimum: u32) -> Message {
        let mut message = reply(&[]);
        message.metadata.response_code = ResponseCode::NXDomain;
        let soa = SOA::new(name(), name(), 1, 2, 3, 4, minimum);
        message
            .authorities
            .push(Record::from_rdata(name(), 900, RData::SOA(soa)));
        message
    }

    fn ttl(found: &CacheLookup) -> Option<u32> {
        let (CacheLookup::Fresh(bytes)
        | CacheLookup::Ending(bytes)
        | CacheLookup::Expired { reply: bytes, .. }
        | CacheLookup::Stale(bytes)) = found
        else {
            return None;
        };
        let message = Message::from_vec(bytes).unwrap();
        let mut records = message.answers.iter().chain(&message.authorities);
        records.next().map(|record| record.ttl)
    }

    #[test]
    fn an_answer_ages_and_ends_with_its_shortest_record() {
        let (cache, clock) = cache();
        keep(&cache, "a", &reply(&[60, 20]).to_vec().unwrap());
        clock.advance(Duration::from_secs(5));
        let found = cache.find(&"a");
        assert!(matches!(found, CacheLookup::Fresh(_)));
        assert_eq!(ttl(&found), Some(55));
        clock.advance(Duration::from_secs(15));
        let found = cache.find(&"a");
        assert!(matches!(found, CacheLookup::Stale(_)));
        assert_eq!(ttl(&found), Some(STALE_TTL));
        clock.advance(STALE + Duration::from_secs(1));
        assert_eq!(cache.find(&"a"), CacheLookup::Nothing);
        assert_eq!(cache.len(), 0);
    }

    #[test]
    fn a_name_that_does_not_exist_is_remembered_as_its_zone_says() {
        let (cache, clock) = cache();
        keep(&cache, "a", &absence(10).to_vec().unwrap());
        keep(&cache, "b", &absence(100_000).to_vec().unwrap());
        clock.advance(Duration::from_secs(9));
        assert!(matches!(cache.find(&"a"), CacheLookup::Fresh(_)));
        clock.advance(Duration::from_secs(1));
        assert!(matches!(cache.find(&"a"), CacheLookup::Stale(_)));
        clock.advance(Duration::from_secs(u64::from(LONGEST_ABSENCE)));
        assert!(matches!(cache.find(&"b"), CacheLookup::Stale(_)));
    }

    #[test]
    fn uncacheable_answers_are_not_cached() {
        let (cache, _) = cache();
        let mut truncated = reply(&[60]);
        truncated.metadata.truncation = true;
        let mut failed = reply(&[60]);
        failed.metadata.response_code = ResponseCode::ServFail;
        // Its sender chose its length.
        let long = reply(&[60; 1000]);
        assert!(long.to_vec().unwrap().len() > LONGEST_REPLY);
        for message in [truncated, failed, long, reply(&[0]), reply(&[])] {
            keep(&cache, "a", &message.to_vec().unwrap());
            assert_eq!(cache.find(&"a"), CacheLookup::Nothing);
        }
        let whole = reply(&[60]).to_vec().unwrap();
        for length in 0..whole.len() {
            keep(&cache, "a", &whole[..length]);
        }
        assert_eq!(cache.find(&"a"), CacheLookup::Nothing);
    }

    #[test]
    fn popular_answers_are_prefetched_once_before_they_expire() {
        let (cache, clock) = cache();
        keep(&cache, "a", &reply(&[100]).to_vec().unwrap());
        keep(&cache, "rare", &reply(&[100]).to_vec().unwrap());
        for _ in 0..OFTEN {
            assert!(matches!(cache.find(&"a"), CacheLookup::Fresh(_)));
        }
        clock.advance(Duration::from_secs(95));
        assert!(matches!(cache.find(&"a"), CacheLookup::Ending(_)));
        assert!(matches!(cache.find(&"a"), CacheLookup::Fresh(_)));
        assert!(matches!(cache.find(&"rare"), CacheLookup::Fresh(_)));
    }

    #[test]
    fn there_are_never_more_answers_than_there_is_room_for() {
        let (cache, clock) = cache();
        for key in ["a", "b", "c"] {
            keep(&cache, key, &reply(&[10]).to_vec().unwrap());
        }
        clock.advance(Duration::from_secs(11));
        keep(&cache, "d", &reply(&[10]).to_vec().unwrap());
        assert_eq!(cache.len(), 1, "what is over goes first");
        for key in ["a", "b", "c", "e"] {
            keep(&cache, key, &reply(&[10]).to_vec().unwrap());
            assert!(cache.len() <= 3);
        }
    }

    #[test]
    fn a_full_cache_is_walked_once_a_second_and_never_overfull() {
        let (cache, clock) = cache();
        for key in ["a", "b", "c", "d"] {
            keep(&cache, key, &reply(&[1]).to_vec().unwrap());
        }
        assert_eq!(cache.len(), 3);
        // Expired now, and the last walk is a second ago.
        clock.advance(Duration::from_secs(1));
        keep(&cache, "e", &reply(&[10]).to_vec().unwrap());
        assert_eq!(cache.len(), 1);
        keep(&cache, "none", &absence(1).to_vec().unwrap());
        for key in ["f", "g", "h", "i"] {
            keep(&cache, key, &reply(&[10]).to_vec().unwrap());
        }
        assert_eq!(cache.len(), 4, "denials have room of their own");
    }
}
